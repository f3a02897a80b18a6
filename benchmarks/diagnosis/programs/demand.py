"""Forecasts of electricity demand: N-BEATS, trained with Lion by a trainer class."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-optimizer"
ALSO = ()


@dataclass
class Config:
    history: int = size(336, 16)
    horizon: int = 48
    width: int = size(768, 16)
    blocks: int = size(24, 2)
    batch: int = size(4096, 4)
    lr: float = 1e-4
    betas: tuple = (0.9, 0.99)


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        layers = [nn.Linear(c.history, c.width), nn.ReLU(inplace=True)]
        for _ in range(3):
            layers += [nn.Linear(c.width, c.width), nn.ReLU(inplace=True)]
        self.trunk = nn.Sequential(*layers)
        self.backcast = nn.Linear(c.width, c.history)
        self.forecast = nn.Linear(c.width, c.horizon)

    def forward(self, x):
        y = self.trunk(x)
        return self.backcast(y), self.forecast(y)


class Trainer:
    def __init__(self, config, fixed):
        self.c = config
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.blocks)).to(DEVICE)
        self.blocks[-1].backcast.requires_grad_(False)  # nothing comes after it
        self.params = [p for p in self.blocks.parameters() if p.requires_grad]
        self.moments = [torch.zeros_like(p) for p in self.params]
        self.update = self.lion_of_lists if fixed else self.lion

    def predict(self, x):
        total = 0
        for block in self.blocks:
            backcast, forecast = block(x)
            x, total = x - backcast, total + forecast
        return total

    @torch.no_grad()
    def lion(self):
        for p, m in zip(self.params, self.moments, strict=True):  # fault
            direction = (self.c.betas[0] * m + (1 - self.c.betas[0]) * p.grad).sign_()  # fault
            p.mul_(1 - 0.1 * self.c.lr)  # fault
            p.add_(direction, alpha=-self.c.lr)  # fault
            m.mul_(self.c.betas[1]).add_(p.grad, alpha=1 - self.c.betas[1])  # fault

    @torch.no_grad()
    def lion_of_lists(self):
        grads = [p.grad for p in self.params]
        direction = torch._foreach_lerp(self.moments, grads, 1 - self.c.betas[0])
        torch._foreach_sign_(direction)
        torch._foreach_mul_(self.params, 1 - 0.1 * self.c.lr)
        torch._foreach_add_(self.params, direction, alpha=-self.c.lr)
        torch._foreach_lerp_(self.moments, grads, 1 - self.c.betas[1])

    def fit_batch(self, history, future):
        loss = F.l1_loss(self.predict(history), future)
        self.blocks.zero_grad()
        loss.backward()
        self.update()
        return loss.detach()


def build(fixed):
    config = Config()
    trainer = Trainer(config, fixed)
    series = torch.randn(config.batch, config.history + config.horizon, device=DEVICE)
    history, future = (part.contiguous() for part in series.split([config.history, config.horizon], 1))
    return lambda i: trainer.fit_batch(history, future)


if __name__ == "__main__":
    run(build)
