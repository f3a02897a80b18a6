"""Where a process made its CUDA context: in a call that was recorded, or outside of all of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._call_kinds import bucket_of, cuda_name, cuda_names, shown
from kanalyze.analyses.host._launching_call import calls_of, launch_rows
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What the profiler writes on the thread that has just made a CUDA context.
_CONTEXT_MADE: Final = "context created"

#: Calls that need no context, so that a process's first other call is the one that makes it.
_WITHOUT_CONTEXT: Final = (
    r"^(?:cuInit|cuDriverGet|cuDeviceGet|cuDeviceTotalMem|cuGetProcAddress|cuGetErr|cuModuleGetLoadingMode"
    r"|cuLibrary(?:Load|Unload|GetKernel)|cuKernelGetName|cuGetExportTable|cudaGetDevice|cudaDriverGet|cudaRuntimeGet|cudaGetDriverEntryPoint"
    r"|cudaDeviceGet(?:Attribute|ByPCIBusId|PCIBusId|P2PAttribute)"
    r"|cudaChooseDevice|cudaGetErr|cudaPeekAtLastError|cudaGetLastError|cudaSetDeviceFlags|cudaStreamIsCapturing)"
)

#: Calls that work on what only a context makes (an event, a stream, memory, a graph, a module), or that wait for the
#: device, copy, load or launch: nothing tells that a long one made a context.
_CANNOT_TELL: Final = re.compile(
    r"(?:cuda|cu|hip)(?:Event(?!Create)|Stream(?!Create)|Graph|Mem(?:cpy|set|Prefetch|Advise)|\w*(?:Free|Synchronize)|HostUnregister"
    r"|Profiler|Ctx(?!Create)|Module|Library|Link|Kernel|Func|Occupancy|\w*Launch)|nvrtc|nvJitLink"
)

#: Calls that take long for reasons of their own, too (they wait, or pin or map memory): they tell only where the
#: beginning of the process's use of CUDA is recorded, which is by a call of these.
_MAY_TELL: Final = re.compile(
    r"(?:cuda|hip)(?:Free|HostAlloc|HostMalloc|MallocHost|HostRegister|MallocManaged)(?:_v\d+)?$"
)
BEGINS_CUDA: Final = re.compile(r"cuInit|cuModuleGetLoadingMode|cuDriverGetVersion")

#: Without the profiler's own word, a first call counts as making the context from this long on: the fastest
#: contexts take tens of milliseconds, and a call that finds one made takes a fraction of one.
CONTEXT_FROM_NS: Final = 10_000_000

#: Libraries that the driver itself opens, also while it makes a context.
_OF_DRIVER: Final = r"lib(?:cuda|cupti|nvidia)"


@once_per_process
def context_calls(report: Report) -> pl.DataFrame:
    """The calls (with `end_ns` and their row) in which a context was made, until `made_ns` (definitions.md, section 5).

    The profiler's own record of it decides where a process has one: the outermost call around it, if any is, up to
    that record. Elsewhere it is the process's first call that needs a context, if that took at least
    :data:`CONTEXT_FROM_NS` before anything ran, and nothing speaks against it.
    """
    calls, told = _timed(report, "api").with_row_index("row"), _contexts_told(report)
    found = [calls.clear().with_columns(made_ns="end_ns")]
    for event in told.iter_rows(named=True):
        made = pl.lit(event["start_ns"], dtype=pl.Int64)
        found.append(_around(event, calls).head(1).with_columns(made_ns=made))
    spoken = told.get_column("process_id").unique()
    silent = calls if spoken.is_empty() else calls.filter(~pl.col("process_id").is_in(spoken.implode()))
    if not silent.is_empty():
        found.append(_guessed(report, silent))
    return pl.concat(found).sort("made_ns").unique("event_id", keep="last", maintain_order=True)


def _guessed(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Of some processes the first call that needs a context, where it can only have taken so long by making one."""
    names = calls.get_column("name").unique()
    needing = names.filter(~cuda_names(names).str.contains(_WITHOUT_CONTEXT)).cast(pl.String).to_list()
    asking = calls.filter(pl.col("name").is_in(needing) | pl.col("name").is_null())
    first = asking.sort("start_ns", "event_id").unique("process_id", keep="first")
    long = first.filter(pl.col("dur_ns") >= CONTEXT_FROM_NS)
    if long.is_empty():
        return long.with_columns(made_ns="end_ns")
    telling = pl.Series([_can_tell(row, calls) for row in long.iter_rows(named=True)], dtype=pl.Boolean)
    long = long.filter(telling).join(_warm_processes(report), on="process_id", how="anti", nulls_equal=True)
    ran = operations(report).group_by("process_id").agg(ran=pl.col("start").min())
    known = long.join(ran, on="process_id", how="left", nulls_equal=True)
    known = known.with_columns(made_ns=pl.min_horizontal("end_ns", "ran")).drop("ran")
    return known.filter(pl.col("made_ns") - pl.col("start_ns") >= CONTEXT_FROM_NS)


def _can_tell(call: dict[str, Any], calls: pl.DataFrame) -> bool:
    """Whether a long first call of this name can be told to have made a context."""
    name = cuda_name(call["name"] or "")
    if not _MAY_TELL.match(name):
        return bool(name) and bucket_of(name) != "sync" and not _CANNOT_TELL.match(name)
    before = calls.filter((pl.col("process_id") == call["process_id"]) & (pl.col("start_ns") < call["start_ns"]))
    return any(map(BEGINS_CUDA.match, cuda_names(before.get_column("name").unique()).drop_nulls()))


def _warm_processes(report: Report) -> pl.DataFrame:
    """The processes that used a device before the recording began, as far as it shows: column process_id.

    Their first step is not the first one, something ran that no recorded call launched, or their first operation had
    to wait longer than anything that the recording holds can explain.
    """
    later = report.steps().group_by("process_id").agg(pl.col("step").min()).filter(pl.col("step") > 0)
    work = operations(report).select("row", "process_id", "start", "detail").with_columns(called=launch_rows(report))
    work = work.filter(~moved_by_driver(pl.col("detail"))).sort("start", "row")
    first = work.unique("process_id", keep="first", maintain_order=True)
    waited = first.get_column("start") - calls_of(report, first.get_column("row"), "call_end").to_series()
    before = first.filter(first.get_column("called").is_null() | (waited >= CONTEXT_FROM_NS).fill_null(value=False))
    own = [frame.select(pl.col("process_id").cast(pl.Int64)) for frame in (later, before)]
    return pl.concat(own).unique()


def moved_by_driver(detail: pl.Expr) -> pl.Expr:
    """Whether an operation is a copy of unified memory, which the driver makes without a call."""
    return detail.cast(pl.String).str.starts_with("Unified").fill_null(value=False)


@once_per_process
def unrecorded_contexts(report: Report) -> pl.DataFrame:
    """Contexts that the profiler saw being made outside of any call that it recorded.

    Columns: process_id, thread_id, start (since when the thread is not seen doing anything else: no call, range,
    operator, or library opened), end (when the profiler saw it made), and before and after (the calls at its sides as
    shown, null at the edge of the recording).
    """
    calls, rows = _timed(report, "api"), []
    for event in _contexts_told(report).iter_rows(named=True):
        if not _around(event, calls).is_empty():
            continue
        own, at = _same_thread(event), event["start_ns"]
        start, before = _nearest(calls, own & (pl.col("end_ns") <= at), pl.col("end_ns"), last=True)
        _, after = _nearest(calls, own & (pl.col("start_ns") >= event["end_ns"]), pl.col("start_ns"), last=False)
        start = at if start is None else max(start, _seen_doing(report, event, start))
        rows.append((event["process_id"], event["thread_id"], start, at, before, after))
    ids = {"process_id": pl.Int64, "thread_id": pl.Int64}
    schema = {**ids, "start": pl.Int64, "end": pl.Int64, "before": pl.String, "after": pl.String}
    return pl.DataFrame(rows, schema=schema, orient="row").sort("end")


def _seen_doing(report: Report, event: dict[str, Any], since: int) -> int:
    """When a thread was last seen doing something of the program's before `event`, from `since` on."""
    found = since
    for kind in ("range", "op", "overhead"):
        if kind not in report.kinds:
            continue
        own = _timed(report, kind).filter(_same_thread(event) & (pl.col("start_ns") < event["start_ns"]))
        if kind == "overhead":
            name = pl.col("name").cast(pl.String)
            own = own.filter(name.str.starts_with("dlopen(") & ~name.str.contains(_OF_DRIVER))
        times = pl.concat([own.get_column("start_ns"), own.get_column("end_ns").drop_nulls()])
        times = times.filter((times > found) & (times < event["start_ns"]))
        found = int(times.max()) if len(times) else found  # type: ignore[arg-type]
    return found


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


def _same_thread(event: dict[str, Any]) -> pl.Expr:
    return pl.col("process_id").eq(event["process_id"]) & pl.col("thread_id").eq(event["thread_id"])


def _around(event: dict[str, Any], calls: pl.DataFrame) -> pl.DataFrame:
    """The calls of the event's thread that enclose it, the outermost first."""
    encloses = (pl.col("start_ns") <= event["start_ns"]) & (pl.col("end_ns") >= event["end_ns"])
    inside = calls.filter(_same_thread(event) & encloses)
    return inside.sort("start_ns", "end_ns", "event_id", descending=[False, True, False])
