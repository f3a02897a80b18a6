"""Serves forecasts of tram delays: a trained network, restored from its checkpoint, answers in batches (JAX)."""

import io

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "pageable-copy"
ALSO = ()

READINGS, WIDTH, LAYERS, STOPS, BATCH = 256, 2048, 8, 640, 4096


def trained(key):
    """The weights by name, as the training script wrote them."""
    keys = jax.random.split(key, 2 * LAYERS + 2)
    weights = {"enter": jax.random.normal(keys[0], (READINGS, WIDTH)) * READINGS**-0.5}
    for k in range(LAYERS):
        weights[f"mix{k}"] = jax.random.normal(keys[2 * k + 1], (WIDTH, WIDTH)) * WIDTH**-0.5
        weights[f"lift{k}"] = jax.random.normal(keys[2 * k + 2], (WIDTH,)) * 0.01
    return weights | {"leave": jax.random.normal(keys[-1], (WIDTH, STOPS)) * WIDTH**-0.5}


def saved(weights):
    file = io.BytesIO()
    np.savez(file, **{name: np.asarray(w) for name, w in weights.items()})
    file.seek(0)
    return file


def restored(file):
    with np.load(file) as kept:
        return {name: kept[name] for name in kept.files}


def unit(x):
    return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)


@jax.jit
def forecast(weights, readings, which):
    x = readings[which] @ weights["enter"]
    for k in range(LAYERS):
        x = x + jax.nn.gelu(unit(x) @ weights[f"mix{k}"] + weights[f"lift{k}"])
    minutes = jax.nn.softplus(unit(x) @ weights["leave"])
    return minutes, jnp.argmax(minutes, axis=1)


class Server:
    def __init__(self, file, fixed):
        self.weights = restored(file)  # fault
        if fixed:
            self.weights = jax.device_put(self.weights)

    def answer(self, readings, which):
        return forecast(self.weights, readings, which)  # fault


def build(fixed):
    server = Server(saved(trained(jax.random.PRNGKey(0))), fixed)
    readings = jax.random.normal(jax.random.PRNGKey(1), (8, BATCH, READINGS))

    def step(i):
        return server.answer(readings, i % 8)

    return step


if __name__ == "__main__":
    run(build)
