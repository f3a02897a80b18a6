"""Trains a small encoder, with torch.profiler left on."""

import atexit

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "profiler-left-on"
ALSO = ()
D, LAYERS, B, T = size(384, 16), size(6, 1), size(16, 2), size(64, 4)


def build(fixed):
    layer = nn.TransformerEncoderLayer(D, 4 if D > 16 else 2, 4 * D, batch_first=True, dropout=0.0)
    model = nn.Sequential(nn.TransformerEncoder(layer, LAYERS), nn.Linear(D, D)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), fused=DEVICE == "cuda")
    profiler = torch.profiler.profile(record_shapes=True)
    if not fixed:
        profiler.start()  # fault
        atexit.register(profiler.stop)

    def step(i):
        x = torch.randn(B, T, D, device=DEVICE)
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if not fixed:
            profiler.step()

    return step


if __name__ == "__main__":
    run(build)
