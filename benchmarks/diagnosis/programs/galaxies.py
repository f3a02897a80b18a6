"""Weighs clusters of galaxies by a graph network, each galaxy joined to its nearest neighbours in every layer."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "full-sort"
ALSO = ()
CLUSTERS, GALAXIES, NEIGHBOURS = size(16, 2), size(2048, 24), size(24, 4)
PROPERTIES, WIDTHS = 7, (size(64, 8), size(64, 8), size(128, 16))


def nearest_sorted(x):
    squares = x.square().sum(-1)
    distances = torch.baddbmm(squares[:, None, :], x, x.mT, alpha=-2)  # less each galaxy's own square
    return distances.argsort(dim=-1)[:, :, :NEIGHBOURS]  # fault


def nearest(x):
    squares = x.square().sum(-1)
    distances = torch.baddbmm(squares[:, None, :], x, x.mT, alpha=-2)
    return distances.topk(NEIGHBOURS, largest=False, sorted=False).indices


class EdgeLayer(nn.Module):
    """The largest message of the neighbours; a message is linear in both ends, so each end is mapped once."""

    def __init__(self, inputs, outputs, neighbours_of):
        super().__init__()
        self.own, self.other = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)
        self.norm = nn.LayerNorm(outputs)
        self.neighbours_of = neighbours_of

    def forward(self, x):
        first = torch.arange(len(x), device=x.device)[:, None, None] * x.shape[1]
        rows = self.neighbours_of(x) + first
        messages = F.embedding(rows, self.other(x).flatten(0, 1))
        return F.relu(self.norm(self.own(x) + messages.amax(2)))


def build(fixed):
    torch.manual_seed(0)
    ends = (PROPERTIES, *WIDTHS)
    layers = [EdgeLayer(a, b, nearest if fixed else nearest_sorted) for a, b in pairwise(ends)]
    network = nn.Sequential(*layers).to(DEVICE).eval()
    mass = nn.Linear(WIDTHS[-1], 2).to(DEVICE)
    catalogue = torch.randn(CLUSTERS, GALAXIES, PROPERTIES, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        return mass(network(catalogue).mean(1))

    return step


if __name__ == "__main__":
    run(build)
