"""Kernels by launching operator, with the forward operator that caused it."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import forward_rows, inherited, operator_paths
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.columns import gathered
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

TABLE: Final = Table(
    "op_kernels",
    "One kernel, copy or memset by name, as one operator launched it when it was called by the same others.",
    (
        Column(
            "name",
            pl.String,
            "The operator that launched it, by what the trace names for it, or else the innermost one around the call "
            "(that of a CUDA graph's kernels launched the graph); an annotation where there was no operator; null: "
            "neither.",
            nullable=True,
        ),
        Column(
            "path",
            pl.String,
            "The operators around that one, outermost first, and itself, such as aten::square → aten::pow.",
            nullable=True,
        ),
        Column("kernel", pl.String, "The kernel, copy or memset.", nullable=True),
        Column("kind", pl.Enum(DEVICE_KINDS), "What it is: " + ", ".join(DEVICE_KINDS) + "."),
        Column("count", pl.Int64, "How many."),
        Column("total_ns", pl.Int64, "Sum of their durations, overlaps counted as often as they occur."),
        Column("avg_ns", pl.Float64, "Mean duration."),
        Column("exclusive_ns", pl.Int64, "Device time, each instant counted once; all rows sum to the busy time."),
        Column("share", pl.Float64, "Part of the sum of exclusive_ns."),
        Column(
            "forward",
            pl.String,
            "For a backward operator the forward one that caused it, by torch's link or autograd's number.",
            nullable=True,
        ),
        Column("forward_path", pl.String, "The operators around the forward one, and itself.", nullable=True),
    ),
    purpose="which operator launched which kernel",
    telling=("name", "count", "total_ns", "share", "path"),
    tools=recorders("op"),
)

_KEYS: Final = ("name", "path", "kernel", "kind", "forward", "forward_path")


@analysis
def op_kernels(report: Report) -> pl.DataFrame:
    """The device operations in scope by launching operator, the longest total time first.

    Operations that overlap the window count in full, whenever they were launched.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report lacks operators, or all device operations.
    """
    require(report, TABLE.name, "op")
    require(report, TABLE, *DEVICE_KINDS)
    rows, ran = host_tree(report).rows, launched_work(report)
    numbers, texts = operator_paths(rows)
    cause = inherited(rows, forward_rows(report))
    by, caused_by = ran.get_column("operator"), gathered(cause, ran.get_column("operator"))
    known = ran.select("kind", "dur_ns", "exclusive_ns", kernel=pl.col("name")).with_columns(
        gathered(rows.get_column("name"), by).alias("name"),
        gathered(numbers, by).alias("number"),
        gathered(rows.get_column("name"), caused_by).alias("forward"),
        gathered(numbers, caused_by).alias("forward_number"),
    )
    sums = known.group_by("name", "number", "kernel", "kind", "forward", "forward_number").agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("dur_ns").sum().alias("total_ns"),
        pl.col("dur_ns").mean().alias("avg_ns"),
        pl.col("exclusive_ns").sum(),
    )
    for number, text in (("number", "path"), ("forward_number", "forward_path")):
        sums = sums.join(texts.rename({"path": number, "text": text}), on=number, how="left")
    whole = pl.col("exclusive_ns").sum()
    share = pl.when(whole > 0).then(pl.col("exclusive_ns") / whole).otherwise(0.0)
    found = TABLE.select(sums.with_columns(share.alias("share")))
    return found.sort("exclusive_ns", "total_ns", *_KEYS, descending=[True, True, *(False for _ in _KEYS)])
