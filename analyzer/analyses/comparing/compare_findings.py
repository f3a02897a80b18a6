"""Findings before and after: those that went, those that came, and the time at stake."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import CERTAINTY, TIMES, by_key, by_size
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.comparing._pair import Pair, Side

STAYS: Final = "stays"
NEW: Final = "new"
GONE: Final = "gone"

TABLE: Final = Table(
    "compare_findings",
    "The findings of one rule in base and in new, with the time that they take of an iteration.",
    (
        Column("rule", pl.String, "Its name."),
        Column("change", pl.Enum([STAYS, NEW, GONE]), "stays; new (no run of base has it); gone (no run of new)."),
        Column("base_runs", pl.Int64, "Runs of base that have it."),
        Column("new_runs", pl.Int64, "Runs of new that have it."),
        *TIMES,
        *CERTAINTY[:-1],
        Column(
            "changed",
            pl.Boolean,
            "Whether its time changed by more than the least effect and more than noise; of what is new or gone, "
            "whether every run of the other side has it.",
        ),
        Column("headline", pl.String, "The largest of them: of new, or of base where it is gone."),
    ),
    purpose="findings that went, came or stay",
    telling=("change", "rule", "base_ns", "new_ns", "headline"),
    sides=True,
)


def compare_findings(pair: Pair) -> pl.DataFrame:
    """The findings of both sides, by rule.

    Returns:
        :data:`TABLE`, the largest difference first.
    """
    frame = by_key(pair, lambda one: one.findings, ("rule",), "at_stake_ns")
    for side, name in ((pair.base, "base"), (pair.new, "new")):
        frame = frame.join(_of_side(side, name), on="rule", how="left", maintain_order="left")
    frame = frame.with_columns(pl.col("base_runs", "new_runs").fill_null(0))
    base, new = pl.col("base_runs"), pl.col("new_runs")
    change = pl.when(base == 0).then(pl.lit(NEW)).when(new == 0).then(pl.lit(GONE)).otherwise(pl.lit(STAYS))
    every = (base == len(pair.base.digests)) | (new == len(pair.new.digests))
    frame = frame.with_columns(
        pl.col("changed") & every, change=change, headline=pl.coalesce("new_headline", "base_headline")
    )
    return by_size(TABLE.select(frame), "rule")


def _of_side(side: Side, name: str) -> pl.DataFrame:
    """The rules of the findings of a side: how many runs have each, and the headline of the largest."""
    every = pl.concat([one.findings.with_columns(run=pl.lit(run)) for run, one in enumerate(side.digests)])
    runs = pl.col("run").n_unique().cast(pl.Int64)
    largest = pl.col("headline").sort_by("at_stake_ns", "headline").last()
    return every.group_by("rule").agg(runs.alias(f"{name}_runs"), largest.alias(f"{name}_headline"))
