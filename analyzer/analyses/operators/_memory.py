"""Memory allocated minus freed during each host event, as torch's own profiler counts it.

torch attributes an allocation to every host event running at that time, on any thread, both ends included
(torch/autograd/profiler.py, _parse_kineto_results).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._event_tree import sums_by
from kanalyze.analyses.shared.cached import once_per_process

if TYPE_CHECKING:
    from kanalyze.report import Report

#: By side, with and without children; torch calls these columns CPU Mem and CUDA Mem.
MEMORY: Final = ("self_cpu_bytes", "cpu_bytes", "self_device_bytes", "device_bytes")


@once_per_process
def allocations(report: Report) -> pl.DataFrame:
    """All allocations (bytes above 0) and deallocations (below 0), by time.

    Columns: at, device (whether on a device), bytes, failed (whether memory ran out; bytes is then 0).
    """
    events = report.kind("memory").select("event_id", "name", at="start_ns")
    detail = report.table("memory_detail").select("event_id", "memory", "size_bytes")
    known = events.join(detail, on="event_id", how="left", maintain_order="left")
    sign = pl.when(pl.col("name") == "Allocation").then(1).when(pl.col("name") == "Deallocation").then(-1).otherwise(0)
    device = (pl.col("memory") == "Device").fill_null(value=False)
    failed = (sign == 0).alias("failed")
    return known.select("at", device.alias("device"), (pl.col("size_bytes") * sign).alias("bytes"), failed).sort("at")


def with_memory_taken(report: Report, rows: pl.DataFrame, parents: pl.Series | None) -> pl.DataFrame:
    """Adds :data:`MEMORY` to `rows` (start, end); 0 if no memory was recorded.

    `parents` are the enclosing rows; None if no children are to be subtracted, as for asynchronous events.
    """
    every = allocations(report)
    if every.is_empty():
        return rows.with_columns(pl.lit(0, dtype=pl.Int64).alias(name) for name in MEMORY)  # literals take no memory
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
