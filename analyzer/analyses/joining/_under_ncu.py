"""Differences of what ncu measures: by its conditions, and from what nsys sampled of the GPU's counters meanwhile.

ncu fixes clocks, empties caches and runs kernels one by one. Definitions: docs/counters.md, One kernel, three tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters._metrics import metric_columns
from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.counters.stalls import stalls
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.joining._difference_reasons import COUNTED
from kanalyze.analyses.joining._kernel_groups import GROUP_KEYS, grouped_kernels, kernel_groups
from kanalyze.analyses.joining._match_kernels import same_kernels
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import beside
from kanalyze.report import Report
from kanalyze.units import frequency, percent, plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.analyses.joining._difference_reasons import Explained, Row, Spread

#: Stall reasons that grow when caches are cold: data, instructions, constants.
_COLD: Final = ("long_scoreboard", "no_instruction", "imc_miss")


@dataclass(frozen=True)
class UnderNcu:
    """Explains why a duration measured by ncu differs from the one recorded by a tracing tool.

    Attributes:
        tool: The tracing tool.
        spread: The usual spread of launches of one kernel in its recording.
        clock_hz: The GPU's maximum clock rate.
        l2_bytes: Size of the L2 cache.
        dram_bytes_per_s: Bandwidth of the device memory.
        selective: Whether ncu was told to measure only some launches; None if its command is unknown.
    """

    tool: str
    spread: Spread
    clock_hz: int | None
    l2_bytes: int | None
    dram_bytes_per_s: int | None
    selective: bool | None

    @classmethod
    def between(cls, base: Report, ncu: Report, spread: Spread) -> UnderNcu:
        """Collects it from two reports of one program."""

        def most(name: str) -> Any:  # noqa: ANN401 - a number, or None where neither report has one
            found = base.devices.get_column(name).max()
            return ncu.devices.get_column(name).max() if found is None else found

        return cls(
            tool=base.meta.tool,
            spread=spread,
            clock_hz=most("clock_hz"),
            l2_bytes=most("l2_bytes"),
            dram_bytes_per_s=most("memory_bandwidth_bytes_per_s"),
            selective=ncu.meta.selective,
        )

    def of(self, row: Row) -> Explained | None:
        """The reason why this row's figures differ; None if unknown."""
        if row["figure"] == "duration":
            return self.duration(row)
        fewer = row["figure"] in COUNTED and row["first"] is not None and row["second"] <= row["first"]
        return self.fewer(row) if fewer else None

    def fewer(self, row: Row) -> Explained | None:
        """The reason why ncu measured fewer launches; None if it was told to measure all."""
        if self.selective is False:
            return None
        unknown = "; its command is not known" if self.selective is None else ""
        return "filter", f"{row['second']:,.0f} of {row['first']:,.0f}{unknown}"

    def duration(self, row: Row) -> Explained | None:
        """The reason why the durations of a row differ; None if unknown."""
        low, high = self.spread.around(row)
        found = row["second"]
        if low <= found <= high:
            return "spread", f"{time(low)} to {time(high)} by {self.tool}"
        return self._longer(row, high) if found > high else self._shorter(row, low)

    def _longer(self, row: Row, high: float) -> Explained | None:
        clock, waiting = row["sm_clock_hz"], row["cold_share"]
        if clock is None or waiting is None or self.clock_hz is None:
            return "replay", "ncu's report has no clocks, or not what warps waited for"
        slower = max(self.clock_hz / clock, 1.0)
        clocks = f"{frequency(clock)} under ncu, up to {frequency(self.clock_hz)} without"
        if slower == 1:
            clocks = f"{frequency(clock)} under ncu, no less than the GPU's {frequency(self.clock_hz)}"
        if row["second"] <= high * slower:
            return "clocks", f"{clocks}: up to {time(high * slower)}"
        cold = waiting * row["second"]
        if row["second"] > high * slower + cold:
            return None
        waits = f"{percent(waiting)} of its {time(row['second'])} waiting for memory, instructions and constants"
        return "caches", f"{waits}; {clocks}: up to {time(high * slower + cold)}"

    def _shorter(self, row: Row, low: float) -> Explained | None:
        if row["faulted"]:
            return "page faults", "managed memory moved while it ran"
        if row["crowded"]:
            return "beside others", "other operations ran on the GPU at the same time"
        moved = min(row["dram_bytes"] or 0, self.l2_bytes or 0)
        if self.dram_bytes_per_s and low - row["second"] <= 1e9 * moved / self.dram_bytes_per_s:
            written = f"up to {size(moved)} that others left in L2 need not be written back"
            return "caches", f"{written}, at {rate(self.dram_bytes_per_s)}"
        return None


@once_per_report
def measuring(ncu: Report) -> pl.DataFrame:
    """Conditions of measuring by kernel group of ncu: group, sm_clock_hz (least), cold_share and dram_bytes (most)."""
    waits = pl.col("share").filter(pl.col("reason").is_in(_COLD))
    cold = stalls(ncu).group_by("event_id").agg(cold_share=waits.sum())
    facts = kernel_facts(ncu).select("event_id", "sm_clock_hz", "dram_bytes")
    each = grouped_kernels(ncu).join(facts, on="event_id", how="left").join(cold, on="event_id", how="left")
    return each.group_by("group").agg(
        pl.col("sm_clock_hz").min(), pl.col("cold_share").max().clip(0, 1), pl.col("dram_bytes").max()
    )


@once_per_report
def disturbed(base: Report) -> pl.DataFrame:
    """Disturbances by kernel group of the program: group, faulted (memory migrated meanwhile), crowded (others ran)."""
    work = operations(base)
    unified = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    faults = base.kind("fault").select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
    moves = pl.concat([work.filter(unified).select("start", "end"), faults])
    placed = beside(grouped_kernels(base), work.sort("event_id"), "start", "end")
    start, end = placed.get_column("start"), placed.get_column("end")
    ours = work.filter(~unified).partition_by("device")
    shared = [intervals.subtract(intervals.union(own), intervals.alone(own)) for own in ours]
    spans = intervals.union(pl.concat([moves.clear(), *shared]))
    told = placed.with_columns(
        faulted=intervals.overlap(start, end, intervals.union(moves)) > 0,
        crowded=intervals.overlap(start, end, spans) > 0,
    )
    return told.group_by("group").agg(pl.col("faulted", "crowded").any())


#: Metrics of ncu that figures are made of.
_METRICS: Final = (
    "dram__bytes_read.sum", "dram__bytes_write.sum", "sm__cycles_active.avg", "sm__cycles_elapsed.max",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed", "sm__cycles_elapsed.avg.per_second",
)  # fmt: skip
_READ, _WRITTEN, _ACTIVE, _ELAPSED, _TENSOR, _CLOCK = map(pl.col, _METRICS)

#: The sampled counter of each figure, and what ncu tells of it.
_SOURCES: Final = {
    "DRAM read": ("dram_read_share", _READ),
    "DRAM written": ("dram_write_share", _WRITTEN),
    "SMs active": ("sms_active_share", _ACTIVE / _ELAPSED),
    "tensor cores active": ("tensor_active_share", _TENSOR / 100),
}

#: The figures, with their units; bytes are per launch.
FIGURES: Final = {name: "bytes" if name.startswith("DRAM") else "share" for name in _SOURCES}

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
    placed = grouped_kernels(report).select("event_id", "group")
    work = exclusive_operations(report).select("event_id", "device", "start", "end").join(placed, on="event_id")
    bandwidths = dict(report.devices.select("device", "memory_bandwidth_bytes_per_s").iter_rows())
    found = []
    for device, grid in grids(report).items():
        own = work.filter(pl.col("device") == device)
        launches = own.group_by(key="group").agg(launches=pl.len())
        told = means(grid, own.select("start", "end", key="group")).join(launches, on="key")
        peak = pl.lit(bandwidths.get(device), dtype=pl.Float64) * pl.col("total_ns") / 1e9 / pl.col("launches")
        shares = {
            name: pl.col(column) * (peak if FIGURES[name] == "bytes" else 1) for name, (column, _) in _SOURCES.items()
        }
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        found.append(
            told.filter(enough).select(
                "samples", **shares, group="key", clock_hz="sm_clock_hz", percent_bytes=_STEP * peak
            )
        )
    return groups.drop("device").join(pl.concat(found), on="group")


def _of_ncu(report: Report) -> pl.DataFrame:
    """The same figures of ncu's kernel groups, means over the launches that it measured: group, figures, clock."""
    each = grouped_kernels(report).join(metric_columns(report, _METRICS), on="event_id")
    figures = {f"{name}_ncu": told for name, (_, told) in _SOURCES.items()} | {"ncu_clock_hz": _CLOCK}
    return each.group_by("group").agg(value.mean().alias(name) for name, value in figures.items())


def why_apart(row: Row) -> Explained | None:
    """The reason why samples and ncu differ in a row of :func:`sampled_rows`; None if unknown."""
    first, second = row["first"], row["second"]
    apart, near = abs(second - first), _APART * max(first, second) + row["step"]
    if apart <= near:
        most = size(near) if row["unit"] == "bytes" else percent(near)
        return "samples", f"{plural(row['samples'], 'sample')}; up to {most} apart"
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
