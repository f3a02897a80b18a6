"""Temperatures of a battery pack's cells while cars drive: implicit steps of a thermal network, many drives at once."""

import torch
from _run import DEVICE, run, size

CAUSE = "decompositions"
ALSO = ()
CELLS = size(3072, 24)
DRIVES = size(256, 3)
SUBSTEPS = 4
SECONDS = 0.5


def conductances(generator):
    """Heat that flows between cells: by neighbourhood in the pack, and by the coolant that all share."""
    places = torch.rand(CELLS, 2, generator=generator, device=DEVICE)
    flows = 4 * torch.exp(-torch.cdist(places, places) * 40) + 0.5 / CELLS
    flows.fill_diagonal_(0)
    return torch.diag(flows.sum(1) + 0.2) - flows


class Pack:
    def __init__(self, fixed):
        generator = torch.Generator(DEVICE).manual_seed(4)
        self.capacity = 40 + 5 * torch.rand(CELLS, 1, generator=generator, device=DEVICE)
        self.network = conductances(generator)
        self.resistance = 0.02 + 0.004 * torch.rand(CELLS, 1, generator=generator, device=DEVICE)
        self.temperature = torch.full((CELLS, DRIVES), 25.0, device=DEVICE)
        self.system = torch.diag(self.capacity[:, 0] / SECONDS) + self.network
        self.factors = torch.linalg.lu_factor(self.system) if fixed else None

    def heat(self, current):
        warmth = 1 - 0.006 * (self.temperature - 25).clamp(-20, 40)
        return current.square() * self.resistance * warmth

    def advance(self, current, ambient=25.0):
        right = self.capacity / SECONDS * self.temperature + self.heat(current) + 0.2 * ambient
        if self.factors:
            self.temperature = torch.linalg.lu_solve(*self.factors, right)
        else:
            self.temperature = torch.linalg.solve(self.system, right)  # fault
        return self.temperature


def build(fixed):
    torch.manual_seed(1)
    pack = Pack(fixed)
    currents = 30 * torch.randn(32, SUBSTEPS, DRIVES, device=DEVICE)
    hottest = torch.zeros(DRIVES, device=DEVICE)

    @torch.inference_mode()
    def step(i):
        for current in currents[i % 32]:
            temperature = pack.advance(current)
            torch.maximum(hottest, temperature.amax(0), out=hottest)
        return temperature.mean(0), hottest.clone()

    return step


if __name__ == "__main__":
    run(build)
