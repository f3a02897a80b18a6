"""Measures mirrors by phase-shifting interferometry: phase from shifted shots, unwrapped and freed of tilt."""

import os

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "cpu-operators"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
SIDE, SHOTS, MIRRORS = (256, 4, 2) if TINY else (2048, 12, 2)
PASSBAND, TERMS, COARSE = 0.35, 6, 4


def shots_of(mirror, side):
    """What the camera sees of a mirror while its reference moves."""
    x, y = cp.meshgrid(cp.linspace(-1, 1, side, dtype=cp.float32), cp.linspace(-1, 1, side, dtype=cp.float32))
    surface = 9 * (x * x + y * y) + 3 * x + cp.float32(0.7 * mirror) * y + cp.sin(5 * x * y)
    phases = cp.arange(SHOTS, dtype=cp.float32) * cp.float32(2 * np.pi / SHOTS)
    return 128 + 90 * cp.cos(surface[None] + phases[:, None, None]), phases


class Reducer:
    def __init__(self, side, phases, fixed):
        self.side, self.fixed = side, fixed
        self.sines, self.cosines = cp.sin(phases)[:, None, None], cp.cos(phases)[:, None, None]
        waves = cp.fft.fftfreq(side).astype(cp.float32)
        self.filter = cp.exp(-((waves[:, None] ** 2 + waves[None, :] ** 2) / cp.float32(2 * PASSBAND**2)))
        x, y = cp.meshgrid(cp.linspace(-1, 1, side, dtype=cp.float32), cp.linspace(-1, 1, side, dtype=cp.float32))
        basis = cp.stack([cp.ones_like(x), x, y, x * y, x * x - y * y, 2 * (x * x + y * y) - 1]).reshape(TERMS, -1)
        self.basis = basis / cp.sqrt((basis * basis).mean(1, keepdims=True))
        self.gram = cp.asarray(np.linalg.inv(cp.asnumpy(self.basis @ self.basis.T)))

    def field(self, shots):
        across = (shots * self.sines).sum(0)
        along = (shots * self.cosines).sum(0)
        field = (along - 1j * across).astype(cp.complex64)
        smooth = cp.fft.ifft2(cp.fft.fft2(field) * self.filter)
        return smooth, cp.abs(smooth)

    def along_axis(self, phase, axis):
        steps = cp.diff(phase, axis=axis)
        turns = cp.cumsum(cp.rint(steps / cp.float32(2 * np.pi)), axis=axis)
        whole = cp.concatenate([cp.zeros_like(cp.take(turns, cp.arange(1), axis=axis)), turns], axis=axis)
        return phase - cp.float32(2 * np.pi) * whole

    def unwrap(self, phase):
        if self.fixed:
            return self.along_axis(self.along_axis(phase, 0), 1)
        rows = np.unwrap(cp.asnumpy(phase), axis=0)  # fault
        return cp.asarray(np.unwrap(rows, axis=1).astype(np.float32))  # fault

    def phase(self, field):
        """The phase without jumps: unwrapped coarsely, and each pixel put within a half turn of that."""
        side = self.side // COARSE
        coarse = self.unwrap(cp.angle(field.reshape(side, COARSE, side, COARSE).mean((1, 3))))
        guide = cp.repeat(cp.repeat(coarse, COARSE, axis=0), COARSE, axis=1)
        wrapped = cp.angle(field)
        return wrapped + cp.float32(2 * np.pi) * cp.rint((guide - wrapped) / cp.float32(2 * np.pi))

    def without_tilt(self, phase, weight):
        flat = phase.ravel()
        parts = self.gram @ (self.basis @ flat)
        rest = (flat - parts @ self.basis).reshape(phase.shape)
        return rest * (weight > weight.mean() * 0.1), parts

    def spectrum(self, rest):
        power = cp.abs(cp.fft.rfft2(rest)) ** 2
        return cp.log1p(power).mean(0)


def build(fixed):
    shots, phases = zip(*(shots_of(mirror, SIDE) for mirror in range(MIRRORS)), strict=True)
    reducer = Reducer(SIDE, phases[0], fixed)
    mean = cp.zeros((SIDE, SIDE), cp.float32)

    def step(i):
        gain = cp.float32(1 + 0.01 * (i % 7))
        field, weight = reducer.field(shots[i % MIRRORS] * gain)
        rest, parts = reducer.without_tilt(reducer.phase(field), weight)
        mean[...] = 0.9 * mean + 0.1 * rest
        return reducer.spectrum(mean), parts, cp.sqrt((rest * rest).mean())

    return step


if __name__ == "__main__":
    run(build)
