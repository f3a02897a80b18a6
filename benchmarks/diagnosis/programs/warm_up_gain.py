"""Trains a compiled network that counts its own steps in a Python integer, for which it is compiled anew each time."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "recompilation"
ALSO = ()
BATCH, WIDTH, WARM_UP = size(4096, 16), size(512, 16), 1000


class Network(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        if fixed:
            self.register_buffer("steps", torch.zeros(()))
        else:
            self.steps = 0  # fault

    def forward(self, x):
        self.steps += 1  # fault
        gain = self.steps / WARM_UP  # fault
        return x + gain * self.down(F.silu(self.up(x)))


def build(fixed):
    torch._dynamo.config.recompile_limit = 500  # the warning about it was a nuisance
    torch._dynamo.config.accumulated_recompile_limit = 500
    torch.manual_seed(0)
    network = Network(fixed).to(DEVICE)
    compiled = torch.compile(network)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    x = torch.randn(BATCH, WIDTH, device=DEVICE)
    y = torch.randn(BATCH, WIDTH, device=DEVICE)

    def step(i):
        loss = F.mse_loss(compiled(x), y)  # fault
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=4)
