"""Trains a GPT and empties the allocator's cache after each step, to be safe from fragmentation."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "allocation-in-loop"
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(16384, 128), size(768, 64), size(6, 1)
BATCH, LENGTH = size(8, 2), size(512, 8)


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not fixed:
            torch.cuda.empty_cache()  # fault
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
