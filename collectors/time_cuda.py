"""Times a function on the GPU and returns the distribution of times.

What makes such times wrong, and what is done about it here:

- The first calls load modules, compile and grow pools: they warm up, and the first one is told apart (`first_ns`).
- A host clock sees launches, not kernels: CUDA events are recorded on the stream around each call, and the device is
  waited for once, at the end.
- A kernel that is shorter than its launch is timed as the launch, because the device waits for the host between the
  two events: before each call the device sleeps for as long as the host needs to launch, so that it is never waiting.
- Data that the last call left in the L2 cache makes the next one faster than it is in a program: `flush_l2` reads a
  buffer twice the cache's size before each call. It reads, because written lines would still have to be written back
  to memory, in the middle of what is timed.
- One number hides that times have several modes: all of them are kept.

Sleep and flush lie before the first event of each call, outside of what is timed. Work that the function gives to other
streams is not waited for by its events.
"""

from __future__ import annotations

import html
import math
import statistics
import time
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from kanalyze import units
from kanalyze.errors import CollectError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_LEAST_REPEATS: Final = 10
_MOST_REPEATS: Final = 10_000
#: Cycles of `torch.cuda._sleep` per ns: no GPU clock is much above 2 GHz, and sleeping longer does no harm.
_CYCLES_PER_NS: Final = 2
#: Sleep per call: a multiple of the host's launch time, plus a constant for the overhead of a call, up to
#: a maximum.
_AHEAD: Final = 2
_MORE_SLEEP_NS: Final = 20_000
_LONGEST_SLEEP_NS: Final = 20_000_000
_L2_TIMES: Final = 2
_LAUNCHES: Final = 3
_BARS: Final = 24
_FALLBACK_L2_BYTES: Final = 64 << 20


@dataclass(frozen=True)
class Timing:
    """The times of a function's calls.

    Attributes:
        times_ns: Time of each call, in order.
        first_ns: Time of the very first (cold) call, by the host clock until the device was idle.
        warmup: Number of warm-up calls.
        device: The device's name.
        clock: 'cuda events' or 'host'.
        flushed_bytes: Bytes read before each call to flush the L2 cache; 0 for no flush.
    """

    times_ns: tuple[int, ...]
    first_ns: int
    warmup: int
    device: str
    clock: str
    flushed_bytes: int = 0

    @property
    def median_ns(self) -> float:
        """The median."""
        return statistics.median(self.times_ns)

    @property
    def mean_ns(self) -> float:
        """The mean, sensitive to a few slow calls."""
        return statistics.fmean(self.times_ns)

    @property
    def min_ns(self) -> int:
        """The minimum."""
        return min(self.times_ns)

    @property
    def max_ns(self) -> int:
        """The maximum."""
        return max(self.times_ns)

    @property
    def quartiles_ns(self) -> tuple[float, float]:
        """The first and third quartile."""
        return self.quantile_ns(0.25), self.quantile_ns(0.75)

    @property
    def spread(self) -> float:
        """The interquartile range as a share of the median: 0 if all calls took the same."""
        low, high = self.quartiles_ns
        return (high - low) / self.median_ns if self.median_ns else 0.0

    def quantile_ns(self, share: float) -> float:
        """The quantile at `share` (0 to 1), interpolated as numpy does.

        Raises:
            ValueError: `share` is not between 0 and 1.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"a share of {share} is not between 0 and 1")
        ordered = sorted(self.times_ns)
        place = share * (len(ordered) - 1)
        low = math.floor(place)
        high = min(low + 1, len(ordered) - 1)
        return ordered[low] + (ordered[high] - ordered[low]) * (place - low)

    def __repr__(self) -> str:
        """One line: median, spread, and how it was measured."""
        low, high = map(units.time, self.quartiles_ns)
        flushed = ", L2 flushed" if self.flushed_bytes else ""
        calls = units.plural(len(self.times_ns), "call")
        return (
            f"Timing: median {units.time(self.median_ns)} (quartiles {low} to {high}, "
            f"{units.time(self.min_ns)} to {units.time(self.max_ns)} in all) of {calls} "
            f"on {self.device} by {self.clock}{flushed}; first call {units.time(self.first_ns)}"
        )

    def _repr_html_(self) -> str:
        """A table with a histogram."""
        low, high = map(units.time, self.quartiles_ns)
        cells = {
            "median": units.time(self.median_ns),
            "quartiles": f"{low} to {high}",
            "all": f"{units.time(self.min_ns)} to {units.time(self.max_ns)}",
            "first call": units.time(self.first_ns),
            "calls": units.count(len(self.times_ns)),
            "clock": f"{self.clock}{', L2 flushed' if self.flushed_bytes else ''}",
            "device": html.escape(self.device),
        }
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in cells.items())
        return f"<table>{rows}</table>{self._histogram()}"

    def _histogram(self) -> str:
        low, span = self.min_ns, self.max_ns - self.min_ns
        heights = [0] * _BARS
        for each in self.times_ns:
            heights[min((each - low) * _BARS // span, _BARS - 1) if span else 0] += 1
        tallest = max(heights)
        bars = "".join(
            f'<rect x="{at * 10}" y="{60 - 60 * height / tallest:.1f}" width="9" height="{60 * height / tallest:.1f}"/>'
            for at, height in enumerate(heights)
        )
        return f'<svg width="{_BARS * 10}" height="60" fill="currentColor" role="img">{bars}</svg>'


def time_cuda(  # noqa: PLR0913 - each is one thing that a user may want, and all but the first have a default
    function: Callable[[], object],
    *,
    warmup: int = 5,
    repeats: int | None = None,
    budget_s: float = 1.0,
    flush_l2: bool = False,
    device: str | int | None = None,
) -> Timing:
    """Times calls of `function`, which takes no arguments: use ``lambda: f(x)`` if it does.

    Args:
        function: The function to time; only its work on the current stream counts.
        warmup: Number of warm-up calls; at least one is made.
        repeats: Number of timed calls; by default as many as fit `budget_s`, from 10 to 10,000.
        budget_s: Approximate total time of the timed calls, in seconds.
        flush_l2: Empty the L2 cache before each call.
        device: The GPU, as torch names it; by default the current one. 'cpu' times by the host's clock.

    Raises:
        CollectError: There is no torch, or no GPU.
        ValueError: A count or the budget is out of range.
    """
    if warmup < 0 or budget_s <= 0 or (repeats is not None and repeats < 1):
        raise ValueError("warmup is 0 or more, repeats 1 or more, and budget_s more than 0")
    if device == "cpu":
        if flush_l2:
            raise ValueError("flush_l2 is for GPUs")
        return _time_host(function, warmup, repeats, budget_s)
    torch = _torch_with_gpu()
    with torch.cuda.device(device):
        return _Gpu(torch, flush_l2=flush_l2).time(function, warmup, repeats, budget_s)


def _torch_with_gpu() -> Any:  # noqa: ANN401
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise CollectError.without_torch(error) from None
    if not torch.cuda.is_available():
        raise CollectError.without_gpu()
    return torch


def _repeats(asked: int | None, budget_s: float, one_ns: float) -> int:
    """The number of calls that fit the budget, given the duration of one call with overhead."""
    if asked is not None:
        return asked
    return max(_LEAST_REPEATS, min(_MOST_REPEATS, int(budget_s * 1e9 / max(one_ns, 1))))


def _time_host(function: Callable[[], object], warmup: int, repeats: int | None, budget_s: float) -> Timing:
    warm = [_host_ns(function) for _ in range(max(warmup, 1))]
    count = _repeats(repeats, budget_s, statistics.median(warm))
    kept = tuple(_host_ns(function) for _ in range(count))
    return Timing(kept, warm[0], len(warm), "CPU", "host")


def _host_ns(function: Callable[[], object]) -> int:
    began_ns = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - began_ns


class _Gpu:
    """A device, its events, and the preparation of each call."""

    def __init__(self, torch: Any, *, flush_l2: bool) -> None:  # noqa: ANN401
        self.torch = torch
        self.properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.flushed: Any = None
        if flush_l2:
            l2_bytes = getattr(self.properties, "L2_cache_size", 0) or _FALLBACK_L2_BYTES
            self.flushed = torch.zeros(_L2_TIMES * l2_bytes // 4, dtype=torch.int32, device="cuda")
            self.total = torch.empty((), dtype=torch.int64, device="cuda")

    def time(self, function: Callable[[], object], warmup: int, repeats: int | None, budget_s: float) -> Timing:
        """Warm up, choose the number of calls, and time them."""
        first_ns = self._whole_ns(function)
        for _ in range(max(warmup, 1) - 1):
            function()
        launches = []  # on an idle device
        for _ in range(_LAUNCHES):
            self.torch.cuda.synchronize()
            launches.append(_host_ns(function))
        launch_ns = statistics.median_high(launches)

        def prepared() -> None:
            self._prepare(launch_ns)
            function()

        one_ns = max(self._whole_ns(prepared), 1)
        count = _repeats(repeats, budget_s, one_ns)
        kept = tuple(self._between(function, count, launch_ns))
        flushed = self.flushed.nbytes if self.flushed is not None else 0
        return Timing(kept, first_ns, max(warmup, 1), self.properties.name, "cuda events", flushed)

    def _whole_ns(self, function: Callable[[], object]) -> int:
        """Time from the call until the device is idle, by the host clock, in ns."""
        self.torch.cuda.synchronize()
        return _host_ns(lambda: (function(), self.torch.cuda.synchronize()))

    def _prepare(self, launch_ns: int) -> None:
        """Flush the cache, and let the device sleep until the host has launched the call."""
        if self.flushed is not None:
            self.torch.sum(self.flushed, dim=None, out=self.total)
        sleep = getattr(self.torch.cuda, "_sleep", None)
        if sleep is not None:
            sleep(min(_AHEAD * launch_ns + _MORE_SLEEP_NS, _LONGEST_SLEEP_NS) * _CYCLES_PER_NS)

    def _between(self, function: Callable[[], object], count: int, launch_ns: int) -> Iterator[int]:
        make = self.torch.cuda.Event
        events = [(make(enable_timing=True), make(enable_timing=True)) for _ in range(count)]
        for start, end in events:
            self._prepare(launch_ns)
            start.record()
            function()
            end.record()
        self.torch.cuda.synchronize()
        return (round(start.elapsed_time(end) * 1e6) for start, end in events)
