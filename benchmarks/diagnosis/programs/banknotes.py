"""Finds forged banknotes by the texture of their print, with convolutions of differences to the centre."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfolded-convolution"
ALSO = ()
BATCH, SIDE, C, LAYERS, SHARE = size(64, 2), size(64, 8), size(64, 4), size(6, 2), 0.7


class DifferenceConv(nn.Module):
    """A convolution of 3 x 3 that sees, for the most part, how a pixel's neighbours differ from it."""

    def __init__(self, i, o, *, folded):
        super().__init__()
        self.folded = folded
        self.weight = nn.Parameter(torch.randn(o, i, 3, 3) * (2 / (9 * i)) ** 0.5)

    def forward(self, x):
        if self.folded:
            centre = F.pad(self.weight.sum((2, 3), keepdim=True), (1, 1, 1, 1))
            return F.conv2d(x, self.weight - SHARE * centre, padding=1)
        batch, channels, height, width = x.shape
        patches = F.unfold(x, 3, padding=1).view(batch, channels, 9, height * width)  # fault
        patches = patches - SHARE * x.reshape(batch, channels, 1, height * width)  # fault
        y = self.weight.flatten(1) @ patches.flatten(1, 2)  # fault
        return y.view(batch, -1, height, width)


class Layer(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.conv = DifferenceConv(C, C, folded=fixed)
        self.norm = nn.BatchNorm2d(C)

    def forward(self, x):
        return x + F.relu(self.norm(self.conv(x)))


def build(fixed):
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, C, 3, padding=1, bias=False),
        nn.BatchNorm2d(C),
        nn.ReLU(),
        *[Layer(fixed) for _ in range(LAYERS)],
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(C, 2),
    ).to(DEVICE)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=True, fused=True)
    notes = torch.randint(256, (4, BATCH, 3, SIDE, SIDE), dtype=torch.uint8, device=DEVICE)
    forged = torch.randint(2, (4, BATCH), device=DEVICE)

    def step(i):
        pictures = notes[i % len(notes)].float().div_(127.5).sub_(1)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(net(pictures), forged[i % len(notes)])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
