"""Three spellings of a square, and the kernel that each one runs.

`torch.square(a)`, `a * a` and `a ** 2` give the same numbers. The script times each with CUDA events after 5 warm-ups;
`--profile` then shows torch.profiler's table of each (leave it out where another profiler watches the run).

Look for:
- `aten::square` calls `aten::pow`, so `torch.square(a)` and `a ** 2` end in the same kernel, one call deeper;
- `a * a` is `aten::mul`, with a binary kernel that is given the same tensor twice;
- all are bound by memory: compare bytes per second with what the GPU can do, not FLOPs.

Run: python kernels/square.py --variant square
Variants: square, mul, pow
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import torch

from _common import Check, arguments, chosen, find_device, median_ms, phase, positive, report, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VARIANTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "square": torch.square,
    "mul": lambda a: a * a,
    "pow": lambda a: a**2,
}


def flops(size: int) -> int:
    """One multiplication for each element of a size × size matrix, however it is spelled."""
    return size**2


def bytes_moved(size: int) -> int:
    """Each float32 is read once and its square is written once; the second operand of `a * a` comes from a cache."""
    return 2 * 4 * size**2


def reference(a: torch.Tensor) -> torch.Tensor:
    """The square in float64, rounded once: a float32 product has to be exactly that."""
    return (a.double() * a.double()).float()


def show_profile(name: str, function: Callable[[torch.Tensor], torch.Tensor], a: torch.Tensor) -> None:
    """What torch.profiler says about one call."""
    with torch.profiler.profile() as profiler:
        function(a)
    order = "device_time_total" if a.is_cuda else "cpu_time_total"
    print(f"\n{name}", profiler.key_averages().table(sort_by=order, row_limit=10), sep="\n", flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, tuple(VARIANTS))
    parser.add_argument("--size", type=positive, help="rows and columns (10000; 1000 on the CPU)")
    parser.add_argument("--steps", type=positive, default=10, help="timed calls of each (%(default)s)")
    parser.add_argument("--profile", action="store_true", help="show torch.profiler's table of each")
    args = parser.parse_args(argv)
    device = find_device()
    size = args.size or (10_000 if device.type == "cuda" else 1000)

    torch.manual_seed(0)
    a = torch.randn(size, size, device=device)
    check = Check()
    for name in chosen(args.variant, tuple(VARIANTS)):
        function = VARIANTS[name]
        with phase(name):
            ms = median_ms(partial(function, a), device, steps=args.steps)
        report(name, ms, size_bytes=bytes_moved(size), operations=flops(size))
        with phase("check"):
            check.compare(name, sampled(function(a)), reference(sampled(a)))
        if args.profile:
            show_profile(name, function, a)
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
