"""Blocking calls: the host waits until a device has finished something."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import facts_of
from kanalyze.analyses.device._windows import busy_within
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle._blocking_calls import SCOPES, in_scope, waited_for
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.shared.requirements import check_grouping, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, known_sum, share_of_total
from kanalyze.columns.lookup import gathered
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

_CALL: Final = (
    Column("api", pl.String, "The call, as nsys shows it.", nullable=True),
    Column(
        "waits_for",
        pl.Enum(SCOPES),
        "What such a call waits for: a device, stream, event, its copy, or (free) a device.",
    ),
    Column("range", pl.String, "Innermost NVTX range that made the call.", nullable=True),
)

_IDLE: Final = Column(
    "idle_ns", pl.Int64, "Time in it in which the device was idle; null where no device is known.", nullable=True
)
_BUSY: Final = Column("busy_ns", pl.Int64, "Time in it in which the device ran anything; null likewise.", nullable=True)

TABLE: Final = Table(
    "syncs",
    "One blocking call: synchronisation, a copy that is not asynchronous, or freeing memory.",
    (
        Column("start_ns", pl.Int64, "Start of the call."),
        Column("dur_ns", pl.Int64, "Its duration."),
        *_CALL,
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("thread_id", pl.Int64, "Host thread.", nullable=True),
        Column(
            "device",
            pl.Int64,
            "The GPU that it waits for, as in `devices`; null where that cannot be told.",
            nullable=True,
        ),
        _IDLE,
        _BUSY,
        Column(
            "waited_for",
            pl.String,
            "The last operation to end before the call returned, of those that it waits for; null if none ended in it.",
            nullable=True,
        ),
        Column("stream", pl.Int64, "CUDA stream of that operation.", nullable=True),
        Column("after_ns", pl.Int64, "From the end of that operation to the call's return.", nullable=True),
    ),
    purpose="calls that blocked the host, and for what",
    groupings=("api",),
)

#: The table that ``by="api"`` gives.
BY_API: Final = Table(
    "syncs",
    "One blocking call made in one range.",
    (*_CALL, *DURATION_COLUMNS, _IDLE, _BUSY),
    when="--by api",
)


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

    Columns:
        start_ns, dur_ns, api, waits_for, range, process_id, thread_id, device, idle_ns, busy_ns, waited_for, stream,
        after_ns.
    """
    report = report.narrow(**where)
    require(report, TABLE, "api")
    check_grouping(TABLE, by)
    rows = _described(report, waited_for(report, in_scope(report)))
    if by is None:
        return TABLE.select(rows.sort("start_ns", "call_row"))
    keys = [column.name for column in _CALL]
    sums = rows.group_by(keys).agg(*duration_statistics(), *(known_sum(of.name) for of in (_IDLE, _BUSY)))
    return BY_API.select(
        sums.with_columns(share_of_total()).sort("total_ns", *keys, descending=[True] + [False] * len(keys))
    )


def _described(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the columns of :data:`TABLE` to `calls`."""
    points = calls.select("process_id", "thread_id", at="start")
    last = facts_of(report, calls.get_column("behind"), "name", "end", "stream")
    known = calls.with_columns(
        shown(pl.col("name")).alias("api"),
        pl.col("scope").alias("waits_for"),
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
        gathered(range_names(report), ranges_at(report, points)).alias("range").cast(pl.String),
        last.get_column("name").cast(pl.String).alias("waited_for"),
        (pl.col("end") - last.get_column("end")).alias("after_ns"),
        last.get_column("stream"),
    )
    busy = busy_within(report, calls)
    told = known.with_columns(busy, idle_ns=pl.col("dur_ns").clip(lower_bound=0) - busy)
    return told.sort("device", maintain_order=True)
