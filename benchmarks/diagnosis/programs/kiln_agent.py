"""Learns to fire a kiln: an agent draws from what it has seen, and learns the worth of settings."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "data-loading"
ALSO = ("cpu-tensors", "host-computes")
SEEN, BATCH, STATE, WIDTH = size(20_000, 200), size(2048, 8), size(96, 8), size(512, 16)


def build(fixed):
    torch.manual_seed(0)
    random.seed(0)
    network = nn.Sequential(nn.Linear(STATE, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 9)).to(DEVICE)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    states, rewards = torch.randn(SEEN, STATE), torch.randn(SEEN)
    memory = [(states[k].clone(), states[(k + 1) % SEEN].clone(), rewards[k].clone()) for k in range(SEEN)]
    states, rewards = states.to(DEVICE), rewards.to(DEVICE)

    def step(i):
        if fixed:
            rows = torch.randint(SEEN, (BATCH,), device=DEVICE)
            before, after, reward = states[rows], states[(rows + 1) % SEEN], rewards[rows]
        else:
            drawn = random.sample(memory, BATCH)  # fault
            before, after, reward = (torch.stack(parts).to(DEVICE) for parts in zip(*drawn))  # fault
        with torch.no_grad():
            goal = reward + 0.99 * network(after).max(1).values
        loss = F.smooth_l1_loss(network(before).max(1).values, goal)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
