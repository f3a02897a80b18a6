"""Unified-memory migrations between host and devices, by address or by cause."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.memory._unified_moves import bandwidth, by_cause, by_way, faults_seen, moves, pages
from kanalyze.analyses.shared.analysis import check_grouping, require
from kanalyze.columns import product
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

TABLE: Final = Table(
    "migrations",
    "One virtual address of unified memory: the copies that begin there, and the page faults at it.",
    (
        Column("process_id", pl.Int64, "Process; addresses are its own.", nullable=True),
        Column("address", pl.Int64, "Virtual address of the first page; null where it is not recorded.", nullable=True),
        Column("h2d_bytes", pl.Int64, "Moved from host to device; null for none.", nullable=True),
        Column("d2h_bytes", pl.Int64, "Moved from device to host; null for none.", nullable=True),
        Column("cpu_faults", pl.Int64, "Page faults of the CPU; null for none.", nullable=True),
        Column("gpu_faults", pl.Int64, "Page faults of the GPUs; null for none.", nullable=True),
        Column(
            "throughput_bytes_per_s",
            pl.Int64,
            "The bytes of both, times how often their whole time fits into a second, cut to a whole number: as nsys "
            "computes it; null where that does not fit 64 bits.",
            nullable=True,
        ),
        Column(
            "bandwidth_bytes_per_s",
            pl.Float64,
            "Bytes per second of moving; null where no time was spent.",
            nullable=True,
        ),
        Column("d2d_bytes", pl.Int64, "Moved between devices; null for none.", nullable=True),
        Column("moves", pl.Int64, "Copies that begin at the address."),
        Column("total_ns", pl.Int64, "Sum of their durations."),
        Column("fault_bytes", pl.Int64, "Moved for page faults, and what the driver moved along with them."),
        Column("prefetch_bytes", pl.Int64, "Moved because the program asked for it."),
        Column("eviction_bytes", pl.Int64, "Moved because the device had no room."),
        Column("again_bytes", pl.Int64, "What of all this had moved to the same place before."),
        Column(
            "round_trips",
            pl.Int64,
            "How often the page at the address went there and back, in whatever copies; null where it did not move.",
            nullable=True,
        ),
    ),
    purpose="unified memory that moved, by address",
    telling=("address", "h2d_bytes", "d2h_bytes", "cpu_faults", "gpu_faults", "moves"),
    tools=recorders("fault"),
    equals="nsys stats um_sum, all rows",
    groupings=("cause",),
)

#: The table that ``by="cause"`` gives.
BY_CAUSE: Final = Table(
    "migrations",
    "What moved one way for one cause.",
    (
        Column("cause", pl.String, "Page fault, Speculative prefetch, User prefetch, Eviction… or Unknown."),
        Column("way", pl.String, "To device, to host, or between devices."),
        Column("count", pl.Int64, "Copies."),
        Column("total_bytes", pl.Int64, "Bytes moved."),
        Column("avg_bytes", pl.Float64, "Mean size."),
        Column("median_bytes", pl.Float64, "Median size."),
        Column("min_bytes", pl.Int64, "Smallest."),
        Column("max_bytes", pl.Int64, "Largest."),
        Column("again_bytes", pl.Int64, "What of it had moved to the same place before."),
        Column("total_ns", pl.Int64, "Sum of the durations."),
        Column(
            "bandwidth_bytes_per_s",
            pl.Float64,
            "Bytes per second of moving; null where no time was spent.",
            nullable=True,
        ),
        Column("exclusive_ns", pl.Int64, "Time in which the device did nothing but this; part of the memcpy bucket."),
    ),
    when="--by cause",
)


_NS_PER_S: Final = 1_000_000_000


def migrations(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The unified-memory migrations in the part of the report in scope.

    Args:
        report: Where to look; copies that overlap its window count in full.
        by: ``cause`` to group by cause instead of address.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, sorted by bandwidth as nsys does; or :data:`BY_CAUSE`, the most bytes first.

    Raises:
        CannotTellError: The report records neither copies nor page faults.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    require(report, TABLE if by is None else BY_CAUSE, "memcpy", "fault")
    check_grouping(TABLE, by)
    moved = moves(report).join(pages(report).again, on="event_id", how="left", maintain_order="left")
    moved = moved.with_columns(pl.col("again_bytes").fill_null(0))
    return _by_address(report, moved) if by is None else _by_cause(moved)


def _by_cause(moved: pl.DataFrame) -> pl.DataFrame:
    size = pl.col("size_bytes")
    sums = moved.group_by("cause", "way").agg(
        pl.len().alias("count"),
        size.mean().alias("avg_bytes"),
        size.median().alias("median_bytes"),
        size.min().alias("min_bytes"),
        size.max().alias("max_bytes"),
        size.sum(),
        pl.col("again_bytes").sum(),
        pl.col("exclusive_ns").sum(),
        total_ns=pl.col("dur_ns").sum(),
    )
    named = sums.with_columns(bandwidth(), total_bytes="size_bytes")
    return BY_CAUSE.select(named.sort("total_bytes", "cause", "way", descending=[True, False, False]))


def _by_address(report: Report, moved: pl.DataFrame) -> pl.DataFrame:
    keys = ["process_id", "address"]
    sums = moved.group_by(keys).agg(
        *by_way(),
        *by_cause(),
        pl.len().cast(pl.Int64).alias("moves"),
        pl.col("size_bytes", "again_bytes").sum(),
        total_ns=pl.col("dur_ns").sum(),
        between_ns=pl.col("dur_ns").filter(pl.col("way") == "between devices").sum(),
    )
    trips = pages(report).pieces.select("process_id", "round_trips", address="start")
    known = sums.join(trips, on=keys, how="left", nulls_equal=True)
    joined = known.join(_faults(report), on=keys, how="full", coalesce=True, nulls_equal=True)
    counted = ("moves", "total_ns", "again_bytes", "fault_bytes", "prefetch_bytes", "eviction_bytes")
    filled = joined.with_columns(pl.col(counted).fill_null(0), bandwidth(), _throughput())
    order = {"throughput_bytes_per_s": True, "process_id": False, "address": False}
    return TABLE.select(filled.sort(*order, descending=list(order.values()), nulls_last=[True, False, False]))


def _throughput() -> pl.Expr:
    """The bandwidth as nsys computes it: a second divided by the time in integers, times the bytes moved."""
    both = pl.col("h2d_bytes").fill_null(0) + pl.col("d2h_bytes").fill_null(0)
    time = pl.col("total_ns") - pl.col("between_ns")
    moved = pl.col("h2d_bytes").is_not_null() | pl.col("d2h_bytes").is_not_null()
    return pl.when(moved & (time > 0)).then(product(both, _NS_PER_S // time)).alias("throughput_bytes_per_s")


def _faults(report: Report) -> pl.DataFrame:
    """Page faults by address: columns process_id, address, cpu_faults, gpu_faults; null for none."""
    sides = {"cpu_faults": pl.col("side") == "CPU", "gpu_faults": pl.col("side") == "GPU"}
    count = pl.col("faults")
    return (
        faults_seen(report)
        .group_by("process_id", "address")
        .agg(pl.when(side.any()).then(count.filter(side).sum()).alias(name) for name, side in sides.items())
    )
