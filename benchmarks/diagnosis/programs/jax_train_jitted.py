"""Trains a deep residual MLP in JAX: one jitted step whose state is donated, and losses that are read at the end."""

import functools

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = ""
ALSO = ()

BATCH, WIDTH, HIDDEN, LAYERS = 8192, 2048, 8192, 4


def predict(params, x):
    for up, down in params:
        x = x + jax.nn.gelu(x @ up.astype(jnp.bfloat16)) @ down.astype(jnp.bfloat16)
    return x


def loss_of(params, x, wanted):
    return jnp.mean((predict(params, x) - wanted).astype(jnp.float32) ** 2)


@functools.partial(jax.jit, donate_argnums=(0, 1))
def update(params, momentum, x, wanted):
    loss, grads = jax.value_and_grad(loss_of)(params, x, wanted)
    momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, grads)
    params = jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum)
    return params, momentum, loss


def build(fixed):
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 2))
    params = [
        (
            jax.random.normal(next(keys), (WIDTH, HIDDEN)) / WIDTH**0.5,
            jax.random.normal(next(keys), (HIDDEN, WIDTH)) / HIDDEN**0.5,
        )
        for _ in range(LAYERS)
    ]
    momentum = jax.tree.map(jnp.zeros_like, params)
    x = jax.random.normal(next(keys), (BATCH, WIDTH), jnp.bfloat16)
    wanted = jax.random.normal(next(keys), (BATCH, WIDTH), jnp.bfloat16)

    def step(i):
        nonlocal params, momentum
        params, momentum, loss = update(params, momentum, x, wanted)
        return loss

    return step


if __name__ == "__main__":
    run(build)
