"""Estimates the grades of an ore between drill holes by kriging: a Gaussian process over places in the rock (CuPy)."""

import os

import cupy as cp
from _run_other import run
from cupyx.scipy.linalg import solve_triangular

CAUSE = "decompositions"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
SAMPLES, CELLS, METALS = (64, 128, 3) if TINY else (4096, 8192, 3)
NUGGET = 0.1

covariance = cp.ElementwiseKernel(
    "float32 squared, float32 reach",
    "float32 c",
    "float d = sqrtf(fmaxf(squared, 0.f)) / reach; c = (1.f + 1.7320508f * d) * expf(-1.7320508f * d);",
    "covariance",
)


def squared_distances(a, b):
    return (a * a).sum(1)[:, None] + (b * b).sum(1)[None, :] - 2 * (a @ b.T)


class Kriging:
    def __init__(self, holes, reach):
        self.holes = holes
        self.reach = cp.float32(reach)

    def weights(self, grades):
        k = covariance(squared_distances(self.holes, self.holes), self.reach)
        k[cp.diag_indices(len(k))] += cp.float32(NUGGET)
        return cp.linalg.inv(k) @ grades  # fault

    def estimate(self, grades, cells):
        mean = grades.mean(0)
        weights = self.weights(grades - mean)
        return mean + covariance(squared_distances(cells, self.holes), self.reach) @ weights


class FactoredKriging(Kriging):
    def weights(self, grades):
        k = covariance(squared_distances(self.holes, self.holes), self.reach)
        k[cp.diag_indices(len(k))] += cp.float32(NUGGET)
        factor = cp.linalg.cholesky(k)
        half = solve_triangular(factor, grades, lower=True, check_finite=False)
        return solve_triangular(factor, half, lower=True, trans="T", check_finite=False)


def build(fixed):
    random = cp.random.RandomState(0)
    holes = random.uniform(-1, 1, (SAMPLES, 3), dtype=cp.float32)
    cells = random.uniform(-1, 1, (CELLS, 3), dtype=cp.float32)
    waves = random.uniform(-4, 4, (3, METALS), dtype=cp.float32)
    grades = cp.cos(holes @ waves) + random.uniform(-0.2, 0.2, (SAMPLES, METALS), dtype=cp.float32)
    models = [(FactoredKriging if fixed else Kriging)(holes, reach) for reach in (0.15, 0.2, 0.25, 0.3)]

    def step(i):
        return models[i % 4].estimate(grades, cells)

    return step


if __name__ == "__main__":
    run(build)
