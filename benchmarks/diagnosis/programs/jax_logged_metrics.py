"""Trains a classifier in JAX and reads every metric of every step as a Python float."""

import jax
import jax.numpy as jnp
from _run_other import run

CAUSE = "blocking-read"
ALSO = ()

BATCH, WIDTH, CLASSES, LAYERS = 1024, 512, 128, 4


def logits_of(params, x):
    for weight in params[:-1]:
        x = jax.nn.relu(x @ weight)
    return x @ params[-1]


def loss_of(params, x, labels):
    logits = logits_of(params, x)
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1)), logits


@jax.jit
def update(params, x, labels):
    (loss, logits), grads = jax.value_and_grad(loss_of, has_aux=True)(params, x, labels)
    return jax.tree.map(lambda p, g: p - 0.01 * g, params, grads), loss, logits, grads


@jax.jit
def metrics_of(loss, logits, labels, grads):
    probabilities = jax.nn.softmax(logits)
    return {
        "loss": loss,
        "accuracy": jnp.mean(jnp.argmax(logits, 1) == labels),
        "entropy": -jnp.mean(jnp.sum(probabilities * jnp.log(probabilities + 1e-9), 1)),
        "confidence": jnp.mean(jnp.max(probabilities, 1)),
        **{f"grad{n}": jnp.linalg.norm(grad) for n, grad in enumerate(grads)},
    }


def build(fixed):
    keys = jax.random.split(jax.random.key(0), LAYERS + 2)
    sizes = [WIDTH] * LAYERS + [CLASSES]
    params = [jax.random.normal(k, (n, m)) / n**0.5 for k, n, m in zip(keys, sizes, sizes[1:], strict=False)]
    x = jax.random.normal(keys[-2], (BATCH, WIDTH))
    labels = jax.random.randint(keys[-1], (BATCH,), 0, CLASSES)
    history = []

    def step(i):
        nonlocal params
        params, loss, logits, grads = update(params, x, labels)
        metrics = metrics_of(loss, logits, labels, grads)
        if fixed:
            history.append(metrics)  # read at the end of the epoch
        else:
            history.append({name: float(value) for name, value in metrics.items()})  # fault
        del history[:-100]
        return metrics

    return step


if __name__ == "__main__":
    run(build)
