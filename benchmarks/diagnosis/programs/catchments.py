"""Predicts the discharge of rivers: features of the cells of a rainfall grid, averaged over each catchment."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "scatter-atomics"
ALSO = ()
DAYS, SIDE, WIDTH, CATCHMENTS, FIELDS = size(24, 2), size(224, 8), size(64, 8), size(20, 4), 6


class Cells(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(FIELDS, WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        )

    def forward(self, x):
        return self.layers(x).permute(0, 2, 3, 1).flatten(1, 2)  # (days, cells, features)


class Pool(nn.Module):
    def __init__(self, owner, fixed):
        super().__init__()
        self.fixed = fixed
        self.register_buffer("owner", owner)
        share = F.one_hot(owner, CATCHMENTS).float()
        self.register_buffer("share", (share / share.sum(0).clamp_min(1)).T.contiguous())

    def forward(self, cells):
        cells = cells.float()
        if self.fixed:
            return self.share @ cells
        days, _, width = cells.shape
        index = self.owner[None, :, None].expand(days, -1, width)
        empty = cells.new_zeros(days, CATCHMENTS, width)
        return empty.scatter_reduce(1, index, cells, "mean", include_self=False)  # fault


class Discharge(nn.Module):
    def __init__(self, owner, fixed):
        super().__init__()
        self.cells, self.pool = Cells(), Pool(owner, fixed)
        self.head = nn.Sequential(nn.Linear(WIDTH, 256), nn.SiLU(), nn.Linear(256, 1))

    def forward(self, rain):
        with torch.autocast(DEVICE, torch.bfloat16):
            cells = self.cells(rain)
        return self.head(self.pool(cells))[..., 0]


def build(fixed):
    torch.manual_seed(0)
    seeds = torch.rand(CATCHMENTS, 2)
    grid = torch.cartesian_prod(torch.linspace(0, 1, SIDE), torch.linspace(0, 1, SIDE))
    owner = torch.cdist(grid, seeds).argmin(1)
    model = Discharge(owner, fixed).to(DEVICE).to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    rain = torch.randn(DAYS, FIELDS, SIDE, SIDE, device=DEVICE).contiguous(memory_format=torch.channels_last)
    measured = torch.rand(DAYS, CATCHMENTS, device=DEVICE)

    def step(i):
        loss = F.mse_loss(model(rain), measured)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
