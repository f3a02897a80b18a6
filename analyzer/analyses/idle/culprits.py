"""Idle time of the ledger by culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._thread_timeline import threads
from kanalyze.analyses.idle._idle_parts import IDLE, host_culprits
from kanalyze.analyses.idle._idle_sums import idle_sums, named_idle
from kanalyze.analyses.naming._host_names import ALIGNED, MAY_READ, with_shares
from kanalyze.analyses.shared.cached import analysis, once_per_report
from kanalyze.analyses.shared.requirements import require
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

TABLE: Final = Table(
    "culprits",
    "One reason for which a device was idle, by name; the rows of a bucket sum to the ledger's.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(IDLE), "The ledger's bucket: " + ", ".join(IDLE) + "."),
        Column(
            "culprit",
            pl.String,
            "host: the innermost operator, annotation or Python function of a trace, else the innermost range, else "
            "what the trace of its capture has between the same launches, or the calls around; launch: the operation "
            "that was launched; queued: what the operation waited for; profiler: its own word; else the call. Null: no "
            "name.",
            nullable=True,
        ),
        Column(
            "range",
            pl.String,
            "Innermost range that the thread was in, from a launch call on the one that the call began in; "
            "ProfilerStep* for every step of torch's profiler.",
            nullable=True,
        ),
        Column("ns", pl.Int64, "Time."),
        Column("share", pl.Float64, "Part of the device's window."),
        Column("gaps", pl.Int64, "In how many gaps."),
        Column("longest_ns", pl.Int64, "The most in one gap."),
        ALIGNED,
    ),
    purpose="who had the idle time: call, event and range",
    telling=("bucket", "ns", "share", "range", "gaps"),
    reads=(*DEVICE_KINDS, "api", "range", "python", "overhead", "range_detail", "collective_detail", "event_records"),
    may_read=("sync", "op", "sync_detail", *MAY_READ),
)


@analysis
def culprits(report: Report) -> pl.DataFrame:
    """Idle time of each device by bucket, culprit and range.

    Returns:
        :data:`TABLE`, sorted by device, bucket (in the ledger's order) and time, the longest first.

    Raises:
        CannotTellError: The report records no device operations at all.

    Columns:
        device, bucket, culprit, range, ns, share, gaps, longest_ns, aligned_share.
    """
    require(report, TABLE, *DEVICE_KINDS)
    lengths = {device: high - low for device, low, high in windows(report).iter_rows()}
    tables = [
        sums.with_columns(device=pl.lit(device), share=pl.col("ns") / max(lengths[device], 1))
        for device, sums in named_idle(report).items()
    ]
    named = [with_shares(report, table, "bucket") for table in tables]
    return pl.concat([TABLE.empty(), *map(TABLE.select, named)]).sort(
        "device", "bucket", "ns", "culprit", "range", descending=[False, False, True, False, False]
    )


@once_per_report
def context_culprits(report: Report) -> dict[int, pl.DataFrame]:
    """Time of context creation outside any recorded call, by the culprit of :func:`culprits`, for each device.

    Columns: culprit, range, told_ns. Devices without such time are left out.
    """
    parts = {device: sums.unrecorded for device, sums in idle_sums(report).items()}
    return {device: host_by_culprit(report, pl.concat(own)) for device, own in parts.items() if own}


def host_by_culprit(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Host time outside any call (process_id, thread_id, start, end; disjoint) by the culprit of :func:`culprits`.

    Columns: culprit, range, told_ns.
    """
    parts = parts_by(spans, THREAD).items()
    named = [host_culprits(report, key, threads(report)[key], part.sort("start")) for key, part in parts]
    lengths = pl.concat(named).with_columns(told_ns=pl.col("end") - pl.col("start"))
    sums = lengths.group_by("culprit", "range").agg(pl.col("told_ns").sum())
    return sums.with_columns(pl.col("culprit", "range").cast(pl.String))
