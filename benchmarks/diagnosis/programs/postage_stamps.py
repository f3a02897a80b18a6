"""Trains a generator of postage stamps against a critic."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unneeded-gradients"
ALSO = ()
BATCH, LATENT, C = size(96, 4), size(128, 8), size(128, 8)


class Grow(nn.Module):
    """Doubles the side of a picture."""

    def __init__(self, i, o):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(o)
        self.skip = nn.Conv2d(i, o, 1, bias=False)

    def forward(self, x):
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        h = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(h)) + self.skip(x))


class Printer(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(LATENT, 4 * C * 16)
        self.grow = nn.Sequential(Grow(4 * C, 4 * C), Grow(4 * C, 4 * C), Grow(4 * C, 2 * C), Grow(2 * C, C))
        self.leave = nn.Conv2d(C, 3, 3, padding=1)

    def forward(self, noise):
        x = self.enter(noise).view(-1, 4 * C, 4, 4).contiguous(memory_format=torch.channels_last)
        return self.leave(self.grow(x)).tanh()


def critic_network():
    def halve(i, o):
        return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1), nn.LeakyReLU(0.2, inplace=True))

    body = halve(3, C // 2), halve(C // 2, C), halve(C, 2 * C), halve(2 * C, 4 * C)
    return nn.Sequential(*body, nn.Conv2d(4 * C, 1, 4), nn.Flatten(0))


def build(fixed):
    torch.manual_seed(0)
    printer = Printer().to(DEVICE, memory_format=torch.channels_last)
    critic = critic_network().to(DEVICE, memory_format=torch.channels_last)
    printer_optimizer = torch.optim.Adam(printer.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.0, 0.99), fused=True)
    album = torch.rand(4, BATCH, 3, 64, 64, device=DEVICE) * 2 - 1

    def step(i):
        real = album[i % len(album)].contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            printed = printer(torch.randn(BATCH, LATENT, device=DEVICE))
            if fixed:
                printed = printed.detach()
            verdict = critic(printed)  # fault
            critic_loss = F.relu(1 - critic(real)).mean() + F.relu(1 + verdict).mean()
        critic_optimizer.zero_grad()
        critic_loss.backward()  # fault
        critic_optimizer.step()

        critic.requires_grad_(False)
        with torch.autocast(DEVICE, torch.bfloat16):
            printer_loss = -critic(printer(torch.randn(BATCH, LATENT, device=DEVICE))).mean()
        printer_optimizer.zero_grad()
        printer_loss.backward()
        printer_optimizer.step()
        critic.requires_grad_(True)
        return critic_loss.detach(), printer_loss.detach()

    return step


if __name__ == "__main__":
    run(build)
