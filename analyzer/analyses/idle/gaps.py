"""Idle gaps of each device, with their reason and the operation that ended them."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.device._operations import facts_of
from kanalyze.analyses.device._windows import share_of_window
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.idle._attribution import bucket_of, gaps_of, idle_pieces
from kanalyze.analyses.idle._idle_parts import IDLE, range_names, require_names
from kanalyze.analyses.operators._host_names import ALIGNED, with_shares
from kanalyze.analyses.shared.analysis import check_grouping, require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table

#: Default threshold: longer gaps are listed.
THRESHOLD_NS: Final = 1000

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
    """
    report = report.narrow(**where)
    require(report, TABLE, *DEVICE_KINDS)
    check_grouping(TABLE, by)
    require_names(report)
    found = [_of_device(report, device, own, threshold_ns) for device, own in idle_pieces(report).items()]
    if not found:
        return (TABLE if by is None else BY_CULPRIT).empty()
    return (_with_ends if by is None else _by_culprit)(report, pl.concat(found))


def _of_device(report: Report, device: int, pieces: pl.DataFrame, threshold_ns: int) -> pl.DataFrame:
    """The gaps of a device longer than a threshold: device, row, start_ns, dur_ns, buckets, reason and culprit.

    What was not recorded is a gap on each side of the window. The reason is the bucket with most time, the culprit the
    one with most time in that bucket; ties go to the first.
    """
    gap, bucket = gaps_of(report, pieces).rle_id(), bucket_of(report, pieces)
    ns = (pieces.get_column("end") - pieces.get_column("start")).alias("ns")
    told = pieces.select("start", "row", "culprit", gap, bucket, ns)
    told = told.filter(pl.col("ns").sum().over("gap") > threshold_ns).with_columns(pl.col("gap").rle_id())
    sums = {f"{name}_ns": pl.col("ns").filter(pl.col("bucket") == name).sum() for name in IDLE}
    by_gap = told.group_by("gap", maintain_order=True)
    found = by_gap.agg(pl.col("row").first(), start_ns=pl.col("start").first(), dur_ns=pl.col("ns").sum(), **sums)
    most = pl.max_horizontal(*sums)
    firsts = (pl.when(pl.col(f"{name}_ns") == most).then(pl.lit(name, dtype=pl.Enum(IDLE))) for name in IDLE)
    found = found.with_columns(device=pl.lit(device, dtype=pl.Int64), reason=pl.coalesce(*firsts))
    mains = told.filter(told.get_column("bucket") == found.get_column("reason")[told.get_column("gap")])
    culprits = mains.group_by("gap", "culprit").agg(pl.col("ns").sum())
    order = culprits.sort("gap", "ns", "culprit", descending=[False, True, False])
    return found.with_columns(order.filter(pl.col("gap").is_first_distinct()).get_column("culprit"))


def _with_ends(report: Report, found: pl.DataFrame) -> pl.DataFrame:
    """The gaps of a device with the operation that ended each: :data:`TABLE`."""
    rows = found.get_column("row")
    ended = facts_of(report, rows, "name", "kind", *THREAD, "stream", "call_start", "call_name")
    around = ranges_at(report, ended.select(*THREAD, at="call_start"))
    around = around.set(ended.get_column("thread_id").is_null(), None)
    return TABLE.select(
        with_shares(report, found, "reason").with_columns(
            ended.get_column("name").alias("ended_by"),
            *ended.select("kind", *THREAD, "stream"),
            shown_calls(report, ended.get_column("call_name")).alias("api"),
            gathered(range_names(report), around).alias("range"),
        )
    )


def _by_culprit(report: Report, found: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("dur_ns")
    sums = found.group_by("device", "reason", "culprit").agg(
        count=pl.len(), total_ns=length.sum(), avg_ns=length.mean(), max_ns=length.max(), ns=length.sum()
    )
    order = sums.with_columns(share_of_window(report))
    order = order.sort("device", "total_ns", "reason", "culprit", descending=[False, True, False, False])
    return BY_CULPRIT.select(with_shares(report, order, "reason"))
