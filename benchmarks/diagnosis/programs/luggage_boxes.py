"""Trains a finder of forbidden things in scans of luggage: boxes with a generalised overlap loss."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()

SCANS, SIDE, THINGS, WIDTH = size(64, 4), size(192, 32), size(20, 4), size(64, 8)


def area(low, high):
    sides = (high - low).clamp(min=0)
    return sides[..., 0] * sides[..., 1]


def overlap_loss(found, true):
    """One minus the generalised overlap of boxes (x0, y0, x1, y1), box by box."""
    (low, high), (true_low, true_high) = found.chunk(2, -1), true.chunk(2, -1)
    inside = area(torch.maximum(low, true_low), torch.minimum(high, true_high))
    union = area(low, high) + area(true_low, true_high) - inside
    hull = area(torch.minimum(low, true_low), torch.maximum(high, true_high))
    return 1 - inside / union + (hull - union) / hull


class LuggageNet(nn.Module):
    def __init__(self):
        super().__init__()
        layers, i = [], 2
        for o in (WIDTH, 2 * WIDTH, 4 * WIDTH, 4 * WIDTH):
            layers += [nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            layers += [nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o), nn.ReLU(inplace=True)]
            i = o
        self.body = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(2), nn.Flatten())
        self.boxes = nn.Linear(4 * i, THINGS * 4)

    def forward(self, scans):
        middle, extent = self.boxes(self.body(scans)).float().sigmoid().view(-1, THINGS, 4).chunk(2, -1)
        return torch.cat([middle - extent / 2 - 0.01, middle + extent / 2 + 0.01], -1)


def build(fixed):
    torch.manual_seed(0)
    random.seed(0)
    net = LuggageNet().to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    scans = torch.randn(SCANS, 2, SIDE, SIDE, device=DEVICE).to(memory_format=torch.channels_last)
    corner = torch.rand(SCANS, THINGS, 2, device=DEVICE) * 0.6
    truth = torch.cat([corner, corner + 0.1 + 0.3 * torch.rand_like(corner)], -1)
    counts = [random.randint(1, THINGS) for _ in range(SCANS)]
    there = torch.arange(THINGS, device=DEVICE) < torch.tensor(counts, device=DEVICE)[:, None]
    number = torch.tensor(counts, device=DEVICE)

    def box_loss(found):
        if fixed:
            each = overlap_loss(found, truth) + F.l1_loss(found, truth, reduction="none").sum(-1)
            return (each.masked_fill(~there, 0).sum(1) / number).mean()
        losses = []
        for b in range(SCANS):  # fault
            mine, true = found[b, : counts[b]], truth[b, : counts[b]]
            overlap = overlap_loss(mine, true).mean()  # fault
            losses.append(overlap + F.l1_loss(mine, true, reduction="none").sum(-1).mean())  # fault
        return torch.stack(losses).mean()

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            found = net(scans)
        loss = box_loss(found)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
