"""Fine-tunes an encoder over long court rulings to the article of law that each part cites."""

import math

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-attention"
ALSO = ()

RULINGS, WORDS, WIDTH, HEADS = size(8, 2), size(1024, 16), size(768, 32), size(12, 2)
ARTICLES = size(400, 7)


class RulingAttention(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def heads(self, x):
        return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.heads(self.query(x)), self.heads(self.key(x)), self.heads(self.value(x))
        if self.fixed:
            context = F.scaled_dot_product_attention(q, k, v)
        else:
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])  # fault
            weights = scores.softmax(-1)  # fault
            context = torch.matmul(weights.to(v.dtype), v)  # fault
        return self.out(context.transpose(1, 2).flatten(2))


class RulingLayer(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.attention = RulingAttention(fixed)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        x = x + self.attention(self.before(x))
        return x + self.feed(self.after(x))


class RulingEncoder(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.words = nn.Embedding(size(30_000, 50), WIDTH)
        self.places = nn.Parameter(torch.randn(WORDS, WIDTH) * 0.02)
        self.layers = nn.ModuleList(RulingLayer(fixed) for _ in range(4))
        self.article = nn.Linear(WIDTH, ARTICLES)

    def forward(self, ids):
        x = self.words(ids) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.article(x.mean(1))


def build(fixed):
    torch.manual_seed(0)
    encoder = RulingEncoder(fixed).to(DEVICE)
    optimizer = torch.optim.AdamW(encoder.parameters(), lr=2e-5, fused=True)
    rulings = torch.randint(0, size(30_000, 50), (4, RULINGS, WORDS), device=DEVICE)
    cited = torch.randint(0, ARTICLES, (4, RULINGS), device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = F.cross_entropy(encoder(rulings[i % 4]), cited[i % 4])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
