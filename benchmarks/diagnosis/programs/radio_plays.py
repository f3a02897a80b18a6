"""Goes on with long radio plays: each step writes eight more words for 64 plays of 2048 words."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "growing-copies"
ALSO = ()
WIDTH, HEADS, LAYERS = size(1024, 32), size(16, 2), size(4, 2)
PLAYS, LENGTH, NEW = size(64, 2), size(2048, 12), size(8, 3)
WORDS = size(32000, 100)
TYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32


class GrowingCache:
    def __init__(self, keys, values):
        self.keys, self.values = keys, values

    def extend(self, k, v):
        self.keys = torch.cat([self.keys, k], dim=2)  # fault
        self.values = torch.cat([self.values, v], dim=2)  # fault
        return self.keys, self.values


class RoomyCache:
    def __init__(self, keys, values):
        self.keys, self.values = F.pad(keys, (0, 0, 0, NEW)), F.pad(values, (0, 0, 0, NEW))
        self.filled = LENGTH

    def extend(self, k, v):
        end = self.filled + 1
        self.keys[:, :, self.filled : end], self.values[:, :, self.filled : end] = k, v
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.qkv, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.between = nn.LayerNorm(WIDTH)
        self.wide = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, cache):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, *cache.extend(k, v))
        x = x + self.out(heads.transpose(1, 2).flatten(2))
        return x + self.wide(self.between(x))


class Playwright(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH + NEW, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def write(self, word, place, caches):
        x = self.words(word) + self.places.weight[place]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, cache)
        return self.head(self.norm(x)).argmax(-1)


def build(fixed):
    torch.manual_seed(0)
    model = Playwright().to(DEVICE, TYPE).eval()
    ids = torch.randint(0, WORDS, (PLAYS, LENGTH), device=DEVICE)
    kept = [torch.randn(2, PLAYS, HEADS, LENGTH, WIDTH // HEADS, device=DEVICE, dtype=TYPE) for _ in range(LAYERS)]
    roomy = [RoomyCache(k, v) for k, v in kept] if fixed else ()

    @torch.inference_mode()
    def step(i):
        caches = roomy or [GrowingCache(k, v) for k, v in kept]
        for cache in roomy:
            cache.filled = LENGTH
        word, written = ids[:, i % LENGTH, None], []
        for n in range(NEW):
            written.append(word := model.write(word, LENGTH + n, caches))
        return torch.cat(written, 1)

    return step


if __name__ == "__main__":
    run(build)
