"""Launch places of operations: the line of code, or the range, that most of their time belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, facts_of, launch_calls
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.findings.rules._sites import sites
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered
from kanalyze.intervals import BEFORE_ALL

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What autograd's engine calls its own operators.
_OF_AUTOGRAD: Final = "autograd::engine::evaluate_function: "

#: A place is named if it has at least this share of the time.
_MOST: Final = 0.5

#: Of more operations than these, every second, third… is asked: what has most of the time, has most of theirs.
_ENOUGH: Final = 1 << 13


def place_of(report: Report, chosen: pl.Expr) -> str:
    """The place of most time of the `chosen` rows of ``exclusive_operations``, escaped for a sentence; empty if none.

    That is the function of the program around their launches, where Python's stacks were recorded, or else the
    innermost range or annotation, profiler steps aside.
    """
    if "api" not in report.kinds:
        return ""
    work = exclusive_operations(report)
    every = work.select("row", "exclusive_ns").filter(work.select(chosen).to_series())
    work = every.gather_every(every.height // _ENOUGH + 1)
    points = facts_of(report, work.get_column("row"), *THREAD, "call_start").rename({"call_start": "at"})
    times = work.with_columns(sites(report, points).select(place=pl.coalesce("function", "range")))
    sums = times.group_by("place").agg(pl.col("exclusive_ns").sum())
    most = _MOST * total(sums, "exclusive_ns")
    found = sums.drop_nulls("place").filter(pl.col("exclusive_ns") >= most).sort("exclusive_ns", "place")
    return literal(str(found.item(-1, "place"))) if found.height else ""


def launch_before(report: Report, points: pl.DataFrame) -> pl.Series:
    """The end of the last launch that a process began before each point (process_id, at); null for none."""
    first, last = points.select(pl.col("at").min(), last=pl.col("at").max()).row(0)
    if last is None:
        return pl.Series("returned", [None], dtype=pl.Int64).new_from_index(0, points.height)
    launches = launch_calls(report, "call_start", "call_ns").filter(pl.col("call_start") < last)
    # of those before all points only the last of each process, and what began with it, may be one that is asked for
    latest = launches.filter(pl.col("call_start") < first).group_by("process_id").agg(least=pl.col("call_start").max())
    launches = launches.join(latest, on="process_id", how="left", nulls_equal=True, maintain_order="left")
    launches = launches.filter(pl.col("call_start") >= pl.col("least").fill_null(BEFORE_ALL))
    returned = pl.col("call_start") + pl.col("call_ns").fill_null(0)
    every = launches.select("process_id", before="call_start", returned=returned).sort("before")
    asked = points.select("process_id", before=pl.col("at") - 1).with_row_index("point").sort("before")
    found = asked.join_asof(every, on="before", by="process_id", check_sortedness=False).sort("point")
    return found.get_column("returned")


def operator_of(report: Report, chosen: pl.Expr) -> str:
    """The outermost operator of most time of the `chosen` rows of ``exclusive_operations``; empty without operators.

    Outermost within annotations and functions of Python: autograd's own operators are around what backward does.
    """
    if "op" not in report.kinds:
        return ""
    work, tree = launched_work(report).filter(chosen), host_tree(report)
    found, parents, operators = work.get_column("operator"), tree.rows.get_column("parent"), tree.of_kinds("op")
    found = found.set(~gathered(operators, found).fill_null(value=False), None)
    while (above := tree.nearest(gathered(parents, found), operators)).is_not_null().any():
        found = found.zip_with(above.is_null(), above)
    names = gathered(tree.rows.get_column("name"), found).cast(pl.String).alias("operator")
    times = work.select("exclusive_ns").with_columns(names).drop_nulls().group_by("operator").sum()
    if times.is_empty():
        return ""
    return literal(str(times.sort("exclusive_ns", "operator").item(-1, "operator")).removeprefix(_OF_AUTOGRAD))


def place_of_kernel(report: Report, device: int, name: str, at_stake_ns: int) -> str:
    """The :func:`place_of` of a kernel's launches on a device; empty where no finding is made of so little time."""
    return place_of_kernels(report, device, pl.Series([name], dtype=pl.Categorical), at_stake_ns)


def place_of_kernels(report: Report, device: int, names: pl.Series, at_stake_ns: int) -> str:
    """The same of all kernels of these names."""
    if at_stake_ns < least_worth_saying(report)[device]:
        return ""
    return place_of(report, (pl.col("device") == device) & pl.col("name").is_in(names.unique().implode()))
