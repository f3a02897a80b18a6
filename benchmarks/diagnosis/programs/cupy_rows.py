"""Standardises spectra in CuPy, one row after the other in a Python loop."""

import cupy as cp
from _run_other import run

CAUSE = "repeated-work"
ALSO = ()

SPECTRA, BINS = 128, 16_384


def standardise_rows(spectra):
    result = cp.empty_like(spectra)
    for k in range(len(spectra)):
        row = spectra[k]  # fault
        low = row.min()  # fault
        scaled = (row - low) / (row.max() - low)  # fault
        result[k] = scaled - scaled.mean()  # fault
    return result


def standardise(spectra):
    low = spectra.min(axis=1, keepdims=True)
    scaled = (spectra - low) / (spectra.max(axis=1, keepdims=True) - low)
    return scaled - scaled.mean(axis=1, keepdims=True)


def build(fixed):
    spectra = cp.random.default_rng(0).random((SPECTRA, BINS), cp.float32)

    def step(i):
        return standardise(spectra) if fixed else standardise_rows(spectra)  # fault

    return step


if __name__ == "__main__":
    run(build)
