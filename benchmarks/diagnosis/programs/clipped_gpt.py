"""Trains a GPT; the norm of its gradients, to clip them, is read parameter by parameter."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import LM

CAUSE = "blocking-read"
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(8192, 128), size(512, 64), size(8, 1)
BATCH, LENGTH, MAX_NORM = size(8, 2), size(256, 8), 1.0


def clip_gradients(parameters):
    total = 0.0
    for parameter in parameters:  # fault
        total += parameter.grad.norm().item() ** 2  # fault
    scale = MAX_NORM / (total**0.5 + 1e-6)
    if scale < 1:
        torch._foreach_mul_([parameter.grad for parameter in parameters], scale)


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    parameters = list(model.parameters())
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        if fixed:
            nn.utils.clip_grad_norm_(parameters, MAX_NORM)
        else:
            clip_gradients(parameters)  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
