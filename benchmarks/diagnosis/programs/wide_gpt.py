"""Trains a GPT of a large vocabulary, its cross entropy written out over the logits in float32."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "large-logits"
ALSO = ()
VOCABULARY = size(98304, 512)
WIDTH, LAYERS = size(512, 64), size(3, 1)
BATCH, LENGTH = size(4, 2), size(512, 16)


def cross_entropy(logits, targets):
    logits = logits.float()  # fault
    probabilities = torch.exp(logits - logits.logsumexp(-1, keepdim=True))  # fault
    likelihood = probabilities.gather(-1, targets.unsqueeze(-1))  # fault
    return -torch.log(likelihood + 1e-9).mean()


def build(fixed):
    torch.manual_seed(0)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        logits = model(inputs).flatten(0, 1)
        loss = F.cross_entropy(logits, targets) if fixed else cross_entropy(logits, targets)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
