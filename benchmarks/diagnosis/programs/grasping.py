"""A robot's next moves by a diffusion policy: a large transformer takes noise off short sequences of actions."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "recurring-casts"
ALSO = ()
ROBOTS, HORIZON, ACTIONS, OBSERVED = size(32, 2), size(16, 4), 14, size(512, 16)
WIDTH, HEADS, LAYERS, NOISE_LEVELS = size(3072, 32), size(24, 2), size(6, 2), size(4, 2)


class MixedLinear(nn.Linear):
    """Keeps its weights as they were trained, and multiplies in bfloat16."""

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype), self.bias.to(x.dtype))  # fault


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.norm2 = nn.LayerNorm(WIDTH, elementwise_affine=False)
        self.qkv, self.out = MixedLinear(WIDTH, 3 * WIDTH), MixedLinear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(MixedLinear(WIDTH, 4 * WIDTH), nn.GELU(), MixedLinear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter, self.see = MixedLinear(ACTIONS, WIDTH), MixedLinear(OBSERVED, WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.leave = MixedLinear(WIDTH, ACTIONS)
        rates = torch.exp(torch.arange(WIDTH // 2) * (-math.log(1e4) / (WIDTH // 2)))
        angles = torch.arange(NOISE_LEVELS)[:, None] * rates
        self.register_buffer("levels", torch.cat([angles.sin(), angles.cos()], 1).bfloat16())

    def forward(self, actions, seen, level):
        return self.leave(self.layers(self.enter(actions) + seen[:, None] + self.levels[level]))


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        policy = Policy().eval()
        observation = torch.randn(ROBOTS, OBSERVED, dtype=torch.bfloat16)
        signal = torch.linspace(0.1, 0.99, NOISE_LEVELS).bfloat16()
    if fixed:
        policy.to(torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        actions = torch.randn(ROBOTS, HORIZON, ACTIONS, device=DEVICE, dtype=torch.bfloat16)
        seen = policy.see(observation)
        for level in range(NOISE_LEVELS):
            clean = policy(actions, seen, level)
            actions = torch.lerp(actions, clean, signal[level])
        return actions

    return step


if __name__ == "__main__":
    run(build)
