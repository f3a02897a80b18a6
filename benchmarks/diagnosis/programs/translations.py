"""Trains an encoder on sentences that the collate function pads word by word, in too few workers."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.data import DataLoader, Dataset

CAUSE = "data-loading"
ALSO = ()
B, LONGEST, V, D = size(256, 4), size(128, 8), size(8192, 64), size(256, 32)


class Sentences(Dataset):
    def __len__(self):
        return B * 4000

    def __getitem__(self, index):
        rng = random.Random(index)
        return [rng.randrange(1, V) for _ in range(rng.randint(LONGEST // 2, LONGEST))]


def collate(sentences):
    ids = torch.zeros(len(sentences), LONGEST, dtype=torch.long)
    for row, words in enumerate(sentences):
        for column, word in enumerate(words):
            ids[row, column] = word
    return ids


def collate_rows(sentences):
    return torch.tensor([words + [0] * (LONGEST - len(words)) for words in sentences])


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(V, D)
        layer = nn.TransformerEncoderLayer(D, max(D // 64, 1), 4 * D, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, size(4, 1))
        self.head = nn.Linear(D, 16)

    def forward(self, ids):
        return self.head(self.layers(self.words(ids)).mean(1))


def build(fixed):
    torch.manual_seed(0)
    workers = size(12, 1) if fixed else size(2, 1)
    together = collate_rows if fixed else collate
    loader = DataLoader(Sentences(), B, num_workers=workers, collate_fn=together, pin_memory=DEVICE == "cuda")
    batches = iter(loader)
    model = Encoder().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    target = torch.randint(16, (B,), device=DEVICE)

    def step(i):
        ids = next(batches)  # fault
        ids = ids.to(DEVICE, non_blocking=True)
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(model(ids), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
