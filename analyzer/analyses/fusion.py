"""Chains of elementwise kernels that one kernel could do: what they move, and what one would."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import analysis, require
from kanalyze.analyses._fusible import chains
from kanalyze.analyses._lookup import gathered
from kanalyze.analyses._op_events import host_tree
from kanalyze.analyses._op_paths import ARROW
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

TABLE: Final = Table(
    "fusion",
    "One chain of elementwise kernels that follow each other on a stream, all its occurrences.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("chain", pl.String, "The operators that launched the kernels, in order."),
        Column("within", pl.String, "The operator around all of them; null where they are neighbours.", nullable=True),
        Column("elements", pl.Int64, "Elements of each result; null where shapes were not recorded.", nullable=True),
        Column("count", pl.Int64, "How often the chain occurs."),
        Column("kernels", pl.Int64, "Kernels of one occurrence."),
        Column("launches", pl.Int64, "Kernels of all occurrences; one fused kernel each would be `count`."),
        Column("total_ns", pl.Int64, "Sum of the kernels' durations."),
        Column(
            "gaps_ns",
            pl.Int64,
            "Time between the kernels of the occurrences, in which their stream had nothing to run.",
        ),
        Column("moved_bytes", pl.Int64, "What they read and write, from shapes and types.", nullable=True),
        Column(
            "fused_bytes",
            pl.Int64,
            "The least that fused kernels read and write: the inputs of the first operator and the result of the last.",
            nullable=True,
        ),
        Column(
            "fused_ns",
            pl.Int64,
            "The least time that they take: that of fused_bytes at the device's memory bandwidth; where shapes or "
            "bandwidth are not known, that of the longest kernel of each occurrence.",
        ),
        Column("saved_ns", pl.Int64, "At most so much less kernel time: total_ns without fused_ns."),
    ),
)

_KEYS: Final = ("device", "chain", "within", "elements")

_NS_PER_S: Final = 1_000_000_000


@analysis
def fusion(report: Report) -> pl.DataFrame:
    """Chains of elementwise kernels, those first that would save the most.

    Source: what a fusing compiler (torch.compile) does with pointwise operators; a trace does not say which result is
    whose input, so a chain is what could be fused if each kernel works on what the one before it made.

    Returns:
        :data:`TABLE`; empty where no two elementwise kernels follow each other.

    Raises:
        CannotTellError: The report has no operators or no kernels.
    """
    require(report, TABLE.name, "op")
    require(report, TABLE.name, "kernel")
    kernels = chains(report)
    if kernels.is_empty():
        return TABLE.empty()
    names = host_tree(report).rows.get_column("name").cast(pl.String)
    around = gathered(names, kernels.get_column("outermost")).alias("around")
    named = kernels.with_columns(pl.col("name").cast(pl.String), around)
    speeds = report.devices.select("device", speed="memory_bandwidth_bytes_per_s")
    each = _occurrences(named).join(speeds, on="device", how="left")
    rate = (pl.col("fused_bytes") * _NS_PER_S / pl.col("speed")).ceil().cast(pl.Int64)
    # a fused kernel takes no longer than the kernels do that it replaces
    timed = each.with_columns(fused_ns=pl.min_horizontal(pl.coalesce(rate, "longest_ns"), "total_ns"))
    sums = timed.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("kernels").first(),
        pl.col("kernels").sum().alias("launches"),
        *(pl.col(name).sum() for name in ("total_ns", "gaps_ns", "fused_ns")),
        *(_sum_or_null(name) for name in ("moved_bytes", "fused_bytes")),
    )
    found = sums.with_columns(saved_ns=pl.col("total_ns") - pl.col("fused_ns"))
    return TABLE.select(found).sort("saved_ns", *_KEYS, descending=[True, *(False for _ in _KEYS)], nulls_last=True)


def _occurrences(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per occurrence of a chain."""
    one = pl.col("outermost").n_unique() == 1
    # an operator that launched all of them by itself, or has others inside
    around = pl.when(one & (pl.col("around").first() != pl.col("name").first())).then(pl.col("around").first())
    idle = pl.col("start") - pl.col("end").cum_max().shift(1)
    known = ["read_bytes", "written_bytes"]
    all_known = pl.all_horizontal(pl.col(name).is_not_null().all() for name in known)
    first = pl.col("operator") == pl.col("operator").first()
    last = pl.col("operator") == pl.col("operator").last()
    return (
        kernels.group_by("chain", maintain_order=True)
        .agg(
            pl.col("device").first(),
            pl.col("name").str.join(ARROW).alias("text"),
            around.alias("within"),
            pl.col("elements").first(),
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("dur_ns").max().alias("longest_ns"),
            idle.clip(lower_bound=0).sum().alias("gaps_ns"),
            pl.when(all_known).then(pl.sum_horizontal(pl.col(name).sum() for name in known)).alias("moved_bytes"),
            pl.when(all_known)
            .then(pl.col("read_bytes").filter(first).sum() + pl.col("written_bytes").filter(last).sum())
            .alias("fused_bytes"),
        )
        .drop("chain")
        .rename({"text": "chain"})
    )


def _sum_or_null(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().all()).then(pl.col(name).sum()).alias(name)
