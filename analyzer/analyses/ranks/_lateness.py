"""Who is late, and why: the ledger since the group's previous collective, less that of the rank before it.

Definition: docs/definitions.md, section 11, "Who is late, and why".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

#: What remains: the rank was late already, left the previous collective later, or there was none in the recording.
EARLIER: Final = "earlier"


def lateness(job: Job) -> pl.DataFrame:
    """The lateness of each collective's last rank that no collective before it has told already.

    A rank whose partners wait beside other work stays behind them, and is the last to come to the next collectives too:
    only what it falls behind by there is new. What partners wait with an idle GPU brings them together again, and so
    does a new step.

    Columns: match, member, number, rank, step, lateness_ns, new_ns, cost_ns (exposed waiting of all others because of
    it), second (the member that came before it) and second_number; by arrival.
    """
    rows = job.rows.filter(pl.col("last_rank").is_not_null())
    last = pl.col("rank") == pl.col("last_rank")
    others = rows.filter(~last)
    costs = others.group_by("match").agg(cost_ns=pl.min_horizontal("exposed_wait_ns", "lateness_ns").sum())
    before = others.filter(pl.col("arrival_ns") - pl.col("corrected_ns") == pl.col("lateness_ns"))
    seconds = before.unique("match", keep="first", maintain_order=True).select(
        "match", second="member", second_number="number", idle="exposed_wait_ns"
    )
    found = rows.filter(last).select("match", "member", "number", "rank", "step", "lateness_ns", "arrival_ns")
    found = found.join(costs, on="match", how="left").join(seconds, on="match", how="left").sort("arrival_ns", "match")
    behind: dict[int, tuple[int | None, int]] = {}
    new = []
    for member, step, late_ns, idle_ns in found.select("member", "step", "lateness_ns", "idle").iter_rows():
        known_step, known = behind.get(member, (step, 0))
        carried = known if known_step == step else 0
        new.append(max(0, late_ns - carried))
        behind[member] = step, max(0, max(carried, late_ns) - idle_ns)
    return found.drop("idle", "arrival_ns").with_columns(new_ns=pl.Series(new, dtype=pl.Int64))


def causes(job: Job, late: pl.DataFrame) -> pl.DataFrame:
    """The rows of :func:`lateness` by cause.

    Columns: match, rank, step, bucket, ns; over the buckets of a collective they sum to its new_ns exactly.
    """
    late = late.filter(pl.col("new_ns") > 0)
    seconds = late.select("match", member="second", number="second_number")
    mine = late.select("match", "member", "number").join(job.before, on=["member", "number"], how="inner")
    theirs = seconds.join(job.before, on=["member", "number"], how="inner")
    # without a previous collective on both ranks there is nothing to compare
    both = mine.select("match").unique().join(theirs.select("match").unique(), on="match", how="inner")
    signed = pl.concat([mine.select("match", "bucket", "ns"), theirs.select("match", "bucket", -pl.col("ns"))])
    parts = signed.join(both, on="match", how="semi").group_by("match", "bucket").agg(pl.col("ns").sum())
    told = parts.group_by("match").agg(told=pl.col("ns").sum())
    rest = late.join(told, on="match", how="left").select(
        "match", bucket=pl.lit(EARLIER), ns=pl.col("new_ns") - pl.col("told").fill_null(0)
    )
    every = pl.concat([parts, rest]).filter(pl.col("ns") != 0)
    return late.select("match", "rank", "step").join(every, on="match", how="inner").sort("match", "bucket")
