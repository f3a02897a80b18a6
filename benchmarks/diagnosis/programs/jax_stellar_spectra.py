"""Learns the temperature, gravity and metals of stars from spectra, with a gated network in bfloat16 (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = ""
ALSO = ()

STARS, BINS, WIDTH, HIDDEN, LAYERS, TRAITS = 8192, 2048, 2048, 4096, 4, 3
RATE, FIRST, SECOND, DECAY = 3e-4, 0.9, 0.98, 0.01
READ_EVERY = 100


def initial(key):
    keys = iter(jax.random.split(key, 3 * LAYERS + 2))

    def dense(into, out):
        return jax.random.normal(next(keys), (into, out)) * into**-0.5

    layers = [
        {"gate": dense(WIDTH, HIDDEN), "up": dense(WIDTH, HIDDEN), "down": dense(HIDDEN, WIDTH)} for _ in range(LAYERS)
    ]
    return {"enter": dense(BINS, WIDTH), "layers": layers, "leave": dense(WIDTH, TRAITS)}


def norm(x):
    wide = x.astype(jnp.float32)
    return (wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)).astype(x.dtype)


def traits(weights, spectra):
    weights = jax.tree.map(lambda w: w.astype(jnp.bfloat16), weights)
    x = spectra @ weights["enter"]
    for layer in weights["layers"]:
        y = norm(x)
        x = x + (jax.nn.silu(y @ layer["gate"]) * (y @ layer["up"])) @ layer["down"]
    return (norm(x) @ weights["leave"]).astype(jnp.float32)


def misfit(weights, spectra, known):
    error = jnp.abs(traits(weights, spectra) - known)
    return jnp.mean(jnp.where(error < 1, 0.5 * error**2, error - 0.5))


def descend(state, spectra, known):
    loss, slopes = jax.value_and_grad(misfit)(state["weights"], spectra, known)
    count = state["count"] + 1
    first = jax.tree.map(lambda m, slope: FIRST * m + (1 - FIRST) * slope, state["first"], slopes)
    second = jax.tree.map(lambda m, slope: SECOND * m + (1 - SECOND) * slope**2, state["second"], slopes)
    rate = RATE * jnp.sqrt(1 - SECOND**count) / (1 - FIRST**count)
    weights = jax.tree.map(
        lambda w, m, v: w - rate * m / (jnp.sqrt(v) + 1e-8) - RATE * DECAY * w, state["weights"], first, second
    )
    total = state["loss"] + loss
    return {"weights": weights, "first": first, "second": second, "count": count, "loss": total}


def build(fixed):
    weights = initial(jax.random.PRNGKey(0))
    state = {
        "weights": weights,
        "first": jax.tree.map(jnp.zeros_like, weights),
        "second": jax.tree.map(jnp.zeros_like, weights),
        "count": jnp.zeros((), jnp.float32),
        "loss": jnp.zeros((), jnp.float32),
    }
    keys = jax.random.split(jax.random.PRNGKey(1), 2)
    spectra = jax.random.normal(keys[0], (8, STARS, BINS), jnp.bfloat16)
    known = jnp.tanh(spectra[..., :TRAITS].astype(jnp.float32) + 0.1 * jax.random.normal(keys[1], (8, STARS, TRAITS)))
    batches = [(spectra[n], known[n]) for n in range(8)]
    train = jax.jit(descend, donate_argnums=0)
    held = {"state": state}

    def step(i):
        held["state"] = train(held["state"], *batches[i % 8])
        if i % READ_EVERY == READ_EVERY - 1:
            print(f"{i + 1} steps, mean misfit {float(held['state']['loss']) / (i + 1):.4f}")
        return held["state"]["count"]

    return step


if __name__ == "__main__":
    run(build)
