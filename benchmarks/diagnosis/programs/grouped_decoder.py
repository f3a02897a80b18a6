"""Decodes with grouped-query attention whose keys and values are repeated for every query head before each product."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CAUSE = "layout-copies"
ALSO = ()
BATCH, LENGTH, LAYERS = size(16, 2), size(2048, 16), size(4, 1)
WIDTH, HEADS, GROUPS = size(2048, 32), size(32, 4), size(8, 2)


def repeat_kv(x, count):
    batch, groups, length, width = x.shape
    x = x[:, :, None].expand(batch, groups, count, length, width)
    return x.reshape(batch, groups * count, length, width)  # fault


class Attention(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.query, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        cache = torch.randn(2, BATCH, GROUPS, LENGTH, WIDTH // HEADS)
        self.register_buffer("cache", cache)

    def forward(self, x):
        q = self.query(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        keys, values = self.cache
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            if self.fixed:
                y = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
            else:
                keys = repeat_kv(keys, HEADS // GROUPS)  # fault
                values = repeat_kv(values, HEADS // GROUPS)  # fault
                y = F.scaled_dot_product_attention(q, keys, values)
        return x + self.out(y.transpose(1, 2).flatten(2))


def build(fixed):
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = nn.Sequential(*(Attention(fixed) for _ in range(LAYERS))).to(torch.bfloat16)
        x = torch.randn(BATCH, 1, WIDTH, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        return model(x)

    return step


if __name__ == "__main__":
    run(build, steps=60)
