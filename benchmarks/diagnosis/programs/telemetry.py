"""Learns which trucks will need a repair from several hundred readings, kept by name as columns."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "small-copies"
ALSO = ()
TRUCKS, READINGS, WIDTH, LAYERS = size(4096, 8), size(400, 6), size(2048, 16), size(4, 1)
BATCHES = 2


def on_host(*shape):
    return torch.randn(shape).pin_memory() if DEVICE == "cuda" else torch.randn(shape)


class Columns:
    """A batch as the file has it: a tensor for each reading."""

    def __init__(self):
        self.columns = {f"reading_{number:03}": on_host(TRUCKS) for number in range(READINGS)}

    def on_device(self):
        sent = {name: column.to(DEVICE, non_blocking=True) for name, column in self.columns.items()}  # fault
        return torch.stack(list(sent.values()))  # fault


class Table:
    """A batch of all readings in one tensor."""

    def __init__(self):
        self.table = on_host(READINGS, TRUCKS)

    def on_device(self):
        return self.table.to(DEVICE, non_blocking=True)


def build(fixed):
    torch.manual_seed(0)
    batches = [(Table if fixed else Columns)() for _ in range(BATCHES)]
    repaired = torch.randint(2, (TRUCKS,), device=DEVICE).float()
    hidden = [part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    network = nn.Sequential(nn.Linear(READINGS, WIDTH), nn.ReLU(), *hidden, nn.Linear(WIDTH, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=True)

    def step(i):
        readings = batches[i % BATCHES].on_device()
        loss = F.binary_cross_entropy_with_logits(network(readings.T)[:, 0], repaired)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
