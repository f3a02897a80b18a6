"""k-means over vectors: distances from each point to each centre."""

import torch
from _run import DEVICE, run, size

CAUSE = "fusion"
ALSO = ()
N, K, D = size(65536, 64), size(256, 4), size(128, 8)


def build(fixed):
    points = torch.randn(N, D, device=DEVICE)
    state = {"centres": points[:K].clone()}

    def nearest(centres):
        if fixed:
            return torch.cdist(points, centres).argmin(1)
        return ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1).argmin(1)  # fault

    def step(i):
        label = nearest(state["centres"])
        sums = torch.zeros_like(state["centres"]).index_add_(0, label, points)
        counts = torch.bincount(label, minlength=K).clamp(min=1)
        state["centres"] = sums / counts[:, None]

    return step


if __name__ == "__main__":
    run(build)
