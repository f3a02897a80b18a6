"""Finds thunder in the recordings of microphones for infrasound: correlates them with known claps (CuPy)."""

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "transform-length"
ALSO = ()

MICROPHONES, SAMPLES, CLAP, CLAPS = 192, 110_250, 22_050, 8


def next_smooth(length):
    """The next length that has no other factors than 2, 3, 5 and 7."""
    while True:
        rest = length
        for factor in (2, 3, 5, 7):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return length
        length += 1


strength = cp.ReductionKernel("T x", "T y", "abs(x)", "max(a, b)", "y = a", "0", "strength")


class Detector:
    def __init__(self, claps, fixed):
        full = SAMPLES + CLAP - 1
        self.length = next_smooth(full) if fixed else full  # fault
        turned = cp.asarray(claps[:, ::-1])
        self.claps = cp.fft.rfft(turned, self.length)
        self.window = cp.hanning(SAMPLES).astype(cp.float32)

    def lags(self, spectra, clap):
        both = cp.fft.irfft(spectra * self.claps[clap], self.length)  # fault
        return both[:, CLAP - 1 : SAMPLES]

    def __call__(self, recordings):
        recordings = recordings * self.window
        spectra = cp.fft.rfft(recordings, self.length)  # fault
        peaks = cp.empty((CLAPS, MICROPHONES), cp.float32)
        places = cp.empty((CLAPS, MICROPHONES), cp.int64)
        for clap in range(CLAPS):
            lags = self.lags(spectra, clap)
            peaks[clap] = strength(lags, axis=1)
            places[clap] = lags.argmax(axis=1)
        return peaks, places


def storm(rng):
    """Six seconds of each microphone at 18 375 Hz: wind, and a clap at a place of its own."""
    recordings = rng.standard_normal((MICROPHONES, SAMPLES), np.float32)
    return cp.asarray(np.cumsum(recordings - 0.001, axis=1) * np.float32(0.01))


def build(fixed):
    rng = np.random.default_rng(0)
    fade = np.exp(-np.linspace(0, 6, CLAP, dtype=np.float32))
    claps = rng.standard_normal((CLAPS, CLAP), np.float32) * fade
    detector = Detector(claps, fixed)
    recordings = [storm(rng) for _ in range(2)]
    history = []

    def step(i):
        peaks, places = detector(recordings[i % 2])
        history.append((peaks, places))
        del history[:-4]
        return peaks

    return step


if __name__ == "__main__":
    run(build)
