"""Trains a network on shopping baskets, whose items are Python lists that become a tensor in each step."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
B, ITEMS, V, D = size(2048, 4), size(64, 4), size(20000, 32), size(128, 16)


def build(fixed):
    torch.manual_seed(0)
    rng = random.Random(0)
    baskets = [[rng.randrange(V) for _ in range(ITEMS)] for _ in range(4 * B)]
    stored = torch.tensor(baskets, device=DEVICE)
    model = nn.Sequential(nn.EmbeddingBag(V, D), nn.Linear(D, 512), nn.ReLU(), nn.Linear(512, 2)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    labels = torch.randint(2, (B,), device=DEVICE)

    def step(i):
        first = i % 4 * B
        if fixed:
            ids = stored[first : first + B]
        else:
            ids = torch.tensor(baskets[first : first + B], device=DEVICE)  # fault
        F.cross_entropy(model(ids), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
