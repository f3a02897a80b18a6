"""The comparison of two sides: the verdict, what it rests on, and the tables that say where the difference went."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from statistics import mean
from typing import TYPE_CHECKING, ClassVar, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses import homes_of_sides
from kanalyze.analyses.comparing import _statistics as statistics
from kanalyze.analyses.comparing._job import job_of, telling_rank
from kanalyze.analyses.comparing._pair import ALONE, Limits, Pair
from kanalyze.analyses.comparing._sides import Doubt, Side, doubts, sides_of
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.units import nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.comparing._gate import Gate
    from kanalyze.analyses.comparing._statistics import Estimate
    from kanalyze.digest import Digest

Word = Literal["faster", "slower", "same", "cannot tell"]

#: From so many steps on, their median lies between the shortest and the longest one in 94 % of all runs.
_ENOUGH: Final = 5

#: The part of the steps of a run that take no longer than its quicker ones.
_QUICK: Final = 0.25

#: Two runs of one program differ by at most this power of the factor between which nine tenths of a run's steps lie
#: (1,078 pairs of runs of 38 programs: by its second power in all of them).
_BETWEEN: Final = 3

#: An interval that reaches farther than this factor from the ratio is none.
_WIDEST: Final = 10

#: The tool that alone records what a table is of.
_RECORDED_BY: Final = {"compare_ops": "torch.profiler", "compare_counters": "ncu"}


class Verdict(NamedTuple):
    """The judgement of new against base, and how sure it is.

    Attributes:
        word: faster, slower, same, or cannot tell.
        ratio: Time of an iteration of new by that of base: below 1 is faster; None where base has no time.
        low: Lower end of its 95 % interval; None where there is none.
        high: Upper end.
        base_ns: Time of an iteration of base, the mean of its runs; of several ranks that of the page's.
        new_ns: The same of new.
        basis: What the interval is of: runs, paired runs, or steps within one run a side; empty without an interval.
        repeats: Runs of each side that would tell, where these do not; None where that is not known.
    """

    word: Word
    ratio: float | None
    low: float | None
    high: float | None
    base_ns: int
    new_ns: int
    basis: str
    repeats: int | None = None

    def __bool__(self) -> bool:
        """Whether there is a difference that can be told."""
        return self.word in ("faster", "slower")


@dataclass(frozen=True)
class Comparison:
    """Two sides compared; tables are made when they are asked for.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        pairs: The sides, rank by rank; the first is the one that the page is about.
        names: What the sides are called.
        reason: Why the whole is compared and not its iterations, where that is so.
        note: How iterations that were found in different ways on the two sides come to be compared.
        paths: What was given as base and as new.
        job: All ranks together, where they do the same iterations: in each run the one that takes longest.
        gate: The outcome of a gate, where one was asked for.
        others: Comparisons of what other tools recorded of the same runs, by tool.
    """

    kind: ClassVar[Literal["comparison"]] = "comparison"

    pairs: tuple[Pair, ...]
    names: tuple[str, str]
    reason: str = ""
    note: str = ""
    paths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    job: Pair | None = None
    gate: Gate | None = None
    others: dict[str, Comparison] = field(default_factory=dict)
    _made: dict[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def pair(self) -> Pair:
        """The sides of the rank that the page is about."""
        return self.pairs[0]

    @property
    def base(self) -> Side:
        """The runs of base."""
        return self.pair.base

    @property
    def new(self) -> Side:
        """The runs of new."""
        return self.pair.new

    @property
    def timed(self) -> Pair:
        """Subject of the verdict: the job, or the rank that the page is about."""
        return self.job or self.pair

    @property
    def each(self) -> str:
        """Scope: ``step`` or another name of an iteration; ``whole`` or a window."""
        return self.base.about.each or self.base.about.scope

    @cached_property
    def verdict(self) -> Verdict:
        """The judgement of new against base, and how sure it is."""
        return verdict_of(self.timed)._replace(base_ns=self.pair.base_ns, new_ns=self.pair.new_ns)

    @cached_property
    def quick(self) -> Verdict | None:
        """The judgement of the quicker iterations, where it tells something and that of their mean does not."""
        found = verdict_of_quick(self.timed) if self.verdict.word == "cannot tell" else None
        return None if found is None or found.word == "cannot tell" else found

    @cached_property
    def doubts(self) -> list[Doubt]:
        """Differences beside the program, and what is missing to judge."""
        found = doubts(self.base, self.new)
        other = [] if self.job is None else [doubts(pair.base, pair.new) for pair in self.pairs[1:]]
        known = {one.text for one in found}
        return found + [one for some in other for one in some if one.kind == "cold" and one.text not in known]

    def table(self, name: str) -> pl.DataFrame:
        """A table of this room, such as ``compare_kernels``, of what the tool that has it recorded."""
        if other := self.others.get(_RECORDED_BY.get(name, "")):
            return other.table(name)
        if name not in self._made:
            module = import_module(homes_of_sides()[name])
            of_all_ranks = getattr(module, "OF_ALL_RANKS", False)
            self._made[name] = getattr(module, name)(self if of_all_ranks else self.pair)
        return self._made[name]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables, by name."""
        return {name: self.table(name) for name in table_names()}


def table_names() -> list[str]:
    """The names of the tables of this room."""
    return [*homes_of_sides()]


def compared(
    base: Sequence[Digest],
    new: Sequence[Digest],
    names: tuple[str, str],
    reason: str = "",
    limits: Limits | None = None,
) -> Comparison:
    """Compares two sides of runs, rank by rank; a rank that one side lacks is left out.

    Args:
        base: The runs of the one side, of all ranks.
        new: Those of the other.
        names: What the sides are called.
        reason: Why the whole is compared, where iterations were not.
        limits: What counts as a change.
    """
    ranks = sorted({one.about.rank for one in base} & {one.about.rank for one in new})
    before, after = ([[one for one in side if one.about.rank == rank] for rank in ranks] for side in (base, new))
    found = [Pair(*sides_of(*sides), limits or Limits()) for sides in zip(before, after, strict=True)]
    first = telling_rank(found)
    pairs = (found[first], *found[:first], *found[first + 1 :])
    return Comparison(pairs, names, reason, job=job_of(before, after, found))


def verdict_of(pair: Pair) -> Verdict:
    """Faster or slower where the whole interval lies beyond the least effect, same where it lies within.

    With one run a side the interval is of the steps within the runs, no wider than these are apart, and widened by what
    two runs of one program differ by where that is known; where not, by 5 % and by how much steps vary.
    """
    return _judged(pair, pair.base.values_ns, pair.new.values_ns)


def verdict_of_quick(pair: Pair) -> Verdict | None:
    """The verdict of the lower quartile of each run's steps; None with one run a side, or fewer than five steps in one.

    What holds up single steps, such as another program on the host, moves the mean of a run and not its quicker steps.
    """
    values = quick_values(pair)
    return None if values is None or not pair.repeated else _judged(pair, *values)


def quick_values(pair: Pair) -> tuple[list[float], list[float]] | None:
    """The lower quartile of each run's steps, of base and of new; None with fewer than five steps in a run."""
    steps = [[one.steps.get_column("dur_ns") for one in side.digests] for side in (pair.base, pair.new)]
    if min(len(lengths) for side in steps for lengths in side) < _ENOUGH:
        return None
    base, new = ([float(np.quantile(lengths.to_numpy(), _QUICK)) for lengths in side] for side in steps)
    return base, new


def _judged(pair: Pair, base: list[float], new: list[float]) -> Verdict:
    """The verdict of a value for each run."""
    ratio = mean(new) / mean(base) if mean(base) else None
    base_ns, new_ns = nearest([mean(base), mean(new)])
    unknown = Verdict("cannot tell", ratio, None, None, base_ns, new_ns, "")
    estimate = statistics.ratio_of_runs(base, new, paired=pair.paired) if pair.repeated else alone(pair)
    if estimate is None:
        return unknown
    word = statistics.judged(estimate, pair.limits.least_effect)
    repeats = None
    if word == "cannot tell" and pair.repeated:
        repeats = statistics.repeats_to_judge(base, new, pair.limits.least_effect, paired=pair.paired)
    return unknown._replace(
        word=word, ratio=estimate.ratio, low=estimate.low, high=estimate.high, basis=estimate.basis, repeats=repeats
    )


def alone(pair: Pair) -> Estimate | None:
    """The ratio of single runs, with the interval of their steps and what two runs of one program may differ by.

    None with fewer than two steps in a run, or an interval that says nothing.
    """
    if len(pair.base.digests) != 1 or len(pair.new.digests) != 1 or not pair.base_ns:
        return None
    before, after = (one.digests[0].steps.get_column("dur_ns").to_list() for one in (pair.base, pair.new))
    ratio = pair.new_ns / pair.base_ns
    within = statistics.ratio_within_runs(before, after)
    if within is None or min(*before, *after) <= 0:
        return None
    low, high = within.low / within.ratio, within.high / within.ratio
    if min(len(before), len(after)) >= _ENOUGH:
        low, high = max(low, min(after) / max(before) / ratio), min(high, max(after) / min(before) / ratio)
    wider = _between_runs(pair, before, after) if pair.limits.floor is None else 1 + pair.limits.floor
    below, above = wider / min(low, 1.0), wider * max(high, 1.0)
    if max(below, above) > _WIDEST:
        return None
    return within._replace(ratio=ratio, low=ratio / below, high=ratio * above)


def _between_runs(pair: Pair, before: list[int], after: list[int]) -> float:
    """The factor by which two single runs of one program may differ, where nothing says by how much they do.

    Programs whose steps vary within a run vary between runs, too, and by more. Few steps do not show it; then all time
    in which the GPU did nothing may come once more.
    """
    fewest = min(len(before), len(after))
    edges = (0.1, 0.9) if fewest >= _ENOUGH else (0, 1)
    spread = max(float(np.divide(*np.quantile(steps, edges)[::-1])) for steps in (before, after))
    idle = 1 + max(map(_idle_share, (pair.base, pair.new))) if fewest < _ENOUGH else 1.0
    return float((1 + ALONE) * spread**_BETWEEN * idle)


def _idle_share(side: Side) -> float:
    """The part of the time of a single run in which the GPU did nothing."""
    digest = side.digests[0]
    busy = int(digest.buckets.filter(pl.col("bucket").is_in(BUSY_BUCKETS)).get_column("ns").sum())
    return 1 - busy / max(digest.about.ns, 1)
