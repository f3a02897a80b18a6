"""Trains a GPT with every layer checkpointed, on a GPU that would hold the activations many times over."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.utils.checkpoint import checkpoint

from _models import Block

CAUSE = "recomputation"
ALSO = ()
VOCABULARY, WIDTH, LAYERS = size(8192, 128), size(1024, 64), size(8, 2)
BATCH, LENGTH = size(16, 2), size(512, 8)


class GPT(nn.Module):
    def __init__(self, checkpointed):
        super().__init__()
        self.checkpointed = checkpointed
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block(WIDTH, WIDTH // 64) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=False)  # fault
            else:
                x = block(x)
        return self.head(self.norm(x))


def build(fixed):
    torch.manual_seed(0)
    model = GPT(checkpointed=not fixed).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
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
