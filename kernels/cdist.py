"""All distances between two sets of points: a matrix product, and what has to be done around it.

With more than 25 points `torch.cdist` computes |x - y|² as |x|² + |y|² - 2 x·y: one product of two matrices that have
the norms appended. `parts` does the same step by step, each under its name.

Look for:
- the GPU time of matmul, cat, pow and sum, and of the clamp and the square root over all pairs: with few dimensions,
  these two passes over the large result take as long as the product does;
- `aten::cdist` calls `aten::_euclidean_dist`, and that the same operators as `parts`;
- `direct` needs no matrix product and is exact for close points, where the others cancel digits; it does as much
  arithmetic, but a block works for a single pair and shares nothing with its neighbours, so it is slow.

Run: python kernels/cdist.py --variant cdist
Variants: cdist, parts, direct
"""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import torch

from _common import Check, arguments, chosen, find_device, median_ms, phase, positive, report, sampled

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

EPSILON = 2.0**-24  # half a unit in the last place of a float32


def parts(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """What `torch.cdist` does, operator by operator."""
    with phase("norms: pow, sum"):
        x_norms = x.pow(2).sum(-1, keepdim=True)
        y_norms = y.pow(2).sum(-1, keepdim=True)
    with phase("operands: mul, cat"):
        left = torch.cat((x.mul(-2), x_norms, torch.ones_like(x_norms)), -1)
        right = torch.cat((y, torch.ones_like(y_norms), y_norms), -1)
    with phase("product: matmul"):
        squares = left.matmul(right.mT)
    with phase("roots: clamp, sqrt"):
        return squares.clamp_min_(0).sqrt_()


def direct(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`torch.cdist` without the matrix product: differences, one pair at a time."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


VARIANTS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "cdist": torch.cdist,
    "parts": parts,
    "direct": direct,
}


def reference(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The definition, in float64, short of the root: sums of squared differences."""
    return (x.double()[:, None] - y.double()[None]).square().sum(-1)


def budget(x: torch.Tensor, y: torch.Tensor) -> float:
    """How far from the reference the square of a distance may be when a float32 matrix product made it.

    It is a sum of d + 2 products whose sizes add up to (|x| + |y|)² at most, so roundings put it off by at most that
    times half a unit for each of them; each appended norm is itself a sum of d, and the root is rounded, too.
    """
    longest = float(x.norm(dim=-1).max()) + float(y.norm(dim=-1).max())
    return (2 * x.shape[-1] + 8) * EPSILON * longest**2


def flops(n: int, m: int, d: int) -> dict[str, int]:
    """Operations of each part for n × d and m × d points; a product and its addition are two."""
    return {
        "norms": 2 * (n + m) * d,
        "operands": n * d,
        "product": 2 * n * m * (d + 2),
        "roots": 2 * n * m,
    }


def bytes_moved(n: int, m: int, d: int) -> dict[str, int]:
    """Bytes of each part in float32: every operator reads its operands from memory and writes its result there."""
    squares = 2 * (n + m) * d  # pow
    sums = (n + m) * (d + 1)
    ones = n + m
    scaled = 2 * n * d
    appended = 2 * (n + m) * (d + 2)
    product = (n + m) * (d + 2) + n * m
    roots = 4 * n * m  # clamp and sqrt, each in place
    return {
        "norms": 4 * (squares + sums),
        "operands": 4 * (ones + scaled + appended),
        "product": 4 * product,
        "roots": 4 * roots,
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, tuple(VARIANTS))
    parser.add_argument("--size", type=positive, help="points in each set (8192; 512 on the CPU)")
    parser.add_argument("--dimensions", type=positive, default=128, help="of a point (%(default)s)")
    parser.add_argument("--steps", type=positive, default=10, help="timed calls of each (%(default)s)")
    args = parser.parse_args(argv)
    device = find_device()
    size = args.size or (8192 if device.type == "cuda" else 512)

    torch.manual_seed(0)
    x, y = torch.randn(2, size, args.dimensions, device=device)
    shape = (size, size, args.dimensions)
    check = Check()
    for name in chosen(args.variant, tuple(VARIANTS)):
        function = VARIANTS[name]
        with phase(name):
            ms = median_ms(partial(function, x, y), device, steps=args.steps)
        report(name, ms, size_bytes=sum(bytes_moved(*shape).values()), operations=sum(flops(*shape).values()))
        with phase("check"):
            distances = sampled(sampled(function(x, y)).mT)
            check.compare(name, distances.double().square(), reference(sampled(y), sampled(x)), budget(x, y))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
