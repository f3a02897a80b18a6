"""Smooths heartbeat recordings; every window's mean and spread are computed in a loop over time."""

import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "repeated-work"
ALSO = ()
B, T, W = size(256, 4), size(512, 32), size(32, 4)


def smoothed_by_time(x):
    rows = []
    for t in range(T - W + 1):
        window = x[:, t : t + W]  # fault
        rows.append((x[:, t + W // 2] - window.mean(1)) / (window.std(1) + 1e-5))  # fault
    return torch.stack(rows, 1)


def smoothed(x):
    windows = x.unfold(1, W, 1)
    return (x[:, W // 2 : W // 2 + windows.shape[1]] - windows.mean(2)) / (windows.std(2) + 1e-5)


def build(fixed):
    torch.manual_seed(0)
    x = torch.randn(B, T, device=DEVICE)
    net = nn.Sequential(nn.Linear(T - W + 1, 256), nn.ReLU(), nn.Linear(256, 4)).to(DEVICE).eval()

    @torch.inference_mode()
    def step(i):
        return net((smoothed if fixed else smoothed_by_time)(x)).argmax(1)

    return step


if __name__ == "__main__":
    run(build)
