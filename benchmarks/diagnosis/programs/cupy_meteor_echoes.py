"""Looks for meteors in records of several radars: matched filters for many kinds of echo, and the highest of each."""

import os

import cupy as cp
from _run_other import run
from cupyx.scipy import fft

CAUSE = ""
ALSO = []

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
RADARS, KINDS, SAMPLES, RECORDS = (2, 3, 256, 2) if TINY else (12, 128, 262_144, 4)
RATE = 2000.0

correlate = cp.RawKernel(
    r"""
    extern "C" __global__ void correlate_echoes(
        const float2 *__restrict__ records, const float2 *__restrict__ echoes, float2 *products, int bins) {
      int bin = blockIdx.x * blockDim.x + threadIdx.x, kind = blockIdx.y, radar = blockIdx.z;
      if (bin >= bins) return;
      float2 a = records[(size_t)radar * bins + bin], b = echoes[(size_t)kind * bins + bin];
      size_t row = (size_t)radar * gridDim.y + kind;
      products[row * bins + bin] = make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
    }
    """,
    "correlate_echoes",
)

highest = cp.ReductionKernel(
    "float32 match", "float32 peak", "fabsf(match)", "fmaxf(a, b)", "peak = a", "0", "highest_match"
)


class EchoBank:
    """Spectra of echoes that decay and drift in pitch, conjugate, and such that noise has variance 1 behind them."""

    def __init__(self):
        time = cp.arange(SAMPLES, dtype=cp.float32) / cp.float32(RATE)
        kinds = cp.arange(KINDS, dtype=cp.float32)
        decay = 0.05 * 1.03**kinds
        pitch = 40 + 5 * kinds
        phase = 2 * cp.pi * pitch[:, None] * time * (1 + 0.05 * time)
        echoes = (cp.exp(-time / decay[:, None]) * cp.cos(phase)).astype(cp.float32)
        echoes /= cp.sqrt(cp.square(echoes).sum(axis=1, keepdims=True))
        self.bins = SAMPLES // 2 + 1
        # transforms back are not divided by their length: this is
        self.spectra = cp.conj(fft.rfft(echoes)) / cp.float32(SAMPLES)
        self.products = cp.empty((RADARS, KINDS, self.bins), dtype=cp.complex64)
        self.peaks = cp.empty((RADARS, KINDS), dtype=cp.float32)

    def search(self, records):
        """The highest match of each radar's record with each kind of echo."""
        grid = (self.bins + 255) // 256, KINDS, RADARS
        correlate(grid, (256,), (fft.rfft(records), self.spectra, self.products, cp.int32(self.bins)))
        matches = fft.irfft(self.products, n=SAMPLES, norm="forward", overwrite_x=True)
        return highest(matches, self.peaks, axis=2)


def make_records():
    random = cp.random.RandomState(5)
    records = random.standard_normal((RECORDS, RADARS, SAMPLES), dtype=cp.float32)
    time = cp.arange(SAMPLES // 4, dtype=cp.float32) / cp.float32(RATE)
    for k in range(RECORDS):
        echo = 3 * cp.exp(-time / cp.float32(0.3)) * cp.cos(2 * cp.pi * (60 + 30 * k) * time)
        records[k, :, SAMPLES // 4 : SAMPLES // 2] += echo
    return records


def build(fixed):
    bank = EchoBank()
    records = make_records()
    usual = cp.full((RADARS, KINDS), 4.0, dtype=cp.float32)
    report = cp.zeros(KINDS, dtype=cp.float32)

    def step(i):
        peaks = bank.search(records[i % RECORDS])
        usual[...] = 0.95 * usual + 0.05 * peaks
        report[...] = (peaks / usual).min(axis=0)
        return report

    return step


if __name__ == "__main__":
    run(build)
