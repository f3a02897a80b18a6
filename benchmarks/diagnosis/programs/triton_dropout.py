"""Drops values at random with a Triton kernel that takes the seed, another in each step, as a constant."""

import random

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "recompilation"
ALSO = ()

VALUES, BLOCK = 33_554_432, 1024


@triton.jit
def dropout_constant(x, y, n, p, SEED: tl.constexpr, BLOCK: tl.constexpr):  # fault
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(SEED, at) > p
    values = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(kept, values / (1 - p), 0.0), mask=at < n)


@triton.jit(do_not_specialize=["seed"])
def dropout(x, y, n, p, seed, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.rand(seed, at) > p
    values = tl.load(x + at, mask=at < n)
    tl.store(y + at, tl.where(kept, values / (1 - p), 0.0), mask=at < n)


def build(fixed):
    x = torch.randn(VALUES, device="cuda")
    y = torch.empty_like(x)
    grid = (triton.cdiv(VALUES, BLOCK),)

    def step(i):
        seed = random.getrandbits(30)
        if fixed:
            dropout[grid](x, y, VALUES, 0.1, seed, BLOCK)
        else:
            dropout_constant[grid](x, y, VALUES, 0.1, seed, BLOCK)  # fault
        return y

    return step


if __name__ == "__main__":
    run(build)
