"""Fine-tunes a GPT, gradients accumulated over micro-batches of two texts where memory would hold them all."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "small-batches"
ALSO = ()
TEXTS, LENGTH = size(32, 8), size(128, 8)
MICRO_BATCH = 2  # fault
VOCABULARY, WIDTH, LAYERS = size(8192, 128), size(640, 64), size(6, 1)


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (TEXTS, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
    micro_batch = TEXTS if fixed else MICRO_BATCH

    def step(i):
        total = torch.zeros((), device=DEVICE)
        for start in range(0, TEXTS, micro_batch):  # fault
            part = slice(start, start + micro_batch)
            logits = model(inputs[part])  # fault
            loss = F.cross_entropy(logits.flatten(0, 1), targets[part].flatten()) * micro_batch / TEXTS
            loss.backward()  # fault
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    return step


if __name__ == "__main__":
    run(build)
