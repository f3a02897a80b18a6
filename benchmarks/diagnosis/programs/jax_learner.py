"""Learns a policy from games of actors on other machines, for whom the learner publishes its weights (JAX)."""

import jax
import jax.numpy as jnp
import numpy as np
from _run_other import run

CAUSE = "downloads"
ALSO = ()

GAMES, OBSERVED, WIDTH, LAYERS, MOVES = 8192, 512, 2048, 6, 64
RATE, MOMENTUM = 1e-3, 0.9


def initial(key):
    keys = iter(jax.random.split(key, LAYERS + 3))

    def dense(inputs, outputs):
        return {"w": jax.random.normal(next(keys), (inputs, outputs)) * inputs**-0.5, "b": jnp.zeros(outputs)}

    return {
        "enter": dense(OBSERVED, WIDTH),
        "layers": [dense(WIDTH, WIDTH) for _ in range(LAYERS)],
        "policy": dense(WIDTH, MOVES),
        "value": dense(WIDTH, 1),
    }


def apply(layer, x):
    return x @ layer["w"].astype(x.dtype) + layer["b"].astype(x.dtype)


def predict(weights, observed):
    x = jax.nn.silu(apply(weights["enter"], observed))
    for layer in weights["layers"]:
        x = x + jax.nn.silu(apply(layer, x))
    logs = jax.nn.log_softmax(apply(weights["policy"], x).astype(jnp.float32))
    return logs, apply(weights["value"], x)[:, 0].astype(jnp.float32)


def loss_of(weights, observed, moves, returns):
    logs, values = predict(weights, observed)
    advantages = jax.lax.stop_gradient(returns - values)
    taken = jnp.take_along_axis(logs, moves[:, None], 1)[:, 0]
    entropy = -jnp.mean(jnp.sum(jnp.exp(logs) * logs, 1))
    return -jnp.mean(advantages * taken) + 0.5 * jnp.mean((returns - values) ** 2) - 0.01 * entropy


def train(weights, velocity, observed, moves, returns):
    loss, slopes = jax.value_and_grad(loss_of)(weights, observed, moves, returns)
    velocity = jax.tree.map(lambda v, slope: MOMENTUM * v + slope, velocity, slopes)
    return jax.tree.map(lambda w, v: w - RATE * v, weights, velocity), velocity, loss


class Publisher:
    """Holds the weights that actors fetch, in memory of the host."""

    def __init__(self, every):
        self.every = every
        self.published = None

    def offer(self, i, weights):
        if i % self.every == 0:
            self.published = jax.tree.map(np.asarray, weights)  # fault


def build(fixed):
    keys = jax.random.split(jax.random.PRNGKey(0), 4)
    weights = initial(keys[0])
    state = {"weights": weights, "velocity": jax.tree.map(jnp.zeros_like, weights)}
    observed = jax.random.normal(keys[1], (GAMES, OBSERVED), jnp.bfloat16)
    moves = jax.random.randint(keys[2], (GAMES,), 0, MOVES)
    returns = jax.random.normal(keys[3], (GAMES,))
    train_step = jax.jit(train, donate_argnums=(0, 1))
    publisher = Publisher(every=1000 if fixed else 1)

    def step(i):
        state["weights"], state["velocity"], loss = train_step(
            state["weights"], state["velocity"], observed, moves, returns
        )
        publisher.offer(i, state["weights"])  # fault
        return loss

    return step


if __name__ == "__main__":
    run(build)
