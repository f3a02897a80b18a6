"""Rollouts of an agent in many copies of a falling-blocks game, and one policy-gradient update."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.distributions import Categorical

CAUSE = "growing-copies"
ALSO = ()

GAMES = size(256, 2)
HORIZON = size(32, 3)
SIDE = size(84, 36)
ACTIONS = 6


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.eye = nn.Sequential(
            nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4)
        )
        self.policy = nn.Linear(1024, ACTIONS)

    def forward(self, frames):
        return self.policy(self.eye(frames).flatten(1))


class Games:
    """All games at once, on the device."""

    def __init__(self):
        self.frames = torch.rand(GAMES, 4, SIDE, SIDE, device=DEVICE)

    def play(self, action):
        self.frames = self.frames.roll(1, 2)
        self.frames[:, :, 0] = torch.rand(GAMES, 4, SIDE, device=DEVICE)
        return (action == 2).float() - 0.1


class Recording:
    def __init__(self):
        self.frames = torch.empty(0, GAMES, 4, SIDE, SIDE, device=DEVICE)
        self.actions, self.rewards = [], []

    def add(self, t, frames, action, reward):
        self.frames = torch.cat([self.frames, frames[None]])  # fault
        self.actions.append(action)
        self.rewards.append(reward)


class SizedRecording(Recording):
    def __init__(self):
        super().__init__()
        self.frames = torch.empty(HORIZON, GAMES, 4, SIDE, SIDE, device=DEVICE)

    def add(self, t, frames, action, reward):
        self.frames[t] = frames
        self.actions.append(action)
        self.rewards.append(reward)


def build(fixed):
    agent, games = Agent().to(DEVICE), Games()
    optimizer = torch.optim.RMSprop(agent.parameters(), lr=1e-4, foreach=True)

    def step(i):
        recording = SizedRecording() if fixed else Recording()
        with torch.no_grad():
            for t in range(HORIZON):
                frames = games.frames
                action = Categorical(logits=agent(frames), validate_args=False).sample()
                recording.add(t, frames, action, games.play(action))
        future = torch.stack(recording.rewards).flip(0).cumsum(0).flip(0)
        t = i % HORIZON
        surprise = F.cross_entropy(agent(recording.frames[t]), recording.actions[t], reduction="none")
        loss = (surprise * future[t]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
