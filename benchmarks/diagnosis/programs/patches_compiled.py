"""Pre-trains a vision transformer on patches of satellite pictures."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = ""
ALSO = ()
WIDTH, HEADS, LAYERS = size(1024, 64), size(8, 4), size(6, 2)
BATCH, PATCHES, PATCH = size(64, 2), size(256, 16), size(768, 32)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.norm_hidden = nn.LayerNorm(WIDTH)
        self.expand = nn.Linear(WIDTH, 4 * WIDTH)
        self.contract = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = (part.transpose(1, 2) for part in qkv.unbind(2))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.contract(F.gelu(self.expand(self.norm_hidden(x)), approximate="tanh"))


class Encoder(nn.Module):
    """Predicts the patches themselves; masked ones are replaced by a learned token."""

    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(PATCH, WIDTH)
        self.hidden = nn.Parameter(torch.zeros(WIDTH))
        self.places = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.leave = nn.Linear(WIDTH, PATCH)

    def forward(self, patches, masked):
        x = torch.where(masked[..., None], self.hidden, self.enter(patches)) + self.places
        for layer in self.layers:
            x = layer(x)
        error = (self.leave(self.norm(x)) - patches).float().square().mean(-1)
        return (error * masked).sum() / masked.sum()


def build(fixed):
    torch.manual_seed(0)
    model = Encoder().to(DEVICE, torch.bfloat16)
    loss_of = torch.compile(model) if DEVICE == "cuda" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    patches = torch.randn(BATCH, PATCHES, PATCH, device=DEVICE, dtype=torch.bfloat16)
    masked = torch.rand(BATCH, PATCHES, device=DEVICE) < 0.6

    def step(i):
        loss = loss_of(patches, masked)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
