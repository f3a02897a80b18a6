"""Runs a transformer that still times each of its layers, and waits for the GPU to do so."""

import time

import torch
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "unneeded-sync"
ALSO = ()
BATCH, LENGTH, WIDTH, LAYERS = size(4, 2), size(512, 8), size(768, 64), size(24, 2)


class Encoder(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.layers = nn.ModuleList(Block(WIDTH, WIDTH // 64) for _ in range(LAYERS))
        self.seconds = [0.0] * LAYERS

    def forward(self, x):
        for k, layer in enumerate(self.layers):
            start = time.perf_counter()
            x = layer(x)
            if not self.fixed:
                torch.cuda.synchronize()  # fault
            self.seconds[k] += time.perf_counter() - start
        return x


def build(fixed):
    torch.manual_seed(0)
    encoder = Encoder(fixed).to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        return encoder(x).mean(1)

    return step


if __name__ == "__main__":
    run(build, steps=20)
