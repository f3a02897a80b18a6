"""Predicts prices from a hundred features, each of which is copied to the GPU by itself."""

import numpy as np
import torch
from _run import DEVICE, run, size
from torch import nn

CAUSE = "small-copies"
ALSO = ("repeated-work", "cpu-tensors", "pageable-copy", "extra-copy")
B, FEATURES = size(2048, 8), size(120, 4)


def build(fixed):
    torch.manual_seed(0)
    table = {f"feature{k}": np.random.default_rng(k).standard_normal(B).astype(np.float32) for k in range(FEATURES)}
    net = nn.Sequential(nn.Linear(FEATURES, 512), nn.ReLU(), nn.Linear(512, 1)).to(DEVICE).eval()

    @torch.inference_mode()
    def step(i):
        if fixed:
            x = torch.from_numpy(np.stack(list(table.values()), 1)).to(DEVICE)
        else:
            x = torch.stack([torch.from_numpy(column).to(DEVICE) for column in table.values()], 1)  # fault
        return net(x).mean()

    return step


if __name__ == "__main__":
    run(build)
