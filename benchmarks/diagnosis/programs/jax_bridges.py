"""Watches the strain gauges of bridges: keeps their last minutes in a ring and foretells the next reading (JAX)."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "no-donation"
ALSO = ()

GAUGES, CHANNELS, SLOTS, WINDOW, WIDTH = 8192, 32, 1024, 16, 2048
READINGS = 8


def initial(key):
    sizes = [WINDOW * CHANNELS, WIDTH, WIDTH, CHANNELS]
    keys = jax.random.split(key, len(sizes) - 1)
    return [
        jax.random.normal(key, (into, out), jnp.bfloat16) * into**-0.5
        for key, into, out in zip(keys, sizes[:-1], sizes[1:], strict=False)
    ]


def record(ring, slot, reading):
    return ring.at[slot].set(reading)  # fault


@jax.jit
def surprise(weights, ring, slot, reading):
    """How far the reading lies from what the window before it foretold, for each gauge."""
    slots = (slot - WINDOW + jnp.arange(WINDOW)) % SLOTS
    x = jnp.moveaxis(ring[slots], 0, 1).reshape(GAUGES, WINDOW * CHANNELS).astype(jnp.bfloat16)
    for w in weights[:-1]:
        x = jax.nn.gelu(x @ w)
    foretold = (x @ weights[-1]).astype(jnp.float32)
    return jnp.sqrt(jnp.mean((foretold - reading) ** 2, axis=-1))


class Watch:
    def __init__(self, fixed):
        self.weights = initial(jax.random.PRNGKey(0))
        self.ring = jnp.zeros((SLOTS, GAUGES, CHANNELS))
        self.record = jax.jit(record, donate_argnums=0) if fixed else jax.jit(record)  # fault
        self.slot = 0
        self.alarms = jnp.zeros(GAUGES, jnp.int32)

    def take(self, reading):
        slot = np.int32(self.slot)
        strange = surprise(self.weights, self.ring, slot, reading)
        self.ring = self.record(self.ring, slot, reading)  # fault
        self.slot = (self.slot + 1) % SLOTS
        return strange


@jax.jit
def raised(alarms, strange):
    return alarms + sum((each > 1.25 * jnp.median(each)).astype(jnp.int32) for each in strange)


def build(fixed):
    watch = Watch(fixed)
    noise = jax.random.normal(jax.random.PRNGKey(1), (READINGS, GAUGES, CHANNELS))
    readings = [0.1 * noise[n] + jnp.sin(0.3 * n) for n in range(READINGS)]

    def step(i):
        strange = [watch.take(reading) for reading in readings]
        watch.alarms = raised(watch.alarms, strange)
        return watch.alarms

    return step


if __name__ == "__main__":
    run(build)
