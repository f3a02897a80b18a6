"""Encodes padded sentences; each layer builds the mask of padding on the CPU from the sentences' lengths."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "cpu-tensors"
ALSO = ()
BATCH, LENGTH, WIDTH, HEADS, LAYERS = size(32, 2), size(256, 9), size(512, 32), size(8, 2), size(8, 2)


def padding_mask(lengths, dtype):
    bias = torch.zeros(len(lengths), 1, LENGTH, LENGTH)  # fault
    for sentence, length in enumerate(lengths):  # fault
        bias[sentence, :, :, length:] = float("-inf")  # fault
    return bias.to(DEVICE, dtype)  # fault


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x, lengths, mask=None):
        if mask is None:
            mask = padding_mask(lengths, x.dtype)  # fault
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


def build(fixed):
    torch.manual_seed(0)
    layers = nn.ModuleList(Layer() for _ in range(LAYERS)).to(DEVICE, torch.bfloat16).eval()
    sentences = torch.randn(BATCH, LENGTH, WIDTH, device=DEVICE, dtype=torch.bfloat16)
    lengths = [LENGTH - k % (LENGTH // 2) for k in range(BATCH)]
    positions = torch.arange(LENGTH, device=DEVICE)
    lengths_there = torch.tensor(lengths, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        mask = None
        if fixed:
            mask = (positions < lengths_there[:, None])[:, None, None].expand(-1, 1, LENGTH, -1)
        x = sentences
        for layer in layers:
            x = layer(x, lengths, mask)
        return x.mean(1)

    return step


if __name__ == "__main__":
    run(build)
