"""Trains two networks against each other that learn to draw patterns for wallpapers."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-gradients"
ALSO = ()

BATCH, NOISE, BASE = size(256, 4), size(128, 8), size(512, 16)


class Up(nn.Module):
    def __init__(self, i, o):
        super().__init__()
        self.first, self.second = (nn.Conv2d(c, o, 3, padding=1, bias=False) for c in (i, o))
        self.norms = nn.ModuleList((nn.BatchNorm2d(o), nn.BatchNorm2d(o)))

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2)
        x = F.relu(self.norms[0](self.first(x)), inplace=True)
        return F.relu(self.norms[1](self.second(x)), inplace=True)


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(NOISE, BASE * 16)
        self.ups = nn.Sequential(*(Up(BASE >> k, BASE >> k + 1) for k in range(4)))
        self.paint = nn.Conv2d(BASE >> 4, 3, 3, padding=1)

    def forward(self, z):
        x = self.enter(z).view(-1, BASE, 4, 4).contiguous(memory_format=torch.channels_last)
        return torch.tanh(self.paint(self.ups(x)))


class Critic(nn.Sequential):
    def __init__(self):
        layers, i = [], 3
        for o in (BASE // 8, BASE // 4, BASE // 2):
            layers += [nn.Conv2d(i, o, 4, stride=2, padding=1), nn.LeakyReLU(0.2, inplace=True)]
            i = o
        super().__init__(*layers, nn.Conv2d(i, 1, 8))


def build(fixed):
    torch.manual_seed(0)
    generator = Generator().to(DEVICE, memory_format=torch.channels_last)
    critic = Critic().to(DEVICE, memory_format=torch.channels_last)
    options = {"lr": 2e-4, "betas": (0.5, 0.999), "fused": True}
    opt_g = torch.optim.Adam(generator.parameters(), **options)
    opt_d = torch.optim.Adam(critic.parameters(), **options)
    patterns = torch.rand(4, BATCH, 3, 64, 64, device=DEVICE) * 2 - 1

    def step(i):
        real = patterns[i % 4].contiguous(memory_format=torch.channels_last)
        z = torch.randn(BATCH, NOISE, device=DEVICE)
        with torch.autocast(DEVICE, torch.bfloat16):
            fake = generator(z)
            real_score = critic(real)
            fake_score = critic(fake.detach() if fixed else fake)  # fault
        loss_d = F.softplus(-real_score.float()).mean() + F.softplus(fake_score.float()).mean()
        opt_d.zero_grad()
        loss_d.backward(retain_graph=not fixed)  # fault
        opt_d.step()

        with torch.autocast(DEVICE, torch.bfloat16):
            score = critic(fake)
        loss_g = F.softplus(-score.float()).mean()
        opt_g.zero_grad()
        loss_g.backward()
        opt_g.step()
        return loss_d.detach(), loss_g.detach()

    return step


if __name__ == "__main__":
    run(build)
