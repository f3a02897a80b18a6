"""Learns how fast glaciers slide from slope, thickness and temperature: a residual network and Adam (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "not-jitted"
ALSO = ()

PLACES, INPUTS, WIDTH, BLOCKS = 8192, 12, 512, 10
RATE, FIRST, SECOND, SMALL, DECAY = 3e-4, 0.9, 0.999, 1e-8, 1e-2


def initial(key):
    keys = jax.random.split(key, 2 * BLOCKS + 2)

    def dense(key, i, o):
        return {"w": jax.random.normal(key, (i, o)) * i**-0.5, "b": jnp.zeros(o)}

    blocks = [
        {"one": dense(keys[2 * k], WIDTH, WIDTH), "two": dense(keys[2 * k + 1], WIDTH, WIDTH), "gain": jnp.ones(WIDTH)}
        for k in range(BLOCKS)
    ]
    return {"enter": dense(keys[-1], INPUTS, WIDTH), "blocks": blocks, "leave": dense(keys[-2], WIDTH, 1)}


def speed(params, x):
    x = x @ params["enter"]["w"] + params["enter"]["b"]
    for block in params["blocks"]:
        y = x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * block["gain"]
        y = jax.nn.gelu(y @ block["one"]["w"] + block["one"]["b"])
        x = x + y @ block["two"]["w"] + block["two"]["b"]
    return (x @ params["leave"]["w"] + params["leave"]["b"])[:, 0]


def loss_of(params, x, measured):
    return jnp.mean(huber(speed(params, x) - measured))


def huber(error):
    size = jnp.abs(error)
    return jnp.where(size < 1, 0.5 * error**2, size - 0.5)


def adam(params, mean, square, slopes, count):
    mean = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, mean, slopes)  # fault
    square = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g**2, square, slopes)  # fault
    even_m, even_v = 1 - FIRST**count, 1 - SECOND**count

    def moved(p, m, v):
        return p - RATE * (m / even_m / (jnp.sqrt(v / even_v) + SMALL) + DECAY * p)

    return jax.tree.map(moved, params, mean, square), mean, square  # fault


def build(fixed):
    jax.config.update("jax_default_matmul_precision", "tensorfloat32")
    params = initial(jax.random.PRNGKey(0))
    state = [params, jax.tree.map(jnp.zeros_like, params), jax.tree.map(jnp.zeros_like, params)]
    x = jax.random.normal(jax.random.PRNGKey(1), (PLACES, INPUTS))
    measured = jnp.sin(x[:, 0]) * jnp.exp(-0.3 * x[:, 1]) + 0.2 * x[:, 2]
    slopes_of = jax.jit(jax.value_and_grad(loss_of))

    @jax.jit
    def whole(params, mean, square, x, measured, count):
        loss, slopes = jax.value_and_grad(loss_of)(params, x, measured)
        return loss, *adam(params, mean, square, slopes, count)

    def step(i):
        count = i + 1.0
        if fixed:
            loss, *state[:] = whole(*state, x, measured, count)
        else:
            loss, slopes = slopes_of(state[0], x, measured)
            state[:] = adam(*state, slopes, count)  # fault
        return loss, state

    return step


if __name__ == "__main__":
    run(build)
