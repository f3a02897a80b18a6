"""Names host time of a report by the trace of the same program beside it, between launches that are aligned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.naming._events_between import events_between
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered
from kanalyze.errors import ClosedReportError, DamagedReportError
from kanalyze.schema import Column
from kanalyze.units import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.naming._same_launches import Alignment, ThreadPair
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: Least part of a report's launches that are aligned for any of its time to be named.
_ENOUGH: Final = 0.5

#: How many times as long as in the trace a time between two launches may be, or how much longer, to be the same.
_TIMES: Final = 3
_LONGER_NS: Final = 50_000

#: The bucket of what is named, and the column that says how sure that is.
_BUCKET: Final = "host"
ALIGNED: Final = Column(
    "aligned_share",
    pl.Float64,
    "Where the capture's trace names it: part of the report's launches that are aligned with the trace's.",
    nullable=True,
)

_LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

#: A time between two launches, its name, and the times in the trace that name it.
_PART: Final = ("start", "end", "name", "there", "until")


class HostNames(NamedTuple):
    """Names of host time from the trace of the same program.

    Attributes:
        names: Each name once.
        lines: By process id and thread id, the times between launches that have a name: start, end and row (of
            `names`), sorted and disjoint.
        share: Part of the report's launches that are aligned; None without a trace, or where several processes launch.
        threads: The threads that both have, where enough is aligned.
        recurring: Whether launches count that the trace makes in the same surroundings, in a step of its few.
        partners: For each of `lines`, the times in the trace that name it: there and until, row by row.
    """

    names: pl.Series
    lines: dict[ThreadKey, pl.DataFrame]
    share: float | None = None
    threads: Sequence[ThreadPair] = ()
    recurring: bool = False
    partners: dict[ThreadKey, pl.DataFrame] = {}  # noqa: RUF012 - never written to


_NOTHING: Final = HostNames(pl.Series("name", [], dtype=pl.Categorical), {})


@once_per_process
def host_names(report: Report) -> HostNames:
    """The names of the host time of a report.

    None without a trace beside it that is whole and not closed, and where too few launches are aligned.
    """
    other = report.beside()
    if other is None or operations(report).is_empty():
        return _NOTHING
    from kanalyze.analyses.naming._same_launches import align, recurring  # noqa: PLC0415 - for captures only

    try:
        found = align(report, other)
        if found is None:
            return _NOTHING
        if found.share >= _ENOUGH:
            parts, share = {pair.left: _of_thread(other, pair) for pair in found.threads}, found.share
        else:
            stretches = {pair.left: recurring(pair) for pair in found.threads}
            share = sum(int(known.sum()) for known in stretches.values()) / max(found.calls, 1)
            if share < _ENOUGH:
                return _NOTHING._replace(share=max(found.share, share))
            parts = {pair.left: _of_steps(other, pair, stretches[pair.left]) for pair in found.threads}
    except (ClosedReportError, DamagedReportError):
        return _NOTHING
    return _named(report, found, parts, share)._replace(recurring=found.share < _ENOUGH)


def _named(report: Report, found: Alignment, parts: dict[ThreadKey, pl.DataFrame], share: float) -> HostNames:
    # a range that the report has itself, and not here, says that the two differ here
    own = report.kind("range").get_column("name").unique().cast(pl.String).implode()
    parts = {key: part.filter(~pl.col("name").is_in(own)) for key, part in parts.items()}
    every = [part.get_column("name") for part in parts.values()]
    names = pl.concat([pl.Series("name", [], dtype=pl.String), *every]).drop_nulls().unique().sort()
    rows = pl.DataFrame([names]).with_row_index("row")
    lines = {
        key: part.join(rows, on="name", maintain_order="left").select(
            pl.col(name).cast(kind) for name, kind in _LINE.items()
        )
        for key, part in parts.items()
    }
    partners = {key: part.select("there", "until") for key, part in parts.items()}
    return HostNames(names.cast(pl.Categorical), lines, share, found.threads, partners=partners)


def _of_thread(other: Report, pair: ThreadPair) -> pl.DataFrame:
    """Times of a thread between two launches that follow each other in both recordings: :data:`_PART`."""
    at, partner = pair.pairs.get_column("left"), pair.pairs.get_column("right")
    next_ones = ((at.shift(-1) == at + 1) & (partner.shift(-1) == partner + 1)).fill_null(value=False)
    own = _between(pair.calls, at.filter(next_ones))
    others = _between(pair.others, partner.filter(next_ones))
    told = events_between(other, pair.right, others)
    named = pl.concat([own, told], how="horizontal").with_columns(before=others["token"], after=others["next"])
    named = named.hstack(others.select(there="start", until="end"))
    usual = pl.lit(value=True) if pair.complete else _as_usual()
    return named.filter(_alike() & usual).select(_PART)


def _of_steps(other: Report, pair: ThreadPair, known: pl.Series) -> pl.DataFrame:
    """Times of a thread between two launches of its `recurring` stretches, named by the trace: :data:`_PART`.

    The trace's times in the same surroundings name them by the name that most of those have, and the median of these
    is the partner.
    """
    from kanalyze.analyses.naming._same_launches import surroundings  # noqa: PLC0415 - for captures only

    at = pl.Series("at", range(pair.calls.height - 1), dtype=pl.Int64)
    within = known.head(at.len()) & known.tail(at.len())
    own = _between(pair.calls, at).with_columns(surroundings(pair.calls).head(at.len())).filter(within)
    times = _between(pair.others, pl.Series("at", range(pair.others.height - 1), dtype=pl.Int64))
    told = events_between(other, pair.right, times)
    named = times.select(pl.col("start").alias("there"), pl.col("end").alias("until")).hstack(told.select("name"))
    named = named.with_columns(surroundings(pair.others).head(times.height))
    most = named.filter((pl.len().over("around", "name") * 2 > pl.len().over("around")) & pl.col("name").is_not_null())
    most = most.sort("around", pl.col("until") - pl.col("there"), "there")
    middle = most.filter(pl.int_range(pl.len()).over("around") == pl.len().over("around") // 2)
    return own.join(middle, on="around", maintain_order="left").filter(_alike()).select(_PART)


def _alike() -> pl.Expr:
    """Whether a time that has a name is about as long as the trace's that names it, or shorter."""
    here, there = pl.col("end") - pl.col("start"), (pl.col("until") - pl.col("there")).clip(lower_bound=0)
    same = (here <= there * _TIMES) | (here <= there + _LONGER_NS)
    return (here > 0) & pl.col("name").is_not_null() & same


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
    """Place in the trace of the launch that each of `points` (process_id, thread_id, at) follows, or is in.

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


def placed(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Places intervals of the trace's threads into the report, by the times between launches that they name.

    Args:
        report: The report that the trace is beside.
        spans: Intervals of the trace, disjoint on each thread: process_id, thread_id, start, end and any others.

    Returns:
        The part of each interval in each time between launches that has its partner in the trace, at the same part of
        that time: the columns of `spans`, with the report's process and thread. One interval of a trace of few steps
        is placed in every such step.
    """
    known, found = host_names(report), [spans.clear()]
    for pair in known.threads if known.partners else ():
        own = spans.filter(pl.all_horizontal(pl.col(name).eq_missing(key) for name, key in _keys(pair.right)))
        times = known.lines[pair.left].select("start", "end").hstack(known.partners[pair.left])
        cut = times.join_where(
            own.select(pl.exclude(*THREAD, "start", "end"), since="start", to="end"),
            pl.col("since") < pl.col("until"),
            pl.col("to") > pl.col("there"),
        )
        scale = (pl.col("end") - pl.col("start")) / (pl.col("until") - pl.col("there"))
        first, last = pl.max_horizontal("since", "there"), pl.min_horizontal("to", "until")
        sides = {
            "start": pl.col("start") + ((first - pl.col("there")) * scale).cast(pl.Int64),
            "end": pl.col("start") + ((last - pl.col("there")) * scale).cast(pl.Int64),
        }
        keys = dict(_keys(pair.left))
        found.append(cut.with_columns(**sides, **keys).select(found[0].columns))
    return pl.concat(found).sort(*THREAD, "start", "end")


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
    how = "made as in its few steps" if known.recurring else "aligned with its own"
    return f"The trace names host time, too: {percent(known.share)} of the launches are {how}."


def told_briefly(report: Report, rows: pl.DataFrame) -> str:
    """The same in a few words, for a heading; empty where the trace names nothing."""
    if not told(report, rows) or rows.get_column(ALIGNED.name).is_null().all():
        return ""
    known = host_names(report)
    how = "as in its steps" if known.recurring else "aligned"
    return f"host time named by the trace ({percent(known.share or 0)} {how})"


def _named_by_calls(rows: pl.DataFrame) -> pl.Series:
    """Rows of `culprits` with host time that is named by the calls around it alone."""
    alone = (pl.col("bucket").cast(pl.String) == _BUCKET) & pl.col("range").is_null()
    return rows.select(alone.alias("alone")).to_series()
