"""Finds where fencers' joints are, of the whole body with hands and face, in crops of a bout's video."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "downloads"
ALSO = ["large-upload"]

CROPS, HEIGHT, WIDTH = size(24, 2), size(256, 32), size(192, 24)
JOINTS, CHANNELS, BLOCKS = size(133, 5), size(256, 8), size(16, 2)
STRIDE = 4
MEAN, SPREAD = 0.45, 0.25


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(width, width, 3, padding=1)
        )

    def forward(self, x):
        return F.relu(x + 0.3 * self.body(x), inplace=True)


class PoseNet(nn.Module):
    """A heatmap for each joint, at a quarter of the crop's size; batch norms are folded into the convolutions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Conv2d(64, CHANNELS, 3, stride=2, padding=1)
        )
        self.blocks = nn.Sequential(*[Residual(CHANNELS) for _ in range(BLOCKS)])
        self.heatmaps = nn.Conv2d(CHANNELS, JOINTS, 1)

    def forward(self, crops):
        return self.heatmaps(self.blocks(self.stem(crops))).float().contiguous()


def joints_of_maps(maps):
    """x, y and score of each map's peak, a quarter of a cell towards the higher neighbour."""
    crops, joints, height, width = maps.shape
    flat = maps.reshape(crops * joints, height * width)
    at = flat.argmax(axis=1)
    every = np.arange(len(flat))
    x, y = at % width, at // width
    along = flat[every, y * width + np.minimum(x + 1, width - 1)] - flat[every, y * width + np.maximum(x - 1, 0)]
    down = flat[every, np.minimum(y + 1, height - 1) * width + x] - flat[every, np.maximum(y - 1, 0) * width + x]
    found = np.stack([x + 0.25 * np.sign(along), y + 0.25 * np.sign(down)], axis=1) * STRIDE
    return np.concatenate([found, flat.max(axis=1)[:, None]], axis=1).reshape(crops, joints, 3)


def joints_of_maps_on_device(maps):
    _, _, height, width = maps.shape
    flat = maps.flatten(2)
    score, at = flat.max(dim=2, keepdim=True)
    x, y = at % width, at // width
    along = flat.gather(2, y * width + (x + 1).clamp(max=width - 1)) - flat.gather(2, y * width + (x - 1).clamp(min=0))
    down = flat.gather(2, (y + 1).clamp(max=height - 1) * width + x) - flat.gather(2, (y - 1).clamp(min=0) * width + x)
    found = torch.cat([x + 0.25 * along.sign(), y + 0.25 * down.sign()], dim=2) * STRIDE
    return torch.cat([found, score], dim=2).cpu().numpy()


class PoseEstimator:
    def __init__(self, model, dtype, decode_on_device, upload_bytes):
        self.model, self.dtype = model, dtype
        self.decode_on_device, self.upload_bytes = decode_on_device, upload_bytes

    def prepare(self, crops):
        if self.upload_bytes:
            pixels = crops.to(DEVICE).float().div_(255)
        else:
            pixels = crops.float().div_(255).to(DEVICE)  # also
        return ((pixels - MEAN) / SPREAD).permute(0, 3, 1, 2).to(self.dtype)

    @torch.inference_mode()
    def __call__(self, crops):
        maps = self.model(self.prepare(crops))
        if self.decode_on_device:
            return joints_of_maps_on_device(maps)
        return joints_of_maps(maps.cpu().numpy())  # fault


def build(fixed):
    torch.manual_seed(0)
    dtype = torch.half if DEVICE == "cuda" else torch.float32
    model = PoseNet().to(DEVICE, dtype, memory_format=torch.channels_last).eval()
    estimate = PoseEstimator(model, dtype, decode_on_device=bool(fixed), upload_bytes=fixed is True)
    video = torch.randint(256, (4, CROPS, HEIGHT, WIDTH, 3), dtype=torch.uint8)
    smooth = np.zeros((CROPS, JOINTS, 3))

    def step(i):
        joints = estimate(video[i % len(video)])
        smooth[:] = 0.7 * smooth + 0.3 * joints
        return smooth.copy()

    return step


if __name__ == "__main__":
    run(build)
