"""Learns features of butterflies from pairs of views, each of which predicts the other's share of prototypes (SwAV)."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

from _models import Block

CAUSE = "cpu-operators"
ALSO = ()
PAIRS, PATCHES, PATCH = size(128, 3), size(64, 4), size(432, 12)
WIDTH, HEADS, LAYERS = size(512, 16), size(8, 2), size(6, 1)
FEATURES, PROTOTYPES, QUEUE = size(128, 8), size(3000, 10), 4
SHARPNESS, TEMPERATURE, ROUNDS = 0.05, 0.1, 3


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(PATCH, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
        self.blocks = nn.Sequential(*(Block(WIDTH, HEADS, causal=False) for _ in range(LAYERS)))
        self.project = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, FEATURES))
        self.prototypes = nn.Linear(FEATURES, PROTOTYPES, bias=False)

    def forward(self, patches):
        x = self.blocks(self.enter(patches) + self.places)
        features = F.normalize(self.project(x.mean(1)), dim=1)
        return features, self.prototypes(features).float()


@torch.no_grad()
def shares(scores):
    """Sinkhorn's iteration: every prototype gets as much of the batch as the others."""
    weights = torch.exp(scores / SHARPNESS)
    weights /= weights.sum()
    for _ in range(ROUNDS):
        weights /= weights.sum(0, keepdim=True) * PROTOTYPES
        weights /= weights.sum(1, keepdim=True) * len(weights)
    return weights * len(weights)


@torch.no_grad()
def shares_in_memory_of_host(scores):
    """As above; once the GPU's memory was too small for the scores of a queue."""
    weights = torch.exp(scores.cpu() / SHARPNESS)  # fault
    weights /= weights.sum()  # fault
    for _ in range(ROUNDS):
        weights /= weights.sum(0, keepdim=True) * PROTOTYPES  # fault
        weights /= weights.sum(1, keepdim=True) * len(weights)  # fault
    return (weights * len(weights)).to(scores.device)  # fault


class Queue:
    """The last batches' features of one of the views, which make the batch larger for the shares."""

    def __init__(self, shares_of):
        self.features = F.normalize(torch.randn(QUEUE, PAIRS, FEATURES, device=DEVICE, dtype=torch.bfloat16), dim=2)
        self.shares_of = shares_of

    @torch.no_grad()
    def targets(self, i, model, features, scores):
        before = model.prototypes(self.features.flatten(0, 1)).float()
        self.features[i % QUEUE] = features
        return self.shares_of(torch.cat([before, scores]))[-PAIRS:]  # fault


def build(fixed):
    torch.manual_seed(0)
    model = Network().to(DEVICE, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    views = torch.randn(2 * PAIRS, PATCHES, PATCH, device=DEVICE, dtype=torch.bfloat16)
    queues = [Queue(shares if fixed else shares_in_memory_of_host) for _ in range(2)]

    def step(i):
        features, scores = model(views)
        (features_1, features_2), (scores_1, scores_2) = features.chunk(2), scores.chunk(2)
        loss = F.cross_entropy(scores_1 / TEMPERATURE, queues[1].targets(i, model, features_2, scores_2))
        loss = loss + F.cross_entropy(scores_2 / TEMPERATURE, queues[0].targets(i, model, features_1, scores_1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


if __name__ == "__main__":
    run(build)
