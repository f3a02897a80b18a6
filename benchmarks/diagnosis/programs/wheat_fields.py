"""Tells the crops of fields from a year of daily measurements by satellite, with a transformer over the days."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.checkpoint import checkpoint

from _models import Block

CAUSE = "recomputation"
ALSO = ()
FIELDS, DAYS, BANDS, CROPS = size(32, 2), size(366, 12), 13, 40
WIDTH, LAYERS = size(768, 64), size(10, 2)


class CropModel(nn.Module):
    def __init__(self, *, save_memory):
        super().__init__()
        self.save_memory = save_memory
        self.enter = nn.Linear(BANDS, WIDTH)
        self.days = nn.Parameter(0.02 * torch.randn(DAYS, WIDTH))
        self.blocks = nn.ModuleList(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.crops = nn.Linear(WIDTH, CROPS)

    def forward(self, year):
        x = self.enter(year) + self.days
        for block in self.blocks:
            if self.save_memory and self.training:
                x = checkpoint(block, x, use_reentrant=False)  # fault
            else:
                x = block(x)
        return self.crops(self.norm(x).mean(1))


def build(fixed):
    torch.manual_seed(0)
    model = CropModel(save_memory=not fixed).to(DEVICE)  # fault
    optimizer = torch.optim.AdamW(model.parameters(), 2e-4, weight_decay=0.05, fused=True)
    years = torch.randn(6, FIELDS, DAYS, BANDS, device=DEVICE)
    crops = torch.randint(CROPS, (6, FIELDS), device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(years[i % 6]), crops[i % 6], label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
