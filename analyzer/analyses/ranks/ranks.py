"""Ranks of a job, each with the ledger of a typical step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

_PARTS: Final = tuple(bucket for bucket in BUCKETS if bucket != "communication")

TABLE: Final = Table(
    "ranks",
    "One rank: the sum of its steps, by where their time went.",
    (
        Column("rank", pl.Int64, "The rank."),
        Column("host", pl.String, "The machine, where the reports tell it.", nullable=True),
        Column("device", pl.Int64, "The GPU.", nullable=True),
        Column("steps", pl.Int64, "Steps that are summed: those steady or odd on all ranks, else all of them."),
        Column("ns", pl.Int64, "Their time; the columns below sum to it exactly."),
        Column("wait_ns", pl.Int64, "Exposed waiting for other ranks."),
        Column("transfer_ns", pl.Int64, "Exposed transferring."),
        Column("unmatched_ns", pl.Int64, "Exposed communication of which waiting is not told."),
        *(Column(f"{bucket}_ns", pl.Int64, f"The bucket {bucket} of the ledger.") for bucket in _PARTS),
        Column("hidden_ns", pl.Int64, "Communication beside other kernels, which is in kernel_ns."),
        Column("late_ns", pl.Int64, "By how much this rank fell behind, as the last to come to collectives."),
        Column("cost_ns", pl.Int64, "Exposed waiting of the other ranks for it, summed over them."),
        Column("report", pl.String, "The report."),
    ),
    purpose="each rank's time, with waiting and transfer",
    telling=("rank", "steps", "ns", "wait_ns", "transfer_ns", "kernel_ns", "late_ns", "cost_ns"),
    job=True,
)


def ranks(job: Job) -> pl.DataFrame:
    """The ledger of each rank over the steps that all have, communication split into waiting and transfer.

    Definition: docs/definitions.md, section 11.

    Returns:
        :data:`TABLE`, by rank. Where nothing repeats, `steps` is 0 and the times are those of all collectives.
    """
    rows = common_steps(job.table("rank_steps"))
    own = job.ranks.select("member", "rank", "host", "device", "report")
    sums = rows.group_by("rank").agg(
        pl.len().alias("steps"),
        pl.col("ns", "wait_ns", "transfer_ns", "unmatched_ns", "late_ns", "cost_ns").sum(),
    )
    steps = pl.concat([job.steps.select("member", "index", "step"), job.ledgers], how="horizontal")
    wanted = steps.join(own.select("member", "rank"), on="member").join(
        rows.select("rank", "step"), on=["rank", "step"], how="semi"
    )
    wide = wanted.group_by("member").agg(pl.col(_PARTS).sum().name.suffix("_ns"))
    steady = wanted.select("member", pl.col("index").cast(pl.Int32))
    hidden = job.hidden.join(steady, on=["member", "index"], how="semi")
    hidden = hidden.group_by("member").agg(pl.col("hidden_ns").sum())
    told = own.join(sums, on="rank", how="left").join(wide, on="member", how="left")
    told = told.join(hidden, on="member", how="left")
    zeros = [
        column.name for column in TABLE.columns if column.dtype == pl.Int64 and column.name not in ("rank", "device")
    ]
    return TABLE.select(told.with_columns(pl.col(zeros).fill_null(0)).sort("rank"))


#: A step that takes less than this part of the median of its rank is not one of the usual ones.
_SHORT: Final = 0.5


def common_steps(rows: pl.DataFrame) -> pl.DataFrame:
    """The rows of steps that are steady or odd on all ranks; else of those that all ranks have; else all.

    Without those at the beginning and the end that are far too short on a rank: there what comes before and after the
    steps was taken for some. An odd step counts: what ranks wait for in it is what is looked for.
    """
    number = rows.get_column("rank").n_unique()
    everywhere = rows.filter(pl.len().over("step") == number)
    whole = everywhere.filter(pl.col("kind").is_in(["steady", "odd"]).all().over("step"))
    short = whole.select("step", short=pl.col("ns") < _SHORT * pl.col("ns").median().over("rank"))
    usual = whole.join(short.filter("short"), on="step", how="anti").get_column("step")
    whole = whole.filter(pl.col("step").is_between(usual.min(), usual.max()))
    return whole if whole.height else everywhere if everywhere.height else rows
