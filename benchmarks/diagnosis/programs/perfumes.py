"""Finds, for the spectra of new perfumes, the most similar ones of a collection, in the space of an encoder."""

import torch
import torch.nn.functional as F
from _run import DEVICE, run, size
from torch import nn

CAUSE = "fusion"
ALSO = ()

NEW, COLLECTION, CHANNELS, WIDTH, SPACE, NEAREST = size(1024, 6), size(8192, 40), 900, size(1024, 32), 32, 8


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(CHANNELS, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, SPACE)
        )

    def forward(self, spectra):
        return F.normalize(self.layers(spectra), dim=-1)


def squared_distances(a, b):
    """Between each row of a and each row of b."""
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)  # fault


def squared_distances_of_products(a, b):
    products = torch.addmm((b * b).sum(-1), a, b.T, alpha=-2)
    return products + (a * a).sum(-1, keepdim=True)


def build(fixed):
    torch.manual_seed(0)
    encoder = Encoder().to(DEVICE).eval()
    distances = squared_distances_of_products if fixed else squared_distances
    spectra = torch.rand(4, NEW, CHANNELS, device=DEVICE)
    with torch.inference_mode():
        collection = encoder(torch.rand(COLLECTION, CHANNELS, device=DEVICE))
    families = torch.randint(60, (COLLECTION,), device=DEVICE)

    def family(batch):
        places = encoder(batch)
        near = distances(places, collection).topk(NEAREST, largest=False)
        votes = torch.zeros(NEW, 60, device=DEVICE)
        votes.scatter_add_(1, families[near.indices], torch.exp(-near.values))
        return votes.argmax(1)

    @torch.inference_mode()
    def step(i):
        return torch.cat([family(batch) for batch in spectra.roll(i, 0)])

    return step


if __name__ == "__main__":
    run(build)
