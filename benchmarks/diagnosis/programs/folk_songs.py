"""Finds songs of an archive by described mood: descriptions are encoded and compared with the songs' vectors."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
WIDTH, HEADS, LAYERS = size(1024, 32), size(16, 2), size(10, 2)
REQUESTS, LENGTH = size(256, 4), size(64, 8)
SONGS = size(262144, 128)
WORDS = size(30000, 100)
TYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class MoodEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(torch.randn(LENGTH, WIDTH) * 0.02)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, ids):
        return F.normalize(self.norm(self.layers(self.words(ids) + self.places)).mean(1), dim=-1)


class Archive:
    def __init__(self, vectors):
        self.vectors = F.normalize(vectors, dim=-1).T

    def nearest(self, queries, count):
        return (queries @ self.vectors).topk(count, dim=1)


def build(fixed):
    torch.manual_seed(0)
    encoder = MoodEncoder().to(DEVICE, TYPE).eval()
    archive = Archive(torch.randn(SONGS, WIDTH, device=DEVICE, dtype=TYPE))
    requests = torch.randint(0, WORDS, (8, REQUESTS, LENGTH))
    if DEVICE == "cuda":
        requests = requests.pin_memory()

    @torch.inference_mode()
    def step(i):
        ids = requests[i % 8].to(DEVICE, non_blocking=True)
        nearness, songs = archive.nearest(encoder(ids), size(20, 5))
        return songs, nearness

    return step


if __name__ == "__main__":
    run(build)
