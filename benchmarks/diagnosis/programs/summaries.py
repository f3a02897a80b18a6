"""Writes summaries greedily with a decoder of two billion weights and a cache of keys and values."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "recurring-casts"
ALSO = ()
WIDTH, HEADS, LAYERS = size(4096, 64), size(32, 4), size(9, 2)
HIDDEN, WORDS = size(14336, 128), size(16384, 100)
BATCH, PROMPT, LONGEST = size(8, 2), size(512, 4), size(640, 64)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x, cache, place):
        q, k, v = self.qkv(x).view(len(x), HEADS, 3, -1).unbind(2)
        keys, values = cache
        keys[:, :, place] = k
        values[:, :, place] = v
        past = slice(0, place + 1)
        y = F.scaled_dot_product_attention(q[:, :, None], keys[:, :, past], values[:, :, past])
        return self.out(y.flatten(1))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_attention = nn.RMSNorm(WIDTH)
        self.attention = Attention()
        self.norm_hidden = nn.RMSNorm(WIDTH)
        self.gate_up = nn.Linear(WIDTH, 2 * HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, WIDTH, bias=False)

    def forward(self, x, cache, place):
        x = x + self.attention(self.norm_attention(x), cache, place)
        gate, up = self.gate_up(self.norm_hidden(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words, caches, place):
        x = self.words(words)
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache, place)
        return self.head(self.norm(x))


class Writer:
    """Holds a checkpoint as it was saved by the trainer (float32), and decodes in mixed precision as training did."""

    def __init__(self, model, half):
        self.model = model.eval().requires_grad_(False)
        self.half = half
        if half:
            self.model.to(torch.bfloat16)
        shape = (BATCH, HEADS, LONGEST, WIDTH // HEADS)
        self.caches = [
            (
                torch.randn(shape, device=DEVICE, dtype=torch.bfloat16),
                torch.randn(shape, device=DEVICE, dtype=torch.bfloat16),
            )
            for _ in range(LAYERS)
        ]

    @torch.inference_mode()
    def next(self, words, place):
        if self.half:
            scores = self.model(words, self.caches, place)
        else:
            with torch.autocast(DEVICE, torch.bfloat16):  # fault
                scores = self.model(words, self.caches, place)  # fault
        return scores.argmax(-1)


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Decoder()
    writer = Writer(model, half=fixed)
    state = {"words": torch.zeros(BATCH, dtype=torch.long, device=DEVICE)}

    def step(i):
        place = PROMPT + i % (LONGEST - PROMPT)
        state["words"] = writer.next(state["words"], place)
        return state["words"]

    return step


if __name__ == "__main__":
    run(build)
