"""Tracks whales from boats: a particle filter for each whale, with bearings and depths that sonars report."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

CAUSE = "fusion"
ALSO = []

WHALES, PARTICLES, FRAMES = size(128, 3), size(2048, 16), size(4, 2)
BOATS, SEABED = size(6, 2), size(512, 16)
BEARING_NOISE, DEPTH_NOISE = 0.05, 0.1


def resample_by_comparison(weights, offsets):
    """Systematic resampling: for each of evenly spaced positions, the particle in whose share it falls."""
    shares = weights.cumsum(dim=1)
    positions = (torch.arange(PARTICLES, device=DEVICE) + offsets) / PARTICLES
    below = shares[:, None, :] < positions[:, :, None]  # fault
    return below.sum(dim=2).clamp(max=PARTICLES - 1)  # fault


def resample_by_search(weights, offsets):
    shares = weights.cumsum(dim=1)
    positions = (torch.arange(PARTICLES, device=DEVICE) + offsets) / PARTICLES
    return torch.searchsorted(shares, positions).clamp(max=PARTICLES - 1)


class ParticleFilters:
    """States are x, y, depth, heading and speed, of each particle of each whale."""

    def __init__(self, resample):
        self.resample = resample
        self.random = torch.Generator(DEVICE).manual_seed(0)
        self.states = self.normal(WHALES, PARTICLES, 5) * 0.3
        self.boats = self.normal(BOATS, 2)
        self.seabed = (1 + 0.2 * self.normal(1, 1, SEABED, SEABED)).clamp(min=0.3)
        self.spread = torch.tensor([0.01, 0.01, 0.02, 0.1, 0.02], device=DEVICE)

    def normal(self, *shape):
        return torch.randn(*shape, device=DEVICE, generator=self.random)

    def move(self):
        x, y, depth, heading, speed = self.states.unbind(dim=2)
        x = x + 0.1 * speed * heading.cos()
        y = y + 0.1 * speed * heading.sin()
        moved = torch.stack([x, y, depth.abs(), heading, speed], dim=2)
        self.states = moved + self.spread * self.normal(*moved.shape)

    def log_likelihood(self, bearings, depths):
        place = self.states[:, :, None, :2] - self.boats
        error = torch.atan2(place[..., 1], place[..., 0]) - bearings[:, None, :]
        error = torch.remainder(error + math.pi, 2 * math.pi) - math.pi
        bottom = F.grid_sample(
            self.seabed.expand(WHALES, -1, -1, -1), self.states[:, :, None, :2], align_corners=False
        )[:, 0, :, 0]
        log = -0.5 * (error / BEARING_NOISE).square().sum(dim=2)
        log = log - 0.5 * ((self.states[:, :, 2] - depths[:, None]) / DEPTH_NOISE).square()
        return log - 10 * F.relu(self.states[:, :, 2] - bottom)

    def observe(self, bearings, depths):
        self.move()
        weights = self.log_likelihood(bearings, depths).softmax(dim=1)
        estimate = (weights[:, :, None] * self.states).sum(dim=1)
        offsets = torch.rand(WHALES, 1, device=DEVICE, generator=self.random)
        ancestors = self.resample(weights, offsets)  # fault
        self.states = self.states.gather(1, ancestors[:, :, None].expand(-1, -1, 5))
        return estimate


def build(fixed):
    torch.manual_seed(0)
    filters = ParticleFilters(resample_by_search if fixed else resample_by_comparison)
    bearings = (torch.rand(16, WHALES, BOATS) * 2 * math.pi - math.pi).to(DEVICE)
    depths = torch.rand(16, WHALES).to(DEVICE)

    @torch.inference_mode()
    def step(i):
        track = []
        for frame in range(FRAMES):
            now = (i * FRAMES + frame) % len(depths)
            track.append(filters.observe(bearings[now], depths[now]))
        return torch.stack(track)

    return step


if __name__ == "__main__":
    run(build)
