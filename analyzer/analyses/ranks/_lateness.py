"""Who is late, and why: the ledger since the group's previous collective, less that of the rank before it.

Definition: docs/definitions.md, section 11, "Who is late, and why".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from kanalyze.analyses.communication._matching import POINT_TO_POINT
from kanalyze.analyses.ranks._gathered import step_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kanalyze.analyses.communication._matching import Ints, Matches
    from kanalyze.analyses.communication._waits import Clocks, Exposed
    from kanalyze.analyses.ranks._job import Job

#: What remains: the rank was late already, left the previous collective later, or there was none in the recording.
EARLIER: Final = "earlier"


#: What ranks of several groups wait in one of them is passed on to the others from this time on.
_PASSED_ON_NS: Final = 1_000

#: What is new and less than this part of a lateness is how much computing varies, and is not told.
_SCATTER: Final = 0.05


#: Collectives between two ranks, as a pipeline has them; a kernel of several sends and receives is one, too.
IN_PAIRS: Final = pl.col("kind").is_in([*POINT_TO_POINT, "send_recv"])


def costs(found: Matches, clocks: Clocks, matches: pl.DataFrame, exposed: Exposed) -> list[pl.Series]:
    """Exposed waiting and transfer of each collective over its ranks, and what of the waiting is for the last rank.

    Columns exposed_wait_ns, exposed_transfer_ns, cost_ns.
    """
    late = matches.get_column("lateness_ns").fill_null(0).to_numpy()
    last = matches.get_column("last").fill_null(0).to_numpy()
    sums = np.zeros((3, found.number), dtype=np.int64)
    for one in found.slices(clocks.cuts):
        own = slice(one.low, one.low + len(one.first))
        wait = exposed.wait[one.at]
        sums[0, own], sums[1, own] = one.sums(wait), one.sums(exposed.transfer[one.at])
        sums[2, own] = one.sums(np.minimum(wait, late[own][one.which]))
    sums[2] -= np.minimum(exposed.wait[last] if len(exposed.wait) else 0, late)
    names = ("exposed_wait_ns", "exposed_transfer_ns", "cost_ns")
    return [pl.Series(name, one) for name, one in zip(names, sums, strict=True)]


def lateness(job: Job) -> pl.DataFrame:
    """The lateness of each collective's last rank that no collective before it has told already.

    A rank whose partners wait beside other work stays behind them, and is the last to come to the next collectives too:
    only what it falls behind by there is new. What partners wait with an idle GPU brings them together again, in that
    group; and so does a new step. Without a GPU they wait in a thread beside the program, which brings nobody together.
    A rank that waited in one group is as late in its other groups, and not by itself. Between two ranks nobody is late:
    the stages of a pipeline wait for each other as they are meant to.

    Columns: match, member, number, rank, step, lateness_ns, new_ns, cost_ns (exposed waiting of all others because of
    it), second (the member that came before it) and second_number; by arrival.
    """
    rows = job.collected
    told = job.matches.with_row_index("match").drop_nulls("last").sort("arrival_ns", "match")
    last, second = (told.get_column(name).to_numpy() for name in ("last", "second"))
    on_gpu = job.ranks.get_column("device").is_not_null().to_numpy()
    lanes = rows.calls.select(pl.struct("group", "size").rank("dense").cast(pl.Int64)).to_series()
    found = told.select(
        pl.col("match").cast(pl.Int64),
        member=pl.Series(rows.member[last], dtype=pl.Int64),
        number=pl.Series(last - rows.first[rows.member[last]]),
        rank=job.ranks.get_column("rank").gather(rows.member[last]),
        step=step_of(job.steps, rows.member[last], rows.inside[last]),
        lateness_ns="lateness_ns",
        cost_ns="cost_ns",
        second=pl.Series(rows.member[second], dtype=pl.Int64),
        second_number=pl.Series(second - rows.first[rows.member[second]]),
        idle=pl.Series(np.where(on_gpu[rows.member[second]], job.exposed.wait[second], 0)),
        lane=lanes.gather(rows.call[last]),
        pair=rows.calls.select(IN_PAIRS).to_series().gather(rows.call[last]),
    ).with_columns(cost_ns=pl.when("pair").then(0).otherwise("cost_ns"))
    passed_on = _passed_on(job, found, lanes.to_numpy())
    return found.drop("idle", "lane", "pair").with_columns(new_ns=_new(found, passed_on))


def _passed_on(job: Job, late: pl.DataFrame, lanes: Ints) -> Iterator[tuple[list[int], list[int]]]:
    """Waiting of ranks of several groups in each collective of `late`: members and times."""
    rows, found = job.collected, job.found
    last = job.matches.get_column("last").fill_null(-1).to_numpy()
    known = found.match >= 0
    known &= (last >= 0)[np.where(known, found.match, 0)] if len(last) else known
    lanes_of = pl.DataFrame({"member": rows.member[known], "lane": lanes[rows.call[known]]}).unique()
    several = np.zeros(len(rows.first), dtype=np.bool_)
    counts = lanes_of.group_by("member").len().filter(pl.col("len") > 1)
    several[counts.get_column("member").to_numpy()] = True
    for match in late.get_column("match"):
        at = found.order[found.first[match] : found.first[match + 1]]
        at = at[several[rows.member[at]] & (job.exposed.wait[at] >= _PASSED_ON_NS) & (at != last[match])]
        yield rows.member[at].tolist(), job.exposed.wait[at].tolist()


def _new(found: pl.DataFrame, passed_on: Iterable[tuple[list[int], list[int]]]) -> pl.Series:
    """New part of each lateness, in the order of arrival."""
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

    columns = ("member", "second", "step", "lane", "lateness_ns", "idle", "pair")
    for (member, second, step, lane, late_ns, idle_ns, pair), waited in zip(
        found.select(columns).iter_rows(), passed_on, strict=True
    ):
        carried = max(0, lag(member, lane, step) - lag(second, lane, step))
        own = max(0, late_ns - carried)
        own = own if own > _SCATTER * late_ns and not pair else 0
        new.append(own)
        behind[member] = behind.get(member, 0) + own
        add(member, lane, 0 if pair else idle_ns)
        for other, ns in zip(*waited, strict=True):
            lag(other, lane, step)
            behind[other] = behind.get(other, 0) + ns
            add(other, lane, ns)
    return pl.Series("new_ns", new, dtype=pl.Int64)


def causes(job: Job, late: pl.DataFrame) -> pl.DataFrame:
    """The rows of :func:`lateness` by cause.

    Columns: match, rank, step, bucket, ns; over the buckets of a collective they sum to its new_ns exactly.
    """
    late = late.filter(pl.col("new_ns") > 0)
    # without a previous collective on both ranks there is nothing to compare
    both = _ledgers(job, late).filter(pl.col("own").n_unique().over("match") > 1)
    parts = both.group_by("match", "bucket").agg(pl.col("ns").sum())
    told = parts.group_by("match").agg(told=pl.col("ns").sum())
    rest = late.join(told, on="match", how="left").select(
        "match", bucket=pl.lit(EARLIER), ns=pl.col("new_ns") - pl.col("told").fill_null(0)
    )
    every = _without_carried(pl.concat([parts, rest])).filter(pl.col("ns") != 0)
    return late.select("match", "rank", "step").join(every, on="match", how="inner").sort("match", "bucket")


def details(job: Job, late: pl.DataFrame) -> pl.DataFrame:
    """Details of the causes by bucket: of the late rank, less that of the rank before it.

    Columns: match, rank, step, bucket, detail, ns.
    """
    every = _ledgers(job, late.filter(pl.col("new_ns") > 0)).drop_nulls("detail")
    sums = every.group_by("match", "bucket", "detail").agg(pl.col("ns").sum())
    return late.select("match", "rank", "step").join(sums, on="match", how="inner").sort("match", "detail")


def _ledgers(job: Job, late: pl.DataFrame) -> pl.DataFrame:
    """The ledgers since the previous collective: match, bucket, detail, own, ns.

    They are the late rank's own, and those of the rank before it, with the times less than nothing.
    """
    sides = (
        late.select("match", "member", "number", own=pl.lit(value=True)),
        late.select("match", member="second", number="second_number", own=pl.lit(value=False)),
    )
    found = pl.concat(sides).join(job.before, on=["member", "number"], how="inner")
    signed = pl.when("own").then("ns").otherwise(-pl.col("ns"))
    return found.select("match", "bucket", "detail", "own", ns=signed)


def _without_carried(parts: pl.DataFrame) -> pl.DataFrame:
    """The causes without kernels that the rank before it had run while it waited, in an earlier collective.

    Where the late rank was behind already, `earlier` is less than nothing, and the kernels are among its own now.
    """
    sums = parts.group_by("match").agg(
        kernel=pl.col("ns").filter(pl.col("bucket") == "kernel").sum(),
        earlier=pl.col("ns").filter(pl.col("bucket") == EARLIER).sum(),
    )
    both = pl.min_horizontal(pl.col("kernel"), -pl.col("earlier")).clip(lower_bound=0)
    told = parts.join(sums.select("match", both=both), on="match", how="left", maintain_order="left")
    sign = pl.when(pl.col("bucket") == "kernel").then(-1).when(pl.col("bucket") == EARLIER).then(1).otherwise(0)
    return told.select("match", "bucket", ns=pl.col("ns") + sign * pl.col("both"))
