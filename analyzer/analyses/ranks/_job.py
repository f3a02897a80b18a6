"""A job: the reductions of all its ranks put together, matched, timed by one clock."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal

import numpy as np
import polars as pl

from kanalyze.analyses import homes_of_jobs
from kanalyze.analyses.communication._matching import HOW, matched
from kanalyze.analyses.communication._waits import CANNOT_TELL, Clocks, Exposed, bytes_of, split, waits
from kanalyze.analyses.ranks._clocks import clocks_of
from kanalyze.analyses.ranks._job_findings import IN_PAIRS, causes, costs, details, lateness
from kanalyze.analyses.ranks._reducing import gathered, later, places, put_together, renumbered, step_of
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.errors import NoJobError
from kanalyze.reduction.tables import BEFORE, Reduction

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.communication._matching import Ints, Matches, Rows

#: The host in the name that PyTorch's handler gives a trace.
_HOST: Final = re.compile(r"^(.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


@dataclass(frozen=True)
class Job:
    """A job, rank by rank.

    Attributes:
        ranks: The ranks that were read: member (their place here), rank, host, clock and the columns of
            :data:`RANKS`; sorted by rank.
        collected: The collectives of all ranks.
        found: Which of them are the same.
        matches: What was waited and transferred in each of these, as :func:`waits` tells, with exposed_wait_ns,
            exposed_transfer_ns and cost_ns (exposed waiting of all others because of the last rank).
        exposed: The exposed time of collectives.
        hidden: Their time beside other kernels, by member and step.
        steps: The steps of all ranks, `step` the same number for the same step.
        ledgers: Their ledgers, row by row: a column per bucket.
        before: The ledgers before collectives of those that came last, or before them:
            :data:`BEFORE`.
        kernels: Kernels of ranks: member, name, count, ns.
        clocks: The offsets of clocks.
        doubts: What is in doubt: check, count, effect.
        paths: What was given.
        kind: Kind of page, by which renderers dispatch without importing the class.
    """

    kind: ClassVar[Literal["job"]] = "job"

    ranks: pl.DataFrame
    collected: Rows
    found: Matches
    matches: pl.DataFrame
    exposed: Exposed
    hidden: pl.DataFrame
    steps: pl.DataFrame
    ledgers: pl.DataFrame
    before: pl.DataFrame
    kernels: pl.DataFrame
    clocks: Clocks
    doubts: tuple[tuple[str, int, str], ...]
    paths: tuple[str, ...] = ()
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

    @cached_property
    def rows(self) -> pl.DataFrame:
        """Collectives on each rank; by match and rank, those without a partner last."""
        return self.rows_at(self.found.order)

    def rows_at(self, at: npt.NDArray[np.integer[Any]]) -> pl.DataFrame:
        """The same of some rows of `collected`."""
        rows, match = self.collected, self.found.match[at]
        member, known = rows.member[at], match >= 0
        clock = self.ranks.get_column("clock").to_numpy()[member]
        offset, error = np.zeros((2, len(at)), dtype=np.int64)
        offset[known] = self.clocks.ahead(match[known], clock[known])
        error[known] = self.clocks.error[self.clocks.node(match[known], clock[known])]
        number = pl.Series("match", match, dtype=pl.Int64)
        number = number.set(number < 0, None)
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
        told = self.matches.select(_OF_MATCH).select(pl.all().gather(number))
        last = pl.Series("last_rank", self.ranks.get_column("rank")).gather(
            pl.Series(rows.member).gather(told.get_column("last"))
        )
        said = rows.calls.drop("member", "ranks")[rows.call[at]]
        every: pl.DataFrame = pl.concat(
            [own, told.drop("last").with_columns(last), said, self.ranks.select("rank", "device", "clock")[member]],
            how="horizontal",
        )
        wait = pl.max_horizontal(0, pl.min_horizontal(pl.col("arrival_ns") - pl.col("corrected_ns"), "dur_ns"))
        return (
            every.with_columns(
                pl.coalesce("bytes", pl.when(pl.col("match").is_null()).then("own_bytes")),
                pl.col("class").fill_null(CANNOT_TELL),
                wait_ns=pl.when(pl.col("match").is_not_null()).then(wait),
            )
            .with_columns(transfer_ns=pl.col("dur_ns") - pl.col("wait_ns"))
            .drop("own_bytes")
        )

    @cached_property
    def lateness(self) -> pl.DataFrame:
        """New lateness of each collective; see :func:`lateness`."""
        return lateness(self)

    @cached_property
    def causes(self) -> pl.DataFrame:
        """New lateness by cause, in sums of a rank's step: rank, step, bucket, ns."""
        return causes(self, self.lateness).group_by("rank", "step", "bucket").agg(pl.col("ns").sum())

    @cached_property
    def details(self) -> pl.DataFrame:
        """Causes by detail of a bucket, in sums of a rank's step: rank, step, bucket, detail, ns."""
        return details(self, self.lateness).group_by("rank", "step", "bucket", "detail").agg(pl.col("ns").sum())

    @property
    def world_size(self) -> int:
        """Ranks of the job, as the reports tell, at least those that were read."""
        told = self.ranks.get_column("world_size").drop_nulls()
        return max(self.ranks.height, int(told.max()) if len(told) else 0)  # type: ignore[arg-type]

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


def job_of(
    reductions: Iterable[Reduction],
    again: Callable[[], Iterable[Reduction]] | None = None,
    *,
    one_host: bool = False,
) -> Job:
    """Puts the reductions of a job together.

    `again` gives the same ones once more, with the tables of :data:`LATER`, which `reductions` then
    need not have: of many ranks they would take most of the memory. With `one_host` all ranks have one clock, also
    where the reports do not tell their host.

    Raises:
        NoJobError: There is no rank.
        BadReductionError: Rows of a reduction are not of its collectives.
    """
    doubts: list[tuple[str, int, str]] = []
    reductions = reductions if again else [*reductions]
    read = gathered(reductions)
    ranks = _ranks(read.ranks, doubts, one_host=one_host)
    if ranks.is_empty():
        raise NoJobError.empty()
    tables = {name: _of_members(table, ranks, len(read.first) - 1) for name, table in read.tables.items()}
    rows = put_together(read, ranks.get_column("read").to_numpy())
    clock = ranks.get_column("clock").to_numpy()
    found = matched(rows, clock, _numbered(rows, tables["steps"]))
    rows = replace(rows, sequence=rows.sequence[:0], id=rows.id[:0])
    doubts += found.doubts
    clocks = clocks_of(rows, found, clock, int(clock[0]), int(ranks.item(0, "origin_ns")))
    matches = waits(rows, found, clocks, clock)
    doubts += _doubts_of(ranks, rows, found, matches, len(clocks.broken))
    steps = _same_steps(tables["steps"].sort("member", "index"), rows, found)
    exposed, before = _split(again() if again else reductions, ranks, rows, found, matches, clocks)
    return Job(
        ranks=ranks,
        collected=rows,
        found=found,
        matches=matches.with_columns(costs(found, clocks, matches, exposed)),
        exposed=exposed,
        hidden=tables["hidden"],
        steps=steps,
        ledgers=_ledgers(tables["ledgers"], steps),
        before=before,
        kernels=tables["kernels"],
        clocks=clocks,
        doubts=_summed(doubts),
    )


def _summed(doubts: list[tuple[str, int, str]]) -> tuple[tuple[str, int, str], ...]:
    """The doubts, those of one check as one."""
    sums: Counter[tuple[str, str]] = Counter()
    for check, number, effect in doubts:
        sums[check, effect] += number
    return tuple((check, number, effect) for (check, effect), number in sums.items())


def _of_members(table: pl.DataFrame, ranks: pl.DataFrame, number: int) -> pl.DataFrame:
    """The rows of ranks that are kept, by their new member, of so many that were read."""
    told = renumbered(ranks.get_column("read").to_numpy(), number)[table.get_column("member").to_numpy()]
    return table.with_columns(member=pl.Series(told)).filter(pl.col("member") >= 0)


def _ledgers(told: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each step, a column per bucket."""
    at = places(steps, told.get_column("member").to_numpy(), told.get_column("index").to_numpy())
    bucket = told.get_column("bucket").cast(pl.Enum(BUCKETS), strict=False).to_physical().fill_null(len(BUCKETS))
    sums = np.zeros((len(BUCKETS) + 1, steps.height), dtype=np.int64)
    np.add.at(sums, (bucket.to_numpy(), at), told.get_column("ns").to_numpy())
    return pl.DataFrame(dict(zip(BUCKETS, sums[:-1], strict=True)))


def _split(  # noqa: PLR0913 - all that is known of collectives so far
    reductions: Iterable[Reduction],
    ranks: pl.DataFrame,
    rows: Rows,
    found: Matches,
    matches: pl.DataFrame,
    clocks: Clocks,
) -> tuple[Exposed, pl.DataFrame]:
    """The exposed time of collectives, and the ledgers before those that came last or before it."""
    into = Exposed(np.zeros(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64), [_BY_STEP])
    needed = np.zeros(len(rows), dtype=np.bool_)
    for name in ("last", "second"):
        needed[matches.get_column(name).drop_nulls().to_numpy()] = True
    arrival, clock = matches.get_column("arrival_ns").to_numpy(), ranks.get_column("clock").to_numpy()
    ledgers = [_LEDGER]
    for tables in later(reductions, ranks, rows):
        pieces, at = tables["pieces"]
        match = found.match[at]
        known = match >= 0
        came = np.full(len(at), -1, dtype=np.int64)
        # by the clock of the rank itself
        came[known] = arrival[match[known]] + clocks.ahead(match[known], clock[rows.member[at[known]]])
        split(pieces, at, came, into)
        before, at = tables["before"]
        ledgers.append(before.filter(pl.Series(needed[at])).select(_LEDGER.columns))
    return into, pl.concat(ledgers)


_BY_STEP: Final = pl.DataFrame(
    schema={
        "member": pl.Int64,
        "step": pl.Int64,
        "exposed_wait_ns": pl.Int64,
        "exposed_transfer_ns": pl.Int64,
        "unmatched_ns": pl.Int64,
    }
)
_LEDGER: Final = BEFORE.empty()


def _doubts_of(
    ranks: pl.DataFrame, rows: Rows, found: Matches, matches: pl.DataFrame, broken: int
) -> list[tuple[str, int, str]]:
    """Doubts about ranks, so many parts of the run with broken clocks, and collectives."""
    sizes = ranks.get_column("world_size").drop_nulls().to_list()
    pairs = rows.calls.select(IN_PAIRS).to_series().gather(matches.get_column("call"))
    silent = int((np.diff(rows.first) == 0).sum())
    numbers = {
        "more ranks than the job has": ranks.height - max(sizes) if sizes else 0,
        "collectives of gloo beside a GPU": int(ranks.get_column("on_cpu").sum()),
        "clocks that do not agree": broken,
        "ranks without collectives": silent if len(rows.first) > 2 else 0,  # noqa: PLR2004 - one has nobody to meet
        "collectives without a partner": len(found.match) - int(found.first[-1]),
        "collectives of which ranks are missing": matches.filter(pl.col("present") < pl.col("size")).height,
        "sends and receives": int(pairs.sum()),
    }
    return [(check, number, _EFFECTS[check]) for check, number in numbers.items() if number > 0]


_EFFECTS: Final = {
    "more ranks than the job has": "reports of several runs or tools may be taken for several ranks: give those of one "
    "run and one tool",
    "collectives of gloo beside a GPU": "they run on the CPU: who waits in them is not told, and a GPU that idles "
    "meanwhile waits for its host",
    "clocks that do not agree": "in these parts of the run no offsets of clocks let all collectives be true: their "
    "waits are in doubt",
    "ranks without collectives": "what they wait for is not told; beside a GPU those that gloo runs are not read, but "
    "NCCL's alone",
    "collectives without a partner": "no other rank has them: what of their time is waiting is not told",
    "collectives of which ranks are missing": "who was not recorded may have been the last: what is told as transfer "
    "may be waiting for that rank",
    "sends and receives": "nobody is called late for their waits, which are by design where they are stages of a "
    "pipeline",
}


def _ranks(found: pl.DataFrame, doubts: list[tuple[str, int, str]], *, one_host: bool) -> pl.DataFrame:
    """The ranks of the job, each once, with host, clock and number, sorted by number."""
    hosts = [host or _host_in(report) for host, report in found.select("host", "report").iter_rows()]
    told = found.with_columns(host=pl.Series(hosts, dtype=pl.String))
    # a path may be of another file on each host
    clock = pl.lit("one") if one_host else pl.coalesce("host", pl.format("{}:{}", "reduction", "report"))
    told = told.with_columns(rank=_numbers(told), clock=clock)
    told = _of_one_time(told, doubts).sort("rank")
    names = {name: at for at, name in enumerate(told.get_column("clock").unique(maintain_order=True))}
    clock = pl.col("clock").replace_strict(names, default=None, return_dtype=pl.Int64)
    return told.rename({"member": "read"}).with_columns(member=pl.int_range(pl.len(), dtype=pl.Int64), clock=clock)


def _of_one_time(ranks: pl.DataFrame, doubts: list[tuple[str, int, str]]) -> pl.DataFrame:
    """Each rank once: of several reports of a rank, such as cycles of a profiler, those of the time that most have.

    What has no report of that time is left out, since its collectives are others.
    """
    number = ranks.get_column("rank").n_unique()
    if number == ranks.height:
        return ranks
    starts, ends = (np.sort(ranks.get_column(name).to_numpy()) for name in ("start_ns", "end_ns"))
    running = np.searchsorted(starts, starts, side="right") - np.searchsorted(ends, starts, side="right")
    time = int(starts[int(np.argmax(running))])
    own = ranks.filter((pl.col("start_ns") <= time) & (pl.col("end_ns") > time))
    kept = own.unique("rank", keep="first", maintain_order=True)
    if kept.is_empty():  # none did anything
        kept = ranks.unique("rank", keep="first", maintain_order=True)
    since = datetime.fromtimestamp(time // _NS_PER_S, tz=UTC).strftime("%Y-%m-%d %H:%M:%S")
    doubts.append(("further reports of ranks", ranks.height - number, _TWICE.format(since)))
    if kept.height < number:
        doubts.append(("ranks recorded at other times only", number - kept.height, _OTHER_TIME))
    return kept


_NS_PER_S: Final = 1_000_000_000
_TWICE: Final = "of several reports of a rank, as of cycles of a profiler, those are read that ran at {} UTC"
_OTHER_TIME: Final = "they are left out: what they did has no partner in what is read"


def _host_in(report: str) -> str | None:
    found = _HOST.match(PurePath(report).name)
    return found[1] if found else None


def _numbers(ranks: pl.DataFrame) -> pl.Series:
    """The number of each rank: as recorded, else the next one that is free, in the order of the reports."""
    recorded = ranks.get_column("rank").to_list()
    taken = {*recorded}
    free = (number for number in count() if number not in taken)
    return pl.Series("rank", [next(free) if one is None else one for one in recorded], dtype=pl.Int64)


def _numbered(rows: Rows, steps: pl.DataFrame) -> Callable[[Ints], Ints] | None:
    """Gives of rows the program's own number of the step, -1 outside; None where the steps have none."""
    if steps.is_empty() or not steps.get_column("numbered").all():
        return None
    every = steps.sort("member", "index")

    def told(at: Ints) -> Ints:
        return step_of(every, rows.member[at], rows.inside[at]).fill_null(-1).to_numpy()

    return told


def _same_steps(steps: pl.DataFrame, rows: Rows, found: Matches) -> pl.DataFrame:
    """The steps with `step` the same on all ranks: the program's own number, else as their collectives tell."""
    placed = np.flatnonzero((found.match >= 0) & (rows.inside >= 0))
    if steps.is_empty() or steps.get_column("numbered").all() or not len(placed):
        return steps
    member = rows.member[placed]
    base = placed[member == member[0]]
    theirs = np.full(found.number, -1, dtype=np.int32)
    theirs[found.match[base]] = rows.inside[base]
    shift = theirs[found.match[placed]]
    both = pl.DataFrame({"member": member, "shift": shift - rows.inside[placed]}).filter(pl.Series(shift >= 0))
    shifts = both.group_by(pl.col("member").cast(pl.Int64)).agg(pl.col("shift").cast(pl.Int64).mode().min())
    first = steps.filter(pl.col("member") == int(member[0])).item(0, "step")
    told = steps.join(shifts, on="member", how="left", maintain_order="left")
    return told.with_columns(
        step=pl.when(pl.col("shift").is_not_null()).then(pl.col("index") + pl.col("shift") + first).otherwise("step")
    ).drop("shift")
