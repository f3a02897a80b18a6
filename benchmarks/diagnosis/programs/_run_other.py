"""Runs a program of JAX, CuPy or Triton: `python NAME.py [fixed|main] [--steps N] [--time]`.

`--time` prints the mean of a step, in ms, of three repeats of half a second, with the lowest and the highest of them.
The environment's DIAGNOSIS_LOCK is a file: who holds it has the GPU for its steps, after imports and first steps.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

WARM_STEPS = 5
REPEATS = 3
REPEAT_S = 0.5

#: JAX takes three quarters of the GPU's memory otherwise, and several programs start side by side.
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.09")


def synchronize(result: object) -> None:
    """Waits until the GPU has done everything that was launched; `result` is what the last step returned."""
    if "jax" in sys.modules:
        sys.modules["jax"].block_until_ready(result)
    elif "cupy" in sys.modules:
        sys.modules["cupy"].cuda.runtime.deviceSynchronize()
    elif sys.modules["torch"].cuda.is_available():
        sys.modules["torch"].cuda.synchronize()


@contextlib.contextmanager
def gpu_alone() -> Iterator[None]:
    """Holds the lock that DIAGNOSIS_LOCK names, if it does."""
    path = os.environ.get("DIAGNOSIS_LOCK")
    if not path:
        yield
        return
    with Path(path).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run(build: Callable[[bool | str], Callable[[int], object]]) -> None:
    """Runs or times the program, as the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", nargs="?", choices=["fault", "fixed", "main"], default="fault")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--time", action="store_true")
    options = parser.parse_args()
    step = build({"fault": False, "fixed": True, "main": "main"}[options.variant])
    done = 0

    def steps_ms(count: int) -> float:
        nonlocal done
        result = None
        start = time.perf_counter()
        for i in range(done, done + count):
            result = step(i)
        synchronize(result)
        done += count
        return (time.perf_counter() - start) / count * 1e3

    steps_ms(WARM_STEPS)
    with gpu_alone():
        if not options.time:
            steps_ms(options.steps)
            return
        estimate_ms = min(steps_ms(5), steps_ms(5))
        count = max(5, round(REPEAT_S * 1e3 / estimate_ms))
        means = [steps_ms(count) for _ in range(REPEATS)]
    timing = {"ms": sum(means) / REPEATS, "low": min(means), "high": max(means)}
    print(json.dumps({"name": Path(sys.argv[0]).stem, "variant": options.variant} | timing))
