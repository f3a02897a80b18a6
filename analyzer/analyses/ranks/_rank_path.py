"""The critical path over the ranks of a job, each in a report of its own, on corrected clocks.

Definition: docs/whatif.md, "Over ranks".
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze import intervals
from kanalyze.analyses.critical._path import CAUSES, NOWHERE, Walkable, first_node, nodes, walk
from kanalyze.analyses.critical.critical_path import BY_RANK, sums_by_rank
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.ranks.tables import offsets
from kanalyze.report import Report

if TYPE_CHECKING:
    import numpy.typing as npt

    from kanalyze.analyses.ranks._job import Job

    Ints = npt.NDArray[np.int64]

_STEADY: Final = "steady"


class _Part(NamedTuple):
    """A rank, and the nodes of its report in times of the job."""

    member: int
    process: int | None
    next: pl.Series  # the node at which a walk goes on after each
    table: pl.DataFrame  # begin, leave, own and edge of each
    collectives: Ints  # the nodes that its collectives are
    first: int  # the node that it ends with


def rank_path(job: Job, reports: Iterable[tuple[int, Report]]) -> pl.DataFrame:
    """The part of each rank of the critical path over all of them, of the steady steps where there are any.

    `reports` has the rank of each, and is open until the next.

    Returns:
        :data:`BY_RANK`, the rank with most of the path first; empty where no report can be opened.

    Raises:
        AssertionError: The pieces do not sum to the window.
    """
    moved = {row["rank"]: row for row in offsets(job).iter_rows(named=True)}
    common, spans = _common(job), {}
    ends = common.group_by("member").agg(pl.col("low").min(), pl.col("high").max())
    steps = {member: (low, high) for member, low, high in ends.iter_rows()}
    parts = []
    for rank, report in reports:
        row = moved[rank]
        shift = row["origin_ns"] - row["offset_ns"] - job.origin_ns
        own = report.narrow(process=row["process_id"], device=row["device"])
        recorded = windows(own).select(pl.col("start").min() + shift, pl.col("end").max() + shift).row(0)
        spans[row["member"]] = steps.get(row["member"], recorded)
        parts.append(_part(own, row["member"], shift, spans[row["member"]][1]))
    if not parts:
        return BY_RANK.empty()
    low, high = min(span[0] for span in spans.values()), max(span[1] for span in spans.values())
    last = max(parts, key=lambda part: spans[part.member][1])
    bases = np.cumsum([0, *(len(part.next) for part in parts)])
    through = _together(job, parts, bases)
    pieces = walk(through, last.first + int(bases[parts.index(last)]), low, high)
    found = int((pieces.get_column("end") - pieces.get_column("start")).sum())
    if found != high - low:
        raise AssertionError(
            f"the critical path over ranks sums to {found} ns, its window is {high - low} ns: {pieces}"
        )
    at = np.searchsorted(bases, pieces.get_column("node").to_numpy(), side="right") - 1
    members = pl.Series([part.member for part in parts])[at]
    processes = pl.Series([part.process for part in parts], dtype=pl.Int64)[at]
    ranks = job.ranks.get_column("rank")[members].alias("rank")
    pieces = pieces.with_columns(ranks, processes.alias("process_id"))
    return sums_by_rank(pieces, common.get_column("step").n_unique() or None)


def _common(job: Job) -> pl.DataFrame:
    """The steps that all ranks have, from the first to the last steady one: member, step, low and high (job's time)."""
    shared = job.steps.filter(pl.col("member").n_unique().over("step") == job.ranks.height)
    steady = pl.col("step").filter(pl.col("kind") == _STEADY)
    found = shared.filter(pl.col("step").is_between(steady.min(), steady.max()))
    told = found.join(offsets(job).select("member", "offset_ns"), on="member")
    moved = pl.col("offset_ns") + job.origin_ns
    return told.select("member", "step", low=pl.col("start_ns") - moved, high=pl.col("end_ns") - moved)


def _part(report: Report, member: int, shift: int, high: int) -> _Part:
    """The nodes of a rank's report, moved to the time of the job."""
    own = nodes(report)
    every = own.walkable.described(pl.int_range(len(own.next), dtype=pl.UInt32, eager=True))
    known = own.next.is_not_null()
    leave = every.get_column("leave")
    moved = every.with_columns(pl.col("begin") + shift, (leave + shift).zip_with(known, leave))
    talks = exclusive_operations(report).filter(pl.col("bucket") == "communication").sort("began", "event_id")
    rows = intervals.first_come(talks).get_column("row").to_numpy().astype(np.int64)
    return _Part(member, report.scope.process, own.next, moved, rows, max(first_node(report, high - shift), 0))


def _together(job: Job, parts: list[_Part], bases: Ints) -> Walkable:
    """The nodes of all ranks as one: a collective leads to the rank that came last to it."""
    table = pl.concat([part.table for part in parts])
    following = pl.concat(
        [(part.next + int(base)).cast(pl.UInt32) for part, base in zip(parts, bases[:-1], strict=True)]
    )
    begin = table.get_column("begin").to_numpy()
    node = np.full(len(job.collected), NOWHERE, dtype=np.int64)
    for part, base in zip(parts, bases[:-1], strict=True):
        first, stop = job.collected.first[part.member : part.member + 2]
        if stop - first == len(part.collectives):
            node[first:stop] = part.collectives + base
    whole = job.matches.select(pl.col("present") >= pl.col("size").fill_null(pl.col("present"))).to_series().to_numpy()
    rows = job.found.order[: job.found.first[-1]]
    match = job.found.match[rows]
    kept = whole[match] & (node[rows] >= 0)
    at, match = node[rows[kept]], match[kept]
    order = np.lexsort((begin[at], match))
    at, match = at[order], match[order]
    ends = np.flatnonzero(np.r_[match[1:] != match[:-1], True]) if len(match) else np.zeros(0, dtype=np.int64)
    late = np.repeat(at[ends], np.diff(np.r_[-1, ends])) if len(match) else at
    arrival = begin[late]
    own = table.get_column("own").scatter(pl.Series(at), CAUSES.index("transfer"))
    waiting = late != at
    moved, arrived = pl.Series(at[waiting], dtype=pl.UInt32), pl.Series(arrival[waiting], dtype=pl.Int64)
    times = (table.get_column(name).scatter(moved, arrived) for name in ("begin", "leave"))
    following = following.scatter(moved, pl.Series(late[waiting], dtype=pl.UInt32))
    table = table.with_columns(own, *times)
    return Walkable(following, table.get_column("begin"), table.__getitem__)
