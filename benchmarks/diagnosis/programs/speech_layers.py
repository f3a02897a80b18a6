"""Runs a one-dimensional ConvNeXt over features of speech, which changes to channels-last and back around each norm."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "layout-copies"
ALSO = ()
BATCH, CHANNELS, FRAMES, LAYERS = size(32, 2), size(512, 16), size(2048, 32), size(8, 2)


class FeedForward(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.up = nn.Linear(channels, channels)
        self.gate = nn.Linear(channels, channels)

    def forward(self, x):
        """From (batch, channels, frames) to the same."""
        y = x.transpose(1, 2).contiguous()  # fault
        y = self.norm(y).transpose(1, 2).contiguous()  # fault
        y = y.transpose(1, 2).contiguous()  # fault
        y = F.relu(self.up(y)) * self.gate(y)
        return x + y.transpose(1, 2).contiguous()  # fault


class FeedForwardFramesFirst(FeedForward):
    def forward(self, x):
        """From (batch, frames, channels) to the same."""
        y = self.norm(x)
        return x + F.relu(self.up(y)) * self.gate(y)


def build(fixed):
    torch.manual_seed(0)
    layer = FeedForwardFramesFirst if fixed else FeedForward
    model = nn.Sequential(*(layer(CHANNELS) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16)
    features = torch.randn(BATCH, CHANNELS, FRAMES, device=DEVICE, dtype=torch.bfloat16)

    @torch.no_grad()
    def step(i):
        if fixed:
            return model(features.transpose(1, 2).contiguous()).mean(1)
        return model(features).mean(2)

    return step


if __name__ == "__main__":
    run(build, steps=20)
