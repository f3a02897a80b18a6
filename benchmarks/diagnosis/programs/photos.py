"""A classifier of photos that come from ordinary memory as float32."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "pageable-copy"
ALSO = ()
B, S = size(256, 2), size(128, 16)


def build(fixed):
    net = nn.Sequential(
        nn.Conv2d(3, 64, 7, 4),
        nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(128, 100),
    )
    net = net.to(DEVICE, torch.bfloat16, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    photos = [
        torch.randn(B, 3, S, S).to(torch.bfloat16).contiguous(memory_format=torch.channels_last) for _ in range(4)
    ]
    labels = torch.randint(100, (B,), device=DEVICE)
    if fixed and DEVICE == "cuda":
        photos = [one.pin_memory() for one in photos]

    def step(i):
        x = photos[i % 4].to(DEVICE, non_blocking=fixed)  # fault
        F.cross_entropy(net(x).float(), labels).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
