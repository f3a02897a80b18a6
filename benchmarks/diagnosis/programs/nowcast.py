"""Forecasts rain for the next hour from an hour of radar pictures, with a transformer over columns of patches."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "large-upload"
ALSO = ("unfused-optimizer",)
SAMPLES, PICTURES, SIDE, PATCH = size(32, 2), size(12, 2), size(256, 16), size(32, 4)
WIDTH, HEADS, LAYERS = size(1280, 32), size(20, 2), size(8, 2)
BATCHES = 2


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Conv2d(PICTURES, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(torch.randn(1, (SIDE // PATCH) ** 2, WIDTH) * 0.02)
        self.layers = nn.Sequential(*(Layer() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.rain = nn.Linear(WIDTH, (PATCH // 4) ** 2)

    def forward(self, pictures):
        x = self.embed(pictures).flatten(2).transpose(1, 2) + self.places
        return self.rain(self.norm(self.layers(x)))


class Radar:
    """Reflectivities as the radar stores them, a byte each, in pinned memory."""

    def __init__(self, scale_on_host):
        shape = (BATCHES, SAMPLES, PICTURES, SIDE, SIDE)
        self.stored = torch.randint(256, shape, dtype=torch.uint8)
        if DEVICE == "cuda":
            self.stored = self.stored.pin_memory()
        self.scale_on_host = scale_on_host

    def batch(self, number):
        stored = self.stored[number % BATCHES]
        if self.scale_on_host:
            decibels = stored.float() * 0.5 - 32  # fault
            return (decibels / 40).to(DEVICE)  # fault
        return stored.to(DEVICE, non_blocking=True).bfloat16() / 80 - 0.8


def build(fixed):
    torch.manual_seed(0)
    model = Forecaster().to(DEVICE)
    if fixed is True:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)  # also
    radar = Radar(scale_on_host=not fixed)
    later = torch.rand(SAMPLES, (SIDE // PATCH) ** 2, (PATCH // 4) ** 2, device=DEVICE)

    def step(i):
        with torch.autocast(DEVICE, torch.bfloat16):
            rain = model(radar.batch(i))
        loss = F.mse_loss(rain.float(), later)
        loss.backward()
        optimizer.step()  # also
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
