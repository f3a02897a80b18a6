"""The call tree of host events, as torch's own profiler builds it.

Events of one thread nest by :mod:`kanalyze.analyses.shared.thread_nesting`. An only child with its parent's name is
removed; its children and launches become the parent's
(torch.autograd.profiler_util, EventList._remove_dup_nodes).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import nested
from kanalyze.columns.lookup import first_rows, gathered

_FIRST: Final = pl.Series([0], dtype=pl.Int64)


class HostTree(NamedTuple):
    """The host events that torch counts, and the event that each removed one is counted as.

    Attributes:
        rows: The counted events, by thread and start. Columns: event_id, kind, name, start, end, process_id, thread_id,
            parent (its row; null for none), stop (the first later row that is not inside it), self_ns (its time without
            its children's; negative if these overlap), last_id (the innermost of the events counted as it).
        threads: The first row and the number of rows of each thread: columns process_id, thread_id, begin, count.
        ids: The ids of all events.
        places: The row that each of them is counted as.
    """

    rows: pl.DataFrame
    threads: pl.DataFrame
    ids: pl.Series
    places: pl.Series

    def row_of(self, event_ids: pl.Series) -> pl.Series:
        """The rows that events are counted as; null for ids of no host event."""
        return gathered(self.places, first_rows(self.ids, event_ids))

    def of_kinds(self, *kinds: str) -> pl.Series:
        """A mask of the rows of these `kinds`."""
        return self.rows.select(pl.col("kind").is_in(kinds)).to_series()

    def nearest(self, rows: pl.Series, wanted: pl.Series) -> pl.Series:
        """The nearest enclosing row, or the row itself, that is `wanted` (a mask of all rows); null for none."""
        parents = self.rows.get_column("parent")
        while (further := ~gathered(wanted, rows).fill_null(value=True)).any():
            rows = rows.zip_with(~further, gathered(parents, rows))
        return rows

    def innermost(self, points: pl.DataFrame, wanted: pl.Series) -> pl.Series:
        """The innermost row that is `wanted` around each of `points` (process_id, thread_id, at); null for none."""
        numbered = points.select(*THREAD, "at").with_row_index("point")
        found = pl.Series([None], dtype=pl.Int64).new_from_index(0, points.height)
        starts, ends, parents = (self.rows.get_column(name) for name in ("start", "end", "parent"))
        known = numbered.join(self.threads, on=list(THREAD), nulls_equal=True)
        for part in known.partition_by("begin"):
            begin, count = part.select("begin", "count").row(0)
            at = part.get_column("at")
            row = starts.slice(begin, count).search_sorted(at, side="right").cast(pl.Int64) + (begin - 1)
            row = row.set(row < begin, None)
            while (over := (ends.gather(row) <= at).fill_null(value=False)).any():
                row = row.zip_with(~over, parents.gather(row))
            found = found.scatter(part.get_column("point"), self.nearest(row, wanted))
        return found


def in_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sorts events by thread, start, and descending duration; stable."""
    order = [False, False, False, True]
    return events.sort(*THREAD, "start", "end", descending=order, maintain_order=True)


def tree_of(events: pl.DataFrame) -> HostTree:
    """The call tree of `events`, sorted by :func:`in_order`.

    They have the columns of `rows` except parent, stop, self_ns and last_id; further columns are kept.
    """
    threads = _threads(events)
    events = events.hstack(_nested(events, threads).get_columns())
    parent = pl.col("parent") == pl.int_range(pl.len(), dtype=pl.Int64) - 1
    alone = parent & (pl.col("stop") == pl.col("stop").shift(1))
    kept = ~events.select((alone & (pl.col("name") == pl.col("name").shift(1))).fill_null(value=False)).to_series()
    ranks = kept.cast(pl.Int64).cum_sum() - 1
    ids = events.get_column("event_id")
    rows = events.with_columns(pl.col("event_id").alias("last_id"))
    if not kept.all():
        rows, threads = _without_doubles(rows, kept, ranks), _renumbered(threads, ranks)
    own = pl.col("end") - pl.col("start") - pl.col("inner_ns")
    return HostTree(rows.with_columns(own.alias("self_ns")).drop("inner_ns"), threads, ids, ranks)


def _threads(events: pl.DataFrame) -> pl.DataFrame:
    another = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in THREAD)
    begin = events.select(another | (pl.int_range(pl.len()) == 0)).to_series().arg_true().cast(pl.Int64)
    count = begin.shift(-1, fill_value=events.height) - begin
    return events.select(pl.col(THREAD).gather(begin)).with_columns(count.alias("count"), begin.alias("begin"))


def _nested(events: pl.DataFrame, threads: pl.DataFrame) -> pl.DataFrame:
    start, end = events.get_column("start"), events.get_column("end")
    found = [nested(start.clear(), end.clear())]
    for begin, count in threads.select("begin", "count").iter_rows():
        tree = nested(start.slice(begin, count), end.slice(begin, count))
        found.append(tree.with_columns(pl.col("parent", "stop") + begin))
    return pl.concat(found)


def _without_doubles(rows: pl.DataFrame, kept: pl.Series, ranks: pl.Series) -> pl.DataFrame:
    """The kept rows; each dropped row follows the one that it is counted as."""
    last = kept.arg_true().cast(pl.Int64).shift(-1, fill_value=len(kept)) - 1
    told = rows.select(pl.col("last_id", "inner_ns").gather(last))
    found = rows.filter(kept)
    before = pl.concat([_FIRST, ranks + 1])
    return found.with_columns(
        gathered(ranks, found.get_column("parent")).alias("parent"),
        before.gather(found.get_column("stop")).alias("stop"),
        *told.get_columns(),
    )


def _renumbered(threads: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    begin = ranks.gather(threads.get_column("begin"))
    count = begin.shift(-1, fill_value=int(ranks[-1]) + 1) - begin
    return threads.with_columns(begin.alias("begin"), count.alias("count"))


def sums_by(rows: pl.Series, values: pl.Series, count: int) -> pl.Series:
    """The sum of `values` per row, for `count` rows; null rows are ignored."""
    sums = pl.DataFrame({"row": rows, "value": values}).drop_nulls("row").group_by("row").agg(pl.col("value").sum())
    return pl.zeros(count, dtype=pl.Int64, eager=True).scatter(sums.get_column("row"), sums.get_column("value"))


def in_subtrees(rows: pl.DataFrame, own: pl.Series) -> pl.Series:
    """The sum of `own` over the subtree of each row."""
    before = pl.concat([_FIRST, own.cum_sum()])
    return before.gather(rows.get_column("stop")) - before.head(rows.height)
