"""Looks for infrasound of volcanoes: the power of each sensor of an array in time and frequency (CuPy)."""

import cupy as cp
from _run_other import run

CAUSE = "repeated-work"
ALSO = ()
SENSORS, SAMPLES, BLOCK = 128, 16384, 512


def build(fixed):
    rng = cp.random.default_rng(0)
    window = cp.hanning(BLOCK).astype(cp.float32)

    def step(i):
        x = rng.standard_normal((SENSORS, SAMPLES), dtype=cp.float32)
        if fixed:
            x -= x.mean(1, keepdims=True)
            blocks = x.reshape(SENSORS, -1, BLOCK) * window
            power = cp.abs(cp.fft.rfft(blocks, axis=2)) ** 2
            level = cp.log10(power.mean(1) + 1e-9)
            return level - cp.median(level, axis=1, keepdims=True)
        levels = cp.empty((SENSORS, BLOCK // 2 + 1), cp.float32)
        for k in range(SENSORS):  # fault
            own = x[k] - x[k].mean()  # fault
            blocks = own.reshape(-1, BLOCK) * window  # fault
            power = cp.abs(cp.fft.rfft(blocks, axis=1)) ** 2  # fault
            level = cp.log10(power.mean(0) + 1e-9)  # fault
            levels[k] = level - cp.median(level)  # fault
        return levels

    return step


if __name__ == "__main__":
    run(build)
