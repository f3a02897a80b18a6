"""Trains a compiled GPT in bf16 with a fused optimizer."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = ""
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(32768, 128), size(1024, 64), size(4, 1)
BATCH, LENGTH = size(16, 2), size(512, 8)


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    @torch.compile
    def loss_of(inputs, targets):
        return F.cross_entropy(model(inputs).flatten(0, 1), targets)

    def step(i):
        loss = loss_of(inputs, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
