"""Learns the quality of oil from the sensors of a mill's olive presses, each press with its own calibration."""

import torch
from _run import DEVICE, run, size
from torch import nn
from torch.nn import functional as F

CAUSE = "scatter-atomics"
ALSO = ()

PRESSES, SENSORS, QUALITIES = 6, 48, 4
READINGS, WIDTH, BLOCKS = size(65_536, 64), size(512, 16), 3


class Calibration(nn.Module):
    """Scale and shift of the features of each press, learned."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.scale = nn.Parameter(torch.ones(PRESSES, WIDTH))
        self.shift = nn.Parameter(torch.zeros(PRESSES, WIDTH))

    def forward(self, x, press):
        if self.fixed:
            own = F.one_hot(press, PRESSES).to(x.dtype)
            return x * (own @ self.scale) + own @ self.shift
        return x * self.scale[press] + self.shift[press]  # fault


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class OilQuality(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.enter = nn.Linear(SENSORS, WIDTH)
        self.calibration = Calibration(fixed)
        self.blocks = nn.Sequential(*(Residual() for _ in range(BLOCKS)))
        self.leave = nn.Linear(WIDTH, QUALITIES)

    def forward(self, sensors, press):
        return self.leave(self.blocks(self.calibration(self.enter(sensors), press)))


def build(fixed):
    torch.manual_seed(5)
    model = OilQuality(fixed).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    sensors = torch.randn(4, READINGS, SENSORS, device=DEVICE, dtype=torch.bfloat16)
    press = torch.randint(PRESSES, (4, READINGS), device=DEVICE)
    quality = torch.rand(4, READINGS, QUALITIES, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        k = i % 4
        loss = F.smooth_l1_loss(model(sensors[k], press[k]), quality[k])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
