"""Idle intervals of each device, split into pieces by what their host threads did: reason, and culprit and range.

Each interval has the operation that ends it and the launch call of that. They are looked at in batches, which keeps
peak memory independent of the size of the report. Names (culprit and range) cost about half as much again as the split
by host activity alone, and are left out where none are asked for.
Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import polars as pl

from kanalyze.analyses.device._operations import (
    facts_of,
    launch_rows,
    launching_by_start,
    nearest_launches,
    of_device,
    operations,
)
from kanalyze.analyses.device._windows import activity, windows
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts, unseen_starts, unseen_syncs
from kanalyze.analyses.host._range_lines import named_ranges, on_line, range_lines
from kanalyze.analyses.host._thread_names import between_texts, framework_recorded, named
from kanalyze.analyses.host._thread_timeline import Stretch, label_codes, labels, threads, winning
from kanalyze.analyses.naming._host_names import host_names
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.thread_lanes import THREAD, lanes_of
from kanalyze.analyses.shared.workers import at_once, in_threads
from kanalyze.analyses.streams._waited_for import waited_for
from kanalyze.columns.grouping import numbered, rows_by
from kanalyze.columns.lookup import gathered, sure
from kanalyze.machinery.processors import workers
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report

T = TypeVar("T")

#: Batch sizes, in idle intervals: the smallest batch, and the most that are in flight at one time; large enough to gain
#: more than threads wait for Python's lock (benchmarks/), small enough to bound memory.
FEWEST: Final = 1 << 16
BATCH: Final = 1 << 19

#: Cached answers that every batch looks up: computed beforehand, since batches would otherwise block on them one after
#: the other.
_NEEDED: Final[tuple[Remembered[Any], ...]] = (
    threads,
    unrecorded_contexts,
    context_calls,
    label_codes,
    winning,
    activity,
    launch_rows,
    launching_by_start,
    unseen_starts,
    unseen_syncs,
)


class IdleDevice(NamedTuple):
    """The idle intervals of one device, its window and the host threads. Times are in nanoseconds.

    Attributes:
        report: The report.
        threads: The calls and overheads of each host thread, by process id and thread id.
        device: The device.
        low: Start of its window.
        high: End of its window.
        begun: Start of the part of the window that the recording covers.
        ended: End of that part; the rest of the window is `unknown`.
        idle: The idle intervals of the device that overlap that part, not clipped; see :func:`idle_intervals`.
    """

    report: Report
    threads: dict[ThreadKey, Thread]
    device: int
    low: int
    high: int
    begun: int
    ended: int
    idle: pl.DataFrame

    @property
    def unrecorded_ns(self) -> int:
        """Length of the part of the window that the recording does not cover."""
        return (self.high - self.low) - (self.ended - self.begun)

    def batches(self, idle: pl.DataFrame) -> list[IdleBatch]:
        """Splits `idle` into batches of bounded and about equal size, in order: threads end at the same time."""
        most = workers()
        size = min(max(-(-idle.height // most), FEWEST), max(BATCH // most, 1))
        number = max(-(-idle.height // size), 1)
        return [IdleBatch(self, some) for some in idle.iter_slices(max(-(-idle.height // number), 1))]

    def of_batches(self, work: Callable[[IdleBatch], T], idle: pl.DataFrame) -> Iterator[T]:
        """Maps `work` over the :meth:`batches` of `idle` in a thread pool; results in order."""
        return in_threads(work, self.batches(idle), small=True)


class IdleBatch(NamedTuple):
    """A batch of idle intervals of one device."""

    of: IdleDevice
    idle: pl.DataFrame

    def launched(self) -> pl.DataFrame:
        """The intervals clipped to the recorded window, with their launch calls: :func:`with_phases`."""
        return clip_phases(with_phases(with_launches(self.of.report, self.idle)), self.of.begun, self.of.ended)


def idle_devices(
    report: Report, *more: Remembered[Any], beside: Sequence[Remembered[Any]] = ()
) -> Iterator[IdleDevice]:
    """Idle intervals of each device in scope, with all that batches look up computed beforehand.

    `more` are further cached answers that batches look up; those in `beside` are computed at the same time as all else,
    so they should need little memory.
    """

    def prepare(report: Report) -> None:
        for one in (*_NEEDED, *more):
            one(report)
        found.extend(_idle_devices(report))

    def prepare_beside(report: Report) -> None:
        for one in beside:
            one(report)

    found: list[IdleDevice] = []
    at_once(report, [prepare, prepare_beside])
    yield from found


def _idle_devices(report: Report) -> Iterator[IdleDevice]:
    whole, known = activity(report), threads(report)
    work, windowed = (
        operations(report).select("device", "start", "end", "rank", "row", "process_id"),
        report.scope.window,
    )
    for device, low, high in windows(report).iter_rows():
        _, first, last = whole.row(by_predicate=pl.col("device") == device)
        begun, ended = _recorded(report, low, high, first, last)
        own = of_device(work, device)
        own = _around(own, begun, ended) if windowed else own
        idle = idle_intervals(own, min(begun, first), max(ended, last))
        idle = idle.filter((pl.col("end") > begun) & (pl.col("start") < ended)) if windowed else idle
        yield IdleDevice(report, known, device, low, high, begun, ended, idle)


def _around(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The operations that tell of idle time in ``[low, high)``: those in it, the last before and the first after it."""
    start, end = work.get_column("start"), work.get_column("end")
    real, before, after = end > start, end <= low, start >= high
    ended, starts = (times.filter(real & side) for times, side in ((end, before), (start, after)))
    near = real & ~before & ~after
    near |= (real & (end == ended.max())) if len(ended) else False
    near |= (real & (start == starts.min())) if len(starts) else False
    return work.filter(near)


def _recorded(report: Report, low: int, high: int, first: int, last: int) -> tuple[int, int]:
    """Start and end of the part of a window that the recording covers, as far as the report tells its end."""
    if report.meta.end_ns is None:
        return low, high
    begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
    return (begun, ended) if begun < ended else (low, low)


#: What an operation waits for after its launch call has returned.
WAITS: Final = pl.Enum(["launch", "queued", "unseen"])


def idle_intervals(work: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Idle intervals within ``[low, high)`` of the device whose operations are `work`, sorted by start.

    Columns: start, end, row (of the operation that ends it; null for the trailing interval) and process_id (of that
    operation; for the trailing interval of the operation that ended last, of equals the highest event_id).
    """
    real = work.select("start", "end", "rank", "row", "process_id")
    if not real.select((pl.col("end") > pl.col("start")).all()).item():
        real = real.filter(pl.col("end") > pl.col("start"))
    if not real.get_column("start").is_sorted():
        real = real.sort("start", maintain_order=True)
    same = pl.col("start") == pl.col("start").shift(1)
    if real.select((same & (pl.col("rank") < pl.col("rank").shift(1))).any()).item():
        real = real.sort("start", "rank", "row")  # a sort by several columns takes many times as long
    # in this order, the first operation to start after the latest end so far ends an idle interval
    first, last, time = pl.lit(low, dtype=pl.Int64), pl.lit(high, dtype=pl.Int64), pl.col("end").cum_max()
    gaps = real.select("row", "process_id", start=time.shift(1, fill_value=first), end="start")
    final = real.filter(pl.col("end") == pl.col("end").max()).sort("row").tail(1)
    ended = pl.DataFrame({"row": [None], "process_id": final.get_column("process_id").to_list() or [None]})
    rest = ended.select(
        pl.col("row").cast(pl.UInt32),
        pl.col("process_id").cast(pl.Int64),
        start=pl.lit(real.get_column("end").max(), dtype=pl.Int64) if final.height else first,
        end=last,
    )
    return pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in (gaps, rest)])


def with_launches(report: Report, idle: pl.DataFrame) -> pl.DataFrame:
    """Joins `idle` with the launch call of the operation that ends each interval.

    Adds thread_id, call_start, call_end, and unseen: whether that operation waited for work launched before the
    recording began. An operation without a launch call, and the trailing interval, get null times and the thread of the
    most recent launch of their process, else of the next one.
    """
    calls = facts_of(report, idle.get_column("row"), "thread_id", "call_start", "call_end")
    missing = calls.get_column("call_start").is_null().arg_true()
    if len(missing):
        points = idle.select("process_id", at="end")[missing]
        before, after = (
            nearest_launches(report, points, "thread_id", later=later, equal=True) for later in (False, True)
        )
        nearest = before.to_series().fill_null(after.to_series())
        calls = calls.with_columns(calls.get_column("thread_id").clone().scatter(missing, nearest))
    known = unseen_starts(report)
    none = pl.Series("unseen", [False]).new_from_index(0, idle.height)
    unseen = sure(idle.get_column("row").is_in(known.implode())) if len(known) else none
    return idle.with_columns(*calls, unseen.alias("unseen"))


def with_phases(idle: pl.DataFrame) -> pl.DataFrame:
    """Splits each idle interval at its launch call: adds begun, returned, late and lost.

    Before `begun` the launch call had not begun, from `begun` to `returned` the thread was in it (both are clipped to
    the interval). `late` is what the operation waits for after that, of :data:`WAITS`: ``launch`` where the call began
    within the interval, ``queued`` where it began earlier, ``unseen`` where the operation waited for work launched
    before the recording began. `lost` is set where the operation itself was launched before the recording began.
    """
    # without a call both are the end of the interval: min_horizontal and max_horizontal skip nulls
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within = pl.col("call_start") >= pl.col("start")
    launch, queued, unseen = (pl.lit(name, dtype=WAITS) for name in WAITS.categories)
    late = pl.when(within & pl.col("unseen")).then(unseen).when(within).then(launch).otherwise(queued)
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


def clip_phases(idle: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """Clips the rows of :func:`with_phases`, sorted by start, to ``[low, high)``."""
    if idle.is_empty() or (idle.item(0, "start") >= low and idle.item(-1, "end") <= high):
        return idle
    sides = ("start", "begun", "returned", "end")
    return idle.with_columns(pl.col(*sides).clip(low, high)).filter(pl.col("end") > pl.col("start"))


#: Buckets of an idle device, in the ledger's order.
IDLE: Final = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")

#: Schema of a piece of idle time of a device: start, end, reason (row of :func:`reasons`), row (of the operation that
#: ends its gap; null for the trailing gap) and thread (place in :func:`thread_keys`; null where none is known).
PIECE: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys(("start", "end"), pl.Int64),
    **dict.fromkeys(("reason", "row", "thread"), pl.UInt32),
}

#: Schema of a piece with names: its culprit, and the innermost range around it.
NAMED: Final[dict[str, DataType | DataTypeClass]] = {**PIECE, **dict.fromkeys(("culprit", "range"), pl.Categorical)}

_BUCKET: Final = pl.Enum(IDLE)
_UNNAMED: Final = "a call without a name"

_NO_CODE: Final = pl.lit(None, dtype=pl.UInt32)


class Reasons(NamedTuple):
    """Reasons of idle time by number: the rows of :func:`labels`, and five more.

    Attributes:
        table: Bucket (:data:`IDLE`) and detail of each reason; of `launch` the detail is null.
        unseen: A wait for work from before the recording, the last of the labels.
        host: In no call and no overhead.
        launch: Launch overhead: the launching call, and the latency after it.
        queued: Submitted work that waited on the device.
        unknown: No host thread is known.
        unrecorded: The window goes on where the recording does not.
    """

    table: pl.DataFrame
    unseen: int
    host: int
    launch: int
    queued: int
    unknown: int
    unrecorded: int


@once_per_process
def reasons(report: Report) -> Reasons:
    """The reasons of idle time of a report."""
    known = labels(report).select(pl.col("bucket").cast(_BUCKET), "detail")
    more = pl.DataFrame({"bucket": ["host", "launch", "queued", "unknown", "unknown"]}, schema={"bucket": _BUCKET})
    table = pl.concat([known, more], how="diagonal")
    return Reasons(table, known.height - 1, *range(known.height, table.height))


@once_per_process
def thread_keys(report: Report) -> list[ThreadKey]:
    """Process id and thread id of the host threads, in the order of their codes in pieces."""
    return [*threads(report)]


class Split(NamedTuple):
    """Idle time split by the activity of some host threads.

    Attributes:
        report: The report.
        threads: The activity of the threads; None for intervals without a known host thread.
        rows: Columns of :data:`PIECE`, in lane times; with names also range (row of :func:`named_ranges`).
    """

    report: Report
    threads: Stretch | None
    rows: pl.DataFrame


def split_idle(batch: IdleBatch, *, names: bool) -> pl.DataFrame:
    """The pieces of the idle intervals of a batch: :data:`PIECE` or, with `names`, :data:`NAMED`; sorted by start."""
    found = [pl.DataFrame(schema=NAMED if names else PIECE)]
    for split in _splits(batch, by_range=names):
        parts = _named(split, batch.of.device) if names else [split.rows]
        pieces = pl.concat([part.select(found[0].columns) for part in parts if part.height] or found[:1])
        found.append(split.threads.lanes.back(pieces) if split.threads else pieces)
    return pl.concat(found).sort("start")


def _splits(batch: IdleBatch, *, by_range: bool) -> list[Split]:
    """Splits the idle intervals of a batch by the activity of the host thread that each is attributed to.

    `by_range` splits the time before a launch call by the innermost range of the thread as well; from the launch call
    on, the range is the one in which that call began.
    """
    report, known_threads, idle = batch.of.report, batch.of.threads, batch.launched()
    ranges = range_lines(report) if by_range else None
    by_thread = rows_by(idle, THREAD)
    known = {key: rows for key, rows in by_thread.items() if key in known_threads and key[1] is not None}
    lost = [rows for key, rows in by_thread.items() if key not in known]
    found = []
    if lost:
        nowhere = idle[pl.concat(lost)].with_columns(range=_NO_CODE, thread=_NO_CODE)
        more = ["range", "thread"] if by_range else ["thread"]
        found.append(Split(report, None, _rows(nowhere, more, reason=_code(reasons(report).unknown))))
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


def _split(idle: pl.DataFrame, threads: Stretch, ranges: Mapping[ThreadKey, pl.DataFrame] | None) -> Split:
    """Splits intervals, given in lane times, by the activity of their threads; see :func:`_splits`."""
    report, more = threads.report, ["range"] if ranges is not None else []
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", "row", "lost", end="begun")
    line = threads.line(before)
    if ranges is not None:
        spans = threads.lanes.line(ranges)
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
    rows = pl.concat([*cut, *_whole_launches(report, launched, more)])
    return Split(report, threads, rows.with_columns(_thread_codes(threads, rows).alias("thread")))


def _thread_codes(threads: Stretch, rows: pl.DataFrame) -> pl.Series:
    """The code of the thread of each row, given in lane times."""
    known, lanes = {key: code for code, key in enumerate(thread_keys(threads.report))}, threads.lanes
    codes = pl.Series([known[key] for key in lanes.keys], dtype=pl.UInt32)
    if len(codes) == 1:
        return codes.new_from_index(0, rows.height)
    return codes[((rows.get_column("start") - lanes.low) // lanes.width).cast(pl.UInt32)]


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
        launched.select(*kept, start="begun", end="returned", reason=_code(reasons(report).launch)),
        launched.select(*kept, start="returned", end="end", reason=_late(report)),
    )
    pieces = pl.concat([part.filter(pl.col("end") > pl.col("start")) for part in phases]).sort("start")
    return _rows(overlaid(pieces, above, "label"), more, reason=pl.coalesce("label", "reason"))


def _whole_launches(report: Report, launched: pl.DataFrame, more: Sequence[str]) -> list[pl.DataFrame]:
    """Rows of the time from launch calls on where nothing takes precedence: launch overhead, and queued work."""
    until = pl.when(pl.col("late") == "launch").then("end").otherwise("returned")
    queued = launched.filter(pl.col("late") == "queued")
    return [
        _rows(launched, more, start="begun", end=until, reason=_code(reasons(report).launch)),
        _rows(queued, more, start="returned", reason=_late(report)),
    ]


def _late(report: Report) -> pl.Expr:
    """The reason of the time after a launch call has returned."""
    known, late = reasons(report), pl.col("late")
    waits = pl.when(late == "launch").then(_code(known.launch)).when(late == "queued").then(_code(known.queued))
    return waits.otherwise(_code(known.unseen))


def _rows(idle: pl.DataFrame, more: Sequence[str], **columns: pl.Expr | str) -> pl.DataFrame:
    """Builds :attr:`Split.rows` from intervals; leaves out those of length 0."""
    sides: dict[str, pl.Expr | str] = {"start": "start", "end": "end"}
    return idle.select("row", *more, **(sides | columns)).filter(pl.col("end") > pl.col("start"))


def _code(number: int) -> pl.Expr:
    return pl.lit(number, dtype=pl.UInt32)


def _named(split: Split, device: int) -> Iterator[pl.DataFrame]:
    """The rows of a split with names: :data:`NAMED`, in any order."""
    report, rows = split.report, split.rows
    known, reason = reasons(report), rows.get_column("reason")

    def parts(rows: pl.DataFrame, culprit: pl.Series) -> pl.DataFrame:
        return rows.with_columns(culprit.alias("culprit"), _range_names(report, rows))

    host, launch, queued = (reason == code for code in (known.host, known.launch, known.queued))
    called = rows.filter(~(host | launch | queued))
    if called.height:
        yield parts(called, gathered(_details(report), called.get_column("reason")))
    if launch.any():
        launches = rows.filter(launch)
        yield parts(launches, facts_of(report, launches.get_column("row"), "name").to_series())
    if queued.any():
        waits = rows.filter(queued)
        yield parts(waits, waited_for(report, device, waits.get_column("row")))
    if split.threads and host.any():
        for own in _named_host(split.threads, rows.filter(host)):
            yield parts(own, own.get_column("culprit"))


@once_per_process
def _details(report: Report) -> pl.Series:
    """The culprit of each of the :func:`reasons`, where that is a call or an overhead."""
    return reasons(report).table.get_column("detail").cast(pl.Categorical)


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
