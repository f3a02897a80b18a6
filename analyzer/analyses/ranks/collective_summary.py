"""Collectives by kind, group and size."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.communication._matching import POINT_TO_POINT
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

TABLE: Final = Table(
    "collective_summary",
    "The collectives of one kind, group and size, over all ranks and steps.",
    (
        Column("kind", pl.String, "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send and recv, …"),
        Column("group", pl.String, "Name of the process group or communicator.", nullable=True),
        Column("size", pl.Int64, "Ranks of the group.", nullable=True),
        Column("bytes", pl.Int64, "Size of each, as nccl-tests counts it.", nullable=True),
        Column("count", pl.Int64, "Collectives, each once; of those without a partner as many as a rank has at most."),
        Column("rank_ns", pl.Int64, "Durations, summed over ranks."),
        Column("wait_ns", pl.Int64, "Waiting, summed over ranks."),
        Column("transfer_ns", pl.Int64, "Transferring, summed over ranks."),
        Column("exposed_wait_ns", pl.Int64, "Waiting in which a GPU ran nothing else, summed over ranks."),
        Column("exposed_transfer_ns", pl.Int64, "Transferring in which a GPU ran nothing else, summed over ranks."),
        Column("busbw_bytes_per_s", pl.Int64, "Median bus bandwidth.", nullable=True),
        Column("best_share", pl.Float64, "That as a share of the best that this group reached.", nullable=True),
        Column("skew_bound", pl.Int64, "Collectives that are skew-bound."),
        Column("transfer_bound", pl.Int64, "Collectives that are transfer-bound."),
        Column("mixed", pl.Int64, "Collectives that are neither."),
        Column("cannot_tell", pl.Int64, "Collectives of which clocks or missing ranks do not let it be told."),
    ),
    purpose="collectives by kind, group and size",
    telling=("kind", "bytes", "count", "wait_ns", "transfer_ns", "busbw_bytes_per_s", "best_share", "group", "size"),
    job=True,
)

_CLASSES: Final = ("skew-bound", "transfer-bound", "mixed", "cannot tell")


def collective_summary(job: Job) -> pl.DataFrame:
    """Sums over collectives of one kind, group and size, and their bandwidth.

    Definition: docs/definitions.md, section 11.

    Returns:
        :data:`TABLE`, the ones that take most of all ranks' time first.
    """
    keys = ["kind", "group", "size", "bytes"]
    said = job.collected.calls.select("kind", "group", "size").with_columns(pl.col("kind", "group").cast(pl.String))
    whole = pl.concat([job.matches.drop("size"), said[job.matches.get_column("call")]], how="horizontal")
    alone = job.rows_at(job.found.order[job.found.first[-1] :])
    alone = alone.select(pl.col("kind", "group").cast(pl.String), "size", "bytes", "rank", rank_ns="dur_ns")
    whole = pl.concat([whole, alone], how="diagonal")
    pairs = pl.when(pl.col("kind").is_in(POINT_TO_POINT)).then(pl.lit("send and recv")).otherwise("kind")
    names = {name: name.replace("-", "_").replace(" ", "_") for name in _CLASSES}
    told = whole.group_by(pairs.alias("kind"), *keys[1:]).agg(
        pl.col("rank_ns", "wait_ns", "exposed_wait_ns", "exposed_transfer_ns").sum(),
        transfer_ns=(pl.col("rank_ns") - pl.col("wait_ns")).sum(),
        alone=pl.col("rank").drop_nulls().unique_counts().max().fill_null(0).cast(pl.Int64),
        busbw_bytes_per_s=pl.col("busbw_bytes_per_s").median().cast(pl.Int64),
        **{column: (pl.col("class") == name).sum() for name, column in names.items()},
    )
    told = told.with_columns(cannot_tell=pl.col("cannot_tell") + pl.col("alone"))
    told = told.with_columns(count=pl.sum_horizontal(*names.values()))
    best = pl.col("busbw_bytes_per_s").max().over("group", "size")
    told = told.with_columns(best_share=pl.col("busbw_bytes_per_s") / best)
    return TABLE.select(told.sort("rank_ns", *keys, descending=[True, False, False, False, False]))
