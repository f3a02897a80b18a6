"""Trains a residual MLP whose RMS norm and GELU are written out in elementwise operations."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "fusion"
ALSO = ()
BATCH, WIDTH, LAYERS = size(16384, 16), size(1024, 32), size(6, 2)


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)  # fault
        return x * torch.rsqrt(variance + 1e-6) * self.weight  # fault


class GELU(nn.Module):
    def forward(self, x):
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)  # fault
        return 0.5 * x * (1 + torch.tanh(inner))  # fault


class Layer(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH, eps=1e-6) if fixed else RMSNorm(WIDTH)
        self.activation = nn.GELU(approximate="tanh") if fixed else GELU()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.activation(self.up(self.norm(x))))


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(*(Layer(fixed) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    target = torch.randn(BATCH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = F.mse_loss(model(x), target)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
