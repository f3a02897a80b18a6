"""Trains an ensemble of small networks, each called in turn (as critics or bootstrapped regressors are)."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
MEMBERS, BATCH, STATES, WIDTH = size(24, 3), size(256, 8), size(64, 8), size(256, 16)


def member():
    return nn.Sequential(nn.Linear(STATES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))


class Ensemble(nn.Module):
    def __init__(self):
        super().__init__()
        self.members = nn.ModuleList(member() for _ in range(MEMBERS))

    def forward(self, states):
        values = [network(states) for network in self.members]  # fault
        return torch.stack(values)


class StackedEnsemble(nn.Module):
    def __init__(self):
        super().__init__()
        networks = [member() for _ in range(MEMBERS)]
        for k in (0, 2, 4):
            weights = torch.stack([network[k].weight.detach().T for network in networks])
            biases = torch.stack([network[k].bias.detach() for network in networks]).unsqueeze(1)
            self.register_parameter(f"weight{k}", nn.Parameter(weights.contiguous()))
            self.register_parameter(f"bias{k}", nn.Parameter(biases))

    def forward(self, states):
        x = states.expand(MEMBERS, -1, -1)
        x = F.relu(torch.baddbmm(self.bias0, x, self.weight0))
        x = F.relu(torch.baddbmm(self.bias2, x, self.weight2))
        return torch.baddbmm(self.bias4, x, self.weight4)


def build(fixed):
    torch.manual_seed(0)
    model = (StackedEnsemble() if fixed else Ensemble()).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    states = torch.randn(BATCH, STATES, device=DEVICE)
    returns = torch.randn(BATCH, 1, device=DEVICE)

    def step(i):
        values = model(states)
        loss = (values - returns).square().mean((1, 2)).sum()
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=20)
