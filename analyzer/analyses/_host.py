"""What each host thread was doing: its CUDA calls and the profiler's overhead as one line without overlaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses._calls import CALL_BUCKETS, bucket_of, call_names, shown
from kanalyze.analyses._common import THREAD, longest, once_per_process
from kanalyze.analyses._context import context_calls
from kanalyze.frames import count_up_to, in_order, numbers, rows_by

if TYPE_CHECKING:
    from kanalyze.analyses._common import ThreadKey
    from kanalyze.report import Report


@once_per_process
def labels(report: Report) -> pl.DataFrame:
    """What a stretch of a thread's line can be: columns name, rank (in CALL_BUCKETS), bucket and detail, by row.

    One row per name of a call, then one per name of an overhead, and last the one for making a context.
    """
    calls = call_names(report)
    overheads = report.kind("overhead").get_column("name").unique()
    buckets = [bucket_of(name) for name in calls.cast(pl.String).to_list()]
    shown_calls = calls.to_frame().select(shown(pl.col("name"))).to_series()
    details = [*shown_calls, *overheads.cast(pl.String), "context"]
    buckets += ["profiler"] * len(overheads) + ["loading"]
    names = pl.concat([calls, overheads, calls.clear(1)])
    table = pl.DataFrame({"name": names, "bucket": buckets, "detail": pl.Series(details, dtype=pl.String)})
    ranks = {bucket: rank for rank, bucket in enumerate(CALL_BUCKETS)}
    return table.with_columns(pl.col("bucket").replace_strict(ranks, return_dtype=pl.UInt32).alias("rank"))


@once_per_process
def _codes(report: Report) -> tuple[pl.Series, pl.Series]:
    """The row of :func:`labels` by the physical code of a name, for calls and for overheads; last that of no name."""
    kinds = call_names(report), report.kind("overhead").get_column("name").unique()
    found, first = [], 0
    for names in kinds:
        codes = names.to_physical().cast(pl.Int64)
        size = longest(codes.alias("code").to_frame(), "code") + 2
        at = codes.fill_null(size - 1)
        rows = pl.Series([0], dtype=pl.UInt32).new_from_index(0, size)
        found.append(rows.scatter(at, numbers(first, first + len(names))))
        first += len(names)
    return found[0], found[1]


def _labelled(events: pl.DataFrame, codes: pl.Series) -> pl.DataFrame:
    """`events` with their row of :func:`labels`."""
    return events.select("start", "end").with_columns(label=_label_of(events.get_column("name"), codes))


def _label_of(names: pl.Series, codes: pl.Series) -> pl.Series:
    return codes.gather(names.to_physical().fill_null(len(codes) - 1))


def shown_calls(report: Report, names: pl.Series) -> pl.Series:
    """Names of calls as they are shown; null for null."""
    details = labels(report).get_column("detail").cast(pl.Categorical)
    return details.gather(_label_of(names, _codes(report)[0])).set(names.is_null(), None)


@dataclass(frozen=True)
class Thread:
    """One host thread: its calls by their rows of the api events, in the order of their starts, and its overheads.

    Attributes:
        rows: The calls' rows.
        start: When each starts.
        reached: The latest end of the calls up to each one, so that those of a stretch of time are found by search.
        overheads: The profiler's overheads (start, end, name), sorted by start.
    """

    rows: pl.Series
    start: pl.Series
    reached: pl.Series
    overheads: pl.DataFrame

    def sides(self, report: Report, spans: pl.DataFrame) -> pl.DataFrame:
        """The calls at the sides of `spans` (start, end) in which the thread made none, by row of :func:`labels`.

        Columns: before (of the calls that started no later than the span the one that returned last, then the one that
        started first) and after (the first to start once it has ended); null where there is none.
        """
        names = report.kind("api").get_column("name")
        begun = count_up_to(self.start, spans.get_column("start"), equal=True).cast(pl.Int64) - 1
        # the first call up to which the latest end is this one is the call that ended then
        latest = self.reached.gather(begun.set(begun < 0, None))
        first = count_up_to(self.reached, latest.fill_null(0), equal=False).set(begun < 0, None)
        after = count_up_to(self.start, spans.get_column("end"), equal=False)
        places = {"before": first, "after": after.set(after == len(self.start), None)}
        return pl.DataFrame(
            {
                side: _label_of(names.gather(self.rows.gather(at)), _codes(report)[0]).set(at.is_null(), None)
                for side, at in places.items()
            }
        )

    def line(self, report: Report, low: int, high: int) -> pl.DataFrame:
        """What the thread did around ``[low, high)``, as :func:`timeline`, with labels of :func:`labels`."""
        first = int(self.reached.search_sorted(low, side="right"))
        stop = int(self.start.search_sorted(high, side="left"))
        rows = self.rows.slice(first, max(stop - first, 0))
        calls = _slim(report.kind("api").select(pl.col("name", "start_ns", "dur_ns").gather(rows)))
        line = _labelled(calls, _codes(report)[0])
        makers = context_calls(report).filter((pl.col("end_ns") > low) & (pl.col("start_ns") < high))
        if makers.height:
            context = pl.lit(labels(report).height - 1, dtype=pl.UInt32)
            making = rows.is_in(makers.get_column("row").implode())
            line = line.with_columns(pl.when(making).then(context).otherwise("label").alias("label"))
        near = self.overheads.filter((pl.col("end") > low) & (pl.col("start") < high))
        if near.height:
            line = pl.concat([line, _labelled(near, _codes(report)[1])]).sort("start", maintain_order=True)
        return timeline(line, labels(report).get_column("rank"))


@once_per_process
def threads(report: Report) -> dict[ThreadKey, Thread]:
    """Every thread that made calls, by process id and thread id."""
    overheads = report.kind("overhead")
    by_thread, none, calls = rows_by(overheads, THREAD), pl.Series(dtype=pl.UInt32), report.kind("api")
    found = {}
    for key, rows in rows_by(calls, THREAD).items():
        own = _slim(overheads.select(pl.col("name", "start_ns", "dur_ns").gather(by_thread.get(key, none))))
        times = calls.select("start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
        times = times if len(rows) == calls.height else times.select(pl.all().gather(rows))
        line = in_order(times.with_columns(rows.alias("row")), "start_ns")
        reached = line.get_column("end").cum_max()
        found[key] = Thread(line.get_column("row"), line.get_column("start_ns"), reached, own.sort("start"))
    return found


def _slim(events: pl.DataFrame) -> pl.DataFrame:
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return events.select("name", pl.col("start_ns").alias("start"), end.alias("end"))


def timeline(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """One thread's calls and overheads (start, end, label; sorted by start) as a line without overlaps.

    Each instant goes to the label of the lowest of `ranks` (by label) that covers it, among equals to the call that
    started first. Columns: start, end, label; sorted by start.
    """
    line = calls.filter(pl.col("end") > pl.col("start")).select("start", "end", "label")
    alone_before = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(value=True)
    alone = line.select(alone_before & alone_before.shift(-1, fill_value=True)).to_series()
    if alone.all():
        return line
    return pl.concat([line.filter(alone), _untangled(line.filter(~alone), ranks)]).sort("start")


def _untangled(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """The line of calls that overlap, cut wherever one of them starts or ends."""
    cuts = pl.concat([calls.get_column("start"), calls.get_column("end")]).unique().sort()
    start, end = cuts.slice(0, len(cuts) - 1).alias("start"), cuts.slice(1).alias("end")
    calls = calls.with_columns(rank=ranks.gather(calls.get_column("label")))
    winner = pl.Series("label", [None], dtype=pl.UInt32).new_from_index(0, len(start))
    for rank in range(len(CALL_BUCKETS)):
        own = intervals.first_come(calls.filter(pl.col("rank") == rank))
        own = own.filter(pl.col("own_end") > pl.col("own_start"))
        if own.is_empty():
            continue
        # own pieces are sorted and apart: the one that may cover a cut is the last that begins at or before it
        begun = own.get_column("own_start").search_sorted(start, side="right").cast(pl.Int64) - 1
        latest = begun.set(begun < 0, None)
        covers = own.get_column("own_end").gather(latest) > start
        label = own.get_column("label").gather(latest)
        winner = winner.zip_with(winner.is_not_null(), label.set(~covers.fill_null(value=False), None))
    pieces = pl.DataFrame([start, end, winner.alias("label")])
    return pieces.drop_nulls("label")
