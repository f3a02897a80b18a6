"""Embeddings of a gallery of pictures by a wide convolutional network, in large batches."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()

PICTURES, BATCH = size(512, 4), size(256, 2)
SIDE = size(112, 16)
WIDTH = size(512, 16)
QUERIES = size(64, 2)


def stage(inputs, outputs, depth):
    """Convolutions, the first of which halves the picture."""
    layers = [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.ReLU(inplace=True)]
    for _ in range(depth - 1):
        layers += [nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.ReLU(inplace=True)]
    return layers


def embedder():
    return nn.Sequential(
        *stage(8, WIDTH // 4, 1), *stage(WIDTH // 4, WIDTH, 4), *stage(WIDTH, WIDTH, 3),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 256),
    )  # fmt: skip


def build(fixed):
    net = embedder().to(DEVICE, torch.float16, memory_format=torch.channels_last).eval()
    pictures = torch.randn(PICTURES, 8, SIDE, SIDE, device=DEVICE, dtype=torch.float16)
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    queries = F.normalize(torch.randn(QUERIES, 256, device=DEVICE), dim=1).half()

    @torch.inference_mode()
    def step(i):
        embeddings = torch.empty(PICTURES, 256, device=DEVICE, dtype=torch.float16)
        for start in range(0, PICTURES, BATCH):
            embeddings[start : start + BATCH] = F.normalize(net(pictures[start : start + BATCH]), dim=1)
        return (queries @ embeddings.T).topk(min(10, PICTURES))

    return step


if __name__ == "__main__":
    run(build)
