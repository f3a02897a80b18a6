"""Trains a deep narrow network and fills every parameter's gradient with zeros by hand before each step."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "zero-grad-fills"
ALSO = ()
B, D, LAYERS = size(4096, 8), size(256, 16), size(48, 2)


def build(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(D, D), nn.ReLU()))).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    x, y = torch.randn(B, D, device=DEVICE), torch.randn(B, D, device=DEVICE)

    def step(i):
        if fixed:
            optimizer.zero_grad()
        else:
            for p in net.parameters():
                if p.grad is not None:
                    p.grad.zero_()  # fault
        F.mse_loss(net(x), y).backward()
        optimizer.step()

    return step


if __name__ == "__main__":
    run(build)
