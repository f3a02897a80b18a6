"""Reconstructs exit waves of a ptychographic scan from diffraction patterns, by the difference map (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "recurring-loading"
ALSO = ()

PATTERNS, SIDE, ROUNDS = 96, 240, 10


reflected = cp.ElementwiseKernel(
    "complex64 wave, float32 support", "complex64 result", "result = wave * (2.f * support - 1.f)", "reflected"
)
with_measured_moduli = cp.ElementwiseKernel(
    "complex64 wave, float32 moduli",
    "complex64 result",
    "result = wave * (moduli / (abs(wave) + 1e-6f))",
    "with_measured_moduli",
)
moved = cp.ElementwiseKernel(
    "complex64 wave, complex64 measured, float32 support",
    "complex64 result",
    "result = wave * (1.f - support) + measured",
    "moved",
)


def leave_memory_to_others(sharing):
    """Plans keep their work areas, which the segmentation on the same GPU had no room for."""
    if sharing:
        cp.fft.config.get_plan_cache().set_size(0)  # fault


class Scan:
    def __init__(self):
        cp.random.seed(0)
        line = cp.linspace(-1, 1, SIDE, dtype=cp.float32)
        self.support = (line[:, None] ** 2 + line[None, :] ** 2 < cp.float32(0.3)).astype(cp.float32)
        phases = cp.random.rand(PATTERNS, SIDE, SIDE, dtype=cp.float32)
        truth = self.support * cp.exp(cp.complex64(2j) * phases)
        self.moduli = cp.abs(cp.fft.fft2(truth))
        self.waves = (self.support * cp.ones((PATTERNS, 1, 1), cp.float32)).astype(cp.complex64)

    def iteration(self):
        spectra = cp.fft.fft2(reflected(self.waves, self.support))  # fault
        measured = cp.fft.ifft2(with_measured_moduli(spectra, self.moduli))  # fault
        self.waves = moved(self.waves, measured, self.support)


def build(fixed):
    leave_memory_to_others(sharing=not fixed)
    scan = Scan()

    def step(i):
        for _ in range(ROUNDS):
            scan.iteration()  # fault
        return scan.waves

    return step


if __name__ == "__main__":
    run(build)
