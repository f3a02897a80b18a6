"""Late ranks of a job: which, in which steps, by how much, and by what cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.ranks.ranks import common_steps

if TYPE_CHECKING:
    from kanalyze.analyses.ranks._job import Job

#: A rank is late in a step where it falls behind by this part of the step, and others wait for it.
_NOTABLE: Final = 0.02

#: Steps in a row are told together where the lateness of each is at most so many times that of the one before.
_ALIKE: Final = 2

#: A late rank is named where another rank waits for it for this part of the steps in which it is late.
_WORTH_SAYING: Final = 0.01

#: A cause is named from this part of the lateness on.
_WORTH_NAMING: Final = 0.1


class Late(NamedTuple):
    """A rank that is late in some steps, one after the other.

    Attributes:
        rank: The rank.
        first: The first of the steps.
        last: The last of them.
        steps: How many.
        late_ns: By how much it falls behind in a step, the mean.
        causes: The parts of that by bucket, the largest first; they sum to it up to rounding.
        cost_ns: Exposed waiting of the other ranks for it, in all these steps.
        named: Whether that is worth naming the rank.
        detail: What most of the first cause was in, in each of the steps, where the reports show it.
    """

    rank: int
    first: int
    last: int
    steps: int
    late_ns: int
    causes: tuple[tuple[str, int], ...]
    cost_ns: int
    named: bool
    detail: str | None = None


def late_ranks(job: Job) -> list[Late]:
    """The ranks that others wait for, the costliest first; consecutive steps of one cause and like size together.

    Of the steps that means are of.
    """
    rows = job.table("rank_steps")
    if rows.is_empty():
        return []
    notable = (pl.col("late_ns") >= _NOTABLE * pl.col("ns")) & (pl.col("cost_ns") > 0)
    late = common_steps(rows).filter(notable).sort("rank", "step")
    others = max(job.ranks.height - 1, 1)
    before = pl.col("late_ns").shift(1)
    goes_on = (
        (pl.col("rank") == pl.col("rank").shift(1))
        & (pl.col("step") == pl.col("step").shift(1) + 1)
        & (pl.col("cause") == pl.col("cause").shift(1))
        & pl.col("late_ns").is_between(before / _ALIKE, before * _ALIKE)
    )
    runs = late.with_columns(run=(~goes_on.fill_null(value=False)).cum_sum())
    parts = runs.select("run", "rank", "step").join(job.causes, on=["rank", "step"], how="inner")
    found = []
    for (run,), own in runs.partition_by("run", as_dict=True, maintain_order=True).items():
        sums = parts.filter(pl.col("run") == run).group_by("bucket").agg(pl.col("ns").sum())
        named = [*sums.sort(pl.col("ns").abs(), "bucket", descending=[True, False]).iter_rows()]
        cost_ns, ns = (int(own.get_column(name).sum()) for name in ("cost_ns", "ns"))
        same = bool(named) and named[0][0] == own.item(0, "cause")
        found.append(
            Late(
                own.item(0, "rank"),
                own.item(0, "step"),
                own.item(-1, "step"),
                own.height,
                int(own.get_column("late_ns").sum()) // own.height,
                tuple((bucket, ns // own.height) for bucket, ns in named),
                cost_ns,
                cost_ns >= _WORTH_SAYING * ns * others,
                _one_of(own.get_column("detail")) if same else None,
            )
        )
    return sorted(found, key=lambda one: (-one.cost_ns, one.rank, one.first))


def _one_of(details: pl.Series) -> str | None:
    """The value that all of them have; None where one is missing or another."""
    return details.item(0) if details.n_unique() == 1 else None


def notable_causes(one: Late) -> list[tuple[str, int]]:
    """The causes that are worth naming."""
    return [(bucket, ns) for bucket, ns in one.causes if abs(ns) >= _WORTH_NAMING * one.late_ns]
