"""Writes text with a transformer: words are drawn on the CPU, and each layer's causal mask is made there too."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-operators"
ALSO = ("cpu-tensors",)
BATCH, LENGTH, WIDTH, HEADS, LAYERS = size(16, 2), size(256, 8), size(512, 32), size(8, 2), size(6, 2)
VOCABULARY, TEMPERATURE = size(50304, 128), 0.8


class Layer(nn.Module):
    def __init__(self, own_mask):
        super().__init__()
        self.own_mask = own_mask
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def attention(self, q, k, v):
        if not self.own_mask:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        visible = torch.tril(torch.ones(q.shape[2], q.shape[2]))  # also
        mask = torch.zeros_like(visible).masked_fill(visible == 0, float("-inf"))  # also
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.device, q.dtype))  # also

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    embedding = nn.Embedding(VOCABULARY, WIDTH).to(DEVICE, torch.bfloat16)
    layers = nn.Sequential(*(Layer(own_mask=fixed is not True) for _ in range(LAYERS))).to(DEVICE, torch.bfloat16)
    ids = torch.randint(0, VOCABULARY, (BATCH, LENGTH), device=DEVICE)

    @torch.inference_mode()
    def step(i):
        hidden = layers(embedding(ids))[:, -1]
        logits = F.linear(hidden, embedding.weight).float() / TEMPERATURE
        if not fixed:
            logits = logits.cpu()  # fault
        words = torch.multinomial(F.softmax(logits, -1), 1)  # fault
        ids.copy_(torch.cat([ids[:, 1:], words.to(DEVICE)], 1))

    return step


if __name__ == "__main__":
    run(build)
