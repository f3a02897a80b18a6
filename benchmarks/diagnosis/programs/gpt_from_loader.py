"""Trains a compiled GPT on texts from a DataLoader with workers, pinned memory and asynchronous copies."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch.utils.data import DataLoader, Dataset

from _models import LM

CAUSE = ""
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(16384, 128), size(768, 64), size(4, 1)
BATCH, LENGTH, WORKERS = size(32, 2), size(512, 8), size(4, 1)


class Texts(Dataset):
    def __init__(self):
        self.words = np.random.default_rng(0).integers(0, VOCABULARY, 1_000_000, dtype=np.uint16)

    def __len__(self):
        return BATCH * 4000

    def __getitem__(self, index):
        start = index * 977 % (len(self.words) - LENGTH - 1)
        return torch.from_numpy(self.words[start : start + LENGTH + 1].astype(np.int64))


def build(fixed):
    torch.manual_seed(0)
    loader = DataLoader(Texts(), BATCH, num_workers=WORKERS, pin_memory=DEVICE == "cuda", prefetch_factor=4)
    batches = iter(loader)
    model = LM(VOCABULARY, WIDTH, LAYERS, LENGTH).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    @torch.compile
    def loss_of(ids):
        logits = model(ids[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())

    def step(i):
        ids = next(batches).to(DEVICE, non_blocking=True)
        loss = loss_of(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
