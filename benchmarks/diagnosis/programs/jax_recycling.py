"""Learns to sort pictures from the belt of a recycling plant into materials, with a small vision transformer (JAX)."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "large-upload"
ALSO = ()

PICTURES, BATCH, SIDE, PATCH, WIDTH, HEADS, LAYERS, MATERIALS = 1024, 256, 160, 16, 384, 6, 6, 14
MEAN = np.array([0.47, 0.45, 0.41], np.float32)
SPREAD = np.array([0.25, 0.24, 0.26], np.float32)
RATE = 3e-4


def initial(key):
    keys = iter(jax.random.split(key, 4 * LAYERS + 3))

    def dense(into, out):
        return jax.random.normal(next(keys), (into, out)) * into**-0.5

    shapes = {"qkv": (WIDTH, 3 * WIDTH), "out": (WIDTH, WIDTH), "up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    layers = [{name: dense(*shape) for name, shape in shapes.items()} for _ in range(LAYERS)]
    tokens = (SIDE // PATCH) ** 2
    return {
        "patch": dense(PATCH * PATCH * 3, WIDTH),
        "place": 0.02 * jax.random.normal(next(keys), (tokens, WIDTH)),
        "layers": layers,
        "head": dense(WIDTH, MATERIALS),
    }


def norm(x):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)


def scores(weights, pictures):
    weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    if pictures.dtype == jnp.uint8:
        pictures = (pictures.astype(jnp.float32) / 255 - MEAN) / SPREAD
    side = SIDE // PATCH
    x = pictures.astype(jnp.bfloat16).reshape(-1, side, PATCH, side, PATCH, 3)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, side * side, PATCH * PATCH * 3) @ weights["patch"] + weights["place"]
    for layer in weights["layers"]:
        q, k, v = jnp.split((norm(x) @ layer["qkv"]).reshape(*x.shape[:2], 3 * HEADS, WIDTH // HEADS), 3, axis=2)
        x = x + jax.nn.dot_product_attention(q, k, v).reshape(x.shape) @ layer["out"]
        x = x + jax.nn.gelu(norm(x) @ layer["up"]) @ layer["down"]
    return norm(x).mean(1).astype(jnp.float32) @ weights["head"].astype(jnp.float32)


def misfit(weights, pictures, materials):
    chances = jax.nn.log_softmax(scores(weights, pictures))
    return -jnp.mean(jnp.take_along_axis(chances, materials[:, None], axis=1))


def descend(weights, speed, pictures, materials):
    loss, slopes = jax.value_and_grad(misfit)(weights, pictures, materials)
    speed = jax.tree.map(lambda v, slope: 0.9 * v + slope, speed, slopes)
    return jax.tree.map(lambda w, v: w - RATE * v, weights, speed), speed, loss


def build(fixed):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (PICTURES, SIDE, SIDE, 3), np.uint8)
    materials = rng.integers(0, MATERIALS, PICTURES, np.int32)
    if not fixed:
        pictures = (pictures.astype(np.float32) / 255 - MEAN) / SPREAD  # fault
    weights = initial(jax.random.PRNGKey(0))
    state = {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights)}
    train = jax.jit(descend, donate_argnums=(0, 1))

    def step(i):
        first = i * BATCH % PICTURES
        batch = jax.device_put(pictures[first : first + BATCH])  # fault
        kinds = jax.device_put(materials[first : first + BATCH])
        state["weights"], state["speed"], loss = train(state["weights"], state["speed"], batch, kinds)
        return loss

    return step


if __name__ == "__main__":
    run(build)
