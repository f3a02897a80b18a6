"""Totals of unified memory: bytes migrated and page faults."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.memory._unified_moves import bandwidth, by_cause, by_way, faults_seen, moves, pages
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import total
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

TABLE: Final = Table(
    "migration_totals",
    "All of unified memory, one row; none where nothing of it moved or faulted.",
    (
        Column("h2d_bytes", pl.Int64, "Moved from host to device; null for none.", nullable=True),
        Column("d2h_bytes", pl.Int64, "Moved from device to host; null for none.", nullable=True),
        Column("cpu_faults", pl.Int64, "Page faults of the CPU; null where they are not recorded.", nullable=True),
        Column("gpu_faults", pl.Int64, "Page faults of the GPUs; null where none is recorded.", nullable=True),
        Column("min_address", pl.Int64, "Lowest address that moved or faulted.", nullable=True),
        Column("max_address", pl.Int64, "Highest address at which a copy begins or that faulted.", nullable=True),
        Column("d2d_bytes", pl.Int64, "Moved between devices; null for none.", nullable=True),
        Column("moves", pl.Int64, "Copies."),
        Column("total_ns", pl.Int64, "Sum of their durations."),
        Column("exclusive_ns", pl.Int64, "Time in which the devices did nothing but this."),
        Column(
            "bandwidth_bytes_per_s",
            pl.Float64,
            "Bytes per second of moving; null where no time was spent.",
            nullable=True,
        ),
        Column("fault_bytes", pl.Int64, "Moved for page faults, and what the driver moved along with them."),
        Column("prefetch_bytes", pl.Int64, "Moved because the program asked for it."),
        Column("eviction_bytes", pl.Int64, "Moved because the device had no room."),
        Column("again_bytes", pl.Int64, "What had moved to the same place before."),
        Column("round_trips", pl.Int64, "How often the page that moved most went there and back."),
    ),
    purpose="unified memory that moved, in all",
    telling=("h2d_bytes", "d2h_bytes", "cpu_faults", "gpu_faults", "moves", "total_ns"),
    tools=recorders("fault"),
    equals="nsys stats um_total_sum",
)


@analysis
def migration_totals(report: Report) -> pl.DataFrame:
    """The totals of unified memory in scope, in one row.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records neither copies nor page faults.
    """
    require(report, TABLE, "memcpy", "fault")
    moved, seen = moves(report), faults_seen(report)
    if moved.is_empty() and seen.is_empty():
        return TABLE.empty()
    found = pages(report)
    addresses = pl.concat([moved.get_column("address"), seen.get_column("address")])
    cpu, gpu = (seen.filter(pl.col("side") == side) for side in ("CPU", "GPU"))
    sums = moved.select(
        *by_way(),
        *by_cause(),
        pl.col("size_bytes").sum(),
        pl.col("exclusive_ns").sum(),
        pl.len().alias("moves"),
        total_ns=pl.col("dur_ns").sum(),
    )
    trips = found.pieces.get_column("round_trips").max()
    return TABLE.select(
        sums.with_columns(
            bandwidth(),
            pl.lit(cpu.height if "fault" in report.kinds else None, dtype=pl.Int64).alias("cpu_faults"),
            pl.lit(total(gpu, "faults") if gpu.height else None, dtype=pl.Int64).alias("gpu_faults"),
            pl.lit(addresses.min(), dtype=pl.Int64).alias("min_address"),
            pl.lit(addresses.max(), dtype=pl.Int64).alias("max_address"),
            pl.lit(total(found.again, "again_bytes")).alias("again_bytes"),
            pl.lit(trips or 0).alias("round_trips"),
        )
    )
