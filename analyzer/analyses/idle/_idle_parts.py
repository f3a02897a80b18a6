"""Idle intervals of each device, split into pieces by what their host threads did: reason, and culprit and range.

Each interval has the operation that ends it and the launch call of that. They are looked at in batches, which keeps
peak memory independent of the size of the report.
Definitions: definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import (
    facts_of,
    launch_rows,
    launching_by_start,
    nearest_launches,
)
from kanalyze.analyses.device._windows import activity as device_activity
from kanalyze.analyses.host._context_creation import context_calls, unrecorded_contexts, unseen_starts, unseen_syncs
from kanalyze.analyses.host._range_lines import named_ranges, on_line, range_lines
from kanalyze.analyses.host._thread_names import between_calls, framework_recorded, named
from kanalyze.analyses.host._thread_timeline import activity, label_codes, labels, threads, winning
from kanalyze.analyses.naming._host_names import host_names
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid, touched
from kanalyze.analyses.shared.thread_lanes import THREAD, lanes_of
from kanalyze.analyses.shared.workers import at_once
from kanalyze.analyses.streams._waited_for import ended_last, event_waits, waited_for
from kanalyze.columns.grouping import rows_by
from kanalyze.columns.lookup import gathered, sure
from kanalyze.errors import DamagedReportError
from kanalyze.machinery.processors import workers
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.shared.cached import Remembered
    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report

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
    device_activity,
    launch_rows,
    launching_by_start,
    unseen_starts,
    unseen_syncs,
)

#: What names of pieces are made of.
_NAMES: Final[tuple[Remembered[Any], ...]] = (range_lines, host_names, ended_last, event_waits)


def prepare(report: Report) -> None:
    """Computes what all batches look up; what needs little memory at the same time as all else."""

    def names(report: Report) -> None:
        unnamed(report)

    def others(report: Report) -> None:
        for needed in _NEEDED:
            needed(report)

    at_once(report, [others, names])


@once_per_process
def unnamed(report: Report) -> DamagedReportError | None:
    """Why pieces have no names, where what they are made of is damaged: tables without names do not need it."""
    try:
        for needed in (*_NAMES, range_names):
            needed(report)
    except DamagedReportError as error:
        return error
    return None


def require_names(report: Report) -> None:
    """Refuses what needs names of pieces.

    Raises:
        DamagedReportError: What they are made of is damaged.
    """
    if (error := unnamed(report)) is not None:
        raise error


def batches(idle: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits idle intervals into batches of bounded and about equal size, in order: threads end at the same time."""
    most = workers()
    size = min(max(-(-idle.height // most), FEWEST), max(BATCH // most, 1))
    number = max(-(-idle.height // size), 1)
    return [*idle.iter_slices(max(-(-idle.height // number), 1))]


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


def with_phases(report: Report, idle: pl.DataFrame) -> pl.DataFrame:
    """Splits each idle interval at its launch call: adds begun, returned, late and lost.

    Before `begun` the launch call had not begun, from `begun` to `returned` the thread was in it (both are clipped to
    the interval). `late` is the reason why the operation waits after that: `launch` where the call began within the
    interval, `queued` where it began earlier, `unseen` where the operation waited for work launched before the
    recording began. `lost` is set where the operation itself was launched before the recording began.
    """
    # without a call both are the end of the interval: min_horizontal and max_horizontal skip nulls
    begun, returned = (pl.max_horizontal("start", pl.min_horizontal(at, "end")) for at in ("call_start", "call_end"))
    within, known = pl.col("call_start") >= pl.col("start"), reasons(report)
    waits = pl.when("unseen").then(_code(known.unseen)).otherwise(_code(known.launch))
    late = pl.when(within).then(waits).otherwise(_code(known.queued))
    lost = pl.col("unseen") & pl.col("call_start").is_null()
    phases = {"begun": begun, "returned": pl.max_horizontal(begun, returned), "late": late, "lost": lost}
    return idle.with_columns(**phases).drop("unseen")


#: Buckets of an idle device, in the ledger's order.
IDLE: Final = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")

#: Schema of a piece of idle time of a device: start, end, reason (row of :func:`reasons`), row (of the operation that
#: ends its gap; null for the trailing gap), thread (place in :func:`thread_keys`; null where none is known), culprit,
#: and the innermost range around it.
PIECE: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys(("start", "end"), pl.Int64),
    **dict.fromkeys(("reason", "row", "thread"), pl.UInt32),
    **dict.fromkeys(("culprit", "range"), pl.Categorical),
}

_BUCKET: Final = pl.Enum(IDLE)

_NO_CODE: Final = pl.lit(None, dtype=pl.UInt32)

#: What is not known of time without a host thread.
_UNKNOWN: Final = {"thread": pl.UInt32, "culprit": pl.Categorical, "range": pl.Categorical}


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


def split_idle(report: Report, device: int, idle: pl.DataFrame) -> pl.DataFrame:
    """The pieces of idle intervals of a device, of :func:`idle_intervals`: :data:`PIECE`, sorted by start.

    Each interval is split by the activity of the host thread that it is attributed to, and the time before its launch
    call by the innermost range of that thread, too; from the launch call on, the range is the one in which that began.
    """
    idle = with_phases(report, with_launches(report, idle))
    by_thread = rows_by(idle, THREAD)
    known = {key: rows for key, rows in by_thread.items() if key in threads(report) and key[1] is not None}
    found = [pl.DataFrame(schema=PIECE)]
    if lost := [rows for key, rows in by_thread.items() if key not in known]:
        nowhere = _rows(idle[pl.concat(lost)].with_columns(range=_NO_CODE), reason=_code(reasons(report).unknown))
        found.append(nowhere.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in _UNKNOWN.items()))
    if known:
        # lanes have to span the launch calls, too: their enclosing ranges are looked up on them
        ends = pl.max_horizontal(pl.col("end").max(), pl.col("call_start").max() + 1).alias("high")
        begins = pl.min_horizontal(pl.col("start").min(), pl.col("call_start").min()).alias("low")
        begun, ended, low, high = idle.select(pl.col("start").min(), pl.col("end").max(), begins, ends).row(0)
        for lanes in lanes_of([*known], low, high):
            rows = _split(report, lanes, (begun, ended), _on_lanes(idle, lanes, known))
            found += [lanes.back(part) for part in _named(report, lanes, device, rows) if part.height]
    return pl.concat(part.select([*PIECE]) for part in found).sort("start")


def _on_lanes(idle: pl.DataFrame, lanes: Lanes, rows: Mapping[ThreadKey, pl.Series]) -> pl.DataFrame:
    """Converts the intervals of some threads (their `rows` in `idle`) to lane times."""
    own = [rows[key] for key in lanes.keys]
    every = pl.concat(own, rechunk=True)
    idle = idle.drop(*THREAD, "call_end")
    if len(own) == 1:
        return idle if len(every) == idle.height else idle[every]
    moved = pl.col("start", "begun", "returned", "end", "call_start") + lanes.shifts([len(one) for one in own])
    return idle[every].with_columns(moved)


def _split(report: Report, lanes: Lanes, sides: tuple[int, int], idle: pl.DataFrame) -> pl.DataFrame:
    """Splits intervals between two times, given in lane times, by the activity of their threads.

    Columns: those of :data:`PIECE` but culprit, in lane times; range is a row of :func:`named_ranges`.
    """
    before = idle.filter(pl.col("begun") > pl.col("start")).select("start", "row", "lost", end="begun")
    line = activity(report, lanes, sides, before)
    spans = lanes.line(range_lines(report) if unnamed(report) is None else {})
    before = overlaid(before, spans.rename({"row": "range"}), "range")
    idle = idle.with_columns(on_line(spans, idle.get_column("call_start")).alias("range"))
    launched = idle.filter(pl.col("end") > pl.col("begun"))
    above = line.filter(winning(report)[line.get_column("label")])
    held = touched(launched.select("end", start="begun"), above)
    whole = pl.when(pl.col("late") == reasons(report).launch).then("end").otherwise("returned")
    parts = [
        _before_launches(report, overlaid(before, line, "label")),
        _from_launches(report, launched.filter(~held) if held.any() else launched, whole),
    ]
    if held.any():
        pieces = _from_launches(report, launched.filter(held), pl.col("returned")).sort("start")
        parts.append(_rows(overlaid(pieces, above, "label"), reason=pl.coalesce("label", "reason")))
    rows = pl.concat(parts)
    return rows.with_columns(_thread_codes(report, lanes, rows).alias("thread"))


def _thread_codes(report: Report, lanes: Lanes, rows: pl.DataFrame) -> pl.Series:
    """The code of the thread of each row, given in lane times."""
    known = {key: code for code, key in enumerate(thread_keys(report))}
    codes = pl.Series([known[key] for key in lanes.keys], dtype=pl.UInt32)
    if len(codes) == 1:
        return codes.new_from_index(0, rows.height)
    return codes[((rows.get_column("start") - lanes.low) // lanes.width).cast(pl.UInt32)]


def _before_launches(report: Report, before: pl.DataFrame) -> pl.DataFrame:
    """Rows of the time before launch calls, by label; that of work launched before the recording is `unseen`."""
    known = reasons(report)
    reason = pl.col("label").fill_null(_code(known.host))
    if before.get_column("lost").any():
        wins = pl.col("label").is_in(winning(report).arg_true().implode()).fill_null(value=False)
        reason = pl.when(pl.col("lost") & ~wins).then(_code(known.unseen)).otherwise(reason)
    return _rows(before, reason=reason)


def _from_launches(report: Report, launched: pl.DataFrame, until: pl.Expr) -> pl.DataFrame:
    """Rows of the time from launch calls on: of launch overhead until a time, then of what is waited for after that."""
    overhead = _rows(launched, start="begun", end=until, reason=_code(reasons(report).launch))
    return pl.concat([overhead, _rows(launched, start=until, reason="late")])


def _rows(idle: pl.DataFrame, **columns: pl.Expr | str) -> pl.DataFrame:
    """Start, end, row, range and reason of intervals; leaves out those of length 0."""
    sides: dict[str, pl.Expr | str] = {"start": "start", "end": "end"}
    return idle.select("row", "range", **(sides | columns)).filter(pl.col("end") > pl.col("start"))


def _code(number: int) -> pl.Expr:
    return pl.lit(number, dtype=pl.UInt32)


def _named(report: Report, lanes: Lanes, device: int, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """The rows of :func:`_split` with culprit, and range by name, in any order; without where these are damaged."""
    if unnamed(report) is not None:
        yield rows.with_columns(pl.lit(None, dtype=pl.Categorical).alias(name) for name in ("culprit", "range"))
        return
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
    if host.any():
        for own in _named_host(report, lanes, rows.filter(host)):
            yield parts(own, own.get_column("culprit"))


@once_per_process
def _details(report: Report) -> pl.Series:
    """The culprit of each of the :func:`reasons`, where that is a call or an overhead."""
    return reasons(report).table.get_column("detail").cast(pl.Categorical)


def _range_names(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """Looks up the range name of each of `pieces` by its column `range`."""
    return gathered(range_names(report), pieces.get_column("range")).alias("range")


def _named_host(report: Report, lanes: Lanes, pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """Adds `culprit` to host intervals outside CUDA calls; splits them further by operator and Python function."""
    if framework_recorded(report):
        return [named(report, key, own) for key, own in lanes.of_each(pieces)]
    outside = pieces.get_column("range").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    found = [inside.with_columns(_range_names(report, inside).alias("culprit"))]
    known = host_names(report)
    if known.lines and alone.height:
        line = lanes.line(known.lines).rename({"row": "name"})
        told = overlaid(alone, line, "name")
        named_beside = told.filter(pl.col("name").is_not_null())
        names = gathered(known.names, named_beside.get_column("name"))
        found.append(named_beside.with_columns(names.alias("culprit")).drop("name"))
        alone = told.filter(pl.col("name").is_null()).drop("name")
    for key, own in lanes.of_each(alone):
        found.append(own.with_columns(between_calls(report, key, own).alias("culprit")))
    return found


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
