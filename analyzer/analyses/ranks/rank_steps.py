"""Steps of a job, rank by rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

#: A detail is told of a cause from this part of it on.
MOST: Final = 0.5

_BUSY: Final = ("kernel", "communication", "memcpy", "memset")

TABLE: Final = Table(
    "rank_steps",
    "One step on one rank.",
    (
        Column("rank", pl.Int64, "The rank."),
        Column("step", pl.Int64, "The step, the same number on all ranks."),
        Column("kind", pl.String, "steady, warm-up, odd or cut."),
        Column("start_ns", pl.Int64, "Start by the first rank's clock, in the origin of its report."),
        Column("ns", pl.Int64, "Time of the step on the GPU."),
        Column("busy_ns", pl.Int64, "Time in which the GPU ran anything."),
        Column("compute_ns", pl.Int64, "The same without communication alone."),
        Column("wait_ns", pl.Int64, "Exposed waiting for other ranks."),
        Column("transfer_ns", pl.Int64, "Exposed transferring."),
        Column("unmatched_ns", pl.Int64, "Exposed communication of which waiting is not told."),
        Column("late_ns", pl.Int64, "By how much this rank fell behind, as the last to come to collectives."),
        Column("cause", pl.String, "The bucket with most of that; null where it was never late.", nullable=True),
        Column("cause_ns", pl.Int64, "How much of it that is.", nullable=True),
        Column("cost_ns", pl.Int64, "Exposed waiting of the other ranks for it, summed over them."),
        Column("detail", pl.String, "What most of the cause was in, where told: DataLoader.__next__.", nullable=True),
    ),
    purpose="each step of each rank: waits, lateness, cause",
    telling=("rank", "step", "ns", "busy_ns", "wait_ns", "late_ns", "cause"),
    job=True,
)


def rank_steps(job: Job) -> pl.DataFrame:
    """Time, waiting and lateness of each step on each rank.

    Definition: docs/definitions.md, section 11.

    Returns:
        :data:`TABLE`, by step and rank; empty where ranks repeat nothing.
    """
    own = offsets(job).select("member", "rank", "offset_ns")
    steps = pl.concat([job.steps, job.ledgers], how="horizontal").join(own, on="member", how="left")
    exposed = pl.concat(job.exposed.by_step).drop_nulls("step").rename({"step": "index"})
    steps = steps.join(exposed, on=["member", "index"], how="left")
    late = _late(job)
    told = (
        steps.join(late, on=["rank", "step"], how="left")
        .with_columns(
            start_ns=pl.col("start_ns") - pl.col("offset_ns") - job.origin_ns,
            ns=pl.col("end_ns") - pl.col("start_ns"),
            busy_ns=pl.sum_horizontal(*_BUSY),
            compute_ns=pl.sum_horizontal(*(bucket for bucket in _BUSY if bucket != "communication")),
            wait_ns=pl.col("exposed_wait_ns").fill_null(0),
            transfer_ns=pl.col("exposed_transfer_ns").fill_null(0),
        )
        .with_columns(pl.col("unmatched_ns", "late_ns", "cost_ns").fill_null(0))
    )
    return TABLE.select(told.sort("step", "rank"))


def offsets(job: Job) -> pl.DataFrame:
    """The ranks with the mean offset of their clock."""
    means = job.clocks.table.group_by("clock").agg(offset_ns=pl.col("offset_ns").mean().cast(pl.Int64))
    return job.ranks.join(means, on="clock", how="left").with_columns(pl.col("offset_ns").fill_null(0))


def _late(job: Job) -> pl.DataFrame:
    """Lateness by rank and step, with the bucket that has most of it, and what it cost the others."""
    late = job.lateness
    best = job.causes.sort("ns", "bucket", descending=[True, False]).group_by("rank", "step", maintain_order=True)
    named = best.agg(cause=pl.col("bucket").first(), cause_ns=pl.col("ns").first())
    sums = late.group_by("rank", "step").agg(late_ns=pl.col("new_ns").sum(), cost_ns=pl.col("cost_ns").sum())
    named = named.join(
        _details(job), left_on=["rank", "step", "cause"], right_on=["rank", "step", "bucket"], how="left"
    )
    most = pl.col("of_detail") >= MOST * pl.col("cause_ns")
    told = named.select("rank", "step", "cause", "cause_ns", detail=pl.when(most).then("detail"))
    return sums.join(told, on=["rank", "step"], how="left", nulls_equal=True)


def _details(job: Job) -> pl.DataFrame:
    """The largest detail of each bucket of a rank's step: rank, step, bucket, detail, of_detail (its time)."""
    best = job.details.sort("ns", "detail", descending=[True, False]).group_by("rank", "step", "bucket")
    return best.agg(pl.col("detail").first(), of_detail=pl.col("ns").first())
