"""Trains a transformer that marks the ships, winds and places in the transcribed log books of lighthouses."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "anomaly-detection"
ALSO = ()
BATCH, LENGTH, WIDTH, LAYERS = size(24, 2), size(512, 16), size(512, 64), size(8, 2)
PIECES, MARKS = size(16_000, 100), 11


class Marker(nn.Module):
    def __init__(self):
        super().__init__()
        self.pieces = nn.Embedding(PIECES, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.marks = nn.Linear(WIDTH, MARKS)

    def forward(self, entries):
        x = self.pieces(entries) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.marks(self.norm(x))


class Trainer:
    def __init__(self, model, *, debug):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), 3e-4, fused=True)
        self.losses = torch.zeros((), device=DEVICE)
        torch.autograd.set_detect_anomaly(debug)  # fault

    def fit(self, entries, marks):
        with torch.autocast(DEVICE, torch.bfloat16):
            found = self.model(entries)
        loss = F.cross_entropy(found.float().flatten(0, 1), marks.flatten())
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.losses += loss.detach()
        return loss.detach()


def build(fixed):
    torch.manual_seed(0)
    trainer = Trainer(Marker().to(DEVICE), debug=not fixed)  # fault
    entries = torch.randint(PIECES, (8, BATCH, LENGTH), device=DEVICE)
    marks = entries % MARKS

    def step(i):
        return trainer.fit(entries[i % 8], marks[i % 8])

    return step


if __name__ == "__main__":
    run(build)
