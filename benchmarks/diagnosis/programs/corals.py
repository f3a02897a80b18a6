"""Trains a residual network at full resolution that tells species of corals apart in pictures of a reef."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "layout-conversions"
ALSO = ("bias-before-batchnorm",)
PICTURES, SIDE, CHANNELS, BLOCKS, SPECIES = size(16, 2), size(256, 16), size(64, 8), size(5, 1), 16


class Unit(nn.Module):
    def __init__(self, inputs, bias):
        super().__init__()
        self.conv = nn.Conv2d(inputs, CHANNELS, 3, padding=1, bias=bias)  # also
        self.norm = nn.BatchNorm2d(CHANNELS)

    def forward(self, x):
        return self.norm(self.conv(x))  # fault


class Block(nn.Module):
    def __init__(self, bias):
        super().__init__()
        self.first, self.second = Unit(CHANNELS, bias), Unit(CHANNELS, bias)

    def forward(self, x):
        return F.relu(x + self.second(F.relu(self.first(x), inplace=True)), inplace=True)


def network(bias):
    blocks = [Block(bias) for _ in range(BLOCKS)]
    return nn.Sequential(Unit(3, bias), nn.ReLU(inplace=True), *blocks, nn.Conv2d(CHANNELS, SPECIES, 1))


def build(fixed):
    torch.manual_seed(0)
    layout = torch.channels_last if fixed else torch.contiguous_format  # fault
    model = network(bias=fixed is not True).to(DEVICE, memory_format=layout)  # fault
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, fused=DEVICE == "cuda")
    pictures = torch.randn(PICTURES, 3, SIDE, SIDE, device=DEVICE).to(memory_format=layout)
    species = torch.randint(SPECIES, (PICTURES, SIDE, SIDE), device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(pictures)
        loss = F.cross_entropy(logits, species)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
