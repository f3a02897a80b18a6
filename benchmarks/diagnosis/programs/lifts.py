"""Learns by double Q-learning which lift of an office tower answers a call; transitions lie in a replay memory."""

import random
from collections import deque, namedtuple

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()

Transition = namedtuple("Transition", "state action reward next_state done")  # noqa: PYI024
FEATURES, LIFTS, HIDDEN = size(96, 8), 8, size(1024, 16)
BATCH, TOWERS, MEMORY = size(512, 8), size(16, 4), size(20_000, 100)


class Towers:
    """Imitates the traffic of some towers at once."""

    def __init__(self):
        self.rng = np.random.default_rng(0)
        self.mix = (self.rng.standard_normal((FEATURES, FEATURES)) / FEATURES**0.5).astype(np.float32)
        self.pull = self.rng.standard_normal((LIFTS, FEATURES)).astype(np.float32)
        self.state = self.rng.standard_normal((TOWERS, FEATURES)).astype(np.float32)

    def advance(self, lifts):
        before = self.state
        self.state = np.tanh(before @ self.mix + self.pull[lifts])
        waited = -np.abs(self.state).mean(1)
        return before, waited, self.state, self.rng.random(TOWERS) < 0.01


def network():
    layers = nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, LIFTS)
    return nn.Sequential(*layers).to(DEVICE)


def build(fixed):
    torch.manual_seed(0)
    chance = random.Random(0)
    online, target = network(), network()
    target.load_state_dict(online.state_dict())
    optimizer = torch.optim.Adam(online.parameters(), lr=3e-4, fused=True)
    towers, memory = Towers(), deque(maxlen=MEMORY)

    def remember(lifts):
        before, waited, after, done = towers.advance(lifts)
        for k in range(TOWERS):
            memory.append(Transition(before[k], int(lifts[k]), float(waited[k]), after[k], bool(done[k])))

    for _ in range(MEMORY // TOWERS):
        remember(towers.rng.integers(LIFTS, size=TOWERS))

    def sample():
        batch = Transition(*zip(*chance.sample(memory, BATCH), strict=True))
        if fixed:
            states = torch.from_numpy(np.stack(batch.state)).to(DEVICE)
            next_states = torch.from_numpy(np.stack(batch.next_state)).to(DEVICE)
        else:
            states = torch.tensor(batch.state, dtype=torch.float32, device=DEVICE)  # fault
            next_states = torch.tensor(batch.next_state, dtype=torch.float32, device=DEVICE)  # fault
        actions = torch.tensor(batch.action, device=DEVICE)
        rewards = torch.tensor(batch.reward, device=DEVICE)
        return states, actions, rewards, next_states, torch.tensor(batch.done, device=DEVICE)

    def step(i):
        with torch.no_grad():
            lifts = online(torch.from_numpy(towers.state).to(DEVICE)).argmax(1).cpu().numpy()
        remember(lifts)
        states, actions, rewards, next_states, done = sample()
        with torch.no_grad():
            best = online(next_states).argmax(1, keepdim=True)
            goal = rewards + 0.98 * target(next_states).gather(1, best)[:, 0] * ~done
        loss = F.smooth_l1_loss(online(states).gather(1, actions[:, None])[:, 0], goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 100 == 0:
            target.load_state_dict(online.state_dict())
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
