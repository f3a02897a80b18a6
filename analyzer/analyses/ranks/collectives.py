"""Collectives of a job, rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

TABLE: Final = Table(
    "collectives",
    "One collective on one rank.",
    (
        Column("id", pl.Int64, "The collective, by first start; null where no other rank has it.", nullable=True),
        Column("match", pl.String, "How it was matched over ranks: id, seq or ordinal.", nullable=True),
        Column("kind", pl.String, "all_reduce, all_gather, reduce_scatter, all_to_all, broadcast, send, recv, …"),
        Column("group", pl.String, "Name of the process group or communicator.", nullable=True),
        Column("size", pl.Int64, "Ranks of the group.", nullable=True),
        Column("rank", pl.Int64, "The rank."),
        Column("device", pl.Int64, "The GPU.", nullable=True),
        Column("stream", pl.Int64, "The stream.", nullable=True),
        Column("start_ns", pl.Int64, "Start by the first rank's clock, in the origin of its report."),
        Column("dur_ns", pl.Int64, "Duration; wait_ns and transfer_ns sum to it."),
        Column("wait_ns", pl.Int64, "Until the last rank came.", nullable=True),
        Column("transfer_ns", pl.Int64, "After that.", nullable=True),
        Column("exposed_wait_ns", pl.Int64, "Waiting in which the GPU ran nothing else.", nullable=True),
        Column("exposed_transfer_ns", pl.Int64, "Transferring in which the GPU ran nothing else.", nullable=True),
        Column("bytes", pl.Int64, "Size as nccl-tests counts it, the larger of in and out.", nullable=True),
        Column("algbw_bytes_per_s", pl.Int64, "Bytes by the time of the transfer.", nullable=True),
        Column("busbw_bytes_per_s", pl.Int64, "That by the share that each link carries.", nullable=True),
        Column("last_rank", pl.Int64, "Who came last; null where clocks do not tell.", nullable=True),
        Column("lateness_ns", pl.Int64, "By how much it came later than the one before it.", nullable=True),
        Column("class", pl.String, "transfer-bound, skew-bound, mixed, or cannot tell."),
        Column("step", pl.Int64, "The step that it begins in.", nullable=True),
        Column("doubt_ns", pl.Int64, "How far clocks may shift what is waiting; 0 on one clock.", nullable=True),
        Column("shortest", pl.Boolean, "Whether bandwidth is by the shortest duration, since clocks do not tell."),
    ),
    purpose="each collective: waiting, transfer, bandwidth",
    telling=("id", "kind", "rank", "dur_ns", "wait_ns", "transfer_ns", "busbw_bytes_per_s", "last_rank", "class"),
    job=True,
)


#: Rows that are made at once.
_AT_ONCE: Final = 1 << 18


def collectives(job: Job) -> pl.DataFrame:
    """The collectives of all ranks.

    Definition: docs/definitions.md, section 11.

    Returns:
        :data:`TABLE`, by id and rank, those without a partner last.
    """
    order = job.found.order
    parts = [order[at : at + _AT_ONCE] for at in range(0, max(len(order), 1), _AT_ONCE)]
    return pl.concat([_told(job.rows_at(at), job) for at in parts])


def _told(rows: pl.DataFrame, job: Job) -> pl.DataFrame:
    told = rows.with_columns(
        id="match",
        match="how",
        start_ns=pl.col("corrected_ns") - job.origin_ns,
        shortest=pl.col("by_shortest").fill_null(value=False),
    )
    return TABLE.select(told)
