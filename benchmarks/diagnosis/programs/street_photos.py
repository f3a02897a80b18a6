"""Trains an image classifier on photos that the loading process augments with NumPy."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data-loading"
ALSO = ()
B, S = size(64, 2), size(160, 96)


class Photos(Dataset):
    def __init__(self, count=1024):
        self.images = np.random.default_rng(0).integers(0, 255, (count, S + 16, S + 16, 3), dtype=np.uint8)
        self.count = count

    def __len__(self):
        return B * 4000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        top, left = rng.integers(0, 16, 2)
        image = self.images[index % self.count][top : top + S, left : left + S]
        if rng.random() < 0.5:
            image = image[:, ::-1]
        image = image.astype(np.float32) / 255 + rng.normal(0, 0.01, (S, S, 3)).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))), index % 100


def build(fixed):
    torch.manual_seed(0)
    workers = size(12, 1) if fixed else 0
    loader = DataLoader(
        Photos(), B, num_workers=workers, pin_memory=DEVICE == "cuda", prefetch_factor=8 if workers else None
    )
    batches = iter(loader)
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, 4),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2),
        nn.ReLU(),
        nn.Conv2d(128, 256, 3),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 100),
    ).to(DEVICE)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)

    def step(i):
        x, y = next(batches)  # fault
        x = x.to(DEVICE, non_blocking=True)
        y = y.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
