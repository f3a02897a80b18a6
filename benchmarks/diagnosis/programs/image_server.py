"""Classifies images that are converted from bytes to normalized floats on the CPU, then sent to the GPU."""

import torch
from _run import DEVICE, run, size

from _models import ResNet

CAUSE = "large-upload"
ALSO = ()
BATCH, PIXELS = size(64, 2), size(192, 32)


def normalize(images):
    return (images.float() / 255 - 0.45) / 0.225  # fault


def build(fixed):
    torch.manual_seed(0)
    model = ResNet((2, 2, 2, 2), width=size(64, 8)).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    model.eval()
    batches = [torch.randint(0, 256, (BATCH, 3, PIXELS, PIXELS), dtype=torch.uint8) for _ in range(4)]
    if DEVICE == "cuda":
        batches = [batch.pin_memory() for batch in batches]

    @torch.inference_mode()
    def step(i):
        images = batches[i % 4]
        if fixed:
            images = normalize(images.to(DEVICE, non_blocking=True))
        else:
            images = normalize(images).to(DEVICE)  # fault
        return model(images.to(torch.bfloat16, memory_format=torch.channels_last)).argmax(-1)

    return step


if __name__ == "__main__":
    run(build)
