"""Trains a transformer on the spectrograms of a volcano's tremors, in mixed precision, from pinned memory."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = ""
ALSO = ()

BATCH, FRAMES, BINS, STATES = size(64, 2), size(256, 8), 128, 6
WIDTH, LAYERS, LOG_EVERY = size(1024, 64), size(8, 2), 100


class TremorModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(BINS, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(FRAMES, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.states = nn.Linear(WIDTH, STATES)

    def forward(self, spectrograms):
        x = self.blocks(self.enter(spectrograms) + self.places)
        return self.states(self.norm(x).mean(1))


class Recordings:
    """Batches of spectrograms in pinned memory."""

    def __init__(self, batches):
        pinned = DEVICE == "cuda"
        self.spectrograms = torch.randn(batches, BATCH, FRAMES, BINS).to(torch.bfloat16)
        self.states = torch.randint(STATES, (batches, BATCH))
        if pinned:
            self.spectrograms, self.states = self.spectrograms.pin_memory(), self.states.pin_memory()

    def copied(self, i):
        i %= len(self.states)
        return self.spectrograms[i].to(DEVICE, non_blocking=True), self.states[i].to(DEVICE, non_blocking=True)


def build(fixed):
    torch.manual_seed(0)
    model = TremorModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-4, weight_decay=0.05, fused=True)
    recordings = Recordings(8)
    total = torch.zeros((), device=DEVICE)

    def step(i):
        spectrograms, states = recordings.copied(i)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(spectrograms), states)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        total.add_(loss.detach())
        if (i + 1) % LOG_EVERY == 0:
            print(f"step {i + 1}: {total.item() / LOG_EVERY:.4f}")
            total.zero_()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
