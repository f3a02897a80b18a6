"""Intervals of low GPU utilisation, as nsys' rule gpu_time_util finds them.

Source: the help text of that rule. Per process and device, from the first start to the last end of its operations.
Concurrent operations are summed, not united, and so are the overheads of the profiler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host.launches import cuda_ordinal

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Names of profiler overheads that count as work.
_OVERHEADS: Final = ("CUDA profiling data flush overhead", "CUDA profiling stop overhead", "CUDA profiling overhead")

_KINDS: Final = ("kernel", "memcpy", "memset")
_KEYS: Final = ("process_id", "gpu")
_REGIONS: Final = {"in_use_share": pl.Float64, "dur_ns": pl.Int64, "start_ns": pl.Int64}


def low_regions(report: Report, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Merges adjacent chunks below the threshold into regions, sorted by utilisation, then by length.

    Columns: in_use_share, dur_ns, start_ns, process_id, device (the process's ordinal), context_id, gpu.
    """
    columns = ("process_id", "device", "context_id", "start_ns", "dur_ns")
    work = pl.concat([report.seen(kind).select(columns) for kind in _KINDS]).filter(pl.col("start_ns") > 0)
    work = work.select(
        "process_id", "context_id", gpu="device", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")
    )
    names = [name for name in report.kind("overhead").get_column("name").unique().cast(pl.String) if name in _OVERHEADS]
    overhead = report.kind("overhead").filter(pl.col("name").is_in(names))
    overhead = overhead.select("process_id", start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    parts = []
    for key, part in work.partition_by(_KEYS, as_dict=True, maintain_order=True).items():
        process, gpu = (pl.lit(value, dtype=pl.Int64) for value in key)
        last = part.get_column("end").arg_max() or 0
        context = pl.lit(part.get_column("context_id").item(last), dtype=pl.Int64)
        own = overhead.filter(pl.col("process_id").eq_missing(process))
        found = _of_process(part.select("start", "end"), own.select("start", "end"), chunks, threshold_share)
        parts.append(found.with_columns(process_id=process, gpu=gpu, context_id=context))
    together = pl.concat(parts) if parts else _no_region()
    # nsys sorts by the printed value, a percentage with one decimal
    shown = (pl.col("in_use_share") * 1000 + 0.5).floor()
    return together.with_columns(cuda_ordinal(report).alias("device")).sort(shown, "dur_ns", "start_ns")


def _no_region() -> pl.DataFrame:
    return pl.DataFrame(schema={**_REGIONS, **dict.fromkeys((*_KEYS, "context_id"), pl.Int64)})


def _of_process(work: pl.DataFrame, overhead: pl.DataFrame, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Low regions of one process on one device: in_use_share, dur_ns, start_ns."""
    low, high = work.select(low=pl.col("start").min(), high=pl.col("end").max()).row(0)
    # nsys rounds the chunk length up, so there can be fewer chunks, and the last one can be shorter
    size = -(-(high - low) // chunks)
    if size <= 0:
        return pl.DataFrame(schema=_REGIONS)
    begins = pl.int_range(low, high, size, eager=True)
    spans = pl.DataFrame({"start": begins, "end": (begins + size).clip(upper_bound=high)})
    inside = overhead.filter((pl.col("start") > low) & (pl.col("end") < high))
    used = _sum_by_chunk(pl.concat([work, inside]), spans, low, size)
    chunk = spans.with_columns(used=used, dur=pl.col("end") - pl.col("start")).with_row_index("number")
    small = chunk.filter(pl.col("used") / pl.col("dur") * 100 < threshold_share * 100)
    runs = small.group_by(pl.col("number") - pl.int_range(pl.len()), maintain_order=True)
    return runs.agg(
        in_use_share=pl.col("used").sum() / pl.col("dur").sum(),
        dur_ns=pl.col("end").max() - pl.col("start").min(),
        start_ns=pl.col("start").min(),
    ).select(*_REGIONS)


def _sum_by_chunk(work: pl.DataFrame, spans: pl.DataFrame, low: int, size: int) -> pl.Series:
    """Sums the time of `work` (ns) within each chunk of `size` ns from `low` on."""
    first, last = (pl.col("start") - low) // size, (pl.col("end") - 1 - low) // size
    placed = work.filter(pl.col("end") > pl.col("start")).with_columns(number=first, within=first == last)
    whole = placed.filter("within").select("number", ns=pl.col("end") - pl.col("start"))
    # `cut` asks for a span set; chunks touch, which is safe here, since no part has length 0
    cut = intervals.cut(placed.filter(~pl.col("within")).select("start", "end"), spans)
    pieces = cut.select(number=first, ns=pl.col("end") - pl.col("start"))
    sums = pl.concat([whole, pieces]).group_by("number").agg(pl.col("ns").sum())
    numbers = pl.int_range(spans.height, eager=True).alias("number").to_frame()
    return numbers.join(sums, on="number", how="left", maintain_order="left").get_column("ns").fill_null(0)
