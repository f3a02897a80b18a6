"""Searches ultrasonic scans of weld seams for cracks: filtered envelopes in decibels, scan after scan (CuPy)."""

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "cpu-operators"
ALSO = ()

SCANS, LINES, SAMPLES = 4, 2048, 2048
LOW, HIGH, FLOOR = 0.06, 0.31, 1e-4


def band():
    """The transfer function of the probe's band, which also makes the signal analytic."""
    frequencies = cp.fft.fftfreq(SAMPLES).astype(cp.float32)
    rise = 1 / (1 + cp.exp(-(frequencies - LOW) * 200))
    fall = 1 / (1 + cp.exp((frequencies - HIGH) * 200))
    return (2 * rise * fall * (frequencies > 0)).astype(cp.complex64)


class Inspector:
    def __init__(self, fixed):
        self.fixed = fixed
        self.band = band()
        self.expected = cp.zeros(LINES, cp.float32)

    def decibels(self, envelope):
        if self.fixed:
            return 20 * cp.log10(cp.maximum(envelope, cp.float32(FLOOR)))
        envelope = cp.asnumpy(envelope)  # fault
        level = 20 * np.log10(np.maximum(envelope, np.float32(FLOOR)))  # fault
        return cp.asarray(level)  # fault

    def inspect(self, scan):
        spectrum = cp.fft.fft(scan, axis=1)
        envelope = cp.abs(cp.fft.ifft(spectrum * self.band, axis=1))
        level = self.decibels(envelope)
        middle = level.mean(axis=1)
        self.expected = cp.float32(0.95) * self.expected + cp.float32(0.05) * middle
        above = level - self.expected[:, None]
        return (above > 14).sum(axis=1), above.argmax(axis=1)


def build(fixed):
    inspector = Inspector(fixed)
    random = cp.random.RandomState(0)
    scans = random.standard_normal((SCANS, LINES, SAMPLES), dtype=cp.float32)
    echo = cp.exp(-(((cp.arange(SAMPLES, dtype=cp.float32) - 900) / 20) ** 2))
    scans[:, 700:740] += 6 * echo * cp.cos(cp.float32(0.9) * cp.arange(SAMPLES, dtype=cp.float32))

    def step(i):
        return inspector.inspect(scans[i % SCANS])

    return step


if __name__ == "__main__":
    run(build)
