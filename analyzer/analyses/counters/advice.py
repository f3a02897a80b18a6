"""Advice on the kernels that ncu measured: its own rules, unchanged, and ours, each with its evidence."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.counters._kernel_rules import RULES
from kanalyze.analyses.counters._metrics import require_counters
from kanalyze.analyses.counters.counters import counters
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.device._operations import families
from kanalyze.analyses.shared.analysis import analysis, once_per_report
from kanalyze.columns import product
from kanalyze.report import Report
from kanalyze.schema import Column, Table

#: Kernel families that could use tensor cores.
_PRODUCTS: Final = ("gemm", "convolution", "attention")

#: The source of the possible saving: the rule's estimate, or the kernel's distance to its roof.
FROM_ESTIMATE: Final = "estimate"
FROM_ROOF: Final = "roof"

CAPPED: Final = (
    Column(
        "possible_share",
        pl.Float64,
        "For a global estimate: the part of the duration that can be saved at most, which is the estimate, but no more "
        "than the roof leaves, 1 - roof_share, for the work and the bytes that the kernel has.",
        nullable=True,
    ),
    Column(
        "possible_from",
        pl.String,
        f"Which of the two that is: {FROM_ESTIMATE} or {FROM_ROOF}.",
        nullable=True,
    ),
)

TABLE: Final = Table(
    "advice",
    "One thing worth knowing about one kernel, by a rule of ncu or one of ours.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`.", nullable=True),
        Column("source", pl.String, "Whose rule it is: ncu or kanalyze."),
        Column("rule", pl.String, "Name of the rule."),
        Column("kind", pl.String, "What it is: optimization, information, warning, error."),
        Column("sentence", pl.String, "What was found."),
        Column("remedy", pl.String, "What to do about it; null where the sentence of ncu says so.", nullable=True),
        Column("scope", pl.String, "What the estimate is of: global (the duration) or local.", nullable=True),
        Column(
            "speedup_share", pl.Float64, "The part of it that the rule estimates can be saved, 0..1.", nullable=True
        ),
        *CAPPED,
        Column(
            "at_stake_ns", pl.Int64, "For a global estimate: possible_share of the kernel's duration.", nullable=True
        ),
        Column("evidence", pl.String, "The counters that prove it, for our rules.", nullable=True),
    ),
    purpose="what to do about each kernel, with estimates",
    telling=("rule", "speedup_share", "at_stake_ns"),
    counted=True,
)


@analysis
def advice(report: Report) -> pl.DataFrame:
    """All advice on the kernels, the largest possible gain first; local estimates come after global ones.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, TABLE)
    # the share of the duration above the roof; of the memory roof alone if the work was not collected
    room = (1 - pl.coalesce("roof_share", "dram_share")).clip(0, 1)
    kernels = kernel_facts(report).select("event_id", "name", "device", "dur_ns", room=room)
    ours = pl.DataFrame(_ours(report), schema=_OURS, orient="row")
    theirs = report.table("rule_results").select(
        "event_id", "rule", pl.col("kind").cast(pl.String), "scope", "speedup_share", sentence="message"
    )
    every = pl.concat(
        [ours.with_columns(source=pl.lit("kanalyze")), theirs.with_columns(source=pl.lit(report.meta.tool))],
        how="diagonal",
    ).join(kernels, on="event_id")
    whole = (pl.col("scope") == "global") & pl.col("speedup_share").is_not_null()
    roof = pl.col("room") < pl.col("speedup_share")
    capped = every.with_columns(
        possible_share=pl.when(whole).then(pl.min_horizontal("speedup_share", "room")),
        possible_from=pl.when(whole).then(pl.when(roof).then(pl.lit(FROM_ROOF)).otherwise(pl.lit(FROM_ESTIMATE))),
    ).with_columns(at_stake_ns=pl.col("possible_share") * pl.col("dur_ns"))
    order = ["at_stake_ns", "speedup_share", "event_id", "source", "rule", "sentence"]
    return TABLE.select(capped.sort(order, descending=[True, True, *(False for _ in order[2:])], nulls_last=True))


_OURS: Final = {
    "event_id": pl.Int64,
    **dict.fromkeys(("rule", "kind", "sentence", "remedy", "scope"), pl.String),
    "speedup_share": pl.Float64,
    "evidence": pl.String,
}


@once_per_report
def kernel_facts(report: Report) -> pl.DataFrame:
    """The columns of `counters` and `roofline`, with blocks (of the grid), family, product (if a matrix product)."""
    found = counters(report)
    known = ["event_id", *(name for name in roofline(report).columns if name not in found.columns)]
    beside = found.join(roofline(report).select(known), on="event_id", how="left", maintain_order="left")
    blocks = product(*(pl.col(f"grid_{axis}") for axis in "xyz"))
    named = beside.with_columns(families(beside.get_column("name")), blocks=blocks)
    return named.with_columns(product=pl.col("family").is_in(_PRODUCTS))


def _ours(report: Report) -> list[tuple[object, ...]]:
    """The findings of our own rules on each kernel."""
    rows = kernel_facts(report).to_dicts()
    return [
        (
            row["event_id"],
            rule.name,
            "optimization" if (estimate := rule.estimate(row)) is not None else "information",
            rule.sentence(row),
            rule.remedy,
            None if estimate is None else rule.scope,
            estimate,
            rule.evidence(row),
        )
        for row in rows
        for rule in RULES
        if rule.found(row)
    ]
