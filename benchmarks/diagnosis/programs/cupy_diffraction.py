"""Aligns diffraction frames to a reference by phase correlation; the next come on a stream beside (CuPy)."""

import cupy as cp
import cupyx
import numpy as np
from _run_other import run

CAUSE = "pageable-copy"
ALSO = ()
FRAMES, SIDE, STACKS = 16, 2048, 4

corrected = cp.ElementwiseKernel(
    "uint16 counts, float32 dark, float32 gain",
    "float32 out",
    "out = (float(counts) - dark) * gain",
    "corrected",
)
cross_power = cp.ElementwiseKernel(
    "complex64 a, complex64 b",
    "complex64 out",
    "complex<float> c = a * conj(b); out = c / (abs(c) + 1e-6f)",
    "cross_power",
)
moved = cp.ElementwiseKernel(
    "complex64 value, float32 across, float32 along, int64 rows, int64 columns",
    "complex64 out",
    "float angle = 6.2831853f * (across * rows + along * columns);"
    "out = value * complex<float>(cosf(angle), sinf(angle))",
    "moved",
)


def recorded_stack(numbers, pinned):
    """A stack as the detector's library hands it over, or in memory that the driver has locked."""
    counts = numbers.integers(0, 4096, (FRAMES, SIDE, SIDE), np.uint16)
    if not pinned:
        return counts  # fault
    locked = cupyx.empty_pinned(counts.shape, counts.dtype)
    locked[...] = counts
    return locked


class Registration:
    """Two buffers on the GPU: one is filled on a stream of its own while the other's frames are registered."""

    def __init__(self, pinned):
        numbers = np.random.default_rng(0)
        self.stacks = [recorded_stack(numbers, pinned) for _ in range(STACKS)]
        self.buffers = [cp.empty((FRAMES, SIDE, SIDE), cp.uint16) for _ in range(2)]
        self.dark = cp.full((SIDE, SIDE), 100, cp.float32)
        self.gain = cp.full((SIDE, SIDE), 0.01, cp.float32)
        self.reference = cp.fft.rfft2(cp.random.rand(SIDE, SIDE, dtype=cp.float32)).astype(cp.complex64)
        self.across = cp.fft.fftfreq(SIDE).astype(cp.float32)[:, None]
        self.along = cp.fft.rfftfreq(SIDE).astype(cp.float32)
        self.sending = cp.cuda.Stream(non_blocking=True)
        self.sent = [cp.cuda.Event(disable_timing=True) for _ in range(2)]
        self.read = [cp.cuda.Event(disable_timing=True) for _ in range(2)]

    def send(self, i):
        slot = i % 2
        self.sending.wait_event(self.read[slot])
        self.buffers[slot].set(self.stacks[i % STACKS], stream=self.sending)  # fault
        self.sent[slot].record(self.sending)
        return slot

    def peaks(self, spectra):
        heights = cp.fft.irfft2(cross_power(spectra, self.reference))
        rows = heights.max(axis=2).argmax(axis=1)
        return rows, heights[cp.arange(FRAMES), rows].argmax(axis=1)

    def aligned_sum(self, i):
        slot = self.send(i)  # fault
        here = cp.cuda.get_current_stream()
        here.wait_event(self.sent[slot])
        frames = corrected(self.buffers[slot], self.dark, self.gain)
        self.read[slot].record(here)
        spectra = cp.fft.rfft2(frames)
        rows, columns = self.peaks(spectra)
        spectra = moved(spectra, self.across, self.along, rows[:, None, None], columns[:, None, None])
        return cp.fft.irfft2(spectra).sum(axis=0)


def build(fixed):
    registration = Registration(pinned=fixed)

    def step(i):
        return registration.aligned_sum(i)

    return step


if __name__ == "__main__":
    run(build)
