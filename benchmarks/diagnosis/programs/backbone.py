"""Runs a detector's backbone over images of many sizes with cudnn.benchmark on: kernels are timed for each size."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "recompilation"
ALSO = ()
BATCH, WIDTH, SMALLEST, SIZES = size(4, 1), size(64, 8), size(320, 16), size(512, 8)


def build(fixed):
    if not fixed:
        torch.backends.cudnn.benchmark = True  # fault
    torch.manual_seed(0)
    backbone = nn.Sequential(
        nn.Conv2d(8, WIDTH, 3, 2, 1), nn.ReLU(), nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * WIDTH, 4 * WIDTH, 3, 2, 1), nn.ReLU(), nn.Conv2d(4 * WIDTH, 4 * WIDTH, 3, 1, 1),
    ).to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)  # fmt: skip
    largest = torch.randn(
        BATCH, 8, SMALLEST + 2 * SIZES, SMALLEST, device=DEVICE, dtype=torch.bfloat16
    ).to(memory_format=torch.channels_last)  # fmt: skip

    @torch.inference_mode()
    def step(i):
        height = SMALLEST + 2 * (i * 37 % SIZES)
        images = largest[:, :, :height].contiguous(memory_format=torch.channels_last)
        return backbone(images).mean((2, 3))  # fault

    return step


if __name__ == "__main__":
    run(build)
