"""A segmentation network over frames of changing size; memory is given back after each."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "allocation-in-loop"
ALSO = ()
C = size(64, 4)


def conv(i, o):
    return nn.Sequential(nn.Conv2d(i, o, 3, padding=1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True))


def build(fixed):
    net = nn.Sequential(
        conv(3, C), conv(C, C), nn.MaxPool2d(2), conv(C, 2 * C), conv(2 * C, 2 * C), nn.Conv2d(2 * C, 19, 1)
    )
    net = net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last).eval()
    frames = torch.randn(8, 3, size(256, 16), size(512, 16), device=DEVICE, dtype=torch.bfloat16)
    frames = frames.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def step(i):
        areas = []
        for part in frames.split(2):
            labels = net(part).argmax(1)
            areas.append((labels == 1).sum((1, 2)))
            if not fixed and DEVICE == "cuda":
                torch.cuda.empty_cache()  # fault
        return torch.cat(areas)

    return step


if __name__ == "__main__":
    run(build)
