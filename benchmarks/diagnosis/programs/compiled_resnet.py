"""Trains a compiled ResNet with autocast to bf16, in channels_last."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size

from _models import ResNet

CAUSE = ""
ALSO = ()
BATCH, PIXELS, DEPTHS = size(192, 2), size(160, 32), (2, 2, 2, 2)


def build(fixed):
    torch.manual_seed(0)
    model = ResNet(DEPTHS, width=size(64, 8)).to(DEVICE, memory_format=torch.channels_last)
    compiled = torch.compile(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = torch.randn(BATCH, 3, PIXELS, PIXELS, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (BATCH,), device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
