"""Trains a network that predicts the pressure along the airways of lungs, from their branches and their lobes."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "scatter-atomics"
ALSO = ()
LUNGS, LOBES, POINTS = size(12, 2), 5, size(2048, 16)
WIDTH, LAYERS = size(128, 8), size(6, 2)


def scatter_mean(values, index, rows):
    """The mean of the values of each row."""
    where = index[:, None].expand_as(values)
    total = values.new_zeros(rows, values.shape[1]).scatter_add_(0, where, values)  # fault
    return total / POINTS


class AirwayLayer(nn.Module):
    """Mixes a point with its neighbours on the branch, and with the whole of its lobe."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.along = nn.Linear(3 * WIDTH, WIDTH)
        self.of_lobe = nn.Linear(2 * WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x, lobe):
        rows = LUNGS * LOBES
        by_lobe = x.view(rows, POINTS, WIDTH)
        near = torch.cat([by_lobe, by_lobe.roll(1, 1), by_lobe.roll(-1, 1)], -1).view(-1, 3 * WIDTH)
        if self.fixed:
            context = self.of_lobe(torch.cat([by_lobe.mean(1), by_lobe.square().mean(1)], -1))
            spread = context[:, None].expand(rows, POINTS, WIDTH).reshape(-1, WIDTH)
        else:
            moments = [scatter_mean(x, lobe, rows), scatter_mean(x.square(), lobe, rows)]
            context = self.of_lobe(torch.cat(moments, -1))
            spread = context.index_select(0, lobe)  # fault
        x = x + F.silu(self.along(near) + spread)
        return x + self.down(F.silu(self.up(self.norm(x))))


class Airways(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.encode = nn.Linear(7, WIDTH)
        self.layers = nn.ModuleList(AirwayLayer(fixed) for _ in range(LAYERS))
        self.decode = nn.Linear(WIDTH, 1)

    def forward(self, points, lobe):
        x = self.encode(points)
        for layer in self.layers:
            x = layer(x, lobe)
        return self.decode(x)[:, 0]


def build(fixed):
    torch.manual_seed(0)
    network = Airways(fixed).to(DEVICE)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, fused=DEVICE == "cuda")
    lobe = torch.arange(LUNGS * LOBES, device=DEVICE).repeat_interleave(POINTS)
    scans = [(torch.randn(len(lobe), 7, device=DEVICE), torch.randn(len(lobe), device=DEVICE)) for _ in range(4)]

    def step(i):
        points, pressure = scans[i % len(scans)]
        loss = F.smooth_l1_loss(network(points, lobe), pressure)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
