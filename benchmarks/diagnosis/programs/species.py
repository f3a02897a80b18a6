"""Evaluates a classifier of species; hits, misses and false alarms are counted class by class."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
B, D, CLASSES = size(4096, 16), size(1024, 16), size(200, 4)


def counted_by_class(predicted, labels, counts):
    for c in range(CLASSES):
        hit = predicted == c  # fault
        true = labels == c  # fault
        counts[c, 0] += (hit & true).sum()  # fault
        counts[c, 1] += (hit & ~true).sum()  # fault
        counts[c, 2] += (~hit & true).sum()  # fault


def counted(predicted, labels, counts):
    right = torch.where(predicted == labels, labels, CLASSES)
    hits = torch.bincount(right, minlength=CLASSES + 1)[:CLASSES]
    counts[:, 0] += hits
    counts[:, 1] += torch.bincount(predicted, minlength=CLASSES) - hits
    counts[:, 2] += torch.bincount(labels, minlength=CLASSES) - hits


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 4096), nn.ReLU(), nn.Linear(4096, CLASSES)).to(DEVICE, torch.bfloat16).eval()
    x = torch.randn(B, D, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(CLASSES, (B,), device=DEVICE)
    counts = torch.zeros(CLASSES, 3, dtype=torch.long, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        predicted = model(x).argmax(1)
        (counted if fixed else counted_by_class)(predicted, labels, counts)

    return step


if __name__ == "__main__":
    run(build)
