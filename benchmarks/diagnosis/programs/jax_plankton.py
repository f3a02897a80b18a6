"""Trains a patch mixer on pictures of plankton that lie in NumPy arrays (JAX)."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "large-upload"
ALSO = ()

PICTURES, SIDE, PATCH, CLASSES = 4096, 128, 16, 103
BATCH, WIDTH, LAYERS = 256, 768, 8
TOKENS = (SIDE // PATCH) ** 2
RATE, MOMENTUM = 0.02, 0.9
MEAN, DEVIATION = 117.0, 58.0


def initial(key):
    keys = iter(jax.random.split(key, 4 * LAYERS + 2))

    def dense(inputs, outputs):
        return {"w": jax.random.normal(next(keys), (inputs, outputs)) * inputs**-0.5, "b": jnp.zeros(outputs)}

    layers = [
        {
            "tokens": [dense(TOKENS, 2 * TOKENS), dense(2 * TOKENS, TOKENS)],
            "channels": [dense(WIDTH, 4 * WIDTH), dense(4 * WIDTH, WIDTH)],
            "scales": jnp.ones((2, WIDTH)),
        }
        for _ in range(LAYERS)
    ]
    return {"enter": dense(PATCH * PATCH * 3, WIDTH), "layers": layers, "leave": dense(WIDTH, CLASSES)}


def apply(layer, x):
    return x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)


def normalised(x, scale):
    y = x.astype(jnp.float32)
    return (y * jax.lax.rsqrt(jnp.mean(y * y, -1, keepdims=True) + 1e-6) * scale).astype(x.dtype)


def predict(weights, pictures):
    x = pictures.astype(jnp.bfloat16).reshape(-1, SIDE // PATCH, PATCH, SIDE // PATCH, PATCH, 3)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(-1, TOKENS, PATCH * PATCH * 3)
    x = apply(weights["enter"], x)
    for layer in weights["layers"]:
        y = normalised(x, layer["scales"][0]).swapaxes(1, 2)
        x = x + apply(layer["tokens"][1], jax.nn.gelu(apply(layer["tokens"][0], y))).swapaxes(1, 2)
        y = normalised(x, layer["scales"][1])
        x = x + apply(layer["channels"][1], jax.nn.gelu(apply(layer["channels"][0], y)))
    return apply(weights["leave"], x.mean(1)).astype(jnp.float32)


def loss_of(weights, pictures, labels):
    logs = jax.nn.log_softmax(predict(weights, pictures))
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], 1))


def train(weights, velocity, pictures, labels):
    if pictures.dtype == jnp.uint8:
        pictures = (pictures.astype(jnp.float32) - MEAN) / DEVIATION
    loss, slopes = jax.value_and_grad(loss_of)(weights, pictures, labels)
    velocity = jax.tree.map(lambda v, slope: MOMENTUM * v + slope, velocity, slopes)
    return jax.tree.map(lambda w, v: w - RATE * v, weights, velocity), velocity, loss


class Plankton:
    def __init__(self):
        numbers = np.random.default_rng(0)
        self.pictures = numbers.integers(0, 256, (PICTURES, SIDE, SIDE, 3), np.uint8)
        self.labels = numbers.integers(0, CLASSES, PICTURES).astype(np.int32)

    def batch(self, i):
        first = i * BATCH % PICTURES
        return self.pictures[first : first + BATCH], self.labels[first : first + BATCH]

    def normalised_batch(self, i):
        pictures, labels = self.batch(i)
        pictures = pictures.astype(np.float32)  # fault
        pictures -= MEAN  # fault
        pictures /= DEVIATION  # fault
        return pictures, labels


def build(fixed):
    plankton = Plankton()
    weights = initial(jax.random.PRNGKey(0))
    state = {"weights": weights, "velocity": jax.tree.map(jnp.zeros_like, weights)}
    train_step = jax.jit(train, donate_argnums=(0, 1))

    def step(i):
        batch = plankton.batch(i) if fixed else plankton.normalised_batch(i)  # fault
        pictures, labels = jax.device_put(batch)  # fault
        state["weights"], state["velocity"], loss = train_step(state["weights"], state["velocity"], pictures, labels)
        return loss

    return step


if __name__ == "__main__":
    run(build)
