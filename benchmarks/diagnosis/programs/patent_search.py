"""Finds the patents nearest to each batch of queries, among the vectors of some millions."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "weight-norm"
ALSO = []

PATENTS, WIDTH = size(2_500_000, 500), size(384, 16)
QUERIES, LENGTH, VOCABULARY = size(16, 4), size(64, 8), size(30000, 50)
HEADS, LAYERS, NEAREST = size(12, 2), size(6, 2), size(20, 5)
CLASSES = 9


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = self.norm1(x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)))
        return self.norm2(x + self.down(F.gelu(self.up(x))))


class SentenceEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, words):
        x = self.words(words) + self.positions.weight
        for layer in self.layers:
            x = layer(x)
        return x.mean(1)


def cosine_similarity(a, b):
    """Of all pairs of rows."""
    return F.normalize(a, dim=1) @ F.normalize(b, dim=1).T  # fault


def dot_product(a, b):
    return F.normalize(a, dim=1) @ b.T


class PatentIndex:
    """Vectors of patents, of sections A to H and Y, as an encoder wrote them."""

    def __init__(self, normalized):
        generator = torch.Generator(DEVICE).manual_seed(1)
        self.vectors = torch.randn(PATENTS, WIDTH, device=DEVICE, generator=generator, dtype=torch.bfloat16)
        if normalized:
            self.vectors = F.normalize(self.vectors, dim=1)
        self.similarity = dot_product if normalized else cosine_similarity
        self.sections = torch.randint(0, CLASSES, (PATENTS,), device=DEVICE, generator=generator)

    def search(self, queries):
        scores, places = self.similarity(queries, self.vectors).topk(NEAREST, dim=1)  # fault
        votes = torch.zeros(len(queries), CLASSES, device=DEVICE)
        votes.scatter_add_(1, self.sections[places], scores.float())
        return scores, places, votes.argmax(dim=1)


def build(fixed):
    torch.manual_seed(0)
    encoder = SentenceEncoder().to(DEVICE, torch.bfloat16).eval()
    index = PatentIndex(normalized=fixed)
    texts = torch.randint(0, VOCABULARY, (8, QUERIES, LENGTH), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        _, places, sections = index.search(encoder(texts[i % len(texts)]))
        return places, sections

    return step


if __name__ == "__main__":
    run(build)
