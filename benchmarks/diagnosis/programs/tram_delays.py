"""Serves forecasts of delays along the lines of a tram network: a captured CUDA graph answers the requests."""

import random

import torch
from _run import DEVICE, run, size
from torch import nn
from torch.nn import functional as F

CAUSE = "padding"
ALSO = ()

STOPS, FEATURES = size(128, 8), 24
WIDTH, HEADS, LAYERS = size(1024, 32), size(16, 2), 8
LARGEST, REQUESTS = 64, 4


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        n = len(x)
        q, k, v = self.qkv(self.norm1(x)).view(n, STOPS, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(n, STOPS, WIDTH))
        return x + self.mlp(self.norm2(x))


class Captured:
    """The model for one batch size, as a graph with its own places for what goes in and comes out."""

    def __init__(self, model, trams):
        self.model = model
        self.trams = torch.zeros(trams, STOPS, FEATURES, device=DEVICE, dtype=torch.bfloat16)
        self.graph = None
        if DEVICE == "cuda":
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                model(self.trams)
            torch.cuda.current_stream().wait_stream(side)
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.delays = model(self.trams)

    def __call__(self, trams):
        self.trams[: len(trams)].copy_(trams, non_blocking=True)
        if self.graph is None:
            self.delays = self.model(self.trams)
        else:
            self.graph.replay()  # fault
        return self.delays[: len(trams)].clone()


class Forecaster:
    def __init__(self, model, sizes):
        self.captured = {trams: Captured(model, trams) for trams in sizes}

    def __call__(self, trams):
        fitting = min(n for n in self.captured if n >= len(trams))
        return self.captured[fitting](trams)


@torch.inference_mode()
def build(fixed):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, WIDTH), *(Layer() for _ in range(LAYERS)), nn.Linear(WIDTH, 1))
    model = model.to(DEVICE, torch.bfloat16).eval()
    forecast = Forecaster(model, sizes=(8, 16, 32, LARGEST) if fixed else (LARGEST,))  # fault
    recent = torch.randn(LARGEST, STOPS, FEATURES, dtype=torch.bfloat16)
    if DEVICE == "cuda":
        recent = recent.pin_memory()
    dispatcher = random.Random(0)

    @torch.inference_mode()
    def step(i):
        on_the_way = [dispatcher.choice((5, 7, 8, 11, 13, 16)) for _ in range(REQUESTS)]
        return torch.cat([forecast(recent[:n]) for n in on_the_way])

    return step


if __name__ == "__main__":
    run(build)
