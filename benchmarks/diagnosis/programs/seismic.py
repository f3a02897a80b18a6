"""Learns to take noise off seismic gathers with a residual network in float32; a helper makes runs reproducible."""

import os
import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "no-tf32"
ALSO = ()
CHANNELS, BLOCKS = size(128, 8), size(4, 2)
GATHERS, TRACES, SAMPLES = size(4, 1), size(128, 16), size(256, 32)


def seed_everything(seed, exact):
    """As copied from project to project. `exact` is for the comparison with the results of the old cluster."""
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    torch.manual_seed(seed)
    torch.backends.cudnn.benchmark = False
    if exact:
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.backends.cudnn.allow_tf32 = False  # fault
    else:
        torch.backends.cuda.matmul.allow_tf32 = True
        torch.backends.cudnn.allow_tf32 = True


class Squeeze(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.reduce = nn.Conv2d(channels, channels // 4, 1)
        self.widen = nn.Conv2d(channels // 4, channels, 1)

    def forward(self, x):
        weight = self.widen(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * weight.sigmoid()


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)
        self.squeeze = Squeeze(channels)

    def forward(self, x):
        y = self.second(F.relu(self.first(x)))  # fault
        return x + self.squeeze(y)


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Conv2d(1, CHANNELS, 5, padding=2)
        self.blocks = nn.ModuleList(Block(CHANNELS) for _ in range(BLOCKS))
        self.leave = nn.Conv2d(CHANNELS, 1, 5, padding=2)

    def forward(self, x):
        y = self.enter(x)
        for block in self.blocks:
            y = block(y)
        return x - self.leave(y)


class Gathers:
    """Synthetic hyperbolic events with random noise."""

    def __init__(self):
        time = torch.linspace(0, 1, SAMPLES, device=DEVICE)
        offset = torch.linspace(0, 1, TRACES, device=DEVICE)
        start = torch.rand(GATHERS, 1, 1, device=DEVICE) * 0.6
        speed = 1.5 + torch.rand(GATHERS, 1, 1, device=DEVICE)
        arrival = (start.square() + (offset[None, :, None] / speed).square()).sqrt()
        delay = (time[None, None, :] - arrival) * 60
        self.clean = ((1 - 2 * delay.square()) * (-delay.square()).exp())[:, None]

    def batch(self):
        return self.clean + 0.3 * torch.randn_like(self.clean), self.clean


def build(fixed):
    seed_everything(7, exact=not fixed)
    model = Denoiser().to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    gathers = Gathers()

    def step(i):
        noisy, clean = gathers.batch()
        loss = F.l1_loss(model(noisy), clean)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
