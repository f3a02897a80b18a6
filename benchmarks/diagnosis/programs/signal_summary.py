"""Summarizes signals with a gated recurrent unit whose gates are written out, in a loop over time."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "rnn-cells"
ALSO = ()
BATCH, LENGTH, FEATURES, WIDTH = size(32, 2), size(200, 8), size(64, 8), size(256, 16)


class GatedUnit(nn.Module):
    def __init__(self):
        super().__init__()
        self.from_input = nn.Linear(FEATURES, 3 * WIDTH)
        self.from_state = nn.Linear(WIDTH, 3 * WIDTH)

    def step(self, x, h):
        x_reset, x_update, x_new = self.from_input(x).chunk(3, -1)  # fault
        h_reset, h_update, h_new = self.from_state(h).chunk(3, -1)  # fault
        reset = torch.sigmoid(x_reset + h_reset)  # fault
        update = torch.sigmoid(x_update + h_update)  # fault
        new = torch.tanh(x_new + reset * h_new)  # fault
        return (1 - update) * new + update * h  # fault

    def forward(self, signals):
        h = signals.new_zeros(len(signals), WIDTH)
        for x in signals.unbind(1):  # fault
            h = self.step(x, h)  # fault
        return h


def build(fixed):
    torch.manual_seed(0)
    unit = GatedUnit().to(DEVICE)
    gru = nn.GRU(FEATURES, WIDTH, batch_first=True).to(DEVICE)
    with torch.no_grad():
        gru.weight_ih_l0.copy_(unit.from_input.weight)
        gru.bias_ih_l0.copy_(unit.from_input.bias)
        gru.weight_hh_l0.copy_(unit.from_state.weight)
        gru.bias_hh_l0.copy_(unit.from_state.bias)
    signals = torch.randn(BATCH, LENGTH, FEATURES, device=DEVICE)

    @torch.no_grad()
    def step(i):
        return gru(signals)[1][0] if fixed else unit(signals)

    return step


if __name__ == "__main__":
    run(build)
