"""Evaluates a radial network on molecules; the centres of its basis are NumPy's, so it is in double precision."""

import numpy as np
import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "float64"
ALSO = ()
MOLECULES, ATOMS, BASIS, WIDTH = size(64, 2), size(96, 6), size(64, 8), size(128, 16)
CUTOFF = 5.0


class RadialNet(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        if fixed:
            self.centres = torch.linspace(0, CUTOFF, BASIS, device=DEVICE)
        else:
            self.centres = torch.as_tensor(np.linspace(0, CUTOFF, BASIS), device=DEVICE)  # fault
        self.gamma = (BASIS / CUTOFF) ** 2
        self.filters = nn.Sequential(nn.Linear(BASIS, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def basis(self, distances):
        offsets = distances.unsqueeze(-1) - self.centres  # fault
        smooth = torch.exp(-self.gamma * offsets**2)  # fault
        envelope = 0.5 * (torch.cos(np.pi * distances / CUTOFF) + 1)
        return (smooth * envelope.unsqueeze(-1)).float()  # fault

    def forward(self, positions):
        distances = torch.cdist(positions, positions).clamp(max=CUTOFF)
        return self.filters(self.basis(distances)).sum((1, 2, 3))


def build(fixed):
    torch.manual_seed(0)
    model = RadialNet(fixed).to(DEVICE)
    positions = torch.rand(MOLECULES, ATOMS, 3, device=DEVICE) * CUTOFF

    @torch.no_grad()
    def step(i):
        return model(positions)

    return step


if __name__ == "__main__":
    run(build, steps=60)
