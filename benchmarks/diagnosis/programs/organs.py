"""Trains a segmentation of CT slices into 64 structures, with the mean of the Dice losses of all of them."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
STRUCTURES = size(64, 5)
CHANNELS = size(64, 8)
SLICES, SIDE = size(2, 2), size(128, 16)
EPSILON = 1e-5


def block(inputs, outputs):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.SiLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.GroupNorm(8, outputs),
        nn.SiLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [CHANNELS, 2 * CHANNELS, 4 * CHANNELS]
        self.enter = block(1, widths[0])
        self.down = nn.ModuleList(block(a, b) for a, b in pairwise(widths))
        self.up = nn.ModuleList(block(a + b, a) for a, b in reversed(list(pairwise(widths))))
        self.head = nn.Conv2d(CHANNELS, STRUCTURES, 1)

    def forward(self, x):
        x = self.enter(x)
        kept = []
        for down in self.down:
            kept.append(x)
            x = down(F.max_pool2d(x, 2))
        for up in self.up:
            x = up(torch.cat([kept.pop(), F.interpolate(x, scale_factor=2)], 1))
        return self.head(x)


class DiceLoss(nn.Module):
    """Binary Dice of one structure, as in the paper's repository."""

    def forward(self, probability, truth):
        both = (probability * truth).sum()
        total = probability.sum() + truth.sum()
        return 1 - (2 * both + EPSILON) / (total + EPSILON)


class StructuresLoss(nn.Module):
    """The mean over slices and structures, so that small organs count as much as the liver."""

    def __init__(self):
        super().__init__()
        self.dice = DiceLoss()

    def forward(self, scores, truth):
        probability = scores.float().softmax(1)
        losses = []
        for sample in range(len(probability)):  # fault
            for structure in range(STRUCTURES):  # fault
                losses.append(self.dice(probability[sample, structure], truth[sample, structure]))  # fault
        return torch.stack(losses).mean()


class StructuresLossAtOnce(nn.Module):
    def forward(self, scores, truth):
        probability = scores.float().softmax(1)
        both = (probability * truth).sum((2, 3))
        total = probability.sum((2, 3)) + truth.sum((2, 3))
        return (1 - (2 * both + EPSILON) / (total + EPSILON)).mean()


def build(fixed):
    torch.manual_seed(0)
    model = UNet().to(DEVICE, memory_format=torch.channels_last)
    criterion = StructuresLossAtOnce() if fixed else StructuresLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    images = torch.randn(SLICES, 1, SIDE, SIDE, device=DEVICE).contiguous(memory_format=torch.channels_last)
    labels = torch.randint(0, STRUCTURES, (SLICES, SIDE, SIDE), device=DEVICE)
    truth = F.one_hot(labels, STRUCTURES).movedim(-1, 1).float().contiguous()
    scores = torch.randn(SLICES, STRUCTURES, SIDE, SIDE, device=DEVICE)
    assert torch.allclose(StructuresLoss()(scores, truth), StructuresLossAtOnce()(scores, truth), atol=1e-4)  # noqa: S101 - of the program itself

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            scores = model(images)
        loss = criterion(scores, truth)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
