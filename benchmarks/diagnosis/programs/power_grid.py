"""Trains a message-passing network that estimates the voltages of a power grid from its meters."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "gathers"
ALSO = ()

BUSES, LINES = size(40_000, 200), size(640_000, 1200)
WIDE, NARROW, LAYERS, METERS = size(256, 16), size(64, 8), 4, 12


class GridConv(nn.Module):
    """Each bus hears its neighbours, weighted by the admittance of the line between them."""

    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.message = nn.Linear(WIDE, NARROW, bias=False)
        self.update = nn.Linear(WIDE + NARROW, WIDE)
        self.norm = nn.LayerNorm(WIDE)

    def forward(self, x, source, target, admittance):
        if self.fixed:
            messages = self.message(x).index_select(0, source)
        else:
            messages = self.message(x.index_select(0, source))  # fault
        messages = messages * admittance[:, None]
        heard = torch.zeros(x.shape[0], NARROW, device=x.device).index_add(0, target, messages)
        return x + F.relu(self.update(torch.cat([self.norm(x), heard], 1)))


class StateEstimator(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.enter = nn.Linear(METERS, WIDE)
        self.layers = nn.ModuleList(GridConv(fixed) for _ in range(LAYERS))
        self.voltage = nn.Linear(WIDE, 2)

    def forward(self, meters, source, target, admittance):
        x = F.relu(self.enter(meters))
        for layer in self.layers:
            x = layer(x, source, target, admittance)
        return self.voltage(x)


def build(fixed):
    torch.manual_seed(0)
    net = StateEstimator(fixed).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-4, fused=True)
    source = torch.randint(0, BUSES, (LINES,), device=DEVICE)
    target = torch.randint(0, BUSES, (LINES,), device=DEVICE)
    admittance = torch.rand(LINES, device=DEVICE) * BUSES / LINES
    meters = torch.randn(8, BUSES, METERS, device=DEVICE)
    voltages = torch.randn(8, BUSES, 2, device=DEVICE)

    def step(i):
        hour = i % 8
        estimate = net(meters[hour], source, target, admittance)
        loss = F.smooth_l1_loss(estimate, voltages[hour])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
