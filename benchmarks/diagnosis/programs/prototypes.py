"""Computes the prototype of each class of a few-shot episode, selecting the class's samples with a boolean mask."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "boolean-masks"
ALSO = ()
SAMPLES, CLASSES, PIXELS, FEATURES = size(2048, 16), size(64, 4), size(784, 16), size(512, 16)


def prototypes_by_mask(features, labels):
    prototypes = []
    for label in range(CLASSES):  # fault
        members = features[labels == label]  # fault
        prototypes.append(members.mean(0))  # fault
    return torch.stack(prototypes)


def prototypes_by_product(features, labels):
    membership = (labels == torch.arange(CLASSES, device=DEVICE).unsqueeze(1)).float()
    return membership @ features / membership.sum(1, keepdim=True)


def build(fixed):
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(PIXELS, 1024), nn.ReLU(), nn.Linear(1024, FEATURES)).to(DEVICE).eval()
    images = torch.randn(SAMPLES, PIXELS, device=DEVICE)
    labels = torch.arange(SAMPLES, device=DEVICE) % CLASSES
    prototypes = prototypes_by_product if fixed else prototypes_by_mask

    @torch.no_grad()
    def step(i):
        features = F.normalize(encoder(images), dim=-1)
        return features @ prototypes(features, labels).T

    return step


if __name__ == "__main__":
    run(build, steps=20)
