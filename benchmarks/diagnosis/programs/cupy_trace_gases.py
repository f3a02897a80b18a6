"""Reconstructs plumes of a trace gas from sight lines across them (SIRT), for many moments at once."""

import os

import cupy as cp
from _run_other import run
from cupyx.scipy import sparse

CAUSE = "repeated-coalescing"
ALSO = []


TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
SIDE = 16 if TINY else 256  # cells along an edge of the map
ANGLES = 8 if TINY else 30
OFFSETS = 16 if TINY else 256
SAMPLES = 24 if TINY else 384  # along a sight line
MOMENTS = 3 if TINY else 256


def sight_lines():
    """The length of each line in each cell; samples side by side may fall into the same one."""
    angle = cp.linspace(0, cp.pi, ANGLES, endpoint=False)[:, None, None]
    offset = cp.linspace(-0.5, 0.5, OFFSETS)[:, None]
    along = cp.linspace(-0.7, 0.7, SAMPLES)
    x = offset * cp.cos(angle) - along * cp.sin(angle)
    y = offset * cp.sin(angle) + along * cp.cos(angle)
    line = cp.broadcast_to(cp.arange(ANGLES * OFFSETS).reshape(ANGLES, OFFSETS, 1), x.shape)
    inside = (abs(x) < 0.499) & (abs(y) < 0.499)
    cell = ((y + 0.5) * SIDE).astype(cp.int32) * SIDE + ((x + 0.5) * SIDE).astype(cp.int32)
    length = cp.full(int(inside.sum()), 1.4 / SAMPLES, dtype=cp.float32)
    index = line[inside].astype(cp.int32), cell[inside]
    return sparse.coo_matrix((length, index), shape=(ANGLES * OFFSETS, SIDE * SIDE))  # fault


class Sirt:
    def __init__(self, lines, compressed):
        rows = cp.asarray(lines.sum(1)).reshape(-1, 1)
        columns = cp.asarray(lines.sum(0)).reshape(-1, 1)
        self.per_line = 1 / cp.maximum(rows, 1e-6)
        self.per_cell = 1 / cp.maximum(columns, 1e-6)
        self.lines = lines.tocsr() if compressed else lines
        self.back = lines.T.tocsr() if compressed else lines.T  # fault

    def improve(self, gas, measured):
        missing = self.per_line * (measured - self.lines @ gas)  # fault
        return cp.maximum(gas + self.per_cell * (self.back @ missing), 0)  # fault


def build(fixed):
    lines = sight_lines()
    solver = Sirt(lines, compressed=bool(fixed))
    y, x = cp.mgrid[:SIDE, :SIDE].astype(cp.float32) / SIDE
    moments = cp.linspace(0.2, 0.8, MOMENTS, dtype=cp.float32)
    plumes = cp.exp(-40 * ((x[..., None] - moments) ** 2 + (y[..., None] - 0.5) ** 2)).reshape(SIDE * SIDE, MOMENTS)
    measured = lines.tocsr() @ plumes
    gas = cp.zeros_like(plumes)

    def step(i):
        nonlocal gas
        gas = solver.improve(gas, measured)
        return cp.linalg.norm(gas - plumes)

    return step


if __name__ == "__main__":
    run(build)
