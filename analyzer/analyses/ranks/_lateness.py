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


#: What ranks of several groups wait in one of them is passed on to the others from this time on.
_PASSED_ON_NS: Final = 1_000

#: What is new and less than this part of a lateness is how much computing varies, and is not told.
_SCATTER: Final = 0.05

_GROUP: Final = ("group", "size")

#: What a rank waited with an idle GPU; without a GPU a thread waits beside the program's own.
_IDLE_NS: Final = pl.when(pl.col("device").is_not_null()).then("exposed_wait_ns").otherwise(0)


def lateness(job: Job) -> pl.DataFrame:
    """The lateness of each collective's last rank that no collective before it has told already.

    A rank whose partners wait beside other work stays behind them, and is the last to come to the next collectives too:
    only what it falls behind by there is new. What partners wait with an idle GPU brings them together again, in that
    group; and so does a new step. Without a GPU they wait in a thread beside the program, which brings nobody together.
    A rank that waited in one group is as late in its other groups, and not by itself.

    Columns: match, member, number, rank, step, lateness_ns, new_ns, cost_ns (exposed waiting of all others because of
    it), second (the member that came before it) and second_number; by arrival.
    """
    rows = job.rows.filter(pl.col("last_rank").is_not_null())
    rows = rows.with_columns(lane=pl.struct(_GROUP).rank("dense"))
    last = pl.col("rank") == pl.col("last_rank")
    others = rows.filter(~last)
    costs = others.group_by("match").agg(cost_ns=pl.min_horizontal("exposed_wait_ns", "lateness_ns").sum())
    before = others.filter(pl.col("arrival_ns") - pl.col("corrected_ns") == pl.col("lateness_ns"))
    seconds = before.unique("match", keep="first", maintain_order=True).select(
        "match", second="member", second_number="number", idle=_IDLE_NS
    )
    found = rows.filter(last).select("match", "member", "number", "rank", "step", "lateness_ns", "arrival_ns", "lane")
    found = found.join(costs, on="match", how="left").join(seconds, on="match", how="left").sort("arrival_ns", "match")
    return found.drop("idle", "arrival_ns", "lane").with_columns(new_ns=_new(found, _passed_on(rows, others)))


def _passed_on(rows: pl.DataFrame, others: pl.DataFrame) -> dict[int, list[tuple[int, int]]]:
    """What ranks of several groups waited in each collective: member and time, by match."""
    several = rows.group_by("member").agg(pl.col("lane").n_unique()).filter(pl.col("lane") > 1)
    waits = others.filter(pl.col("exposed_wait_ns") >= _PASSED_ON_NS).join(several, on="member", how="semi")
    found: dict[int, list[tuple[int, int]]] = {}
    for match, member, ns in waits.select("match", "member", "exposed_wait_ns").iter_rows():
        found.setdefault(match, []).append((member, ns))
    return found


def _new(found: pl.DataFrame, passed_on: dict[int, list[tuple[int, int]]]) -> pl.Series:
    """What of each lateness is new, in the order of arrival."""
    behind: dict[int, int] = {}  # by how much a member fell behind, or was held up, in the step
    caught_up: dict[tuple[int, int], int] = {}  # what of that the partners in a group have waited for
    steps: dict[int, int | None] = {}
    lanes: dict[int, set[int]] = {}
    new = []

    def lag(member: int, lane: int, step: int | None) -> int:
        if steps.get(member, step) != step:
            behind[member] = 0
            for other in lanes.pop(member, ()):
                caught_up.pop((member, other), None)
        steps[member] = step
        return behind.get(member, 0) - caught_up.get((member, lane), 0)

    def add(member: int, lane: int, ns: int) -> None:
        caught_up[member, lane] = min(behind.get(member, 0), caught_up.get((member, lane), 0) + ns)
        lanes.setdefault(member, set()).add(lane)

    columns = ("match", "member", "second", "step", "lane", "lateness_ns", "idle")
    for match, member, second, step, lane, late_ns, idle_ns in found.select(columns).iter_rows():
        carried = max(0, lag(member, lane, step) - lag(second, lane, step))
        own = max(0, late_ns - carried)
        own = own if own > _SCATTER * late_ns else 0
        new.append(own)
        behind[member] = behind.get(member, 0) + own
        add(member, lane, idle_ns)
        for other, ns in passed_on.get(match, ()):
            lag(other, lane, step)
            behind[other] = behind.get(other, 0) + ns
            add(other, lane, ns)
    return pl.Series("new_ns", new, dtype=pl.Int64)


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
