"""Classifies documents; the table of word vectors was left on the CPU, where each batch is looked up."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-operators"
ALSO = ()
V, D, B, T = size(100_000, 64), size(256, 8), size(256, 2), size(128, 4)


def build(fixed):
    torch.manual_seed(0)
    words = nn.Embedding(V, D).requires_grad_(False)
    head = nn.Sequential(nn.Linear(D, 1024), nn.ReLU(), nn.Linear(1024, 20)).to(DEVICE)
    if fixed:
        words = words.to(DEVICE)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3, fused=True)
    ids = [torch.randint(V, (B, T)) for _ in range(8)]
    if fixed:
        ids = [one.to(DEVICE) for one in ids]
    labels = torch.randint(20, (B,), device=DEVICE)

    def step(i):
        x = words(ids[i % 8]).to(DEVICE)  # fault
        loss = F.cross_entropy(head(x.mean(1)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
