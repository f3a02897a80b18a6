"""Scales the columns of a matrix with a Triton kernel whose neighbouring threads read a whole row apart."""

import torch
import triton
import triton.language as tl
from _run_other import run

CAUSE = "uncoalesced"
ALSO = ()

ROWS, COLUMNS, BLOCK = 8192, 8192, 1024


@triton.jit
def scale_down_columns(x, scale, y, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row * columns + column  # fault
    values = tl.load(x + at, mask=row < rows)  # fault
    tl.store(y + at, values * tl.load(scale + column), mask=row < rows)  # fault


@triton.jit
def scale_along_rows(x, scale, y, rows, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = row * columns + column
    values = tl.load(x + at, mask=column < columns)
    tl.store(y + at, values * tl.load(scale + column, mask=column < columns), mask=column < columns)


def build(fixed):
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    scale = torch.rand(COLUMNS, device="cuda")
    y = torch.empty_like(x)

    def step(i):
        if fixed:
            scale_along_rows[ROWS, triton.cdiv(COLUMNS, BLOCK)](x, scale, y, ROWS, COLUMNS, BLOCK)
        else:
            scale_down_columns[COLUMNS, triton.cdiv(ROWS, BLOCK)](x, scale, y, ROWS, COLUMNS, BLOCK)  # fault
        return y

    return step


if __name__ == "__main__":
    run(build)
