"""Trains a Q-network from a replay buffer of Python lists, made a tensor transition by transition in each step."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
BUFFER, BATCH, STATES, ACTIONS, WIDTH = size(4096, 64), size(256, 8), 24, 4, size(512, 16)


def build(fixed):
    torch.manual_seed(0)
    random.seed(0)
    network = nn.Sequential(
        nn.Linear(STATES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, ACTIONS)
    ).to(DEVICE)
    optimizer = torch.optim.Adam(network.parameters(), fused=True)
    buffer = [
        ([random.random() for _ in range(STATES)], random.randrange(ACTIONS), random.random()) for _ in range(BUFFER)
    ]
    if fixed:
        all_states = torch.tensor([state for state, _, _ in buffer], device=DEVICE)
        all_actions = torch.tensor([action for _, action, _ in buffer], device=DEVICE)
        all_returns = torch.tensor([reward for _, _, reward in buffer], device=DEVICE)

    def sample():
        if fixed:
            rows = torch.randint(0, BUFFER, (BATCH,), device=DEVICE)
            return all_states[rows], all_actions[rows], all_returns[rows]
        batch = random.sample(buffer, BATCH)  # fault
        states = torch.tensor([state for state, _, _ in batch]).to(DEVICE)  # fault
        actions = torch.tensor([action for _, action, _ in batch]).to(DEVICE)  # fault
        returns = torch.tensor([reward for _, _, reward in batch]).to(DEVICE)  # fault
        return states, actions, returns

    def step(i):
        states, actions, returns = sample()  # fault
        values = network(states).gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = F.smooth_l1_loss(values, returns)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build, steps=60)
