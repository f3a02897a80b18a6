"""Trains a writer of recipes with the loss of causal models as older libraries have it."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import LM

CAUSE = "large-logits"
ALSO = ()
WORDS, WIDTH, LAYERS = size(65536, 96), size(768, 64), size(4, 1)
RECIPES, LENGTH = size(16, 2), size(512, 8)


def shifted_loss(logits, labels):
    logits = logits.float()  # fault
    ahead = logits[..., :-1, :].contiguous()  # fault
    targets = labels[..., 1:].contiguous()
    return F.cross_entropy(ahead.view(-1, WORDS), targets.view(-1))  # fault


def padded_loss(logits, labels):
    """The labels are shifted, not the logits; the last word of each recipe has none."""
    targets = F.pad(labels[:, 1:], (0, 1), value=-100)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def build(fixed):
    torch.manual_seed(0)
    model = LM(WORDS, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    recipes = torch.randint(WORDS, (RECIPES, LENGTH), device=DEVICE)
    loss_of = padded_loss if fixed else shifted_loss

    def step(i):
        loss = loss_of(model(recipes), recipes)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
