"""Trains a network that foretells the water levels of a canal from the weather of six weeks (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "repeated-work"
ALSO = ()

REACHES, HOURS, GAUGES, WIDTH, LAYERS = 16, 1024, 24, 512, 2
RATE = 1e-3


def initial(key):
    keys = jax.random.split(key, 3 * LAYERS + 2)

    def dense(key, into, out):
        return jax.random.normal(key, (into, out)) * into**-0.5

    layers = [
        {
            "drive": dense(keys[3 * n], WIDTH, WIDTH),
            "gate": dense(keys[3 * n + 1], WIDTH, WIDTH),
            "mix": dense(keys[3 * n + 2], WIDTH, WIDTH),
            "decay": jnp.linspace(0.0, 5.0, WIDTH),
        }
        for n in range(LAYERS)
    ]
    return {"enter": dense(keys[-2], GAUGES, WIDTH), "layers": layers, "leave": dense(keys[-1], WIDTH, 1)}


def build(fixed):
    def stored(decay, drive):
        """The water that each basin holds: what it held an hour ago, less what ran out, and what came."""
        if fixed:

            def join(early, late):
                return early[0] * late[0], early[1] * late[0] + late[1]

            return jax.lax.associative_scan(join, (jnp.broadcast_to(decay, drive.shape), drive), axis=1)[1]

        def hour(level, inflow):
            level = decay * level + inflow  # fault
            return level, level

        start = jnp.zeros_like(drive[:, 0])
        _, levels = jax.lax.scan(hour, start, jnp.moveaxis(drive, 1, 0))  # fault
        return jnp.moveaxis(levels, 0, 1)

    def foretell(weights, weather):
        x = weather @ weights["enter"]
        for layer in weights["layers"]:
            decay = jax.nn.sigmoid(layer["decay"])
            held = stored(decay, (1 - decay) * (x @ layer["drive"]))
            x = x + (held * jax.nn.silu(x @ layer["gate"])) @ layer["mix"]
        return (x @ weights["leave"])[..., 0]

    def misfit(weights, weather, levels):
        return jnp.mean(jnp.abs(foretell(weights, weather) - levels))

    @jax.jit
    def descend(weights, speed, weather, levels):
        loss, slopes = jax.value_and_grad(misfit)(weights, weather, levels)
        speed = jax.tree.map(lambda v, slope: 0.9 * v + slope, speed, slopes)
        weights = jax.tree.map(lambda w, v: w - RATE * v, weights, speed)
        return weights, speed, loss

    weights = initial(jax.random.PRNGKey(0))
    state = {"weights": weights, "speed": jax.tree.map(jnp.zeros_like, weights)}
    weather = jax.random.normal(jax.random.PRNGKey(1), (4, REACHES, HOURS, GAUGES))
    levels = jnp.cumsum(weather[..., :3].mean(-1), axis=2) * 0.03
    batches = [(weather[n], levels[n]) for n in range(4)]

    def step(i):
        state["weights"], state["speed"], loss = descend(state["weights"], state["speed"], *batches[i % 4])
        return loss

    return step


if __name__ == "__main__":
    run(build)
