"""When the last rank came to each collective whose ranks are all in one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.communication._matching import matched
from kanalyze.analyses.communication._recorded import collectives_of
from kanalyze.analyses.communication._waits import with_waits
from kanalyze.reduction import COLLECTIVES

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Ranks that have one group without a recorded one.
_PAIR: Final = 2


def arrivals(report: Report, work: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """When the last rank came to each collective: row, arrival, last, sized.

    `work` has the communication kernels of all ranks, `members` the ranks (device, process_id). Collectives without a
    partner, and those of which ranks are known to be missing, are left out.
    """
    names = _names(members)
    numbered, keys = members.with_row_index("member"), ["device", "process_id"]
    line = work.sort("began", "event_id").join(numbered, on=keys, nulls_equal=True, maintain_order="left")
    rows = pl.concat([_recorded(report, own) for own in line.partition_by("member")])
    rows = rows.with_columns(offset_ns=pl.lit(0, dtype=pl.Int64), error_ns=pl.lit(0, dtype=pl.Int64))
    timed = with_waits(matched(rows).rows).drop_nulls("match")
    size = pl.col("size").max().over("match")
    told = timed.with_columns(sized=size.is_not_null()).filter(pl.col("present") >= size.fill_null(0))
    if members.height > _PAIR:  # those of several groups may be mixed up
        told = told.filter(pl.col("group").is_not_null())
    last = pl.col("last_rank").replace_strict(names, default=None, return_dtype=pl.String)
    return told.select("row", arrival="arrival_ns", last=last, sized="sized")


def _names(members: pl.DataFrame) -> dict[int, str]:
    """What each rank is called: by its GPU, or by its process where several share one."""
    single = members.get_column("device").is_unique()
    return {
        number: f"GPU {device}" if alone else f"process {process}"
        for number, ((device, process), alone) in enumerate(zip(members.iter_rows(), single, strict=True))
    }


def _recorded(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The collectives of one rank as :func:`matched` takes them, with their row of :func:`operations`."""
    told = collectives_of(report, line)
    columns = [name for name in COLLECTIVES.schema if name in told.columns]
    recorded = told.select(columns).with_columns(
        pl.when(pl.col("id").is_not_null()).then(pl.col("id").hash()).alias("id")
    )
    return recorded.with_columns(
        line.select(
            "row",
            rank=pl.col("member").cast(pl.Int64),
            start_ns=pl.col("start"),
            dur_ns=pl.max_horizontal(pl.col("end") - pl.col("start"), 0),
            clock=pl.lit(0, dtype=pl.Int64),
            number=pl.int_range(pl.len(), dtype=pl.Int64),
        )
    )
