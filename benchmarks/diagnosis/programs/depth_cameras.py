"""Builds a map of a building from a walk with a depth camera: points of all frames in one frame of reference."""

from dataclasses import dataclass

import torch
from _run import DEVICE, run, size

CAUSE = "growing-copies"
ALSO = ["blocking-read"]


FRAMES = size(24, 4)
HEIGHT = size(720, 12)
WIDTH = size(960, 16)
FOCAL = 525.0
CHANNELS = 8  # x, y, z, red, green, blue, distance, weight


@dataclass
class Walk:
    depths: torch.Tensor
    colours: torch.Tensor
    poses: torch.Tensor


def synthesise(seed):
    generator = torch.Generator().manual_seed(seed)
    depths = torch.rand(FRAMES, HEIGHT, WIDTH, generator=generator) * 4 + 0.5
    depths[FRAMES // 2] = 0  # the lens was covered
    colours = torch.randint(256, (FRAMES, HEIGHT, WIDTH, 3), generator=generator, dtype=torch.uint8)
    turns = torch.linalg.qr(torch.randn(FRAMES, 3, 3, generator=generator)).Q
    poses = torch.cat([turns, torch.randn(FRAMES, 3, 1, generator=generator)], 2)
    return Walk(depths.to(DEVICE), colours.to(DEVICE), poses.to(DEVICE))


class Mapper:
    def __init__(self, keep_parts):
        self.keep_parts = keep_parts
        v, u = torch.meshgrid(torch.arange(HEIGHT), torch.arange(WIDTH), indexing="ij")
        rays = torch.stack([(u - WIDTH / 2) / FOCAL, (v - HEIGHT / 2) / FOCAL, torch.ones(HEIGHT, WIDTH)], 2)
        self.rays = rays.view(-1, 3).to(DEVICE)

    def lift(self, depth, colour, pose):
        depth = depth.view(-1, 1)
        points = (self.rays * depth) @ pose[:, :3].T + pose[:, 3]
        return torch.cat([points, colour.view(-1, 3) / 255, depth, 1 / (1 + depth)], 1)

    def __call__(self, walk, usable):
        cloud = torch.empty(0, CHANNELS, device=DEVICE)
        parts = []
        for k in range(FRAMES):
            if usable is None and (walk.depths[k] > 0).sum().item() == 0:  # also
                continue
            if usable is not None and not usable[k]:
                continue
            points = self.lift(walk.depths[k], walk.colours[k], walk.poses[k])
            if self.keep_parts:
                parts.append(points)
            else:
                cloud = torch.cat([cloud, points])  # fault
        return torch.cat(parts) if self.keep_parts else cloud


def build(fixed):
    walks = [synthesise(seed) for seed in range(2)]
    mapper = Mapper(keep_parts=bool(fixed))

    @torch.inference_mode()
    def step(i):
        walk = walks[i % 2]
        usable = (walk.depths > 0).flatten(1).sum(1).tolist() if fixed is True else None
        cloud = mapper(walk, usable)
        return cloud[:, :3].amin(0), cloud[:, :3].amax(0), (cloud[:, 3:6] * cloud[:, 7:]).mean(0)

    return step


if __name__ == "__main__":
    run(build)
