"""Runs an encoder whose forward hooks, left from debugging, keep a copy of each layer's output on the host."""

import torch
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "downloads"
ALSO = ()
BATCH, LENGTH, WIDTH, LAYERS = size(16, 2), size(256, 8), size(768, 64), size(8, 2)


class Recorder:
    def __init__(self, model):
        self.outputs = {}
        for name, module in model.named_children():
            module.register_forward_hook(self.keep(name))

    def keep(self, name):
        def hook(module, inputs, output):
            self.outputs[name] = output.detach().cpu()  # fault

        return hook


def build(fixed):
    torch.manual_seed(0)
    blocks = (Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS))
    encoder = nn.Sequential(*blocks).to(DEVICE, torch.bfloat16).eval()
    if not fixed:
        Recorder(encoder)  # fault
    x = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.no_grad()
    def step(i):
        return encoder(x).mean(1)

    return step


if __name__ == "__main__":
    run(build, steps=20)
