"""Scores users by the sum of their items' embeddings, looked up one column of items after the other."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "gathers"
ALSO = ()
ITEMS, WIDTH, USERS, HISTORY = size(1_000_000, 100), size(128, 8), size(65536, 8), size(50, 4)


def history_by_column(table, items):
    total = torch.zeros(len(items), table.shape[1], device=DEVICE)
    for column in range(items.shape[1]):  # fault
        total = total + table[items[:, column]]  # fault
    return total


def build(fixed):
    torch.manual_seed(0)
    table = torch.randn(ITEMS, WIDTH, device=DEVICE)
    items = torch.randint(0, ITEMS, (USERS, HISTORY), device=DEVICE)
    tower = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1)).to(DEVICE)

    @torch.no_grad()
    def step(i):
        history = F.embedding_bag(items, table, mode="sum") if fixed else history_by_column(table, items)
        return tower(history / HISTORY)

    return step


if __name__ == "__main__":
    run(build, steps=40)
