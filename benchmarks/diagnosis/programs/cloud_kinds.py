"""Trains a vision transformer to name the kinds of clouds over an airfield."""

import contextlib

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "half-precision"
ALSO = ()

SKIES, SIDE, PATCH, WIDTH = size(48, 2), size(224, 16), size(16, 8), size(1024, 16)
HEADS, LAYERS, KINDS = size(16, 2), size(6, 2), 27


class SkyBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class SkyTransformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(SkyBlock() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.kind = nn.Linear(WIDTH, KINDS)

    def forward(self, skies):
        x = self.patches(skies).flatten(2).transpose(1, 2) + self.places
        return self.kind(self.norm(self.blocks(x)).mean(1))


def build(fixed):
    torch.manual_seed(0)
    net = SkyTransformer().to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-4, weight_decay=0.05, fused=True)
    skies = torch.randn(2, SKIES, 3, SIDE, SIDE, device=DEVICE)
    kinds = torch.randint(0, KINDS, (2, SKIES), device=DEVICE)

    def precision():
        return torch.autocast(DEVICE, torch.bfloat16) if fixed else contextlib.nullcontext()

    def step(i):
        with precision():
            logits = net(skies[i % 2])  # fault
        loss = F.cross_entropy(logits.float(), kinds[i % 2], label_smoothing=0.1)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
