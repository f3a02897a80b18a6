"""Where a process made its CUDA context: in a call that was recorded, or outside of all of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._calls import shown
from kanalyze.analyses._common import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What the profiler writes on the thread that has just made a CUDA context.
_CONTEXT_MADE: Final = "context created"

#: Calls that need no context, so that a process's first other call is the one that makes it.
_WITHOUT_CONTEXT: Final = (
    r"^(?:cuInit|cuDriverGet|cuDeviceGet|cuDeviceTotalMem|cuGetProcAddress|cuGetErr|cuModuleGetLoadingMode"
    r"|cuGetExportTable|cudaGetDevice|cudaDriverGet|cudaRuntimeGet|cudaGetDriverEntryPoint"
    r"|cudaDeviceGet(?:Attribute|ByPCIBusId|PCIBusId|P2PAttribute)"
    r"|cudaChooseDevice|cudaGetErr|cudaPeekAtLastError|cudaGetLastError|cudaSetDeviceFlags|cudaStreamIsCapturing)"
)

#: Without the profiler's own word, a first call counts as making the context from this long on: the fastest
#: contexts take tens of milliseconds, and a call that finds one made takes a fraction of one.
CONTEXT_FROM_NS: Final = 10_000_000


@once_per_process
def context_calls(report: Report) -> pl.DataFrame:
    """The calls (with `end_ns` and their row) in which a context was made (definitions.md, section 5).

    The profiler's own record of it decides where a process has one: the outermost call around it, if any is.
    Elsewhere it is the process's first call that needs a context, if that took at least :data:`CONTEXT_FROM_NS`.
    """
    calls, told = _timed(report, "api").with_row_index("row"), _contexts_told(report)
    found = [calls.clear(), *(_around(event, calls).head(1) for event in told.iter_rows(named=True))]
    spoken = told.get_column("process_id").unique()
    silent = calls if spoken.is_empty() else calls.filter(~pl.col("process_id").is_in(spoken.implode()))
    if not silent.is_empty():
        names = silent.get_column("name").unique().cast(pl.String)
        needing = names.filter(~names.str.contains(_WITHOUT_CONTEXT)).to_list()
        asking = silent.filter(pl.col("name").is_in(needing) | pl.col("name").is_null())
        first = asking.sort("start_ns", "event_id").unique("process_id", keep="first")
        found.append(first.filter(pl.col("dur_ns") >= CONTEXT_FROM_NS))
    return pl.concat(found)


@once_per_process
def unrecorded_contexts(report: Report) -> pl.DataFrame:
    """Contexts that the profiler saw being made outside of any call that it recorded.

    Columns: process_id, thread_id, at (when), start and end (the stretch without calls around it on its thread),
    before and after (the calls at its sides as shown, null at the edge of the recording).
    """
    calls, rows = _timed(report, "api"), []
    for event in _contexts_told(report).iter_rows(named=True):
        if not _around(event, calls).is_empty():
            continue
        own = _same_thread(event)
        start, before = _nearest(calls, own & (pl.col("end_ns") <= event["start_ns"]), pl.col("end_ns"), last=True)
        end, after = _nearest(calls, own & (pl.col("start_ns") >= event["end_ns"]), pl.col("start_ns"), last=False)
        start, end = (event["start_ns"] if start is None else start), (event["end_ns"] if end is None else end)
        rows.append((event["process_id"], event["thread_id"], event["start_ns"], start, end, before, after))
    ids = {"process_id": pl.Int64, "thread_id": pl.Int64}
    schema = {**ids, "at": pl.Int64, "start": pl.Int64, "end": pl.Int64, "before": pl.String, "after": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("at")


def _nearest(calls: pl.DataFrame, these: pl.Expr, time: pl.Expr, *, last: bool) -> tuple[int | None, str | None]:
    """The latest (or earliest) `time` of some of the calls, and that call's name as shown; None where there is none.

    Looked for in two steps, because `these` may be nearly all calls of a large report.
    """
    at = calls.select((time.filter(these)).max() if last else (time.filter(these)).min()).item()
    if at is None:
        return None, None
    names = calls.filter(these & (time == at)).select(shown(pl.col("name"))).to_series()
    return at, names.item(0)


def _timed(report: Report, kind: str) -> pl.DataFrame:
    """The events of a kind with `end_ns`."""
    events = report.kind(kind).select("event_id", "process_id", "thread_id", "name", "start_ns", "dur_ns")
    return events.with_columns((pl.col("start_ns") + pl.col("dur_ns")).alias("end_ns"))


@once_per_process
def _contexts_told(report: Report) -> pl.DataFrame:
    named = pl.col("name").cast(pl.String).str.contains(_CONTEXT_MADE, literal=True)
    return _timed(report, "overhead").filter(named).drop_nulls(["process_id", "thread_id"])


def _same_thread(event: dict[str, int]) -> pl.Expr:
    return (pl.col("process_id") == event["process_id"]) & (pl.col("thread_id") == event["thread_id"])


def _around(event: dict[str, int], calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of the event's thread that enclose it, the outermost first."""
    encloses = (pl.col("start_ns") <= event["start_ns"]) & (pl.col("end_ns") >= event["end_ns"])
    inside = calls.filter(_same_thread(event) & encloses)
    return inside.sort("start_ns", "end_ns", "event_id", descending=[False, True, False])
