"""Trains a network of images that come from workers in time, pinned and copied beside the kernels."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = ""
ALSO = ()
B, S = size(128, 2), size(96, 16)


class Images(Dataset):
    def __init__(self):
        self.images = np.random.default_rng(0).integers(0, 255, (256, 3, S, S), dtype=np.uint8)

    def __len__(self):
        return B * 4000

    def __getitem__(self, index):
        return torch.from_numpy(self.images[index % 256]), index % 100


def build(fixed):
    torch.manual_seed(0)
    loader = DataLoader(Images(), B, num_workers=size(6, 1), pin_memory=DEVICE == "cuda", prefetch_factor=4)
    batches = iter(loader)
    blocks = [
        layer
        for _ in range(size(10, 1))
        for layer in (nn.Conv2d(256, 256, 3, padding=1, bias=False), nn.BatchNorm2d(256), nn.ReLU())
    ]
    net = nn.Sequential(nn.Conv2d(3, 256, 3, 2), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100))
    net = net.to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    net = torch.compile(net)

    def step(i):
        x, y = next(batches)
        x = x.to(DEVICE, non_blocking=True).contiguous(memory_format=torch.channels_last).float() / 255
        y = y.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
