"""What memory was taken less what was given back while each host event ran, as torch's own profiler has it.

To it an allocation belongs to every host event that runs then, whatever its thread, both its ends included
(torch/autograd/profiler.py, _parse_kineto_results).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._event_tree import sums_by
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

#: By side, with and without what was called; torch's names for these columns are CPU Mem and CUDA Mem.
MEMORY: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


@once_per_process
def allocations(report: Report) -> pl.DataFrame:
    """Every allocation (bytes above 0) and deallocation (below): by time.

    Columns: at, device (whether on one), bytes, failed (whether there was no memory; bytes is 0 then).
    """
    events = report.kind("memory").select("event_id", "name", at="start_ns")
    detail = report.table("memory_detail").select("event_id", "memory", "size_bytes")
    known = events.join(detail, on="event_id", how="left", maintain_order="left")
    sign = pl.when(pl.col("name") == "Allocation").then(1).when(pl.col("name") == "Deallocation").then(-1).otherwise(0)
    device = (pl.col("memory") == "Device").fill_null(value=False)
    failed = (sign == 0).alias("failed")
    return known.select("at", device.alias("device"), (pl.col("size_bytes") * sign).alias("bytes"), failed).sort("at")


def with_memory_taken(report: Report, rows: pl.DataFrame, parents: pl.Series | None) -> pl.DataFrame:
    """`rows` (start, end) with :data:`MEMORY`; 0 where no memory was recorded.

    `parents` are the rows around each of them; None where nothing is taken to be their own, as of what is asynchronous.
    """
    every = allocations(report)
    if every.is_empty():
        return rows.with_columns(pl.lit(0, dtype=pl.Int64).alias(name) for name in MEMORY)  # takes no memory itself
    found: dict[str, pl.Series | pl.Expr] = {}
    for side, on_device in (("cpu", False), ("device", True)):
        part = every.filter(pl.col("device") == on_device)
        before = pl.concat([pl.Series([0], dtype=pl.Int64), part.get_column("bytes").cum_sum()])
        at = part.get_column("at")
        first = at.search_sorted(rows.get_column("start"), side="left")
        last = at.search_sorted(rows.get_column("end"), side="right")
        taken = before.gather(last) - before.gather(first)
        own = pl.lit(0, dtype=pl.Int64) if parents is None else taken - sums_by(parents, taken, rows.height)
        found |= {f"self_{side}_bytes": own, f"{side}_bytes": taken}
    return rows.with_columns(**{name: found[name] for name in MEMORY})
