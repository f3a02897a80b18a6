"""Checks of PyTorch's anomaly detection: each result of backward is asked for NaN, and the host waits for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.findings.rules._operators import SPAN, TO_HOST, Told, on_time, operators, within
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Report

#: What autograd's engine calls the run of a node, and what it then runs on each of the node's results.
_NODE: Final = "autograd::engine::evaluate_function"
_ASKS: Final = ("aten::isnan", "aten::_is_any_true", "aten::any", "aten::item", "aten::is_nonzero", "aten::ne")

#: Names of the kernels of a check: whether a value differs from itself, and whether any does.
_COMPARES: Final = r"Compare|isnan|ne_kernel"
_ANY: Final = r"or_kernel"

#: So many nodes that launch something are checked at least, and in a report without operators so many checks have
#: another launch before them: a loop over parameters that asks each for NaN has none.
_MOST: Final = 0.6
_SOME: Final = 0.2

#: An operator that records itself for backward begins its work after so long without a stack of Python to save (ns).
_USUAL_NS: Final = 15_000

#: A longer time between launches of the forward pass is more than a saved stack (ns).
_LONG_NS: Final = 1_000_000


class _Checks(NamedTuple):
    """The checks of backward, and what operators of forward take to save the stack: spans of threads."""

    checks: pl.DataFrame
    saves: pl.DataFrame


_TOLD: Final = Told(
    "anomaly-detection",
    "Anomaly detection is on: each result of backward is checked",
    "torch.autograd.set_detect_anomaly(False)",
    "Leave it off but to find a NaN that was seen: torch.autograd.detect_anomaly() around single steps.",
    "kernels",
)


def anomaly_detection(report: Report) -> list[Finding]:
    """At most one finding per device."""
    if (known := _checks(report)) is None:
        return []
    number = per_iteration(report).plural(within(report, known.checks).host.height, "check")
    text = (
        f"Anomaly detection is on: results of backward's operators are compared with themselves ({number}), by two "
        f"kernels and a copy to the host each, for which the host waits; and operators of forward save their stack of "
        f"Python: "
    )
    inside = within(report, pl.concat([known.checks, known.saves]))
    return on_time(report, _TOLD, inside, lambda _, taken: f"{text}{taken}.")


@once_per_process
def _checks(report: Report) -> _Checks | None:
    """The checks, by operators or else by kernels; None where there are none, or too few."""
    every = operators(report)
    return _by_kernels(report) if every.is_empty() else _by_operators(every)


def _by_operators(every: pl.DataFrame) -> _Checks | None:
    nodes = every.filter(pl.col("name").str.starts_with(_NODE))
    inside = every.filter(pl.col("parent").is_in(nodes.get_column("row").implode()))
    asks = inside.filter(pl.col("name").is_in(_ASKS) & pl.col("called"))
    checked = asks.filter(pl.col("name") == _ASKS[0]).get_column("parent").n_unique()
    working = inside.filter(~pl.col("name").is_in(_ASKS) & pl.col("called")).get_column("parent").n_unique()
    if not checked or checked < _MOST * working:
        return None
    first = (pl.col("name") == _ASKS[0]).cast(pl.UInt32).cum_sum()
    checks = asks.with_columns(check=first).group_by(*THREAD, "parent", "check", maintain_order=True)
    spans = checks.agg(pl.col("start").min(), pl.col("end").max()).select(SPAN)
    return _Checks(spans, _stacks(every, nodes))


def _stacks(every: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """The beginning of operators that record themselves for backward, until they go on, as far as it is long."""
    own = every.filter(pl.col("sequence_number").is_not_null() & pl.col("name").str.starts_with("aten::"))
    backward = intervals.union(nodes.select("start", "end"))
    forward = own.filter(intervals.overlap(own.get_column("start"), own.get_column("end"), backward) == 0)
    inner = every.group_by(row="parent").agg(goes_on=pl.col("start").min())
    until = pl.coalesce("goes_on", "end")
    told = forward.join(inner, on="row", how="left").with_columns(until=until, ns=until - pl.col("start"))
    long = told.filter(pl.col("ns") > _USUAL_NS)
    return long.select(*THREAD, start=pl.col("start") + _USUAL_NS, end="until")


def _by_kernels(report: Report) -> _Checks | None:
    columns = ("call_row", "call_start", "call_end", "thread_id", "size_bytes")
    work = operations(report, *columns).drop_nulls(["call_row", "thread_id"])
    line = work.sort(*THREAD, "call_start").unique("call_row", keep="first", maintain_order=True)
    name, way = pl.col("name").cast(pl.String), pl.col("detail").cast(pl.String)
    asks = pl.col("kind") == "kernel"
    marks = line.select(
        *THREAD,
        "call_start",
        "call_end",
        compares=(asks & name.str.contains(_COMPARES)).fill_null(value=False),
        any=(asks & name.str.contains(_ANY)).fill_null(value=False),
        reads=((way == TO_HOST) & (pl.col("size_bytes") <= 1)).fill_null(value=False),
        fills=pl.col("kind") == "memset",
    ).with_row_index("at")

    def before(column: str, by: int) -> pl.Expr:
        return pl.col(column).shift(by, fill_value=False)

    plain = before("any", 1) & before("compares", 2)
    filled = before("any", 1) & before("fills", 2) & before("compares", 3)
    ends = marks.with_columns(begin=pl.when(plain).then(pl.col("at") - 2).when(filled).then(pl.col("at") - 3))
    ends = ends.filter("reads").drop_nulls("begin")
    after = ends.select((pl.col("begin").cast(pl.Int64) > pl.col("at").shift(1).cast(pl.Int64) + 1).sum()).item()
    if ends.height < _FEWEST or after < _SOME * ends.height:
        return None
    starts, following = marks.get_column("call_start"), marks.get_column("call_start").shift(-1)
    checks = ends.select(
        *THREAD,
        start=starts.gather(ends.get_column("begin")),
        end=pl.max_horizontal("call_end", following.gather(ends.get_column("at")).fill_null(0) - _AFTER_NS),
    )
    return _Checks(_apart(checks), _gaps(marks, ends))


#: Fewer checks are no run of backward; after the last call of one the host is about to launch the next operator (ns).
_FEWEST: Final = 20
_AFTER_NS: Final = 5_000


def _apart(checks: pl.DataFrame) -> pl.DataFrame:
    """Checks of which none lasts until the next begins, or long after its last call."""
    following = pl.col("start").shift(-1).over(THREAD).fill_null(pl.col("end"))
    end = pl.min_horizontal("end", following, pl.col("start") + _LONG_NS)
    return checks.sort(*THREAD, "start").with_columns(end=end).filter(pl.col("end") > pl.col("start"))


def _gaps(marks: pl.DataFrame, checks: pl.DataFrame) -> pl.DataFrame:
    """Between launches of the other threads, which run forward: what is longer than usual between those of a check."""
    gap = pl.col("call_start") - pl.col("call_end").shift(1).over(THREAD)
    line = marks.with_columns(gap=gap, since=pl.col("call_end").shift(1).over(THREAD)).drop_nulls("gap")
    checking = checks.select(THREAD).unique()
    usual = line.join(checking, on=list(THREAD), how="semi", nulls_equal=True).get_column("gap").median()
    others = line.join(checking, on=list(THREAD), how="anti", nulls_equal=True)
    most = max(2 * int(usual), _USUAL_NS) if isinstance(usual, float) else _USUAL_NS
    long = others.filter(pl.col("gap").is_between(most, _LONG_NS))
    return long.select(*THREAD, start=pl.col("since") + most, end="call_start")


RULES: Final = (anomaly_detection,)
