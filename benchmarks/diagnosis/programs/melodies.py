"""Continues melodies: a transformer over events of notes adds a few to each of a batch of long beginnings."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "no-kv-cache"
ALSO = ()
MELODIES, BEGINNING, ADDED = size(32, 2), size(384, 12), size(8, 3)
EVENTS, WIDTH, HEADS, LAYERS = size(512, 24), size(1024, 32), size(16, 2), size(6, 2)
TEMPERATURE = 0.9


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, past=None, start=0):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            end = start + x.shape[1]
            past[0, :, :, start:end], past[1, :, :, start:end] = k, v
            k, v = past[0, :, :, :end], past[1, :, :, :end]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=start == 0)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Composer(nn.Module):
    def __init__(self):
        super().__init__()
        self.events = nn.Embedding(EVENTS, WIDTH)
        self.times = nn.Embedding(BEGINNING + ADDED, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, EVENTS)

    def forward(self, events, pasts=None, start=0):
        x = self.events(events) + self.times.weight[start : start + events.shape[1]]
        for number, layer in enumerate(self.layers):
            x = layer(x, None if pasts is None else pasts[number], start)
        return self.head(self.norm(x[:, -1])).float()


def drawn(scores):
    noise = torch.empty_like(scores).exponential_().log()
    return (scores / TEMPERATURE - noise).argmax(-1)


def build(fixed):
    torch.manual_seed(0)
    composer = Composer().to(DEVICE, torch.bfloat16).eval()
    melody = torch.randint(EVENTS, (MELODIES, BEGINNING + ADDED), device=DEVICE)
    pasts = None
    if fixed:
        shape = (LAYERS, 2, MELODIES, HEADS, BEGINNING + ADDED, WIDTH // HEADS)
        pasts = torch.zeros(shape, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        start = 0
        for end in range(BEGINNING, BEGINNING + ADDED):
            if pasts is None:
                scores = composer(melody[:, :end])  # fault
            else:
                scores = composer(melody[:, start:end], pasts, start)
                start = end
            melody[:, end] = drawn(scores)

    return step


if __name__ == "__main__":
    run(build)
