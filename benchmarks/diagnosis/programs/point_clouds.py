"""Aligns point clouds (the Kabsch covariance, chamfer distance and scale of each), one sample after the other."""

import torch
from _run import DEVICE, run, size

CAUSE = "repeated-work"
ALSO = ()
CLOUDS, POINTS = size(96, 3), size(512, 16)


def describe(source, target):
    """Covariance, scale and chamfer distance of one pair of clouds."""
    source = source - source.mean(0)  # fault
    target = target - target.mean(0)  # fault
    covariance = source.T @ target  # fault
    scale = source.norm() / target.norm()  # fault
    distances = torch.cdist(source * scale, target)  # fault
    chamfer = distances.amin(0).mean() + distances.amin(1).mean()  # fault
    return torch.cat([covariance.flatten(), scale[None], chamfer[None]])  # fault


def describe_all(sources, targets):
    """The same of all pairs at once."""
    sources = sources - sources.mean(1, keepdim=True)
    targets = targets - targets.mean(1, keepdim=True)
    covariances = sources.transpose(1, 2) @ targets
    scales = sources.flatten(1).norm(dim=1) / targets.flatten(1).norm(dim=1)
    distances = torch.cdist(sources * scales[:, None, None], targets)
    chamfers = distances.amin(1).mean(1) + distances.amin(2).mean(1)
    return torch.cat([covariances.flatten(1), scales[:, None], chamfers[:, None]], 1)


def build(fixed):
    torch.manual_seed(0)
    sources = torch.randn(CLOUDS, POINTS, 3, device=DEVICE)
    targets = torch.randn(CLOUDS, POINTS, 3, device=DEVICE)

    def step(i):
        if fixed:
            return describe_all(sources, targets)
        descriptions = []
        for source, target in zip(sources, targets, strict=True):  # fault
            descriptions.append(describe(source, target))  # fault
        return torch.stack(descriptions)

    return step


if __name__ == "__main__":
    run(build)
