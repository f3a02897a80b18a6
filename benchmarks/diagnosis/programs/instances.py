"""Learns to tell every picture of a collection from the others, by noise contrast with a bank of all features."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "gathers"
ALSO = ("pageable-copy",)
PICTURES, FEATURES, OTHERS = size(131072, 64), size(128, 8), size(16384, 5)
BATCH, SIDE, PATCH = size(256, 2), size(128, 16), size(16, 8)
WIDTH, HEADS, LAYERS = size(512, 16), size(8, 2), size(5, 1)
PATCHES, BATCHES, TEMPERATURE = (SIDE // PATCH) ** 2, 8, 0.07


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(3 * PATCH * PATCH, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, causal=False) for _ in range(LAYERS)))
        self.project = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, FEATURES))

    def forward(self, pictures):
        x = pictures.bfloat16() / 128 - 1
        x = x.unflatten(2, (-1, PATCH)).unflatten(4, (-1, PATCH)).permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        x = self.blocks(self.enter(x) + self.places)
        return F.normalize(self.project(x.mean(1)).float(), dim=1)


class Bank:
    """A feature of each picture; a batch is held against random rows."""

    def __init__(self, by_product):
        self.rows = F.normalize(torch.randn(PICTURES, FEATURES, device=DEVICE), dim=1)
        self.by_product = by_product

    def similarities(self, features, chosen):
        if self.by_product:
            return (features @ self.rows.t()).gather(1, chosen)
        rows = self.rows.index_select(0, chosen.flatten())  # fault
        rows = rows.view(*chosen.shape, FEATURES)  # fault
        return torch.bmm(rows, features[:, :, None]).squeeze(2)  # fault

    @torch.no_grad()
    def update(self, numbers, features):
        blend = torch.lerp(self.rows[numbers], features, 0.5)
        self.rows.index_copy_(0, numbers, F.normalize(blend, dim=1))


def stored_pictures(pinned):
    pictures = torch.randint(256, (BATCHES, BATCH, 3, SIDE, SIDE), dtype=torch.uint8)
    return pictures.pin_memory() if pinned and DEVICE == "cuda" else pictures


def build(fixed):
    torch.manual_seed(0)
    model = Network().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    bank = Bank(by_product=bool(fixed))
    stored = stored_pictures(pinned=fixed is True)
    order = torch.randperm(PICTURES, device=DEVICE)[: BATCHES * BATCH].view(BATCHES, BATCH)
    first = torch.zeros(BATCH, dtype=torch.int64, device=DEVICE)

    def step(i):
        numbers = order[i % BATCHES]
        pictures = stored[i % BATCHES].to(DEVICE, non_blocking=True)  # also
        features = model(pictures)
        chosen = torch.randint(PICTURES, (BATCH, OTHERS + 1), device=DEVICE)
        chosen[:, 0] = numbers
        loss = F.cross_entropy(bank.similarities(features, chosen) / TEMPERATURE, first)  # fault
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        bank.update(numbers, features.detach())
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
