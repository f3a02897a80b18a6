"""Teaches a policy to fly power kites: thousands of kites are simulated on the device, then the policy learns."""

import torch
from _run import DEVICE, run, size
from torch import nn
from torch.distributions import Normal

CAUSE = "blocking-read"
ALSO = ()
KITES, TURNS, WIDTH = size(4096, 8), size(48, 3), size(256, 8)
STATE, ACTIONS, DISCOUNT = 10, 4, 0.98


def network(outputs):
    return nn.Sequential(
        nn.Linear(STATE, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, outputs)
    )


class Pilot(nn.Module):
    def __init__(self, checked):
        super().__init__()
        self.checked = checked
        self.mean = network(ACTIONS)
        self.value = network(1)
        self.log_spread = nn.Parameter(torch.full((ACTIONS,), -0.5))

    def choices(self, state):
        return Normal(self.mean(state), self.log_spread.exp(), validate_args=self.checked)  # fault


class Sky:
    """Kites on tethers in a gusty wind."""

    def __init__(self):
        self.drift = torch.randn(STATE, STATE, device=DEVICE) * 0.1
        self.steer = torch.randn(ACTIONS, STATE, device=DEVICE) * 0.3
        self.state = torch.randn(KITES, STATE, device=DEVICE)

    def fly(self, action):
        wind = 0.05 * torch.randn_like(self.state)
        self.state = torch.tanh(self.state + self.state @ self.drift + action @ self.steer + wind)
        return self.state[:, 0] * self.state[:, 1] - 0.01 * action.square().sum(1)


def build(fixed):
    torch.manual_seed(0)
    pilot, sky = Pilot(False if fixed else None).to(DEVICE), Sky()
    optimizer = torch.optim.Adam(pilot.parameters(), lr=3e-4, fused=True)
    states = torch.empty(TURNS, KITES, STATE, device=DEVICE)
    actions = torch.empty(TURNS, KITES, ACTIONS, device=DEVICE)
    chances = torch.empty(TURNS, KITES, device=DEVICE)
    powers = torch.empty(TURNS, KITES, device=DEVICE)
    returns = torch.empty(TURNS, KITES, device=DEVICE)

    @torch.no_grad()
    def collect():
        for t in range(TURNS):
            states[t] = sky.state
            choices = pilot.choices(sky.state)
            actions[t] = action = choices.sample()
            chances[t] = choices.log_prob(action).sum(1)  # fault
            powers[t] = sky.fly(action)
        total = pilot.value(sky.state)[:, 0]
        for t in reversed(range(TURNS)):
            total = torch.add(powers[t], total, alpha=DISCOUNT)
            returns[t] = total

    def step(i):
        collect()
        values = pilot.value(states)[..., 0]
        gain = (returns - values).detach()
        gain = (gain - gain.mean()) / (gain.std() + 1e-6)
        ratio = (pilot.choices(states).log_prob(actions).sum(2) - chances).exp()
        surrogate = torch.minimum(ratio * gain, ratio.clamp(0.8, 1.2) * gain)
        loss = (returns - values).square().mean() - surrogate.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
