"""A decoder with RMSNorm, rotary positions and SwiGLU, written out."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "fusion"
ALSO = ()
D, H, LAYERS, B, T = size(1024, 16), size(16, 2), size(4, 2), size(8, 2), size(1024, 8)


class RMSNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(D))

    def forward(self, x):
        y = x.float()  # fault
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)  # fault
        return (y * self.weight.float()).to(x.dtype)  # fault


def rotated(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], -1) * sin  # fault


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = RMSNorm(), RMSNorm()
        self.qkv, self.o = nn.Linear(D, 3 * D, bias=False), nn.Linear(D, D, bias=False)
        self.gate, self.up, self.down = (
            nn.Linear(D, 2 * D, bias=False),
            nn.Linear(D, 2 * D, bias=False),
            nn.Linear(2 * D, D, bias=False),
        )

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.n1(x)).view(b, t, 3, H, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(rotated(q, cos, sin), rotated(k, cos, sin), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(b, t, D))
        z = self.n2(x)
        return x + self.down(F.silu(self.gate(z)) * self.up(z))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, x, cos, sin):
        for layer in self.layers:
            x = layer(x, cos, sin)
        return x


def build(fixed):
    model = Decoder().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    angle = torch.outer(torch.arange(T), 1e-4 ** (torch.arange(D // H // 2) * 2 / (D // H))).repeat(1, 2)
    cos, sin = (f(angle).to(DEVICE, torch.bfloat16) for f in (torch.cos, torch.sin))
    x = torch.randn(B, T, D, device=DEVICE, dtype=torch.bfloat16)
    run_model = torch.compile(model) if fixed else model

    def step(i):
        run_model(x, cos, sin).float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
