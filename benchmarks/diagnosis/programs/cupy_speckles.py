"""Finds the flow of blood under skin from laser speckles: filters frames, takes their contrast in time (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "real-transforms"
ALSO = ()

FRAMES, SIDE = 128, 1024
LOW, HIGH = 0.02, 0.25


class SpeckleCamera:
    def __init__(self, fixed):
        self.fixed = fixed
        down = cp.fft.fftfreq(SIDE)[:, None]
        across = (cp.fft.rfftfreq(SIDE) if fixed else cp.fft.fftfreq(SIDE))[None, :]
        frequency = cp.hypot(down, across)
        self.band = (cp.exp(-((frequency / HIGH) ** 2)) - cp.exp(-((frequency / LOW) ** 2))).astype(cp.float32)

    def filtered(self, frames):
        if self.fixed:
            spectrum = cp.fft.rfft2(frames)
            spectrum *= self.band
            return cp.fft.irfft2(spectrum, s=(SIDE, SIDE))
        spectrum = cp.fft.fft2(frames)  # fault
        spectrum *= self.band
        return cp.fft.ifft2(spectrum).real  # fault

    def flow(self, frames):
        """The inverse square of the temporal contrast of each pixel."""
        brightness = frames.mean(axis=0)
        deviation = self.filtered(frames).std(axis=0)
        return (brightness / (deviation + cp.float32(1e-3))) ** 2


def build(fixed):
    camera = SpeckleCamera(fixed)
    cp.random.seed(0)
    films = [
        cp.abs(cp.random.standard_normal((FRAMES, SIDE, SIDE), dtype=cp.float32)) * cp.float32(20) + cp.float32(40)
        for _ in range(2)
    ]

    def step(i):
        return camera.flow(films[i % 2])

    return step


if __name__ == "__main__":
    run(build)
