"""What each host thread was doing: its CUDA calls and the profiler's overhead as one line without overlaps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._call_kinds import CALL_BUCKETS, bucket_of, call_names, shown
from kanalyze.analyses.host._context_creation import context_calls
from kanalyze.analyses.host._recording_start import BEGINS, unseen_syncs
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.frames import count_up_to, in_order, numbers, rows_at, rows_by

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report

#: The buckets of a thread's calls that win over the launch itself.
_ABOVE_LAUNCH: Final = ("profiler", "loading", "allocation")

#: Bucket and detail of the last rows of :func:`labels`.
_FURTHER: Final = (("loading", "context"), ("unknown", BEGINS))


@once_per_process
def labels(report: Report) -> pl.DataFrame:
    """What a stretch of a thread's line can be: columns name, rank (in CALL_BUCKETS), bucket and detail, by row.

    One row per name of a call, then one per name of an overhead, and last those for making a context, and for a
    blocking call that waits for what the recording does not hold.
    """
    calls = call_names(report)
    overheads = report.kind("overhead").get_column("name").unique()
    buckets = [bucket_of(name) for name in calls.cast(pl.String).to_list()]
    shown_calls = calls.to_frame().select(shown(pl.col("name"))).to_series()
    details = [*shown_calls, *overheads.cast(pl.String), *(detail for _, detail in _FURTHER)]
    buckets += ["profiler"] * len(overheads) + [bucket for bucket, _ in _FURTHER]
    names = pl.concat([calls, overheads, calls.clear(len(_FURTHER))])
    table = pl.DataFrame({"name": names, "bucket": buckets, "detail": pl.Series(details, dtype=pl.String)})
    ranks = {bucket: rank for rank, bucket in enumerate(CALL_BUCKETS)}
    ranks["unknown"] = ranks["sync"]
    return table.with_columns(pl.col("bucket").replace_strict(ranks, return_dtype=pl.UInt32).alias("rank"))


@once_per_process
def label_codes(report: Report) -> tuple[pl.Series, pl.Series]:
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


def _label_of(names: pl.Series, codes: pl.Series) -> pl.Series:
    return codes[names.to_physical().fill_null(len(codes) - 1).cast(pl.UInt32)]


def shown_calls(report: Report, names: pl.Series) -> pl.Series:
    """Names of calls as they are shown; null for null."""
    details = labels(report).get_column("detail").cast(pl.Categorical)
    return details[_label_of(names, label_codes(report)[0])].set(names.is_null(), None)


@once_per_process
def winning(report: Report) -> pl.Series:
    """Whether each row of :func:`labels` wins over launches."""
    return labels(report).select(pl.col("bucket").is_in(_ABOVE_LAUNCH)).to_series()


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

    def around(self, low: int, high: int) -> tuple[int, int]:
        """The places of the first call that lasts after `low`, and of the first one that starts at `high` or later."""
        first = bisect_right(self.reached, low)
        return first, max(bisect_left(self.start, high), first)


@dataclass(frozen=True)
class Stretch:
    """What some threads did from `low` to `high`.

    Attributes:
        report: The report.
        threads: The threads.
        lanes: Their lanes, in that order, which are at least as long.
        low: From when on.
        high: Until when.
    """

    report: Report
    threads: Sequence[Thread]
    lanes: Lanes
    low: int
    high: int

    def line(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """What the threads did, on their lanes, as :func:`timeline`, with labels of :func:`labels`.

        It holds what wins over launches, and what overlaps any of `pieces` (start, end; sorted and apart).
        """
        every = pl.concat([self._done(lane, thread) for lane, thread in enumerate(self.threads)], rechunk=True)
        # of the pieces that end after a call starts only the first one can be the first to overlap it
        at = count_up_to(pieces.get_column("end"), every.get_column("start"), equal=True)
        begins = gathered(pieces.get_column("start"), at.set(at == pieces.height, None))
        near = (begins < every.get_column("end")).fill_null(value=False)
        needed = every.filter(near | winning(self.report)[every.get_column("label")])
        return timeline(needed, labels(self.report).get_column("rank"))

    def _done(self, lane: int, thread: Thread) -> pl.DataFrame:
        """The calls and overheads of one thread on its lane: columns start, end, label; sorted by start."""
        report, sides = self.report, self.lanes.placed(lane, "start", "end")
        first, stop = thread.around(self.low, self.high)
        rows = thread.rows.slice(first, stop - first)
        calls = report.kind("api").select("name", "start_ns", "dur_ns")[rows]
        done = _slim(calls).select(*sides, label=_label_of(calls.get_column("name"), label_codes(report)[0]))
        done = _relabelled(done, rows, unseen_syncs(report), unseen_label(report))
        makers = context_calls(report)
        if makers.height and rows.is_in(makers.get_column("row").implode()).any():
            own = makers.filter(pl.col("row").is_in(rows.implode())).sort("row")
            lasting = own.filter(pl.col("end_ns") > pl.col("made_ns"))
            rest = lasting.select(start="made_ns", end="end_ns").select(
                *sides, label=_label_of(lasting.get_column("name"), label_codes(report)[0])
            )
            made = pl.DataFrame({"row": rows}).join(own.select("row", "made_ns"), on="row", how="left")
            until = made.select(pl.col("made_ns").alias("end")).select(self.lanes.placed(lane, "end")).to_series()
            done = done.with_columns(pl.min_horizontal("end", until).alias("end"))
            done = _relabelled(done, rows, own.get_column("row"), _context_label(report))
            done = pl.concat([done, rest]).sort("start", maintain_order=True)
        over = thread.overheads
        if over.height:
            over = over.filter((pl.col("end") > self.low) & (pl.col("start") < self.high))
        if over.height:
            label = _label_of(over.get_column("name"), label_codes(report)[1])
            done = pl.concat([done, over.select(*sides, label=label)]).sort("start", maintain_order=True)
        return done

    def sides(self, spans: pl.DataFrame) -> pl.DataFrame:
        """The calls at the sides of `spans` of the line (start, end) in which no call was made, by row of `labels`.

        Columns: before (of the calls that started no later than the span the one that returned last, then the one that
        started first) and after (the first to start once it has ended); null where there is none.
        """
        parts = [self._calls(lane, thread) for lane, thread in enumerate(self.threads)]
        start, earlier, rows = (pl.concat(column, rechunk=True) for column in zip(*parts, strict=True))
        before = earlier[count_up_to(start, spans.get_column("start"), equal=True) - 1]
        after = rows[count_up_to(start, spans.get_column("end"), equal=False)]
        names, codes = self.report.kind("api").get_column("name"), label_codes(self.report)[0]
        return pl.DataFrame(
            {
                side: _label_of(gathered(names, call), codes).set(call.is_null(), None)
                for side, call in (("before", before), ("after", after))
            }
        )

    def _calls(self, lane: int, thread: Thread) -> tuple[pl.Series, pl.Series, pl.Series]:
        """The starts of a thread's calls, who of those up to each had returned last, and the rows of the calls.

        There is one more at each end of the lane: for the calls that start before the stretch does, and for the first
        one after it. A row is null where there is none.
        """
        first = bisect_right(thread.start, self.low)
        stop = max(bisect_left(thread.start, self.high), first)
        none, reached = pl.Series([None], dtype=pl.UInt32), thread.reached
        # the first call up to which the latest end is this one is the call that ended then
        last = thread.rows.slice(bisect_left(reached, reached.item(first - 1)), 1) if first else none
        rows, later = thread.rows.slice(first, stop - first), thread.rows.slice(stop, 1)
        begins = max(first - 1, 0)
        longer = (reached.slice(begins, stop - begins).diff() > 0).fill_null(value=True).slice(first - begins)
        earlier = pl.concat([last, rows.set(~longer, None)], rechunk=True).fill_null(strategy="forward")
        inside = thread.start.slice(first, stop - first).alias("start").to_frame()
        ends = (intervals.BEFORE_ALL, intervals.AFTER_ALL)
        low, high = (pl.Series([self.lanes.moved(time, lane)], dtype=pl.Int64) for time in ends)
        start = pl.concat([low, inside.select(self.lanes.placed(lane, "start")).to_series(), high])
        return start, pl.concat([earlier, none]), pl.concat([none, rows, later if len(later) else none])


@once_per_process
def threads(report: Report) -> dict[ThreadKey, Thread]:
    """Every thread that made calls, by process id and thread id."""
    overheads = report.kind("overhead")
    by_thread, none, calls = rows_by(overheads, THREAD), pl.Series(dtype=pl.UInt32), report.kind("api")
    found = {}
    for key, rows in rows_by(calls, THREAD).items():
        own = _slim(rows_at(overheads.select("name", "start_ns", "dur_ns"), by_thread.get(key, none)))
        times = calls.select("start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0))
        times = times if len(rows) == calls.height else times[rows]
        line = in_order(times.with_columns(rows.alias("row")), "start_ns")
        reached = line.get_column("end").cum_max()
        found[key] = Thread(line.get_column("row"), line.get_column("start_ns"), reached, own.sort("start"))
    return found


def _relabelled(done: pl.DataFrame, rows: pl.Series, chosen: pl.Series, label: pl.Expr) -> pl.DataFrame:
    """`done`, which are the calls of these `rows`, with another label for those that are `chosen`."""
    these = rows.is_in(chosen.implode()) if len(chosen) else None
    if these is None or not these.any():
        return done
    return done.with_columns(pl.when(these).then(label).otherwise("label").alias("label"))


def _context_label(report: Report) -> pl.Expr:
    return pl.lit(labels(report).height - 2, dtype=pl.UInt32)


def unseen_label(report: Report) -> pl.Expr:
    """The row of :func:`labels` for waiting for what the recording does not hold."""
    return pl.lit(labels(report).height - 1, dtype=pl.UInt32)


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
