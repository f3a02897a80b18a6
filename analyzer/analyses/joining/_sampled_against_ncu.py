"""Holds what nsys sampled of the GPU's counters while a kernel ran against what ncu counted of it.

Definitions: docs/counters.md, One kernel, three tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.counters._metrics import metric_columns
from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.joining._kernel_groups import GROUP_KEYS, kernel_groups, kernels_in
from kanalyze.analyses.joining._match_kernels import same_kernels
from kanalyze.analyses.joining._ncu_distortion import disturbed
from kanalyze.units import frequency, percent, plural, size

if TYPE_CHECKING:
    from kanalyze.analyses.joining._difference_reasons import Explained
    from kanalyze.report import Report

    Row = dict[str, Any]

#: The figures, with their units; bytes are per launch.
FIGURES: Final = {
    "DRAM read": "bytes",
    "DRAM written": "bytes",
    "SMs active": "share",
    "tensor cores active": "share",
}

#: The sampled counter of each figure.
_SAMPLED: Final = dict(
    zip(FIGURES, ("dram_read_share", "dram_write_share", "sms_active_share", "tensor_active_share"), strict=True)
)

#: Metrics of ncu: bytes, cycles, and a percentage.
_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_ACTIVE, _ELAPSED = "sm__cycles_active.avg", "sm__cycles_elapsed.max"
_TENSOR: Final = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"

#: Fewest samples of a kernel, and the part of its time that they have to tell of.
_SAMPLES: Final = 20
_COVERED: Final = 0.5

#: How far two runs may be apart, as a part of the greater value; samples are in whole percent of a counter's peak.
_APART: Final = 0.1
_STEP: Final = 0.01


def sampled_rows(sampled: Report, ncu: Report) -> pl.DataFrame:
    """The figures that samples and ncu have of the same kernels, with what may explain a difference.

    Returns:
        name, those of the launch shape, right (the number of the kernel group of `ncu`), figure, unit, first (of
        samples), second (of ncu), step (how fine samples are, in the figure's unit), samples, clock_hz and
        ncu_clock_hz, l2_bytes and crowded (whether other operations ran meanwhile). Only kernels that enough samples
        tell of.
    """
    ours, theirs = _of_samples(sampled), _of_ncu(ncu)
    crowded = disturbed(sampled).select("group", "crowded")
    pairs = same_kernels(sampled, ncu).select("left", "right")
    both = pairs.join(ours, left_on="left", right_on="group").join(theirs, left_on="right", right_on="group")
    both = both.join(crowded, left_on="left", right_on="group", how="left")
    l2_bytes = sampled.devices.get_column("l2_bytes").max()
    found = [
        both.select(
            *(name for name in GROUP_KEYS if name != "device"),
            *("right", "samples", "clock_hz", "ncu_clock_hz", "crowded"),
            figure=pl.lit(figure),
            unit=pl.lit(unit),
            first=figure,
            second=f"{figure}_ncu",
            step=pl.col("percent_bytes") if unit == "bytes" else pl.lit(_STEP),
            l2_bytes=pl.lit(l2_bytes, dtype=pl.Int64),
        ).drop_nulls(["first", "second"])
        for figure, unit in FIGURES.items()
    ]
    return pl.concat(found)


def _of_samples(report: Report) -> pl.DataFrame:
    """The sampled figures of each kernel group: group, name, shape, the figures, samples, clock_hz, percent_bytes."""
    groups = kernel_groups(report).select("group", *GROUP_KEYS)
    placed = kernels_in(report).join(groups, on=GROUP_KEYS, nulls_equal=True).select("event_id", "group")
    work = exclusive_operations(report).select("event_id", "device", "start", "end").join(placed, on="event_id")
    bandwidths = dict(report.devices.select("device", "memory_bandwidth_bytes_per_s").iter_rows())
    found = []
    for device, grid in grids(report).items():
        own = work.filter(pl.col("device") == device)
        launches = own.group_by(key="group").agg(launches=pl.len())
        told = means(grid, own.select("start", "end", key="group")).join(launches, on="key")
        peak = pl.lit(bandwidths.get(device), dtype=pl.Float64) * pl.col("total_ns") / 1e9 / pl.col("launches")
        shares = {name: pl.col(column) * (peak if FIGURES[name] == "bytes" else 1) for name, column in _SAMPLED.items()}
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        found.append(
            told.filter(enough).select(
                "samples", **shares, group="key", clock_hz="sm_clock_hz", percent_bytes=_STEP * peak
            )
        )
    return groups.drop("device").join(pl.concat(found), on="group")


def _of_ncu(report: Report) -> pl.DataFrame:
    """The same figures of ncu's kernel groups, means over the launches that it measured: group, figures, clock."""
    names = (_READ, _WRITTEN, _ACTIVE, _ELAPSED, _TENSOR, _CLOCK)
    each = kernels_in(report).join(metric_columns(report, names), on="event_id")
    figures = {
        "DRAM read_ncu": pl.col(_READ),
        "DRAM written_ncu": pl.col(_WRITTEN),
        "SMs active_ncu": pl.col(_ACTIVE) / pl.col(_ELAPSED),
        "tensor cores active_ncu": pl.col(_TENSOR) / 100,
        "ncu_clock_hz": pl.col(_CLOCK),
    }
    sums = each.group_by(GROUP_KEYS).agg(value.mean().alias(name) for name, value in figures.items())
    groups = kernel_groups(report).select("group", *GROUP_KEYS)
    return groups.join(sums, on=GROUP_KEYS, nulls_equal=True).drop(GROUP_KEYS)


def why_apart(row: Row) -> Explained | None:
    """The reason why samples and ncu differ in a row of :func:`sampled_rows`; None if unknown."""
    first, second = row["first"], row["second"]
    apart, near = abs(second - first), _APART * max(first, second) + row["step"]
    if apart <= near:
        return "samples", f"{plural(row['samples'], 'sample')}; up to {_told(near, row['unit'])} apart"
    if row["crowded"]:
        return "beside others", "other operations ran on the GPU at the same time, and samples are of the whole GPU"
    if row["unit"] == "bytes":
        room = row["l2_bytes"] or 0
        if apart <= near + room:
            return "caches", f"L2 holds {size(room)}, which ncu empties before each launch"
        return None
    clock, under = row["clock_hz"], row["ncu_clock_hz"]
    if clock and under and apart <= near + abs(1 - clock / under) * max(first, second):
        return "clocks", f"{frequency(clock)} on average in samples, {frequency(under)} under ncu"
    return None


def _told(value: float, unit: str) -> str:
    return size(value) if unit == "bytes" else percent(value)
