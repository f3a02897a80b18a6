"""Normalises and rotates the queries and keys of a prompt's layers with one Triton kernel, head by head."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "layout-copies"
ALSO = ()

TEXTS, TOKENS, HEADS, WIDTH, LAYERS = 8, 2048, 32, 128, 10
ROWS = 32


@triton.jit
def rotate(
    x, y, scale, cosines, sines, tokens, heads, text_stride, head_stride, token_stride,
    ROWS: tl.constexpr, HALF: tl.constexpr,
):  # fmt: skip
    """Of one head: RMS norm and rotation of a few tokens. Strides are the same of what is read and written."""
    text_and_head = tl.program_id(1)
    token = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    start = (text_and_head // heads).to(tl.int64) * text_stride + (text_and_head % heads) * head_stride
    half = tl.arange(0, HALF)
    at = start + token[:, None] * token_stride + half[None, :]
    inside = token[:, None] < tokens
    left = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    right = tl.load(x + at + HALF, mask=inside, other=0.0).to(tl.float32)
    square = tl.sum(left * left + right * right, axis=1) / (2 * HALF)
    inverse = tl.rsqrt(square + 1e-6)[:, None]
    left = left * inverse * tl.load(scale + half)[None, :]
    right = right * inverse * tl.load(scale + HALF + half)[None, :]
    angle = token[:, None] * HALF + half[None, :]
    cosine = tl.load(cosines + angle, mask=inside, other=0.0)
    sine = tl.load(sines + angle, mask=inside, other=0.0)
    tl.store(y + at, (left * cosine - right * sine).to(y.dtype.element_ty), mask=inside)
    tl.store(y + at + HALF, (right * cosine + left * sine).to(y.dtype.element_ty), mask=inside)


class Rotation:
    def __init__(self, device):
        frequencies = 10_000 ** -(torch.arange(WIDTH // 2, device=device) / (WIDTH // 2))
        angles = torch.arange(TOKENS, device=device)[:, None] * frequencies
        self.cosines, self.sines = angles.cos(), angles.sin()

    def launch(self, x, y, scale):
        """`x` and `y` are texts x heads x tokens x width, in whatever order they lie in memory."""
        texts, heads, tokens, width = x.shape
        grid = (triton.cdiv(tokens, ROWS), texts * heads)
        strides = x.stride(0), x.stride(1), x.stride(2)
        rotate[grid](
            x, y, scale, self.cosines, self.sines, tokens, heads, *strides, ROWS=ROWS, HALF=width // 2, num_warps=4
        )
        return y

    def by_heads(self, projected, scale):
        """From and to texts x tokens x heads x width; heads come first in between."""
        x = projected.transpose(1, 2).contiguous()  # fault
        y = self.launch(x, torch.empty_like(x), scale)
        return y.transpose(1, 2).contiguous()  # fault

    def by_strides(self, projected, scale):
        y = torch.empty_like(projected)
        self.launch(projected.transpose(1, 2), y.transpose(1, 2), scale)
        return y


def build(fixed):
    torch.manual_seed(0)
    device = "cuda"
    rotation = Rotation(device)
    turn = rotation.by_strides if fixed else rotation.by_heads
    layers = [
        {
            "queries": torch.randn(TEXTS, TOKENS, HEADS, WIDTH, device=device, dtype=torch.bfloat16),
            "keys": torch.randn(TEXTS, TOKENS, HEADS, WIDTH, device=device, dtype=torch.bfloat16),
            "scales": torch.ones(2, WIDTH, device=device),
        }
        for _ in range(LAYERS)
    ]

    def step(i):
        result = None
        for layer in layers:
            queries = turn(layer["queries"], layer["scales"][0])  # fault
            keys = turn(layer["keys"], layer["scales"][1])  # fault
            result = queries, keys
        return result

    return step


if __name__ == "__main__":
    run(build)
