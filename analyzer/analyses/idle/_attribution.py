"""Attribution: where each instant of a device went, as one table of pieces, computed once and kept with the report.

What a device did is told by its operations, and why it was idle by what its host thread did. Every table about the time
of a device is a filter or a group-by of these pieces; the ledger of a window is a difference of prefix sums, since the
reason of an instant does not depend on the window. Definitions: definitions.md, section 5.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from threading import RLock
from typing import Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import intervals, window
from kanalyze.analyses.device._operations import BUSY_BUCKETS, facts_of, of_device, operations
from kanalyze.analyses.device._windows import activity, busy_by_bucket, spans_of_bucket, windows
from kanalyze.analyses.host._call_kinds import unrecorded_contexts
from kanalyze.analyses.idle._idle_parts import (
    IDLE,
    PIECE,
    batches,
    idle_intervals,
    prepare,
    reasons,
    require_names,
    split_idle,
    thread_keys,
    unnamed,
)
from kanalyze.analyses.shared.analysis import in_threads, once_per_report
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.analyses.shared.threads import THREAD, ThreadKey, joined_up, key_columns, touched
from kanalyze.columns import gathered, parts_by, positions, rows_at
from kanalyze.report import Report

_Schema = dict[str, "DataType | DataTypeClass"]
_BUCKET: Final = pl.Enum(BUCKETS)
_IDLE: Final = pl.Enum(IDLE)
_NAMES: Final = dict.fromkeys(("culprit", "range"), pl.Categorical)

#: Schema of the pieces of busy and idle time: of idle time with culprit and innermost range.
PIECES: Final[_Schema] = {**dict.fromkeys(("device", "start", "end"), pl.Int64), "bucket": _BUCKET, **_NAMES}

#: Schema of a piece of idle time inside intervals of its host thread, with bucket and detail as in the ledger.
WITHIN: Final[_Schema] = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "bucket": _IDLE, "detail": pl.String}

_LOCK: Final = RLock()

#: So many batches are attributed together.
_TOGETHER: Final = 8

#: Longer intervals in no CUDA call are more than the host's work for the next launches.
SHORT_NS: Final = 300_000

_BY_DETAIL: Final[_Schema] = {"device": pl.Int64, "bucket": _IDLE, "detail": pl.String, "ns": pl.Int64}
_TIMES: Final = dict.fromkeys(("ns", "gaps", "longest_ns"), pl.Int64)
_SUMS: Final[_Schema] = {"device": pl.Int64, "bucket": _IDLE, **_NAMES, **_TIMES}

_NS: Final = (pl.col("end") - pl.col("start")).alias("ns")


@once_per_report
def _edges(report: Report) -> dict[int, tuple[int, int]]:
    """First and last moment of each device: of its activity, its window, and in the whole of ranges and operators."""
    spans = windows(report)
    named = report.scope.window is None and unnamed(report) is None
    kinds = [kind for kind in ("range", "op") if kind in report.kinds and named]
    start, end = intervals.OF_EVENTS.values()
    host = [report.kind(kind).select(start=start.min(), end=end.max()) for kind in kinds]
    parts = pl.concat([spans, activity(report), *(spans.select("device").join(of, how="cross") for of in host)])
    edges = parts.group_by("device").agg(pl.col("start").min(), pl.col("end").max())
    return {device: (low, high) for device, low, high in edges.iter_rows()}


class _Idle(NamedTuple):
    """The idle intervals of a device in batches, which are attributed when a window asks for them."""

    edges: tuple[pl.DataFrame, pl.DataFrame]  # what was not recorded before and after
    batches: list[pl.DataFrame]
    pieces: dict[int, pl.DataFrame]  # of batches that were asked for
    joined: list[pl.DataFrame]  # once all were asked for, the pieces of all with the edges, instead of the batches


@once_per_report
def _idle_devices(report: Report) -> dict[int, _Idle]:
    """The idle intervals of the devices in scope."""
    work, by_device = operations(report).select("device", "start", "end", "rank", "row", "process_id"), {}
    for device, first, last in activity(report).iter_rows():
        low, high = begun, ended = _edges(report)[device]
        if report.meta.end_ns is not None:
            begun, ended = max(low, min(first, 0)), min(high, max(last, report.meta.end_ns))
        begun, ended = (begun, ended) if begun < ended else (low, low)
        edges = pl.DataFrame([(low, begun), (ended, high)], schema=intervals.SPANS, orient="row")
        edges = edges.with_columns(reason=pl.lit(reasons(report).unrecorded, dtype=pl.UInt32))
        before, after = (edge.filter(pl.col("start") < pl.col("end")) for edge in edges.iter_slices(1))
        idle = intervals.overlapping(idle_intervals(of_device(work, device), begun, ended), report.scope.sides)
        by_device[device] = _Idle((before, after), batches(idle), {}, [])
    return by_device


def _attributed(report: Report, device: int, low: int, high: int) -> pl.DataFrame:
    """The idle time of a device of all batches that overlap a window, or of more, as :func:`idle_pieces`."""
    idle = _idle_devices(report)[device]
    with _LOCK:
        if idle.joined:
            return idle.joined[0]
        numbers = [
            number
            for number, batch in enumerate(idle.batches)
            if batch.height and batch.item(0, "start") < high and batch.item(-1, "end") > low
        ]
        new = [number for number in numbers if number not in idle.pieces]
        if new:
            prepare(report)
        groups = [new[first : first + _TOGETHER] for first in range(0, len(new), _TOGETHER)]
        together = [pl.concat(idle.batches[number] for number in group) for group in groups]
        for group, pieces in zip(groups, in_threads(partial(split_idle, report, device), together), strict=True):
            begun = pl.Series([idle.batches[number].item(0, "start") for number in group[1:]], dtype=pl.Int64)
            cuts = (0, *pieces.get_column("start").search_sorted(begun), pieces.height)
            idle.pieces.update(zip(group, (pieces[a:b] for a, b in pairwise(cuts)), strict=True))
        before, after = idle.edges
        parts = [pl.DataFrame(schema=PIECE), before, *(idle.pieces[number] for number in numbers), after]
        pieces = pl.concat(parts, how="diagonal", rechunk=True)
        if len(numbers) == len(idle.batches):
            idle.joined.append(pieces)
            idle.batches.clear()
            idle.pieces.clear()
    return pieces


@once_per_report
def idle_pieces(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time of each device in scope inside its window, by device: :data:`PIECE`; disjoint, sorted by start.

    An idle interval is attributed in the whole of the report, and clipped to the window after that.
    """
    sides, edges = windows(report).rows(), _edges(report.whole)
    within = all(edges[device][0] <= low and high <= edges[device][1] for device, low, high in sides)
    source, by_device = report.whole if within else report.whole.narrow(window=report.scope.window), {}
    for device, low, high in sides:  # sorted, disjoint pieces clipped to the window
        pieces = _attributed(source, device, low, high)
        first = bisect_right(pieces.get_column("end"), low)
        stop = max(bisect_left(pieces.get_column("start"), high), first)
        inside = pieces.slice(first, stop - first)
        reaches_over = inside.height and (inside.item(0, "start") < low or inside.item(-1, "end") > high)
        by_device[device] = inside.with_columns(pl.col("start", "end").clip(low, high)) if reaches_over else inside
    return by_device


def bucket_of(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """The bucket of each of some pieces of idle time, of :data:`~kanalyze.analyses.idle._idle_parts.IDLE`."""
    return gathered(reasons(report).table.get_column("bucket"), pieces.get_column("reason"))


def by_thread(report: Report, pieces: pl.DataFrame) -> Iterator[tuple[ThreadKey, pl.DataFrame]]:
    """Pieces of idle time by the thread that they are attributed to; (None, None) where none is known."""
    for (code,), part in parts_by(pieces, ["thread"]).items():
        yield (None, None) if code is None else thread_keys(report)[code], part


def idle_sums(report: Report) -> pl.DataFrame:
    """Idle time of the devices in scope by bucket and detail: device, bucket, detail, ns."""
    codes, parts = reasons(report), [pl.DataFrame(schema=_BY_DETAIL)]
    for device, pieces in idle_pieces(report).items():
        launched = pieces.filter(pl.col("reason") == codes.launch)
        until = facts_of(report, launched.get_column("row"), "call_end").to_series()
        calling = launched.select((pl.min_horizontal("end", until) - pl.col("start")).clip(lower_bound=0).sum()).item()
        sums = pieces.group_by("reason").agg(_NS.sum())
        launch = sums.get_column("reason") == codes.launch
        rows = rows_at(codes.table, sums.get_column("reason")).with_columns(sums, device=pl.lit(device, dtype=pl.Int64))
        call = rows.filter(launch).with_columns(detail=pl.lit("call"), ns=pl.lit(calling, dtype=pl.Int64))
        latency = rows.filter(launch).with_columns(detail=pl.lit("latency"), ns=pl.col("ns") - calling)
        parts += [part.select([*_BY_DETAIL]) for part in (rows.filter(~launch), call, latency)]
    return pl.concat(parts).group_by("device", "bucket", "detail").agg(pl.col("ns").sum())


def reasoned_pieces(report: Report, device: int, *buckets: str) -> pl.DataFrame:
    """The :func:`idle_pieces` of a device in some buckets: row, start, end, and bucket and detail as in the ledger."""
    table = reasons(report).table
    wanted = table.get_column("bucket").is_in(buckets).arg_true()
    pieces = idle_pieces(report)[device].select("row", "start", "end", "reason")
    pieces = pieces.filter(pl.col("reason").is_in(wanted.implode()))
    return pieces.drop("reason").hstack(rows_at(table, pieces.get_column("reason")))


@once_per_report
def launch_waits(report: Report) -> pl.DataFrame:
    """Idle time spent waiting for each operation: row (of `operations`), launch_ns and queued_ns; sorted by row.

    launch_ns is for its launch call and the latency, without the time that goes to loading, allocation and the
    profiler; queued_ns after it was submitted. They sum to the ledger's buckets of these names.
    """
    codes = {"launch_ns": reasons(report).launch, "queued_ns": reasons(report).queued}
    waiting = pl.col("reason").is_in([*codes.values()])
    parts = [pieces.filter(waiting).select("row", "reason", _NS) for pieces in idle_pieces(report).values()]
    rows = pl.concat([pl.DataFrame(schema={"row": pl.UInt32, "reason": pl.UInt32, "ns": pl.Int64}), *parts])
    sums = {name: pl.col("ns").filter(pl.col("reason") == code).sum() for name, code in codes.items()}
    # those of an operation follow each other: runs are summed in a tenth of the time that equal rows take
    return rows.group_by(run=pl.col("row").rle_id()).agg(pl.col("row").first(), **sums).drop("run").sort("row")


def waited_ns(report: Report, rows: pl.Series, *columns: str) -> pl.DataFrame:
    """Columns of :func:`launch_waits` of some operations, by row; 0 for none."""
    waits = launch_waits(report)
    return rows_at(waits.select(columns), positions(waits.get_column("row"), rows)).fill_null(0)


def named_sums(report: Report) -> pl.DataFrame:
    """Idle time of the devices in scope by name: :data:`_SUMS`; gaps is in how many, longest_ns the most in one."""
    require_names(report)
    sums = (
        _by_name(report, pieces).select(pl.lit(device, dtype=pl.Int64).alias("device"), *[*_SUMS][1:])
        for device, pieces in idle_pieces(report).items()
    )
    return pl.concat([pl.DataFrame(schema=_SUMS), *sums])


def _by_name(report: Report, pieces: pl.DataFrame) -> pl.DataFrame:
    keys, ns = ("bucket", "culprit", "range"), pl.col("ns")
    gap, count = gaps_of(report, pieces), pl.len().cast(pl.Int64)
    rows = pieces.select("culprit", "range", gap, bucket_of(report, pieces), _NS, part=gap // (1 << 17))
    sums = [ns.sum(), count.alias("gaps"), ns.max().alias("longest_ns")]
    parts = rows.partition_by("part") or [rows]  # all at once take 0.3 GB at 190 MB
    each = (part.group_by("gap", *keys).agg(ns.sum()).group_by(keys).agg(sums) for part in parts)
    return pl.concat(each).group_by(keys).agg(ns.sum(), pl.col("gaps").sum(), pl.col("longest_ns").max())


def host_by_name(report: Report, device: int, spans: pl.DataFrame) -> pl.DataFrame:
    """A device's wait for the host's own code in `spans` (a span set) by name: culprit, range, ns, gaps, longest_ns.

    The longest first; as in :func:`named_sums`.
    """
    inside = intervals.cut(idle_pieces(report)[device].filter(pl.col("reason") == reasons(report).host), spans)
    sums = _by_name(report, inside).with_columns(pl.col("culprit", "range").cast(pl.String))
    return sums.sort("ns", "culprit", "range", descending=[True, False, False])


def gaps_of(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """The number of the gap of each of some pieces of a device, from 1 on; 0 for what was not recorded."""
    lost = pl.col("reason") == reasons(report).unrecorded
    return pieces.select(gap=pl.when(lost).then(0).otherwise(pl.col("row").rle_id() + 1)).to_series()


class HostTime(NamedTuple):
    """Idle time of a device in which its host thread was in no CUDA call, and made no context in an unrecorded one.

    `short_ns` is the part of it in such intervals that are shorter than :data:`SHORT_NS`; `unrecorded` is the time in
    which contexts were made outside any recorded call, with the columns process_id, thread_id, start, end.
    """

    short_ns: int
    unrecorded: pl.DataFrame


@once_per_report
def host_time(report: Report) -> dict[int, HostTime]:
    """The time in which each device in scope waited for the host's own code, by device."""
    making, by_device = idle_within(report, unrecorded_contexts(report)), {}
    for device, pieces in host_pieces(report).items():
        own = making[device].filter(bucket="host").select(*THREAD, "start", "end")
        free = intervals.gaps(intervals.union(own), intervals.BEFORE_ALL, intervals.AFTER_ALL)
        length = pl.col("end") - pl.col("start")
        short_ns = intervals.cut(pieces, free).select(length.filter(length < SHORT_NS).sum()).item()
        by_device[device] = HostTime(short_ns, own)
    return by_device


def host_pieces(report: Report) -> dict[int, pl.DataFrame]:
    """The pieces of the bucket `host` of each device in scope, those that adjoin as one: start, end and thread."""
    of_host = pl.col("reason") == reasons(report).host
    return {
        device: joined_up(pieces.filter(of_host).select("start", "end", "thread"), "thread")
        for device, pieces in idle_pieces(report).items()
    }


def idle_within(report: Report, within: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """Idle time of each device in scope while the thread that it is attributed to is in any of its intervals `within`.

    `within` has the columns process_id, thread_id, start and end. Gives the columns of :data:`WITHIN` by device; pieces
    of one device do not overlap, and are parts of the ledger's buckets; of launches the detail is null. Idle time
    without a known thread is left out.
    """
    spans = {key: intervals.union(part) for key, part in parts_by(within, THREAD).items()}
    union, by_device = intervals.union(within), {}
    for device, pieces in idle_pieces(report).items():
        inside = pieces.filter(touched(pieces, union)).select("start", "end", "reason", "thread")
        parts = [pl.DataFrame(schema=WITHIN)]
        for key, part in by_thread(report, inside.drop_nulls("thread")):
            if key in spans:
                cut = intervals.cut(part, spans[key])
                named = cut.select(**key_columns(key), start="start", end="end")
                parts.append(named.hstack(rows_at(reasons(report).table, cut.get_column("reason"))))
        by_device[device] = pl.concat(parts)
    return by_device


def ledger_pieces(report: Report) -> pl.DataFrame:
    """The pieces of the window of each device in scope, busy and idle, by device and time: :data:`PIECES`.

    They partition the window, so their sums are the ledger.
    """
    frames = [pl.DataFrame(schema=PIECES)]
    for device, idle in idle_pieces(report).items():
        parts = [idle.with_columns(bucket=bucket_of(report, idle).cast(pl.String).cast(_BUCKET))]
        for bucket in BUSY_BUCKETS:
            busy = spans_of_bucket(report, device, bucket)
            parts.append(busy.with_columns(bucket=pl.lit(bucket, dtype=_BUCKET)))
        pieces = pl.concat(parts, how="diagonal").sort("start")
        frames.append(pieces.select(pl.lit(device, dtype=pl.Int64).alias("device"), *[*PIECES][1:]))
    return pl.concat(frames)


def window_ledgers(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each window in `spans` (start, end; longer than 0) on each device that has a ledger.

    Columns: window (row in `spans`), device, and ``<bucket>_ns`` per bucket of the ledger, which sum to its length.
    """
    columns = {"window": pl.UInt32, "device": pl.Int64, **{f"{bucket}_ns": pl.Int64 for bucket in BUCKETS}}
    parts = [pl.DataFrame(schema=columns)]
    if spans.is_empty():
        return parts[0]
    part = report.narrow(window=window.Window(*spans.select(pl.col("start").min(), pl.col("end").max()).row(0)))
    for device, pieces in idle_pieces(part).items():
        start, end, buckets = *spans.select("start", "end"), bucket_of(report.whole, pieces)
        sums = busy_by_bucket(report.whole, device, start, end).with_row_index("window")
        spans_by_bucket = parts_by(pieces.select("start", "end", buckets), ["bucket"])
        for bucket in IDLE:
            part_ns = intervals.overlap(start, end, spans_by_bucket.get((bucket,), pieces.clear()))
            sums = sums.with_columns(part_ns.alias(f"{bucket}_ns"))
        rows = sums.with_columns(ns=pl.sum_horizontal(f"{bucket}_ns" for bucket in BUCKETS), device=device)
        wrong = rows.filter(rows.get_column("ns") != end - start)
        if wrong.height:
            raise AssertionError(f"the ledger of device {device} in a window sums to another time: {wrong.row(0)}")
        parts.append(rows.select(pl.col(name).cast(dtype) for name, dtype in columns.items()))
    return pl.concat(parts)
