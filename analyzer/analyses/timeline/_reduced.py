"""Reduction of the events of a timeline: the longest stay single, the rest are summed in bins of time."""

from __future__ import annotations

from typing import Final

import polars as pl

#: The part of the events that stay single, where there are too many.
_SINGLE: Final = 0.6

#: Fewest bins that the time is cut into.
_FEWEST: Final = 256

_KEYS: Final = ("track", "lane", "tone")


def reduced(events: pl.DataFrame, length_ns: int, most: int) -> pl.DataFrame:
    """Sums short events in bins where there are more than `most`; adds covered_ns and count.

    Args:
        events: track, lane, start, end, name, tone and others, any order.
        length_ns: Time that is shown.
        most: Number of events to keep, about.

    Returns:
        Sorted by track, lane, `several` and start. An event with a count above 1 stands for those of one tone in a bin:
        from the first start to the last end, covered_ns of it, with the name of the longest.
    """
    single = events.with_columns(covered_ns=pl.col("end") - pl.col("start"), count=pl.lit(1, dtype=pl.UInt32))
    order = ("track", "lane", "several", "start")
    if events.height <= most:
        return single.with_columns(several=pl.lit(value=False)).sort(*order, maintain_order=True)
    kept = int(most * _SINGLE)
    threshold = int(single.get_column("covered_ns").top_k(kept).min())  # type: ignore[arg-type]
    long = single.filter(pl.col("covered_ns") > threshold)
    short = single.filter(pl.col("covered_ns") <= threshold)
    bins = max((most - kept) // max(short.select(_KEYS).n_unique(), 1), _FEWEST)
    width = max(-(-length_ns // bins), 1)
    first = pl.col("start").min()
    by_bin = short.group_by(*_KEYS, (pl.col("start") // width).alias("bin"), maintain_order=True).agg(
        pl.all().exclude("start", "end", "covered_ns", "count").get(pl.col("covered_ns").arg_max()),
        first,
        pl.col("end").max(),
        pl.col("covered_ns").sum(),
        pl.len().alias("count"),
    )
    summed = by_bin.drop("bin").with_columns(several=pl.col("count") > 1).select(*long.columns, "several")
    return pl.concat([long.with_columns(several=pl.lit(value=False)), summed]).sort(*order, maintain_order=True)
