"""Trains an encoder whose sinusoidal positions are computed with NumPy and sent to the GPU in each step."""

import numpy as np
import torch
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "cpu-tensors"
ALSO = ()
BATCH, LENGTH, WIDTH, LAYERS = size(8, 2), size(512, 16), size(512, 64), size(2, 1)


def sinusoids(length, width):
    positions = np.arange(length)[:, None]  # fault
    frequencies = np.exp(-np.log(10000.0) * np.arange(0, width, 2) / width)  # fault
    angles = positions * frequencies  # fault
    encoding = np.zeros((length, width), dtype=np.float32)  # fault
    encoding[:, 0::2] = np.sin(angles)  # fault
    encoding[:, 1::2] = np.cos(angles)  # fault
    return torch.from_numpy(encoding)  # fault


class Encoder(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS)))
        self.register_buffer("positions", sinusoids(LENGTH, WIDTH), persistent=False)

    def forward(self, x):
        if self.fixed:
            return self.blocks(x + self.positions)
        positions = sinusoids(x.shape[1], x.shape[2]).to(x.device, x.dtype)  # fault
        return self.blocks(x + positions)


def build(fixed):
    torch.manual_seed(0)
    model = Encoder(fixed).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = model(x).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=20)
