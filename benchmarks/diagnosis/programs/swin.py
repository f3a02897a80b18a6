"""Trains a windowed vision transformer whose table of relative positions is indexed, as in many copies of Swin."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "scatter-atomics"
ALSO = ()
BATCH, LENGTH, WIDTH, HEADS, LAYERS = size(16, 2), size(256, 9), size(512, 32), size(8, 2), size(4, 1)
DISTANCES = 32


def buckets():
    positions = torch.arange(LENGTH, device=DEVICE)
    return (positions[:, None] - positions).clamp(-DISTANCES // 2, DISTANCES // 2 - 1) + DISTANCES // 2


class Layer(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.bias = nn.Parameter(torch.zeros(DISTANCES, HEADS))
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, index):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.fixed:
            bias = F.one_hot(index, DISTANCES).to(x.dtype) @ self.bias
        else:
            bias = self.bias[index]  # fault
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.permute(2, 0, 1).unsqueeze(0).contiguous())
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer(fixed) for _ in range(LAYERS)).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-4, fused=True)
    patches = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    index = buckets()

    def step(i):
        x = patches
        for layer in layers:
            x = layer(x, index)
        loss = x.float().square().mean()
        loss.backward()  # fault
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
