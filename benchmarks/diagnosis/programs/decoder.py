"""Decodes token by token with a cache of keys and values that grows by concatenation."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

CAUSE = "growing-copies"
ALSO = ()
BATCH, HEADS, WIDTH, LAYERS = size(64, 2), size(8, 2), size(512, 16), size(6, 2)
PROMPT, LONGEST = size(2048, 8), size(3072, 64)


class Attention(nn.Module):
    def __init__(self, fixed):
        super().__init__()
        self.fixed = fixed
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def start(self, prompt):
        self.length = PROMPT
        self.keys, self.values = prompt.clone(), prompt.clone()
        if self.fixed:
            room = prompt.new_zeros(BATCH, HEADS, LONGEST, WIDTH // HEADS)
            room[:, :, :PROMPT] = prompt
            self.keys, self.values = room, room.clone()

    def forward(self, x):
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        if self.fixed:
            self.keys[:, :, self.length : self.length + 1] = k
            self.values[:, :, self.length : self.length + 1] = v
            self.length += 1
            keys, values = self.keys[:, :, : self.length], self.values[:, :, : self.length]
        else:
            self.keys = keys = torch.cat([self.keys, k], 2)  # fault
            self.values = values = torch.cat([self.values, v], 2)  # fault
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            y = F.scaled_dot_product_attention(q, keys, values)
        return x + self.out(y.transpose(1, 2).flatten(2))


def build(fixed):
    torch.manual_seed(0)
    layers = nn.ModuleList(Attention(fixed) for _ in range(LAYERS)).to(DEVICE, torch.bfloat16)
    prompt = torch.randn(BATCH, HEADS, PROMPT, WIDTH // HEADS, device=DEVICE, dtype=torch.bfloat16)
    x = torch.randn(BATCH, 1, WIDTH, device=DEVICE, dtype=torch.bfloat16)

    @torch.inference_mode()
    def step(i):
        if i % (LONGEST - PROMPT) == 0:  # the next answer
            for layer in layers:
                layer.start(prompt)
        y = x
        for layer in layers:
            y = layer(y)
        return y

    return step


if __name__ == "__main__":
    run(build, steps=40)
