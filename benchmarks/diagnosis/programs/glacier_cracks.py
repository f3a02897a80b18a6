"""Trains a small U-Net that draws the cracks of a glacier, and keeps the overlap of each class while it learns."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "downloads"
ALSO = ()

TILES, SIDE, WIDTH, CLASSES = size(4, 2), size(384, 16), size(64, 4), 5


def double(i, o):
    return nn.Sequential(
        nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
        nn.Conv2d(o, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True),
    )  # fmt: skip


class CrackNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1, self.down2, self.floor = double(3, WIDTH), double(WIDTH, 2 * WIDTH), double(2 * WIDTH, 4 * WIDTH)
        self.lift2, self.up2 = nn.ConvTranspose2d(4 * WIDTH, 2 * WIDTH, 2, 2), double(4 * WIDTH, 2 * WIDTH)
        self.lift1, self.up1 = nn.ConvTranspose2d(2 * WIDTH, WIDTH, 2, 2), double(2 * WIDTH, WIDTH)
        self.out = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        c = self.floor(F.max_pool2d(b, 2))
        b = self.up2(torch.cat([self.lift2(c), b], 1))
        return self.out(self.up1(torch.cat([self.lift1(b), a], 1)))


def overlap_numpy(logits, masks):
    guess = np.argmax(logits, axis=1)
    pairs = np.bincount((masks * CLASSES + guess).ravel(), minlength=CLASSES**2).reshape(CLASSES, CLASSES)
    inside = np.diag(pairs)
    return inside / np.maximum(pairs.sum(0) + pairs.sum(1) - inside, 1)


def overlap_torch(logits, masks, kinds):
    guess, true = logits.argmax(1).flatten() == kinds, masks.flatten() == kinds
    return (guess & true).sum(1) / (guess | true).sum(1).clamp(min=1)


def build(fixed):
    torch.manual_seed(0)
    net = CrackNet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    tiles = torch.randn(2, TILES, 3, SIDE, SIDE, device=DEVICE)
    masks = torch.randint(0, CLASSES, (2, TILES, SIDE, SIDE), device=DEVICE)
    kinds = torch.arange(CLASSES, device=DEVICE)[:, None]
    overlap = {"sum": 0.0, "steps": 0}

    def step(i):
        tile, mask = tiles[i % 2].contiguous(memory_format=torch.channels_last), masks[i % 2]
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = net(tile)
        logits = logits.float()
        loss = F.cross_entropy(logits, mask)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if fixed:
            now = overlap_torch(logits.detach(), mask, kinds)
        else:
            now = overlap_numpy(logits.detach().cpu().numpy(), mask.cpu().numpy())  # fault
        overlap["sum"] = overlap["sum"] + now
        overlap["steps"] += 1
        return overlap["sum"] / overlap["steps"]

    return step


if __name__ == "__main__":
    run(build)
