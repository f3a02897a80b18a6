"""A recording without its profiler: the same events at the times that a replay gives them with less of the host's time.

Definitions: docs/definitions.md, section 12, "Without the profiler".
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.replay._changes import IS_LOADING, Unslowed, without_profiler
from kanalyze.analyses.replay._network import Network, as_recorded, network, point_values
from kanalyze.analyses.replay._whatif import planned, replayed
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, of_parts
from kanalyze.model import DEVICE_KINDS, EVENTS
from kanalyze.report import Report
from kanalyze.window import Scope, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray


#: Columns of further tables that are instants.
_INSTANTS: Final = ("time_ns", "open_until_ns")

_MOVED: Final = "moved"


class Clock(NamedTuple):
    """Recorded times and those without the profiler, both rising; between two of them time passes evenly."""

    recorded: NDArray[np.int64]
    new: NDArray[np.int64]

    def at(self, recorded_ns: pl.Series) -> pl.Series:
        """The times (ns) without the profiler; before the first and after the last known one, as far from it."""
        times = recorded_ns.fill_null(0).to_numpy()
        if not len(self.recorded):
            return recorded_ns
        inside = np.clip(times, self.recorded[0], self.recorded[-1])
        # relative to the first: whole ns of a clock since 1970 do not fit the 53 bits of a float
        since = np.interp(inside - self.recorded[0], self.recorded - self.recorded[0], self.new - self.new[0])
        moved = np.rint(since).astype(np.int64) + self.new[0] + (times - inside)
        return pl.Series(_MOVED, moved).set(recorded_ns.is_null(), None)


def unprofiled(report: Report, host: Unslowed, window: Window | None = None) -> Report:
    """The whole report at the times of a replay in which so much of the host's time is left as usual.

    Operations keep their durations. What a thread does lies between its calls as it did; a thread without calls, and a
    process without any, go by the thread with most calls.

    Args:
        report: A report with times.
        host: What is left of the host's time.
        window: The part that it is known of: where that is no matter of recorded events, what comes before stays.
    """
    everything = replace(report, scope=Scope())
    net = network(everything, *everything.recorded)
    if window is not None and host.usual.reach_ns == inf:
        net = net._replace(start=window.start_ns or 0)
    plan = planned(net)
    state = without_profiler(everything, net, as_recorded(net), host.usual)
    every = replayed(net, plan, state.values, state.lags).times
    times = gathered(pl.Series(every, dtype=pl.Int64), plan.steps)
    moments = _Moments(everything, net, times, point_values(net.line, state.values))
    end_ns = None if report.meta.end_ns is None else every[-1]
    meta = replace(report.meta, end_ns=end_ns)
    moved = Moved(everything, moments, host)
    return Report(meta, moved, beside=report.beside, sampled=report.sampled, bare=report.bare)


class _Moments:
    """When everything is, without the profiler."""

    def __init__(self, report: Report, net: Network, times: pl.Series, points: pl.Series) -> None:
        """Takes the times of nodes, and the values of points, of a replay."""
        starts = gathered(times, net.numbers.starts).alias(_MOVED)
        self._starts = pl.DataFrame([operations(report).get_column("event_id"), starts]).drop_nulls()
        self._clocks = _clocks(net, times, points)
        by_size = sorted(self._clocks.items(), key=lambda one: len(one[1].recorded), reverse=True)
        nothing = np.array([], dtype=np.int64)
        self._main = by_size[0][1] if by_size else Clock(nothing, nothing)
        self._of_process = {process: clock for (process, _), clock in reversed(by_size)}

    def of_host(self, rows: pl.DataFrame, column: str) -> pl.Series:
        """The times in a column of rows, by their thread, else their process, else the main thread."""
        keys = [key for key in THREAD if key in rows.columns]
        if not keys:
            return self._main.at(rows.get_column(column))

        def moved(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
            process, thread = (*key, None)[:2]
            clock = self._clocks.get((process, thread)) or self._of_process.get(process, self._main)
            return clock.at(part.get_column(column))

        return of_parts(rows.select(*keys, column), keys, pl.Int64, moved).alias(_MOVED)

    def of_device(self, rows: pl.DataFrame) -> pl.Series:
        """The starts of operations; of those that were not replayed as of host events."""
        replayed = rows.select("event_id").join(self._starts, on="event_id", how="left", maintain_order="left")
        starts = replayed.get_column(_MOVED)
        return starts.zip_with(starts.is_not_null(), self.of_host(rows, "start_ns"))


def _clocks(net: Network, times: pl.Series, points: pl.Series) -> dict[tuple[int | None, int | None], Clock]:
    """The clock of each thread with calls, by the begins and ends of its outermost calls."""
    calls, size = net.line.calls, net.graph.operations.height
    bases, ends = (gathered(times, nodes) for nodes in (net.numbers.bases, net.numbers.ends))
    begins = bases + points.slice(size, calls.height)
    returns = bases + points.slice(size + calls.height, calls.height)
    returned = returns.zip_with(~calls.get_column("blocks"), ends)
    sides = [calls.select(*THREAD, recorded=side, new=new) for side, new in (("start", begins), ("end", returned))]
    line = pl.concat(sides).drop_nulls(["recorded", "new"]).sort(*THREAD, "recorded", "new")
    # calls that overlap on one thread, of a damaged report, stay in order
    line = line.with_columns(pl.col("new").cum_max().over(THREAD))
    return {
        (process, thread): Clock(part.get_column("recorded").to_numpy(), part.get_column("new").to_numpy())
        for (process, thread), part in line.partition_by(THREAD, as_dict=True).items()
    }


class Moved:
    """A source whose events and samples are at other times, with what may be left of the host's time as it is here."""

    def __init__(self, report: Report, moments: _Moments, host: Unslowed) -> None:
        """Takes the whole report, when everything is, and what is left of the host's time as it was recorded."""
        self._report = report
        self._moments = moments
        self.host = Unslowed(*(one._replace(kept=one.kept / host.usual.kept) for one in host))

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that were recorded."""
        return self._report.kinds

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind, sorted as they were; the profiler's own work takes no time."""
        rows = self._report.kind(kind)
        if kind == "overhead":
            return self._spans(rows).with_columns(dur_ns=pl.when(IS_LOADING).then("dur_ns").otherwise(0))
        if kind in DEVICE_KINDS:
            return rows.with_columns(start_ns=self._moments.of_device(rows))
        return self._spans(rows)

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables."""
        rows = self._report.table(name)
        if name == EVENTS.name or rows.is_empty():
            return rows
        if "start_ns" in rows.columns:
            rows = self._spans(rows)
        instants = [column for column in _INSTANTS if column in rows.columns]
        return rows.with_columns(self._moments.of_host(rows, column).alias(column) for column in instants)

    def _spans(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with start_ns and dur_ns, at both moved sides."""
        starts = self._moments.of_host(rows, "start_ns")
        ends = self._moments.of_host(rows.with_columns(end=pl.col("start_ns") + pl.col("dur_ns")), "end")
        return rows.with_columns(start_ns=starts, dur_ns=(ends - starts).clip(lower_bound=0))

    def notes_of_read(self) -> pl.DataFrame:
        """The notes of the report."""
        return self._report.notes_of_read()

    def close(self) -> object:
        """Close the report's own source."""
        return self._report.source.close()
