"""Fits the ocean's temperature as a field of place, depth and time: a network with sines in float32 (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "no-tf32"
ALSO = ()

POINTS, WIDTH, LAYERS = 32_768, 1024, 6
RATE, FIRST, SECOND = 1e-4, 0.9, 0.99


def initial(key):
    keys = jax.random.split(key, LAYERS + 2)
    enter = {"w": jax.random.uniform(keys[0], (4, WIDTH), minval=-7.0, maxval=7.0), "b": jnp.zeros(WIDTH)}
    reach = (6.0 / WIDTH) ** 0.5
    inner = [
        {"w": jax.random.uniform(key, (WIDTH, WIDTH), minval=-reach, maxval=reach), "b": jnp.zeros(WIDTH)}
        for key in keys[1:-1]
    ]
    leave = {"w": jax.random.normal(keys[-1], (WIDTH, 1)) * WIDTH**-0.5, "b": jnp.zeros(1)}
    return {"enter": enter, "inner": inner, "leave": leave}


def temperature(weights, places):
    x = jnp.sin(places @ weights["enter"]["w"] + weights["enter"]["b"])
    for layer in weights["inner"]:
        x = jnp.sin(x @ layer["w"] + layer["b"])  # fault
    return (x @ weights["leave"]["w"] + weights["leave"]["b"])[:, 0]


def misfit(weights, places, measured):
    return jnp.mean((temperature(weights, places) - measured) ** 2)


def adam(weights, moments, slopes, count):
    first = jax.tree.map(lambda m, slope: FIRST * m + (1 - FIRST) * slope, moments[0], slopes)
    second = jax.tree.map(lambda m, slope: SECOND * m + (1 - SECOND) * slope**2, moments[1], slopes)
    rate = RATE * jnp.sqrt(1 - SECOND**count) / (1 - FIRST**count)
    weights = jax.tree.map(lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8), weights, first, second)
    return weights, (first, second)


def soundings(key):
    """Casts of a cruise: longitude, latitude, depth, day, all between -1 and 1, and a temperature."""
    places = jax.random.uniform(key, (8, POINTS, 4), minval=-1.0, maxval=1.0)
    east, north, depth, day = jnp.moveaxis(places, -1, 0)
    measured = jnp.cos(1.5 * north) * jnp.exp(-1.5 * (depth + 1)) + 0.1 * jnp.sin(9 * east + 4 * day)
    return places, measured


@jax.jit
def chosen(places, measured, which):
    return places[which], measured[which]


def build(fixed):
    jax.config.update("jax_default_matmul_precision", "tensorfloat32" if fixed else "highest")  # fault
    weights = initial(jax.random.PRNGKey(0))
    zeros = jax.tree.map(jnp.zeros_like, weights)
    state = {"weights": weights, "moments": (zeros, jax.tree.map(jnp.zeros_like, weights))}
    places, measured = soundings(jax.random.PRNGKey(1))
    slope_of = jax.value_and_grad(misfit)

    def descend(weights, moments, places, measured, count):
        loss, slopes = slope_of(weights, places, measured)  # fault
        return *adam(weights, moments, slopes, count), loss

    descend = jax.jit(descend, donate_argnums=(0, 1))

    def step(i):
        batch = chosen(places, measured, i % 8)
        state["weights"], state["moments"], loss = descend(state["weights"], state["moments"], *batch, i + 1.0)  # fault
        return loss

    return step


if __name__ == "__main__":
    run(build)
