"""The pairs of `remedies` about kernels: how many, with how many blocks, of which kind."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import triton
import triton.language as tl

from _common import can_compile
from _pairs import pair

if TYPE_CHECKING:
    from _pairs import Step, Work


@pair("an operator for each step of a formula", "torch.compile")
def chain(work: Work) -> Step:
    """Each operator reads and writes memory for one operation."""
    x, y = work.random(work.size(8192, 16), 2048), work.random(2048)

    def formula(x: torch.Tensor) -> torch.Tensor:
        return (torch.tanh(0.5 * x + y) * torch.sigmoid(x) + x).clamp(-2, 2) * y

    function = torch.compile(formula) if work.mended and can_compile(work.device) else formula
    return lambda: function(x)[::64]


@triton.jit
def add_kernel(out, x, y, size, programs, BLOCK_SIZE: tl.constexpr):
    """Adds blocks, each program every `programs`-th."""
    for start in range(tl.program_id(0) * BLOCK_SIZE, size, programs * BLOCK_SIZE):
        at = start + tl.arange(0, BLOCK_SIZE)
        inside = at < size
        tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


def add(x: torch.Tensor, y: torch.Tensor, programs: int) -> torch.Tensor:
    """The sum by so many programs of Triton; by torch where tensors are on the CPU and Triton's interpreter is off."""
    if x.device.type == "cpu" and not triton.knobs.runtime.interpret:
        return x + y
    out = torch.empty_like(x)
    add_kernel[(programs,)](out, x, y, len(x), programs, BLOCK_SIZE=1024)
    return out


@pair("a grid of 16 programs", "a program for each block")
def grid(work: Work) -> Step:
    """A multiprocessor without a block does nothing."""
    x, y = work.random(work.size(1 << 24, 5000)), work.random(work.size(1 << 24, 5000))
    programs = triton.cdiv(len(x), 1024) if work.mended else 16
    return lambda: add(x, y, programs)[::64]


@pair('torch.cdist(…, compute_mode="donot_use_mm_for_euclid_dist")', "torch.cdist, by a matrix product")
def distances(work: Work) -> Step:
    """Pairs that share nothing: far from what the GPU can compute, and from what its memory can move."""
    x, y = work.random(work.size(8192, 40), 128), work.random(work.size(8192, 40), 128)
    mode = "use_mm" if work.mended else "donot_use_mm"
    return lambda: torch.cdist(x, y, compute_mode=f"{mode}_for_euclid_dist")[::64]
