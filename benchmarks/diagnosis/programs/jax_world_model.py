"""Trains a world model of a robot (JAX)."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "not-jitted"
ALSO = ()
WIDTH, LAYERS = 768, 12
BATCH, OBSERVATION, ACTION = 4096, 128, 16
RATE, FIRST, SECOND, DECAY = 3e-4, 0.9, 0.999, 1e-4


def initial(key):
    def dense(key, inputs, outputs):
        return {"w": jax.random.normal(key, (inputs, outputs)) * inputs**-0.5, "b": jnp.zeros(outputs)}

    keys = jax.random.split(key, 2 * LAYERS + 2)
    layers = [
        {
            "scale": jnp.ones(WIDTH),
            "shift": jnp.zeros(WIDTH),
            "first": dense(keys[2 * i], WIDTH, WIDTH),
            "second": dense(keys[2 * i + 1], WIDTH, WIDTH),
        }
        for i in range(LAYERS)
    ]
    return {
        "enter": dense(keys[-2], OBSERVATION + ACTION, WIDTH),
        "layers": layers,
        "leave": dense(keys[-1], WIDTH, OBSERVATION),
    }


def apply(layer, x):
    return x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)


def predict(weights, observation, action):
    x = apply(weights["enter"], jnp.concatenate([observation, action], -1).astype(jnp.bfloat16))
    for layer in weights["layers"]:
        y = x.astype(jnp.float32)
        y = (y - y.mean(-1, keepdims=True)) * jax.lax.rsqrt(y.var(-1, keepdims=True) + 1e-5)
        y = (y * layer["scale"] + layer["shift"]).astype(x.dtype)
        x = x + apply(layer["second"], jax.nn.silu(apply(layer["first"], y)))
    return observation + apply(weights["leave"], x).astype(jnp.float32)


def loss_of(weights, batch):
    observation, action, following = batch
    return jnp.mean((predict(weights, observation, action) - following) ** 2)


class Adam:
    """AdamW as a pure function of (weights, gradients, state)."""

    def start(self, weights):
        zeros = jax.tree.map(jnp.zeros_like, weights)
        return zeros, jax.tree.map(jnp.zeros_like, weights), jnp.zeros((), jnp.int32)

    def update(self, weights, gradients, state):
        first, second, count = state
        count = count + 1
        first = jax.tree.map(lambda m, g: FIRST * m + (1 - FIRST) * g, first, gradients)  # fault
        second = jax.tree.map(lambda v, g: SECOND * v + (1 - SECOND) * g * g, second, gradients)  # fault
        first_scale = 1 / (1 - FIRST**count)
        second_scale = 1 / (1 - SECOND**count)

        def move(weight, m, v):
            change = m * first_scale / (jnp.sqrt(v * second_scale) + 1e-8)  # fault
            return weight - RATE * (change + DECAY * weight)  # fault

        return jax.tree.map(move, weights, first, second), (first, second, count)  # fault


def build(fixed):
    key = jax.random.PRNGKey(0)
    weights = initial(key)
    adam = Adam()
    gradients_of = jax.jit(jax.value_and_grad(loss_of))
    update = jax.jit(adam.update, donate_argnums=(0, 2)) if fixed else adam.update
    state = {"weights": weights, "adam": adam.start(weights)}
    parts = jax.random.split(key, 3)
    batch = (
        jax.random.normal(parts[0], (BATCH, OBSERVATION)),
        jax.random.normal(parts[1], (BATCH, ACTION)),
        jax.random.normal(parts[2], (BATCH, OBSERVATION)),
    )

    def step(i):
        loss, gradients = gradients_of(state["weights"], batch)
        state["weights"], state["adam"] = update(state["weights"], gradients, state["adam"])  # fault
        return loss

    return step


if __name__ == "__main__":
    run(build)
