"""Trains a ResNet with autocast to bf16, its images and weights in PyTorch's default layout."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import ResNet

CAUSE = "layout-conversions"
ALSO = ()
BATCH, PIXELS, DEPTHS = size(128, 2), size(160, 32), (2, 2, 2, 2)


def build(fixed):
    torch.manual_seed(0)
    model = ResNet(DEPTHS, width=size(64, 8)).to(DEVICE)
    images = torch.randn(BATCH, 3, PIXELS, PIXELS, device=DEVICE)
    if fixed:
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (BATCH,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            logits = model(images)  # fault
        loss = F.cross_entropy(logits.float(), labels)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
