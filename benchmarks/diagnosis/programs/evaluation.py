"""Evaluates a classifier; the accuracy of each class is read with .item() in a loop over classes."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "blocking-read"
ALSO = ()
BATCH, PIXELS, WIDTH, CLASSES = size(16384, 32), size(784, 16), size(2048, 16), size(40, 4)


def accuracies(predicted, labels):
    rates = []
    for label in range(CLASSES):  # fault
        correct = ((predicted == label) & (labels == label)).sum().item()  # fault
        total = (labels == label).sum().item()  # fault
        rates.append(correct / max(total, 1))
    return rates


def accuracies_at_once(predicted, labels):
    members = labels == torch.arange(CLASSES, device=DEVICE).unsqueeze(1)
    correct = (members & (predicted == labels)).sum(1)
    return (correct / members.sum(1).clamp(min=1)).tolist()


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(PIXELS, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    ).to(DEVICE, torch.bfloat16)
    images = torch.randn(BATCH, PIXELS, device=DEVICE, dtype=torch.bfloat16)
    labels = torch.randint(0, CLASSES, (BATCH,), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        predicted = model(images).argmax(-1)
        rates = accuracies_at_once(predicted, labels) if fixed else accuracies(predicted, labels)  # fault
        return torch.tensor(rates)

    return step


if __name__ == "__main__":
    run(build, steps=30)
