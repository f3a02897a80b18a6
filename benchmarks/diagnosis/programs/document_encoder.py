"""Encodes documents with a transformer whose attention is written out: scores, softmax, product."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-attention"
ALSO = ()
BATCH, LENGTH, WIDTH, HEADS, LAYERS = size(8, 2), size(1024, 16), size(768, 32), size(12, 2), size(6, 2)


class Attention(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def split(self, x):
        batch, length, _ = x.shape
        return x.view(batch, length, HEADS, WIDTH // HEADS).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        if self.fixed:
            context = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = q @ k.transpose(-2, -1) / math.sqrt(WIDTH // HEADS)  # fault
            weights = F.softmax(scores, dim=-1)  # fault
            context = weights @ v  # fault
        return self.out(context.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.attention = Attention(fixed)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    encoder = nn.Sequential(*(Layer(fixed) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16).eval()
    documents = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.no_grad()
    def step(i):
        return encoder(documents).mean(1)

    return step


if __name__ == "__main__":
    run(build, steps=20)
