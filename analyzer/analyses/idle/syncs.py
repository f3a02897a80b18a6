"""Waits of the host: for a device in blocking calls, with the operation waited for, and for threads of any process.

Definitions: definitions.md, `syncs`; section 5, "Waits, and who ended them".
"""

import re
from typing import Final, Unpack

import polars as pl

from kanalyze import errors, intervals, model, tools
from kanalyze.analyses.device._operations import facts_of, in_device_scope, operations, used_devices, with_facts
from kanalyze.analyses.device._windows import busy_within
from kanalyze.analyses.host import _call_kinds, _causes, _range_lines
from kanalyze.analyses.host._thread_timeline import STATES, records_waits, system_calls
from kanalyze.analyses.idle import _idle_parts, culprits
from kanalyze.analyses.shared.analysis import analysis, once_per_process, part_of, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, known_sum, share_of_total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import STREAM, recorded_work
from kanalyze.columns import as_of, beside, gathered, parts_by, rows_at, told_of
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: Scope of a blocking call by pattern of its name; the first match counts.
_SCOPES: Final = (
    ("device", re.compile(r"(?:cuda|cu)(?:Device|Ctx|Thread)Synchronize")),
    ("stream", re.compile(r"(?:cuda|cu)StreamSynchronize")),
    ("event", re.compile(r"(?:cuda|cu)EventSynchronize")),
    ("copy", re.compile(_call_kinds.BLOCKING_COPY)),
    ("free", re.compile(r"cu(?:da|Mem)Free(?!Async)|cu(?:da|Mem)HostUnregister|cu(?:Mipmapped)?ArrayDestroy")),
)

SCOPES: Final = tuple(scope for scope, _ in _SCOPES)

#: Scopes of calls that do nothing but wait; a copy or freeing memory does work as well.
WAITING: Final = ("device", "stream", "event")

#: An asynchronous copy into pageable memory returns only when the copy has finished.
_PAGEABLE: Final = "Pageable"

_CALL: Final = (
    Column("api", pl.String, "The call, as nsys shows it.", nullable=True),
    Column(
        "waits_for",
        pl.Enum(SCOPES),
        "What such a call waits for: a device, stream, event, its copy, or (free) a device.",
    ),
    Column("range", pl.String, "Innermost NVTX range that made the call.", nullable=True),
)

_OF_DEVICE: Final = columns("""
    idle_ns int?: Time in it in which the device was idle; null where no device is known.
    busy_ns int?: Time in it in which the device ran anything; null likewise.
""")

TABLE: Final = Table(
    "syncs",
    "One blocking call: synchronisation, a copy that is not asynchronous, or freeing memory.",
    (
        Column("start_ns", pl.Int64, "Start of the call."),
        Column("dur_ns", pl.Int64, "Its duration."),
        *_CALL,
        *columns("""
            process_id int?: Process.
            thread_id int?: Host thread.
            device int?: The GPU that it waits for, as in `devices`; null where that cannot be told.
        """),
        *_OF_DEVICE,
        *columns("""
            waited_for text?: The last operation to end before the call returned, of those that it waits for; null if
                none ended in it.
            stream int?: CUDA stream of that operation.
            after_ns int?: From the end of that operation to the call's return.
        """),
    ),
    purpose="calls that blocked the host, and for what",
    groupings=("api",),
)

#: The table that ``by="api"`` gives.
_SUMS: Final = (*_CALL, *DURATION_COLUMNS, *_OF_DEVICE)
BY_API: Final = Table("syncs", "One blocking call made in one range.", _SUMS, when="--by api")


def syncs(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Blocking calls in scope; a call that overlaps the window counts whole.

    Args:
        report: The report.
        by: ``api`` sums the calls by name and range.
        where: A window, device or process to look at alone; of calls, those that wait for that device.

    Returns:
        :data:`TABLE`, in the order of time, or :data:`BY_API`, the longest in total first.

    Raises:
        CannotTellError: The report records no CUDA calls.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, "api")
    rows = _described(report, waited_for(report, in_scope(report)))
    if by is None:
        return TABLE.select(rows.sort("start_ns", "call_row"))
    keys = [column.name for column in _CALL]
    sums = rows.group_by(keys).agg(*duration_statistics(), *(known_sum(of.name) for of in _OF_DEVICE))
    order = sums.sort("total_ns", *keys, descending=[True] + [False] * len(keys))
    return BY_API.select(order.with_columns(share_of_total()))


def _described(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the columns of :data:`TABLE` to `calls`."""
    points = calls.select("process_id", "thread_id", at="start")
    last = facts_of(report, calls.get_column("behind"), "name", "end", "stream")
    ranges = gathered(_idle_parts.range_names(report), _range_lines.ranges_at(report, points))
    rows = calls.with_columns(
        last.get_column("stream"),
        api=_call_kinds.shown(pl.col("name")),
        waits_for="scope",
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
        range=ranges.cast(pl.String),
        waited_for=last.get_column("name").cast(pl.String),
        after_ns=pl.col("end") - last.get_column("end"),
    )
    busy = busy_within(report, calls)
    rows = rows.with_columns(busy, idle_ns=pl.col("dur_ns").clip(lower_bound=0) - busy)
    return rows.sort("device", maintain_order=True)


def scope_of(name: str | None) -> str | None:
    """The scope of a blocking call, one of :data:`SCOPES`, by its name; None for a call that does not block."""
    cuda = _call_kinds.cuda_name(name or "")
    return next((scope for scope, names in _SCOPES if names.match(cuda)), None)


@once_per_process
def blocking_calls(report: Report) -> pl.DataFrame:
    """Blocking calls of the processes in scope, at any time, in the order of the api events.

    Columns: call_row, name, scope (of :data:`SCOPES`), process_id, thread_id, correlation_id, start, end, copied (row
    of the last copy that it launched), context_id, stream and record_id (of its CUDA event) that it waits for, where
    recorded, and device (null where not known).
    """
    keys = ["process_id", "correlation_id"]
    calls = report.kind("api").select("name", *THREAD, "correlation_id", **intervals.OF_EVENTS)
    calls = calls.with_row_index("call_row")
    copies = operations(report, "call_row").filter(pl.col("kind") == "memcpy").drop_nulls("call_row")
    copies = with_facts(report, copies, "target_memory")
    pageable = copies.filter(pl.col("target_memory") == _PAGEABLE).get_column("call_row").unique()
    named = calls.filter(pl.col("name").is_in(_call_kinds.names_that(report, scope_of)))
    rows = pl.concat([named, rows_at(calls, pageable)]).unique("call_row").sort("call_row")
    scope = told_of(rows.get_column("name"), scope_of, pl.Enum(SCOPES)).fill_null("copy").alias("scope")
    last = copies.sort("end", "row").unique("call_row", keep="last").select("call_row", copied="row")
    rows = rows.with_columns(scope).join(last, on="call_row", how="left")
    synced = report.kind("sync").select("event_id", *keys, "context_id", "stream")
    recorded = beside(synced, report.table("sync_detail"), "record_id").drop("event_id").drop_nulls(keys)
    rows = rows.join(recorded.unique(keys, keep="first"), on=keys, how="left")
    of_copy, own = facts_of(report, rows.get_column("copied"), "context_id", "stream"), pl.col("copied").is_not_null()
    streams = (pl.when(own).then(of_copy.get_column(name)).otherwise(name).alias(name) for name in of_copy.columns)
    return _with_devices(report, rows.with_columns(streams)).sort("call_row")


def waited_for(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Joins blocking calls with the operation that each waited for: adds `behind`, its row.

    That is, within the scope of the call, the operation that ended last before the call returned; null if none ended
    while it blocked.
    """
    work = operations(report, *STREAM).select("row", *STREAM, "device", ended="end")
    events = calls.filter(pl.col("scope") == "event")
    parts = [events.join(recorded_work(report), on=["process_id", "record_id"], how="left")]
    for scopes, by in ((["stream", "copy"], STREAM), (["device", "free"], ("process_id", "device"))):
        of_scopes = calls.filter(pl.col("scope").is_in(scopes))
        last = as_of(of_scopes.select(*by, at="end"), work.select(*by, at="ended"))
        parts.append(of_scopes.with_columns(gathered(work.get_column("row"), last).alias("behind")))
    rows = pl.concat(part.select(*calls.columns, "behind") for part in parts).sort("call_row")
    behind = rows.get_column("behind")
    pending = work.get_column("ended").gather(behind) > rows.get_column("start")
    return rows.with_columns(behind.set(~pending.fill_null(value=False), None))


def staged_copies(report: Report) -> pl.DataFrame:
    """Copies from pageable memory that began before their call returned: call_row and behind (row of the copy).

    The driver puts such memory into a buffer of its own, part by part; the call returns with the last part there, some
    microseconds before the copy ends. Where all of it fits, the call returns at once, and the copy begins later.
    """
    copies = operations(report, "source_memory", "target_memory")
    copies = copies.filter((pl.col("source_memory") == _PAGEABLE) & pl.col("target_memory").ne_missing(_PAGEABLE))
    copies = with_facts(report, copies, "call_row", "call_end").filter(pl.col("start") < pl.col("call_end"))
    return copies.select("call_row", behind="row")


def _with_devices(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the device that each call waits for.

    In this order: the device of its copy, of its context, the only one that its process used, or that of the last
    operation that its thread launched before it; else null.
    """
    used = used_devices(report.whole).group_by("process_id").agg(pl.col("device").first(), n=pl.len())
    only = used.filter(pl.col("n") == 1).select("process_id", "device")
    rows = calls.join(only, on="process_id", how="left", nulls_equal=True, maintain_order="left")
    unsure = rows.filter(pl.col("device").is_null()).drop("device")
    if unsure.is_empty():
        return rows
    work = operations(report, "context_id", "thread_id", "call_start")
    contexts = work.drop_nulls(["process_id", "context_id"]).unique(["process_id", "context_id"], keep="first")
    of_context = contexts.select("process_id", "context_id", of_context="device")
    work = work.select(*THREAD, "device", at="call_start").drop_nulls("at")
    recent = as_of(unsure.select(*THREAD, at="start"), work.select(*THREAD, "at"))
    resolved = unsure.with_columns(gathered(work.get_column("device"), recent))
    resolved = resolved.join(of_context, on=["process_id", "context_id"], how="left")
    copied = facts_of(report, resolved.get_column("copied"), "device").to_series().alias("copied_on")
    resolved = resolved.with_columns(device=pl.coalesce(copied, "of_context", "device"))
    return pl.concat([rows.drop_nulls("device"), resolved.select(rows.columns)])


def in_scope(report: Report) -> pl.DataFrame:
    """The :func:`blocking_calls` that overlap the window and wait for the device in scope."""
    return intervals.overlapping(in_device_scope(report, blocking_calls(report)), report.scope.sides)


# Waits of host threads for which a device was idle, and the thread of any process that each of them waited for.

HOST_WAITS: Final = Table(
    "host_waits",
    "One wait of a host thread that a device waited for, and the thread that it waited for.",
    (
        *columns("""
            device int: The GPU, as in `devices`.
            start_ns int: Start of the wait, in the trace's own origin.
            dur_ns int: Its duration.
            idle_ns int: Time of the device's bucket `host` in it.
            process_id int?: Process that waited.
            thread_id int?: Host thread that waited.
            call text?: The system call in which it waited; null for none that is traced.
            range text?: Innermost range of the thread when the wait began.
        """),
        Column(
            "evidence",
            pl.Enum(_causes.EVIDENCE),
            "How it is known who ended it: a call that wakes, who alone was on a processor, or, of a sleep, its "
            "timer; null where that is not known, or several fit.",
            nullable=True,
        ),
        *columns("""
            by_process_id int?: Process that it waited for; null where that is not known.
            by_thread_id int?: Thread that it waited for.
            by_call text?: The call by which that one ended the wait, or woke who handed it on.
            hops int: How many threads handed it on.
            function text?: What that thread was in mostly meanwhile: by samples or stacks, innermost of the program's
                own; null where nothing tells.
            module text?: Program, library or Python file of the function.
        """),
        Column(
            "state", pl.Enum(STATES), "What that thread did for most of it, as in `culprits --by state`.", nullable=True
        ),
        *columns("""
            doing text?: The system call that it was in.
            by_range text?: Innermost range of that thread when it ended the wait.
            told_share float?: Part of the wait that it was in that state.
        """),
    ),
    purpose="waits of the host, and for whom",
    tools=tools.recorders("osrt"),
    telling=("dur_ns", "idle_ns", "call", "by_process_id", "function", "state", "doing"),
)


@analysis
def host_waits(report: Report) -> pl.DataFrame:
    """Waits of the threads that devices in scope waited for, by device and time: :data:`HOST_WAITS`.

    Raises:
        CannotTellError: The report has no device operations, or neither system calls nor the scheduler.
    """
    require(report, HOST_WAITS, *model.DEVICE_KINDS)
    if not records_waits(report):
        raise errors.CannotTellError.without(HOST_WAITS.name, report.meta.path, ["osrt", "samples"], report.meta.tool)
    causes, everywhere = _causes.told_causes(report), report.everywhere
    lines = parts_by(causes, THREAD)
    parts = [causes.with_columns(device=pl.lit(0, pl.Int64), idle_ns=pl.lit(0, pl.Int64)).clear()]
    for device, key, part in culprits.host_spans(report):
        if key in lines:
            idle_ns = intervals.covered(lines[key], intervals.union(part))
            parts.append(lines[key].with_columns(device=pl.lit(device, pl.Int64), idle_ns=idle_ns))
    rows = pl.concat(parts).filter(pl.col("idle_ns") > 0)
    calls, ranges = system_calls(everywhere).get_column("name"), _idle_parts.range_names(everywhere)
    begun = rows.select(*THREAD, at="start")
    ended = rows.select(process_id="by_process_id", thread_id="by_thread_id", at=pl.col("at") - 1)
    named = rows.with_columns(
        start_ns="start",
        dur_ns=pl.col("end") - pl.col("start"),
        **{name: gathered(calls, rows.get_column(name)).cast(pl.String) for name in ("call", "by_call")},
        range=gathered(ranges, _range_lines.ranges_at(everywhere, begun)).cast(pl.String),
        by_range=gathered(ranges, _range_lines.ranges_at(everywhere, ended)).cast(pl.String),
    )
    return HOST_WAITS.select(named.sort("device", "start_ns", *THREAD))
