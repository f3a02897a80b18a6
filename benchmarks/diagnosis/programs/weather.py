"""Rolls a forecast of the weather out, six hours a step, and keeps the trajectory for the verification at the end."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "growing-copies"
ALSO = ()
FIELDS, LATITUDES, LONGITUDES = size(72, 4), size(720, 16), size(1440, 32)
PATCH, WIDTH, HEADS, LAYERS = 8, size(1024, 64), size(16, 4), size(2, 1)
WINDOW = size(10, 2)
HORIZON = size(28, 6)


class WindowLayer(nn.Module):
    """Attention within bands of latitude, then an MLP."""

    def __init__(self):
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_hidden = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 2 * WIDTH)
        self.contract = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        bands = x.unflatten(0, (-1, WINDOW * (LONGITUDES // PATCH)))
        qkv = self.qkv(self.norm_attention(bands)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.out(y).flatten(0, 1)
        return x + self.contract(F.gelu(self.expand(self.norm_hidden(x))))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(FIELDS * PATCH * PATCH, WIDTH)
        self.layers = nn.ModuleList(WindowLayer() for _ in range(LAYERS))
        self.leave = nn.Linear(WIDTH, FIELDS * PATCH * PATCH)

    def forward(self, state):
        rows, columns = LATITUDES // PATCH, LONGITUDES // PATCH
        patches = state.view(FIELDS, rows, PATCH, columns, PATCH).permute(1, 3, 0, 2, 4).reshape(rows * columns, -1)
        x = self.enter(patches)
        for layer in self.layers:
            x = layer(x)
        change = self.leave(x).view(rows, columns, FIELDS, PATCH, PATCH).permute(2, 0, 3, 1, 4).reshape(state.shape)
        return state + 0.01 * change


class Trajectory:
    """States since the analysis, the newest last."""

    def __init__(self, first):
        self.states = first[None]

    def append(self, state):
        self.states = torch.cat([self.states, state[None]])  # fault

    def last(self):
        return self.states[-1]


class PlannedTrajectory:
    """The same, with room for the whole forecast from the beginning."""

    def __init__(self, first):
        self.room = first.new_empty(HORIZON + 1, *first.shape)
        self.room[0] = first
        self.count = 1

    def append(self, state):
        self.room[self.count] = state
        self.count += 1

    def last(self):
        return self.room[self.count - 1]


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = Forecaster().to(torch.bfloat16).eval()
        analysis = torch.randn(FIELDS, LATITUDES, LONGITUDES, dtype=torch.bfloat16)
    kind = PlannedTrajectory if fixed else Trajectory
    forecast = {"trajectory": kind(analysis)}

    @torch.inference_mode()
    def step(i):
        if i % HORIZON == 0:
            forecast["trajectory"] = None
            forecast["trajectory"] = kind(analysis)
        trajectory = forecast["trajectory"]
        trajectory.append(model(trajectory.last()))
        return trajectory.last()[0, 0, 0]

    for i in range(HORIZON):  # a forecast to warm up
        step(i)
    return step


if __name__ == "__main__":
    run(build)
