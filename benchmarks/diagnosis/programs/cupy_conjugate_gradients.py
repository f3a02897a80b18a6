"""Solves Poisson's equation in CuPy by conjugate gradients, whose step lengths are Python floats."""

import cupy as cp
from _run_other import run

CAUSE = "blocking-read"
ALSO = ()

SIZE, ITERATIONS = 1536, 10

laplacian = cp.ElementwiseKernel(
    "raw float32 p, int32 width",
    "float32 y",
    """
    int row = i / width, column = i % width;
    float up = row ? p[i - width] : 0, down = row < width - 1 ? p[i + width] : 0;
    float left = column ? p[i - 1] : 0, right = column < width - 1 ? p[i + 1] : 0;
    y = 4 * p[i] - up - down - left - right;
    """,
    "laplacian",
)


def build(fixed):
    b = cp.random.default_rng(0).standard_normal((SIZE, SIZE), cp.float32)

    def scalar(value):
        return value if fixed else float(value)  # fault

    def step(i):
        x = cp.zeros_like(b)
        r = b.copy()
        p = r.copy()
        rr = scalar(cp.sum(r * r))  # fault
        for _ in range(ITERATIONS):
            ap = laplacian(p, SIZE, size=b.size).reshape(b.shape)
            alpha = rr / scalar(cp.sum(p * ap))  # fault
            x += alpha * p
            r -= alpha * ap
            rr_next = scalar(cp.sum(r * r))  # fault
            p = r + (rr_next / rr) * p
            rr = rr_next
        return x

    return step


if __name__ == "__main__":
    run(build)
