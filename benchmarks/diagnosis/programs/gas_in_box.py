"""Simulates a gas of soft particles in a box with reflecting walls."""

import torch
from _run import DEVICE, run, size

CAUSE = "boolean-masks"
ALSO = ()
PARTICLES, SUBSTEPS = size(12288, 16), size(10, 2)
LENGTH, RANGE, DT = 40.0, 1.5, 2e-3


def repulsion(places):
    """Force on each particle by all others: a Gaussian core."""
    between = places[:, None, :] - places[None, :, :]
    strength = torch.exp(-between.square().sum(-1, keepdim=True) / RANGE**2)
    return (strength * between).sum(1)


class Gas:
    def __init__(self):
        self.places = LENGTH * torch.rand(PARTICLES, 3, device=DEVICE)
        self.speeds = 30 * torch.randn(PARTICLES, 3, device=DEVICE)
        self.force = torch.compile(repulsion) if DEVICE == "cuda" else repulsion

    def reflect(self):
        x, v = self.places, self.speeds
        low = x < 0
        x[low] = -x[low]  # fault
        v[low] = -v[low]  # fault
        high = x > LENGTH
        x[high] = 2 * LENGTH - x[high]  # fault
        v[high] = -v[high]  # fault

    def reflect_everywhere(self):
        x, v = self.places, self.speeds
        outside = (x < 0) | (x > LENGTH)
        self.places = LENGTH - (LENGTH - x.abs()).abs()
        self.speeds = torch.where(outside, -v, v)

    def advance(self, reflect):
        self.speeds = torch.add(self.speeds, self.force(self.places), alpha=DT)
        self.places = torch.add(self.places, self.speeds, alpha=DT)
        reflect()


def build(fixed):
    torch.manual_seed(0)
    gas = Gas()
    reflect = gas.reflect_everywhere if fixed else gas.reflect

    def step(i):
        for _ in range(SUBSTEPS):
            gas.advance(reflect)
        return gas.speeds.square().sum()

    return step


if __name__ == "__main__":
    run(build)
