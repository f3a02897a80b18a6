"""Super-resolution of a satellite picture, which the network takes in tiles."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "small-batches"
ALSO = ()

SIDE = size(512, 32)
TILE = size(64, 16)
CHANNELS = size(64, 8)
BLOCKS = size(8, 2)
SCALE = 2


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False),
        )

    def forward(self, x):
        return torch.add(x, self.body(x), alpha=0.1)


def network():
    return nn.Sequential(
        nn.Conv2d(8, CHANNELS, 3, padding=1),
        *[Residual(CHANNELS) for _ in range(BLOCKS)],
        nn.Conv2d(CHANNELS, 8 * SCALE**2, 3, padding=1),
        nn.PixelShuffle(SCALE),
    )


def cut(picture):
    """(8, H, W) into (tiles, 8, TILE, TILE)."""
    tiles = picture.unfold(1, TILE, TILE).unfold(2, TILE, TILE)
    return tiles.permute(1, 2, 0, 3, 4).reshape(-1, 8, TILE, TILE).contiguous(memory_format=torch.channels_last)


def join(tiles, rows):
    """The tiles' picture again."""
    side = TILE * SCALE
    grid = tiles.reshape(rows, -1, 8, side, side)
    return grid.permute(2, 0, 3, 1, 4).reshape(8, rows * side, -1)


class Enlarger:
    def __init__(self, fixed):
        self.net = network().to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
        self.enlarge = self.together if fixed else self.tile_by_tile

    def together(self, tiles):
        return self.net(tiles)

    def tile_by_tile(self, tiles):
        return torch.cat([self.net(tile) for tile in tiles.split(1)])  # fault

    @torch.inference_mode()
    def __call__(self, picture):
        return join(self.enlarge(cut(picture)), SIDE // TILE).clamp(0, 1)


def build(fixed):
    enlarger = Enlarger(fixed)
    picture = torch.rand(8, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
    return lambda i: enlarger(picture)


if __name__ == "__main__":
    run(build)
