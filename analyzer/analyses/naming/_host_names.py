"""Names host time of a report by the trace of the same program beside it, between launches that are aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.naming._events_between import events_between
from kanalyze.analyses.naming._same_launches import Alignment, align
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered
from kanalyze.errors import ClosedReportError, DamagedReportError
from kanalyze.schema import Column
from kanalyze.units import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.naming._same_launches import ThreadPair
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: Least part of a report's launches that are aligned for any of its time to be named.
_ENOUGH: Final = 0.5

#: How many times as long as in the trace a time between two launches may be, or how much longer, to be the same.
_TIMES: Final = 3
_LONGER_NS: Final = 50_000

#: What of the report itself is read where there is a trace.
MAY_READ: Final = ("kernel_config", "copy_detail")

#: The bucket of what is named, and the column that says how sure that is.
_BUCKET: Final = "host"
ALIGNED: Final = Column(
    "aligned_share",
    pl.Float64,
    "Where the capture's trace names it: part of the report's launches that are aligned with the trace's.",
    nullable=True,
)

_LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

#: What a trace is read for.
_READS: Final = ("kernel", "graph", "memcpy", "memset", "api", "range", "op", "python")


class HostNames(NamedTuple):
    """Names of host time from the trace of the same program.

    Attributes:
        names: Each name once.
        lines: By process id and thread id, the times between launches that have a name: start, end and row (of
            `names`), sorted and disjoint.
        share: Part of the report's launches that are aligned; None without a trace, or where several processes launch.
        threads: The threads that both have, where enough is aligned.
    """

    names: pl.Series
    lines: dict[ThreadKey, pl.DataFrame]
    share: float | None = None
    threads: Sequence[ThreadPair] = ()


_NOTHING: Final = HostNames(pl.Series("name", [], dtype=pl.Categorical), {})


@once_per_process
def host_names(report: Report) -> HostNames:
    """The names of the host time of a report.

    None without a trace beside it that is whole and not closed, and where too few launches are aligned.
    """
    other = report.beside()
    if other is None or operations(report).is_empty():
        return _NOTHING
    try:
        other.read_ahead((*_READS, *MAY_READ))
        found = align(report, other)
    except (ClosedReportError, DamagedReportError):
        return _NOTHING
    if found is None:
        return _NOTHING
    known = _NOTHING._replace(share=found.share)
    return _named(report, other, found, known) if found.share >= _ENOUGH else known


def _named(report: Report, other: Report, found: Alignment, known: HostNames) -> HostNames:
    # a range that the report has itself, and not here, says that the two differ here
    own = report.kind("range").get_column("name").unique().cast(pl.String).implode()
    parts = {pair.left: _of_thread(other, pair).filter(~pl.col("name").is_in(own)) for pair in found.threads}
    every = [part.get_column("name") for part in parts.values()]
    names = pl.concat([pl.Series("name", [], dtype=pl.String), *every]).drop_nulls().unique().sort()
    rows = pl.DataFrame([names]).with_row_index("row")
    lines = {
        key: part.join(rows, on="name", maintain_order="left").select(
            pl.col(name).cast(kind) for name, kind in _LINE.items()
        )
        for key, part in parts.items()
    }
    return known._replace(names=names.cast(pl.Categorical), lines=lines, threads=found.threads)


def _of_thread(other: Report, pair: ThreadPair) -> pl.DataFrame:
    """Times of a thread between two launches that follow each other in both recordings: start, end, name."""
    at, partner = pair.pairs.get_column("left"), pair.pairs.get_column("right")
    next_ones = ((at.shift(-1) == at + 1) & (partner.shift(-1) == partner + 1)).fill_null(value=False)
    own = _between(pair.calls, at.filter(next_ones))
    others = _between(pair.others, partner.filter(next_ones))
    told = events_between(other, pair.right, others)
    named = pl.concat([own, told], how="horizontal").with_columns(before=others["token"], after=others["next"])
    there = (others.get_column("end") - others.get_column("start")).clip(lower_bound=0)
    here = pl.col("end") - pl.col("start")
    same = (here <= there * _TIMES) | (here <= there + _LONGER_NS)
    usual = pl.lit(value=True) if pair.complete else _as_usual()
    fits = named.filter((here > 0) & pl.col("name").is_not_null() & same & usual)
    return fits.select("start", "end", "name")


def _as_usual() -> pl.Expr:
    """Whether most of the times between the same two launches have that name.

    Where some launches have no partner, it may be the one of an iteration before or after.
    """
    around = ("before", "after")
    return pl.len().over(*around, "name") * 2 > pl.len().over(*around)


def _between(calls: pl.DataFrame, at: pl.Series) -> pl.DataFrame:
    """The times from the calls in rows `at` to the next ones: start, end, token, next (token); never reversed."""
    rows, following = calls[at], calls[at + 1]
    end = pl.Series("end", following.get_column("start"))
    times = rows.select(pl.col("end").alias("start"), pl.max_horizontal("end", end).alias("end"), "token")
    return times.with_columns(following.get_column("token").alias("next"))


def launches_beside(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """Where the trace makes the launch that each of `points` (process_id, thread_id, at) follows, or is in.

    Columns: process_id, thread_id and at (its start) in the trace; null where that launch has no sure partner.
    """
    found = [points.select(*THREAD, "at").clear().with_columns(point=pl.lit(0, dtype=pl.UInt32))]
    numbered = points.select(*THREAD, "at").with_row_index("point")
    for pair in host_names(report).threads if report.beside() is not None else ():
        own = numbered.filter(pl.all_horizontal(pl.col(name).eq_missing(key) for name, key in _keys(pair.left)))
        if not pair.complete or own.is_empty():
            continue
        row = pair.calls.get_column("start").search_sorted(own.get_column("at"), side="right").cast(pl.Int64) - 1
        at = gathered(pair.others.get_column("start"), row.set(row < 0, None)).alias("at")
        there = own.select("point", *(key.alias(name) for name, key in _keys(pair.right))).with_columns(at)
        found.append(there.select(found[0].columns))
    moved = pl.concat(found).drop_nulls("at")
    return numbered.select("point").join(moved, on="point", how="left", maintain_order="left").drop("point")


def _keys(key: ThreadKey) -> list[tuple[str, pl.Expr]]:
    return [(name, pl.lit(value, dtype=pl.Int64)) for name, value in zip(THREAD, key, strict=True)]


def with_shares(report: Report, rows: pl.DataFrame, bucket: str) -> pl.DataFrame:
    """Adds aligned_share to rows of idle time by culprit: how many of the launches are aligned that it is named by.

    Null for what the report's own events name. `bucket` is the name of the column of the ledger's bucket.
    """
    known = host_names(report) if report.beside() is not None else _NOTHING
    by_trace = pl.col("culprit").cast(pl.String).is_in(known.names.cast(pl.String).implode())
    named = (pl.col(bucket).cast(pl.String) == _BUCKET) & by_trace
    return rows.with_columns(pl.when(named).then(pl.lit(known.share, dtype=pl.Float64)).alias(ALIGNED.name))


def told(report: Report, rows: pl.DataFrame) -> str:
    """How sure the names from the trace are, in a sentence, if `rows` of `culprits` have such, or could have."""
    known = host_names(report) if report.beside() is not None else _NOTHING
    if known.share is not None and known.share < _ENOUGH and _named_by_calls(rows).any():
        return f"The trace names no host time: only {percent(known.share)} of the launches are aligned with its own."
    if known.share is None or rows.get_column(ALIGNED.name).is_null().all():
        return ""
    return f"The trace names host time, too: {percent(known.share)} of the launches are aligned with its own."


def told_briefly(report: Report, rows: pl.DataFrame) -> str:
    """The same in a few words, for a heading; empty where the trace names nothing."""
    if not told(report, rows) or rows.get_column(ALIGNED.name).is_null().all():
        return ""
    return f"host time named by the trace ({percent(host_names(report).share or 0)} aligned)"


def _named_by_calls(rows: pl.DataFrame) -> pl.Series:
    """Which rows of `culprits` are host time that is named by the calls around it alone."""
    alone = (pl.col("bucket").cast(pl.String) == _BUCKET) & pl.col("range").is_null()
    return rows.select(alone.alias("alone")).to_series()
