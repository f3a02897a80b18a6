"""Faults and their remedies: the same work twice, each pair of one fault that a profile shows.

`fault` is a program as one finds it, `remedy` the same program mended, from the same random numbers. Given no names all
pairs run; `--list` says what each is. Where both variants run they take turns (fault, remedy, remedy, fault), so that
a clock that drifts favours neither, and the median of the turns is told.

Look for:
- in `kanalyze show findings` of `fault`: what the finding says is at stake in a step, against what `remedy` gains;
- in that of `remedy`: the finding is gone, and another may be the largest;
- `optimizer`, `attention`, `chain`: fewer bytes; `vocabulary`, `tf32`, `layout`: other kernels for the same product;
- `launches`, `lengths`, `item`, `mask`, `indexing`: a device that waits for its host.

Run: python kernels/remedies.py optimizer layout --steps 20
Variants: fault, remedy
"""

from __future__ import annotations

import gc
import statistics
import sys
import time
from typing import TYPE_CHECKING

import torch

import _habits  # noqa: F401 - its pairs are added to PAIRS
import _kernels  # noqa: F401
from _common import Check, arguments, chosen, find_device, phase, positive, report, wait
from _pairs import PAIRS, Work

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _pairs import Step

VARIANTS = ("fault", "remedy")
WARM_UPS = 5
CHECKED_STEPS = 2


def flops(rows: int, inner: int, outer: int) -> int:
    """Of the products of `vocabulary`: scores, and their way back to weights and inputs; 2 for each number of a row.

    Padding `outer` from 50257 to 50304 is a thousandth more work, and takes less time.
    """
    return 3 * 2 * rows * inner * outer


def bytes_moved(rows: int, columns: int, *, fused: bool) -> int:
    """Of `chain` in float32: its eight operators read ten matrices and two rows and write eight matrices.

    Fused they read one of each and write one matrix.
    """
    matrices, row = (2, 1) if fused else (18, 2)
    return 4 * (matrices * rows + row) * columns


def make(name: str, variant: str, device: torch.device, *, big: bool) -> Step:
    """A step of a pair's variant, from the same random numbers each time."""
    torch.manual_seed(0)
    return PAIRS[name].make(Work(device, big, variant == "remedy"))


def reference(name: str) -> list[torch.Tensor]:
    """What the first steps of a pair's fault give on the CPU, small."""
    step = make(name, "fault", torch.device("cpu"), big=False)
    return [step().clone() for _ in range(CHECKED_STEPS)]


def step_ns(step: Step, device: torch.device, steps: int) -> float:
    """How long a step takes on average of `steps`, by the host's clock, until the device has done them."""
    with phase("warm-up"):
        for _ in range(WARM_UPS):
            step()
        wait(device)
    with phase("timed"):
        begin = time.perf_counter_ns()
        for _ in range(steps):
            with phase("step"):
                step()
        wait(device)
        return (time.perf_counter_ns() - begin) / steps


def measure(
    name: str, variants: Sequence[str], device: torch.device, *, steps: int, turns: int
) -> dict[str, list[float]]:
    """Nanoseconds of a step for each turn of each variant, in alternating order; small ones on the CPU."""
    ready = {variant: make(name, variant, device, big=device.type == "cuda") for variant in variants}
    times: dict[str, list[float]] = {variant: [] for variant in variants}
    for turn in range(turns):
        for variant in variants if turn % 2 == 0 else reversed(variants):
            with phase(f"{name} {variant}"):
                times[variant].append(step_ns(ready[variant], device, steps))
    return times


def check_pair(check: Check, name: str, variants: Sequence[str], device: torch.device) -> None:
    """Compares small steps of each variant on this device with the fault's on the CPU."""
    want = reference(name)
    for variant in variants:
        step = make(name, variant, device, big=False)
        for number, expected in enumerate(want):
            budget = PAIRS[name].budget * float(expected.abs().max())
            check.compare(f"{name} {variant} {number}", step().cpu(), expected, budget)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the workload; the exit status says whether its result is right."""
    parser = arguments(__doc__, VARIANTS)
    parser.add_argument("names", nargs="*", metavar="NAME", help="pairs to run (all)")
    parser.add_argument("--list", action="store_true", help="the pairs, and nothing else")
    parser.add_argument("--steps", type=positive, default=20, help="of a turn (%(default)s)")
    parser.add_argument("--turns", type=positive, default=4, help="of each variant, where both run (%(default)s)")
    args = parser.parse_args(argv)
    if unknown := sorted(set(args.names) - set(PAIRS)):
        parser.error(f"no such pair: {', '.join(unknown)}; there are {', '.join(PAIRS)}")
    if args.list:
        print("\n".join(f"{name:<16}{each.fault} -> {each.remedy}" for name, each in PAIRS.items()))
        return 0
    device, variants = find_device(), chosen(args.variant, VARIANTS)
    check = Check()
    for name in args.names or PAIRS:
        turns = args.turns if len(variants) > 1 else 1
        with phase("check"):
            check_pair(check, name, variants, device)
        times = measure(name, variants, device, steps=args.steps, turns=turns)
        for variant, each in times.items():
            report(f"{variant} {name}", statistics.median(each) / 1e6)
        gc.collect()  # a model and its gradients go before the next pair's come
    return check.finish()


if __name__ == "__main__":
    sys.exit(main())
