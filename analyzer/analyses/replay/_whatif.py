"""What-if: time now and then, its bounds, the critical path then, and Amdahl's figure.

Definitions: docs/whatif.md.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import polars as pl

from kanalyze.analyses.device._kernel_families import families
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.launches._graph_candidates import repetitions
from kanalyze.analyses.replay._changes import (
    COPIES,
    HOST,
    Changes,
    changed,
    plain_names,
    together,
)
from kanalyze.analyses.replay._network import Changed, Network, network, point_values
from kanalyze.analyses.replay._replay import Plan, Replayed, path, planned, replayed
from kanalyze.analyses.replay._slowing import NEAR, UNCHANGED, HostTime, Unslowed, fitted
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.requirements import require
from kanalyze.errors import KanalyzeError
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.report import Meta, Report

#: How much faster each is in the table of single changes.
TWICE: Final = 2.0

#: Kernels and ranges in the table of single changes.
_MOST_NAMES: Final = 24

#: What an edge of the path is, by its kind, for its lag.
_CAUSES: Final = {
    "stream": "stream order",
    "graph": "order in a graph",
    "event": "wait for an event",
    "launch": "launch latency",
    "early launch": "launch latency",
    "overlap": "stream order",
    "return": "return of a wait",
    "own": "CUDA calls",
    "thread": "host code",
    "handover": "host code",
    "tail": "host code",
    "held": "CUDA calls",
    "window": "host code",
    "recorded": "before the first event",
}


#: Kinds of edges that are a part of an operation.
_NAMED: Final = ("cut", "transfer")


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
    """Result of a change.

    Attributes:
        kind: Kind of page.
        meta: The report.
        changes: The changes, as options of the command.
        iterations: Iterations in the window; None where it is no window of any.
        each: What one is called.
        now_ns: The window as recorded; with `measured_ns` less what the profiler is taken to cost.
        then_ns: The window after the change.
        low_ns: With lags of 0 where nothing waited for them, and the most that the profiler can have cost; 3 % less.
        high_ns: With their largest, and the least that it can have; 3 % more.
        amdahl_ns: `now_ns` less all that the change takes off, as if nothing overlapped.
        critical: What is on the critical path, the longest then first; `then_ns` of all add up to the window then.
        single: Single changes by gain; empty unless asked for.
        measured_ns: What the window takes without a profiler, where given.
        host_kept: What is left of the host's time near recorded events without the profiler, a part; 1 unless measured.
        host_kept_low: The least that explains what was measured.
        host_kept_high: The most.
    """

    kind: ClassVar[Literal["whatif"]] = "whatif"

    meta: Meta
    changes: tuple[str, ...]
    iterations: int | None
    each: str
    now_ns: int
    then_ns: int
    low_ns: int
    high_ns: int
    amdahl_ns: int
    critical: tuple[Critical, ...]
    single: tuple[Single, ...] = ()
    measured_ns: float | None = None
    host_kept: float = 1.0
    host_kept_low: float = 1.0
    host_kept_high: float = 1.0

    @property
    def gain_ns(self) -> int:
        """How much less the window takes."""
        return self.now_ns - self.then_ns


class Prepared(NamedTuple):
    """A network with its plan."""

    network: Network
    plan: Plan


@once_per_report
def prepared(report: Report) -> Prepared:
    """The network of the report's window."""
    require(report, "whatif", *DEVICE_KINDS)
    found = network(report.whole, *(span(report) or (0, 0)))
    return Prepared(found, planned(found))


def window_without(report: Report) -> Callable[[HostTime], int]:
    """Length of the report's window (ns), by what is left of the host's time."""
    known = prepared(report)
    return lambda host: _took(report, known, Changes(), host, "lag")


def whatif_of(
    report: Report, changes: Changes, told: Sequence[str], *, each: bool, measured_ns: float | None
) -> WhatIf:
    """Result of `changes` in the report's window; `told` says them.

    Args:
        report: A report of nsys or torch.profiler, narrowed to the window.
        changes: What is changed together.
        told: The same as options.
        each: Whether single changes are tried, too.
        measured_ns: What the window takes without the profiler.
    """
    known = prepared(report)
    took = cache(window_without(report))
    hosts = UNCHANGED if measured_ns is None else fitted(took, measured_ns, NEAR)
    now = _replayed(report, known, Changes(host=hosts.usual))
    then, state = _replayed(report, known, together(Changes(host=hosts.usual), changes))
    low, high = _bounds(report, known, changes, hosts)
    window, now_ns = report.scope.window, now[0].end - known.network.start
    return WhatIf(
        meta=report.meta,
        changes=tuple(told),
        iterations=window.count if window else None,
        each=(window.each if window else None) or "",
        now_ns=now_ns,
        then_ns=then.end - known.network.start,
        low_ns=low,
        high_ns=high,
        amdahl_ns=max(now_ns - state.amdahl_ns, 0),
        critical=tuple(_critical(report, known, now, (then, state))),
        single=tuple(_each(report, known, hosts, now_ns)) if each else (),
        measured_ns=measured_ns,
        host_kept=hosts.usual.kept,
        host_kept_low=hosts.least.kept,
        host_kept_high=hosts.most.kept,
    )


def _replayed(report: Report, known: Prepared, changes: Changes, lags: str = "lag") -> tuple[Replayed, Changed]:
    state = changed(report, known.network, changes, lags)
    return replayed(known.network, known.plan, state.values, state.lags), state


def _took(report: Report, known: Prepared, changes: Changes, host: HostTime, lags: str) -> int:
    """Length of the window after `changes`, where so much is left of the host's time."""
    after = together(Changes(host=host), changes)
    return _replayed(report, known, after, lags)[0].end - known.network.start


def _bounds(report: Report, known: Prepared, changes: Changes, hosts: Unslowed) -> tuple[int, int]:
    """The least and the most that the window takes: no replay tells it closer than two runs of a program agree."""
    sides = (hosts.least, "low"), (hosts.most, "high")
    low, high = (_took(report, known, changes, *side) for side in sides)
    return int(low * (1 - NEAR)), math.ceil(high * (1 + NEAR))


def _critical(
    report: Report, known: Prepared, now: tuple[Replayed, Changed], then: tuple[Replayed, Changed]
) -> list[Critical]:
    """The causes on the critical path, the longest then first."""
    sides = [_parts(report, known, *one) for one in (now, then)]
    found = [Critical(*key, sides[0][key], sides[1][key]) for key in {**sides[0], **sides[1]}]
    return sorted(found, key=lambda one: (-one.then_ns, -one.now_ns, one.cause, one.name))


def _parts(report: Report, known: Prepared, found: Replayed, state: Changed) -> Counter[tuple[str, str]]:
    """Time on the critical path by cause and name; the sum is the window."""
    net, edges = known.network, path(known.network, known.plan, found)
    size, calls = net.graph.operations.height, net.line.calls.height
    rows = net.edges.select("kind", "point", "place")[edges]
    values = point_values(net.line, state.values)
    without_gaps = point_values(net.line, state.values._replace(gaps=state.values.gaps * 0))
    work = operations(report.whole).select("kind", pl.col("name").cast(pl.String).fill_null(""))
    parts: Counter[tuple[str, str]] = Counter()
    left, early = found.end - net.start, 0  # early: what begins before the end of what it follows, as a negative time
    for edge, (kind, point, place) in zip(edges, rows.iter_rows(), strict=True):
        value, lag = values[point], state.lags[edge]
        if point < size:
            first = [((str(work.item(point, "kind")), work.item(point, "name")), value)]
        elif point < size + 2 * calls:
            own = min(without_gaps[point], value)  # less where the thread's calls overlap
            first = [(("CUDA calls", ""), own), (("host code", ""), value - own)]
        else:
            first = []
        named = (kind, work.item(place, "name")) if kind in _NAMED else (_CAUSES.get(kind, kind), "")
        for key, ns in [(named, lag), *first]:
            taken = min(max(ns + early, 0), left)
            early = min(ns + early, 0)
            parts[key] += taken
            left -= taken
    if left:  # of the time before the first node of the path
        parts["before the first event", ""] += left
    return +parts


def _each(report: Report, known: Prepared, hosts: Unslowed, now_ns: int) -> list[Single]:
    """Single changes, the largest gain first."""
    found = []
    for told, change in _single_changes(report):
        try:
            then, state = _replayed(report, known, together(Changes(host=hosts.usual), change))
        except KanalyzeError:  # there is nothing of that kind
            continue
        low, high = _bounds(report, known, change, hosts)
        found.append(Single(told, then.end - known.network.start, low, high, max(now_ns - state.amdahl_ns, 0)))
    return sorted(found, key=lambda one: (one.then_ns, one.amdahl_ns, one.change))


def _single_changes(report: Report) -> list[tuple[str, Changes]]:
    """Changes tried alone: one thing at twice the speed (kernels by family and name, copies, host code), or gone."""
    work = operations(report.whole).filter(pl.col("kind") == "kernel")
    sums = work.group_by(pl.col("name").cast(pl.String)).agg(pl.col("dur_ns").sum()).drop_nulls()
    kinds = families(sums.get_column("name")).unique().sort()
    heavy = sums.sort("dur_ns", "name", descending=[True, False]).get_column("name").head(_MOST_NAMES).to_list()
    sums = report.kind("range").group_by(pl.col("name").cast(pl.String)).agg(pl.col("dur_ns").sum()).drop_nulls()
    ranges = sums.sort("dur_ns", "name", descending=[True, False]).get_column("name").head(_MOST_NAMES)
    names = [
        *dict.fromkeys([*kinds, *(plain_names([name])[0] for name in heavy)]),
        COPIES,
        HOST,
        "calls",
        *(f"host:{one}" for one in ranges),
    ]
    found = [(f"--faster {name}=2", Changes(faster=((name, TWICE),))) for name in names]
    found += [(f"--without {name}", Changes(without=(name,))) for name in ("launch-gaps", "sync", "startup")]
    return [*found, ("--graph", Changes(graph=True))] if repetitions(report).height else found
