"""Trains a network that tells ringed birds apart in the pictures of a feeding place."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data-loading"
ALSO = ()

BATCH, SIDE, BIRDS = size(32, 4), size(160, 32), size(200, 10)


class FeederPictures(Dataset):
    """Decoded pictures; each is cropped, flipped, made lighter or darker, and normalised."""

    def __init__(self, count):
        rng = np.random.default_rng(1)
        self.count = count
        self.raw = rng.integers(0, 255, (64, SIDE + 32, SIDE + 32, 3), dtype=np.uint8)
        self.bird = rng.integers(0, BIRDS, 64)
        self.mean = np.array([0.485, 0.456, 0.406], np.float32)
        self.std = np.array([0.229, 0.224, 0.225], np.float32)

    def __len__(self):
        return self.count

    def __getitem__(self, k):
        rng = np.random.default_rng(k)
        top, left = rng.integers(0, 32, 2)
        picture = self.raw[k % 64, top : top + SIDE, left : left + SIDE]
        if rng.random() < 0.5:
            picture = picture[:, ::-1]
        picture = picture.astype(np.float32) / 255
        picture = np.clip(picture * rng.uniform(0.7, 1.3), 0, 1)
        picture = ((picture - self.mean) / self.std).astype(np.float32)
        return torch.from_numpy(np.ascontiguousarray(picture.transpose(2, 0, 1))), int(self.bird[k % 64])


def stage(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
    )  # fmt: skip


def build(fixed):
    torch.manual_seed(0)
    pictures = FeederPictures(BATCH * 200)
    if fixed:
        loader = DataLoader(
            pictures, BATCH, pin_memory=DEVICE == "cuda", num_workers=size(12, 2), persistent_workers=True
        )
    else:
        loader = DataLoader(pictures, BATCH, pin_memory=DEVICE == "cuda")  # fault
    net = nn.Sequential(stage(3, 64), stage(64, 128), stage(128, 256), stage(256, 512), nn.AdaptiveAvgPool2d(1))
    net = nn.Sequential(net, nn.Flatten(), nn.Linear(512, BIRDS)).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9, fused=True)
    batches = iter(loader)

    def step(i):
        images, birds = next(batches)
        images = images.to(DEVICE, non_blocking=True, memory_format=torch.channels_last)
        birds = birds.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(images), birds, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
