"""Trains an autoencoder with Adam in JAX, operator by operator."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "not-jitted"
ALSO = ()

SIZES = (1024, 512, 128, 512, 1024)


def reconstruct(params, x):
    for weight, bias in params[:-1]:  # fault
        x = jax.nn.gelu(x @ weight + bias)  # fault
    weight, bias = params[-1]
    return x @ weight + bias  # fault


def loss_of(params, x, noise):
    return jnp.mean((reconstruct(params, x + 0.1 * noise) - x) ** 2)  # fault


def train_step(params, mean, square, x, noise):
    loss, grads = jax.value_and_grad(loss_of)(params, x, noise)  # fault
    mean = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, mean, grads)  # fault
    square = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, square, grads)  # fault
    params = jax.tree.map(lambda p, m, s: p - 1e-3 * m / (jnp.sqrt(s) + 1e-8), params, mean, square)  # fault
    return params, mean, square, loss


def build(fixed):
    keys = jax.random.split(jax.random.key(0), len(SIZES) + 1)
    params = [
        (jax.random.normal(key, (n, m)) / n**0.5, jnp.zeros(m))
        for key, n, m in zip(keys, SIZES, SIZES[1:], strict=False)
    ]
    mean = jax.tree.map(jnp.zeros_like, params)
    square = jax.tree.map(jnp.zeros_like, params)
    x = jax.random.normal(keys[-2], (512, SIZES[0]))
    noise = jax.random.normal(keys[-1], x.shape)
    update = jax.jit(train_step) if fixed else train_step
    state = params, mean, square

    def step(i):
        nonlocal state
        *state, loss = update(*state, x, noise)  # fault
        return loss

    return step


if __name__ == "__main__":
    run(build)
