"""PPO for a walking robot simulated in thousands of copies on the GPU."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
COPIES, HORIZON = size(16384, 64), size(32, 4)
OBSERVATIONS, ACTIONS, WIDTH = 48, 12, size(256, 32)
MINIBATCHES = 4
CLIP, ENTROPY, VALUE = 0.2, 0.005, 1.0


def mlp(outputs):
    return nn.Sequential(
        nn.Linear(OBSERVATIONS, WIDTH),
        nn.ELU(),
        nn.Linear(WIDTH, WIDTH // 2),
        nn.ELU(),
        nn.Linear(WIDTH // 2, outputs),
    )


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.actor = mlp(ACTIONS)
        self.critic = mlp(1)
        self.log_deviation = nn.Parameter(torch.full((ACTIONS,), -0.5))

    def evaluate(self, observations, actions):
        mean = self.actor(observations)
        deviation = self.log_deviation.float().exp()
        z = (actions - mean.float()) / deviation
        log_probability = (-0.5 * z.square() - self.log_deviation.float()).sum(-1)
        return log_probability, self.critic(observations).float()[:, 0], self.log_deviation.float().sum()


class Rollout:
    """What the copies did, as flat tensors on the GPU; minibatches are drawn without repetition."""

    def __init__(self, shuffle_on):
        self.count = COPIES * HORIZON
        self.shuffle_on = shuffle_on
        self.observations = torch.randn(self.count, OBSERVATIONS, device=DEVICE)
        self.actions = torch.randn(self.count, ACTIONS, device=DEVICE)
        self.log_probability = torch.randn(self.count, device=DEVICE) - 12
        self.advantages = torch.randn(self.count, device=DEVICE)
        self.returns = torch.randn(self.count, device=DEVICE)

    def minibatches(self):
        if self.shuffle_on == "cpu":
            order = torch.randperm(self.count)  # fault
            order = order.to(DEVICE)  # fault
        else:
            order = torch.randperm(self.count, device=DEVICE)
        for rows in order.chunk(MINIBATCHES):
            yield (
                self.observations[rows],
                self.actions[rows],
                self.log_probability[rows],
                self.advantages[rows],
                self.returns[rows],
            )


class PPO:
    def __init__(self, policy):
        self.policy = policy
        self.optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)

    def loss(self, observations, actions, before, advantages, returns):
        with torch.autocast(DEVICE, torch.bfloat16):
            log_probability, value, entropy = self.policy.evaluate(observations, actions)
        ratio = (log_probability - before).clamp(-5, 5).exp()
        surrogate = -advantages * ratio
        clipped = -advantages * ratio.clamp(1 - CLIP, 1 + CLIP)
        actor = torch.maximum(surrogate, clipped).mean()
        critic = (returns - value).square().mean()
        return actor + VALUE * critic - ENTROPY * entropy

    def epoch(self, rollout):
        total = torch.zeros((), device=DEVICE)
        for minibatch in rollout.minibatches():
            loss = self.loss(*minibatch)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.detach()
        return total / MINIBATCHES


def build(fixed):
    torch.manual_seed(0)
    ppo = PPO(ActorCritic().to(DEVICE))
    rollout = Rollout(shuffle_on=DEVICE if fixed else "cpu")
    seen = torch.cat([part[1][:, 0] for part in rollout.minibatches()])
    assert torch.equal(seen.sort().values, rollout.actions[:, 0].sort().values)  # noqa: S101 - of the program itself

    def step(i):
        return ppo.epoch(rollout)

    return step


if __name__ == "__main__":
    run(build)
