"""Cost of the profiler per recorded call, range and operator, and the recording without it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.replay._changes import Changed
    from kanalyze.analyses.replay._network import Network
    from kanalyze.report import Report

#: Edges that are host code: what they name is the place of the call before or after it.
HOST_EDGES: Final = ("thread", "handover", "tail")

#: Most that a profiler is taken to cost per event, and how closely the cost is found.
_MOST_NS: Final = 50_000.0
_CLOSE_NS: Final = 10.0

#: A recording that takes longer by less than this part tells nothing of the profiler.
_NOTABLE: Final = 0.01

#: A cost explains what was measured if the replay comes as near as this.
NEAR: Final = 0.03


class Costs(NamedTuple):
    """Assumed cost of the profiler per event, and the least and most that explain what was measured (ns)."""

    found: float
    least: float
    most: float


def profiler_costs(took: Callable[[float], int], measured_ns: float) -> Costs:
    """The costs with which a window takes `measured_ns`; `took` gives what it takes (ns) at a cost.

    Found is the highest cost at which it takes no less: 0 where the recording takes hardly longer, as a device-bound
    program does whatever the profiler costs its host, or where no cost explains it.
    """

    def highest(ns: float) -> float:
        """The highest cost at which the window takes more than `ns`."""
        low, high = 0.0, _MOST_NS
        if took(low) <= ns or took(high) > ns:
            return low if took(low) <= ns else high
        while high - low > _CLOSE_NS:
            middle = (low + high) / 2
            low, high = (middle, high) if took(middle) > ns else (low, middle)
        return low

    most = highest(measured_ns * (1 - NEAR))
    if took(0) <= measured_ns * (1 + _NOTABLE) or took(_MOST_NS) > measured_ns:
        return Costs(0.0, 0.0, most)
    return Costs(highest(measured_ns), highest(measured_ns * (1 + NEAR)), most)


def without_profiler(report: Report, network: Network, state: Changed, cost_ns: float) -> Changed:
    """Each recorded call, range and operator took less by `cost_ns`, as far as it took so long.

    What a call cannot have cost is taken from the host code after it.
    """
    calls = network.line.calls.select(
        "process_id",
        "first",
        "blocks",
        own=state.values.own,
        gap=state.values.gaps,
        start=pl.col("start") - pl.col("gap"),
        end="start",
    )
    taken = pl.min_horizontal("own", pl.lit(int(cost_ns))).clip(lower_bound=0)
    calls = calls.with_columns(taken=taken, inside=_events_cost(report, calls, cost_ns))
    before = pl.when("blocks").then(0).otherwise(int(cost_ns) - pl.col("taken")).shift(1, fill_value=0)
    spent = pl.col("inside") + pl.when("first").then(0).otherwise(before)
    new = calls.select(
        own=pl.col("own") - pl.col("taken"),
        gap=pl.when(pl.col("gap") > 0).then((pl.col("gap") - spent).clip(lower_bound=0)).otherwise("gap"),
    )
    edges, lags = network.edges, state.lags
    until = gathered(network.nodes.get_column("at"), edges.get_column("target"))
    host = edges.select("kind", "place", end=until, start=until - pl.col("slack"), lag=lags).with_row_index("edge")
    host = host.filter(pl.col("kind").is_in(HOST_EDGES) & (pl.col("lag") > 0))
    host = host.with_columns(gathered(network.line.calls.get_column("process_id"), host.get_column("place")))
    lag = host.select((pl.col("lag") - _events_cost(report, host, cost_ns)).clip(lower_bound=0)).to_series()
    lags = lags.clone().scatter(host.get_column("edge"), lag) if host.height else lags
    values = state.values._replace(own=new.get_column("own"), gaps=new.get_column("gap"))
    return state._replace(values=values, lags=lags)


def _events_cost(report: Report, asked: pl.DataFrame, cost_ns: float) -> pl.Series:
    """Cost of ranges and operators within each row (process_id, start, end): half at the begin, half at the end."""
    found = pl.zeros(asked.height, dtype=pl.Float64, eager=True)
    every = asked.with_row_index("at")
    for process, line in _sides(report).items():
        own = every.filter(pl.col("process_id").eq_missing(process))
        first, last = (count_up_to(line, own.get_column(side), equal=False) for side in ("start", "end"))
        inside = last.cast(pl.Float64) - first.cast(pl.Float64)
        found = found.scatter(own.get_column("at"), inside.clip(lower_bound=0))
    return (found * (cost_ns / 2)).floor().cast(pl.Int64)


@once_per_report
def _sides(report: Report) -> dict[int | None, pl.Series]:
    """Begins and ends of ranges and operators by process, sorted."""
    parts = [
        report.kind(kind).select("process_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
        for kind in ("range", "op")
    ]
    sides = pl.concat([part.select("process_id", at=side) for part in parts for side in ("start", "end")])
    found = sides.drop_nulls("at").partition_by("process_id", as_dict=True)
    return {process: part.get_column("at").sort() for (process,), part in found.items()}
