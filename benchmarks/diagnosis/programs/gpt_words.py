"""Trains a GPT in bf16 with the tokenizer's own number of words, 50,257."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "unaligned-gemm"
ALSO = ()
VOCABULARY = size(50257, 257)  # fault
PADDED_VOCABULARY = size(50304, 320)
WIDTH, LAYERS = size(768, 64), size(4, 1)
BATCH, LENGTH = size(8, 2), size(512, 16)


class GPT(nn.Module):
    def __init__(self, vocabulary):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(*(Block(WIDTH, WIDTH // 64) for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocabulary, bias=False)  # fault

    def forward(self, ids):
        hidden = self.blocks(self.tokens(ids) + self.positions.weight)
        return self.head(self.norm(hidden))  # fault


def build(fixed):
    torch.manual_seed(0)
    model = GPT(PADDED_VOCABULARY if fixed else VOCABULARY).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH + 1), device=DEVICE)
    inputs, targets = ids[:, :-1].contiguous(), ids[:, 1:].flatten()

    def step(i):
        loss = F.cross_entropy(model(inputs).flatten(0, 1), targets)
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
