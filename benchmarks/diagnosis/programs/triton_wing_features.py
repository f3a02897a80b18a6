"""Layers of a network that predicts the air around a wing: linear, bias and SiLU in one Triton kernel."""

import os

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "small-tiles"
ALSO = ()

TINY = os.environ.get("DIAGNOSIS_TINY") == "1"
POINTS, WIDTH, LAYERS = (128, 128, 2) if TINY else (32768, 1536, 5)
INPUTS, OUTPUTS = 64, 8


@triton.jit
def linear_silu(
    x, w, bias, y, rows, columns, inner,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Computes silu(x @ w + bias); programs of a group of rows follow each other, for the sake of the L2 cache."""
    program = tl.program_id(0)
    blocks_m, blocks_n = tl.cdiv(rows, BLOCK_M), tl.cdiv(columns, BLOCK_N)
    in_group = GROUP * blocks_n
    first = program // in_group * GROUP
    group = min(blocks_m - first, GROUP)
    block_m = first + program % in_group % group
    block_n = program % in_group // group

    m = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    n = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    x_at = x + m[:, None] * inner + k[None, :]
    w_at = w + k[:, None] * columns + n[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, inner, BLOCK_K):
        total = tl.dot(tl.load(x_at), tl.load(w_at), total)
        x_at += BLOCK_K
        w_at += BLOCK_K * columns
    total += tl.load(bias + n).to(tl.float32)[None, :]
    total *= tl.sigmoid(total)
    tl.store(y + m[:, None] * columns + n[None, :], total.to(y.dtype.element_ty))


class LinearSiLU:
    """Sizes are multiples of the blocks."""

    def __init__(self, inputs, outputs, blocks, **launch):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self.weight = (torch.randn(inputs, outputs, device=device) * (2 / inputs) ** 0.5).to(torch.bfloat16)
        self.bias = torch.zeros(outputs, device=device, dtype=torch.bfloat16)
        self.blocks, self.launch = blocks, launch

    def __call__(self, x):
        rows, inner = x.shape
        columns = self.weight.shape[1]
        y = torch.empty(rows, columns, device=x.device, dtype=x.dtype)
        grid = (triton.cdiv(rows, self.blocks["BLOCK_M"]) * triton.cdiv(columns, self.blocks["BLOCK_N"]),)
        linear_silu[grid](x, self.weight, self.bias, y, rows, columns, inner, GROUP=8, **self.blocks, **self.launch)
        return y


class WingModel:
    """What the air does at points around the wing, by their distances from it."""

    def __init__(self, fixed):
        device = "cuda" if torch.cuda.is_available() else "cpu"
        if fixed:
            options = {"blocks": {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64}, "num_warps": 8, "num_stages": 3}
        else:
            options = {"blocks": {"BLOCK_M": 32, "BLOCK_N": 64, "BLOCK_K": 32}, "num_warps": 4}  # fault
        self.frequencies = torch.randn(3, INPUTS // 2, device=device)
        self.enter = LinearSiLU(INPUTS, WIDTH, **options)
        self.layers = [LinearSiLU(WIDTH, WIDTH, **options) for _ in range(LAYERS)]
        self.leave = torch.randn(WIDTH, OUTPUTS, device=device, dtype=torch.bfloat16) * WIDTH**-0.5

    def __call__(self, points):
        angles = points @ self.frequencies
        x = self.enter(torch.cat([angles.sin(), angles.cos()], dim=-1).to(torch.bfloat16))
        for layer in self.layers:
            x = layer(x)  # fault
        return x @ self.leave


def build(fixed):
    torch.manual_seed(0)
    model = WingModel(fixed)
    points = torch.rand(4, POINTS, 3, device=model.leave.device)

    def step(i):
        return model(points[i % 4])

    return step


if __name__ == "__main__":
    run(build)
