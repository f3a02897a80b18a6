"""Trains a vision transformer on photographs of mushrooms, with a line of progress for each step."""

import sys

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "blocking-read"
ALSO = ()
PHOTOS, SIDE, PATCH, WIDTH, HEADS, BLOCKS, KINDS = size(32, 2), size(224, 32), 16, size(384, 16), size(6, 2), size(12, 2), 100  # fmt: skip  # noqa: E501


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class ViT(nn.Module):
    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn((SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(BLOCKS))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, x):
        x = self.patches(x).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.blocks(x)).mean(1))


class Progress:
    """The line at the bottom of the terminal: the norms of the gradients, the largest of them named."""

    def __init__(self, model, fixed, every=100):
        self.model, self.fixed, self.every = model, fixed, every
        self.names = [name for name, _ in model.named_parameters()]
        self.line = ""

    def update(self, i):
        if self.fixed:
            norms = torch._foreach_norm([p.grad for p in self.model.parameters()])
            if i % self.every == self.every - 1:
                texts = [f"{n:.1e}" for n in torch.stack(norms).tolist()]
                self.line = "  ".join(f"{name}={text}" for name, text in zip(self.names, texts, strict=True))
            return
        shown = {name: f"{p.grad.norm():.1e}" for name, p in self.model.named_parameters()}  # fault
        self.line = "  ".join(f"{name}={text}" for name, text in shown.items())
        if i % self.every == self.every - 1:
            print(self.line[:160], end="\r", file=sys.stderr)


def build(fixed):
    torch.manual_seed(0)
    model = ViT().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4, weight_decay=0.05, fused=True)
    progress = Progress(model, fixed)
    photos = torch.randn(PHOTOS, 3, SIDE, SIDE, device=DEVICE, dtype=torch.bfloat16)
    kinds = torch.randint(0, KINDS, (PHOTOS,), device=DEVICE)

    def step(i):
        loss = F.cross_entropy(model(photos).float(), kinds)
        loss.backward()
        progress.update(i)  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
