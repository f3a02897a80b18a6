"""Trains a forecast of rivers' levels from a week of hourly rain, snow and levels upstream."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "rnn-cells"
ALSO = ()
GAUGES, HOURS, READINGS = size(512, 4), size(168, 6), size(24, 5)
WIDTH, LAYERS, AHEAD = size(512, 16), 2, size(48, 3)


class Forecaster(nn.Module):
    """The state of the catchment goes from hour to hour; it is kept for all hours, each of which forecasts."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(READINGS, WIDTH)
        self.catchment = nn.GRU(WIDTH, WIDTH, LAYERS, batch_first=True)
        self.norm = nn.LayerNorm(WIDTH)
        self.levels = nn.Linear(WIDTH, AHEAD)

    def hour_by_hour(self, x):
        state = torch.zeros(LAYERS, len(x), WIDTH, device=x.device, dtype=x.dtype)
        hours = []
        for hour in x.split(1, dim=1):  # fault
            out, state = self.catchment(hour, state)  # fault
            hours.append(out)  # fault
        return torch.cat(hours, dim=1)  # fault

    def forward(self, readings, at_once):
        x = F.gelu(self.enter(readings))
        x = self.catchment(x)[0] if at_once else self.hour_by_hour(x)
        return self.levels(self.norm(x))


def build(fixed):
    torch.manual_seed(0)
    model = Forecaster().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    readings = torch.randn(GAUGES, HOURS, READINGS, device=DEVICE, dtype=torch.bfloat16)
    levels = torch.randn(GAUGES, HOURS, AHEAD, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = F.smooth_l1_loss(model(readings, at_once=fixed), levels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
