"""Policy gradients: discounted returns of trajectories, then one update."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
T, B, D = size(256, 8), size(1024, 4), size(64, 4)
GAMMA, LAMBDA = 0.99, 0.95


def build(fixed):
    net = nn.Sequential(nn.Linear(D, 256), nn.Tanh(), nn.Linear(256, 1)).to(DEVICE)
    optimizer = torch.optim.Adam(net.parameters(), fused=True)
    states, rewards = torch.randn(T, B, D, device=DEVICE), torch.randn(T, B, device=DEVICE)
    powers = (GAMMA * LAMBDA) ** torch.arange(T, device=DEVICE)
    weights = torch.triu(
        powers[(torch.arange(T, device=DEVICE) - torch.arange(T, device=DEVICE)[:, None]).clamp(min=0)]
    )

    def advantages(values):
        delta = rewards + GAMMA * torch.cat([values[1:], torch.zeros_like(values[:1])]) - values
        if fixed:
            return weights @ delta
        out, last = torch.empty_like(delta), torch.zeros_like(delta[0])
        for t in reversed(range(T)):
            last = delta[t] + GAMMA * LAMBDA * last  # fault
            out[t] = last  # fault
        return out

    def step(i):
        values = net(states).squeeze(-1)
        target = advantages(values.detach()) + values.detach()
        (values - target).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
