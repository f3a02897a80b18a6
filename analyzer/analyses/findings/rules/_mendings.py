"""Changes that remedies make to a recording, for the replays of findings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, launch_rows, with_facts
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report


#: What a kernel takes that has nothing to do, about: no remedy makes one shorter.
_LEAST_NS: Final = 1000


def without(rows: pl.DataFrame) -> Mending:
    """The operations `rows` (row) are launched no more."""
    return Mending(gone=rows.get_column("row").cast(pl.UInt32))


def merged(groups: pl.DataFrame) -> Mending:
    """Some operations do the work of all, and the others are gone.

    `groups` has row, dur_ns, and by group, in order: kept (how many operations do the work) and merged_ns (what they
    take in all). The first ones of each group are kept.
    """
    work = groups.with_columns(
        place=pl.int_range(pl.len()).over("group"), part_ns=pl.col("merged_ns") // pl.col("kept")
    ).with_columns(pl.col("row").cast(pl.UInt32))
    stays = pl.col("place") < pl.col("kept")
    kept = work.filter(stays).select("row", saved_ns=pl.col("dur_ns") - pl.col("part_ns"))
    return Mending(shorter=kept, gone=work.filter(~stays).get_column("row"))


def by_shape(report: Report, device: int, shapes: pl.DataFrame, stake: str) -> Mending:
    """Kernels of a device take less by the time `stake` of their launch shape in `shapes`, each by the same share.

    None gets shorter than a kernel that does nothing.
    """
    sums = shapes.group_by("name", *SHAPE).agg(pl.col(stake).sum()).with_columns(pl.col("name").cast(pl.Categorical))
    kernels = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    work = with_facts(report, kernels.select("row", "name", "dur_ns"), *SHAPE)
    work = work.join(sums, on=["name", *SHAPE], nulls_equal=True)
    share = (pl.col(stake) / pl.col("dur_ns").sum().over("name", *SHAPE)).clip(upper_bound=1.0)
    most = (pl.col("dur_ns") - _LEAST_NS).clip(lower_bound=0)
    saved = pl.min_horizontal((pl.col("dur_ns") * share).floor().cast(pl.Int64), most)
    return Mending(shorter=work.select("row", saved_ns=saved))


def calls_within(report: Report, spans: pl.DataFrame) -> pl.Series:
    """Rows (of the api events) of the calls that began in `spans` (process_id, thread_id, start, end) of their thread.

    Spans of a thread do not overlap.
    """
    begun = spans.select(*THREAD, "end", at="start").sort("at")
    calls = report.kind("api").select(*THREAD, at="start_ns").with_row_index("row").sort("at")
    found = calls.join_asof(begun, on="at", by=list(THREAD), check_sortedness=False)
    return found.filter(pl.col("at") < pl.col("end")).get_column("row").sort()


def nothing_within(report: Report, spans: pl.DataFrame) -> Mending:
    """Host code, calls and operations of threads in `spans` (process_id, thread_id, start, end) are gone."""
    calls = calls_within(report, spans)
    gone = launch_rows(report).is_in(calls.implode()).fill_null(value=False).arg_true().cast(pl.UInt32)
    return Mending(gone=gone, calls=calls, host=spans.select("process_id", "start", "end"))
