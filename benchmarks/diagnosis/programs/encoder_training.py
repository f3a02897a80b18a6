"""Trains an encoder with attention written out, and an Adam that goes through its tensors one by one."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-attention"
ALSO = ("unfused-optimizer",)
BATCH, LENGTH, WIDTH, HEADS, LAYERS = size(8, 2), size(1024, 16), size(768, 32), size(12, 2), size(6, 2)


class Layer(nn.Module):
    def __init__(self, fused_attention):
        super().__init__()
        self.fused_attention = fused_attention
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attention(self, q, k, v):
        if self.fused_attention:
            return F.scaled_dot_product_attention(q, k, v)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(q.shape[-1])  # fault
        return torch.matmul(torch.softmax(scores, -1), v)  # fault

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    layers = (Layer(fused_attention=bool(fixed)) for _ in range(LAYERS))
    model = nn.Sequential(*layers).to(DEVICE, torch.bfloat16)
    if fixed is True:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, foreach=False)  # also
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = F.mse_loss(model(x), x)
        loss.backward()  # fault
        optimizer.step()  # also
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
