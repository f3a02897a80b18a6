"""Runs a program of the benchmark: a warm-up, then the steps that are recorded.

    python NAME.py [fixed|main] [--steps N]

DIAGNOSIS_LOCK names a file that is locked while the steps run, so that programs started side by side take turns.
DIAGNOSIS_TINY=1 makes everything tiny, for a machine without a GPU.
"""

import argparse
import fcntl
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
WARM_UP_STEPS = 3

torch.set_float32_matmul_precision("high")
if DEVICE == "cpu":
    torch.cuda.synchronize = lambda *_: None


def size(usual: int, tiny: int) -> int:
    """The usual size, or the tiny one where everything is tiny."""
    return tiny if TINY else usual


def run(build: Callable[[bool | str], Callable[[int], object]], steps: int = 12) -> None:
    """Warms a program up, and runs its steps once the lock is ours."""
    parser = argparse.ArgumentParser()
    parser.add_argument("variant", nargs="?", choices=["fault", "fixed", "main"], default="fault")
    parser.add_argument("--steps", type=int, default=steps)
    options = parser.parse_args()
    step = build({"fault": False, "fixed": True, "main": "main"}[options.variant])
    for i in range(WARM_UP_STEPS):
        step(i)
    torch.cuda.synchronize()
    with ExitStack() as held:
        if lock := os.environ.get("DIAGNOSIS_LOCK"):
            fcntl.flock(held.enter_context(Path(lock).open("w")), fcntl.LOCK_EX)
        for i in range(WARM_UP_STEPS, WARM_UP_STEPS + options.steps):
            step(i)
        torch.cuda.synchronize()
