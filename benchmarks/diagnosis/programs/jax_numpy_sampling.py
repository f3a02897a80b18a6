"""Generates tokens in JAX and picks each of them with NumPy, on the host, between two steps of the model."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "cpu-operators"
ALSO = ()

BATCH, WIDTH, WORDS, LAYERS, KEEP = 32, 1024, 32_000, 8, 50


@jax.jit
def model(params, state, tokens):
    embedding, blocks = params
    x = embedding[tokens] + state
    for block in blocks:
        x = x + jax.nn.gelu(x @ block)
    x = x / jnp.linalg.norm(x, axis=1, keepdims=True) * 8
    return x, x @ embedding.T


def pick_on_host(logits, rng):
    logits = np.asarray(logits)  # fault
    best = np.argpartition(logits, -KEEP, axis=1)[:, -KEEP:]  # fault
    top = np.take_along_axis(logits, best, 1)  # fault
    weights = np.exp(top - top.max(1, keepdims=True))  # fault
    chosen = [rng.choice(KEEP, p=w / w.sum()) for w in weights]  # fault
    return best[np.arange(BATCH), chosen]


@jax.jit
def pick(logits, key):
    top, best = jax.lax.top_k(logits, KEEP)
    chosen = jax.random.categorical(key, top)
    return jnp.take_along_axis(best, chosen[:, None], 1)[:, 0]


def build(fixed):
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    blocks = [jax.random.normal(key, (WIDTH, WIDTH)) / WIDTH**0.5 for key in keys[:LAYERS]]
    params = jax.random.normal(keys[LAYERS], (WORDS, WIDTH)), blocks
    rng = np.random.default_rng(0)
    state = jnp.zeros((BATCH, WIDTH))
    tokens = jnp.zeros(BATCH, jnp.int32)

    def step(i):
        nonlocal state, tokens
        state, logits = model(params, state, tokens)
        if fixed:
            tokens = pick(logits, jax.random.fold_in(keys[-1], i))
        else:
            tokens = jnp.asarray(pick_on_host(logits, rng))  # fault
        return tokens

    return step


if __name__ == "__main__":
    run(build)
