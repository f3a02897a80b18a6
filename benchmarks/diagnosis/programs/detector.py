"""A one-stage detector of ships in radar images, trained on its hardest anchors."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-operators"
ALSO = ()

BATCH = size(16, 2)
SIDE = size(256, 32)
ANCHORS = 9
KEEP = size(4096, 32)


def conv(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
    )


class ShipFinder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            conv(4, 64, 2), conv(64, 128, 2), conv(128, 128), conv(128, 256, 2), conv(256, 256), conv(256, 256)
        )
        self.objectness = nn.Conv2d(256, ANCHORS, 1)
        self.boxes = nn.Conv2d(256, 4 * ANCHORS, 1)

    def forward(self, images):
        features = self.backbone(images)
        scores = self.objectness(features).permute(0, 2, 3, 1).flatten()
        boxes = self.boxes(features).permute(0, 2, 3, 1).reshape(-1, 4)
        return scores, boxes


class HardExamples:
    """The anchors with the largest losses; the easy sea is left out."""

    def __init__(self, keep, fixed):
        self.keep = keep
        self.fixed = fixed

    def __call__(self, losses):
        losses = losses.detach()
        if self.fixed:
            return torch.argsort(losses, descending=True)[: self.keep]
        order = torch.argsort(losses.cpu(), descending=True)  # fault
        return order[: self.keep].to(losses.device)  # fault


def build(fixed):
    model = ShipFinder().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    mining = HardExamples(KEEP, fixed)
    images = torch.randn(BATCH, 4, SIDE, SIDE, device=DEVICE).to(memory_format=torch.channels_last)
    count = BATCH * ANCHORS * (SIDE // 8) ** 2
    ships = (torch.rand(count, device=DEVICE) < 0.02).float()
    corners = torch.randn(count, 4, device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            scores, boxes = model(images)
        losses = F.binary_cross_entropy_with_logits(scores.float(), ships, reduction="none")
        hardest = mining(losses)
        distance = F.smooth_l1_loss(boxes.float(), corners, reduction="none").sum(1)
        loss = losses[hardest].mean() + (distance[hardest] * ships[hardest]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
