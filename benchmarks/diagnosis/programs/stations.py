"""A weather model that mixes the hours of each station's record, then its channels."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "layout-copies"
ALSO = ()

STATIONS = size(192, 2)
HOURS = size(256, 8)
CHANNELS = size(512, 16)
DEPTH = size(10, 2)


def mix_hours(x, weight):
    """Each channel's hours, by the weights of a linear layer."""
    x = x.permute(0, 2, 1).contiguous()  # fault
    x = F.gelu(F.linear(x, weight))
    return x.permute(0, 2, 1).contiguous()  # fault


def mix_hours_in_place(x, weight):
    """The same from the left, where the hours already are."""
    return F.gelu(torch.bmm(weight.expand(len(x), -1, -1), x))


class Layer(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.mix = mix
        self.norm = nn.LayerNorm(CHANNELS)
        self.hours = nn.Parameter(torch.randn(HOURS, HOURS) / HOURS**0.5)
        self.channels = nn.Linear(CHANNELS, CHANNELS)

    def forward(self, x):
        x = x + self.mix(self.norm(x), self.hours)
        return x + self.channels(x)


class StationModel(nn.Module):
    def __init__(self, mix):
        super().__init__()
        self.layers = nn.Sequential(*[Layer(mix) for _ in range(DEPTH)])
        self.temperature = nn.Linear(CHANNELS, 1)

    def forward(self, x):
        return self.temperature(self.layers(x)).squeeze(-1)


def build(fixed):
    model = StationModel(mix_hours_in_place if fixed else mix_hours).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    records = torch.randn(STATIONS, HOURS, CHANNELS, device=DEVICE, dtype=torch.bfloat16)
    tomorrow = torch.randn(STATIONS, HOURS, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = F.mse_loss(model(records), tomorrow)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
