"""Foretells from records of cool houses how long a crate of apples keeps."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

CAUSE = "data-loading"
ALSO = ()
ROWS, BATCH, WIDTH = size(400_000, 200), size(2048, 16), size(1024, 16)
READINGS, COLUMNS = 52, {"variety": 60, "orchard": 900, "house": 120, "picker": 400}


class Crates(nn.Module):
    def __init__(self):
        super().__init__()
        self.columns = nn.ModuleList(nn.Embedding(kinds, 16) for kinds in COLUMNS.values())
        self.norm = nn.BatchNorm1d(READINGS)
        layers, inputs = [], READINGS + 16 * len(COLUMNS)
        for _ in range(4):
            layers += [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.BatchNorm1d(WIDTH)]
            inputs = WIDTH
        self.layers = nn.Sequential(*layers, nn.Linear(WIDTH, 1))

    def forward(self, readings, kinds):
        named = [column(kind) for column, kind in zip(self.columns, kinds.unbind(1), strict=True)]
        return self.layers(torch.cat([self.norm(readings), *named], 1))[:, 0]


def records():
    readings = torch.randn(ROWS, READINGS)
    kinds = torch.stack([torch.randint(count, (ROWS,)) for count in COLUMNS.values()], 1)
    days = 90 + 40 * readings[:, 0].tanh() + 5 * torch.randn(ROWS)
    return TensorDataset(readings, kinds, days)


def batches(table, fixed):
    order = RandomSampler(table, generator=torch.Generator().manual_seed(0))
    pinned = DEVICE == "cuda"
    if fixed:
        rows = BatchSampler(order, BATCH, drop_last=True)
        loader = DataLoader(table, batch_size=None, sampler=rows, pin_memory=pinned)
    else:
        loader = DataLoader(table, batch_size=BATCH, sampler=order, drop_last=True, pin_memory=pinned)  # fault
    while True:
        yield from loader


def build(fixed):
    torch.manual_seed(0)
    table = records()
    model = Crates().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10_000)
    stream = batches(table, fixed)

    def step(i):
        readings, kinds, days = (column.to(DEVICE, non_blocking=True) for column in next(stream))  # fault
        loss = F.huber_loss(model(readings, kinds), days, delta=10.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
