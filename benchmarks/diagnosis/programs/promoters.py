"""Learns to find promoters in a genome; a DataLoader without workers, and the loss of an old step read in each."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import DataLoader, Dataset

from _models import Block

CAUSE = ""
ALSO = ()
GENOME, WINDOWS, BASES = size(4_000_000, 2000), size(64, 2), size(1024, 32)
WIDTH, LAYERS, WORD = size(512, 64), size(4, 1), 4
BEHIND = 4


class Windows(Dataset):
    """Batches of windows; the genome, the order and the labels are on the GPU, and so nothing is copied."""

    def __init__(self):
        self.genome = torch.randint(4, (GENOME,), device=DEVICE, dtype=torch.uint8)
        self.starts = torch.randint(GENOME - BASES, (1000 * WINDOWS,), device=DEVICE)
        self.promoter = torch.randint(2, (1000 * WINDOWS,), device=DEVICE).float()
        self.offsets = torch.arange(BASES, device=DEVICE)

    def __len__(self):
        return 1000

    def __getitem__(self, number):
        chosen = slice(number * WINDOWS, (number + 1) * WINDOWS)
        return self.genome[self.starts[chosen, None] + self.offsets], self.promoter[chosen]


class Finder(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("letters", torch.arange(4, dtype=torch.uint8))
        self.words = nn.Linear(4 * WORD, WIDTH)
        self.places = nn.Parameter(torch.randn(BASES // WORD, WIDTH) * 0.02)
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 64, causal=False) for _ in range(LAYERS)))
        self.score = nn.Linear(WIDTH, 1)

    def forward(self, bases):
        letters = (bases[..., None] == self.letters).to(self.words.weight.dtype)
        x = self.words(letters.view(len(bases), BASES // WORD, 4 * WORD)) + self.places
        return self.score(self.blocks(x).mean(1))[:, 0]


class Losses:
    """The loss of the step `BEHIND` before this one, which has long been copied when it is read."""

    def __init__(self):
        self.kept = torch.zeros(BEHIND, pin_memory=DEVICE == "cuda")
        self.copied = [torch.cuda.Event() if DEVICE == "cuda" else None for _ in range(BEHIND)]
        self.mean = 0.0

    def add(self, number, loss):
        place = number % BEHIND
        if self.copied[place] is not None:
            self.copied[place].synchronize()
        self.mean += 0.01 * (self.kept[place].item() - self.mean)
        self.kept[place].copy_(loss, non_blocking=True)
        if self.copied[place] is not None:
            self.copied[place].record()


def batches():
    while True:
        yield from DataLoader(Windows(), batch_size=None, num_workers=0)


def build(fixed):
    torch.manual_seed(0)
    model = Finder().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    forward = torch.compile(model) if DEVICE == "cuda" else model
    source, losses = batches(), Losses()

    def step(i):
        bases, promoter = next(source)
        loss = F.binary_cross_entropy_with_logits(forward(bases).float(), promoter)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad()
        losses.add(i, loss.detach())

    return step


if __name__ == "__main__":
    run(build)
