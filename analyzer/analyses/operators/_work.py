"""The host events and device operations in scope, with the time of each event."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.operators._device_time import makers, torch_device_times
from kanalyze.analyses.operators._events import asynchronous, host_tree, operator_tree
from kanalyze.analyses.operators._memory import with_memory_taken
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The kinds of events by which a framework names its work.
OPERATOR_KINDS: Final = ("op", "range")

_DURATION: Final = pl.col("end") - pl.col("start")


@once_per_report
def host_work(report: Report) -> pl.DataFrame:
    """The rows of the host tree that overlap the window, unclipped, with row and dur_ns."""
    rows = host_tree(report).rows.with_columns(row=pl.int_range(pl.len(), dtype=pl.Int64), dur_ns=_DURATION)
    return rows if report.scope.window is None else rows.filter(in_window(report))


@once_per_report
def operator_work(report: Report) -> pl.DataFrame:
    """The rows of the operator tree that overlap the window, unclipped, and asynchronous annotations.

    Columns: event_id, kind, name, start, end, self_ns, dur_ns, self_device_ns, device_ns, and those of memory.
    """
    rows, later = operator_tree(report).rows, asynchronous(report)
    columns = ["event_id", "kind", "name", "start", "end"]
    own = rows.select(*columns, "self_ns").hstack(torch_device_times(report).get_columns())
    own = with_memory_taken(report, own, rows.get_column("parent")).with_columns(_DURATION.alias("dur_ns"))
    if later.height:
        nothing = [pl.lit(0, dtype=pl.Int64).alias(name) for name in ("self_ns", "self_device_ns", "device_ns")]
        free = with_memory_taken(report, later.select(*columns, *nothing), None)
        own = pl.concat([own, free.with_columns(_DURATION.alias("dur_ns"))])
    return own if report.scope.window is None else own.filter(in_window(report))


def in_window(report: Report) -> pl.Expr:
    """Whether a row (start, end) overlaps the window; without duration, whether it lies inside."""
    window, here = report.scope.window, pl.lit(value=True)
    if window is not None and window.start_ns is not None:
        here = (pl.col("end") > window.start_ns) | (pl.col("start") == window.start_ns)
    if window is not None and window.end_ns is not None:
        here = here & (pl.col("start") < window.end_ns)
    return here


@once_per_report
def launched_work(report: Report) -> pl.DataFrame:
    """The device operations in scope, with their launching events.

    Columns: those of `exclusive_operations`; maker, the row of the host tree that launched it (an operator, annotation
    or Python function), and operator, the innermost operator or annotation around maker. Null for none.
    """
    tree, work = host_tree(report), exclusive_operations(report)
    maker = gathered(makers(report), work.get_column("row")).alias("maker")
    return work.with_columns(maker, tree.nearest(maker, tree.of_kinds(*OPERATOR_KINDS)).alias("operator"))
