"""Trains a network with noise on every layer's output, drawn on the host by a helper from an old project."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
B, D, LAYERS = size(1024, 8), size(512, 16), size(6, 2)


def noise_like(x, fixed):
    if fixed:
        return 0.1 * torch.randn_like(x)
    return 0.1 * torch.randn(x.shape).to(x.device)  # fault


def build(fixed):
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(D, D) for _ in range(LAYERS)).to(DEVICE)
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.01, fused=True)
    x, y = torch.randn(B, D, device=DEVICE), torch.randn(B, D, device=DEVICE)

    def step(i):
        h = x
        for layer in layers:
            h = F.relu(layer(h))
            h = h + noise_like(h, fixed)
        F.mse_loss(h, y).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
