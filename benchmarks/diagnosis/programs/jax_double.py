"""Trains a physics model in JAX with 64-bit types turned on for all of it."""

import sys

import jax

fixed_types = "fixed" in sys.argv
jax.config.update("jax_enable_x64", not fixed_types)  # fault
import jax.numpy as jnp
from _run_other import run

CAUSE = "float64"
ALSO = ()
B, D, LAYERS = 4096, 512, 4


def loss_of(params, x, y):
    for w in params:
        x = jnp.tanh(x @ w)  # fault
    return jnp.mean((x - y) ** 2)


@jax.jit
def update(params, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)  # fault
    return [p - 0.1 * g for p, g in zip(params, grads, strict=True)], loss


def build(fixed):
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    params = [jax.random.normal(k, (D, D)) / D**0.5 for k in keys[2:]]
    x, y = jax.random.normal(keys[0], (B, D)), jax.random.normal(keys[1], (B, D))

    def step(i):
        nonlocal params
        params, loss = update(params, x, y)
        return loss

    return step


if __name__ == "__main__":
    run(build)
