"""Trains a model in JAX whose jitted step takes the number of the step as a static argument."""

from functools import partial

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "recompilation"
ALSO = ()
B, D, LAYERS = 1024, 512, 4


def loss_of(params, x, y):
    for w in params:
        x = jnp.tanh(x @ w)
    return jnp.mean((x - y) ** 2)


def updated(params, x, y, rate):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    return [p - rate * g for p, g in zip(params, grads, strict=False)], loss


@partial(jax.jit, static_argnums=3)
def update_static(params, x, y, number):
    return updated(params, x, y, 0.1 / (1 + 0.01 * number))


@jax.jit
def update(params, x, y, number):
    return updated(params, x, y, 0.1 / (1 + 0.01 * number))


def build(fixed):
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    params = [jax.random.normal(k, (D, D)) / D**0.5 for k in keys[2:]]
    x, y = jax.random.normal(keys[0], (B, D)), jax.random.normal(keys[1], (B, D))

    def step(i):
        nonlocal params
        if fixed:
            params, loss = update(params, x, y, i)
        else:
            params, loss = update_static(params, x, y, i)  # fault
        return loss

    return step


if __name__ == "__main__":
    run(build)
