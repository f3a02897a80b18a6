"""Trains a classifier of letters on batches of a shuffled corpus, each as wide as its longest letter."""

import numpy as np
import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CAUSE = "padding"
ALSO = []

LETTERS, BATCH, LONGEST = size(512, 32), size(32, 4), size(1024, 48)
VOCABULARY, WIDTH, HEADS, LAYERS, KINDS = size(20000, 60), size(512, 16), size(8, 2), size(6, 2), 5


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LONGEST, WIDTH)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        mask = attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            x = layer(x, mask)
        return self.head((x * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True))


def collate(letters):
    width = (max(map(len, letters)) + 7) // 8 * 8
    ids = torch.zeros(len(letters), width, dtype=torch.long)
    for row, letter in zip(ids, letters, strict=False):
        row[: len(letter)] = torch.from_numpy(letter)
    return {"input_ids": ids, "attention_mask": (ids != 0).long()}


def batches_of(corpus, fixed):
    if fixed:
        corpus = sorted(corpus, key=len)
    batches = [corpus[i : i + BATCH] for i in range(0, len(corpus), BATCH)]  # fault
    order = np.random.default_rng(1).permutation(len(batches))
    return [collate(batches[i]) for i in order]


def build(fixed):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(LONGEST / 6), 0.8, LETTERS), 4, LONGEST).astype(int)
    corpus = [rng.integers(1, VOCABULARY, length) for length in lengths]
    batches = [
        {key: value.pin_memory() if DEVICE == "cuda" else value for key, value in one.items()}
        for one in batches_of(corpus, fixed)
    ]
    model = Classifier().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    kinds = torch.randint(0, KINDS, (BATCH,), device=DEVICE)

    def step(i):
        nonlocal ready
        for one in range(len(batches) if not ready else 0):  # each width once
            ready = one + 1 == len(batches)
            train(one)
        return train(i)

    def train(i):
        batch = {key: value.to(DEVICE, non_blocking=True) for key, value in batches[i % len(batches)].items()}
        with torch.autocast(DEVICE, torch.bfloat16), sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]):
            loss = F.cross_entropy(model(**batch).float(), kinds)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    ready = False
    return step


if __name__ == "__main__":
    run(build)
