"""Forecasts the glucose of diabetics from a day of readings of a sensor, insulin and meals, with an LSTM."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "rnn-cells"
ALSO = ()

PATIENTS, READINGS, SIGNALS, HIDDEN, AHEAD = size(256, 4), size(288, 12), 12, size(384, 16), 12


class Forecaster(nn.Module):
    """Reads a day, five minutes at a time, and forecasts the next hour at each of them."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(SIGNALS, HIDDEN)
        self.memory = nn.LSTMCell(HIDDEN, HIDDEN)
        self.leave = nn.Linear(HIDDEN, AHEAD)

    def forward(self, day):
        x = torch.relu(self.enter(day))
        h = x.new_zeros(x.shape[0], HIDDEN)
        c = x.new_zeros(x.shape[0], HIDDEN)
        states = []
        for t in range(x.shape[1]):
            h, c = self.memory(x[:, t], (h, c))  # fault
            states.append(h)
        return self.leave(torch.stack(states, 1))


class WholeDayForecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(SIGNALS, HIDDEN)
        self.memory = nn.LSTM(HIDDEN, HIDDEN, batch_first=True)
        self.leave = nn.Linear(HIDDEN, AHEAD)

    def forward(self, day):
        states, _ = self.memory(torch.relu(self.enter(day)))
        return self.leave(states)


def build(fixed):
    torch.manual_seed(0)
    model = (WholeDayForecaster() if fixed else Forecaster()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3, fused=True)
    days = torch.randn(4, PATIENTS, READINGS + AHEAD, SIGNALS, device=DEVICE)
    levels = days[..., 0].cumsum(-1) * 0.1

    def step(i):
        day = days[i % 4, :, :READINGS]
        coming = levels[i % 4].unfold(1, AHEAD, 1)[:, 1 : READINGS + 1]
        loss = F.smooth_l1_loss(model(day), coming)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
