"""Trains an MLP-Mixer in bfloat16 with float32 weights (JAX): one jitted step, buffers donated, data on the GPU."""

from functools import partial

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = ""
ALSO = ()
TOKENS, WIDTH, LAYERS = 256, 2048, 4
BATCH, PATCH, CLASSES = 64, 768, 1024
RATE, MOMENTUM = 1e-3, 0.9


def initial(key):
    def matrix(key, inputs, outputs):
        return jax.random.normal(key, (inputs, outputs)) * inputs**-0.5

    keys = iter(jax.random.split(key, 4 * LAYERS + 2))
    return {
        "enter": matrix(next(keys), PATCH, WIDTH),
        "layers": [
            {
                "tokens_in": matrix(next(keys), TOKENS, 2 * TOKENS),
                "tokens_out": matrix(next(keys), 2 * TOKENS, TOKENS),
                "width_in": matrix(next(keys), WIDTH, 4 * WIDTH),
                "width_out": matrix(next(keys), 4 * WIDTH, WIDTH),
            }
            for _ in range(LAYERS)
        ],
        "leave": matrix(next(keys), WIDTH, CLASSES),
    }


def normed(x):
    x = x.astype(jnp.float32)
    return (x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6)).astype(jnp.bfloat16)


def scores(weights, patches):
    weights = jax.tree.map(lambda weight: weight.astype(jnp.bfloat16), weights)
    x = patches @ weights["enter"]
    for layer in weights["layers"]:
        y = jax.nn.gelu(jnp.einsum("btw,ts->bsw", normed(x), layer["tokens_in"]))
        x = x + jnp.einsum("bsw,st->btw", y, layer["tokens_out"])
        x = x + jax.nn.gelu(normed(x) @ layer["width_in"]) @ layer["width_out"]
    return (normed(x).mean(1) @ weights["leave"]).astype(jnp.float32)


def loss_of(weights, patches, labels):
    logs = jax.nn.log_softmax(scores(weights, patches))
    return -jnp.mean(jnp.take_along_axis(logs, labels[:, None], 1))


@partial(jax.jit, donate_argnums=(0, 1))
def train(weights, momentum, patches, labels):
    loss, gradients = jax.value_and_grad(loss_of)(weights, patches, labels)
    momentum = jax.tree.map(lambda m, g: MOMENTUM * m + g, momentum, gradients)
    weights = jax.tree.map(lambda w, m: w - RATE * m, weights, momentum)
    return weights, momentum, loss


def build(fixed):
    keys = jax.random.split(jax.random.PRNGKey(0), 3)
    weights = initial(keys[0])
    state = [weights, jax.tree.map(jnp.zeros_like, weights)]
    patches = jax.random.normal(keys[1], (BATCH, TOKENS, PATCH), jnp.bfloat16)
    labels = jax.random.randint(keys[2], (BATCH,), 0, CLASSES)

    def step(i):
        state[0], state[1], loss = train(*state, patches, labels)
        return loss

    return step


if __name__ == "__main__":
    run(build)
