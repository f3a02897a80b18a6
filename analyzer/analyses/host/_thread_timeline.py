"""Timeline of each host thread: its CUDA calls and profiler overheads as disjoint intervals."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.host._call_kinds import CALL_BUCKETS, bucket_of, call_names, shown
from kanalyze.analyses.host._context_creation import BEGINS, context_calls, unseen_syncs
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.statistics import longest
from kanalyze.analyses.shared.thread_lanes import THREAD, laned
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import count_up_to, gathered, sure
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.shared.thread_lanes import Lanes, ThreadKey
    from kanalyze.report import Report

#: Buckets that take precedence over the launch call.
_ABOVE_LAUNCH: Final = ("profiler", "loading", "allocation")

#: Bucket and detail of the labels that are no name of a call or an overhead: the last rows of :func:`labels`.
_EXTRA_LABELS: Final = (("loading", "context"), ("unknown", BEGINS))


@once_per_process
def labels(report: Report) -> pl.DataFrame:
    """Labels of the intervals of a timeline: name, bucket, detail and rank (in CALL_BUCKETS).

    One row per name of a call, then one per name of an overhead, and last one for context creation and one for a
    blocking call that waits for work from before the recording.
    """
    calls = call_names(report)
    overheads = report.kind("overhead").get_column("name").unique()
    buckets = [bucket_of(name) for name in calls.cast(pl.String).to_list()]
    shown_calls = calls.to_frame().select(shown(pl.col("name"))).to_series()
    details = [*shown_calls, *overheads.cast(pl.String), *(detail for _, detail in _EXTRA_LABELS)]
    buckets += ["profiler"] * len(overheads) + [bucket for bucket, _ in _EXTRA_LABELS]
    names = pl.concat([calls, overheads, calls.clear(len(_EXTRA_LABELS))])
    table = pl.DataFrame({"name": names, "bucket": buckets, "detail": pl.Series(details, dtype=pl.String)})
    ranks = {bucket: rank for rank, bucket in enumerate(CALL_BUCKETS)}
    ranks["unknown"] = ranks["sync"]
    return table.with_columns(pl.col("bucket").replace_strict(ranks, return_dtype=pl.UInt32).alias("rank"))


@once_per_process
def label_codes(report: Report) -> tuple[pl.Series, pl.Series]:
    """Row of :func:`labels` by categorical code of a name, for calls and for overheads; the last for a null name."""
    kinds = call_names(report), report.kind("overhead").get_column("name").unique()
    found, first = [], 0
    for names in kinds:
        codes = names.to_physical().cast(pl.Int64)
        size = longest(codes.alias("code").to_frame(), "code") + 2
        at = codes.fill_null(size - 1)
        rows = pl.Series([0], dtype=pl.UInt32).new_from_index(0, size)
        found.append(rows.scatter(at, pl.int_range(first, first + len(names), dtype=pl.UInt32, eager=True)))
        first += len(names)
    return found[0], found[1]


def _label_of(names: pl.Series, codes: pl.Series) -> pl.Series:
    at = names.to_physical().cast(pl.UInt32)
    return codes[at.fill_null(len(codes) - 1) if at.has_nulls() else at]


def call_labels(report: Report, names: pl.Series) -> pl.Series:
    """Rows of :func:`labels` of calls by their names."""
    return _label_of(names, label_codes(report)[0])


def shown_calls(report: Report, names: pl.Series) -> pl.Series:
    """Display names of calls; null for null."""
    details = labels(report).get_column("detail").cast(pl.Categorical)
    return details[call_labels(report, names)].set(names.is_null(), None)


@once_per_process
def winning(report: Report) -> pl.Series:
    """Whether each row of :func:`labels` takes precedence over a launch call."""
    return labels(report).select(pl.col("bucket").is_in(_ABOVE_LAUNCH)).to_series()


class Thread(NamedTuple):
    """CUDA calls of one host thread, sorted by start, and the profiler overheads on it.

    Attributes:
        rows: Rows of the calls in the api events.
        starts: Starts of the api events.
        reached: Running maximum of the ends, so that the calls of an interval are found by binary search.
        overheads: Profiler overheads (start, end, name), sorted by start.
    """

    rows: pl.Series
    starts: pl.Series
    reached: pl.Series
    overheads: pl.DataFrame

    def around(self, low: int, high: int) -> tuple[int, int]:
        """Index range of the calls that can overlap ``[low, high)``."""
        first = bisect_right(self.reached, low)
        return first, max(bisect_left(self.rows, high, key=self.starts.item), first)

    def begun_in(self, low: int, high: int) -> tuple[int, int]:
        """Index range of the calls that start in ``(low, high)``."""
        first = bisect_right(self.rows, low, key=self.starts.item)
        return first, max(bisect_left(self.rows, high, key=self.starts.item), first)


class Stretch(NamedTuple):
    """Activity of some host threads in ``[low, high)``.

    Attributes:
        report: The report.
        threads: The threads.
        lanes: Their lanes, in the same order, at least as long as the interval.
        low: Start of the interval.
        high: End of the interval.
    """

    report: Report
    threads: Sequence[Thread]
    lanes: Lanes
    low: int
    high: int

    def line(self, pieces: pl.DataFrame) -> pl.DataFrame:
        """The :func:`timeline` of the threads in lane times: start, end, label (row of :func:`labels`).

        Only calls and overheads that take precedence over launches, or overlap any of `pieces` (start, end; sorted and
        disjoint).
        """
        every = pl.concat(
            [self._labelled_events(lane, thread) for lane, thread in enumerate(self.threads)], rechunk=True
        )
        # a call overlaps any piece only if it overlaps the first one that ends after the start of the call
        at = count_up_to(pieces.get_column("end"), every.get_column("start"), equal=True)
        begins = gathered(pieces.get_column("start"), at.set(at == pieces.height, None))
        near = sure(begins < every.get_column("end"))
        needed = every.filter(near | winning(self.report)[every.get_column("label")])
        return timeline(needed, labels(self.report).get_column("rank"))

    def _labelled_events(self, lane: int, thread: Thread) -> pl.DataFrame:
        """Calls and overheads of one thread in lane times: start, end, label; sorted by start."""
        report, sides = self.report, self.lanes.placed(lane, "start", "end")
        first, stop = thread.around(self.low, self.high)
        rows = thread.rows.slice(first, stop - first)
        calls = report.kind("api").select("name", "start_ns", "dur_ns")[rows]
        done = _name_and_times(calls).select(*sides, label=call_labels(report, calls.get_column("name")))
        done = _relabelled(done, rows, unseen_syncs(report), unseen_label(report))
        makers = context_calls(report)
        if makers.height and rows.is_in(makers.get_column("row").implode()).any():
            own = makers.filter(pl.col("row").is_in(rows.implode())).sort("row")
            lasting = own.filter(pl.col("end_ns") > pl.col("made_ns"))
            rest = lasting.select(start="made_ns", end="end_ns").select(
                *sides, label=call_labels(report, lasting.get_column("name"))
            )
            made = pl.DataFrame({"row": rows}).join(own.select("row", "made_ns"), on="row", how="left")
            until = made.select(pl.col("made_ns").alias("end")).select(self.lanes.placed(lane, "end")).to_series()
            done = done.with_columns(pl.min_horizontal("end", until).alias("end"))
            done = _relabelled(done, rows, own.get_column("row"), pl.lit(labels(report).height - 2, dtype=pl.UInt32))
            done = pl.concat([done, rest]).sort("start", maintain_order=True)
        over = thread.overheads
        if over.height:
            over = over.filter((pl.col("end") > self.low) & (pl.col("start") < self.high))
        if over.height:
            label = _label_of(over.get_column("name"), label_codes(report)[1])
            done = pl.concat([done, over.select(*sides, label=label)]).sort("start", maintain_order=True)
        return done

    def sides(self, spans: pl.DataFrame) -> pl.DataFrame:
        """The calls before and after each of `spans` (start, end; lane times in no call), as rows of `labels`.

        Columns: before (of the calls that started no later than the span the one that returned last, then the one that
        started first) and after (the first to start once the span has ended); null where there is none.
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
        """Starts of a thread's calls in lane times, the row of the call that returned last by then, and their rows.

        With a sentinel at each end of the lane: for the calls that start before the interval, and for the first one
        after it. A row is null where there is none.
        """
        first, stop = thread.begun_in(self.low, self.high)
        none, reached = pl.Series([None], dtype=pl.UInt32), thread.reached
        # the call that returned last is the first one at which the running maximum has its value
        last = thread.rows.slice(bisect_left(reached, reached.item(first - 1)), 1) if first else none
        rows, later = thread.rows.slice(first, stop - first), thread.rows.slice(stop, 1)
        begins = max(first - 1, 0)
        longer = (reached.slice(begins, stop - begins).diff() > 0).fill_null(value=True).slice(first - begins)
        earlier = pl.concat([last, rows.set(~longer, None)], rechunk=True).fill_null(strategy="forward")
        inside = gathered(thread.starts, rows).alias("start").to_frame()
        ends = (intervals.BEFORE_ALL, intervals.AFTER_ALL)
        low, high = (pl.Series([self.lanes.moved(time, lane)], dtype=pl.Int64) for time in ends)
        start = pl.concat([low, inside.select(self.lanes.placed(lane, "start")).to_series(), high])
        return start, pl.concat([earlier, none]), pl.concat([none, rows, later if len(later) else none])


@once_per_process
def threads(report: Report) -> dict[ThreadKey, Thread]:
    """Host threads with CUDA calls, by process id and thread id."""
    overheads = report.kind("overhead")
    every = _name_and_times(overheads).hstack(overheads.select(THREAD)).sort("start")
    parts, none, starts = parts_by(every, THREAD), every.clear(), report.kind("api").get_column("start_ns")
    times = {"start": pl.col("start_ns"), "end": pl.col("start_ns") + pl.col("dur_ns").fill_null(0)}
    found = {}
    for lanes, calls in laned(report.kind("api").select(*THREAD, row=pl.int_range(pl.len(), dtype=pl.UInt32), **times)):
        line = in_order(calls.drop(THREAD), "start").with_columns(pl.col("end").cum_max())
        for key, own in lanes.of_each(line):
            overheads = parts.get(key, none).select("start", "end", "name")
            found[key] = Thread(own.get_column("row"), starts, own.get_column("end"), overheads)
    return found


def _relabelled(done: pl.DataFrame, rows: pl.Series, chosen: pl.Series, label: pl.Expr) -> pl.DataFrame:
    """Replaces the label of the calls whose rows are among `chosen`; `rows` are those of `done`."""
    these = rows.is_in(chosen.implode()) if len(chosen) else None
    if these is None or not these.any():
        return done
    return done.with_columns(pl.when(these).then(label).otherwise("label").alias("label"))


def unseen_label(report: Report) -> pl.Expr:
    """The row of :func:`labels` for waits on work from before the recording."""
    return pl.lit(labels(report).height - 1, dtype=pl.UInt32)


def _name_and_times(events: pl.DataFrame) -> pl.DataFrame:
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return events.select("name", pl.col("start_ns").alias("start"), end.alias("end"))


def timeline(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Resolves overlaps of calls and overheads (start, end, label; sorted by start) by rank.

    Each instant goes to the label with the lowest of `ranks` (by label), among equals to the call that started first.
    Columns: start, end, label; sorted by start, disjoint.
    """
    line = calls.filter(pl.col("end") > pl.col("start")).select("start", "end", "label")
    alone_before = (pl.col("start") >= pl.col("end").cum_max().shift(1)).fill_null(value=True)
    alone = line.select(alone_before & alone_before.shift(-1, fill_value=True)).to_series()
    if alone.all():
        return line
    return pl.concat([line.filter(alone), _without_overlaps(line.filter(~alone), ranks)]).sort("start")


def _without_overlaps(calls: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    """Resolves overlapping calls by rank, on the elementary intervals between all their starts and ends."""
    cuts = pl.concat([calls.get_column("start"), calls.get_column("end")]).unique().sort()
    start, end = cuts.slice(0, len(cuts) - 1).alias("start"), cuts.slice(1).alias("end")
    calls = calls.with_columns(rank=ranks.gather(calls.get_column("label")))
    winner = pl.Series("label", [None], dtype=pl.UInt32).new_from_index(0, len(start))
    for rank in range(len(CALL_BUCKETS)):
        own = intervals.first_come(calls.filter(pl.col("rank") == rank))
        own = own.filter(pl.col("own_end") > pl.col("own_start"))
        if own.is_empty():
            continue
        # own pieces are sorted and disjoint: only the last that begins at or before a cut can cover it
        begun = own.get_column("own_start").search_sorted(start, side="right").cast(pl.Int64) - 1
        latest = begun.set(begun < 0, None)
        covers = own.get_column("own_end").gather(latest) > start
        label = own.get_column("label").gather(latest)
        winner = winner.zip_with(winner.is_not_null(), label.set(~covers.fill_null(value=False), None))
    pieces = pl.DataFrame([start, end, winner.alias("label")])
    return pieces.drop_nulls("label")
