"""Encodes images of patches with attention that goes through its heads one by one."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
BATCH, PATCHES, WIDTH, HEADS, LAYERS = size(16, 2), size(196, 9), size(768, 32), size(12, 2), size(6, 1)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH // HEADS) for _ in range(3))

    def forward(self, x):
        q, k, v = (project(x).unsqueeze(1) for project in (self.query, self.key, self.value))  # fault
        return F.scaled_dot_product_attention(q, k, v).squeeze(1)  # fault


class LoopedAttention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads = nn.ModuleList(Head() for _ in range(HEADS))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        outputs = [head(x) for head in self.heads]  # fault
        return self.out(torch.cat(outputs, -1))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    attention = Attention if fixed else LoopedAttention
    encoder = nn.Sequential(*(Layer(attention()) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16).eval()
    patches = torch.randn(BATCH, PATCHES, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        return encoder(patches).mean(1)

    return step


if __name__ == "__main__":
    run(build, steps=20)
