"""What the Python workloads share: device, phases, clock, and the line that says whether the result is right."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import shutil
import statistics
import time
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence


def positive(text: str) -> int:
    """An integer of at least 1, as argparse wants a type to be."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is less than 1")
    return value


def several(text: str) -> list[int]:
    """Integers of at least 1 with commas between them, as argparse wants a type to be."""
    try:
        return [positive(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list such as 512,1024") from None


def arguments(doc: str | None, variants: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The command line of a workload: its first line says what it teaches; `--variant` where there are several."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    if variants:
        parser.add_argument("--variant", choices=("all", *variants), default="all", help="run one only")
    return parser


def chosen(variant: str, variants: Sequence[str]) -> tuple[str, ...]:
    """The variants to run."""
    return tuple(variants) if variant == "all" else (variant,)


def find_device() -> torch.device:
    """The GPU, or the CPU where there is none; says which."""
    if not torch.cuda.is_available():
        print("device: cpu (no GPU found)", flush=True)
        return torch.device("cpu")
    major, minor = torch.cuda.get_device_capability()
    print(f"device: {torch.cuda.get_device_name()} (sm_{major}{minor})", flush=True)
    return torch.device("cuda", torch.cuda.current_device())


def can_compile(device: torch.device) -> bool:
    """Whether torch.compile has what it needs: Triton on a GPU, a C++ compiler on the CPU."""
    return device.type == "cuda" or shutil.which(os.environ.get("CXX", "g++")) is not None


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """A part of the run by name: a record_function where torch.profiler runs, else an NVTX range for nsys and ncu.

    One of them alone: each takes up to 30 µs, which would be in the range of the other.
    """
    profiled = torch.autograd._profiler_enabled()  # noqa: SLF001 - there is no public one
    by_nvtx = torch.cuda.is_available() and not profiled
    with torch.cuda.nvtx.range(name) if by_nvtx else torch.profiler.record_function(name):
        yield


def wait(device: torch.device) -> None:
    """Until the device has done all that was launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def times_ms(function: Callable[[], object], device: torch.device, repeats: int) -> list[float]:
    """How long each call takes: between CUDA events on a GPU, where a host clock would time the launches."""
    if device.type == "cpu":
        return [_host_ms(function) for _ in range(repeats)]
    spans = [(torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in range(repeats)]
    for start, end in spans:
        with phase("step"):
            start.record()
            function()
            end.record()
    wait(device)
    return [start.elapsed_time(end) for start, end in spans]


def _host_ms(function: Callable[[], object]) -> float:
    with phase("step"):
        start = time.perf_counter()
        function()
        return (time.perf_counter() - start) * 1e3


def median_ms(function: Callable[[], object], device: torch.device, *, steps: int, warmups: int = 5) -> float:
    """The median of `steps` calls, after `warmups` that load, compile and fill caches."""
    with phase("warm-up"):
        for _ in range(warmups):
            function()
        wait(device)
    with phase("timed"):
        return statistics.median(times_ms(function, device, steps))


def report(name: str, ms: float, *, size_bytes: int = 0, operations: int = 0) -> None:
    """Prints a line of results; bytes and operations as the rate that the time makes of them."""
    rates = [
        f"{amount / ms / 1e6:10.1f} {unit}"
        for amount, unit in ((size_bytes, "GB/s"), (operations, "GFLOP/s"))
        if amount and ms
    ]
    print(f"{name:<26}{ms:12.4f} ms{''.join(rates)}", flush=True)


def sampled(rows: torch.Tensor) -> torch.Tensor:
    """About 64 rows, the first and the last among them: enough to check, too few to show in the profile."""
    return torch.cat((rows[:: max(1, len(rows) // 64)], rows[-1:]))


def max_error(got: torch.Tensor, want: torch.Tensor) -> float:
    """The largest distance of two tensors; NaN where either has one, infinite where their shapes differ."""
    if got.shape != want.shape:
        return math.inf
    return float((got - want.to(got.device)).abs().max()) if got.numel() else 0.0


class Check:
    """What is compared in a run, and the line that says how it ended."""

    def __init__(self) -> None:
        """Nothing compared so far."""
        self._errors: list[float] = []
        self._wrong: list[str] = []

    def compare(self, name: str, got: torch.Tensor, want: torch.Tensor, budget: float = 0.0) -> None:
        """`got` may be as far from the reference as the budget, which its caller derives; by default not at all."""
        error = max_error(got, want)
        self._errors.append(error)
        if not error <= budget:  # a NaN is wrong, too
            self._wrong.append(f"{name} is {error:.3g} off, {budget:.3g} is allowed")

    def finish(self) -> int:
        """Prints the check line; the exit status."""
        worst = max(self._errors, key=lambda error: (math.isnan(error), error), default=math.nan)
        if self._wrong or not self._errors:
            why = "; ".join(self._wrong) or "nothing was compared"
            print(f"check: FAILED max_error={worst:.3g} ({why})", flush=True)
            return 1
        print(f"check: ok max_error={worst:.3g}", flush=True)
        return 0
