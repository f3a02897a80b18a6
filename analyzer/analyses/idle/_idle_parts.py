"""Splits the idle time of each device into parts: gap, bucket, culprit, innermost enclosing range, length.

Every table about idle time is a group-by of these parts, and so is each wait of an operation. Names cost about half as
much again as the split by host activity alone, so there are two forms: :func:`split_idle` has the reasons as numbers,
and :func:`idle_parts` has names. Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._range_lines import named_ranges, on_line, range_lines
from kanalyze.analyses.host._thread_names import between_texts, framework_recorded, named
from kanalyze.analyses.host._thread_timeline import Stretch, labels, winning
from kanalyze.analyses.idle._idle_intervals import idle_devices
from kanalyze.analyses.naming._host_names import host_names
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.thread_lanes import THREAD, lanes_of
from kanalyze.analyses.streams._waited_for import ended_last, event_waits, shared_streams, waited_for
from kanalyze.columns.grouping import numbered, rows_by
from kanalyze.columns.lookup import gathered, taken
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report

#: Buckets of an idle device, in the ledger's order.
IDLE: Final = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")

#: Schema of a part of idle time: number of its gap, bucket, culprit by name, innermost enclosing range, length.
PARTS: Final[dict[str, DataType | DataTypeClass]] = {
    "gap": pl.UInt32,
    "bucket": pl.Enum(IDLE),
    "culprit": pl.Categorical,
    "range": pl.Categorical,
    "ns": pl.Int64,
}

_UNNAMED: Final = "a call without a name"

#: Schema of a part of idle time with its times.
TIMED: Final = {"start": pl.Int64, "end": pl.Int64, **{name: PARTS[name] for name in ("bucket", "culprit", "range")}}

_LENGTH: Final = (pl.col("end") - pl.col("start")).alias("ns")

#: Defaults of :func:`_rows`.
_NO_ROW: Final = pl.lit(None, dtype=pl.UInt32)
_NO_TIME: Final = pl.lit(0, dtype=pl.Int64)


class Reasons(NamedTuple):
    """Reasons of idle time by number: the rows of :func:`labels`, and four more.

    Attributes:
        table: Bucket and detail of each reason; the detail of `launch` is told by :attr:`Split.rows`, `call_ns`.
        unseen: A wait for work from before the recording, the last of the labels.
        host: In no call and no overhead.
        launch: Launch overhead: the launching call, and the latency after it.
        queued: Submitted work that waited on the device.
        unknown: No host thread is known.
    """

    table: pl.DataFrame
    unseen: int
    host: int
    launch: int
    queued: int
    unknown: int


@once_per_process
def reasons(report: Report) -> Reasons:
    """The reasons of idle time of a report."""
    known = labels(report).select("bucket", "detail")
    more = pl.DataFrame({"bucket": ["host", "launch", "queued", "unknown"]}, schema={"bucket": known.schema["bucket"]})
    table = pl.concat([known, more], how="diagonal")
    first = known.height
    return Reasons(table, first - 1, first, first + 1, first + 2, first + 3)


class Split(NamedTuple):
    """Idle time split by the activity of some host threads.

    Attributes:
        report: The report.
        threads: The activity of the threads; None for intervals without a known host thread.
        rows: start and end (lane times), reason (row of :func:`reasons`), row (of the operation that was launched or
            queued; null for other reasons), call_ns (the part of a launch within the launching call, else 0); gap and
            range (row of :func:`named_ranges`) where asked for.
        cut: Number of rows of which several may share gap and reason; the rest, at most one each of launch and queued.
    """

    report: Report
    threads: Stretch | None
    rows: pl.DataFrame
    cut: int

    @property
    def lanes(self) -> Lanes | None:
        """The lanes of the threads."""
        return self.threads.lanes if self.threads else None


def idle_devices_with_names(report: Report) -> Iterator[IdleDevice]:
    """The :func:`idle_devices` of a report, with all that :func:`idle_parts` looks up computed beforehand."""
    return idle_devices(
        report, ended_last, event_waits, shared_streams, reasons, beside=[range_lines, range_names, host_names]
    )


def split_idle(batch: IdleBatch, *, by_range: bool = False) -> list[Split]:
    """Splits the idle intervals of a batch by the activity of the host thread that each is attributed to.

    `by_range` splits the time before a launch call by the innermost range of the thread as well, and keeps the column
    `gap` of the intervals; from the launch call on, the range is the one in which that call began.
    """
    report, known_threads, idle = batch.of.report, batch.of.threads, batch.launched()
    ranges = range_lines(report) if by_range else None
    by_thread = rows_by(idle, THREAD)
    known = {key: rows for key, rows in by_thread.items() if key in known_threads and key[1] is not None}
    lost = [rows for key, rows in by_thread.items() if key not in known]
    found = [_without_thread(report, idle[pl.concat(lost)], by_range=by_range)] if lost else []
    if not known:
        return found
    # lanes have to span the launch calls, too: their enclosing ranges are looked up on them
    ends = pl.max_horizontal(pl.col("end").max(), pl.col("call_start").max() + 1).alias("high")
    begins = pl.min_horizontal(pl.col("start").min(), pl.col("call_start").min()).alias("low")
    begun, ended, low, high = idle.select(pl.col("start").min(), pl.col("end").max(), begins, ends).row(0)
    for lanes in lanes_of([*known], low, high):
        threads = Stretch(report, [known_threads[key] for key in lanes.keys], lanes, begun, ended)
        found.append(_split(_on_lanes(idle, lanes, known), threads, ranges))
    return found


def _on_lanes(idle: pl.DataFrame, lanes: Lanes, rows: Mapping[ThreadKey, pl.Series]) -> pl.DataFrame:
    """Converts the intervals of some threads (their `rows` in `idle`) to lane times."""
    own = [rows[key] for key in lanes.keys]
    every = pl.concat(own, rechunk=True)
    idle = idle.drop(*THREAD, "call_end")
    if len(own) == 1:
        return idle if len(every) == idle.height else idle[every]
    moved = pl.col("start", "begun", "returned", "end", "call_start") + lanes.shifts([len(one) for one in own])
    return idle[every].with_columns(moved)


def _without_thread(report: Report, idle: pl.DataFrame, *, by_range: bool) -> Split:
    idle = idle.with_columns(range=_NO_ROW)
    rows = _rows(idle, ["gap", "range"] if by_range else [], reason=_code(reasons(report).unknown))
    return Split(report, None, rows, rows.height)


def _split(idle: pl.DataFrame, threads: Stretch, ranges: Mapping[ThreadKey, pl.DataFrame] | None) -> Split:
    """Splits intervals, given in lane times, by the activity of their threads; see :func:`split_idle`."""
    report, more = threads.report, ["gap"] if ranges is not None else []
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", *more, "lost", end="begun")
    line = threads.line(before)
    if ranges is not None:
        spans, more = threads.lanes.line(ranges), ["gap", "range"]
        before = overlaid(before, spans.rename({"row": "range"}), "range")
        idle = idle.with_columns(on_line(spans, idle.get_column("call_start")).alias("range"))
    launched = idle.filter(pl.col("end") > pl.col("begun"))
    above = line.filter(winning(report)[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    cut = [_before_launches(report, overlaid(before, line, "label"), more)]
    if held.any():
        cut.append(_cut_launches(report, launched.filter(held), above, more))
        launched = launched.filter(~held)
    unseen = launched.filter(pl.col("late") == "unseen")
    if unseen.height:  # the time before the launch call may be a wait of the same kind
        cut.append(_rows(unseen, more, start="returned", reason=_late(report)))
    height = sum(part.height for part in cut)
    return Split(report, threads, pl.concat([*cut, *_whole_launches(report, launched, more)]), height)


def _before_launches(report: Report, before: pl.DataFrame, more: Sequence[str]) -> pl.DataFrame:
    """Rows of the time before launch calls, by label; that of work launched before the recording is `unseen`."""
    known = reasons(report)
    reason = pl.col("label").fill_null(_code(known.host))
    if before.get_column("lost").any():
        wins = pl.col("label").is_in(winning(report).arg_true().implode()).fill_null(value=False)
        reason = pl.when(pl.col("lost") & ~wins).then(_code(known.unseen)).otherwise(reason)
    return _rows(before, more, reason=reason)


def _cut_launches(report: Report, launched: pl.DataFrame, above: pl.DataFrame, more: Sequence[str]) -> pl.DataFrame:
    """Rows of the time from launch calls on, split by the calls and overheads (`above`) that take precedence."""
    kept = ("row", *more)
    phases = (
        launched.select(*kept, start="begun", end="returned", reason=_code(reasons(report).launch), called=True),
        launched.select(*kept, start="returned", end="end", reason=_late(report), called=False),
    )
    pieces = pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in phases]).sort("start")
    free = pl.col("label").is_null()
    call_ns = pl.when(free & pl.col("called")).then(pl.col("end") - pl.col("start")).otherwise(0)
    reason, row = pl.coalesce("label", "reason"), pl.when(free).then(pl.col("row"))
    return _rows(overlaid(pieces, above, "label"), more, reason=reason, row=row, call_ns=call_ns)


def _whole_launches(report: Report, launched: pl.DataFrame, more: Sequence[str]) -> list[pl.DataFrame]:
    """Rows of the time from launch calls on where nothing takes precedence: launch overhead, and queued work."""
    until = pl.when(pl.col("late") == "launch").then("end").otherwise("returned")
    launch, row = _code(reasons(report).launch), pl.col("row")
    call_ns = pl.col("returned") - pl.col("begun")
    queued = launched.filter(pl.col("late") == "queued")
    return [
        _rows(launched, more, start="begun", end=until, reason=launch, row=row, call_ns=call_ns),
        _rows(queued, more, start="returned", reason=_late(report), row=row),
    ]


def _late(report: Report) -> pl.Expr:
    """The reason of the time after a launch call has returned."""
    known, late = reasons(report), pl.col("late")
    waits = pl.when(late == "launch").then(_code(known.launch)).when(late == "queued").then(_code(known.queued))
    return waits.otherwise(_code(known.unseen))


def _rows(idle: pl.DataFrame, more: Sequence[str], **columns: pl.Expr | str) -> pl.DataFrame:
    """Builds :attr:`Split.rows` from intervals, `columns` over defaults; leaves out those of length 0."""
    defaults: dict[str, pl.Expr | str] = {"start": "start", "end": "end", "row": _NO_ROW, "call_ns": _NO_TIME}
    return idle.select(*more, **(defaults | columns)).filter(pl.col("end") > pl.col("start"))


def _code(number: int) -> pl.Expr:
    return pl.lit(number, dtype=pl.UInt32)


class Parts(NamedTuple):
    """Idle time by culprit, as two frames with the columns of :data:`PARTS`.

    Attributes:
        several: Possibly several rows per gap and culprit.
        single: At most one row per gap and bucket, of buckets that `several` does not have for the same gap.
    """

    several: pl.DataFrame
    single: pl.DataFrame


def idle_parts(splits: Sequence[Split], device: int) -> Parts:
    """Names the parts of idle time of a device that :func:`split_idle` found by range."""
    several, single = [pl.DataFrame(schema=PARTS)], [pl.DataFrame(schema=PARTS)]
    for split in splits:
        several += _named(split, split.rows.head(split.cut), device)
        single += _named(split, split.rows.slice(split.cut), device)
    return Parts(pl.concat(several), pl.concat(single))


def timed_parts(splits: Sequence[Split], device: int) -> pl.DataFrame:
    """The parts of idle time of a device with their times: start, end, bucket, culprit and range; unsorted."""
    found = [pl.DataFrame(schema=TIMED)]
    for split in splits:
        parts = pl.concat([found[0], *_named(split, split.rows, device, TIMED)])
        found.append(split.lanes.back(parts) if split.lanes else parts)
    return pl.concat(found)


def _named(
    split: Split, rows: pl.DataFrame, device: int, columns: Mapping[str, object] = PARTS
) -> Iterator[pl.DataFrame]:
    """Names the culprits of some rows of a split; `columns` are those of :data:`PARTS` or :data:`TIMED`."""
    report, reason = split.report, rows.get_column("reason")
    known, (bucket, culprit) = reasons(report), _names_of_reasons(report)

    def parts(rows: pl.DataFrame, bucket: str | pl.Series, culprit: pl.Series) -> pl.DataFrame:
        told = bucket if isinstance(bucket, pl.Series) else pl.lit(bucket, dtype=PARTS["bucket"])
        names = told.alias("bucket"), culprit.alias("culprit"), _range_names(report, rows)
        return rows.with_columns(*names, _LENGTH).select(*columns)

    host, launch, queued = (reason == code for code in (known.host, known.launch, known.queued))
    called = rows.filter(~(host | launch | queued))
    if called.height:
        at = called.get_column("reason")
        yield parts(called, gathered(bucket, at), gathered(culprit, at))
    if launch.any():
        launches = rows.filter(launch)
        yield parts(launches, "launch", taken(operations(report), "name", launches.get_column("row")))
    if queued.any():
        waits = rows.filter(queued)
        yield parts(waits, "queued", waited_for(report, device, waits.get_column("row")))
    if split.threads and host.any():
        for own in _named_host(split.threads, rows.filter(host)):
            yield parts(own, "host", own.get_column("culprit"))


@once_per_process
def _names_of_reasons(report: Report) -> tuple[pl.Series, pl.Series]:
    """Bucket and culprit of each of the :func:`reasons`, in the types of :data:`PARTS`."""
    table = reasons(report).table
    return table.get_column("bucket").cast(PARTS["bucket"]), table.get_column("detail").cast(PARTS["culprit"])


def _range_names(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """Looks up the range name of each of `pieces` by its column `range`."""
    return gathered(range_names(report), pieces.get_column("range")).alias("range")


def host_culprits(report: Report, key: ThreadKey, thread: Thread, spans: pl.DataFrame) -> pl.DataFrame:
    """Splits intervals of a thread in no CUDA call by culprit: start, end, culprit and range.

    `key` is the process id and thread id of `thread`; `spans` are sorted.
    """
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    (lanes,) = lanes_of([key], low, high)
    threads = Stretch(report, [thread], lanes, low, high)
    line = lanes.line(range_lines(report))
    cut = overlaid(spans.select("start", "end"), line.rename({"row": "range"}), "range")
    found = pl.concat(_named_host(threads, cut))
    return found.select("start", "end", "culprit", _range_names(report, found))


def _named_host(threads: Stretch, pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """Adds `culprit` to host intervals outside CUDA calls; splits them further by operator and Python function."""
    if framework_recorded(threads.report):
        return [named(threads.report, key, own) for key, own in threads.lanes.of_each(pieces)]
    outside = pieces.get_column("range").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    found = [inside.with_columns(_range_names(threads.report, inside).alias("culprit"))]
    known = host_names(threads.report)
    if known.lines and alone.height:
        line = threads.lanes.line(known.lines).rename({"row": "name"})
        told = overlaid(alone, line, "name")
        named_beside = told.filter(pl.col("name").is_not_null())
        names = gathered(known.names, named_beside.get_column("name"))
        found.append(named_beside.with_columns(names.alias("culprit")).drop("name"))
        alone = told.filter(pl.col("name").is_null()).drop("name")
    return [*found, alone.with_columns(_between_calls(threads, alone).alias("culprit"))]


def _between_calls(threads: Stretch, spans: pl.DataFrame) -> pl.Series:
    """Names intervals in no call by the calls before and after them; each pair of calls once."""
    sides = threads.sides(spans)
    details = labels(threads.report).get_column("detail").fill_null(_UNNAMED)
    number, _ = numbered(sides, ("before", "after"))
    pairs = sides.with_columns(pair=number).get_column("pair")
    first = pairs.is_first_distinct()
    known = sides.filter(first)
    texts = between_texts(
        pl.DataFrame({"a": gathered(details, known["before"]), "b": gathered(details, known["after"])})
    )
    told = pl.DataFrame([pairs.filter(first), texts])
    return pairs.to_frame().join(told, on="pair", how="left", maintain_order="left").get_column("text")


@once_per_process
def range_names(report: Report) -> pl.Series:
    """Display name of each row of :func:`named_ranges`, with its domain; one name for all profiler steps.

    The ids that emit_nvtx appends are removed: they make the name of every range unique.
    """
    names = named_ranges(report).get_column("range").cast(pl.Categorical)
    codes = names.unique()
    alone = pl.DataFrame({"name": codes.cast(pl.String)}).select(without_ids(pl.col("name"))).to_series()
    shown = [ALL_STEPS if plain(name).startswith(STEP_PREFIX) else plain(name) or name for name in alone]
    texts = pl.Series(shown, dtype=pl.String).cast(pl.Categorical)
    table = pl.DataFrame({"range": codes, "text": texts})
    return names.to_frame().join(table, on="range", how="left", maintain_order="left").get_column("text")
