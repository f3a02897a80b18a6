"""Sends features of microscopic images of cells through the layers of a network, with a matrix kernel of its own."""

import os

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "widened-products"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
IMAGES, WIDTH, LAYERS = (256, 256, 2) if TINY else (8192, 4096, 6)
BLOCK_M, BLOCK_N, BLOCK_K, GROUP = 128, 128, 64, 8


@triton.jit
def layer(
    x, weights, bias, y, M, N, K,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr, NARROW: tl.constexpr,
):  # fmt: skip
    """Y = silu(x @ weights + bias)."""
    program = tl.program_id(0)
    per_group = GROUP * tl.cdiv(N, BLOCK_N)
    first = program // per_group * GROUP
    rows_of_group = min(tl.cdiv(M, BLOCK_M) - first, GROUP)
    m = first + program % per_group % rows_of_group
    n = program % per_group // rows_of_group
    rows = m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = n * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    x_at = x + rows[:, None] * K + inner[None, :]
    weights_at = weights + inner[:, None] * N + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, K, BLOCK_K):
        a = tl.load(x_at)
        b = tl.load(weights_at)
        if NARROW:
            total = tl.dot(a, b, total)
        else:
            total += tl.dot(a.to(tl.float32), b.to(tl.float32))  # fault
        x_at += BLOCK_K
        weights_at += BLOCK_K * N
    total += tl.load(bias + columns)[None, :].to(tl.float32)
    total = total * tl.sigmoid(total)
    tl.store(y + rows[:, None] * N + columns[None, :], total.to(tl.bfloat16))


class Network:
    def __init__(self, narrow):
        self.narrow = narrow
        scale = 1.6 * WIDTH**-0.5
        self.weights = [(scale * torch.randn(WIDTH, WIDTH, device="cuda")).to(torch.bfloat16) for _ in range(LAYERS)]
        self.biases = [torch.zeros(WIDTH, device="cuda", dtype=torch.bfloat16) for _ in range(LAYERS)]

    def __call__(self, x):
        grid = (triton.cdiv(IMAGES, BLOCK_M) * triton.cdiv(WIDTH, BLOCK_N),)
        for weights, bias in zip(self.weights, self.biases, strict=True):
            y = torch.empty_like(x)
            layer[grid](
                x, weights, bias, y, IMAGES, WIDTH, WIDTH,
                BLOCK_M, BLOCK_N, BLOCK_K, GROUP, NARROW=self.narrow, num_warps=8, num_stages=3,
            )  # fmt: skip
            x = y
        return x


def build(fixed):
    torch.manual_seed(0)
    network = Network(narrow=bool(fixed))
    features = torch.randn(2, IMAGES, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(i):
        return network(features[i % 2])

    return step


if __name__ == "__main__":
    run(build)
