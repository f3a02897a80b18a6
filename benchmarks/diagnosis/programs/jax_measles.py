"""Simulates a year of measles in the counties of a country that are joined by commuters, for several vaccinations."""

import os

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "repeated-work"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
COUNTIES, PLANS, DAYS = (64, 2, 12) if TINY else (1024, 16, 365)
CONTAGION, ONSET, RECOVERY, WANING = 0.6, 1 / 10, 1 / 8, 1e-4


def commuting(key):
    """The share of a county's contacts that are with each other county."""
    places = jax.random.uniform(key, (COUNTIES, 2))
    far = jnp.sqrt(((places[:, None] - places[None]) ** 2).sum(-1))
    near = jnp.exp(-far / 0.05)
    return near / near.sum(1, keepdims=True)


def start(key, vaccinated):
    people = jax.random.uniform(key, (COUNTIES, 1), minval=1e4, maxval=1e6)
    susceptible = people * (1 - vaccinated)
    infected = jnp.zeros((COUNTIES, PLANS)).at[0].set(50.0)
    return {
        "susceptible": susceptible - infected,
        "exposed": jnp.zeros((COUNTIES, PLANS)),
        "infected": infected,
        "recovered": people * vaccinated,
    }


def next_day(contacts, state, day):
    people = sum(state.values())
    season = 1 + 0.2 * jnp.cos(2 * jnp.pi * day / 365)
    force = CONTAGION * season * (contacts @ (state["infected"] / people))
    caught = state["susceptible"] * (1 - jnp.exp(-force))
    ill = ONSET * state["exposed"]
    well = RECOVERY * state["infected"]
    lost = WANING * state["recovered"]
    state = {
        "susceptible": state["susceptible"] - caught + lost,
        "exposed": state["exposed"] + caught - ill,
        "infected": state["infected"] + ill - well,
        "recovered": state["recovered"] + well - lost,
    }
    return state, caught.sum(0)


advance = jax.jit(next_day)


@jax.jit
def whole_year(contacts, state):
    days = jnp.arange(DAYS, dtype=jnp.float32)
    return jax.lax.scan(lambda state, day: next_day(contacts, state, day), state, days, unroll=5)


def build(fixed):
    contacts = commuting(jax.random.PRNGKey(0))
    vaccinated = jnp.linspace(0.5, 0.95, PLANS)
    states = [start(jax.random.PRNGKey(k), vaccinated) for k in range(1, 5)]

    def step(i):
        state = states[i % 4]
        if fixed:
            return whole_year(contacts, state)
        cases = []
        for day in range(DAYS):  # fault
            state, new = advance(contacts, state, float(day))  # fault
            cases.append(new)
        return state, jnp.stack(cases)

    return step


if __name__ == "__main__":
    run(build)
