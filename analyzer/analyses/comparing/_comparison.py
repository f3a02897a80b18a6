"""The comparison of two sides: the verdict and what it rests on, a gate, and the noise floor of one program's runs."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from statistics import mean
from typing import ClassVar, Final, Literal, NamedTuple

import numpy as np
import polars as pl

from kanalyze import errors, units
from kanalyze.analyses import declarations, homes_of_sides
from kanalyze.analyses.comparing import _pair, _statistics as statistics
from kanalyze.analyses.comparing.steps import alike, token_ns
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.reduction.baselines import STEPS, Digest
from kanalyze.tools import TOOLS
from kanalyze.window import Scope

Rank = Sequence[Digest]

#: From so many steps on, their median lies between the shortest and the longest one in 94 % of all runs.
_ENOUGH: Final = 5

#: Two runs of one program differ by at most this power of the factor between which nine tenths of a run's steps lie
#: (1,078 pairs of runs of 38 programs: by its second power in all of them); the mean of two runs by the second power.
_OF_ONE: Final = 3
_OF_TWO: Final = 2

#: An interval that reaches farther than this factor from the ratio is none.
_WIDEST: Final = 10

#: The buckets that take as long without a profiler; collectives wait for other ranks, whose hosts it slows.
_OWN_WORK: Final = tuple(bucket for bucket in BUSY_BUCKETS if bucket != "communication")

#: What a report needs for a table: the tool that alone has it.
_RECORDED_BY: Final = {
    "compare_ops": next(one.name for one in TOOLS if "op" in one.alone),
    "compare_counters": next(one.name for one in TOOLS if one.counts),
}

#: The table that is of all ranks; others are of the rank that the page is about.
_OF_ALL_RANKS: Final = "compare_ranks"

#: Tables that two tools tell alike: they record other ranges, and have other names for the same kernels and calls.
_OF_TOOLS: Final = ("compare", "compare_families", "compare_steps", _OF_ALL_RANKS)

#: What refuses a judgement unless it is allowed.
KINDS: Final = (
    *("runs", "cold", "gpu", "driver", "clocks", "tool", "flags", "profiler"),  # of how they were recorded
    *("steps", "whole", "mix", "ranks"),  # of what
)


class Gate(NamedTuple):
    """The outcome of a gate."""

    #: Whether new is within the limit, beyond it, or neither can be said.
    state: Literal["held", "failed", "cannot judge"]
    metric: str  # what was measured
    limit: float  # the share by which new may be longer
    ratio: float | None  # new by base; None where base has none
    low: float | None  # lower end of its interval; None without one
    high: float | None  # upper end
    reason: str = ""  # why it cannot be judged; empty where it can
    times: str = ""  # whether by times without the profiler, or as recorded; empty of neither

    @property
    def sentence(self) -> str:
        """The gate in a sentence."""
        figures = f" {self.times}" if self.times else ""
        figures += "" if self.ratio is None else f" {units.change(self.ratio)}"
        if self.low is not None and self.high is not None:
            figures += f" ({units.change(self.low)} to {units.change(self.high)})"
        reason = f" ({self.reason})" if self.reason else ""
        return f"{self.state}: {self.metric}{figures}, at most +{units.percent(self.limit)} allowed{reason}."


class Verdict(NamedTuple):
    """The judgement of new against base, and how sure it is."""

    word: statistics.Judgement
    ratio: float | None  # time of an iteration of new by that of base: below 1 is faster; None where base has no time
    low: float | None  # lower end of its 95 % interval; None where there is none
    high: float | None  # upper end
    base_ns: int  # time of an iteration of base, the mean of its runs; of the page's rank, and of one mix of requests
    new_ns: int  # the same of new
    basis: str  # what the interval is of: runs, paired runs, or steps within one run a side; empty without an interval
    repeats: int | None = None  # runs of each side that would tell, where these do not; None where that is not known

    def __bool__(self) -> bool:
        """Whether there is a difference that can be told."""
        return self.word in ("faster", "slower")


class Profiled(NamedTuple):
    """What an iteration of each side takes without its profiler, at least and at most, and what that explains."""

    base_ns: tuple[int, int]  # of base, the mean of its runs
    new_ns: tuple[int, int]  # of new
    recorded_ns: tuple[int, int]  # of base and new, as recorded
    estimated: bool  # by the replay of each run; else between the GPU's own work and what was recorded

    @property
    def explains_ns(self) -> tuple[int, int]:
        """What of the recorded difference the profilers' cost explains, at least and at most; below 0 if it hides some.

        That is what it costs the slower side less what it costs the other one.
        """
        costs = [(ns - most, ns - least) for ns, (least, most) in zip(self.recorded_ns, self[:2], strict=True)]
        quicker, slower = costs if self.recorded_ns[0] <= self.recorded_ns[1] else reversed(costs)
        return slower[0] - quicker[1], slower[1] - quicker[0]


@dataclass(frozen=True)
class Comparison:
    """Two sides compared; tables are made when they are asked for."""

    kind: ClassVar[Literal["comparison"]] = "comparison"  # by which renderers dispatch without importing the class

    pairs: tuple[_pair.Pair, ...]  # the sides, rank by rank; the first is the one that the page is about
    names: tuple[str, str]  # what the sides are called
    reason: str = ""  # why the whole is compared and not its iterations, where that is so
    note: str = ""  # how iterations that were found in different ways on the two sides come to be compared
    paths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # what was given as base and as new
    scope: Scope = field(default_factory=Scope)  # the part of each run that was asked for
    options: tuple[str, ...] = ()  # options of `kanalyze compare` that say what counts as a difference
    job: _pair.Pair | None = None  # all ranks together, where they do the same iterations: in each run the longest one
    gate: Gate | None = None  # the outcome of a gate, where one was asked for
    others: "dict[str, Comparison]" = field(default_factory=dict)  # what other tools recorded of the same runs
    _made: dict[str, pl.DataFrame] = field(default_factory=dict)

    @property
    def pair(self) -> _pair.Pair:
        """The sides of the rank that the page is about."""
        return self.pairs[0]

    @property
    def base(self) -> _pair.Side:
        """The runs of base of that rank."""
        return self.pair.base

    @property
    def new(self) -> _pair.Side:
        """The runs of new of that rank."""
        return self.pair.new

    @cached_property
    def timed(self) -> _pair.Pair:
        """Subject of the verdict: the job, or the rank that the page is about; an engine's steps at fixed weights."""
        return self.job or alike(self.pair)

    @cached_property
    def other_mix(self) -> str:
        """How another mix of requests alone changes an engine's step; empty where that is less than counts."""
        sides = (*self.timed.sides, *self.pair.sides)
        base, new, recorded_base, recorded_new = (mean(side.values_ns) for side in sides)
        if self.job is not None or self.timed is self.pair or not min(base, new, recorded_base, recorded_new):
            return ""
        factor = recorded_new / recorded_base * base / new
        if max(factor, 1 / factor) < 1 + self.pair.limits.least_effect:
            return ""
        longer = f"{units.percent(abs(factor - 1))} {'longer' if factor > 1 else 'shorter'}"
        return f"each side served another mix of requests, which alone makes a {self.each} {longer}"

    @property
    def each(self) -> str:
        """Scope: ``step`` or another name of an iteration; ``whole`` or a window."""
        return self.base.about.each or self.base.about.scope

    @cached_property
    def verdict(self) -> Verdict:
        """The judgement of new against base, and how sure it is."""
        base_ns, new_ns = (self.timed if self.other_mix else self.pair).ns
        return verdict_of(self.timed)._replace(base_ns=base_ns, new_ns=new_ns)

    @cached_property
    def quick(self) -> Verdict | None:
        """The judgement of the quicker iterations, where it tells something and that of their mean does not.

        What holds up single steps, such as another program on the host, moves the mean of a run and not its quicker
        steps: the lower quartile, of five at least.
        """
        values = quick_values(self.timed) if self.verdict.word == "cannot tell" and self.timed.repeated else None
        verdict = None if values is None else _judged(self.timed, *values)
        return verdict if verdict is not None and verdict.word != "cannot tell" else None

    @cached_property
    def varying(self) -> tuple[str, float] | None:
        """The side whose runs differ most among themselves, and by which part, where the sides differ by less."""
        parts = [max(side.values_ns) / max(min(side.values_ns), 1) - 1 for side in self.timed.sides]
        part, name = max(zip(parts, ("base", "new"), strict=True))
        ratio = self.verdict.ratio or 1.0
        return (name, part) if part > max(ratio, 1 / ratio) - 1 and self.verdict.word != "same" else None

    @cached_property
    def profiled(self) -> Profiled | None:
        """What of the difference the profiler's cost explains; None where times are without it, or of no timeline."""
        every = [one.about for side in self.timed.sides for one in side.digests]
        if self.times != "as recorded":
            return None
        # of an engine's steps at fixed weights, and of the slowest of several ranks, nothing is estimated
        estimated = self.timed is self.pair and all(one.most_ns for one in every)
        base_ns, new_ns = (_unprofiled_ns(side, estimated=estimated) for side in self.timed.sides)
        return Profiled(base_ns, new_ns, self.timed.ns, estimated)

    @property
    def times(self) -> str:
        """``as recorded`` or ``without the profiler``; empty of sides that differ in that, and of no timeline."""
        words = {one.about.times for side in self.timed.sides for one in side.digests}
        return words.pop() if len(words) == 1 else ""

    @property
    def tools(self) -> list[str]:
        """The tool that recorded both sides, or those of base and new."""
        return [*dict.fromkeys(side.about.tools_name for side in self.pair.sides)]

    @cached_property
    def apart(self) -> bool:
        """Whether both sides launch kernels, and none of the same name, as one tool tells it."""
        if len(self.tools) > 1:
            return False
        kernels = self.pair.slots.filter(kind="kernel").drop_nulls("name")
        base, new = ({*kernels.filter(side=at).get_column("name")} for at in (0, 1))
        return bool(base and new) and not base & new

    @cached_property
    def doubts(self) -> list[_pair.Doubt]:
        """Differences beside the program, and what is missing to judge."""
        of_first = _pair.doubts(self.base, self.new)
        other = [] if self.job is None else [_pair.doubts(pair.base, pair.new) for pair in self.pairs[1:]]
        return of_first + [one for some in other for one in some if one.kind == "cold" and one not in of_first]

    def table(self, name: str) -> pl.DataFrame:
        """A table of this room, such as ``compare_kernels``, of what the tool that has it recorded."""
        if other := self.others.get(_RECORDED_BY.get(name, "")):
            return other.table(name)
        if name not in self._made:
            home = homes_of_sides()[name]
            comparable = len(self.tools) == 1 or name in _OF_TOOLS
            compare = getattr(import_module(home), name) if comparable else lambda _: declarations(home)[name].empty()
            self._made[name] = compare(self if name == _OF_ALL_RANKS else self.pair)
        return self._made[name]

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables, by name."""
        return {name: self.table(name) for name in homes_of_sides()}


def compared(
    base: Sequence[Digest],
    new: Sequence[Digest],
    names: tuple[str, str],
    reason: str = "",
    limits: _pair.Limits | None = None,
) -> Comparison:
    """Compares two sides of runs, rank by rank; a rank that one side lacks is left out.

    Both have the runs of all ranks; `reason` is why the whole is compared, where iterations are not.
    """
    ranks = sorted({one.about.rank for one in base} & {one.about.rank for one in new})
    before, after = ([[one for one in side if one.about.rank == rank] for rank in ranks] for side in (base, new))
    by_rank = [
        _pair.Pair(*_pair.in_pairs(*_pair.under_one_name(*map(_pair.warm, sides))), limits or _pair.Limits())
        for sides in zip(before, after, strict=True)
    ]
    first = telling_rank(by_rank)
    pairs = (by_rank[first], *by_rank[:first], *by_rank[first + 1 :])
    return Comparison(pairs, names, reason, job=job_of(before, after, by_rank))


def verdict_of(pair: _pair.Pair) -> Verdict:
    """Faster or slower where the whole interval lies beyond the least effect, same where it lies within.

    With one run a side the interval is of the steps within the runs, no wider than these are apart, and widened by what
    two runs of one program differ by where that is known; where not, by 5 % and by how much steps vary.
    """
    return _judged(pair, pair.base.values_ns, pair.new.values_ns)


def quick_values(pair: _pair.Pair) -> tuple[list[float], list[float]] | None:
    """The lower quartile of each run's steps, of base and of new; None with fewer than five steps in a run."""
    steps = [[one.steps.get_column("dur_ns").to_numpy() for one in side.digests] for side in pair.sides]
    if min(len(lengths) for side in steps for lengths in side) < _ENOUGH:
        return None
    base, new = ([float(np.quantile(lengths, 0.25)) for lengths in side] for side in steps)
    return base, new


def _judged(pair: _pair.Pair, base: list[float], new: list[float]) -> Verdict:
    """The verdict of a value for each run."""
    ratio = mean(new) / mean(base) if mean(base) else None
    base_ns, new_ns = units.nearest([mean(base), mean(new)])
    unknown = Verdict("cannot tell", ratio, None, None, base_ns, new_ns, "")
    estimate = statistics.ratio_of_runs(base, new, paired=pair.paired) if pair.repeated else alone(pair)
    if estimate is None:
        return unknown
    word = statistics.judged(estimate, pair.limits.least_effect)
    # one run a side does not show what runs of one program differ by, unless a noise floor does; two may be alike by
    # chance, so that they count for as much as their iterations vary at least
    few = pair.limits.floor is None
    if pair.repeated:
        fewest = min(len(side.digests) for side in pair.sides)
        few = fewest == statistics.LEAST_RUNS and abs(math.log(estimate.ratio)) < math.log(_between_runs(pair, _OF_TWO))
    by_chance = estimate.basis == "runs" and word in ("faster", "slower") and estimate.p_value > statistics.CHANCE
    few = (few and word != "same") or by_chance
    repeats = None
    if (word == "cannot tell" or few) and pair.repeated:
        repeats = statistics.repeats_to_judge(base, new, pair.limits.least_effect, paired=pair.paired)
    if few:
        word, repeats = "cannot tell", repeats and max(repeats, min(len(base), len(new)) + 1)
    return unknown._replace(
        word=word, ratio=estimate.ratio, low=estimate.low, high=estimate.high, basis=estimate.basis, repeats=repeats
    )


def alone(pair: _pair.Pair) -> statistics.Estimate | None:
    """The ratio of single runs, with the interval of their steps and what two runs of one program may differ by.

    None with fewer than two steps in a run, or an interval that says nothing.
    """
    base_ns, new_ns = pair.ns
    if any(len(side.digests) != 1 for side in pair.sides) or not base_ns:
        return None
    before, after = (one.digests[0].steps.get_column("dur_ns").to_list() for one in pair.sides)
    ratio, within = new_ns / base_ns, statistics.ratio_within_runs(before, after)
    if within is None or min(*before, *after) <= 0:
        return None
    low, high = within.low / within.ratio, within.high / within.ratio
    if min(len(before), len(after)) >= _ENOUGH:
        low, high = max(low, min(after) / max(before) / ratio), min(high, max(after) / min(before) / ratio)
    wider = (1 + _pair.ALONE) * _between_runs(pair, _OF_ONE) if pair.limits.floor is None else 1 + pair.limits.floor
    below, above = wider / min(low, 1.0), wider * max(high, 1.0)
    if max(below, above) > _WIDEST:
        return None
    return within._replace(ratio=ratio, low=ratio / below, high=ratio * above)


def _between_runs(pair: _pair.Pair, power: int) -> float:
    """The factor by which runs of one program may differ: a power of that between which nine tenths of steps lie.

    Programs whose steps vary within a run vary between runs, too, and by more. Few steps do not show it; then all time
    in which the GPU did nothing may come once more.
    """
    runs = [*pair.base.digests, *pair.new.digests]
    steps = [one.steps.get_column("dur_ns").to_numpy() for one in runs]
    enough = min(map(len, steps)) >= _ENOUGH
    edges = (0.1, 0.9) if enough else (0, 1)
    low, high = np.array([np.quantile(lengths, edges) for lengths in steps if lengths.size] or [(1, 1)]).T
    idle = max(1 - one.ns_in(*BUSY_BUCKETS) / max(one.about.ns, 1) for one in runs)
    return float((high / np.maximum(low, 1)).max() ** power * (1.0 if enough else 1 + idle))


def _unprofiled_ns(side: _pair.Side, *, estimated: bool) -> tuple[int, int]:
    """The range of a side's iteration without its profiler: at least its GPU works in it, not waiting for others."""
    runs = side.digests
    ends = [mean(one.ns_in(*_OWN_WORK) / one.about.iterations for one in runs), mean(side.values_ns)]
    if estimated:
        ends = [mean(one.about.least_ns for one in runs), mean(one.about.most_ns for one in runs)]
    least, most = units.nearest(ends)
    return least, most


def job_of(base: Sequence[Rank], new: Sequence[Rank], ranks: Sequence[_pair.Pair]) -> _pair.Pair | None:
    """The sides of the job; None where it has one rank, or they do not do the same iterations in every run.

    Of `base` and `new` the nth runs of all ranks are one run; `ranks` are without runs that do not count. A run of the
    job counts if it does in all of them.
    """
    numbers = [{len(rank) for rank in side} for side in (base, new)]
    if len(ranks) == 1 or any(len(number) > 1 for number in numbers):
        return None
    runs = [[*zip(*side, strict=True)] for side in (base, new)]
    for run in (run for side in runs for run in side):  # the same iterations on all ranks, but for one at an edge
        numbers_of_ranks = [one.about.recorded_iterations for one in run]
        each = {(one.about.each, one.about.turn) for one in run}
        if len(each) > 1 or not run[0].about.each or max(numbers_of_ranks) - min(numbers_of_ranks) > 1:
            return None
    compared = {id(one) for pair in ranks for side in pair.sides for one in side.digests}
    whole = ([run for run in side if all(id(one) in compared for one in run)] for side in runs)
    first, second = (_pair.Side([_slowest(run) for run in side], []) for side in whole)
    return _pair.Pair(*_pair.in_pairs(first, second), ranks[0].limits) if first.digests and second.digests else None


def _slowest(run: Sequence[Digest]) -> Digest:
    """The rank that takes longest, with each step as long as that of the slowest rank where all have as many."""
    slowest = max(run, key=lambda one: one.about.iteration_ns)
    lengths = [one.steps.get_column("dur_ns").alias(str(rank)) for rank, one in enumerate(run)]
    if len({*map(len, lengths)}) > 1:
        return slowest
    return replace(slowest, steps=STEPS.select(pl.DataFrame(lengths).select(dur_ns=pl.max_horizontal(pl.all()))))


def telling_rank(ranks: Sequence[_pair.Pair]) -> int:
    """The rank that says most about a difference, as an index: the one that holds up the others.

    Of those whose iteration is as long as the longest one, on the side that takes longer, it waits least for others in
    communication. Where there is none, the longest.
    """
    ns = [pair.ns for pair in ranks]
    side = max((0, 1), key=lambda at: max(both[at] for both in ns))
    longest = max(both[side] for both in ns)
    # those hardly shorter than the longest are as long
    near = [at for at, both in enumerate(ns) if both[side] >= 0.99 * longest]
    runs = {at: ranks[at].sides[side].digests for at in near}
    waits = {at: mean(one.ns_in("communication") / one.about.iterations for one in runs[at]) for at in near}
    if any(waits.values()):
        return min(near, key=lambda at: (waits[at], at))
    return max(near, key=lambda at: (ns[at][side], -at))


# A gate.


def gate_of(comparison: Comparison, limit: float, metric: str, allowed: Collection[str]) -> Gate:
    """Judges whether a metric is longer in new by more than `limit`, whatever doubts are `allowed`.

    Raises:
        UnknownNameError: There is no such metric, bucket or kernel.
    """
    pair = comparison.timed if metric in _OF_ONE_MIX else comparison.pair
    base, new = _values(pair, metric)
    if not base:
        why = "a run has fewer than five iterations"
        return Gate("cannot judge", metric, limit, None, None, None, why, comparison.times)
    estimate = alone(pair) if metric == "step" else None
    if pair.repeated:
        estimate = statistics.ratio_of_runs(base, new, paired=pair.paired)
    after = mean(new)
    ratio, low, high = after / mean(base) if any(base) else None, None, None
    if estimate is not None:
        ratio, low, high = estimate[:3]
    against = _refused(comparison, metric, allowed)
    gate = Gate("cannot judge", metric, limit, ratio, low, high, against, comparison.times)
    if gate.reason:
        return gate
    if ratio is None:
        return gate._replace(state="failed" if after else "held", reason="base has none of it" if after else "")
    if (ratio if low is None else low) > 1 + limit:
        return gate._replace(state="failed")
    if (ratio if high is None else high) <= 1 + limit:
        return gate._replace(state="held")
    more = ""
    if pair.repeated and all(base) and all(new):
        effect = math.expm1(abs(math.log(after / mean(base)) - math.log1p(limit)))
        runs = statistics.repeats_needed(base, new, effect=effect, paired=pair.paired)  # None of no effect
        more = "" if runs is None else f"; {runs} runs of each side would tell"
    return gate._replace(reason=f"the interval reaches beyond the limit{more}")


def _refused(comparison: Comparison, metric: str, allowed: Collection[str]) -> str:
    """The reasons against a judgement, and what judges even so."""
    reasons = [(one.kind, one.text) for one in comparison.doubts]
    if not comparison.pair.repeated:
        reasons.insert(0, ("runs", "too few runs: two or more of each side are needed"))
    if comparison.other_mix and metric.partition(":")[0] not in _OF_ONE_MIX:
        reasons.append(("mix", f"{comparison.other_mix}, not taken off {metric}: measure step, quick or token:KIND"))
    if comparison.reason:
        reasons.append(("whole", f"no common iterations: {comparison.reason}"))
    against = [(kind, text) for kind, text in reasons if kind not in allowed]
    options = " ".join(f"--allow {kind}" for kind in dict.fromkeys(kind for kind, _ in against))
    return "; ".join([*(text for _, text in against), f"to judge even so: {options}"]) if against else ""


#: What is measured of an engine's steps as if both sides had the same mix of sizes.
_OF_ONE_MIX: Final = ("step", "quick", "token")

#: The table, its column of names and that of times, of what a gate measures by name; of kernels a part of it will do.
_MEASURED: Final = {"bucket": ("buckets", "bucket", "ns"), "kernel": ("slots", "name", "exclusive_ns")}


def _values(pair: _pair.Pair, metric: str) -> tuple[list[float], list[float]]:
    """The time of the metric in an iteration of each run of base and of new."""
    kind, _, name = metric.partition(":")
    if metric == "step":
        return pair.base.values_ns, pair.new.values_ns
    if metric == "quick":
        return quick_values(pair) or ([], [])
    if kind == "token" and name:
        return token_ns(pair, name)
    if metric == "busy":
        return pair.per_run(pair.runs("buckets").filter(pl.col("bucket").is_in(BUSY_BUCKETS)), "ns")
    if kind not in _MEASURED or not name:
        metrics = ("step", "quick", "busy", "bucket:NAME", "kernel:NAME", "token:KIND")
        raise errors.UnknownNameError.of("metric", metric, metrics)
    table, column, ns = _MEASURED[kind]
    rows = pair.runs(table)
    names = sorted(rows.get_column(column).drop_nulls().unique())
    meant = [one for one in names if one == name or (kind == "kernel" and name in one)]
    if not meant:
        raise errors.UnknownNameError.of(kind, name, names)
    return pair.per_run(rows.filter(pl.col(column).is_in(meant)), ns)


# The noise floor.


@dataclass(frozen=True)
class Noise:
    """How much runs of one program differ."""

    kind: ClassVar[Literal["noise"]] = "noise"

    name: str  # the first of the runs
    each: str  # what an iteration is called; ``whole`` where there is none
    mean_ns: float  # mean time of an iteration
    step: statistics.NoiseFloor  # the floor of an iteration
    buckets: dict[str, tuple[float, statistics.NoiseFloor]]  # that of each bucket of the ledger, with its mean time
    kernels: dict[str, tuple[float, statistics.NoiseFloor]]  # that of each kernel, with its mean time
    rows: float  # two single runs of one program differ by less than this part in 95 of 100 kernels

    @property
    def floor(self) -> float:
        """Between two single runs of the program, the part by which the time of an iteration differs."""
        return self.step.least_ratio - 1


def noise_of(digests: Sequence[Digest]) -> Noise:
    """The noise floor of runs of one program.

    Raises:
        IncomparableError: There are fewer than two runs, or one took no time.
    """
    times = [one.about.iteration_ns for one in digests]
    step = statistics.noise_floor(times) if len(times) > 1 else None
    if step is None:
        raise errors.IncomparableError.few_runs(len(times))
    mean_ns, about = float(np.mean(times)), digests[0].about
    buckets = _floors(digests, "buckets", "bucket", "ns", 0.0)
    kernels = _floors(digests, "slots", "name", "exclusive_ns", _pair.LEAST_SHARE * mean_ns)
    ratios = [floor.least_ratio - 1 for _, floor in kernels.values()]
    # of nearly all kernels the noise is below it
    rows = float(np.quantile(ratios, 0.95)) if ratios else step.least_ratio - 1
    return Noise(about.name, about.each or about.scope, mean_ns, step, buckets, kernels, rows)


def _floors(
    digests: Sequence[Digest], table: str, key: str, ns: str, least_ns: float
) -> dict[str, tuple[float, statistics.NoiseFloor]]:
    """The floor of the time of each key of a table that takes at least so long, the longest first."""
    names, sums = _pair.per_iteration(_pair.stacked(digests, table).drop_nulls(key), len(digests), (key,), (ns,))
    means = zip(sums[ns].mean(axis=1).tolist(), names.get_column(key), sums[ns].tolist(), strict=True)
    long = sorted((one for one in means if one[0] >= least_ns), key=lambda one: (-one[0], one[1]))
    floors = {name: (mean_ns, statistics.noise_floor(runs)) for mean_ns, name, runs in long}
    return {name: (mean_ns, floor) for name, (mean_ns, floor) in floors.items() if floor is not None}
