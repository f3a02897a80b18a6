"""Times a function on the GPU and returns the distribution of times: one number hides that times have several modes.

The first calls load modules, compile and grow pools: they warm up, and the first one is told apart. CUDA events are
recorded on the stream around each call, and the device is waited for once, at the end. A kernel that is shorter than
its launch would be timed as the launch: before each call the device sleeps for as long as the host needs to launch.
`flush_l2` reads a buffer twice the size of the L2 cache before each call; written lines would still have to be written
back to memory, in the middle of what is timed. Sleep and flush lie outside of what is timed. Work that the function
gives to other streams is not waited for by its events.
"""

import html
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Final

from kanalyze import errors, units

#: Bars of the histogram.
_BARS: Final = 24


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
        return self.quantile_ns(0.5)

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
        """The quantile at `share`, by numpy; a ValueError where that is not between 0 and 1."""
        return float(import_module("numpy").quantile(self.times_ns, share))

    def _texts(self) -> dict[str, str]:
        low, high = map(units.time, self.quartiles_ns)
        return {
            "median": units.time(self.median_ns),
            "quartiles": f"{low} to {high}",
            "all": f"{units.time(min(self.times_ns))} to {units.time(max(self.times_ns))}",
            "first call": units.time(self.first_ns),
            "calls": units.count(len(self.times_ns)),
            "clock": f"{self.clock}{', L2 flushed' if self.flushed_bytes else ''}",
            "device": self.device,
        }

    def __repr__(self) -> str:
        """One line: median, spread, and how it was measured."""
        texts, calls = self._texts(), units.plural(len(self.times_ns), "call")
        return (
            f"Timing: median {texts['median']} (quartiles {texts['quartiles']}, {texts['all']} in all) of {calls} "
            f"on {texts['device']} by {texts['clock']}; first call {texts['first call']}"
        )

    def _repr_html_(self) -> str:
        """A table with a histogram."""
        rows = (f"<tr><th>{name}</th><td>{html.escape(text)}</td></tr>" for name, text in self._texts().items())
        counts, _ = import_module("numpy").histogram(self.times_ns, _BARS)
        bars = "".join(
            f'<rect x="{at * 10}" y="{60 - height:.1f}" width="9" height="{height:.1f}"/>'
            for at, height in enumerate(60 * counts / counts.max())
        )
        drawn = f'<svg width="{_BARS * 10}" height="60" fill="currentColor" role="img">{bars}</svg>'
        return f"<table>{''.join(rows)}</table>{drawn}"


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
    warmup = max(warmup, 1)

    def fitting(one_ns: float) -> int:
        """The number of calls that fit the budget, given the duration of one call with overhead."""
        return repeats or max(10, min(10_000, int(budget_s * 1e9 / max(one_ns, 1))))

    if device == "cpu":
        if flush_l2:
            raise ValueError("flush_l2 is for GPUs")
        warm = [_host_ns(function) for _ in range(warmup)]
        times_ns = tuple(_host_ns(function) for _ in range(fitting(statistics.median(warm))))
        return Timing(times_ns, warm[0], warmup, "CPU", "host")
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        raise errors.CollectError.without_torch(error) from None
    if not torch.cuda.is_available():
        raise errors.CollectError.without_gpu()
    with torch.cuda.device(device):
        return _on_gpu(torch, function, warmup, fitting, flush_l2=flush_l2)


def _host_ns(function: Callable[[], object]) -> int:
    began_ns = time.perf_counter_ns()
    function()
    return time.perf_counter_ns() - began_ns


def _on_gpu(
    torch: Any,  # noqa: ANN401 - the module
    function: Callable[[], object],
    warmup: int,
    fitting: Callable[[float], int],
    *,
    flush_l2: bool,
) -> Timing:
    """Warm up, choose the number of calls, and time them on the current device."""
    cuda, flushed, total = torch.cuda, None, None
    properties, sleep = cuda.get_device_properties(cuda.current_device()), getattr(cuda, "_sleep", None)
    if flush_l2:
        l2_bytes = getattr(properties, "L2_cache_size", 0) or 64 << 20
        flushed = torch.zeros(2 * l2_bytes // 4, dtype=torch.int32, device="cuda")
        total = torch.empty((), dtype=torch.int64, device="cuda")

    def whole_ns(*calls: Callable[[], object]) -> int:
        """Time until the device is idle, by the host clock."""
        cuda.synchronize()
        return _host_ns(lambda: [call() for call in (*calls, cuda.synchronize)])

    def prepare() -> None:
        """Flush the cache, and let the device sleep until the host has launched the call."""
        if flushed is not None:
            torch.sum(flushed, dim=None, out=total)
        if sleep is not None:  # for two cycles a ns: no GPU's clock is much above 2 GHz, and longer does no harm
            sleep(min(2 * launch_ns + 20_000, 20_000_000) * 2)

    first_ns = whole_ns(function)
    for _ in range(warmup - 1):
        function()
    launches = []  # on an idle device
    for _ in range(3):
        cuda.synchronize()
        launches.append(_host_ns(function))
    launch_ns = statistics.median_high(launches)
    count = fitting(whole_ns(prepare, function))
    events = [(cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)) for _ in range(count)]
    for start, end in events:
        prepare()
        start.record()
        function()
        end.record()
    cuda.synchronize()
    times_ns = tuple(round(start.elapsed_time(end) * 1e6) for start, end in events)
    flushed_bytes = flushed.nbytes if flushed is not None else 0
    return Timing(times_ns, first_ns, warmup, properties.name, "cuda events", flushed_bytes)
