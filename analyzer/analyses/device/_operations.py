"""The table of device work: one row per operation (kernel, graph, copy, memset), with what belongs to it.

Columns of the row itself are kept; what other tables tell of it (its launch call, stream, sizes, launch shape) is
joined once here, by name, for those who ask: see :data:`FACTS`. What needs more than the reader's tables is joined by
the room that knows it: operators by :func:`kanalyze.analyses.operators._work.launched_work`, streams by their numbers
by :func:`kanalyze.analyses.streams.concurrency.streamed_operations`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze import errors, intervals, model, schema
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.columns import as_of, gathered, in_order, marked, mixed, of_parts, parts_by, positions, rows_at, told_of
from kanalyze.decoder.decode import HINTS, decode
from kanalyze.decoder.fields import OTHER
from kanalyze.report import Report

_COMMUNICATION: Final = "communication"


def _as_text(attribute: object) -> str | None:
    """What a kernel's name says, as text; None where it does not tell."""
    if isinstance(attribute, bool):
        return "yes" if attribute else "no"
    if isinstance(attribute, tuple):
        return "x".join(map(str, attribute)) or None
    return attribute if isinstance(attribute, str) else None


def communicating(events: pl.DataFrame, report: Report) -> pl.Expr | None:
    """Whether one of `events` is a communication kernel: by its name, or because it is recorded as a collective.

    An expression of event_id and name; None where there is no such kernel.
    """
    names = events.get_column("name").unique().cast(pl.String).drop_nulls()
    hinted = names.filter(names.str.contains_any(list(HINTS), ascii_case_insensitive=True))
    collective_names = [name for name in hinted if decode(name).family == _COMMUNICATION]
    by_name = pl.col("name").is_in(collective_names) if collective_names else None
    recorded = report.table(model.COLLECTIVE_DETAIL.name).get_column("event_id")
    if recorded.is_empty():
        return by_name
    by_record = pl.col("event_id").is_in(recorded.implode())
    return by_record if by_name is None else by_name.fill_null(value=False) | by_record


def families(names: pl.Series) -> pl.Series:
    """The kernel family of each name; ``other`` where it is not known."""
    return told_of(names, lambda name: decode(name).family).fill_null(OTHER).alias("family")


def decoded(report: Report, kernels: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Adds a text column for each of `keys`, attributes of decoded kernel names; ``other`` where not known.

    What the report records takes precedence: which kernels are collectives, and the compiler of Triton kernels.
    """
    names = kernels.get_column("name").unique().drop_nulls()
    kernel_names = [decode(name) for name in names.cast(pl.String)]
    columns = [pl.Series(key, [_as_text(getattr(one, key)) for one in kernel_names], dtype=pl.String) for key in keys]
    attributes = pl.DataFrame([names, *columns])
    if "library" in keys:
        sources = dict(compiled_kernels(report).select("name", "source").iter_rows())
        compilers = pl.Series([sources.get(name) for name in names.cast(pl.String)], dtype=pl.String)
        attributes = attributes.with_columns(pl.coalesce("library", compilers))
    rows = kernels.join(attributes, on="name", how="left")
    collectives = communicating(kernels, report) if "family" in keys else None
    if collectives is not None:
        rows = rows.with_columns(pl.when(collectives).then(pl.lit(_COMMUNICATION)).otherwise("family").alias("family"))
    return rows.with_columns(pl.col(key).fill_null(OTHER) for key in keys)


def compiled_kernels(report: Report) -> pl.DataFrame:
    """The table of kernels that Triton or inductor compiled; empty where nobody recorded that."""
    try:
        return report.table(model.COMPILED_KERNELS.name)
    except errors.CannotTellError:
        return model.COMPILED_KERNELS.empty()


@once_per_report
def compiled_from(report: Report) -> pl.DataFrame:
    """What kernels were compiled from, by name: kernel, made_of (operators) and lines.

    Null where kernels of one name differ: nobody can tell which of them ran.
    """
    kernels = compiled_kernels(report).group_by(kernel="name").agg(pl.col("operators", "lines").unique())
    one = {name: pl.when(pl.col(name).list.len() == 1).then(pl.col(name).list.first()) for name in kernels.columns[1:]}
    return kernels.select("kernel", one["lines"], made_of=one["operators"])


#: Directions of copies between host and device, as nsys and HIP call them.
WITH_HOST: Final = "(?i)host|HtoD|DtoH"

#: Buckets of a busy device by precedence, for operations that overlap (definitions.md, section 5).
BUSY_BUCKETS: Final = ("kernel", "communication", "memcpy", "memset")

_OPERATION: Final = ("event_id", "kind", "name", "start", "dur_ns", "device", "process_id", "rank", "detail")

SHAPE: Final = tuple(column.name for column in model.LAUNCH_SHAPE)

#: Resources that a launch takes of an SM besides threads.
RESOURCES: Final = ("registers_per_thread", "static_shared_bytes", "dynamic_shared_bytes", "shared_config_bytes")

#: What the device event itself has besides the columns of :func:`operations`.
_RECORDED: Final = ("context_id", "stream", "correlation_id", "parent_id")

#: Facts of the launch call, with the columns of the api events that they are.
_CALL: Final = {
    "call_row": "",
    "thread_id": "thread_id",
    "call_id": "event_id",
    "call_start": "start_ns",
    "call_end": "",
    "call_ns": "dur_ns",
    "call_name": "name",
}

#: Tables about operations, by event_id.
_DETAILS: Final = (model.COPY_DETAIL, model.KERNEL_CONFIG, model.GRAPH_DETAIL)

#: What may be asked for besides the columns of :func:`operations`: of the event, of its launch call (call_row is its
#: row in the api events), of the tables of copies, kernel configurations and whole graphs, and the number of its launch
#: shape (of :func:`launch_shapes`). Null where an operation has none.
FACTS: Final = (*_RECORDED, *_CALL, *dict.fromkeys(name for of in _DETAILS for name in [*of.schema][1:]), "shape")


def operations(report: Report, *facts: str) -> pl.DataFrame:
    """Operations of the processes in scope, on any device and at any time, sorted by event_id.

    Columns: row (row index), event_id, kind, name, start and end (clipped to the end of the recording), began and
    dur_ns (as recorded, not clipped), device, process_id, rank (index of the bucket), bucket, detail (``graph`` for a
    whole graph, the direction for a copy, else null); and those :data:`FACTS` that are asked for.
    """
    return with_facts(report, _operations(report), *facts)


def device_operations(report: Report, *facts: str) -> pl.DataFrame:
    """The :func:`operations` on the devices in scope."""
    return with_facts(report, _device_operations(report), *facts)


def exclusive_operations(report: Report, *facts: str) -> pl.DataFrame:
    """Clips :func:`device_operations` to the window; adds exclusive_ns, which is additive per device."""
    return with_facts(report, _exclusive_operations(report), *facts)


def with_facts(report: Report, work: pl.DataFrame, *facts: str) -> pl.DataFrame:
    """`work` with facts of the operations in its column `row`; see :func:`facts_of`."""
    if not facts:
        return work
    own = facts_of(report, work.get_column("row"), *facts)
    return pl.concat([work.drop(facts, strict=False), own], how="horizontal")


def facts_of(report: Report, rows: pl.Series, *facts: str) -> pl.DataFrame:
    """:data:`FACTS` or columns of the :func:`operations` in `rows`, in that order; null for a null row."""
    work = _operations(report)
    every = len(rows) == work.height and rows.equals(work.get_column("row"))
    return _joined(report, None if every else rows, facts)


def _joined(report: Report, rows: pl.Series | None, facts: Sequence[str]) -> pl.DataFrame:
    """The facts of the operations in `rows`, or of all.

    Those of the events are chosen as frames: in these a column of one value takes no memory.
    """
    work, columns = _operations(report), dict[str, pl.Series]()

    def chosen(source: pl.DataFrame, *names: str) -> pl.DataFrame:
        return source[[*names]] if rows is None else rows_at(source[[*names]], rows)

    def detailed(table: schema.Table) -> pl.Series:
        at = _detail_rows(report.whole, table)
        return at if rows is None else gathered(at, rows)

    frames = [chosen(work, *own)] if (own := [name for name in facts if name in work.columns]) else []
    if own := [name for name in facts if name in _RECORDED]:
        frames.append(chosen(_recorded(report), *own))
    if called := [name for name in facts if name in _CALL]:
        columns |= _of_calls(report, chosen(launch_rows(report).to_frame(), "call").to_series(), called)
    for table in _DETAILS:
        if own := [name for name in facts if name in table.schema and name not in work.columns]:
            for name, values in rows_at(report.table(table.name)[own], detailed(table)).to_dict().items():
                columns[name] = (
                    columns[name].zip_with(columns[name].is_not_null(), values) if name in columns else values
                )
    if "shape" in facts:
        columns["shape"] = gathered(_shapes(report)[1], detailed(model.KERNEL_CONFIG))
    if columns or not frames:
        frames.append(pl.DataFrame([values.alias(name) for name, values in columns.items()]))
    return pl.concat(frames, how="horizontal")[[*facts]]


@once_per_report
def _detail_rows(report: Report, table: schema.Table) -> pl.Series:
    """Row of each of the :func:`_operations` in one of :data:`_DETAILS`; null for none."""
    return positions(report.table(table.name).get_column("event_id"), _operations(report).get_column("event_id"))


def _of_calls(report: Report, called: pl.Series, names: list[str]) -> dict[str, pl.Series]:
    """Columns of :data:`_CALL` of the api events in the rows `called`."""
    api = report.kind("api")
    columns = {name: gathered(api.get_column(_CALL[name]), called) for name in names if _CALL[name]}
    if "call_row" in names:
        columns["call_row"] = called
    if "call_end" in names:
        columns["call_end"] = gathered(api.get_column("start_ns"), called) + gathered(api.get_column("dur_ns"), called)
    return columns


@once_per_process
def launch_rows(report: Report) -> pl.Series:
    """Row of the launch call (in the api events) of each row of :func:`operations`; null without a launch call.

    Joined on process and correlation id, never by name. Where several calls share them (a driver call inside a runtime
    call), the launch call is the one that started first, then the one with the lower event_id.
    """
    calls = report.kind("api").select("process_id", "correlation_id", "start_ns").with_row_index("call")
    by_process = parts_by(in_order(calls, "start_ns"), ["process_id"])
    by_process.pop((None,), None)  # a call of no known process

    def called(key: tuple[int | None], part: pl.DataFrame) -> pl.Series:
        own = by_process.get(key, calls.clear())
        at = positions(own.get_column("correlation_id"), part.get_column("correlation_id"))
        return gathered(own.get_column("call"), at)

    work = operations(report, "correlation_id").select("process_id", "correlation_id")
    return of_parts(work, ["process_id"], pl.UInt32, called).alias("call")


@once_per_process
def launching_rows(report: Report) -> pl.Series:
    """Rows of the launch calls in the api events, sorted."""
    return marked(report.kind("api").height, launch_rows(report).drop_nulls()).arg_true().alias("call")


def launch_calls(report: Report, *columns: str) -> pl.DataFrame:
    """The launch calls in the order of the api events: process_id, and those columns of a call that are asked for."""
    rows = launching_rows(report)
    processes, facts = rows_at(report.kind("api")[["process_id"]], rows), _of_calls(report, rows, [*columns])
    return processes.with_columns(values.alias(name) for name, values in facts.items())


def nearest_launches(
    report: Report, points: pl.DataFrame, *columns: str, later: bool = False, equal: bool = False
) -> pl.DataFrame:
    """Columns of the last launch call before each point, or with `later` of the first one after it; null for none.

    `points` has the columns process_id and at, and thread_id where only launches of that thread count. With `equal`, a
    call that starts at the point counts, too.
    """
    keys = [name for name in ("process_id", "thread_id") if name in points.columns]
    calls = launch_calls(report, "call_row", "call_start", "thread_id").drop_nulls()
    at = as_of(points.select(*keys, "at"), calls.select(*keys, at="call_start"), later=later, equal=equal)
    return pl.DataFrame(_of_calls(report, gathered(calls.get_column("call_row"), at), [*columns]))


def shape_text(words: str) -> pl.Expr:
    """Grid and block of a launch as text, in such words: ``grid {} × block {}``."""
    return pl.format(words, *(pl.concat_str(f"^{side}_[xyz]$", separator=",") for side in ("grid", "block")))


def launch_shapes(report: Report) -> pl.DataFrame:
    """Distinct launch shapes with resources: shape (their number), :data:`SHAPE` and :data:`RESOURCES`."""
    return _shapes(report)[0]


@once_per_process
def _shapes(report: Report) -> tuple[pl.DataFrame, pl.Series]:
    """Distinct shapes, and the number of each row of the table of kernel configurations."""
    config = report.kernel_config.select(*SHAPE, *RESOURCES)
    code = config.select(mixed(config.columns).alias("code")).to_series()
    shapes = config.with_columns(code).filter(code.is_first_distinct()).sort("code").with_row_index("shape")
    return shapes.drop("code"), positions(shapes.get_column("code"), code).alias("shape")


@once_per_process
def _operations(report: Report) -> pl.DataFrame:
    recorded = report.of_kinds(model.DEVICE_KINDS, "event_id", "name", "start_ns", "dur_ns", "device", "process_id")
    recorded = recorded.rename({"start_ns": "start"}).with_columns(pl.col("device").fill_null(0))
    bucketed = pl.concat((_buckets(report, kind) for kind in model.DEVICE_KINDS), rechunk=True)
    work = in_order(pl.concat([recorded, bucketed], how="horizontal").select(_OPERATION), "event_id")
    buckets = pl.Series("bucket", BUSY_BUCKETS, dtype=pl.Enum(BUSY_BUCKETS))
    placed = work.with_row_index("row").with_columns(
        (pl.col("start") + pl.col("dur_ns")).alias("end"),
        pl.col("start").alias("began"),
        pl.lit(buckets).gather(pl.col("rank").cast(pl.UInt32)).alias("bucket"),
    )
    return in_time(report, placed)


@once_per_process
def _recorded(report: Report) -> pl.DataFrame:
    """:data:`_RECORDED` of each row of :func:`operations`."""
    return in_order(report.of_kinds(model.DEVICE_KINDS, "event_id", *_RECORDED), "event_id")


def in_device_scope(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """The `rows` (device) on the device in scope; all of them without such a device."""
    device = report.scope.device
    return rows if device is None else of_device(rows, device)


@once_per_report
def _device_operations(report: Report) -> pl.DataFrame:
    return in_device_scope(report, operations(report))


@once_per_report
def _exclusive_operations(report: Report) -> pl.DataFrame:
    work = device_operations(report)
    if report.scope.window is not None:
        work = intervals.overlapping(work, report.scope.sides)
        work = work.with_columns(pl.col("start", "end").clip(*report.scope.sides))
    return pl.concat([part.with_columns(intervals.exclusive(part)) for part in by_device(work)])


def in_window_scope(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """The `rows` (row) of :func:`operations` on the devices in scope that the window shows; all of them without one."""
    if report.scope.window is None:
        return rows
    shown = marked(_operations(report).height, exclusive_operations(report).get_column("row"))
    return rows.filter(gathered(shown, rows.get_column("row")))


def used_devices(report: Report) -> pl.DataFrame:
    """Distinct pairs of device in scope and process with operations on it: device, process_id."""
    return in_device_scope(report, _used_devices(report))


def of_used_processes(report: Report, events: pl.DataFrame) -> pl.DataFrame:
    """Filters events by the processes that used the device in scope; `events` themselves without such a device."""
    if report.scope.device is None:
        return events
    processes = used_devices(report).select("process_id").unique()
    return events.join(processes, on="process_id", how="semi", maintain_order="left")


@once_per_process
def _used_devices(report: Report) -> pl.DataFrame:
    return operations(report).select("device", "process_id").unique()


def by_device(work: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits `work` by device; gives `work` itself, not a copy, where there is at most one."""
    first, last = work.select(first=pl.col("device").min(), last=pl.col("device").max()).row(0)
    return [work] if first == last else work.partition_by("device")


def of_device(work: pl.DataFrame, device: int) -> pl.DataFrame:
    """Filters `work` by device."""
    return work.filter(pl.col("device") == device)


def _buckets(report: Report, kind: str) -> pl.DataFrame:
    """Derived columns of the operations of one kind: kind, rank and detail."""
    events = report.kind(kind)
    rank = pl.lit(BUSY_BUCKETS.index("kernel" if kind == "graph" else kind))
    detail = pl.lit("graph" if kind == "graph" else None, dtype=pl.Categorical)
    if kind == "kernel" and (communicates := communicating(events, report)) is not None:
        rank = pl.when(communicates).then(pl.lit(BUSY_BUCKETS.index("communication"))).otherwise(rank)
    if kind == "memcpy":
        names = events.get_column("name").unique()
        directions = names.cast(pl.String).str.extract(r"^\[(?:CUDA|HIP) memcpy (.*)\]$").cast(pl.Categorical)
        detail = pl.col("name").replace_strict(names, directions, default=None, return_dtype=pl.Categorical)
    kind_column = pl.lit(kind, dtype=pl.Enum(model.DEVICE_KINDS)).alias("kind")
    return events.with_columns(kind_column, rank=rank.cast(pl.Int8), detail=detail).select("kind", "rank", "detail")


# The end of the recording: events with a later (wrong) end are clipped, so that they do not stretch a window.
#
# Definitions: docs/definitions.md, section 5, the window of a device.

#: In a report without the end of the recording, how long an event may last after the last start of any other.
_LONGEST_TAIL_NS: Final = 60_000_000_000


@once_per_process
def recorded_until(report: Report) -> int | None:
    """Upper bound for the ends of CUDA calls and operations; None where no end has to be clipped.

    That is the recorded end of the recording, unless most events begin after it, so that it must be wrong itself. In a
    report without it, an end is an outlier if it is more than a minute, and more than the span of all starts, after the
    last start, while no event of the other side (calls, or operations) ends as late; the bound is then the latest other
    end.
    """
    sides = [report.of_kinds(of, "start_ns", "dur_ns") for of in (model.DEVICE_KINDS, ("api",))]
    extent = pl.col("start_ns").min(), pl.col("start_ns").max().alias("last"), intervals.END.max().alias("end")
    extents = [row for events in sides if (row := events.select(extent).row(0))[0] is not None]
    if not extents:
        return None
    events = pl.concat(sides)
    if (end := report.meta.end_ns) is not None:
        most = 2 * (events.get_column("start_ns") < end).sum() >= events.height  # else the recorded end is wrong itself
        return end if max(side[2] for side in extents) > end and most else None
    first, last = min(side[0] for side in extents), max(side[1] for side in extents)
    limit = last + max(_LONGEST_TAIL_NS, last - first)
    outliers = [side[2] > limit for side in extents]
    if not any(outliers) or (all(outliers) and len(outliers) > 1):
        return None
    latest: int | None = events.select(intervals.END.filter(limit >= intervals.END).max()).item()
    return latest


def in_time(report: Report, events: pl.DataFrame) -> pl.DataFrame:
    """Clips start and end of `events` (calls or operations) to :func:`recorded_until`.

    Other events are read only where an end looks too late.
    """
    last, latest = events.select(last=pl.col("start").max(), latest=pl.col("end").max()).row(0)
    end = report.meta.end_ns
    if latest is None or latest <= (last + _LONGEST_TAIL_NS if end is None else end):
        return events
    limit = recorded_until(report)
    return events if limit is None else events.with_columns(pl.col("start", "end").clip(upper_bound=limit))


#: Columns of the launch shape in tables where it may be unknown.
SHAPE_COLUMNS: Final = tuple(replace(column, nullable=True) for column in model.LAUNCH_SHAPE)


@once_per_report
def kernel_shapes(report: Report) -> pl.DataFrame:
    """Kernels in scope grouped by device, name, launch shape and resources.

    Columns: device, bucket, name, the six of :data:`SHAPE`, :data:`RESOURCES`, count, total_ns, exclusive_ns, and
    alone_ns (time in which the kernel ran without any other kernel).
    """
    needed = ("row", "kind", "device", "bucket", "name", "dur_ns", "start", "end", "exclusive_ns")
    work = exclusive_operations(report).select(needed).filter(pl.col("bucket").is_in(["kernel", "communication"]))
    ran = pl.concat([_alone(part) for part in by_device(work)]).filter(pl.col("kind") == "kernel")
    kernels = with_facts(report, ran.drop("kind", "start", "end"), "shape").drop("row")
    sums = [pl.len().cast(pl.Int64).alias("count"), pl.col("dur_ns").sum().alias("total_ns")]
    rows = kernels.group_by("device", "bucket", "name", "shape").agg(*sums, pl.col("exclusive_ns", "alone_ns").sum())
    rows = rows.join(launch_shapes(report), on="shape", how="left")
    return rows.select("device", "bucket", "name", *SHAPE, *RESOURCES, "count", "total_ns", "exclusive_ns", "alone_ns")


def other_shapes(shapes: pl.DataFrame) -> int:
    """Number of distinct kernels and launch shapes besides that of the first row, resources aside."""
    return shapes.select("name", *SHAPE).unique().height - 1


def _alone(work: pl.DataFrame) -> pl.DataFrame:
    """Adds alone_ns, the time in which no other kernel ran, to kernels of one device."""
    if work.select((pl.col("exclusive_ns") == pl.col("end") - pl.col("start")).all()).item():
        return work.with_columns(alone_ns="exclusive_ns")
    return work.with_columns(alone_ns=intervals.covered(work, intervals.alone(work)))
