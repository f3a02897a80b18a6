"""Computes statistics of sound recordings in JAX, each of another length."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "recompilation"
ALSO = ()

CHANNELS, LONGEST = 64, 262_144


@jax.jit
def statistics(signal, length):
    """Mean, spread, loudness and roughness of each channel of the first `length` samples."""
    valid = jnp.arange(signal.shape[1]) < length
    mean = jnp.sum(signal, 1, where=valid, keepdims=True) / length
    centred = jnp.where(valid, signal - mean, 0)
    spread = jnp.sqrt(jnp.sum(centred**2, 1) / length)
    scaled = jnp.tanh(centred / (3 * spread[:, None]))
    loudness = 10 * jnp.log10(jnp.sum(scaled**2, 1) / length + 1e-9)
    roughness = jnp.sum(jnp.abs(scaled[:, 1:] - scaled[:, :-1]), 1, where=valid[1:]) / length
    return jnp.stack([mean[:, 0], spread, loudness, roughness])


def build(fixed):
    rng = np.random.default_rng(0)
    recordings = jnp.asarray(rng.standard_normal((CHANNELS, LONGEST), np.float32))
    longest = jax.device_put(recordings)

    def step(i):
        length = LONGEST // 2 + 7 * (i % 18_000)
        if fixed:
            return statistics(longest, length)
        return statistics(jax.lax.slice_in_dim(recordings, 0, length, axis=1), length)  # fault

    return step


if __name__ == "__main__":
    run(build)
