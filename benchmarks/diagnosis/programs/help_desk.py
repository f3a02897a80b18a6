"""Routes the tickets of a help desk to departments: a server that classifies what has arrived since the last turn."""

import random

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "padding"
ALSO = ()

MAX_LENGTH = size(512, 32)
WIDTH, HEADS, LAYERS = size(768, 32), size(12, 2), size(6, 2)
TICKETS, WORDS, DEPARTMENTS = size(64, 4), size(30_000, 100), 14


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        b, t, _ = x.shape
        qkv = self.qkv(self.before_attention(x)).view(b, t, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, mask).transpose(1, 2).reshape(b, t, WIDTH))
        return x + self.mlp(self.before_mlp(x))


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(MAX_LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, DEPARTMENTS)

    def forward(self, ids, lengths):
        there = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]
        x = self.words(ids) + self.places.weight[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x, there[:, None, None, :])
        x = self.norm(x) * there[..., None]
        return self.head(x.sum(1) / lengths[:, None])


def build(fixed):
    torch.manual_seed(0)
    model = Router().to(DEVICE, torch.bfloat16).eval()
    chance = random.Random(0)
    inbox = [
        [torch.randint(1, WORDS, (chance.randint(size(12, 3), size(88, 12)),)) for _ in range(TICKETS)]
        for _ in range(4)
    ]

    def collate(tickets):
        longest = max(len(ticket) for ticket in tickets)
        width = min(MAX_LENGTH, -(-longest // 8) * 8) if fixed else MAX_LENGTH  # fault
        ids = torch.zeros(len(tickets), width, dtype=torch.int64, pin_memory=DEVICE == "cuda")  # fault
        for row, ticket in zip(ids.numpy(), tickets, strict=True):
            row[: len(ticket)] = ticket.numpy()
        return ids, torch.tensor([len(ticket) for ticket in tickets])

    @torch.inference_mode()
    def step(i):
        ids, lengths = (part.to(DEVICE, non_blocking=True) for part in collate(inbox[i % 4]))
        chances = model(ids, lengths).float().softmax(-1)
        sure, department = chances.max(-1)
        return list(zip(department.tolist(), sure.tolist(), strict=True))

    return step


if __name__ == "__main__":
    run(build)
