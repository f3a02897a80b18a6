"""Trains a wide network on few rows, and fills its gradients with zeros instead of dropping them."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "zero-grad-fills"
ALSO = ()
ROWS, WIDTH, LAYERS = size(64, 4), size(4096, 16), size(9, 2)


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(ROWS, WIDTH, device=DEVICE)

    def step(i):
        loss = F.mse_loss(model(x), x)
        loss.backward()  # fault
        optimizer.step()
        if fixed:
            optimizer.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=False)  # fault
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=20)
