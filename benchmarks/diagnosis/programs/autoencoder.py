"""Trains an autoencoder on rows of features that come from ordinary memory of the host."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "pageable-copy"
ALSO = ()
ROWS, FEATURES, WIDTH = size(16384, 32), size(2048, 16), size(1024, 8)


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, FEATURES)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    batches = [torch.rand(ROWS, FEATURES) for _ in range(3)]
    if fixed and DEVICE == "cuda":
        batches = [batch.pin_memory() for batch in batches]

    def step(i):
        rows = batches[i % 3]
        if fixed:
            x = rows.to(DEVICE, non_blocking=True)
        else:
            x = rows.to(DEVICE)  # fault
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
