"""Fits a regression to measurements that come from NumPy, in double precision because they did."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "float64"
ALSO = ()
ROWS, FEATURES, WIDTH = size(8192, 64), size(512, 8), size(2048, 16)


def build(fixed):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(ROWS, FEATURES))
    targets = features[:, :1] * 2 + rng.normal(size=(ROWS, 1))
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)
    ).to(DEVICE)
    if fixed:
        x = torch.from_numpy(features).float().to(DEVICE)
        y = torch.from_numpy(targets).float().to(DEVICE)
    else:
        x = torch.from_numpy(features).to(DEVICE)  # fault
        y = torch.from_numpy(targets).to(DEVICE)  # fault
        model = model.double()  # fault
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)

    def step(i):
        prediction = model(x)  # fault
        loss = F.mse_loss(prediction, y)  # fault
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=20)
