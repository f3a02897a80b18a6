"""Trains a segmentation network with a dice loss, whose one-hot targets are made on the CPU."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-operators"
ALSO = ()
BATCH, PIXELS, CLASSES, WIDTH = size(8, 2), size(192, 16), 21, size(96, 8)


def one_hot(labels):
    return F.one_hot(labels, CLASSES).permute(0, 3, 1, 2).float()  # fault


def dice_loss(logits, targets):
    probabilities = logits.float().softmax(1)
    overlap = (probabilities * targets).sum((2, 3))
    total = probabilities.sum((2, 3)) + targets.sum((2, 3))
    return 1 - (2 * overlap / (total + 1e-6)).mean()


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(WIDTH, CLASSES, 1),
    ).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    images = torch.randn(BATCH, 3, PIXELS, PIXELS, device=DEVICE, dtype=torch.bfloat16)
    images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, CLASSES, (BATCH, PIXELS, PIXELS), device=DEVICE)

    def step(i):
        logits = model(images)
        if fixed:
            targets = one_hot(labels)
        else:
            targets = one_hot(labels.cpu()).to(DEVICE)  # fault
        loss = dice_loss(logits, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
