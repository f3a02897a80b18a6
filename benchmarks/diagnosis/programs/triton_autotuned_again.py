"""Applies a gated activation with a Triton kernel that is autotuned for every number of tokens anew."""

import functools

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "recompilation"
ALSO = ()

WIDTH, MOST_TOKENS = 4096, 8192
CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block, warps in ((512, 4), (1024, 4), (1024, 8))]

quick = functools.partial(triton.testing.do_bench, warmup=1, rep=2)


@triton.jit
def gate(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    other = tl.load(x + n + at, mask=at < n)
    tl.store(y + at, value * other / (1 + tl.exp(-other)), mask=at < n)


gate_per_size = triton.autotune(CONFIGS, key=["n"], do_bench=quick)(gate)  # fault
gate_tuned_once = triton.autotune(CONFIGS, key=[], do_bench=quick)(gate)


def build(fixed):
    x = torch.randn(2 * MOST_TOKENS * WIDTH, device="cuda")
    y = torch.empty(MOST_TOKENS * WIDTH, device="cuda")

    def step(i):
        n = (MOST_TOKENS - i % 4096) * WIDTH
        grid = lambda meta: (triton.cdiv(n, meta["BLOCK"]),)  # noqa: E731
        if fixed:
            gate_tuned_once[grid](x, y, n)
        else:
            gate_per_size[grid](x, y, n)  # fault
        return y

    return step


if __name__ == "__main__":
    run(build)
