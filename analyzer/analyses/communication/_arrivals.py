"""When the last rank came to each collective whose ranks are all in one report."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import matched
from kanalyze.analyses.communication._recorded import collectives_of
from kanalyze.analyses.communication._rows import rows_of
from kanalyze.analyses.communication._waits import of_one_clock, waits
from kanalyze.reduction.tables import COLLECTIVES

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Ranks that have one group without a recorded one.
_PAIR: Final = 2


def arrivals(report: Report, work: pl.DataFrame, members: pl.DataFrame) -> pl.DataFrame:
    """When the last rank came to each collective: row, arrival, last, late, sized.

    `work` has the communication kernels of all ranks, `members` the ranks (device, process_id). Collectives without a
    partner, and those of which ranks are known to be missing, are left out.
    """
    names = pl.Series(_names(members))
    numbered, keys = members.with_row_index("member"), ["device", "process_id"]
    line = work.sort("began", "event_id").join(numbered, on=keys, nulls_equal=True, maintain_order="left")
    line = line.sort("member", maintain_order=True)
    rows = rows_of(pl.concat([_recorded(report, own) for own in line.partition_by("member")]), members.height)
    clock = np.zeros(members.height, dtype=np.int64)
    found = matched(rows, clock)
    told = waits(rows, found, of_one_clock(rows, found, 0, 0, 1), clock)
    whole = (told.get_column("present") >= told.get_column("size").fill_null(0)).to_numpy()
    known = found.order[: found.first[-1]]
    known = known[whole[found.match[known]]]
    if members.height > _PAIR:  # those of several groups may be mixed up
        known = known[rows.calls.get_column("group").is_not_null().to_numpy()[rows.call[known]]]
    of_rows = told.select("arrival_ns", "last", "size")[found.match[known]]
    last = names.gather(pl.Series(rows.member).gather(of_rows.get_column("last")))
    own = line[known].select("row", "start", match=pl.Series(found.match[known]))
    latest = pl.col("row").sort_by("start", "row", descending=[True, False]).first().over("match")
    return pl.DataFrame(
        {
            "row": own.get_column("row"),
            "late": own.select(latest).to_series(),
            "arrival": of_rows.get_column("arrival_ns"),
            "last": last,
            "sized": of_rows.get_column("size").is_not_null(),
        }
    )


def _names(members: pl.DataFrame) -> list[str]:
    """Names of ranks: by GPU, or by process where several share one."""
    single = members.get_column("device").is_unique()
    return [
        f"GPU {device}" if alone else f"process {process}"
        for (device, process), alone in zip(members.iter_rows(), single, strict=True)
    ]


def _recorded(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """The collectives of one rank as :func:`rows_of` takes them."""
    told = collectives_of(report, line)
    return told.select(name for name in COLLECTIVES.schema if name in told.columns).with_columns(
        line.select(
            pl.col("member").cast(pl.Int64),
            start_ns=pl.col("start"),
            dur_ns=pl.max_horizontal(pl.col("end") - pl.col("start"), 0),
            exposed_ns=pl.lit(0, dtype=pl.Int64),
        )
    )
