"""Jobs of several ranks: one value for each run, of the rank that takes longest in it.

Ranks of a job wait for each other, so that their iterations take the same time whichever of them is the cause. Which
one that is shows in how long each waits for the others.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import mean
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.comparing._pair import Pair
from kanalyze.analyses.comparing._sides import Side, in_pairs
from kanalyze.digest import STEPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.digest import Digest

    #: Runs of one rank.
    Rank = Sequence[Digest]

#: Ranks whose iterations are shorter than the longest by less than this part are as long.
_AS_LONG: Final = 0.01


def job_of(base: Sequence[Rank], new: Sequence[Rank], ranks: Sequence[Pair]) -> Pair | None:
    """The sides of the job; None where it has one rank, or they do not do the same iterations in every run.

    Args:
        base: The runs of base of each rank; the nth of all ranks are one run.
        new: The same of new.
        ranks: Both sides of each rank, without the runs that do not count. A run of the job counts if it does in all.
    """
    runs = _runs_of(base), _runs_of(new)
    if len(ranks) == 1 or not all(map(_do_the_same, (*runs[0], *runs[1]))):
        return None
    counted = {id(one) for pair in ranks for one in (*pair.base.digests, *pair.new.digests)}
    kept = ([run for run in side if all(id(one) in counted for one in run)] for side in runs)
    first, second = (Side([_slowest(run) for run in side], []) for side in kept)
    if not first.digests or not second.digests:
        return None
    return Pair(*in_pairs(first, second), ranks[0].limits)


def _runs_of(ranks: Sequence[Rank]) -> list[tuple[Digest, ...]]:
    """The runs of a side, with the digest of each rank; one run without any where ranks have not as many of them."""
    return [*zip(*ranks, strict=True)] if len({len(rank) for rank in ranks}) == 1 else [()]


def _do_the_same(run: Sequence[Digest]) -> bool:
    """Whether all ranks of a run have the same iterations, as often but for one at an edge."""
    every = [one.about for one in run]
    numbers = [one.recorded_iterations for one in every]
    same = len({(one.each, one.turn) for one in every}) == 1 and bool(every[0].each)
    return same and max(numbers) - min(numbers) <= 1


def _slowest(run: Sequence[Digest]) -> Digest:
    """The rank that takes longest, with each step as long as that of the slowest rank where all have as many."""
    slowest = max(run, key=lambda one: one.about.iteration_ns)
    lengths = [one.steps.get_column("dur_ns").alias(str(rank)) for rank, one in enumerate(run)]
    if len({*map(len, lengths)}) > 1:
        return slowest
    longest = pl.DataFrame(lengths).select(dur_ns=pl.max_horizontal(pl.all()))
    return replace(slowest, steps=STEPS.select(longest))


def telling_rank(ranks: Sequence[Pair]) -> int:
    """The rank that says most about a difference, as an index: the one that holds up the others.

    Of those whose iteration is as long as the longest one, on the side that takes longer, it waits least for others in
    communication. Where there is none, the longest.
    """
    ns = [(pair.base_ns, pair.new_ns) for pair in ranks]
    side = max((0, 1), key=lambda at: max(both[at] for both in ns))
    longest = max(both[side] for both in ns)
    near = [at for at, both in enumerate(ns) if both[side] >= (1 - _AS_LONG) * longest]
    waits = {at: _communication_ns((ranks[at].base, ranks[at].new)[side]) for at in near}
    if any(waits.values()):
        return min(near, key=lambda at: (waits[at], at))
    return max(near, key=lambda at: (ns[at][side], -at))


def _communication_ns(side: Side) -> float:
    """Time of an iteration in which nothing but communication ran."""
    own = pl.col("bucket") == "communication"
    return mean(int(one.buckets.filter(own).get_column("ns").sum()) / one.about.iterations for one in side.digests)
