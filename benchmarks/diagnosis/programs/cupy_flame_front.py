"""Burns a flame on a plane: diffusion in spectral space, and the chemistry of four species by Heun's steps (CuPy)."""

import os

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "fusion"
ALSO = ()


def size(usual, tiny):
    return tiny if os.environ.get("DIAGNOSIS_TINY") == "1" else usual


SIDE, CHEMISTRY_STEPS, DT = size(3072, 32), 3, 2e-3
ACTIVATION, HEAT, INHIBITION = 8.0, 1.6, 0.3
SPECIES = ("fuel", "oxygen", "radical", "heat")


def rates(fuel, oxygen, radical, heat):
    """What a second changes of each of the four."""
    hot = cp.exp(ACTIVATION * (heat - 1.0) / (0.2 + 0.8 * heat))
    start = 0.4 * fuel * oxygen * hot
    branch = 6.0 * radical * oxygen * hot / (1.0 + INHIBITION * radical)
    end = 2.5 * radical * radical + 0.1 * radical * (1.0 - heat)
    burn = 3.0 * fuel * radical * hot
    return (
        -start - burn,
        -start - 0.5 * branch,
        2.0 * start + branch - end - 0.2 * burn,
        HEAT * burn + 0.6 * end - 0.05 * (heat - 0.2),
    )


def heun(fuel, oxygen, radical, heat):
    """One step of the chemistry, whose species stay above nothing."""
    state = (fuel, oxygen, radical, heat)
    a = rates(fuel, oxygen, radical, heat)
    b = rates(fuel + DT * a[0], oxygen + DT * a[1], radical + DT * a[2], heat + DT * a[3])
    return (
        cp.maximum(state[0] + 0.5 * DT * (a[0] + b[0]), 0.0),
        cp.maximum(state[1] + 0.5 * DT * (a[1] + b[1]), 0.0),
        cp.maximum(state[2] + 0.5 * DT * (a[2] + b[2]), 0.0),
        cp.maximum(state[3] + 0.5 * DT * (a[3] + b[3]), 0.0),
    )


class Flame:
    def __init__(self, chemistry):
        self.chemistry = chemistry
        y, x = cp.meshgrid(cp.linspace(-1, 1, SIDE), cp.linspace(-1, 1, SIDE), indexing="ij")
        kernel = cp.exp(-200 * ((x + 0.3) ** 2 + y**2)) + cp.exp(-200 * ((x - 0.4) ** 2 + (y - 0.2) ** 2))
        ones = cp.ones((SIDE, SIDE), cp.float32)
        self.state = [
            ones * (1.0 + 0.1 * cp.sin(9 * x)).astype(cp.float32),
            ones * 0.8,
            (0.05 * kernel).astype(cp.float32),
            (0.2 + 0.9 * kernel).astype(cp.float32),
        ]
        waves = cp.fft.fftfreq(SIDE, 2 / SIDE) * 2 * np.pi
        square = waves[:, None] ** 2 + waves[None, : SIDE // 2 + 1] ** 2
        lewis = {"fuel": 1.0, "oxygen": 1.1, "radical": 0.4, "heat": 1.2}
        self.spread = [cp.exp(-2e-4 * lewis[name] * DT * square).astype(cp.float32) for name in SPECIES]

    def diffuse(self):
        for n, spread in enumerate(self.spread):
            field = cp.fft.irfft2(cp.fft.rfft2(self.state[n]) * spread, s=(SIDE, SIDE))
            self.state[n] = field.astype(cp.float32, copy=False)

    def step(self):
        self.diffuse()
        for _ in range(CHEMISTRY_STEPS):
            self.state = list(self.chemistry(*self.state))  # fault
        self.diffuse()
        return self.state[3].max(), self.state[0].mean()


def build(fixed):
    flame = Flame(cp.fuse(heun) if fixed else heun)  # fault

    def step(i):
        return flame.step()

    return step


if __name__ == "__main__":
    run(build)
