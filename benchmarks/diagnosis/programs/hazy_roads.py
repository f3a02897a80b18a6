"""Trains a network that clears haze from pictures of roads; a guided filter fits its map of transmission to edges."""

# The picture's brightness is the guide:
# the map is, in each window, a linear function of it (He, Sun and Tang).

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "overlapping-windows"
ALSO = ()

PICTURES, HEIGHT, WIDTH = size(4, 2), size(384, 24), size(512, 32)
CHANNELS, BLOCKS = size(48, 8), size(5, 2)
RADIUS, SMOOTHNESS = size(24, 3), 1e-3
AIR_LEARNING_RATE, LEARNING_RATE = 1e-2, 3e-4


def box(x, radius):
    """The mean of the window around each pixel; windows are smaller at the picture's border."""
    return F.avg_pool2d(x, 2 * radius + 1, 1, radius, count_include_pad=False)  # fault


def box_by_axes(x, radius):
    x = F.avg_pool2d(x, (1, 2 * radius + 1), 1, (0, radius), count_include_pad=False)
    return F.avg_pool2d(x, (2 * radius + 1, 1), 1, (radius, 0), count_include_pad=False)


class GuidedFilter(nn.Module):
    def __init__(self, radius, smoothness, mean):
        super().__init__()
        self.radius, self.smoothness, self.mean_of = radius, smoothness, mean

    def mean(self, x):
        return self.mean_of(x, self.radius)  # fault

    def forward(self, guide, x):
        guide_mean, x_mean = self.mean(guide), self.mean(x)
        variance = self.mean(guide * guide) - guide_mean * guide_mean
        covariance = self.mean(guide * x) - guide_mean * x_mean
        slope = covariance / (variance + self.smoothness)
        offset = x_mean - slope * guide_mean
        return self.mean(slope) * guide + self.mean(offset)


class ResidualBlock(nn.Module):
    def __init__(self, dilation):
        super().__init__()
        self.first = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=dilation, dilation=dilation)
        self.second = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.norm = nn.GroupNorm(4, CHANNELS)

    def forward(self, x):
        return F.relu(x + self.norm(self.second(F.relu(self.first(x)))))


class Dehazer(nn.Module):
    """Haze is I = J t + A (1 - t): the network gives t, the airlight A is learned for the camera."""

    def __init__(self, mean):
        super().__init__()
        self.enter = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.blocks = nn.Sequential(*[ResidualBlock(2 ** (k % 3)) for k in range(BLOCKS)])
        self.leave = nn.ConvTranspose2d(CHANNELS, 1, 4, stride=4)
        self.filter = GuidedFilter(RADIUS, SMOOTHNESS, mean)
        self.air = nn.Parameter(torch.full((3, 1, 1), 0.9))

    def forward(self, hazy):
        with torch.autocast(hazy.device.type, torch.bfloat16):
            coarse = self.leave(self.blocks(self.enter(hazy)))
        coarse = coarse.float().sigmoid()
        fine = self.filter(hazy.mean(1, keepdim=True), coarse).clamp(0.1, 1)  # fault
        return (hazy - self.air) / fine + self.air, fine


def make_pictures():
    clear = torch.rand(2, PICTURES, 3, HEIGHT // 8, WIDTH // 8, device=DEVICE)
    clear = F.interpolate(clear.flatten(0, 1), scale_factor=8).unflatten(0, (2, PICTURES))
    depth = torch.linspace(1.0, 0.1, HEIGHT, device=DEVICE).view(1, 1, 1, HEIGHT, 1).expand(2, PICTURES, 1, -1, WIDTH)
    transmission = torch.exp(-1.5 * depth)
    return clear, transmission, clear * transmission + 0.85 * (1 - transmission)


def build(fixed):
    torch.manual_seed(0)
    model = Dehazer(box_by_axes if fixed else box).to(DEVICE)
    others = [p for name, p in model.named_parameters() if name != "air"]
    groups = [{"params": others}, {"params": [model.air], "lr": AIR_LEARNING_RATE}]
    optimizer = torch.optim.Adam(groups, lr=LEARNING_RATE, fused=True)
    clear, transmission, hazy = make_pictures()

    def step(i):
        k = i % 2
        cleared, map_ = model(hazy[k])
        loss = F.l1_loss(cleared, clear[k]) + 0.5 * F.mse_loss(map_, transmission[k])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
