"""Writes each new token's keys and values into a large cache in JAX, which is handed over without being donated."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "no-donation"
ALSO = ()

LAYERS, BATCH, LENGTH, HEADS, DIM = 8, 8, 4096, 8, 128


def decode(weights, cache, x, position):
    """Adds one token per sequence to the cache and returns what the last layer says of it."""
    grown = []
    for (qkv, out), (old_keys, old_values) in zip(weights, cache, strict=True):
        q, k, v = jnp.split((x @ qkv).reshape(BATCH, 3 * HEADS, DIM), 3, axis=1)
        keys = old_keys.at[:, position].set(k)
        values = old_values.at[:, position].set(v)
        scores = jnp.einsum("bhd,bthd->bht", q, keys) / DIM**0.5
        scores = jnp.where(jnp.arange(LENGTH) <= position, scores, -jnp.inf)
        attended = jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores.astype(jnp.float32)).astype(x.dtype), values)
        x = x + attended.reshape(BATCH, HEADS * DIM) @ out
        grown.append((keys, values))
    return grown, x / jnp.linalg.norm(x, axis=-1, keepdims=True)


decode_kept = jax.jit(decode)  # fault
decode_donated = jax.jit(decode, donate_argnums=1)


def build(fixed):
    width = HEADS * DIM
    keys = iter(jax.random.split(jax.random.key(0), 2 * LAYERS + 1))
    weights = [
        (
            jax.random.normal(next(keys), (width, 3 * width), jnp.bfloat16) / width**0.5,
            jax.random.normal(next(keys), (width, width), jnp.bfloat16) / width**0.5,
        )
        for _ in range(LAYERS)
    ]
    shape = (BATCH, LENGTH, HEADS, DIM)
    cache = [(jnp.zeros(shape, jnp.bfloat16), jnp.zeros(shape, jnp.bfloat16)) for _ in range(LAYERS)]
    x = jax.random.normal(next(keys), (BATCH, width), jnp.bfloat16)

    def step(i):
        nonlocal cache, x
        if fixed:
            cache, x = decode_donated(weights, cache, x, i % LENGTH)
        else:
            cache, x = decode_kept(weights, cache, x, i % LENGTH)  # fault
        return x

    return step


if __name__ == "__main__":
    run(build)
