"""Segments pictures of river beds by size of grain; classes are balanced by their mean loss in the batch."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "scatter-atomics"
ALSO = ()

PICTURES, SIDE, WIDTH = size(24, 2), size(448, 32), size(32, 8)
GRAINS = 7  # sand, gravel, cobbles, boulders, wood, water, none


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class GrainNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = conv(3, WIDTH, 2)
        self.down1 = nn.Sequential(conv(WIDTH, 2 * WIDTH, 2), conv(2 * WIDTH, 2 * WIDTH))
        self.down2 = nn.Sequential(conv(2 * WIDTH, 4 * WIDTH, 2), conv(4 * WIDTH, 4 * WIDTH))
        self.down3 = nn.Sequential(conv(4 * WIDTH, 8 * WIDTH, 2), conv(8 * WIDTH, 8 * WIDTH))
        self.lateral = nn.ModuleList(nn.Conv2d(n * WIDTH, 2 * WIDTH, 1) for n in (2, 4, 8))
        self.head = nn.Sequential(conv(2 * WIDTH, 2 * WIDTH), nn.Conv2d(2 * WIDTH, GRAINS, 1))

    def forward(self, x):
        a = self.down1(self.stem(x))
        b = self.down2(a)
        c = self.down3(b)
        y = self.lateral[2](c)
        for lateral, skip in ((self.lateral[1], b), (self.lateral[0], a)):
            y = lateral(skip) + F.interpolate(y, size=skip.shape[-2:], mode="bilinear")
        return F.interpolate(self.head(y), size=x.shape[-2:], mode="bilinear")


class BalancedLoss(nn.Module):
    """The mean over classes of the mean loss of their pixels, with a running weight of each class."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.register_buffer("difficulty", torch.ones(GRAINS))

    def forward(self, logits, grains):
        pixels = F.cross_entropy(logits, grains, reduction="none").flatten()
        grains = grains.flatten()
        if self.fixed:
            members = [grains == k for k in range(GRAINS)]
            totals = torch.stack([(pixels * m).sum() for m in members])
            counts = torch.stack([m.sum() for m in members]).float()
        else:
            totals = pixels.new_zeros(GRAINS).scatter_add(0, grains, pixels)  # fault
            counts = pixels.new_zeros(GRAINS).scatter_add(0, grains, torch.ones_like(pixels))  # fault
        means = totals / counts.clamp(min=1)
        self.difficulty.lerp_(means.detach(), 0.05)
        return (means * self.difficulty / self.difficulty.mean()).mean()


def build(fixed):
    torch.manual_seed(0)
    model = GrainNet().to(DEVICE, memory_format=torch.channels_last)
    criterion = BalancedLoss(fixed).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    pictures = torch.randn(PICTURES, 3, SIDE, SIDE, device=DEVICE).to(memory_format=torch.channels_last)
    coarse = torch.rand(PICTURES, 1, SIDE // 16, SIDE // 16, device=DEVICE) ** 3
    grains = (F.interpolate(coarse, scale_factor=16)[:, 0] * GRAINS).long().clamp(max=GRAINS - 1)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(pictures)
        loss = criterion(logits.float(), grains)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
