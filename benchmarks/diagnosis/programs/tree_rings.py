"""Trains a vision transformer that tells a tree's age and its kind from the scan of a core."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = ""
ALSO = ()
BATCH, SIDE, PATCH = size(64, 2), size(256, 32), 16
WIDTH, LAYERS, KINDS = size(1024, 64), size(8, 1), 40
SHOW = 200


class Dendrologist(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*[Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS)])
        self.norm = nn.LayerNorm(WIDTH)
        self.age = nn.Linear(WIDTH, 1)
        self.kind = nn.Linear(WIDTH, KINDS)

    def forward(self, scans):
        x = self.patches(scans).flatten(2).transpose(1, 2) + self.places
        x = self.norm(self.blocks(x)).mean(1)
        return self.age(x)[:, 0], self.kind(x)


def scans():
    """Batches as a loader's workers would leave them: in pinned memory."""
    pictures = torch.randint(256, (4, BATCH, 3, SIDE, SIDE), dtype=torch.uint8)
    pool = list(zip(pictures, torch.rand(4, BATCH), torch.randint(KINDS, (4, BATCH)), strict=True))
    if DEVICE == "cuda":
        pool = [tuple(part.pin_memory() for part in batch) for batch in pool]
    while True:
        yield from pool


def build(fixed):
    torch.manual_seed(0)
    model = Dendrologist().to(DEVICE)
    forward = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.05, fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-4, total_steps=100_000)
    total = torch.zeros((), device=DEVICE)
    source = scans()

    def step(i):
        pictures, ages, kinds = (part.to(DEVICE, non_blocking=True) for part in next(source))
        pictures = pictures.float().div_(127.5).sub_(1)
        with torch.autocast(DEVICE, torch.bfloat16):
            age, kind = forward(pictures)
        loss = F.smooth_l1_loss(age.float(), ages) + F.cross_entropy(kind.float(), kinds)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        total.add_(loss.detach())
        if i % SHOW == SHOW - 1:
            print(f"step {i + 1}: loss {total.item() / SHOW:.4f}")
            total.zero_()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
