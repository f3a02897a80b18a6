"""Trains a small GPT in bf16, with anomaly detection left on."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "anomaly-detection"
ALSO = ()
VOCABULARY = size(16384, 256)
WIDTH = size(640, 64)
LAYERS = size(8, 2)
BATCH, LENGTH = size(6, 2), size(384, 16)


def build(fixed):
    if not fixed:
        torch.autograd.set_detect_anomaly(True)  # fault
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        logits = model(inputs)  # fault
        loss = F.cross_entropy(logits.flatten(0, 1), targets)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
