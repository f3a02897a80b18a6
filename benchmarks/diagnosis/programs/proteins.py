"""Masked pre-training of a protein encoder: bf16, fused attention, a fused optimizer."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()

BATCH, LENGTH = size(16, 2), size(512, 16)
WIDTH, HEADS, LAYERS = size(2048, 32), size(16, 2), size(3, 1)
RESIDUES = 32
MASK = 31


class EncoderLayer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.before_mlp = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.merge = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x):
        qkv = self.qkv(self.before_attention(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        x = x + self.merge(y.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.before_mlp(x))))


class ProteinEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.residues = nn.Embedding(RESIDUES, WIDTH)
        self.places = nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.Sequential(*[EncoderLayer() for _ in range(LAYERS)])
        self.head = nn.Linear(WIDTH, RESIDUES)

    def forward(self, ids):
        chosen = F.one_hot(ids, RESIDUES).to(self.places.dtype)
        return self.head(self.layers(chosen @ self.residues.weight + self.places))


def build(fixed):
    with torch.device(DEVICE):
        encoder = ProteinEncoder().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=1e-4, fused=True)
    proteins = torch.randint(20, (4, BATCH, LENGTH), device=DEVICE)

    def step(i):
        truth = proteins[i % 4]
        hidden = torch.rand(BATCH, LENGTH, device=DEVICE) < 0.15
        guess = encoder(torch.where(hidden, MASK, truth))
        losses = F.cross_entropy(guess.flatten(0, 1), truth.flatten(), reduction="none")
        loss = (losses * hidden.flatten()).sum() / hidden.sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
