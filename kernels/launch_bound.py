"""Thousands of tiny kernels: launching each costs more than running it, and a CUDA graph launches all of them at once.

Each kernel adds 1 to 1024 floats, after the one before. `plain` launches them one by one; `graph` records one step and
replays it. With no GPU there are no graphs, and `graph` runs the plain loop.

Look for:
- `plain`: the launch (host time in `aten::add_` and `cudaLaunchKernel`) takes longer than the kernel, so the GPU idles
  between kernels and the ledger's time goes to `launch` and `host`;
- `graph`: one `cudaGraphLaunch` a step owns all kernels of the step; the gaps between them shrink to what the GPU needs
  to start the next one;
- `record`: what making the graph cost once. How many steps until it has paid for itself?

Run: python kernels/launch_bound.py --variant graph
Variants: plain, graph
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import torch

from _common import Check, arguments, chosen, find_device, median_ms, phase, positive, report, wait

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

VARIANTS = ("plain", "graph")
ELEMENTS = 1024
WARMUPS = 2
EXACT = 2**24  # float32 counts no further by ones


def flops(kernels: int) -> int:
    """Of one step: each kernel adds 1 to each of its elements."""
    return kernels * ELEMENTS


def bytes_moved(kernels: int) -> int:
    """Of one step: each kernel reads and writes its float32 elements. They stay in the cache; it hardly matters."""
    return kernels * ELEMENTS * 2 * 4


def reference(kernels: int, steps: int) -> torch.Tensor:
    """What counting by ones from 0 ends with."""
    return torch.full((ELEMENTS,), float(kernels * steps))


def one_step(x: torch.Tensor, kernels: int) -> None:
    """Launches the kernels of one step, one by one."""
    for _ in range(kernels):
        x.add_(1.0)


def plain(x: torch.Tensor, kernels: int) -> Callable[[], None]:
    """A step as it is written."""
    return lambda: one_step(x, kernels)


def graph(x: torch.Tensor, kernels: int) -> Callable[[], None]:
    """A step as one launch of a graph; recording runs nothing, so `x` stays as it is."""
    recorded = torch.cuda.CUDAGraph()
    with phase("record"):
        x.add_(0.0)  # loads the kernel, which a recording must not
        with torch.cuda.graph(recorded):
            one_step(x, kernels)
    return recorded.replay


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("--kernels", type=positive, default=1000, help="in a step (%(default)s)")
    parser.add_argument("--steps", type=positive, default=5, help="timed steps (%(default)s)")
    args = parser.parse_args(argv)
    if args.kernels * (args.steps + WARMUPS) > EXACT:
        parser.error(f"more than {EXACT} kernels in all: float32 counts no further by ones")
    device = find_device()

    check = Check()
    for name in chosen(args.variant, VARIANTS):
        x = torch.zeros(ELEMENTS, device=device)
        if name == "graph" and device.type == "cpu":
            print("graph: no GPU, so this is the plain loop again", flush=True)
        make = graph if name == "graph" and device.type == "cuda" else plain
        with phase(name):
            ms = median_ms(make(x, args.kernels), device, steps=args.steps, warmups=WARMUPS)
        report(f"{name}, a step", ms)
        report(f"{name}, a kernel", ms / args.kernels)
        wait(device)
        with phase("check"):
            check.compare(name, x, reference(args.kernels, args.steps + WARMUPS))
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
