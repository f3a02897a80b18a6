"""One product in three precisions over several sizes: a matrix kernel's name tells what it is.

The same float32 matrices are multiplied as they are, with TensorFloat-32 allowed, and rounded to bfloat16 first.

Look for:
- names such as `sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_…`: architecture, types of the operands and
  of the sum, layouts, tile, and stages or warp groups; `simt` means no tensor cores, `tf32` rounded operands;
- another kernel for another size: small products leave multiprocessors idle, so the library takes smaller tiles, or
  splits the long dimension and adds a second kernel;
- FLOP/s: float32 against the tensor cores, and how far a small product stays below a large one.

Run: python kernels/matmul.py --sizes 4096 --variant bf16
Variants: float32, tf32, bf16
"""

from __future__ import annotations

import contextlib
import math
import sys
from functools import partial
from typing import TYPE_CHECKING

import torch

from _common import Check, arguments, chosen, find_device, median_ms, phase, positive, report, sampled, several

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

VARIANTS = ("float32", "tf32", "bf16")
SIZES = (512, 1024, 2048, 4096, 8192)

#: Half a unit in the last place: of what a precision makes of an operand (bf16's are rounded beforehand), and of the
#: result that it writes; in bf16 a library may also split a sum in two, and round both parts.
OPERAND_ROUNDING = {"float32": 0.0, "tf32": 2.0**-11, "bf16": 0.0}
RESULT_ROUNDING = {"float32": 2.0**-24, "tf32": 2.0**-24, "bf16": 3 * 2.0**-8}
SUM_ROUNDING = 2.0**-23  # tensor cores cut off where others round


def flops(m: int, n: int, k: int) -> int:
    """One product and one addition for each of the k terms of each of the m × n sums, whatever the precision."""
    return 2 * m * n * k


def bytes_moved(m: int, n: int, k: int, variant: str = "float32") -> int:
    """Each matrix once: as if a cache kept all that tiles share. bfloat16 has 2 bytes; tf32 is stored as float32."""
    return (2 if variant == "bf16" else 4) * (m * k + k * n + m * n)


def reference(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product in float64: exact to far below what any of the variants can tell."""
    return a.double() @ b.double()


def budget(a: torch.Tensor, b: torch.Tensor, variant: str) -> float:
    """How far from the reference an element of random matrices may be.

    Roundings of random numbers are independent, so what they cost grows with the root of how many there are (Higham
    and Mary, A New Approach to Probabilistic Rounding Error Analysis, 2019): operands add their rounding to each of
    the k products, a sum of k terms is rounded k times, the result once. Six deviations are granted to the operands.
    """
    a, b = a.double(), b.double()
    operands = 6 * OPERAND_ROUNDING[variant] * math.sqrt(2 * (a.square() @ b.square()).max())
    total = 2 * SUM_ROUNDING * math.sqrt(a.shape[-1]) * float((a.abs() @ b.abs()).max())
    return operands + total + RESULT_ROUNDING[variant] * float((a @ b).abs().max())


@contextlib.contextmanager
def precision(variant: str) -> Iterator[None]:
    """Allows TensorFloat-32 in float32 products, or forbids it."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if variant == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def run_size(variants: Sequence[str], a: torch.Tensor, b: torch.Tensor, steps: int, check: Check) -> None:
    """Times and checks the variants on two square matrices."""
    size = len(a)
    for variant in variants:
        left, right = (a.bfloat16(), b.bfloat16()) if variant == "bf16" else (a, b)
        name = f"{variant} {size}"
        with precision(variant):
            with phase(name):
                ms = median_ms(partial(torch.matmul, left, right), a.device, steps=steps)
            product = left @ right
        moved = bytes_moved(size, size, size, variant)
        report(name, ms, size_bytes=moved, operations=flops(size, size, size))
        with phase("check"):
            rows, columns = sampled(left), sampled(right.mT).mT
            got = sampled(sampled(product).mT).mT
            check.compare(name, got, reference(rows, columns), budget(rows, columns, variant))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("--sizes", type=several, help=f"rows and columns ({','.join(map(str, SIZES))}; 256 on the CPU)")
    parser.add_argument("--steps", type=positive, default=5, help="timed calls of each (%(default)s)")
    args = parser.parse_args(argv)
    device = find_device()

    torch.manual_seed(0)
    check = Check()
    for size in args.sizes or (SIZES if device.type == "cuda" else (256,)):
        a, b = torch.randn(2, size, size, device=device)
        run_size(chosen(args.variant, VARIANTS), a, b, args.steps, check)
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
