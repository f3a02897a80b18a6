"""Maps sensor values to physical units in CuPy with a chain of array operators, each a kernel of its own."""

import cupy as cp
from _run_other import run

CAUSE = "fusion"
ALSO = ()

SENSORS, SAMPLES = 64, 524_288

calibrate_fused = cp.ElementwiseKernel(
    "T reading, T gain, T offset, T pressure",
    "T y",
    """
    T volts = (reading - offset) * gain;
    T celsius = volts * (T(0.5) + volts * (T(0.02) - T(0.001) * volts));
    T corrected = celsius / (T(1) + T(0.003) * pressure);
    y = min(max(corrected, T(-40)), T(85));
    """,
    "calibrate",
)


def calibrate(raw, gain, offset, pressure):
    volts = (raw - offset) * gain  # fault
    celsius = volts * (0.5 + volts * (0.02 - 0.001 * volts))  # fault
    corrected = celsius / (1 + 0.003 * pressure)  # fault
    return cp.minimum(cp.maximum(corrected, -40), 85)  # fault


def build(fixed):
    rng = cp.random.default_rng(0)
    raw = rng.standard_normal((SENSORS, SAMPLES), cp.float32)
    pressure = rng.random((SENSORS, SAMPLES), cp.float32)
    gain = rng.random((SENSORS, 1), cp.float32) + 1
    offset = rng.random((SENSORS, 1), cp.float32)

    def step(i):
        if fixed:
            return calibrate_fused(raw, gain, offset, pressure)
        return calibrate(raw, gain, offset, pressure)

    return step


if __name__ == "__main__":
    run(build)
