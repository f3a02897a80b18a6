"""Trains a diffusion model that restores faded tapestries: a small U-net learns to tell the noise in a patch."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()

BATCH, SIDE, WIDTH, LEVELS = size(192, 4), size(64, 16), size(64, 8), 1000


class Stage(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.norm = nn.GroupNorm(8, inputs)
        self.first = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.second = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.time = nn.Linear(WIDTH, outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x, moment):
        y = self.first(F.silu(self.norm(x))) + self.time(moment)[:, :, None, None]
        return self.skip(x) + self.second(F.silu(y))


class Restorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.moments = nn.Embedding(LEVELS, WIDTH)
        self.enter = nn.Conv2d(3, WIDTH, 4, stride=2, padding=1)
        self.down = Stage(WIDTH, 2 * WIDTH)
        self.middle = Stage(2 * WIDTH, 2 * WIDTH)
        self.up = Stage(3 * WIDTH, WIDTH)
        self.leave = nn.ConvTranspose2d(WIDTH, 3, 4, stride=2, padding=1)

    def forward(self, x, t):
        moment = self.moments(t)
        x = self.enter(x)
        y = self.down(F.avg_pool2d(x, 2), moment)
        y = F.interpolate(self.middle(y, moment), scale_factor=2)
        return self.leave(self.up(torch.cat([x, y], 1), moment))


def build(fixed):
    torch.manual_seed(0)
    net = Restorer().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), 2e-4, fused=True)
    patches = torch.rand(4, BATCH, 3, SIDE, SIDE, device=DEVICE) * 2 - 1
    kept = torch.cumprod(1 - torch.linspace(1e-4, 0.02, LEVELS, device=DEVICE), 0)
    torch.manual_seed(1)

    def step(i):
        clean = patches[i % 4]
        t = torch.randint(LEVELS, (BATCH,), device=DEVICE)
        if fixed:
            noise = torch.randn(clean.shape, device=DEVICE)
        else:
            noise = torch.randn(clean.shape).to(DEVICE)  # fault
        share = kept[t][:, None, None, None]
        noisy = share.sqrt() * clean + (1 - share).sqrt() * noise
        noisy = noisy.contiguous(memory_format=torch.channels_last)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.mse_loss(net(noisy, t).float(), noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
