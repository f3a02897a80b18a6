"""A job: the reductions of all its ranks put together, matched, timed by one clock."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import polars as pl

from kanalyze.analyses import homes_of_jobs
from kanalyze.analyses.ranks._clocks import Clocks, clocks_of
from kanalyze.analyses.ranks._matching import matched
from kanalyze.analyses.ranks._waits import exposed, with_bandwidth, with_waits
from kanalyze.errors import NoJobError
from kanalyze.reduction import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kanalyze.reduction import Reduction

#: The host in the name that PyTorch's handler gives a trace.
_HOST: Final = re.compile(r"^(.+)_\d+\.\d+\.pt\.trace\.json(?:\.gz)?$")


@dataclass(frozen=True)
class Job:
    """All that is known of a job, rank by rank.

    Attributes:
        ranks: The ranks that were read: member, rank, host, clock and the columns of
            :data:`kanalyze.reduction.RANKS`; sorted by rank.
        rows: A row per collective and rank, with match, waits, bandwidth and step.
        exposed: The exposed time of collectives by member, number and step.
        steps: The steps of all ranks, `step` the same number for the same step.
        ledgers: Their ledgers: member, index, bucket, ns.
        before: The ledgers before collectives: member, number, bucket, ns.
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
    reductions = list(reductions)
    if not reductions:
        raise NoJobError.empty()
    tables = _stacked(reductions)
    ranks = _ranks(tables.pop("ranks"), doubts, one_host=one_host)
    if ranks.is_empty():
        raise NoJobError.empty()
    own = pl.col("member").is_in(ranks.get_column("member").implode())
    kept = {name: table.filter(own) for name, table in tables.items()}
    found = matched(_joined(kept["collectives"], ranks.select("member", "rank", "clock")))
    doubts += found.doubts
    rows, clocks = _timed(found.rows, ranks)
    if clocks.broken:
        doubts.append(("clocks that do not agree", len(clocks.broken), _BROKEN))
    rows = with_bandwidth(with_waits(rows))
    pieces = exposed(rows, kept.pop("pieces"))
    rows = _with_exposed(rows, pieces)
    doubts += _doubts_of(rows)
    steps = _same_steps(kept["steps"], rows)
    return Job(
        ranks=ranks,
        rows=_with_steps(rows, steps),
        exposed=pieces,
        steps=steps,
        ledgers=kept["ledgers"],
        before=kept["before"],
        kernels=kept["kernels"],
        findings=kept["findings"],
        clocks=clocks,
        doubts=_summed(doubts),
    )


def _summed(doubts: list[tuple[str, int, str]]) -> tuple[tuple[str, int, str], ...]:
    """The doubts, those of one check as one."""
    sums: dict[tuple[str, str], int] = {}
    for check, count, effect in doubts:
        sums[check, effect] = sums.get((check, effect), 0) + count
    return tuple((check, count, effect) for (check, effect), count in sums.items())


def _joined(rows: pl.DataFrame, others: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """The rows, in their order, with the columns of `others`."""
    return rows.join(others, on=keys or ("member",), how="left", maintain_order="left")


def _with_exposed(rows: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """Adds the exposed waiting and transfer of each collective; null of what has no match."""
    sides = ("exposed_wait_ns", "exposed_transfer_ns")
    sums = pieces.group_by("member", "number").agg(pl.col(sides).sum())
    matched_ns = [pl.when(pl.col("match").is_not_null()).then(pl.col(name).fill_null(0)).alias(name) for name in sides]
    return _joined(rows, sums, "member", "number").with_columns(matched_ns)


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


def _stacked(reductions: Sequence[Reduction]) -> dict[str, pl.DataFrame]:
    """The tables of all reductions one after the other, with members numbered through."""
    parts: dict[str, list[pl.DataFrame]] = {name: [] for name in TABLES if name != "health"}
    at = 0
    for number, one in enumerate(reductions):
        for name, table in one.tables():
            if name == "ranks":
                numbers = pl.int_range(at, at + pl.len(), dtype=pl.Int64)
                parts[name].append(table.with_columns(member=numbers, reduction=pl.lit(number)))
            elif name in parts:
                parts[name].append(table.with_columns(pl.col("member") + at))
        at += one.ranks.height
    return {name: pl.concat(some) for name, some in parts.items()}


def _ranks(found: pl.DataFrame, doubts: list[tuple[str, int, str]], *, one_host: bool) -> pl.DataFrame:
    """The ranks of the job, each once, with host, clock and number, sorted by number."""
    hosts = [host or _host_in(report) for host, report in found.select("host", "report").iter_rows()]
    told = found.with_columns(host=pl.Series(hosts, dtype=pl.String))
    # a path may be of another file on each host
    clock = pl.lit("one") if one_host else pl.coalesce("host", pl.format("{}:{}", "reduction", "report"))
    told = told.with_columns(rank=_numbers(told), clock=clock)
    twice = told.filter(pl.int_range(pl.len()).over("rank") > 0)
    if twice.height:
        doubts.append(("ranks that several reports hold", twice.height, _TWICE))
    told = told.unique("rank", keep="first", maintain_order=True).sort("rank")
    names = {name: at for at, name in enumerate(told.get_column("clock").unique(maintain_order=True))}
    return told.with_columns(clock=pl.col("clock").replace_strict(names, default=None, return_dtype=pl.Int64))


_TWICE: Final = "of reports of one rank, as of several cycles of a profiler, the first is read"


def _host_in(report: str) -> str | None:
    found = _HOST.match(PurePath(report).name)
    return found[1] if found else None


def _numbers(ranks: pl.DataFrame) -> pl.Expr | pl.Series:
    """The number of each rank: as recorded, else by order."""
    recorded = ranks.get_column("rank")
    if recorded.null_count() == 0 and ranks.group_by("report").len().get_column("len").max() == 1:
        return recorded
    if recorded.null_count() == 0 and recorded.n_unique() == len(recorded):
        return recorded
    return pl.Series("rank", range(len(recorded)), dtype=pl.Int64)


def _timed(rows: pl.DataFrame, ranks: pl.DataFrame) -> tuple[pl.DataFrame, Clocks]:
    """The rows with the offset of their clock and how far it may be off, and the offsets."""
    told = rows.drop_nulls("match").sort("match", "rank", "number")
    clocks = clocks_of(told, int(ranks.item(0, "clock")), int(ranks.item(0, "origin_ns")))
    offsets = told.select("member", "number").with_columns(
        offset_ns=pl.Series(clocks.offsets, dtype=pl.Int64), error_ns=pl.Series(clocks.error_ns, dtype=pl.Int64)
    )
    return _joined(rows, offsets, "member", "number").with_columns(pl.col("offset_ns", "error_ns").fill_null(0)), clocks


def _same_steps(steps: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The steps with `step` the same on all ranks: the program's own number, else as their collectives tell."""
    if steps.is_empty() or steps.get_column("numbered").all():
        return steps
    placed = _with_steps(rows, steps.with_columns(step="index")).drop_nulls(["match", "step"])
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
    line = steps.select("member", "step", at="start_ns", until="end_ns").sort("at")
    told = rows.drop("step", strict=False).with_row_index("place").sort("start_ns")
    told = told.join_asof(
        line, left_on="start_ns", right_on="at", by="member", strategy="backward", check_sortedness=False
    )
    inside = pl.when(pl.col("start_ns") < pl.col("until")).then("step")
    return told.with_columns(step=inside).sort("place").drop("place", "at", "until")
