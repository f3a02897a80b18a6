"""Simulates traffic on the roads of a country: density and speed of cars along each road (JAX)."""

import os
import time
from collections import Counter

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "unneeded-sync"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
ROADS, CELLS, SUBSTEPS = (8, 32, 3) if TINY else (2560, 4096, 60)
CELL, INTERVAL = 50.0, 0.5
JAM, FREE, RELAXATION = 0.15, 30.0, 8.0


def pressure(density):
    return 12.0 * (density / JAM) ** 2


def desired_speed(density):
    return FREE * jnp.maximum(1 - density / JAM, 0.0)


def fluxes(density, speed):
    """What passes from each cell to the next: of cars, and of what they carry with them (Aw, Rascle and Zhang)."""
    carried = density * (speed + pressure(density))
    cars, load = density * speed, carried * speed
    ahead = jnp.roll(density, -1, axis=1)
    room = jnp.maximum(1 - ahead / JAM, 0.0)
    return cars * jnp.minimum(1.0, 2 * room), load * jnp.minimum(1.0, 2 * room), carried


def advance(state, inflow):
    density, speed = state["density"], state["speed"]
    cars, load, carried = fluxes(density, speed)
    ratio = INTERVAL / CELL
    cars_in = jnp.roll(cars, 1, axis=1).at[:, 0].set(inflow)
    load_in = jnp.roll(load, 1, axis=1).at[:, 0].set(inflow * FREE)
    density = jnp.clip(density + ratio * (cars_in - cars), 1e-4, JAM)
    carried = carried + ratio * (load_in - load)
    speed = jnp.clip(carried / density - pressure(density), 0.0, FREE)
    speed = speed + INTERVAL / RELAXATION * (desired_speed(density) - speed)
    return {"density": density, "speed": speed}


@jax.jit
def travel_times(state):
    return jnp.sum(CELL / jnp.maximum(state["speed"], 1.0), axis=1)


class Timed:
    """A function, and how many seconds its calls have taken."""

    seconds = Counter()  # noqa: RUF012

    def __init__(self, name, function):
        self.name, self.function = name, function

    def __call__(self, *arguments):
        start = time.perf_counter()
        result = self.function(*arguments)
        jax.block_until_ready(result)  # fault
        self.seconds[self.name] += time.perf_counter() - start
        return result


class Simulation:
    def __init__(self, wrap):
        keys = jax.random.split(jax.random.PRNGKey(0), 2)
        density = 0.02 + 0.06 * jax.random.uniform(keys[0], (ROADS, CELLS))
        self.state = {"density": density, "speed": desired_speed(density)}
        self.inflow = 0.3 + 0.4 * jax.random.uniform(keys[1], (ROADS,))
        self.advance = wrap("advance", jax.jit(advance, donate_argnums=0))
        self.travel_times = wrap("travel times", travel_times)

    def minutes(self):
        for _ in range(SUBSTEPS):
            self.state = self.advance(self.state, self.inflow)  # fault
        return self.travel_times(self.state)


def build(fixed):
    simulation = Simulation((lambda name, function: function) if fixed else Timed)
    return lambda i: simulation.minutes()


if __name__ == "__main__":
    run(build)
