"""A job: the reductions of all its ranks put together, matched, timed by one clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property
from importlib import import_module
from itertools import count
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
import polars as pl

from kanalyze.analyses import homes_of_jobs
from kanalyze.analyses.communication._matching import matched
from kanalyze.analyses.communication._waits import exposed, with_bandwidth, with_waits
from kanalyze.analyses.ranks._clocks import Clocks, clocks_of
from kanalyze.analyses.ranks._lateness import causes, lateness
from kanalyze.errors import NoJobError
from kanalyze.reduction import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from kanalyze.reduction import Reduction

#: The host in the name that PyTorch's handler gives a trace.
_HOST: Final = re.compile(r"^(.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


@dataclass(frozen=True)
class Job:
    """All that is known of a job, rank by rank.

    Attributes:
        ranks: The ranks that were read: member, rank, host, clock and the columns of
            :data:`kanalyze.reduction.RANKS`; sorted by rank.
        rows: A row per collective and rank, with match, waits, bandwidth and step; by match and rank, those without a
            partner last.
        exposed: The exposed time of collectives by member and step.
        steps: The steps of all ranks, `step` the same number for the same step.
        ledgers: Their ledgers: member, index, bucket, ns.
        before: The ledgers before collectives of those that came last, or before them: member, number, bucket, ns.
        kernels: Kernels of ranks: member, name, count, ns.
        findings: Findings of ranks.
        clocks: The offsets of clocks.
        doubts: What is in doubt: check, count, effect.
        paths: What was given.
        kind: Kind of page, by which renderers dispatch without importing the class.
    """

    kind: ClassVar[Literal["job"]] = "job"

    ranks: pl.DataFrame
    rows: pl.DataFrame
    exposed: pl.DataFrame
    steps: pl.DataFrame
    ledgers: pl.DataFrame
    before: pl.DataFrame
    kernels: pl.DataFrame
    findings: pl.DataFrame
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
    def lateness(self) -> pl.DataFrame:
        """What of the lateness of each collective is new; see :func:`lateness`."""
        return lateness(self)

    @cached_property
    def causes(self) -> pl.DataFrame:
        """That by cause, in sums of a rank's step: rank, step, bucket, ns."""
        return causes(self, self.lateness).group_by("rank", "step", "bucket").agg(pl.col("ns").sum())

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


def job_of(reductions: Iterable[Reduction], *, one_host: bool = False) -> Job:
    """Puts the reductions of a job together.

    With `one_host` all ranks have one clock, also where the reports do not tell their host.

    Raises:
        NoJobError: There is no rank.
    """
    doubts: list[tuple[str, int, str]] = []
    tables = _stacked(reductions)
    ranks = _ranks(tables.pop("ranks"), doubts, one_host=one_host)
    if ranks.is_empty():
        raise NoJobError.empty()
    if doubts:  # some are left out
        own = pl.col("member").is_in(ranks.get_column("member").implode())
        tables = {name: table.filter(own) for name, table in tables.items()}
    found = matched(_of_ranks(tables.pop("collectives"), ranks))
    doubts += found.doubts
    rows, clocks = _timed(found.rows, ranks)
    del found
    if clocks.broken:
        doubts.append(("clocks that do not agree", len(clocks.broken), _BROKEN))
    rows = with_waits(rows)
    rows, by_step = _with_exposed(rows, tables.pop("pieces"))
    rows = with_bandwidth(rows)
    doubts += _doubts_of(rows)
    steps = _same_steps(tables["steps"], rows)
    return Job(
        ranks=ranks,
        rows=_with_steps(rows, steps),
        exposed=by_step,
        steps=steps,
        ledgers=tables["ledgers"],
        before=_needed(tables.pop("before"), rows),
        kernels=tables["kernels"],
        findings=tables["findings"],
        clocks=clocks,
        doubts=_summed(doubts),
    )


def _summed(doubts: list[tuple[str, int, str]]) -> tuple[tuple[str, int, str], ...]:
    """The doubts, those of one check as one."""
    sums: dict[tuple[str, str], int] = {}
    for check, number, effect in doubts:
        sums[check, effect] = sums.get((check, effect), 0) + number
    return tuple((check, number, effect) for (check, effect), number in sums.items())


def _of_ranks(rows: pl.DataFrame, ranks: pl.DataFrame) -> pl.DataFrame:
    """The rows with the rank and the clock of their member, by rank."""
    known = ranks.sort("member")
    at = np.searchsorted(known.get_column("member").to_numpy(), rows.get_column("member").to_numpy())
    return rows.with_columns(known.get_column(name).gather(at) for name in ("rank", "clock"))


def _with_exposed(rows: pl.DataFrame, pieces: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Adds the exposed waiting and transfer of each collective, null of what has no match; and the sums by step."""
    at = rows.get_column("at").to_numpy()
    until = np.full(int(at.max(initial=-1)) + 1, -1, dtype=np.int64)
    # by the clock of the rank itself
    until[at] = rows.select((pl.col("arrival_ns") + pl.col("offset_ns")).fill_null(-1)).to_series().to_numpy()
    waits, moves, by_step = exposed(pieces, until)
    known = pl.col("match").is_not_null()
    told = rows.with_columns(exposed_wait_ns=waits[at], exposed_transfer_ns=moves[at])
    sides = ("exposed_wait_ns", "exposed_transfer_ns")
    return told.with_columns(pl.when(known).then(name).alias(name) for name in sides), by_step


def _needed(before: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The ledgers before collectives, of those only that came last or before it."""
    late = rows.filter(pl.col("last_rank").is_not_null())
    behind = pl.col("arrival_ns") - pl.col("corrected_ns")
    wanted = late.filter(behind <= pl.col("lateness_ns")).get_column("at").to_numpy()
    places = np.zeros(int(rows.get_column("at").max() or 0) + 1, dtype=np.bool_)  # type: ignore[arg-type]
    places[wanted] = True
    kept = before.filter(pl.Series(places[before.get_column("at").to_numpy()]))
    return kept.select("member", "number", pl.col("bucket").cast(pl.String), "ns")


def _doubts_of(rows: pl.DataFrame) -> list[tuple[str, int, str]]:
    """What of the collectives cannot be told."""
    unmatched = pl.col("match").is_null()
    few = rows.filter(~unmatched & (pl.col("present") < pl.col("size"))).get_column("match").n_unique()
    found = [
        ("collectives without a partner", rows.filter(unmatched).height, _ALONE),
        ("collectives of which ranks are missing", few, _MISSING),
    ]
    return [one for one in found if one[1]]


_BROKEN: Final = "in these parts of the run no offsets of clocks let all collectives be true: their waits are in doubt"
_ALONE: Final = "no other rank has them: what of their time is waiting is not told"
_MISSING: Final = "who was not recorded may have been the last: what is told as transfer may be waiting for that rank"


def _stacked(reductions: Iterable[Reduction]) -> dict[str, pl.DataFrame]:
    """The tables of all reductions one after the other, with members numbered through.

    Collectives, their pieces and the ledgers before them have `at`, a number for each collective of the job;
    collectives have `inside`, the row of the step that each begins in. These are long, and held in little memory.
    """
    parts: dict[str, list[pl.DataFrame]] = {name: [table.empty()] for name, table in TABLES.items() if name in _SHORT}
    parts["ranks"] = []
    member = at = 0
    for number, one in enumerate(reductions):
        for name, table in one.tables():
            if name == "ranks":
                numbers = pl.int_range(member, member + pl.len(), dtype=pl.Int64)
                parts[name].append(table.with_columns(member=numbers, reduction=pl.lit(number)))
            elif name in _SHORT:
                parts[name].append(table.with_columns(pl.col("member") + member))
        firsts, following = _firsts(one, at)
        for name in _LONG:
            table = getattr(one, name)
            place = firsts[table.get_column("member").to_numpy()] + table.get_column("number").to_numpy()
            told = _inside(table, one.steps) if name == "collectives" else table
            told = told.with_columns(pl.col("member") + member, at=pl.Series(place))
            parts.setdefault(name, []).append(_small(told, name))
        member, at = member + one.ranks.height, following
    if not parts["ranks"]:
        raise NoJobError.empty()
    return {name: pl.concat(some) for name, some in parts.items()}


def _firsts(one: Reduction, at: int) -> tuple[npt.NDArray[np.int64], int]:
    """The place of collective 0 of each member of a reduction, from `at` on, and the one after all."""
    counts = np.zeros(one.ranks.height, dtype=np.int64)
    for table in (one.collectives, one.pieces, one.before):
        np.maximum.at(counts, table.get_column("member").to_numpy(), table.get_column("number").to_numpy() + 1)
    ends = at + np.cumsum(counts)
    return ends - counts, int(ends[-1]) if len(ends) else at


#: Tables with a row or more per collective, and the others.
_LONG: Final = ("collectives", "pieces", "before")
_SHORT: Final = ("steps", "ledgers", "kernels", "findings")

#: Columns that are held in less memory, or not at all.
_HELD: Final = {
    "member": pl.Int32, "number": pl.Int32, "size": pl.Int32, "own": pl.Int32, "source": pl.Int32, "target": pl.Int32,
    "device": pl.Int32, "stream": pl.Int32, "inside": pl.Int32, "kind": pl.Categorical, "group": pl.Categorical,
    "ranks": pl.Categorical, "bucket": pl.Categorical,
}  # fmt: skip
_UNUSED: Final = {"collectives": ("type",), "pieces": ("number",), "before": ()}


def _small(table: pl.DataFrame, name: str) -> pl.DataFrame:
    """A long table in little memory; names of collectives as numbers."""
    told = table.drop(_UNUSED[name])
    if "id" in told.columns:
        told = told.with_columns(pl.when(pl.col("id").is_not_null()).then(pl.col("id").hash()).alias("id"))
    return told.cast({column: dtype for column, dtype in _HELD.items() if column in told.columns})


def _inside(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The rows with `inside`, the row of the step of their rank that each begins in; null outside."""
    found = np.full(rows.height, -1, dtype=np.int64)
    member, start = rows.get_column("member").to_numpy(), rows.get_column("start_ns").to_numpy()
    for one in steps.get_column("member").unique():
        line = steps.filter(pl.col("member") == one).sort("start_ns")
        mine = np.flatnonzero(member == one)
        at = np.searchsorted(line.get_column("start_ns").to_numpy(), start[mine], side="right") - 1
        ends, index = line.get_column("end_ns").to_numpy()[at], line.get_column("index").to_numpy()[at]
        found[mine] = np.where((at >= 0) & (start[mine] < ends), index, -1)
    return rows.with_columns(inside=pl.Series(found)).with_columns(inside=pl.when(pl.col("inside") >= 0).then("inside"))


def _ranks(found: pl.DataFrame, doubts: list[tuple[str, int, str]], *, one_host: bool) -> pl.DataFrame:
    """The ranks of the job, each once, with host, clock and number, sorted by number."""
    hosts = [host or _host_in(report) for host, report in found.select("host", "report").iter_rows()]
    told = found.with_columns(host=pl.Series(hosts, dtype=pl.String))
    # a path may be of another file on each host
    clock = pl.lit("one") if one_host else pl.coalesce("host", pl.format("{}:{}", "reduction", "report"))
    told = told.with_columns(rank=_numbers(told), clock=clock)
    told = _of_one_time(told, doubts).sort("rank")
    names = {name: at for at, name in enumerate(told.get_column("clock").unique(maintain_order=True))}
    return told.with_columns(clock=pl.col("clock").replace_strict(names, default=None, return_dtype=pl.Int64))


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


def _timed(rows: pl.DataFrame, ranks: pl.DataFrame) -> tuple[pl.DataFrame, Clocks]:
    """The rows with the offset of their clock and how far it may be off, and the offsets."""
    left = rows.get_column("match").null_count()
    clocks = clocks_of(rows.head(rows.height - left), int(ranks.item(0, "clock")), int(ranks.item(0, "origin_ns")))
    added = [
        pl.Series(name, values, dtype=pl.Int64).extend_constant(0, left)
        for name, values in (("offset_ns", clocks.offsets), ("error_ns", clocks.error_ns))
    ]
    return rows.with_columns(added), clocks


def _same_steps(steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps with `step` the same on all ranks: the program's own number, else as their collectives tell."""
    if steps.is_empty() or steps.get_column("numbered").all():
        return steps
    columns = [pl.col("member").cast(pl.Int64), pl.col("inside").cast(pl.Int64).alias("step"), "match", "rank"]
    placed = rows.select(columns).drop_nulls(["match", "step"]).sort("rank", "match", maintain_order=True)
    if placed.is_empty():
        return steps
    base = placed.filter(pl.col("member") == placed.item(0, "member")).select("match", theirs="step").unique("match")
    both = placed.join(base, on="match", how="inner").with_columns(shift=pl.col("theirs") - pl.col("step"))
    shifts = both.group_by("member").agg(pl.col("shift").mode().min())
    first = steps.filter(pl.col("member") == placed.item(0, "member")).item(0, "step")
    told = steps.join(shifts, on="member", how="left", maintain_order="left")
    return told.with_columns(
        step=pl.when(pl.col("shift").is_not_null()).then(pl.col("index") + pl.col("shift") + first).otherwise("step")
    ).drop("shift")


def _with_steps(rows: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The rows with the step that each begins in."""
    if steps.is_empty():
        return rows.with_columns(step=pl.lit(None, dtype=pl.Int64))
    counts = np.zeros(
        int(steps.select(pl.max_horizontal(pl.col("member").max(), rows.get_column("member").max())).item()) + 2,
        dtype=np.int64,
    )
    by_member = steps.group_by("member").agg(pl.col("index").max() + 1)
    counts[by_member.get_column("member").to_numpy() + 1] = by_member.get_column("index").to_numpy()
    firsts = np.cumsum(counts)
    numbers = np.zeros(firsts[-1] + 1, dtype=np.int64)
    numbers[firsts[steps.get_column("member").to_numpy()] + steps.get_column("index").to_numpy()] = steps.get_column(
        "step"
    ).to_numpy()
    inside = rows.get_column("inside")
    at = firsts[rows.get_column("member").to_numpy()] + inside.fill_null(0).to_numpy()
    told = rows.with_columns(step=pl.Series(numbers[np.minimum(at, len(numbers) - 1)]))
    return told.with_columns(step=pl.when(pl.col("inside").is_not_null()).then("step"))
