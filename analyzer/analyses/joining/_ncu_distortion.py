"""Distortion of a kernel's duration by profiling with ncu: fixed clocks, flushed caches, serialised kernels.

Definitions: docs/counters.md, One kernel, three tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters.advice import kernel_facts
from kanalyze.analyses.counters.stalls import stalls
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.joining._kernel_groups import GROUP_KEYS, kernel_groups, kernels_in
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import beside
from kanalyze.units import frequency, percent, rate, size, time

if TYPE_CHECKING:
    from kanalyze.analyses.joining._difference_reasons import Explained, Spread
    from kanalyze.report import Report

    Row = dict[str, Any]

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
    def of(cls, base: Report, ncu: Report, spread: Spread) -> UnderNcu:
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
    each = kernels_in(ncu).join(facts, on="event_id", how="left").join(cold, on="event_id", how="left")
    sums = each.group_by(GROUP_KEYS).agg(
        pl.col("sm_clock_hz").min(), pl.col("cold_share").max().clip(0, 1), pl.col("dram_bytes").max()
    )
    groups = kernel_groups(ncu).select("group", *GROUP_KEYS)
    return groups.join(sums, on=GROUP_KEYS, nulls_equal=True).drop(GROUP_KEYS)


@once_per_report
def disturbed(base: Report) -> pl.DataFrame:
    """Disturbances by kernel group of the program: group, faulted (memory migrated meanwhile), crowded (others ran)."""
    work = operations(base)
    unified = pl.col("detail").cast(pl.String).str.starts_with("Unified").fill_null(value=False)
    moves = pl.concat([work.filter(unified).select("start", "end"), _faults(base)])
    kernels = kernels_in(base)
    placed = beside(kernels, work.sort("event_id"), "start", "end")
    start, end = placed.get_column("start"), placed.get_column("end")
    ours = work.filter(~unified).partition_by("device")
    shared = [intervals.subtract(intervals.union(own), intervals.alone(own)) for own in ours]
    spans = intervals.union(pl.concat([moves.clear(), *shared]))
    told = placed.with_columns(
        faulted=intervals.overlap(start, end, intervals.union(moves)) > 0,
        crowded=intervals.overlap(start, end, spans) > 0,
    )
    sums = told.group_by(GROUP_KEYS).agg(pl.col("faulted", "crowded").any())
    groups = kernel_groups(base).select("group", *GROUP_KEYS)
    return groups.join(sums, on=GROUP_KEYS, nulls_equal=True).drop(GROUP_KEYS)


def _faults(base: Report) -> pl.DataFrame:
    return base.kind("fault").select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
