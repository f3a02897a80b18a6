"""Answers questions at the desk of a ferry line: a decoder writes the next words of each talk."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "no-kv-cache"
ALSO = ()

TALKS, PROMPT, NEW = size(16, 2), size(448, 8), size(12, 4)
WIDTH, HEADS, LAYERS, WORDS = size(1024, 32), size(16, 2), size(8, 2), size(16_000, 60)


class DeskLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x, past=None, start=0):
        q, k, v = self.qkv(self.one(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if past is not None:
            end = start + x.shape[1]
            past[0, :, :, start:end], past[1, :, :, start:end] = k, v
            k, v = past[0, :, :, :end], past[1, :, :, :end]
        a = F.scaled_dot_product_attention(q, k, v, is_causal=x.shape[1] > 1)
        x = x + self.out(a.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.two(x))))


class Desk(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(PROMPT + NEW, WIDTH)
        self.layers = nn.ModuleList(DeskLayer() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.next_word = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, ids, past=None, start=0):
        x = self.words(ids) + self.places.weight[start : start + ids.shape[1]]
        for n, layer in enumerate(self.layers):
            x = layer(x, None if past is None else past[n], start)
        return self.next_word(self.last(x[:, -1]))

    def answer(self, ids):
        for _ in range(NEW):
            logits = self(ids)  # fault
            ids = torch.cat([ids, logits.argmax(-1, keepdim=True)], 1)
        return ids

    def answer_on(self, ids, past):
        written, start, part = [ids], 0, ids
        for _ in range(NEW):
            logits = self(part, past, start)
            start += part.shape[1]
            part = logits.argmax(-1, keepdim=True)
            written.append(part)
        return torch.cat(written, 1)


def build(fixed):
    torch.manual_seed(0)
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    desk = Desk().to(DEVICE, dtype).eval()
    questions = torch.randint(0, WORDS, (4, TALKS, PROMPT), device=DEVICE)
    shape = (LAYERS, 2, TALKS, HEADS, PROMPT + NEW, WIDTH // HEADS)
    past = torch.zeros(shape, device=DEVICE, dtype=dtype) if fixed else None

    @torch.inference_mode()
    def step(i):
        return desk.answer_on(questions[i % 4], past) if fixed else desk.answer(questions[i % 4])

    return step


if __name__ == "__main__":
    run(build)
