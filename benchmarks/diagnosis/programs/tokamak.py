"""Learns to foresee disruptions of a tokamak's plasma from its diagnostics, a transformer over a second of signals."""

import contextlib

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from _models import Block

CAUSE = "unfused-attention"
ALSO = ()
SHOTS, MOMENTS, SIGNALS = size(8, 2), size(1024, 8), size(96, 5)
WIDTH, HEADS, LAYERS = size(512, 32), size(8, 2), size(8, 1)


class Watch(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(SIGNALS, WIDTH)
        self.moments = nn.Parameter(0.02 * torch.randn(MOMENTS, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS) for _ in range(LAYERS)))
        self.leave = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1))

    def forward(self, signals):
        return self.leave(self.blocks(self.enter(signals) + self.moments))


def attention_backend(any_backend):
    """Second derivatives, of a penalty that was dropped since, are of the plain formula only."""
    if any_backend:
        return contextlib.nullcontext()
    return sdpa_kernel(SDPBackend.MATH)  # fault


def build(fixed):
    torch.manual_seed(0)
    model = Watch().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    signals = torch.randn(SHOTS, MOMENTS, SIGNALS, device=DEVICE, dtype=torch.bfloat16)
    disrupted = torch.randint(2, (SHOTS, MOMENTS, 1), device=DEVICE).bfloat16()

    def step(i):
        with attention_backend(any_backend=fixed):  # fault
            risk = model(signals)  # fault
        loss = F.binary_cross_entropy_with_logits(risk, disrupted)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
