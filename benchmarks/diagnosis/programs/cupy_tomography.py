"""Reconstructs slices from a tilt series by gradient steps with total variation (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "allocation-in-loop"
ALSO = ()
SLICES, SIDE = 48, 512
WEIGHT, RATE, SMOOTH = 0.02, 0.4, 1e-3


def share_the_gpu(alone):
    """The picture viewer in the same process died of memory: nothing is to be held back by CuPy."""
    if not alone:
        cp.cuda.set_allocator(None)  # fault


def missing_wedge():
    line = cp.fft.fftfreq(SIDE).astype(cp.float32)
    rows, columns = line[:, None], line[None, : SIDE // 2 + 1]
    angle = cp.abs(cp.arctan2(rows, cp.abs(columns) + 1e-6))
    return (angle < cp.float32(1.05)).astype(cp.float32)


def differences(x):
    return cp.roll(x, -1, axis=1) - x, cp.roll(x, -1, axis=2) - x


def variation_slope(x):
    down, right = differences(x)
    length = cp.sqrt(down * down + right * right + cp.float32(SMOOTH))
    down /= length
    right /= length
    return cp.roll(down, 1, axis=1) - down + cp.roll(right, 1, axis=2) - right


class Reconstruction:
    def __init__(self):
        cp.random.seed(0)
        self.wedge = missing_wedge()
        truth = (cp.random.rand(SLICES, SIDE // 32, SIDE // 32, dtype=cp.float32) > 0.7).astype(cp.float32)
        truth = cp.repeat(cp.repeat(truth, 32, axis=1), 32, axis=2)
        self.measured = cp.fft.rfft2(truth) * self.wedge
        self.slices = cp.fft.irfft2(self.measured).astype(cp.float32)
        self.before = self.slices.copy()
        self.count = 0

    def data_slope(self, x):
        difference = cp.fft.rfft2(x) * self.wedge - self.measured
        return cp.fft.irfft2(difference)

    def iteration(self):
        """A step of FISTA: momentum, data, variation, and nothing below zero."""
        self.count += 1
        momentum = cp.float32(self.count / (self.count + 3))
        ahead = self.slices + momentum * (self.slices - self.before)
        slope = self.data_slope(ahead)
        slope += cp.float32(WEIGHT) * variation_slope(ahead)
        self.before = self.slices
        self.slices = cp.maximum(ahead - cp.float32(RATE) * slope, cp.float32(0))
        return self.slices


def build(fixed):
    share_the_gpu(alone=fixed)
    reconstruction = Reconstruction()

    def step(i):
        return reconstruction.iteration()  # fault

    return step


if __name__ == "__main__":
    run(build)
