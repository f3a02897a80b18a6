"""A student learns from a teacher, whose gradients nobody needs."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
D, B = size(2048, 16), size(4096, 4)


def net(layers):
    return nn.Sequential(*[m for _ in range(layers) for m in (nn.Linear(D, D), nn.GELU())]).to(DEVICE, torch.bfloat16)


def build(fixed):
    teacher, student = net(12).eval().requires_grad_(False), net(4)
    optimizer = torch.optim.AdamW(student.parameters(), fused=True)
    x = torch.randn(B, D, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        with torch.inference_mode():
            target = teacher(x)
        F.mse_loss(student(x), target.clone()).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
