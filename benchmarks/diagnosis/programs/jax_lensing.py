"""Scores candidate models of a gravitational lens (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "repeated-work"
ALSO = ()
CANDIDATES, SIDE, PLANES = 64, 128, 4
SIGMA = 0.05


def grid():
    line = jnp.linspace(-1.5, 1.5, SIDE)
    return jnp.stack(jnp.meshgrid(line, line), -1)


def deflection(plane, position):
    """Of a singular isothermal ellipsoid: centre, radius, ellipticity and angle."""
    centre, radius, flattening, angle = plane[:2], plane[2], plane[3], plane[4]
    shifted = position - centre
    c, s = jnp.cos(angle), jnp.sin(angle)
    x = c * shifted[..., 0] + s * shifted[..., 1]
    y = -s * shifted[..., 0] + c * shifted[..., 1]
    q = 0.3 + 0.6 * jax.nn.sigmoid(flattening)
    f = jnp.sqrt(1 - q * q)
    psi = jnp.sqrt(q * q * x * x + y * y + 1e-6)
    ax = radius * q / f * jnp.arctan(f * x / psi)
    ay = radius * q / f * jnp.arctanh(jnp.clip(f * y / (psi + q * q), -0.999, 0.999))
    return jnp.stack([c * ax - s * ay, s * ax + c * ay], -1)


def picture(candidate):
    position = grid()
    for plane in candidate["planes"]:
        position = position - deflection(plane, position)
    distance = jnp.sum((position - candidate["source"][:2]) ** 2, -1)
    size = 0.05 + jnp.abs(candidate["source"][2])
    return candidate["source"][3] * jnp.exp(-0.5 * distance / size**2)


def misfit(candidate, observed):
    return jnp.mean(((picture(candidate) - observed) / SIGMA) ** 2)


value_and_slope = jax.jit(jax.value_and_grad(misfit))


def population(key):
    parts = jax.random.split(key, 2)
    planes = 0.2 * jax.random.normal(parts[0], (CANDIDATES, PLANES, 5))
    planes = planes.at[..., 2].set(0.3)
    source = 0.1 * jax.random.normal(parts[1], (CANDIDATES, 4))
    return {"planes": planes, "source": source.at[:, 3].set(1.0)}


def scores_in_turn(candidates, observed):
    values, slopes = [], []
    for which in range(CANDIDATES):  # fault
        candidate = jax.tree.map(lambda part, at=which: part[at], candidates)  # fault
        value, slope = value_and_slope(candidate, observed)  # fault
        values.append(value)
        slopes.append(slope)
    return jnp.stack(values), jax.tree.map(lambda *parts: jnp.stack(parts), *slopes)  # fault


scores_at_once = jax.jit(jax.vmap(jax.value_and_grad(misfit), in_axes=(0, None)))


@jax.jit
def descend(candidates, slopes):
    def move(part, slope):
        norm = jnp.sqrt(jnp.sum(slope**2, axis=tuple(range(1, slope.ndim)), keepdims=True))
        return part - 1e-3 * slope / (norm + 1e-6)

    return jax.tree.map(move, candidates, slopes)


def build(fixed):
    candidates = population(jax.random.PRNGKey(0))
    observed = picture(jax.tree.map(lambda part: part[0], population(jax.random.PRNGKey(1))))
    scores = scores_at_once if fixed else scores_in_turn
    one, other = scores_in_turn(candidates, observed)[0], scores_at_once(candidates, observed)[0]
    assert jnp.allclose(one, other, rtol=1e-2)  # noqa: S101 - of the program itself
    state = {"candidates": candidates}

    def step(i):
        values, slopes = scores(state["candidates"], observed)
        state["candidates"] = descend(state["candidates"], slopes)
        return values

    return step


if __name__ == "__main__":
    run(build)
