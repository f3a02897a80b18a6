"""What ranges hold that are in each other like boxes: of each the operations of all that are inside it, and its own.

Operation by operation and range by range that is as many pairs as both numbers multiplied, where a program leaves a
thousand ranges open. So operations are summed where they are, and the sums are added up from the innermost outwards.
"""

from __future__ import annotations

import polars as pl

from kanalyze.analyses._common import longest


def chain_sums(work: pl.DataFrame, ranges: int) -> pl.DataFrame:
    """The sums of the ranges of a chain that hold any of `work` (start, end, first, around: the first so many hold it).

    Columns: place (in the chain), projected_start_ns, projected_ns, busy_ns, gpu_ops and operations, as those of
    :func:`kanalyze.analyses._projection.projection`.
    """
    own = work.group_by("around").agg(
        pl.col("start").min(),
        pl.col("end").max(),
        gpu_ops=pl.col("first").sum().cast(pl.Int64),
        operations=pl.len().cast(pl.Int64),
    )
    line = pl.DataFrame({"around": pl.int_range(1, ranges + 1, dtype=pl.UInt32, eager=True)})
    for part in (own, _deepest(work)):
        line = line.join(part, on="around", how="left", maintain_order="left")
    sums = line.select(
        pl.col("around") - 1,
        pl.col("start").cum_min(reverse=True).backward_fill(),
        pl.col("end").cum_max(reverse=True).backward_fill(),
        pl.col("busy_ns", "gpu_ops", "operations").fill_null(0).cum_sum(reverse=True),
    )
    return sums.filter(pl.col("operations") > 0).select(
        "busy_ns",
        "gpu_ops",
        "operations",
        place="around",
        projected_start_ns="start",
        projected_ns=pl.col("end") - pl.col("start"),
    )


def _deepest(work: pl.DataFrame) -> pl.DataFrame:
    """For how long the innermost range with an operation that ran was which: columns around, busy_ns.

    The time is cut where operations start and end. An operation covers neighbouring pieces: as two runs of pieces, of a
    power of two each, which are halved until every piece knows the most of what covers it.
    """
    work = work.select("around", "start", "end").filter((pl.col("around") > 0) & (pl.col("end") > pl.col("start")))
    edges = pl.concat([work.get_column("start"), work.get_column("end").alias("start")]).unique().sort()
    first = edges.search_sorted(work.get_column("start"))
    after = edges.search_sorted(work.get_column("end"))
    runs = pl.DataFrame({"around": work.get_column("around"), "first": first, "pieces": after - first})
    most, length = pl.zeros(len(edges), dtype=pl.UInt32, eager=True), 1
    while length * 2 <= longest(runs, "pieces"):
        length *= 2
    while length:
        fits = (pl.col("pieces") >= length) & (pl.col("pieces") < 2 * length)
        own = runs.filter(fits).with_columns(last=pl.col("first") + pl.col("pieces") - length)
        for side in ("first", "last"):
            found = own.group_by(side).agg(pl.col("around").max())
            at = found.get_column(side)
            both = pl.select(pl.max_horizontal(most.gather(at), found.get_column("around"))).to_series()
            most = most.scatter(at, both)
        length //= 2
        if length:
            most = pl.select(pl.max_horizontal(most, most.shift(length, fill_value=0))).to_series()
    took = pl.DataFrame({"around": most, "ns": edges.shift(-1) - edges})
    return took.group_by("around").agg(busy_ns=pl.col("ns").sum())
