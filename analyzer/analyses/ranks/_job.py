"""A job: the reductions of all its ranks put together, matched, timed by one clock; and who is late in it, and why.

The cause is the ledger since the group's previous collective, less that of the rank before it. Definition:
docs/definitions.md, section 11, "Who is late, and why".
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from kanalyze.analyses import homes_of_jobs
from kanalyze.analyses.communication._matching import HOW, POINT_TO_POINT, Ints, Matches, Rows, matched
from kanalyze.analyses.communication._waits import CANNOT_TELL, Clocks, Exposed, bytes_of, clocks_of, split, waits
from kanalyze.analyses.ranks._reducing import Turn, later, numbered_ranks, put_together, step_of
from kanalyze.reduction.tables import TABLES, Reduction, together


@dataclass(frozen=True)
class Job:
    """A job, rank by rank."""

    kind: ClassVar[Literal["job"]] = "job"  # kind of page, by which renderers dispatch without importing the class

    #: The ranks that were read: member (their place here), rank, host, clock and the columns of :data:`RANKS`; sorted
    #: by rank.
    ranks: pl.DataFrame
    collected: Rows  # the collectives of all ranks
    found: Matches  # which of them are the same
    #: What was waited and transferred in each of these, as :func:`waits` tells, with exposed_wait_ns,
    #: exposed_transfer_ns and cost_ns (exposed waiting of all others because of the last rank).
    matches: pl.DataFrame
    exposed: Exposed  # the exposed time of collectives
    steps: pl.DataFrame  # the steps of all ranks with their ledgers, `step` the same number for the same step
    before: pl.DataFrame  # the ledgers before collectives of those that came last, or before them: :data:`BEFORE`
    costs: pl.DataFrame  # by how much their recorders delayed these, at most: :data:`COSTS`
    kernels: pl.DataFrame  # kernels of ranks: member, name, count, ns
    clocks: Clocks  # the offsets of clocks
    doubts: tuple[tuple[str, int, str], ...]  # what is in doubt: check, count, effect
    paths: tuple[str, ...] = ()  # what was given
    _made: dict[str, pl.DataFrame] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        """A table of this room, such as ``collectives``."""
        if name not in self._made:
            self._made[name] = getattr(import_module(homes_of_jobs()[name]), name)(self)
        return self._made[name]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables, by name."""
        return {name: self.table(name) for name in homes_of_jobs()}

    def rows_at(self, at: npt.NDArray[np.integer[Any]]) -> pl.DataFrame:
        """Collectives on each rank, those of some rows of `collected`, in the order given."""
        rows, match = self.collected, self.found.match[at]
        member, known = rows.member[at], match >= 0
        clock = self.ranks.get_column("clock").to_numpy()[member]
        offset, error = np.zeros((2, len(at)), dtype=np.int64)
        offset[known] = self.clocks.ahead(match[known], clock[known])
        error[known] = self.clocks.error[self.clocks.node(match[known], clock[known])]
        number = pl.Series("match", match, dtype=pl.Int64).set(pl.Series(~known), None)
        own = pl.DataFrame(
            {
                "match": number,
                "how": HOW.gather(pl.Series(self.found.how).gather(number)),
                "member": member,
                "number": at - rows.first[member],
                "start_ns": rows.start[at],
                "dur_ns": rows.dur[at],
                "exposed_ns": rows.exposed[at],
                "offset_ns": offset,
                "error_ns": error,
                "corrected_ns": rows.start[at] - offset,
                "step": step_of(self.steps, member, rows.inside[at]),
                "exposed_wait_ns": pl.Series(self.exposed.wait[at]).set(pl.Series(~known), None),
                "exposed_transfer_ns": pl.Series(self.exposed.transfer[at]).set(pl.Series(~known), None),
                "own_bytes": bytes_of(rows.calls).gather(rows.call[at]),
            }
        )
        of_match = self.matches.select(pl.col(_OF_MATCH).gather(number))
        ranks = self.ranks.select("rank", "device", "clock")
        last = ranks.get_column("rank").gather(pl.Series(rows.member).gather(of_match.get_column("last")))
        of_calls = rows.calls.drop("member", "ranks")[rows.call[at]]
        parts = [own, of_match.drop("last").with_columns(last.alias("last_rank")), of_calls, ranks[member]]
        matched = pl.col("match").is_not_null()
        wait = pl.max_horizontal(0, pl.min_horizontal(pl.col("arrival_ns") - pl.col("corrected_ns"), "dur_ns"))
        joined: pl.DataFrame = pl.concat(parts, how="horizontal").with_columns(
            pl.coalesce("bytes", pl.when(~matched).then("own_bytes")),
            pl.col("class").fill_null(CANNOT_TELL),
            wait_ns=pl.when(matched).then(wait),
        )
        return joined.with_columns(transfer_ns=pl.col("dur_ns") - pl.col("wait_ns")).drop("own_bytes")

    @cached_property
    def lateness(self) -> pl.DataFrame:
        """New lateness of each collective; see :func:`lateness`."""
        return lateness(self)

    @cached_property
    def causes(self) -> pl.DataFrame:
        """New lateness by cause, in sums of a rank's step: rank, step, bucket, detail, ns."""
        sums = causes(self, self.lateness).group_by("rank", "step", "bucket", "detail").agg(pl.col("ns").sum())
        return sums.sort("ns", "bucket", "detail", descending=[True, False, False])

    @cached_property
    def offsets(self) -> pl.DataFrame:
        """The ranks with the mean offset of their clock, and what moves times of their report to the job's."""
        means = self.clocks.table.group_by("clock").agg(offset_ns=pl.col("offset_ns").mean().cast(pl.Int64))
        ranks = self.ranks.join(means, on="clock", how="left").with_columns(pl.col("offset_ns").fill_null(0))
        return ranks.with_columns(shift_ns=pl.col("origin_ns") - pl.col("offset_ns") - self.origin_ns)

    @property
    def world_size(self) -> int:
        """Ranks of the job, as the reports tell, at least those that were read."""
        sizes = self.ranks.get_column("world_size").drop_nulls()
        return max(self.ranks.height, int(sizes.max()) if len(sizes) else 0)  # type: ignore[arg-type]

    @property
    def missing(self) -> list[int]:
        """The ranks of the job that were not read."""
        return sorted({*range(self.world_size)} - {*self.ranks.get_column("rank")})

    @property
    def origin_ns(self) -> int:
        """Unix time of the origin of the times that are told."""
        return int(self.ranks.item(0, "origin_ns"))


#: What rows have of their collective.
_OF_MATCH: Final = (
    "present", "arrival_ns", "moved_ns", "by_shortest", "doubt_ns", "last", "lateness_ns", "class", "bytes",
    "algbw_bytes_per_s", "busbw_bytes_per_s",
)  # fmt: skip


def job_of(reductions: Sequence[Reduction] | Turn, *, one_host: bool = False) -> Job:
    """Puts the reductions of a job together: all of them, or what gives their tables in turns, since all take memory.

    With `one_host` all ranks have one clock, also where the reports do not tell their host.

    Raises:
        NoJobError: There is no rank.
        BadReductionError: Rows of a reduction are not of its collectives.
    """
    doubts: list[tuple[str, int, str]] = []
    whole = [] if callable(reductions) else [together([one for one in reductions if one])]
    read = reductions if callable(reductions) else lambda _: whole
    ranks, members = numbered_ranks(read, doubts, one_host=one_host)
    rows, tables = put_together(read, members, ranks)
    clock = ranks.get_column("clock").to_numpy()
    steps, member, inside = tables["steps"].sort("member", "index"), rows.member, rows.inside
    numbered = steps.height > 0 and steps.get_column("numbered").all()

    def numbers(at: Ints) -> Ints:
        """The program's own number of the step of rows, -1 outside."""
        return step_of(steps, member[at], inside[at]).fill_null(-1).to_numpy()

    matching = matched(rows, clock, numbers if numbered else None)
    rows = replace(rows, sequence=rows.sequence[:0], id=rows.id[:0])
    doubts += matching.doubts
    clocks = clocks_of(rows, matching, clock, int(clock[0]), int(ranks.item(0, "origin_ns")))
    matches = waits(rows, matching, clocks, clock)
    doubts += _doubts_of(ranks, rows, matching, matches, len(clocks.broken))
    exposed, before, recorders = _split(later(read, members, ranks, rows), ranks, rows, matching, matches, clocks)
    sums: Counter[tuple[str, str]] = Counter()
    for check, number, effect in doubts:
        sums[check, effect] += number
    return Job(
        ranks=ranks,
        collected=rows,
        found=matching,
        matches=matches.with_columns(costs(matching, clocks, matches, exposed)),
        exposed=exposed,
        steps=steps if numbered else _same_steps(steps, rows, matching),
        before=before,
        costs=recorders,
        kernels=tables["kernels"],
        clocks=clocks,
        doubts=tuple((check, number, effect) for (check, effect), number in sums.items()),
    )


def _split(  # noqa: PLR0913 - all that is known of collectives so far
    parts: Iterable[dict[str, tuple[pl.DataFrame, Ints]]],
    ranks: pl.DataFrame,
    rows: Rows,
    matching: Matches,
    matches: pl.DataFrame,
    clocks: Clocks,
) -> tuple[Exposed, pl.DataFrame, pl.DataFrame]:
    """The exposed time of collectives, and of those that came last or before it their ledgers and recorders' costs."""
    by_step = ("member", "step", "exposed_wait_ns", "exposed_transfer_ns", "unmatched_ns")
    none = pl.DataFrame(schema=dict.fromkeys(by_step, pl.Int64))
    into = Exposed(np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64), [none])
    needed = np.zeros(len(rows), dtype=np.bool_)
    for name in ("last", "second"):
        needed[matches.get_column(name).drop_nulls().to_numpy()] = True
    arrival, clock = matches.get_column("arrival_ns").to_numpy(), ranks.get_column("clock").to_numpy()
    kept = {name: [TABLES[name].empty()] for name in ("before", "costs")}
    for tables in parts:
        pieces, at = tables["pieces"]
        match = matching.match[at]
        known = match >= 0
        came = np.full(len(at), -1, dtype=np.int64)
        # by the clock of the rank itself
        came[known] = arrival[match[known]] + clocks.ahead(match[known], clock[rows.member[at[known]]])
        split(pieces, at, came, into)
        for name, parts_of_it in kept.items():
            table, at = tables[name]
            parts_of_it.append(TABLES[name].select(table.filter(pl.Series(needed[at]))))
    before, recorders = map(pl.concat, kept.values())
    return into, before, recorders


def _doubts_of(
    ranks: pl.DataFrame, rows: Rows, matching: Matches, matches: pl.DataFrame, broken: int
) -> list[tuple[str, int, str]]:
    """Doubts about ranks, so many parts of the run with broken clocks, and collectives."""
    sizes = ranks.get_column("world_size").drop_nulls().to_list()
    pairs = rows.calls.select(IN_PAIRS).to_series().gather(matches.get_column("call"))
    silent = int((np.diff(rows.first) == 0).sum())
    kinds = pl.col("recorded").str.split(" ").list.filter(~pl.element().is_in(_AS_THEY_COME)).list.sort().list.join(" ")
    alike = ranks.group_by("tool", kinds, "corrected").len()
    numbers = (
        ranks.height - max(sizes) if sizes else 0,
        ranks.height - max(alike.get_column("len")),
        int(ranks.get_column("on_cpu").sum()),
        broken,
        silent if len(rows.first) > 2 else 0,  # noqa: PLR2004 - one has nobody to meet
        len(matching.match) - int(matching.first[-1]),
        matches.filter(pl.col("present") < pl.col("size")).height,
        int(pairs.sum()),
    )
    return [(check, number, effect) for (check, effect), number in zip(_DOUBTS, numbers, strict=True) if number > 0]


#: Kinds of events that a report has only where they came.
_AS_THEY_COME: Final = ("range", "fault", "memory")

#: The doubt of whom others wait for in sends and receives.
SENDS: Final = "sends and receives"

#: What is in doubt about a job, in the order of the numbers that :func:`_doubts_of` counts, and what that means.
_DOUBTS: Final = (
    (
        "more ranks than the job has",
        "reports of several runs or tools may be taken for several ranks: give those of one run and one tool",
    ),
    ("ranks recorded otherwise than most", "a rank of which more is recorded is slower for it, and may look late"),
    (
        "collectives of gloo beside a GPU",
        "they run on the CPU: who waits in them is not told, and a GPU that idles meanwhile waits for its host",
    ),
    (
        "clocks that do not agree",
        "in these parts of the run no offsets of clocks let all collectives be true: their waits are in doubt",
    ),
    (
        "ranks without collectives",
        "what they wait for is not told; beside a GPU those that gloo runs are not read, but NCCL's alone",
    ),
    ("collectives without a partner", "no other rank has them: what of their time is waiting is not told"),
    (
        "collectives of which ranks are missing",
        "who was not recorded may have been the last: what is told as transfer may be waiting for that rank",
    ),
    (SENDS, "nobody is called late for their waits, which are by design where they are stages of a pipeline"),
)


def _same_steps(steps: pl.DataFrame, rows: Rows, matching: Matches) -> pl.DataFrame:
    """The steps that the program does not number, with `step` the same on all ranks, as their collectives tell."""
    placed = np.flatnonzero((matching.match >= 0) & (rows.inside >= 0))
    if steps.is_empty() or not len(placed):
        return steps
    member = rows.member[placed]
    base = placed[member == member[0]]
    theirs = np.full(matching.number, -1, dtype=np.int32)
    theirs[matching.match[base]] = rows.inside[base]
    theirs = theirs[matching.match[placed]]
    both = pl.DataFrame({"member": member, "shift": theirs - rows.inside[placed]}).filter(pl.Series(theirs >= 0))
    shifts = both.group_by(pl.col("member").cast(pl.Int64)).agg(pl.col("shift").cast(pl.Int64).mode().min())
    first = steps.filter(pl.col("member") == int(member[0])).item(0, "step")
    shifted = steps.join(shifts, on="member", how="left", maintain_order="left")
    return shifted.with_columns(step=pl.coalesce(pl.col("index") + pl.col("shift") + first, "step")).drop("shift")


# Who is late, and why.

#: What remains: the rank was late already, left the previous collective later, or there was none in the recording.
EARLIER: Final = "earlier"

#: What ranks of several groups wait in one of them is passed on to the others from this time on.
_PASSED_ON_NS: Final = 1_000

#: Collectives between two ranks, as a pipeline has them; a kernel of several sends and receives is one, too.
IN_PAIRS: Final = pl.col("kind").is_in([*POINT_TO_POINT, "send_recv"])


def costs(matching: Matches, clocks: Clocks, matches: pl.DataFrame, exposed: Exposed) -> list[pl.Series]:
    """Exposed waiting and transfer of each collective over its ranks, and what of the waiting is for the last rank.

    Columns exposed_wait_ns, exposed_transfer_ns, cost_ns.
    """
    late = matches.get_column("lateness_ns").fill_null(0).to_numpy()
    last = matches.get_column("last").fill_null(0).to_numpy()
    sums = np.zeros((3, matching.number), dtype=np.int64)
    for one in matching.slices(clocks.cuts):
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

    Columns: match, member, number, rank, step, lateness_ns, new_ns, recorder_ns (what of that its recorder may cost, at
    most; null where that is not estimated), cost_ns (exposed waiting of all others because of it), second (the member
    that came before it) and second_number; by arrival.
    """
    rows = job.collected
    arrived = job.matches.with_row_index("match").drop_nulls("last").sort("arrival_ns", "match")
    last, second = (arrived.get_column(name).to_numpy() for name in ("last", "second"))
    on_gpu = job.ranks.get_column("device").is_not_null().to_numpy()
    lanes = rows.calls.select(pl.struct("group", "size").rank("dense").cast(pl.Int64)).to_series()
    late = arrived.select(
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
    new = late.with_columns(new_ns=_new(late, _passed_on(job, late, lanes.to_numpy())))
    new = new.join(job.costs, on=("member", "number"), how="left", maintain_order="left")
    least = pl.min_horizontal("new_ns", "delay_ns")
    recorder = pl.when(pl.col("new_ns") == 0).then(0).when(pl.col("delay_ns").is_not_null()).then(least)
    return new.with_columns(recorder_ns=recorder).drop("idle", "lane", "pair", "delay_ns")


def _passed_on(job: Job, late: pl.DataFrame, lanes: Ints) -> Iterator[tuple[list[int], list[int]]]:
    """Waiting of ranks of several groups in each collective of `late`: members and times."""
    rows, matching = job.collected, job.found
    last = job.matches.get_column("last").fill_null(-1).to_numpy()
    known = matching.match >= 0
    known &= (last >= 0)[np.where(known, matching.match, 0)] if len(last) else known
    lanes_of = pl.DataFrame({"member": rows.member[known], "lane": lanes[rows.call[known]]}).unique()
    several = np.zeros(len(rows.first), dtype=np.bool_)
    counts = lanes_of.group_by("member").len().filter(pl.col("len") > 1)
    several[counts.get_column("member").to_numpy()] = True
    for match in late.get_column("match"):
        at = matching.order[matching.first[match] : matching.first[match + 1]]
        at = at[several[rows.member[at]] & (job.exposed.wait[at] >= _PASSED_ON_NS) & (at != last[match])]
        yield rows.member[at].tolist(), job.exposed.wait[at].tolist()


def _new(late: pl.DataFrame, passed_on: Iterable[tuple[list[int], list[int]]]) -> pl.Series:
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

    rows = late.select("member", "second", "step", "lane", "lateness_ns", "idle", "pair").iter_rows()
    for (member, second, step, lane, late_ns, idle_ns, pair), waited in zip(rows, passed_on, strict=True):
        carried = max(0, lag(member, lane, step) - lag(second, lane, step))
        own_ns = max(0, late_ns - carried)
        # less of it is how much computing varies
        own_ns = own_ns if own_ns > 0.05 * late_ns and not pair else 0
        new.append(own_ns)
        behind[member] = behind.get(member, 0) + own_ns
        add(member, lane, 0 if pair else idle_ns)
        for other, ns in zip(*waited, strict=True):
            lag(other, lane, step)
            behind[other] = behind.get(other, 0) + ns
            add(other, lane, ns)
    return pl.Series("new_ns", new, dtype=pl.Int64)


def causes(job: Job, late: pl.DataFrame) -> pl.DataFrame:
    """The rows of :func:`lateness` by cause: the ledger since the previous collective, less that of the rank before it.

    Columns: match, rank, step, bucket, detail, ns; over a collective they sum to its new_ns exactly.
    """
    late = late.filter(pl.col("new_ns") > 0)
    sides = pl.concat([
        late.select("match", "member", "number", sign=pl.lit(1)),
        late.select("match", member="second", number="second_number", sign=pl.lit(-1)),
    ])  # fmt: skip
    since = sides.join(job.before, on=["member", "number"], how="inner")
    # without a previous collective on both ranks there is nothing to compare
    both = since.filter(pl.col("sign").n_unique().over("match") > 1)
    parts = both.group_by("match", "bucket", "detail").agg(ns=(pl.col("sign") * pl.col("ns")).sum())
    explained = parts.group_by("match").agg(told=pl.col("ns").sum())
    ns, none = pl.col("new_ns") - pl.col("told").fill_null(0), pl.lit(None, dtype=pl.String)
    rest = late.join(explained, on="match", how="left").select("match", bucket=pl.lit(EARLIER), detail=none, ns=ns)
    every = _without_carried(pl.concat([parts, rest])).filter(pl.col("ns") != 0)
    order = ("match", "bucket", "detail")
    return late.select("match", "rank", "step").join(every, on="match", how="inner").sort(order)


def _without_carried(parts: pl.DataFrame) -> pl.DataFrame:
    """The causes without kernels that the rank before it had run while it waited, in an earlier collective.

    Where the late rank was behind already, `earlier` is less than nothing, and the kernels are among its own now.
    """
    kernel, earlier = pl.col("bucket") == "kernel", pl.col("bucket") == EARLIER
    own = (pl.col("ns").filter(kernel).sum(), -pl.col("ns").filter(earlier).sum())
    parts = parts.with_columns(both=pl.min_horizontal(*own).clip(lower_bound=0).over("match"))
    sign = pl.when(kernel).then(-1).when(earlier).then(1).otherwise(0)
    return parts.with_columns(ns=pl.col("ns") + sign * pl.col("both")).drop("both")
