"""The recording computed anew: times of a network, the change of a remedy, and what a change of a program gains.

What lies before the window is as it was recorded.
Definitions: docs/whatif.md.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import polars as pl

from kanalyze import errors, machinery, model
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.launches.graphs import repetitive
from kanalyze.analyses.replay import _changes
from kanalyze.analyses.replay._host_time import BY_TOOL, NEAR, UNCHANGED, HostTime, Unslowed, fitted
from kanalyze.analyses.replay._network import Changed, Network, as_recorded, network, replayed
from kanalyze.analyses.replay.critical_path import RUNNING, Ending, walk, way_of
from kanalyze.analyses.shared.analysis import once_per_report, require
from kanalyze.columns import gathered, marked, sure
from kanalyze.report import Meta, Report
from kanalyze.window import Scope

with machinery.late():  # of another GPU, batch, length or type
    from kanalyze.analyses.work import _configuration

if TYPE_CHECKING:
    from kanalyze.analyses.work._configuration import Configuration


def mended(report: Report, network: Network, state: Changed, mending: _changes.Mending) -> Changed:
    """The values and lags of a network's `state` with what `mending` changes."""
    if mending.host.height:
        state = _changes.host_less(network, state, _changes.by_process(network, mending.host), 1.0)
    if mending.shorter.height:
        state = _with_shorter(network, state, mending.shorter)
    if len(mending.calls) or len(mending.unwaited):
        places = (gathered(network.line.places, rows).drop_nulls() for rows in (mending.calls, mending.unwaited))
        state = _changes.without_waits(network, state, *places)
    if len(mending.unwaited):
        state = _launched_at_once(network, state, mending.unwaited)
    if len(mending.gone):
        state = _without_operations(network, state, mending.gone, mending.shorter.get_column("row"))
    repeats = mending.graph and repetitive(report).repetitions.height > 0
    return _changes.as_graphs(report, network, state) if repeats else state


def _with_shorter(network: Network, state: Changed, shorter: pl.DataFrame) -> Changed:
    """Operations that start in the window take less by `saved_ns`, at most by what of them is in it."""
    rows = shorter.group_by("row").agg(pl.col("saved_ns").sum().cast(pl.Int64))
    at = rows.get_column("row").cast(pl.UInt32)
    inside = _changes.inside_window(network, network.graph.operations.select("start", "end")[at]).alias("inside")
    rows = rows.with_columns(inside, gathered(state.values.durations, at).alias("now"))
    saved = pl.when(pl.col("inside") > 0).then(pl.min_horizontal("now", "saved_ns", "inside")).otherwise(0)
    new = rows.select(pl.col("now") - saved).to_series()
    return _changes.with_durations(network, state, state.values.durations.clone().scatter(at, new))


def _launched_at_once(network: Network, state: Changed, calls: pl.Series) -> Changed:
    """These calls take no longer than launching does, and what they launch starts as soon: nothing is put aside before.

    Both are medians: of calls in the window that launch and do not wait, and of launches that something waited for.
    """
    edges, line, work = network.edges, network.line.calls, network.graph.operations
    lag = edges.select(pl.col("slack").filter(pl.col("binds") & (pl.col("kind") == "launch")).median()).item()
    outer = marked(network.graph.calls.height, gathered(network.graph.calls.get_column("outer"), calls).drop_nulls())
    of_calls = sure(gathered(outer, work.get_column("call"))) & (work.get_column("start") >= network.start)
    launched = marked(network.nodes.height, network.numbers.starts.filter(of_calls).drop_nulls())
    lags = _changes.capped(state.lags, gathered(launched, edges.get_column("target")), int(lag or 0))
    inside = line.get_column("start").is_between(network.start, network.end)
    others = (pl.col("end") - pl.col("start")).filter(inside & (pl.col("kind") == "launch") & ~pl.col("blocks"))
    usual = int(line.select(others.median()).item() or 0)
    chosen = marked(line.height, gathered(network.line.places, calls).drop_nulls()) & inside
    own = _changes.capped(state.values.own, chosen, usual) if usual else state.values.own
    return state.less(int((state.values.own - own).sum()), lags, own=own)


def _units(network: Network, state: Changed) -> tuple[pl.DataFrame, pl.DataFrame, float]:
    """Calls by what is launched with them: each launch with the calls of its thread since the launch before it.

    Gives the calls by place (unit, own, gap; 0 for what is no part of a unit's time), the units by number (place of the
    launch, total ns of the host), and the median of the host's time for a launch in the window (ns).
    """
    line = network.line.calls.select(
        *("place", "segment", "kind", "blocks", "start"), own=state.values.own, gaps=state.values.gaps
    )
    ends = pl.col("kind") != "other"
    first = ends.shift(1, fill_value=True) | pl.col("segment").ne_missing(pl.col("segment").shift(1))
    calls = line.with_columns(
        first=first,
        unit=first.cum_sum() - 1,
        own=pl.when("blocks").then(0).otherwise(pl.col("own").clip(lower_bound=0)),
        gap=pl.col("gaps").clip(lower_bound=0),
    )
    last, reached = pl.col("first").shift(-1, fill_value=True), (pl.col("own") + pl.col("gap")).cum_sum()
    units = calls.select(pl.col("place", "kind", "start").filter(last), total=reached.filter(last))
    units = units.with_columns(pl.col("total") - pl.col("total").shift(1, fill_value=0))
    inside = (pl.col("kind") == "launch") & pl.col("start").is_between(network.start, network.end)
    usual = units.filter(inside).get_column("total").median()
    return calls.select("unit", "own", "gap"), units, usual if isinstance(usual, float) else 0.0


def _without_operations(network: Network, state: Changed, gone: pl.Series, kept: pl.Series) -> Changed:
    """Operations are not launched: they take no time, what follows them waits for what they did.

    A call of which nothing is left is gone, with what the host does before it since the launch before, but no more than
    the median of all launches of the window; after a launch that is gone, too, or of one of `kept` operations, than the
    median of such.
    """
    work, size = network.graph.operations, network.line.calls.height
    gone = gone.filter(gathered(work.get_column("start"), gone).is_between(network.start, network.end)).unique()
    state = (
        _changes.with_durations(network, state, state.values.durations.clone().scatter(gone, 0)) if len(gone) else state
    )
    nodes = gathered(network.numbers.starts, gone).drop_nulls()
    lags = _changes.capped(
        state.lags, gathered(marked(network.nodes.height, nodes), network.edges.get_column("target")), 0
    )
    places, left = gathered(network.line.places, work.get_column("call")), ~marked(work.height, gone)
    empty = marked(size, gathered(places, gone).drop_nulls()) & ~marked(size, places.filter(left).drop_nulls())
    (calls, units, usual), touched = _units(network, state), empty | marked(size, gathered(places, kept).drop_nulls())
    place = units.get_column("place")
    units = units.with_columns(empty=gathered(empty, place), after=gathered(touched, place).shift(1, fill_value=False))
    spared = pl.col("empty") & (pl.col("total") > 0)
    follows = pl.max_horizontal(pl.col("total").filter(spared & pl.col("after")).median(), pl.lit(usual))
    most = pl.when("after").then(follows).otherwise(usual)
    share = units.select(share=pl.when(spared).then((most / pl.col("total")).clip(upper_bound=1.0)).otherwise(0.0))
    calls = calls.hstack(share[calls.get_column("unit")])
    less = calls.select((pl.col(name) * pl.col("share")).floor().cast(pl.Int64) for name in ("own", "gap"))
    own, gaps = state.values.own - less.get_column("own"), state.values.gaps - less.get_column("gap")
    return state.less(int(less.sum_horizontal().sum()), lags, own=own, gaps=gaps)


#: How much faster each is in the table of single changes.
TWICE: Final = 2.0

#: Kernels and ranges in the table of single changes.
_MOST_NAMES: Final = 24


class Critical(NamedTuple):
    """A part of the critical path: a cause (kernel, copy, host code, …), its name, and its time now and then (ns)."""

    cause: str
    name: str
    now_ns: int
    then_ns: int


class Single(NamedTuple):
    """One change alone: what it is as an option, the time then, its bounds, and Amdahl's (ns)."""

    change: str
    then_ns: int
    low_ns: int
    high_ns: int
    amdahl_ns: int


@dataclass(frozen=True)
class WhatIf:
    """Result of a change."""

    kind: ClassVar[Literal["whatif"]] = "whatif"

    meta: Meta
    scope: Scope
    changes: tuple[str, ...]  # as options of the command
    iterations: int | None  # in the window; None where it is no window of any
    each: str  # what one is called
    now_ns: int  # the window as recorded; with `measured_ns` less what the profiler is taken to cost
    then_ns: int  # the window after the change
    low_ns: int  # with lags of 0 where nothing waited for them, and the most that the profiler can have cost; 3 % less
    high_ns: int  # with their largest, and the least that it can have; 3 % more
    amdahl_ns: int  # `now_ns` less all that the change takes off, as if nothing overlapped
    #: The critical path, the longest then first; `then_ns` of all add up to the window then.
    critical: tuple[Critical, ...]
    single: tuple[Single, ...] = ()  # single changes by gain; empty unless asked for
    measured_ns: float | None = None  # what the window takes without a profiler, where given
    host_kept: float = 1.0  # part of the host's time near recorded events that is left without the profiler
    host_kept_low: float = 1.0  # the least that explains what was measured
    host_kept_high: float = 1.0  # the most
    #: what else is to be said: of no change, or of a decode step by its law, of whose parts is `critical`
    remark: str = ""

    @property
    def gain_ns(self) -> int:
        """How much less the window takes."""
        return self.now_ns - self.then_ns


@once_per_report
def prepared(report: Report) -> Network:
    """The network of the report's window."""
    require(report, "whatif", *model.DEVICE_KINDS)
    return network(report.whole, *(_windows.span(report) or (0, 0)))


def window_without(report: Report, *, device: bool = True) -> Callable[[HostTime], int]:
    """Length of the report's window (ns), by what is left of the host's time; without `device` no kernel takes any.

    Of those that began before the window what lies in it stays.
    """
    net, gone = prepared(report), None
    times = cache(partial(_changes.host_times, report, net))
    if not device:
        kernels = _operations.operations(report.whole).get_column("kind").cast(pl.String).is_in(["kernel", "graph"])
        gone = kernels & (net.graph.operations.get_column("start") >= net.start)

    def took(host: HostTime) -> int:
        state = _changes.without_profiler(net, as_recorded(net), host, times())
        if gone is not None:
            state = _changes.with_durations(net, state, state.values.durations.set(gone, 0))
        return int(replayed(net, state)[-1]) - net.start

    return took


def whatif_of(  # noqa: PLR0913 - what a change is made of
    report: Report,
    changes: _changes.Changes,
    options: Sequence[str],
    *,
    each: bool,
    measured_ns: float | None,
    configuration: "Configuration | None" = None,
) -> WhatIf:
    """Result of `changes` in the report's window, which are the `options`; with `each` of single changes, too.

    `measured_ns` is what the window takes without the profiler, where that is known.
    """
    net, took = prepared(report), cache(window_without(report))
    resolved, kernels = configuration and _configuration.resolved(report, configuration), None
    if resolved and resolved != _configuration.SAME:
        kernels = _configuration.factors(report, resolved)
    usual = BY_TOOL.get(report.meta.tool, UNCHANGED).usual
    hosts = UNCHANGED if measured_ns is None else fitted(took, measured_ns, NEAR, usual)
    now = _replayed(report, net, _changes.Changes(host=hosts.usual))
    then, state = _replayed(report, net, _on_side(changes, kernels, "usual")._replace(host=hosts.usual))
    low, high = _bounds(report, net, changes, hosts, kernels)
    window, now_ns = report.scope.window, now[0][-1] - net.start
    sides = [_parts(report, net, *replay) for replay in (now, (then, state))]
    causes = [Critical(*key, *(side.get(key, 0) for side in sides)) for key in {**sides[0], **sides[1]}]
    causes.sort(key=lambda row: (-row.then_ns, -row.now_ns, row.cause, row.name))
    return WhatIf(
        meta=report.meta,
        scope=report.scope,
        changes=(*(resolved.options() if resolved else ()), *options),
        remark=resolved.recorded(configuration) if resolved and configuration and not options else "",
        iterations=window.count if window else None,
        each=(window.each if window else None) or "",
        now_ns=now_ns,
        then_ns=then[-1] - net.start,
        low_ns=low,
        high_ns=high,
        amdahl_ns=max(now_ns - state.amdahl_ns, 0),
        critical=tuple(causes),
        single=tuple(_each(report, net, hosts, now_ns)) if each else (),
        measured_ns=measured_ns,
        host_kept=hosts.usual.kept,
        host_kept_low=hosts.least.kept,
        host_kept_high=hosts.most.kept,
    )


def _replayed(report: Report, net: Network, changes: _changes.Changes, lags: str = "lag") -> tuple[pl.Series, Changed]:
    state = _changes.changed(report, net, changes, lags)
    return replayed(net, state), state


def _on_side(changes: _changes.Changes, kernels: pl.DataFrame | None, side: str) -> _changes.Changes:
    """The changes with what `kernels` take usually, at least or at most: row and a factor by side."""
    return changes if kernels is None else changes._replace(slower=kernels.select("row", factor=side))


def _bounds(
    report: Report, net: Network, changes: _changes.Changes, hosts: Unslowed, kernels: pl.DataFrame | None = None
) -> tuple[int, int]:
    """The least and the most that the window takes: no replay tells it closer than two runs of a program agree."""
    ends = (
        _replayed(report, net, _on_side(changes, kernels, side)._replace(host=host), side)[0][-1]
        for host, side in ((hosts.least, "low"), (hosts.most, "high"))
    )
    low, high = (end - net.start for end in ends)
    return int(low * (1 - NEAR)), math.ceil(high * (1 + NEAR))


def _parts(report: Report, net: Network, at: pl.Series, state: Changed) -> dict[tuple[str, str], int]:
    """Time on the critical path of a replay by cause, and name of what runs; the sum is the window."""
    way = way_of(report.whole, Ending(net, None, net.end), state, at)
    pieces = walk([way], way.links, (net.start, at[-1]))
    names = _operations.facts_of(report.whole, pieces.get_column("row"), "name").to_series().cast(pl.String)
    named = pieces.with_columns(name=pl.when(RUNNING).then(names).fill_null(""), ns=pl.col("end") - pl.col("start"))
    sums = named.group_by(pl.col("cause").cast(pl.String), "name").agg(pl.col("ns").sum())
    return {(cause, name): ns for cause, name, ns in sums.iter_rows()}


def _each(report: Report, net: Network, hosts: Unslowed, now_ns: int) -> list[Single]:
    """Single changes, the largest gain first."""
    singles = []
    for option, change in _single_changes(report):
        try:
            then, state = _replayed(report, net, change._replace(host=hosts.usual))
        except errors.KanalyzeError:  # there is nothing of that kind
            continue
        low, high = _bounds(report, net, change, hosts)
        singles.append(Single(option, then[-1] - net.start, low, high, max(now_ns - state.amdahl_ns, 0)))
    return sorted(singles, key=lambda row: (row.then_ns, row.amdahl_ns, row.change))


def _single_changes(report: Report) -> list[tuple[str, _changes.Changes]]:
    """Changes tried alone: one thing at twice the speed (kernels by family and name, copies, host code), or gone."""
    work = _operations.operations(report.whole).filter(pl.col("kind") == "kernel")
    by_name = [rows.group_by(pl.col("name").cast(pl.String)) for rows in (work, report.kind("range"))]
    sums = (rows.agg(pl.col("dur_ns").sum()).drop_nulls() for rows in by_name)
    kernels, ranges = (rows.sort("dur_ns", "name", descending=[True, False]).get_column("name") for rows in sums)
    heavy = (_changes.plain_names([name])[0] for name in kernels.head(_MOST_NAMES))
    names = [
        *dict.fromkeys([*_operations.families(kernels).unique().sort(), *heavy]),
        _changes.COPIES,
        _changes.HOST,
        _changes.CALLS,
    ]
    names += [f"host:{name}" for name in ranges.head(_MOST_NAMES)]
    changes = [(f"--faster {name}=2", _changes.Changes(faster=((name, TWICE),))) for name in names]
    changes += [(f"--without {name}", _changes.Changes(without=(name,))) for name in _changes.WITHOUT]
    return [*changes, ("--graph", _changes.Changes(graph=True))] if repetitive(report).repetitions.height else changes
