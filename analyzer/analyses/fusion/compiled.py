"""Kernels compiled by Triton and inductor, with their time on the GPU."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.shared.analysis import analysis
from kanalyze.model import COMPILED_KERNELS
from kanalyze.report import Report
from kanalyze.schema import Column, Table

TABLE: Final = Table(
    "compiled",
    "One kernel that Triton or inductor compiled, and its launches in the nsys report of the same capture.",
    (
        *COMPILED_KERNELS.columns,
        Column(
            "variants", pl.Int64, "Compiled kernels of this name; launches of one name are counted for all of them."
        ),
        Column("count", pl.Int64, "Launches of a kernel of this name."),
        Column("total_ns", pl.Int64, "Their time on the GPU."),
        Column("avg_ns", pl.Float64, "Their mean; null where there are none.", nullable=True),
    ),
    purpose="kernels of Triton and inductor, with launches",
    telling=("count", "total_ns", "registers", "spills", "shared_memory_bytes"),
    tools=("capture",),
)


@analysis
def compiled(report: Report) -> pl.DataFrame:
    """The compiled kernels of a capture, the longest total time first; last, by name, those that were never launched.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report is no capture of ``kanalyze collect``, or one without a torch pass.
    """
    found = report.table(COMPILED_KERNELS.name)
    launched = (
        report.seen("kernel")
        .group_by(pl.col("name").cast(pl.String))
        .agg(
            pl.len().cast(pl.Int64).alias("count"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("dur_ns").mean().alias("avg_ns"),
        )
    )
    joined = found.with_columns(pl.len().over("name").cast(pl.Int64).alias("variants")).join(
        launched, on="name", how="left"
    )
    filled = joined.with_columns(pl.col("count", "total_ns").fill_null(0))
    return TABLE.select(filled.sort("total_ns", "name", "num_warps", "hash", descending=[True, False, False, False]))
