"""Scores descriptions of wines with a network of two wide layers: a Triton product with bias and GELU in one."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "small-tiles"
ALSO = ()

WINES, WIDTH, INNER = 16_384, 2048, 8192


@triton.jit
def dense(
    x, w, bias, y, M, N, K, ACTIVE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    across = tl.cdiv(N, BLOCK_N)
    in_group = GROUP * across
    group = tl.program_id(0) // in_group
    rows_here = min(tl.cdiv(M, BLOCK_M) - group * GROUP, GROUP)
    row = group * GROUP + (tl.program_id(0) % in_group) % rows_here
    column = (tl.program_id(0) % in_group) // rows_here
    m = row * BLOCK_M + tl.arange(0, BLOCK_M)
    n = column * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + m[:, None] * K + k[None, :]
    w_at = w + k[:, None] * N + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        total = tl.dot(tl.load(x_at), tl.load(w_at), total)  # fault
        x_at += BLOCK_K
        w_at += BLOCK_K * N
    total += tl.load(bias + n)[None, :]
    if ACTIVE:
        total = total * tl.sigmoid(1.702 * total)
    tl.store(y + m[:, None] * N + n[None, :], total.to(tl.bfloat16))


def layer(x, w, bias, y, active, fixed):
    (M, K), N = x.shape, w.shape[1]  # noqa: N806
    if fixed:
        grid = (triton.cdiv(M, 128) * triton.cdiv(N, 256),)
        dense[grid](x, w, bias, y, M, N, K, active, 128, 256, 64, 8, num_warps=8, num_stages=3)
    else:
        grid = (triton.cdiv(M, 32) * triton.cdiv(N, 32),)  # fault
        dense[grid](x, w, bias, y, M, N, K, active, 32, 32, 32, 8, num_warps=4, num_stages=3)  # fault


def build(fixed):
    torch.manual_seed(0)
    options = {"device": "cuda", "dtype": torch.bfloat16}
    words = torch.randn(2, WINES, WIDTH, **options)
    first, second = torch.randn(WIDTH, INNER, **options) / 45, torch.randn(INNER, WIDTH, **options) / 90
    first_bias, second_bias = torch.zeros(INNER, **options), torch.zeros(WIDTH, **options)
    inner, outer = torch.empty(WINES, INNER, **options), torch.empty(WINES, WIDTH, **options)
    taste = torch.randn(WIDTH, 1, **options) / 45

    def step(i):
        layer(words[i % 2], first, first_bias, inner, True, fixed)
        layer(inner, second, second_bias, outer, False, fixed)
        return (outer @ taste)[:, 0]

    return step


if __name__ == "__main__":
    run(build)
