"""Maps the pigments of a painting: compares the spectrum of each point of a scan with those of a library (CuPy)."""

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "float64"
ALSO = ()

POINTS, BANDS, PIGMENTS, STRIPS = 786_432, 224, 16, 4

reflectance = cp.ElementwiseKernel(
    "uint16 counts, T dark, T gain",
    "T share",
    "T raw = (static_cast<T>(counts) - dark) * gain; share = raw < T(0) ? T(0) : raw;",
    "reflectance",
)
length = cp.ReductionKernel("T x", "T y", "x * x", "a + b", "y = sqrt(a)", "0", "length")
angle = cp.ElementwiseKernel(
    "T product, T first, T second",
    "T radians",
    "T cosine = product / (first * second); radians = acos(cosine > T(1) ? T(1) : cosine);",
    "angle",
)


class Library:
    """The spectra of known pigments, and the calibration of the camera that they were taken with."""

    def __init__(self, kind, rng):
        self.waves = cp.linspace(400, 1000, BANDS, dtype=kind)  # fault
        middles = cp.asarray(np.sort(rng.uniform(420, 980, PIGMENTS))[:, None], dtype=kind)
        widths = cp.asarray(rng.uniform(30, 120, PIGMENTS)[:, None], dtype=kind)
        self.spectra = 0.05 + 0.9 / (1 + cp.exp(-(self.waves - middles) / widths))
        self.lengths = length(self.spectra, axis=1)
        self.dark = (90 + 0.02 * (self.waves - 400))[:, None]
        self.gain = 1 / (3800 * cp.exp(-(((self.waves - 650) / 300) ** 2)))[:, None]

    def nearest(self, counts):
        shares = reflectance(counts, self.dark, self.gain)  # fault
        angles = angle(self.spectra @ shares, length(shares, axis=0), self.lengths[:, None])  # fault
        return angles.argmin(axis=0), angles.min(axis=0)


def scanned(rng):
    """A strip of the painting, as the camera counts it: 12 bits band after band."""
    bright = cp.asarray(rng.integers(200, 2000, (1, POINTS), np.int32))
    tilt = cp.asarray(rng.integers(0, 8, (1, POINTS), np.int32)) * cp.arange(BANDS, dtype=cp.int32)[:, None]
    return cp.minimum(bright + tilt, 4095).astype(cp.uint16)


def build(fixed):
    rng = np.random.default_rng(0)
    library = Library(np.float32 if fixed else None, rng)  # fault
    strips = [scanned(rng) for _ in range(STRIPS)]
    painting = cp.zeros((STRIPS, POINTS), cp.uint8)

    def step(i):
        doubts = []
        for strip, counts in enumerate(strips):
            pigments, angles = library.nearest(counts)
            painting[strip] = pigments
            doubts.append(angles.mean())
        return cp.stack(doubts)

    return step


if __name__ == "__main__":
    run(build)
