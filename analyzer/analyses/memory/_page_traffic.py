"""Round trips of unified-memory pages, by address, independent of how the driver split migrations into copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.memory._unified_moves import HOST, UNASKED, moves
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest
from kanalyze.exact import LARGEST

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Batch size in pieces of copies, which bounds the memory needed for large reports.
PARTS_AT_ONCE: Final = 1 << 22

_AGAIN: Final = {"event_id": pl.Int64, "again_bytes": pl.Int64}
_PIECES: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "round_trips": pl.Int64,
    "on_device_ns": pl.Int64,
}
_TRIPS: Final = {"device": pl.Int64, "trips": pl.Int64}


class Pages(NamedTuple):
    """The effect of the copies of :func:`kanalyze.analyses.memory._unified_moves.moves` on the memory that they moved.

    Attributes:
        again: For each copy, its bytes that had moved to the same place before, in scope; columns event_id,
            again_bytes.
        pieces: The address ranges that moved, split wherever a copy begins or ends; columns process_id, start and end
            (addresses), round_trips, and on_device_ns: start of the first copy to a device, null without one. The round
            trips of a piece are half of its returns to where it had been before its last move, rounded up.
        unasked: For each device, the maximum number of round trips of a page that ended with a copy which nobody
            requested (page fault or eviction); columns device, trips. Of a page, returns to one place are counted, at
            the place with most; devices without any are omitted.
    """

    again: pl.DataFrame
    pieces: pl.DataFrame
    unasked: pl.DataFrame


@once_per_report
def pages(report: Report) -> Pages:
    """The traffic of each piece of unified memory; processes do not share addresses."""
    known = moves(report).filter(pl.col("address") <= LARGEST, pl.col("size_bytes") > 0)
    again, pieces, trips = ([pl.DataFrame(schema=schema)] for schema in (_AGAIN, _PIECES, _TRIPS))
    for (process,), part in known.partition_by("process_id", as_dict=True).items():
        for parts in _cut(part):
            again.append(_again(parts))
            runs = _runs(parts)
            pieces.append(_pieces(runs).insert_column(0, pl.lit(process, dtype=pl.Int64).alias("process_id")))
            trips.append(_unasked(runs))
    # a copy in two batches has a row from each
    sums = pl.concat(again).group_by("event_id").agg(pl.col("again_bytes").sum())
    most = pl.concat(trips).group_by("device").agg(pl.col("trips").max()).sort("device")
    return Pages(sums.sort("event_id"), pl.concat(pieces).sort("process_id", "start"), most)


def _cut(moved: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits the copies of one process at all addresses where any of them begins or ends, in batches of pieces.

    Columns: start and end (addresses), time, event_id, device, origin, place, unasked; sorted by start, time and
    event_id.
    """
    real = moved.select(
        *("event_id", "device", "origin", "place"),
        pl.col("cause").is_in(list(UNASKED)).alias("unasked"),
        time="start",
        start="address",
        end=pl.col("address") + pl.col("size_bytes"),
    )
    begins, ends = real.get_column("start").sort(), real.get_column("end").sort()
    edges = pl.concat([begins, ends]).unique().sort()
    pieces = pl.DataFrame({"start": edges.slice(0, len(edges) - 1), "end": edges.slice(1)})
    first = pieces.get_column("start")
    depth = begins.search_sorted(first, side="right").cast(pl.Int64) - ends.search_sorted(first, side="right")
    batch = depth.cum_sum() // PARTS_AT_ONCE
    pieces = pieces.with_columns(batch=batch).filter(depth > 0)
    batches = pieces.partition_by("batch", maintain_order=True, include_key=False)
    return [intervals.cut(real, some).sort("start", "time", "event_id") for some in batches]


def _again(parts: pl.DataFrame) -> pl.DataFrame:
    """The bytes of each copy that had moved to the same place before."""
    piece, place = pl.col("start").rle_id().cast(pl.Int64), pl.col("place") - parts.get_column("place").min()
    places = longest(parts.select(place), "place") + 1
    first = parts.select((piece * places + place).is_first_distinct()).to_series()
    length = pl.col("end") - pl.col("start")
    return parts.select("event_id", again_bytes=pl.when(first).then(0).otherwise(length))


def _runs(parts: pl.DataFrame) -> pl.DataFrame:
    """`parts` without moves to the current place, with `returned`: whether the piece had been there before."""
    known = parts.with_columns(new=(pl.col("start") != pl.col("start").shift(1)).fill_null(value=True))
    stays = ~pl.col("new") & (pl.col("place") == pl.col("place").shift(1))
    runs = known.with_columns(stays=stays).filter(~pl.col("stays"))
    two_back = pl.when(pl.col("new").shift(1)).then(pl.col("origin").shift(1)).otherwise(pl.col("place").shift(2))
    return runs.with_columns(returned=(~pl.col("new") & (pl.col("place") == two_back)).fill_null(value=False))


def _pieces(runs: pl.DataFrame) -> pl.DataFrame:
    """The pieces of `runs`, with their round trips."""
    arrived = pl.when(pl.col("place") != HOST).then("time")
    sums = runs.with_columns(arrived=arrived).group_by("start", maintain_order=True)
    return sums.agg(
        pl.col("end").first(),
        round_trips=(pl.col("returned").sum().cast(pl.Int64) + 1) // 2,
        on_device_ns=pl.col("arrived").min(),
    )


def _unasked(runs: pl.DataFrame) -> pl.DataFrame:
    """The maximum number of round trips of a piece by unrequested copies, by device."""
    back = runs.filter(pl.col("returned") & pl.col("unasked")).group_by("device", "start", "place").len("trips")
    return back.group_by("device").agg(pl.col("trips").max().cast(pl.Int64))
