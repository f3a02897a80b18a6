"""Which of a thread's events is the innermost one at any time: the one that started last of those that last."""

from __future__ import annotations

import polars as pl

from kanalyze.analyses._op_nesting import nested


def innermost_line(events: pl.DataFrame) -> pl.DataFrame:
    """The spans in which one of a thread's `events` (start, end, row) is the innermost: start, end, row; sorted, apart.

    An instant belongs to the event that started last of those that cover it, of those that started together to the one
    that ends first, then to the one that stands last. Two spans of one event may touch.
    """
    real = events.filter(pl.col("end") > pl.col("start")).sort(
        "start", "end", descending=[False, True], maintain_order=True
    )
    start, end, rows = (real.get_column(name) for name in ("start", "end", "row"))
    tree = nested(start, end)
    after = tree.get_column("stop")
    # an event that a later one outlasts is not the innermost any more when it ends; of others, what is around goes on
    begins_after = start.gather(after.set(after == len(start), None))
    ending = ~(begins_after < end).fill_null(value=False)
    places = pl.int_range(len(start), dtype=pl.Int64, eager=True)
    ends = pl.DataFrame({"at": end, "place": tree.get_column("parent")}).filter(ending).reverse()
    # of what happens at one time the last counts: ends from the inside out, then beginnings from the outside in
    edges = pl.concat([ends, pl.DataFrame({"at": start, "place": places})]).sort("at", maintain_order=True)
    last = edges.filter((pl.col("at") != pl.col("at").shift(-1)).fill_null(value=True))
    spans = last.select(start="at", end=pl.col("at").shift(-1), place="place").drop_nulls()
    return spans.select("start", "end", row=rows.gather(spans.get_column("place")))
