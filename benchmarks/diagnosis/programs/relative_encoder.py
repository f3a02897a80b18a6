"""An encoder of documents with relative biases in attention."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "unfused-attention"
ALSO = ()
D, H, LAYERS, B, T = size(768, 16), size(12, 2), size(6, 2), size(8, 2), size(1024, 8)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(D), nn.Linear(D, 3 * D), nn.Linear(D, D)

    def forward(self, x, fixed):
        b, t, _ = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, H, -1).permute(2, 0, 3, 1, 4)
        if fixed:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * (D // H) ** -0.5  # fault
            hidden = torch.ones(t, t, device=x.device, dtype=torch.bool).triu(1)  # fault
            y = scores.masked_fill(hidden, float("-inf")).softmax(-1) @ v  # fault
        return x + self.out(y.transpose(1, 2).reshape(b, t, D))


def build(fixed):
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.SGD(layers.parameters(), lr=1e-3, fused=True)
    x = torch.randn(B, T, D, device=DEVICE, dtype=torch.bfloat16)

    def step(i):
        y = x
        for layer in layers:
            y = layer(y, fixed)
        y.float().square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


if __name__ == "__main__":
    run(build)
