"""Trains a network whose moving average of weights is updated tensor by tensor."""

import copy

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "repeated-work"
ALSO = ()
BATCH, LENGTH, WIDTH, LAYERS, DECAY = size(8, 2), size(128, 8), size(384, 64), size(10, 2), 0.999


@torch.no_grad()
def update_average(average, model):
    for old, new in zip(average.state_dict().values(), model.state_dict().values(), strict=True):  # fault
        old.copy_(DECAY * old + (1 - DECAY) * new)  # fault


@torch.no_grad()
def update_average_at_once(average, model):
    torch._foreach_lerp_(list(average.parameters()), list(model.parameters()), 1 - DECAY)


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        loss = F.mse_loss(model(x), x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if fixed:
            update_average_at_once(average, model)
        else:
            update_average(average, model)  # fault
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
