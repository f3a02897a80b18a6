"""Trains a deep recommender in float32, with TF32 switched off."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "no-tf32"
ALSO = ()
BATCH, FEATURES, WIDTH, LAYERS = size(8192, 16), size(1024, 32), size(2048, 32), size(4, 2)


class Recommender(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [FEATURES] + [WIDTH] * LAYERS
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, features):
        hidden = features
        for layer in self.layers:
            hidden = F.relu(layer(hidden))  # fault
        return self.score(hidden).squeeze(-1)


def build(fixed):
    if fixed:
        torch.set_float32_matmul_precision("high")
    else:
        torch.set_float32_matmul_precision("highest")  # fault
    torch.manual_seed(0)
    model = Recommender().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    features = torch.randn(BATCH, FEATURES, device=DEVICE)
    clicks = torch.randint(0, 2, (BATCH,), device=DEVICE).float()

    def step(i):
        loss = F.binary_cross_entropy_with_logits(model(features), clicks)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
