"""Evaluates a network on images normalized on the CPU, and reads the accuracy of each class on its own."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "large-upload"
ALSO = ("blocking-read",)
BATCH, PIXELS, CLASSES, WIDTH = size(128, 4), size(160, 16), size(32, 4), size(64, 8)


def accuracies(predicted, labels):
    rates = []
    for label in range(CLASSES):  # also
        members = labels == label  # also
        correct = (members & (predicted == label)).sum()  # also
        rates.append(correct.item() / max(members.sum().item(), 1))  # also
    return rates


def accuracies_at_once(predicted, labels):
    members = labels == torch.arange(CLASSES, device=DEVICE).unsqueeze(1)
    correct = (members & (predicted == labels)).sum(1)
    return (correct / members.sum(1).clamp(min=1)).tolist()


def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 5, 2, 2), nn.ReLU(), nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * WIDTH, 4 * WIDTH, 3, 2, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4 * WIDTH, CLASSES),
    ).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)  # fmt: skip
    batches = [torch.randint(0, 256, (BATCH, 3, PIXELS, PIXELS), dtype=torch.uint8) for _ in range(4)]
    if DEVICE == "cuda":
        batches = [batch.pin_memory() for batch in batches]
    labels = torch.randint(0, CLASSES, (BATCH,), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        images = batches[i % 4]
        if fixed:
            images = (images.to(DEVICE, non_blocking=True).float() - 127.5) / 64
        else:
            images = (images.float() - 127.5) / 64  # fault
            images = images.to(DEVICE)  # fault
        predicted = model(images.to(torch.bfloat16, memory_format=torch.channels_last)).argmax(-1)
        if fixed is True:
            return accuracies_at_once(predicted, labels)
        return accuracies(predicted, labels)  # also

    return step


if __name__ == "__main__":
    run(build)
