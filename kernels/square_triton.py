"""Two ways to give rows to Triton programs, against torch and torch.compile, from narrow rows to wide ones.

`row`: a program takes a whole row in one block, the next power of two above its width, with 4, 8 or 16 warps.
`loop`: a program walks its row in blocks of 1024 columns, whatever the width, with 4 warps.
The matrix has as many elements whatever its width, so that times compare. With no GPU both run under Triton's
interpreter, which shows that they are right and says nothing about speed.

Look for:
- narrow rows: `row` leaves few elements to a thread and `loop` masks most of its block off; many small programs;
- wide rows: `row` needs more registers for each thread, so fewer programs fit on a multiprocessor (occupancy), and a
  width just above a power of two masks off nearly half of the block; `loop` needs the same few for any width;
- bytes per second: all four are bound by memory, so the best keeps most loads in flight, at whatever occupancy;
- waves: programs divided by how many fit on the GPU at once; the last, partial wave costs as much as a full one;
- the PTX: `v4` in a load or store moves 16 bytes at once; Triton uses it where the width is a multiple of 16.

Run: python kernels/square_triton.py --widths 256,1000,4096
Variants: row, loop, torch, compile
"""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when it is imported

import triton
import triton.language as tl

from _common import (
    Check,
    arguments,
    can_compile,
    chosen,
    find_device,
    median_ms,
    phase,
    positive,
    report,
    sampled,
    several,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

VARIANTS = ("row", "loop", "torch", "compile")
INTERPRETED = triton.knobs.runtime.interpret
LOOP_BLOCK_SIZE = 1024
WIDTHS = (256, 1000, 2048, 4100, 8192, 16_384)


@triton.jit
def square_row_kernel(out, x, out_stride, x_stride, width, BLOCK_SIZE: tl.constexpr):
    """Squares the row that has the program's number, all at once."""
    row = tl.program_id(0).to(tl.int64)  # a stride times a row may pass 2**31
    columns = tl.arange(0, BLOCK_SIZE)
    inside = columns < width
    value = tl.load(x + row * x_stride + columns, mask=inside)
    tl.store(out + row * out_stride + columns, value * value, mask=inside)


@triton.jit
def square_loop_kernel(out, x, out_stride, x_stride, width, BLOCK_SIZE: tl.constexpr):
    """Squares the row that has the program's number, block after block."""
    row = tl.program_id(0).to(tl.int64)  # a stride times a row may pass 2**31
    for start in range(0, width, BLOCK_SIZE):
        columns = start + tl.arange(0, BLOCK_SIZE)
        inside = columns < width
        value = tl.load(x + row * x_stride + columns, mask=inside)
        tl.store(out + row * out_stride + columns, value * value, mask=inside)


def flops(rows: int, width: int) -> int:
    """One multiplication for each element; what is masked off does not count."""
    return rows * width


def bytes_moved(rows: int, width: int) -> int:
    """Each float32 is read once and its square is written once; what is masked off moves nothing."""
    return 2 * 4 * rows * width


def reference(x: torch.Tensor) -> torch.Tensor:
    """The square in float64, rounded once: a float32 product has to be exactly that."""
    return (x.double() * x.double()).float()


def warps_for(block_size: int) -> int:
    """More warps for a larger block, so that a thread holds no more than 8 elements up to 4096 columns."""
    if block_size >= 4096:  # noqa: PLR2004 - the steps of Triton's own tutorials
        return 16
    return 8 if block_size >= 2048 else 4  # noqa: PLR2004


def square_row(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The square of each row in one block; with what Triton compiled."""
    rows, width = x.shape
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    grid = (rows,)
    compiled = square_row_kernel[grid](
        out, x, out.stride(0), x.stride(0), width, BLOCK_SIZE=block, num_warps=warps_for(block)
    )
    return out, compiled


def square_loop(x: torch.Tensor) -> tuple[torch.Tensor, Any]:
    """The square of each row in blocks of one size; with what Triton compiled."""
    rows, width = x.shape
    out = torch.empty_like(x)
    grid = (rows,)
    compiled = square_loop_kernel[grid](
        out, x, out.stride(0), x.stride(0), width, BLOCK_SIZE=LOOP_BLOCK_SIZE, num_warps=4
    )
    return out, compiled


def functions(variant: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """What a variant calls."""
    if variant == "compile":
        torch.compiler.reset()  # one width, one compilation: no kernel of dynamic shape, no limit reached
        return torch.compile(torch.square, dynamic=False)
    ours = {"row": square_row, "loop": square_loop}
    return (lambda x: ours[variant](x)[0]) if variant in ours else torch.square


def memory_instructions(ptx: str) -> dict[str, int]:
    """How often the PTX has each kind of access to global memory, such as ``ld.global.v4.b32``."""
    return dict(Counter(re.findall(r"\b(?:ld|st)\.global(?:\.\w+)*", ptx)))


def virtual_registers(ptx: str) -> dict[str, int]:
    """How many registers of each type the PTX declares: before ptxas gives several of them one real register."""
    return {kind: int(count) - 1 for kind, count in re.findall(r"\.reg \.(\w+)\s+%\w+<(\d+)>;", ptx)}


def describe(compiled: Any) -> str:  # noqa: ANN401 - Triton's class has moved between its versions
    """Registers, spills, shared memory and PTX of what Triton compiled."""
    ptx = compiled.asm["ptx"]
    accesses = ", ".join(f"{count} {name}" for name, count in memory_instructions(ptx).items())
    declared = ", ".join(f"{count} {kind}" for kind, count in virtual_registers(ptx).items())
    return (
        f"    {compiled.metadata.num_warps} warps, {compiled.n_regs} registers a thread, {compiled.n_spills} spills, "
        f"{compiled.metadata.shared} B shared memory\n    PTX: {accesses}; declares {declared}"
    )


def run_width(variants: Sequence[str], x: torch.Tensor, steps: int, check: Check) -> None:
    """Times and checks the variants on one matrix."""
    rows, width = x.shape
    for variant in variants:
        function = functions(variant)
        with phase(f"{variant} {width}"):
            ms = median_ms(partial(function, x), x.device, steps=steps)
        report(f"{variant} {rows}x{width}", ms, size_bytes=bytes_moved(rows, width), operations=flops(rows, width))
        if not INTERPRETED and variant in ("row", "loop"):
            print(describe((square_row if variant == "row" else square_loop)(x)[1]), flush=True)
        with phase("check"):
            check.compare(f"{variant} {width}", sampled(function(x)), reference(sampled(x)))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("--size", type=positive, help="elements of the matrix (2**26; 2**14 on the CPU)")
    parser.add_argument("--widths", type=several, default=list(WIDTHS), help="columns, such as 256,1000,4096")
    parser.add_argument("--steps", type=positive, help="timed calls (20; 1 on the CPU)")
    args = parser.parse_args(argv)
    device = find_device()
    on_gpu = device.type == "cuda"
    variants = chosen(args.variant, VARIANTS)
    if INTERPRETED:
        print("triton: interpreted, so its times mean nothing", flush=True)
    if not can_compile(device):
        print("compile: left out, since torch.compile found no C++ compiler", flush=True)
        variants = tuple(variant for variant in variants if variant != "compile")

    torch.manual_seed(0)
    size = args.size or (2**26 if on_gpu else 2**14)
    check = Check()
    for width in args.widths:
        x = torch.randn(max(1, size // width), width, device=device)
        run_width(variants, x, args.steps or (20 if on_gpu else 1), check)
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
