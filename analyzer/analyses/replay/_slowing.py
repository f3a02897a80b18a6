"""What a profiler adds to the host's time: how much shorter calls, the code between them and waits are without it.

Definitions: docs/definitions.md, section 12, "Without the profiler".
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._context_creation import LOADING_WORDS
from kanalyze.analyses.replay._network import HOST_EDGES
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.replay._network import Changed, Network
    from kanalyze.report import Report

#: Edges of the host that end a blocking call.
_OF_WAITS: Final = ("own", "return")

#: So far from a recorded event the host is slower (ns): a profiler's own work, and what it drives out of caches.
_REACH_NS: Final = 100_000.0

#: Where it is known what a window took, the nearest of these reaches that explains it with so much left is taken.
_REACHES_NS: Final = (10_000.0, 30_000.0, _REACH_NS)
_ENOUGH: Final = 0.4

#: A window that takes longer by less than this part tells nothing of the profiler; how near a replay comes.
_NOTABLE: Final = 0.01
_CLOSE: Final = 0.002

#: Two runs of a program differ by such a part: no replay tells a window closer.
NEAR: Final = 0.03

#: Rows of overheads that are CUDA's own loading, and no work of the profiler.
IS_LOADING: Final = pl.col("name").cast(pl.String).str.contains(LOADING_WORDS).fill_null(value=False)

#: No profiler makes the host slower than by this.
_LEAST: Final = 0.1


class HostTime(NamedTuple):
    """What is left of the host's time: a part of what is within `reach_ns` of a recorded event, and all else."""

    kept: float = 1.0
    reach_ns: float = _REACH_NS


#: The host's time as it was recorded.
AS_RECORDED: Final = HostTime()


class Unslowed(NamedTuple):
    """What is left of the host's time without the profiler: usually, at least and at most."""

    usual: HostTime
    least: HostTime
    most: HostTime


def _kept(usual: float, least: float, most: float, reach_ns: float = _REACH_NS) -> Unslowed:
    return Unslowed(*(HostTime(part, reach_ns) for part in (usual, least, most)))


#: Nothing is changed.
UNCHANGED: Final = Unslowed(AS_RECORDED, AS_RECORDED, AS_RECORDED)

#: What is left without a tool, by tool: of programs whose host is the limit, on hosts of H100 and H200 (docs/whatif.md
#: has the programs).
BY_TOOL: Final = {"nsys": _kept(0.63, 0.48, 0.80), "torch.profiler": _kept(0.55, 0.42, 0.68)}


def without_profiler(report: Report, network: Network, state: Changed, host: HostTime) -> Changed:
    """What is left of the host's time, from the window's start on.

    Of a call, and of a wait for what it returns late, the event is the call; of the code before a call there are also
    the begins and ends of ranges and operators in it, half an event each. What the profiler itself reports as its own
    work between calls is gone.
    """
    if host == AS_RECORDED:
        return state
    calls = network.line.calls.select(
        "process_id",
        "start",
        own=state.values.own,
        gap=state.values.gaps,
        since=pl.col("start") - pl.col("gap"),
    )
    between = calls.select("process_id", start="since", end="start")
    calls = calls.with_columns(events=_events(report, between), profiled=covered(between, _own_work(report)))
    inside, whole = pl.col("start") >= network.start, pl.col("since") >= network.start
    code = (pl.col("gap") - pl.col("profiled")).clip(lower_bound=0)
    new = calls.select(
        own=pl.when(inside).then(_shorter("own", 1.0, host)).otherwise("own"),
        gap=pl.when(whole & (pl.col("gap") > 0)).then(_shorter(code, "events", host)).otherwise("gap"),
    )
    values = state.values._replace(own=new.get_column("own"), gaps=new.get_column("gap"))
    return state._replace(values=values, lags=_lags(report, network, state, host))


def _lags(report: Report, network: Network, state: Changed, left: HostTime) -> pl.Series:
    """The lags of edges that are host code, or what a blocking call takes beside what it waits for."""
    edges = network.edges
    until = gathered(network.nodes.get_column("at"), edges.get_column("target"))
    host = edges.select("kind", "place", end=until, start=until - pl.col("slack"), lag=state.lags)
    host = host.with_row_index("edge")
    chosen = pl.col("kind").is_in([*HOST_EDGES, *_OF_WAITS]) & (pl.col("start") >= network.start)
    host = host.filter(chosen & (pl.col("lag") > 0))
    if host.is_empty():
        return state.lags
    host = host.with_columns(gathered(network.line.calls.get_column("process_id"), host.get_column("place")))
    events = pl.when(pl.col("kind").is_in(_OF_WAITS)).then(1.0).otherwise("events")
    new = host.with_columns(events=_events(report, host)).select(_shorter("lag", events, left))
    return state.lags.clone().scatter(host.get_column("edge"), new.to_series())


def _shorter(host_ns: str | pl.Expr, events: str | float | pl.Expr, left: HostTime) -> pl.Expr:
    """What is left of host time with so many events in it; times below 0, of what overlaps, stay."""
    took = pl.col(host_ns) if isinstance(host_ns, str) else host_ns
    number = pl.col(events) if isinstance(events, str) else pl.lit(events) if isinstance(events, float) else events
    slowed = pl.min_horizontal(took.cast(pl.Float64), number * left.reach_ns).clip(lower_bound=0.0)
    return (took - slowed * (1 - left.kept)).cast(pl.Int64)


def _events(report: Report, asked: pl.DataFrame) -> pl.Series:
    """Events by row (process_id, start, end): a call, and half of one for each begin and end of a range or operator."""
    sides = pl.ones(asked.height, dtype=pl.Float64, eager=True)
    every = asked.with_row_index("at")
    for process, line in _sides(report).items():
        own = every.filter(pl.col("process_id").eq_missing(process))
        first, last = (count_up_to(line, own.get_column(side), equal=False) for side in ("start", "end"))
        inside = last.cast(pl.Float64) - first.cast(pl.Float64)
        sides = sides.scatter(own.get_column("at"), 1 + inside.clip(lower_bound=0) / 2)
    return sides


@once_per_report
def _sides(report: Report) -> dict[int | None, pl.Series]:
    """Begins and ends of ranges and operators by process, sorted."""
    parts = [
        report.kind(kind).select("process_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
        for kind in ("range", "op")
    ]
    sides = pl.concat([part.select("process_id", at=side) for part in parts for side in ("start", "end")])
    by_process = sides.drop_nulls("at").partition_by("process_id", as_dict=True)
    return {process: part.get_column("at").sort() for (process,), part in by_process.items()}


@once_per_report
def _own_work(report: Report) -> dict[int | None, pl.DataFrame]:
    """The union of what a profiler reports as its own work, by process."""
    rows = report.kind("overhead").filter(~IS_LOADING)
    rows = rows.select("process_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    parts = rows.drop_nulls("end").filter(pl.col("end") > pl.col("start")).partition_by("process_id", as_dict=True)
    return {process: intervals.union(part.select("start", "end")) for (process,), part in parts.items()}


def covered(asked: pl.DataFrame, spans: dict[int | None, pl.DataFrame]) -> pl.Series:
    """How much of each row (process_id, start, end) its process' spans cover."""
    found = pl.zeros(asked.height, dtype=pl.Int64, eager=True)
    every = asked.with_row_index("at")
    for process, span in spans.items():
        own = every.filter(pl.col("process_id").eq_missing(process))
        if own.height:
            covered = intervals.overlap(own.get_column("start"), own.get_column("end"), span)
            found = found.scatter(own.get_column("at"), covered)
    return found


def fitted(took: Callable[[HostTime], float], measured_ns: float, near: float) -> Unslowed:
    """What is left of the host's time where a window takes `measured_ns` without the profiler.

    Args:
        took: What the window takes (ns) with so much left.
        measured_ns: What it took.
        near: By such a part of it two runs of a program differ: `least` and `most` explain what was measured to there.

    All is left where the recording takes hardly longer, as that of a program that its device limits: that tells little
    of the host. Where shorter times near events do not explain it, all of the host's time is taken to be shorter; and
    where that does not, as much shorter as still makes a difference.
    """
    reach_ns = next((ns for ns in _REACHES_NS if took(HostTime(_ENOUGH, ns)) <= measured_ns), inf)
    shortest_ns = took(HostTime(_LEAST, reach_ns)) * (1 + _CLOSE)

    def most(ns: float) -> float:
        """The most that is left where the window takes no more than `ns`; the least where it always takes more."""
        low, high = _LEAST, 1.0
        if took(AS_RECORDED) <= ns:
            return high
        while high - low > _CLOSE:
            middle = (low + high) / 2
            low, high = (middle, high) if took(HostTime(middle, reach_ns)) <= ns else (low, middle)
        return low

    usual = measured_ns * (1 + _NOTABLE) if took(AS_RECORDED) <= measured_ns * (1 + _NOTABLE) else measured_ns
    highest_ns = max(measured_ns * (1 + near), shortest_ns)
    return _kept(most(max(usual, shortest_ns)), most(measured_ns * (1 - near)), most(highest_ns), reach_ns)
