"""Device time launched by each host event: correctly attributed, and as torch's own profiler counts it.

Correctly, an operation belongs to the operator that the trace names for it (External id); if it names none, as for
kernels of CUDA graphs and those launched by Triton, to the innermost event around its launching call, on the calling
thread.

torch's table counts some time twice: it mistakes some calls for an operator (:func:`mistaken`), and overhead for the
event around it. Both then have the operator's time again, as have all events around them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.device._operations import operations, recorded
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.operators._event_tree import in_subtrees
from kanalyze.analyses.operators._events import FRAMEWORK_KINDS, call_makers, host_tree, mistaken, operator_tree
from kanalyze.analyses.operators._profiler_overhead import overhead_makers
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_process
def makers(report: Report) -> pl.Series:
    """For each row of `operations`, the row of the host tree that launched it; null if unknown.

    The launching event is an operator, an annotation or a Python function.
    """
    tree, work = host_tree(report), operations(report)
    found = tree.row_of(_named_makers(report))
    rest = work.filter(found.is_null()).get_column("row")
    if rest.is_empty() or "api" not in report.kinds:
        return found
    calls = calls_of(report, rest, "thread_id", "call_start").rename({"call_start": "at"})
    around = calls.with_columns(work.get_column("process_id").gather(rest))
    return found.scatter(rest, tree.innermost(around, tree.of_kinds(*FRAMEWORK_KINDS)))


@once_per_process
def _named_makers(report: Report) -> pl.Series:
    """For each row of `operations`, the id of the operator that the trace names for it or for its call; else null."""
    named = recorded(report, "parent_id").get_column("parent_id")
    if not named.has_nulls() or "api" not in report.kinds:
        return named
    calls = calls_of(report, operations(report).get_column("row"), "call_id")
    made_by = calls.join(call_makers(report), left_on="call_id", right_on="event_id", how="left", maintain_order="left")
    return named.zip_with(named.is_not_null(), made_by.get_column("maker_id"))


def torch_device_times(report: Report) -> pl.DataFrame:
    """The columns self_device_ns and device_ns for the operator tree, as torch counts them, on the device in scope."""
    rows, sums = operator_tree(report).rows, _by_event(report)
    own = rows.select(event_id="last_id").join(sums, on="event_id", how="left", maintain_order="left")
    found = own.get_column("ns").fill_null(0)
    return pl.DataFrame({"self_device_ns": found, "device_ns": in_subtrees(rows, found)})


def _by_event(report: Report) -> pl.DataFrame:
    """Total time of the operations that torch attributes to each host event: columns event_id, ns."""
    sums = _by_operator(report, report.scope.device)
    known = sums.rename({"event_id": "op_id"})
    again = mistaken(report).join(known, on="op_id").group_by("event_id").agg(pl.col("ns").sum())
    sums = pl.concat([sums, again])
    overhead = overhead_makers(report).join(sums.rename({"event_id": "maker_id"}), on="maker_id")
    return pl.concat([sums, overhead.select("event_id", "ns")])


def _by_operator(report: Report, device: int | None) -> pl.DataFrame:
    """Total time of the operations that each operator launched, by External id: columns event_id, ns."""
    here = pl.lit(value=True) if device is None else pl.col("device") == device
    work = operations(report).select("device", ns="dur_ns", event_id=_named_makers(report))
    parts = [work.filter(here).select("event_id", "ns")]
    waits = report.kind("sync").filter(here).select("process_id", "correlation_id", ns="dur_ns")
    if waits.height:  # torch takes these waits for device operations of the operator
        keys = ["process_id", "correlation_id"]
        calls = report.kind("api").join(call_makers(report), on="event_id").unique(keys)
        parts.append(waits.join(calls, on=keys).select(event_id="maker_id", ns="ns"))
    return pl.concat(parts).drop_nulls("event_id").group_by("event_id").agg(pl.col("ns").sum())
