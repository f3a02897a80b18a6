"""Idle gaps of each device, with their reason and the operation that ended them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.idle._idle_parts import IDLE, idle_devices_with_names, idle_parts, range_names, split_idle
from kanalyze.analyses.idle._idle_sums import coded, last_of_runs, of_each_gap
from kanalyze.analyses.naming._host_names import ALIGNED, MAY_READ, with_shares
from kanalyze.analyses.shared.requirements import require
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.streams._waited_for import streams
from kanalyze.columns.lookup import gathered, rows_at, taken
from kanalyze.columns.ordering import in_order
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.analyses.idle._idle_parts import Parts
    from kanalyze.report import Report, Where

#: Default threshold: longer gaps are listed.
THRESHOLD_NS: Final = 1000

#: The columns of the ledger's buckets.
_BUCKETS: Final = tuple(f"{bucket}_ns" for bucket in IDLE)

_ENDED: Final = (
    Column("reason", pl.Enum(IDLE), "The bucket that took most of it; of equal ones the first."),
    Column("culprit", pl.Categorical, "Who took most of that bucket, by name, as in `culprits`.", nullable=True),
)

TABLE: Final = Table(
    "gaps",
    "One time in which a device was idle; over all of them the columns of buckets sum to the ledger.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("start_ns", pl.Int64, "When the device became idle, or the window's start."),
        Column("dur_ns", pl.Int64, "How long it was idle, inside the window."),
        *(Column(f"{bucket}_ns", pl.Int64, f"Of that, the ledger's bucket {bucket}.") for bucket in IDLE),
        *_ENDED,
        Column("ended_by", pl.Categorical, "Operation that ended it; null after the last one.", nullable=True),
        Column("kind", pl.Enum(DEVICE_KINDS), "Kind of that operation.", nullable=True),
        Column("stream", pl.Int64, "Its CUDA stream.", nullable=True),
        Column("api", pl.Categorical, "The call that launched it.", nullable=True),
        Column("range", pl.Categorical, "Innermost range that made that call, as in `culprits`.", nullable=True),
        Column("process_id", pl.Int64, "Process of that operation.", nullable=True),
        Column("thread_id", pl.Int64, "Host thread of that call.", nullable=True),
        ALIGNED,
    ),
    purpose="each idle interval: why, and what ended it",
    telling=("start_ns", "dur_ns", "reason", "ended_by", "range"),
    groupings=("culprit",),
    options=("threshold_ns",),
    reads=(*DEVICE_KINDS, "api", "range", "python", "overhead", "range_detail", "collective_detail", "event_records"),
    may_read=("sync", "op", "sync_detail", *MAY_READ),
)

#: The table that ``by="culprit"`` gives.
BY_CULPRIT: Final = Table(
    "gaps",
    "All gaps with one reason and culprit; a gap counts whole for the largest of its culprits.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        *_ENDED,
        Column("count", pl.Int64, "How many gaps."),
        Column("total_ns", pl.Int64, "Their sum."),
        Column("share", pl.Float64, "Part of the device's window."),
        Column("avg_ns", pl.Float64, "Mean length."),
        Column("max_ns", pl.Int64, "The longest."),
        ALIGNED,
    ),
    options=TABLE.options,
    when="--by culprit",
)


def gaps(
    report: Report, by: str | None = None, threshold_ns: int = THRESHOLD_NS, **where: Unpack[Where]
) -> pl.DataFrame:
    """Idle gaps of each device longer than a threshold.

    Args:
        report: The report. Gaps are found in the whole of it, and clipped to the window after that.
        by: ``culprit`` sums the gaps by reason and culprit.
        threshold_ns: Gaps of this length and shorter are left out, measured inside the window.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, by device and time, or :data:`BY_CULPRIT`, by device, the costliest first.

    Raises:
        CannotTellError: The report records no device operations at all.
        UnknownNameError: There is no such grouping.

    Columns:
        device, start_ns, dur_ns, profiler_ns, loading_ns, allocation_ns, launch_ns, queued_ns, sync_ns, api_ns,
        host_ns, unknown_ns, reason, culprit, ended_by, kind, stream, api, range, process_id, thread_id, aligned_share.
    """
    report = report.narrow(**where)
    require(report, TABLE, *DEVICE_KINDS)
    if by not in (None, *TABLE.groupings):
        raise UnknownNameError.of("grouping of gaps", by, TABLE.groupings)
    if by is None:
        return pl.concat([TABLE.empty(), *(_of_device(one, threshold_ns) for one in idle_devices_with_names(report))])
    return _by_culprit(report, [_sums(one, threshold_ns) for one in idle_devices_with_names(report)])


def _over(device: IdleDevice, threshold_ns: int) -> pl.DataFrame:
    """Idle intervals longer than a threshold inside the window, numbered by `gap`."""
    inside = pl.col("end").clip(device.begun, device.ended) - pl.col("start").clip(device.begun, device.ended)
    return device.idle.filter(inside > threshold_ns).with_row_index("gap")


def _of_device(device: IdleDevice, threshold_ns: int) -> pl.DataFrame:
    found = device.of_batches(_described, _over(device, threshold_ns))
    return in_order(pl.concat([_unrecorded(device, threshold_ns), *found]), "start_ns")


def _sums(device: IdleDevice, threshold_ns: int) -> pl.DataFrame:
    """The gaps of a device without their details: device, reason, culprit and dur_ns."""
    keys = ("device", "reason", "culprit")
    parts = [_unrecorded(device, threshold_ns).select(*keys, "dur_ns")]
    idle = _over(device, threshold_ns)
    found = device.of_batches(_with_reasons, idle)
    parts += [part.select(pl.lit(device.device, dtype=pl.Int64).alias("device"), *keys[1:], "dur_ns") for part in found]
    return pl.concat(parts)


def _with_reasons(batch: IdleBatch) -> pl.DataFrame:
    """The gaps of a batch, clipped to the window: gap, row, start_ns, dur_ns, and the columns of :func:`_reasons`."""
    spans = intervals.clip(batch.idle, batch.of.begun, batch.of.ended)
    times = spans.select("gap", "row", start_ns="start", dur_ns=pl.col("end") - pl.col("start"))
    if times.is_empty():
        return times.with_columns(TABLE.empty().select(*_BUCKETS, "reason", "culprit"))
    first, last = times.item(0, "gap"), times.item(-1, "gap")
    parts = idle_parts(split_idle(batch, by_range=True), batch.of.device)
    told = _reasons(parts, first, last - first + 1)
    told = told if told.height == times.height else told[times.get_column("gap") - first]
    return pl.concat([times, told], how="horizontal")


def _reasons(parts: Parts, first: int, count: int) -> pl.DataFrame:
    """Time by bucket, reason and culprit of the `count` gaps numbered from `first` on, a row per gap.

    The reason is the bucket with most time, the culprit the one with most time in that bucket; ties go to the first.
    """
    numbered, size = coded(parts.several, ("bucket", "culprit"))
    sums = of_each_gap(parts.several.get_column("gap"), numbered, size)
    several = parts.several.select("bucket", "culprit", place=pl.col("gap") - first)[sums.get_column("at")]
    several = several.with_columns(sums.get_column("ns"))
    single = parts.single.select("bucket", "culprit", "ns", place=pl.col("gap") - first)
    found = _by_bucket(several, single, count)
    present = [bucket for bucket in IDLE if longest(found, f"{bucket}_ns")] or IDLE[:1]
    most = found.select(pl.max_horizontal(f"{bucket}_ns" for bucket in present)).to_series()
    reason = pl.lit(present[-1], dtype=pl.Enum(IDLE))
    for bucket in reversed(present[:-1]):
        reason = pl.when(pl.col(f"{bucket}_ns") == most).then(pl.lit(bucket, dtype=pl.Enum(IDLE))).otherwise(reason)
    reasons = found.with_columns(reason.alias("reason")).get_column("reason")
    return found.with_columns(reasons, _culprits(several, single, reasons))


def _by_bucket(several: pl.DataFrame, single: pl.DataFrame, count: int) -> pl.DataFrame:
    """Time by bucket (a column each, ns) of `count` gaps, a row per gap."""
    same = several.get_column("place").cast(pl.Int64) * len(IDLE) + several.get_column("bucket").to_physical()
    sums = pl.concat(
        [last_of_runs(several.select("place", "bucket", "ns"), same), single.select("place", "bucket", "ns")]
    )
    # gap and bucket are a unique key: the time from a launch call on is either in `once` or, split, in `several`
    at = sums.get_column("bucket").to_physical().cast(pl.UInt32) * count + sums.get_column("place")
    every = pl.zeros(len(IDLE) * count, dtype=pl.Int64, eager=True).scatter(at, sums.get_column("ns"))
    return pl.DataFrame([every.slice(number * count, count).alias(name) for number, name in enumerate(_BUCKETS)])


def _culprits(several: pl.DataFrame, single: pl.DataFrame, reasons: pl.Series) -> pl.Series:
    """The culprit with most time in the reason bucket of each gap."""
    main, other = (
        part.filter(part.get_column("bucket") == reasons[part.get_column("place")]) for part in (several, single)
    )
    again = main.get_column("place").is_duplicated()
    if again.any():
        ties = main.filter(again).sort("place", "ns", "culprit", descending=[False, True, False])
        main = pl.concat([main.filter(~again), ties.filter(pl.col("place").is_first_distinct())])
    every = pl.concat([part.select("place", "culprit") for part in (main, other)], rechunk=True)
    at = pl.Series([None], dtype=pl.UInt32).new_from_index(0, len(reasons))
    order = pl.int_range(0, every.height, dtype=pl.UInt32, eager=True)
    return every.get_column("culprit")[at.scatter(every.get_column("place"), order)]


def _described(batch: IdleBatch) -> pl.DataFrame:
    report, found = batch.of.report, _with_reasons(batch)
    rows = found.get_column("row")
    work, calls = operations(report), calls_of(report, rows, "thread_id", "call_start", "call_name")
    ended = rows_at(work.select("name", "kind", "process_id"), rows)
    made = pl.DataFrame([ended.get_column("process_id"), *calls.select("thread_id", at="call_start")])
    around = ranges_at(report, made).set(made.get_column("thread_id").is_null(), None)
    return TABLE.select(
        with_shares(report, found, "reason").with_columns(
            pl.lit(batch.of.device).alias("device"),
            ended.get_column("name").alias("ended_by"),
            ended.get_column("kind"),
            ended.get_column("process_id"),
            taken(streams(report), "stream", rows).alias("stream"),
            shown_calls(report, calls.get_column("call_name")).alias("api"),
            calls.get_column("thread_id"),
            gathered(range_names(report), around).alias("range"),
        )
    )


def _unrecorded(device: IdleDevice, threshold_ns: int) -> pl.DataFrame:
    """Parts of the window outside the recording, as gaps of the bucket `unknown`."""
    sides = [(device.low, device.begun), (device.ended, device.high)]
    wide = [(start, end - start) for start, end in sides if end - start > threshold_ns]
    times = pl.DataFrame(wide, schema={"start_ns": pl.Int64, "dur_ns": pl.Int64}, orient="row")
    zero = {column.name: pl.lit(0) for column in TABLE.columns if column.name.endswith("_ns")}
    known = {"device": pl.lit(device.device), "start_ns": pl.col("start_ns"), "dur_ns": pl.col("dur_ns")}
    known |= {"unknown_ns": pl.col("dur_ns"), "reason": pl.lit("unknown")}
    nothing = {column.name: pl.lit(None) for column in TABLE.columns}
    return TABLE.select(times.select(**{**nothing, **zero, **known}))


def _by_culprit(report: Report, parts: list[pl.DataFrame]) -> pl.DataFrame:
    if not parts:
        return BY_CULPRIT.empty()
    lengths = windows(report).select("device", window=pl.col("end") - pl.col("start"))
    sums = (
        pl.concat(parts)
        .group_by("device", "reason", "culprit")
        .agg(
            pl.len().alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("dur_ns").mean().alias("avg_ns"),
            pl.col("dur_ns").max().alias("max_ns"),
        )
    )
    shares = sums.join(lengths, on="device").with_columns((pl.col("total_ns") / pl.col("window")).alias("share"))
    order = shares.sort("device", "total_ns", "reason", "culprit", descending=[False, True, False, False])
    return BY_CULPRIT.select(with_shares(report, order, "reason"))
