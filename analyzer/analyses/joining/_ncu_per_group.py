"""Counters of each kernel group, from its longest launch that ncu measured, and its best advice."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.counters.advice import advice, kernel_facts
from kanalyze.analyses.joining._kernel_groups import (
    GROUP_KEYS,
    grouped_kernels,
    kernel_groups,
)
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.schema import Column

if TYPE_CHECKING:
    from kanalyze.report import Report


#: Columns of the tables `counters` and `roofline` that are shown beside the time.
_FACTS: Final = (
    ("registers_per_thread", pl.Int32, "Registers that a thread uses."),
    ("static_shared_bytes", pl.Int64, "Static shared memory of a block."),
    ("dynamic_shared_bytes", pl.Int64, "Dynamic shared memory of a block."),
    ("compute_share", pl.Float64, "Compute (SM) Throughput of its peak."),
    ("memory_share", pl.Float64, "Memory Throughput of its peak."),
    ("dram_share", pl.Float64, "DRAM Throughput of its peak."),
    ("dram_bytes_per_s", pl.Float64, "Achieved bandwidth."),
    ("occupancy_share", pl.Float64, "Theoretical Occupancy."),
    ("achieved_occupancy_share", pl.Float64, "Achieved Occupancy."),
    ("limiter", pl.String, "What limits the resident blocks."),
    ("waves", pl.Float64, "Waves Per SM."),
    ("top_stall", pl.String, "What warps wait for longest."),
    ("achieved_flop_per_s", pl.Float64, "Work by the duration."),
    ("bound", pl.String, "What takes longer at its peak: memory or compute."),
    ("roof_share", pl.Float64, "The least time by the duration: 1 is on the roof."),
)

MEASURED: Final = (
    Column("event_id", pl.Int64, "Its longest launch that ncu measured, in the tables of that report.", nullable=True),
    Column("ncu_count", pl.Int64, "Launches that ncu measured.", nullable=True),
    Column("ncu_dur_ns", pl.Int64, "The longest of them, alone and under replay.", nullable=True),
    *(Column(name, dtype, f"{doc} Of that launch.", nullable=True) for name, dtype, doc in _FACTS),
)  # fmt: skip

RULES: Final = (
    Column("best_rule", pl.String, "The rule that can save most of the whole duration.", nullable=True),
    Column("best_source", pl.String, "Whose rule it is: ncu or kanalyze.", nullable=True),
    Column(
        "best_speedup_share",
        pl.Float64,
        "The part of the duration that it can save at most: its estimate, but no more than the roof leaves.",
        nullable=True,
    ),
    Column("best_from", pl.String, "Which of the two that is: estimate or roof.", nullable=True),
)


@once_per_report
def measured_groups(report: Report) -> pl.DataFrame:
    """The kernel groups that ncu measured.

    Columns: group and :data:`GROUP_KEYS`, :data:`MEASURED`, :data:`RULES`.
    """
    launches = grouped_kernels(report).sort("dur_ns", "event_id", descending=[True, False], nulls_last=True)
    longest = launches.group_by("group", maintain_order=True).agg(
        pl.col("event_id").first(), ncu_dur_ns=pl.col("dur_ns").first(), ncu_count=pl.len().cast(pl.Int64)
    )
    numbers = kernel_groups(report).select("group", *GROUP_KEYS)
    facts = kernel_facts(report).select("event_id", *(name for name, _, _ in _FACTS))
    best = (
        advice(report)
        .filter(pl.col("possible_share").is_not_null())
        .sort("possible_share", "speedup_share", descending=True, maintain_order=True)
        .group_by("event_id", maintain_order=True)
        .agg(
            best_rule=pl.col("rule").first(),
            best_source=pl.col("source").first(),
            best_speedup_share=pl.col("possible_share").first(),
            best_from=pl.col("possible_from").first(),
        )
    )
    found = numbers.join(longest, on="group", how="left")
    return found.join(facts, on="event_id", how="left").join(best, on="event_id", how="left")
