"""Simulates heat in CuPy, fetches every frame from the GPU, and reads the largest value after every small step."""

import cupy as cp
import numpy as np
from _run_other import run

CAUSE = "downloads"
ALSO = ("blocking-read",)

SIZE, STEPS_PER_FRAME = 2048, 40

spread = cp.ElementwiseKernel(
    "raw float32 u, float32 speed, int32 width",
    "float32 y",
    """
    int row = i / width, column = i % width;
    float middle = u[i];
    float up = row ? u[i - width] : middle, down = row < width - 1 ? u[i + width] : middle;
    float left = column ? u[i - 1] : middle, right = column < width - 1 ? u[i + 1] : middle;
    y = middle + speed * (up + down + left + right - 4 * middle);
    """,
    "spread_heat",
)


def build(fixed):
    u = cp.random.default_rng(0).random((SIZE, SIZE), cp.float32)
    hottest = []

    def step(i):
        nonlocal u
        for _ in range(STEPS_PER_FRAME):
            u = spread(u, np.float32(0.2), SIZE, size=u.size).reshape(u.shape)
            largest = u.max()
            if fixed is not True and float(largest) > 2:  # also
                raise ArithmeticError
        if fixed:
            hottest.append(u.max(axis=1))  # the picture shows one value a row
        else:
            hottest.append(u.get().max(axis=1))  # fault
        del hottest[:-10]

    return step


if __name__ == "__main__":
    run(build)
