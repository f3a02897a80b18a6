"""Trains a network with weights of 4 bits (straight-through rounding) that finds cracks in floor tiles."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfolded-convolution"
ALSO = []

BATCH, SIDE, KINDS = size(32, 2), size(224, 16), 8
CHANNELS, BLOCKS, BITS = size(64, 4), size(6, 2), 4


class Rounded(torch.autograd.Function):
    """Rounds to a grid of 2^bits levels; the gradient goes straight through."""

    @staticmethod
    def forward(_context, weight, bits):
        top = 2 ** (bits - 1) - 1
        step = weight.abs().amax((1, 2, 3), keepdim=True) / top
        return (weight / step).round() * step

    @staticmethod
    def backward(_context, gradient):
        return gradient, None


class RoundedConv(nn.Module):
    def __init__(self, inputs, outputs, kernel):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, kernel, kernel) / (inputs * kernel**2) ** 0.5)
        self.kernel = kernel

    def forward(self, x):
        weight = Rounded.apply(self.weight, BITS)
        columns = F.unfold(x, self.kernel, padding=self.kernel // 2)  # fault
        return (weight.flatten(1) @ columns).unflatten(-1, x.shape[-2:])  # fault


class RoundedConvDirect(RoundedConv):
    def forward(self, x):
        return F.conv2d(x, Rounded.apply(self.weight, BITS), padding=self.kernel // 2)


class Cracks(nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.enter = nn.Conv2d(1, CHANNELS, 4, stride=4)
        self.convs = nn.ModuleList(conv(CHANNELS, CHANNELS, 3) for _ in range(BLOCKS))
        self.norms = nn.ModuleList(nn.BatchNorm2d(CHANNELS) for _ in range(BLOCKS))
        self.leave = nn.Linear(CHANNELS, KINDS)

    def forward(self, x):
        x = self.enter(x)
        for conv, norm in zip(self.convs, self.norms, strict=False):
            x = F.relu(x + norm(conv(x)))  # fault
        return self.leave(x.mean((2, 3)))


def build(fixed):
    torch.manual_seed(0)
    model = Cracks(RoundedConvDirect if fixed else RoundedConv).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    tiles = torch.rand(2, BATCH, 1, SIDE, SIDE, device=DEVICE)
    kinds = torch.randint(KINDS, (2, BATCH), device=DEVICE)

    def step(i):
        loss = F.cross_entropy(model(tiles[i % 2]), kinds[i % 2])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
