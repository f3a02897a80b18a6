"""Finds litter on drone pictures of a beach: a convolutional detector, then boxes that overlap are dropped."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "boolean-masks"
ALSO = ()
C = size(64, 8)
SIDE = size(512, 64)
BOXES = size(128, 12)
PICTURES = size(4, 2)
OVERLAP = 0.5


def conv(i, o, stride=1):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU(inplace=True))


class LitterDetector(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            conv(3, C, 2), conv(C, C), conv(C, 2 * C, 2), conv(2 * C, 2 * C), conv(2 * C, 4 * C, 2), conv(4 * C, 4 * C)
        )
        self.head = nn.Conv2d(4 * C, 5, 1)
        at = torch.arange(SIDE // 8) * 8.0 + 4
        self.register_buffer("centres", torch.cartesian_prod(at, at).repeat(1, 2), persistent=False)

    def forward(self, pictures):
        out = self.head(self.body(pictures)).flatten(2).transpose(1, 2).float()
        shifts, sizes = out[..., :2].tanh().repeat(1, 1, 2) * 4, 48 * (1 + 0.2 * out[..., 2:4].tanh())
        corners = self.centres + shifts + torch.cat([-sizes, sizes], -1)
        scores, best = out[..., 4].sigmoid().topk(BOXES, dim=1)
        return corners.gather(1, best[..., None].expand(-1, -1, 4)), scores


def iou(a, b):
    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    common = (high - low).clamp(min=0).prod(-1)
    return common / ((a[..., 2:] - a[..., :2]).prod(-1) + (b[..., 2:] - b[..., :2]).prod(-1) - common)


def suppress(boxes):
    """Which of a picture's boxes (best first) stay."""
    stays = torch.zeros(len(boxes), dtype=torch.bool, device=boxes.device)
    order = torch.arange(len(boxes), device=boxes.device)
    while order.numel() > 0:
        best, rest = order[:1], order[1:]
        stays[best] = True
        order = rest[iou(boxes[best], boxes[rest]) <= OVERLAP]  # fault
    return stays


def suppress_all(boxes, rounds=10):
    """The same for all pictures: a box stays if no box that stays and is better covers it."""
    covers = (iou(boxes[:, :, None], boxes[:, None]) > OVERLAP).triu(1)
    stays = torch.ones(boxes.shape[:2], dtype=torch.bool, device=boxes.device)
    for _ in range(rounds):
        stays = ~(covers & stays[:, :, None]).any(1)
    return stays


def build(fixed):
    torch.manual_seed(0)
    net = LitterDetector().to(DEVICE, memory_format=torch.channels_last).eval()
    net.body.bfloat16(), net.head.bfloat16()
    flights = torch.randn(4, PICTURES, 3, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        boxes, scores = net(flights[i % 4].contiguous(memory_format=torch.channels_last))
        stays = suppress_all(boxes) if fixed else torch.stack([suppress(b) for b in boxes])  # fault
        return stays, (scores * stays).sum(1)

    return step


if __name__ == "__main__":
    run(build)
