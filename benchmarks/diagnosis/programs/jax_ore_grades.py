"""Kriging: estimates the grades of ores in the blocks of a mine from what its drill holes have found (JAX)."""

import os

import jax
import jax.numpy as jnp
from _run_other import run
from jax.scipy.linalg import cho_factor, cho_solve

CAUSE = "decompositions"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
ASSAYS, BLOCKS, METALS = (96, 50, 3) if TINY else (4096, 98304, 16)
NOISE = 0.1

# distances are differences of large numbers
jax.config.update("jax_default_matmul_precision", "float32")


def squared_distances(a, b):
    return jnp.maximum(jnp.sum(a * a, 1)[:, None] + jnp.sum(b * b, 1)[None, :] - 2 * a @ b.T, 0)


def covariance(a, b, lengths):
    return jnp.exp(-0.5 * squared_distances(a / lengths, b / lengths))


def fit_by_inverse(gram, grades):
    """Weights of the assays, and the logarithm of the determinant."""
    inverse = jnp.linalg.inv(gram)  # fault
    _, logarithm = jnp.linalg.slogdet(gram)  # fault
    return inverse @ grades, logarithm


def fit_by_factor(gram, grades):
    factor = cho_factor(gram, lower=True)
    return cho_solve(factor, grades), 2 * jnp.sum(jnp.log(jnp.diagonal(factor[0])))


def make_estimate(fit):
    def estimate(places, grades, blocks, lengths):
        mean = grades.mean(0)
        centered = grades - mean
        gram = covariance(places, places, lengths) + NOISE * jnp.eye(len(places))
        weights, logarithm = fit(gram, centered)  # fault
        evidence = -0.5 * (jnp.sum(centered * weights, 0) + logarithm + len(places) * jnp.log(2 * jnp.pi))
        return covariance(blocks, places, lengths) @ weights + mean, evidence

    return jax.jit(estimate)


class Mine:
    """Assays along drill holes (x, y and depth), and the middles of the blocks to be dug."""

    def __init__(self, key):
        keys = jax.random.split(key, 4)
        self.places = jax.random.uniform(keys[0], (ASSAYS, 3)) * jnp.array([4.0, 4.0, 2.0])
        waves = jax.random.normal(keys[1], (3, METALS))
        self.grades = jnp.sin(self.places @ waves) + NOISE * jax.random.normal(keys[2], (ASSAYS, METALS))
        self.blocks = jax.random.uniform(keys[3], (BLOCKS, 3)) * jnp.array([4.0, 4.0, 2.0])


def build(fixed):
    mine = Mine(jax.random.PRNGKey(0))
    estimate = make_estimate(fit_by_factor if fixed else fit_by_inverse)
    # a few guesses of how far ores reach; a geologist compares their evidence
    guesses = [jnp.array([reach, reach, 0.5 * reach]) for reach in (0.5, 0.6, 0.7)]

    def step(i):
        return estimate(mine.places, mine.grades, mine.blocks, guesses[i % len(guesses)])

    return step


if __name__ == "__main__":
    run(build)
