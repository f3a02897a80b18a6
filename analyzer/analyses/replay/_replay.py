"""The times of a network, one after the other, and the path to the last of them; those with the change of a remedy.

A replay is sequential by nature: each time depends on earlier ones. The loop is therefore over plain lists, of nodes
with two edges each; a node with more of them is the last of several. What lies before the window is as it was recorded.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.replay._changes import (
    as_graphs,
    host_less,
    inside_window,
    with_durations,
    without_waits,
)
from kanalyze.analyses.replay._mending import NO_ROWS
from kanalyze.analyses.replay._network import Changed, point_values
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.analyses.replay._network import Network, Values
    from kanalyze.report import Report

#: Rows of which numbers are lists at a time.
_SLICE: Final = 1 << 18


class Plan(NamedTuple):
    """In which order a network is computed.

    Attributes:
        rows: One per step of the loop: source and edge of the first and of the second (equal, if there is one alone);
            sources are steps, and an edge past the last has no lag.
        steps: Step of each node.
    """

    rows: pl.DataFrame
    steps: pl.Series


class Replayed(NamedTuple):
    """The times of a replay.

    Attributes:
        times: Of each step of the plan, ns.
        lags: Of each edge, with the value of its point, ns.
    """

    times: list[int]
    lags: pl.Series

    @property
    def end(self) -> int:
        """The end of the window."""
        return self.times[-1]


def planned(network: Network) -> Plan:
    """The plan of a network."""
    edges = network.edges.select("target", "source").with_row_index("edge")
    first = pl.col("target") != pl.col("target").shift(1, fill_value=0)
    edges = edges.select("edge", "source", first=first, last=first.shift(-1, fill_value=True))
    second = ~pl.col("first") & pl.col("first").shift(1, fill_value=False)  # goes with the first one
    edges = edges.with_columns(second=second).with_columns(step=(~pl.col("second")).cast(pl.UInt32).cum_sum())
    # step 0 is the origin
    steps = pl.concat(
        [pl.Series("step", [0], dtype=pl.UInt32), edges.get_column("step").filter(edges.get_column("last"))]
    )
    edges = edges.with_columns(gathered(steps, edges.get_column("source")).alias("from"))
    none, twofold = pl.lit(edges.height, pl.UInt32), pl.col("second").shift(-1, fill_value=False)
    rows = edges.select(
        "second",
        a=pl.when("first").then("from").otherwise(pl.col("step") - 1),
        a_edge=pl.when("first").then("edge").otherwise(none),
        b=pl.when(twofold).then(pl.col("from").shift(-1)).otherwise("from"),
        b_edge=pl.col("edge") + twofold.cast(pl.UInt32),
    )
    return Plan(rows.filter(~pl.col("second")).drop("second"), steps)


def replayed(network: Network, plan: Plan, values: Values, lags: pl.Series) -> Replayed:
    """Every time of the network with other values and lags of its edges (ns)."""
    whole = gathered(point_values(network.line, values), network.edges.get_column("point")) + lags
    whole = whole.alias("lag")
    with_none = pl.concat([whole, pl.Series("lag", [0], dtype=pl.Int64)])
    first, second = (gathered(with_none, plan.rows.get_column(name)) for name in ("a_edge", "b_edge"))
    columns = [plan.rows.get_column("a"), first, plan.rows.get_column("b"), second]
    times = [0]
    append = times.append
    for a, lag, b, other in zip(*map(_numbers, columns), strict=True):
        left, right = times[a] + lag, times[b] + other
        append(left if left > right else right)  # noqa: FURB136 - max() takes twice as long
    return Replayed(times, whole)


def _numbers(values: pl.Series) -> Iterator[int]:
    """The numbers of a column, made a slice at a time."""
    slices: Iterable[list[int]] = (
        values.slice(first, _SLICE).to_list() for first in range(0, max(len(values), 1), _SLICE)
    )
    return chain.from_iterable(slices)


def path(network: Network, plan: Plan, found: Replayed) -> list[int]:
    """The edges that the end of the window waited for one after the other, the last first."""
    sources = plan.rows.select("a", "a_edge", "b", "b_edge")
    lags = found.lags
    times, none = found.times, len(lags)
    step, edges = len(times) - 1, []
    while step and times[step] > network.start:
        a, a_edge, b, b_edge = sources.row(step - 1)
        lag = 0 if a_edge == none else lags[a_edge]
        step_from, edge = (a, a_edge) if times[a] + lag == times[step] else (b, b_edge)
        if edge != none:
            edges.append(edge)
        step = step_from
    return edges


def mended(report: Report, network: Network, state: Changed, mending: Mending) -> Changed:
    """The values and lags of a network's `state` with what `mending` changes."""
    if mending.host is not None:
        state = host_less(network, state, _by_process(network, mending.host), 1.0)
    if mending.shorter is not None:
        state = _with_shorter(network, state, mending.shorter)
    if len(mending.calls) or len(mending.unwaited):
        places = (gathered(network.line.places, rows).drop_nulls() for rows in (mending.calls, mending.unwaited))
        state = without_waits(network, state, *places)
    if len(mending.unwaited):
        state = _launched_at_once(network, state, mending.unwaited)
    if len(mending.gone):
        kept = NO_ROWS if mending.shorter is None else mending.shorter.get_column("row")
        state = _without_operations(network, state, mending.gone, kept)
    return as_graphs(report, network, state) if mending.graph else state


def _by_process(network: Network, spans: pl.DataFrame) -> dict[int | None, pl.DataFrame]:
    """The union of `spans` in the window, by process."""
    parts = spans.filter(pl.col("end") > pl.col("start")).partition_by("process_id", as_dict=True)
    return {
        process: intervals.clip(intervals.union(part.select("start", "end")), network.start, network.end)
        for (process,), part in parts.items()
    }


def _with_shorter(network: Network, state: Changed, shorter: pl.DataFrame) -> Changed:
    """Operations that start in the window take less by `saved_ns`, at most by what of them is in it."""
    work = network.graph.operations
    rows = shorter.group_by("row").agg(pl.col("saved_ns").sum())
    at = rows.get_column("row")
    inside = inside_window(network, gathered(work.get_column("start"), at), gathered(work.get_column("end"), at))
    now = gathered(state.values.durations, at).alias("now")
    known = pl.DataFrame([now, rows.get_column("saved_ns").cast(pl.Int64), inside.alias("inside")])
    saved = pl.when(pl.col("inside") > 0).then(pl.min_horizontal("now", "saved_ns", "inside")).otherwise(0)
    new = known.select(pl.col("now") - saved).to_series()
    return with_durations(network, state, state.values.durations.clone().scatter(at, new))


def _launched_at_once(network: Network, state: Changed, calls: pl.Series) -> Changed:
    """These calls take no longer than launching does, and what they launch starts as soon: nothing is put aside before.

    Both are medians: of calls in the window that launch and do not wait, and of launches that something waited for.
    """
    edges, line = network.edges, network.line.calls
    lag = edges.filter(pl.col("binds") & (pl.col("kind") == "launch")).get_column("slack").median()
    launched = gathered(network.numbers.starts, _launched_by(network, calls)).drop_nulls()
    held = edges.get_column("target").is_in(launched.implode())
    told = pl.DataFrame([state.lags.alias("lag"), held.alias("held")])
    soon = pl.min_horizontal("lag", pl.lit(_whole(lag)))
    lags = told.select(pl.when("held").then(soon).otherwise("lag")).to_series()
    inside = line.filter(pl.col("start").is_between(network.start, network.end))
    others = inside.filter((pl.col("kind") == "launch") & ~pl.col("blocks"))
    usual = others.select((pl.col("end") - pl.col("start")).median()).item()
    asked = gathered(network.line.places, calls).drop_nulls()
    places = inside.filter(pl.col("place").is_in(asked.implode())).get_column("place")
    before = state.values.own
    own = before.clone().scatter(places, gathered(before, places).clip(upper_bound=_whole(usual))) if usual else before
    return Changed(state.values._replace(own=own), lags, state.amdahl_ns + int((before - own).sum()))


def _whole(median: object) -> int:
    """A median of times in ns; 0 for none."""
    return int(median) if isinstance(median, float) else 0


def _launched_by(network: Network, calls: pl.Series) -> pl.Series:
    """Rows of the operations in the window that these calls launched."""
    outer = gathered(network.graph.calls.get_column("outer"), calls)
    work = network.graph.operations.with_row_index("row")
    chosen = pl.col("call").is_in(outer.implode()) & (pl.col("start") >= network.start)
    return work.filter(chosen).get_column("row")


class _Units(NamedTuple):
    """Calls by what is launched with them: each launch with the calls of its thread since the launch before it.

    Attributes:
        calls: By place: place, unit, own, gap (ns; 0 for what is no part of a unit's time).
        units: unit, place (of the launch), total (ns of the host).
        usual: The median of the host's time for a launch in the window, ns.
    """

    calls: pl.DataFrame
    units: pl.DataFrame
    usual: float


def _units(network: Network, state: Changed) -> _Units:
    line = network.line.calls.select(
        "place", "segment", "kind", "blocks", "start", state.values.own.alias("own"), state.values.gaps.alias("gaps")
    )
    ends = pl.col("kind") != "other"
    first = ends.shift(1, fill_value=True) | pl.col("segment").ne_missing(pl.col("segment").shift(1))
    calls = line.with_columns(
        unit=first.cum_sum(),
        own=pl.when("blocks").then(0).otherwise(pl.col("own").clip(lower_bound=0)),
        gap=pl.col("gaps").clip(lower_bound=0),
    )
    units = calls.group_by("unit", maintain_order=True).agg(
        pl.col("place", "kind", "start").last(), total=(pl.col("own") + pl.col("gap")).sum()
    )
    inside = (pl.col("kind") == "launch") & pl.col("start").is_between(network.start, network.end)
    usual = units.filter(inside).get_column("total").median()
    return _Units(calls.select("place", "unit", "own", "gap"), units, usual if isinstance(usual, float) else 0.0)


def _without_operations(network: Network, state: Changed, gone: pl.Series, kept: pl.Series) -> Changed:
    """Operations are not launched: they take no time, what follows them waits for what they did.

    A call of which nothing is left is gone, with what the host does before it since the launch before, but no more than
    the median of all launches of the window; after a launch that is gone, too, or of one of `kept` operations, than the
    median of such.
    """
    work, edges = network.graph.operations, network.edges
    inside = gathered(work.get_column("start"), gone).is_between(network.start, network.end)
    gone = gone.filter(inside).unique()
    state = with_durations(network, state, state.values.durations.clone().scatter(gone, 0)) if len(gone) else state
    nodes = gathered(network.numbers.starts, gone).drop_nulls()
    told = pl.DataFrame([state.lags.alias("lag"), edges.get_column("target").is_in(nodes.implode()).alias("gone")])
    lags = told.select(pl.when("gone").then(pl.min_horizontal("lag", 0)).otherwise("lag")).to_series()
    places = gathered(network.line.places, work.get_column("call")).alias("place")
    left = pl.DataFrame([places]).with_row_index("row").drop_nulls()
    left = left.with_columns(pl.col("row").is_in(gone.implode()).alias("gone"))
    empty = left.group_by("place").agg(pl.col("gone").all()).filter("gone").get_column("place")
    known, touched = _units(network, state), pl.concat([empty, gathered(places, kept).drop_nulls()])
    after = pl.col("place").is_in(touched.implode()).shift(1, fill_value=False)
    spared = known.units.with_columns(after=after).filter(
        pl.col("place").is_in(empty.implode()) & (pl.col("total") > 0)
    )
    follows = pl.max_horizontal(pl.col("total").filter("after").median(), pl.lit(known.usual))
    most = pl.when("after").then(follows).otherwise(known.usual)
    share = spared.select("unit", share=(most / pl.col("total")).clip(upper_bound=1.0))
    calls = known.calls.join(share, on="unit", how="left", maintain_order="left").fill_null(0.0)
    less = calls.select((pl.col(name) * pl.col("share")).floor().cast(pl.Int64) for name in ("own", "gap"))
    values = state.values._replace(
        own=state.values.own - less.get_column("own"), gaps=state.values.gaps - less.get_column("gap")
    )
    return Changed(values, lags, state.amdahl_ns + int(less.sum_horizontal().sum()))
