"""Warp stalls by kernel and reason."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.counters._metrics import LATENCY, REASONS, measured_kernels, ratio, stall_metric
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.report import Report
from kanalyze.schema import Column, Table

TABLE: Final = Table(
    "stalls",
    "One reason for which warps of one kernel wait, as ncu measured it.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column("reason", pl.String, "What is waited for, in ncu's words: " + ", ".join(REASONS) + "."),
        Column("cycles_per_instruction", pl.Float64, "Cycles that a warp spends so, for each instruction issued."),
        Column(
            "share",
            pl.Float64,
            "Their part of the cycles between two instructions of a warp, as ncu counts it: reasons are counted in "
            "passes of their own, and can add up to more than 1.",
            nullable=True,
        ),
        Column("meaning", pl.String, "What a warp waits for then."),
    ),
    purpose="what the warps of each kernel wait for",
    counted=True,
)


@analysis
def stalls(report: Report) -> pl.DataFrame:
    """The stall reasons of each kernel, the longest first; reasons that do not occur are omitted.

    Returns:
        :data:`TABLE`; empty if the section WarpStateStats was not collected, or only its summary is known.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    metrics = {stall_metric(reason): reason for reason in REASONS}
    wide = measured_kernels(report, TABLE, [*metrics, LATENCY])
    long = wide.unpivot(list(metrics), index=["event_id", "name", LATENCY], variable_name="metric", value_name="cycles")
    told = long.filter(pl.col("cycles") > 0)
    reason = pl.col("metric").replace_strict(metrics, return_dtype=pl.String)
    meaning = reason.replace_strict({name: text for name, (text, _) in REASONS.items()}, return_dtype=pl.String)
    found = told.with_columns(
        reason=reason, meaning=meaning, share=ratio("cycles", LATENCY), cycles_per_instruction="cycles"
    )
    order = ["event_id", "cycles_per_instruction", "reason"]
    return TABLE.select(found.sort(order, descending=[False, True, False]))
