"""Which sizes of graphs the steps of an engine replayed, what padding took, and which size to capture as well."""

from __future__ import annotations

import polars as pl

from kanalyze.analyses.serving._timed import GRAPH


def graph_sizes(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps of one device and kind by mode and size of graph: how many, their requests and times, and lost_ns.

    What padding took of a step is the median time at its size less what it would take at its requests: on the line
    between the medians at that size and at the one below. Null for the least size, of which nothing tells.
    """
    rows = steps.filter(pl.col("device").is_not_null() & pl.col("requests").is_not_null())
    size = pl.when(pl.col("mode") == GRAPH).then("padded").alias("padded")
    sums = rows.group_by("device", "kind", "mode", size).agg(
        count=pl.len().cast(pl.Int64),
        mean_requests=pl.col("requests").mean(),
        least_requests=pl.col("requests").min(),
        most_requests=pl.col("requests").max(),
        added=(pl.col("padded") - pl.col("requests")).sum(),
        dur_ns=pl.col("dur_ns").sum(),
        median_ns=pl.col("dur_ns").median(),
    )
    keys = ["device", "kind", "mode"]
    sums = sums.sort(*keys, "padded", descending=[False, False, True, False], nulls_last=True)
    longer, larger = (pl.col(name) - pl.col(name).shift(1).over(keys) for name in ("median_ns", "padded"))
    per, lost = longer.clip(0) / larger, (longer.clip(0) * pl.col("added") / larger).cast(pl.Int64)
    return sums.with_columns(per_request_ns=per, lost_ns=lost)


def size_to_capture(steps: pl.DataFrame, sizes: pl.DataFrame) -> tuple[int, float] | None:
    """The size of a graph that would save most of what padding takes, and how much (ns); None where none would."""
    rows = steps.filter(pl.col("mode") == GRAPH).join(
        sizes.select("device", "kind", "padded", "per_request_ns"), on=["device", "kind", "padded"]
    )
    asked = rows.filter(pl.col("requests") < pl.col("padded")).select("kind", "padded", "requests", "per_request_ns")
    other = asked.select("kind", "padded", size="requests").unique()
    saved = (pl.col("padded") - pl.col("size")) * pl.col("per_request_ns")
    tried = asked.join(other, on=["kind", "padded"]).filter(pl.col("requests") <= pl.col("size"))
    gains = tried.group_by("size").agg(saved.sum().alias("ns")).filter(pl.col("ns") > 0)
    best = gains.sort("ns", "size", descending=[True, False]).head(1)
    return None if best.is_empty() else (best.item(0, "size"), best.item(0, "ns"))
