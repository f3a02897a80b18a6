"""Sums long rows with a Triton kernel: one program per row, and fewer rows than the GPU has multiprocessors."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "small-grid"
ALSO = ()

ROWS, COLUMNS, BLOCK = 16, 4_194_304, 128


@triton.jit
def sum_row(x, sums, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, columns, BLOCK):  # fault
        total += tl.load(x + row * columns + first + tl.arange(0, BLOCK))  # fault
    tl.store(sums + row, tl.sum(total))


@triton.jit
def sum_piece(x, sums, columns, PIECE: tl.constexpr, BLOCK: tl.constexpr):
    row, piece = tl.program_id(0), tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, PIECE, BLOCK):
        total += tl.load(x + row * columns + piece * PIECE + first + tl.arange(0, BLOCK))
    tl.atomic_add(sums + row, tl.sum(total))


def build(fixed):
    x = torch.rand(ROWS, COLUMNS, device="cuda")
    sums = torch.zeros(ROWS, device="cuda")

    def step(i):
        if fixed:
            sums.zero_()
            sum_piece[ROWS, COLUMNS // 32_768](x, sums, COLUMNS, 32_768, 2048)
        else:
            sum_row[(ROWS,)](x, sums, COLUMNS, BLOCK)  # fault
        return sums

    return step


if __name__ == "__main__":
    run(build)
