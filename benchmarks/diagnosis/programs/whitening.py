"""Whitening of groups of features: a decomposition for each group."""

import torch
from _run import DEVICE, run, size

CAUSE = "repeated-work"
ALSO = ()
GROUPS, N, D = size(64, 2), size(1024, 16), size(32, 4)


def build(fixed):
    features = torch.randn(GROUPS, N, D, device=DEVICE)

    def white(x):
        centred = x - x.mean(-2, keepdim=True)
        cov = centred.mT @ centred / N
        factor = torch.linalg.cholesky(cov + 1e-3 * torch.eye(D, device=DEVICE))
        return torch.linalg.solve_triangular(factor, centred.mT, upper=False).mT

    def step(i):
        if fixed:
            return white(features)
        return torch.stack([white(group) for group in features])  # fault

    return step


if __name__ == "__main__":
    run(build)
