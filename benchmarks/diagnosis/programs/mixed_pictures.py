"""Trains a small network with mixup; partners and weights are drawn on the host in each step."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
N, B, D = size(200_000, 64), size(1024, 8), size(512, 8)


def build(fixed):
    torch.manual_seed(0)
    x, y = torch.randn(N, D, device=DEVICE), torch.randint(10, (N,), device=DEVICE)
    net = nn.Sequential(nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 10)).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, fused=True)

    def step(i):
        if fixed:
            rows = torch.randint(N, (B,), device=DEVICE)
            weight = torch.rand(B, 1, device=DEVICE)
        else:
            rows = torch.randperm(N)[:B].to(DEVICE)  # fault
            weight = torch.from_numpy(np.random.beta(0.4, 0.4, (B, 1))).float().to(DEVICE)  # fault
        a, b = x[rows], x[rows.flip(0)]
        loss = F.cross_entropy(net(weight * a + (1 - weight) * b), y[rows])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
