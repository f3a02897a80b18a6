"""How long a program and its iterations take without a profiler, from such runs of a capture.

Definitions: docs/definitions.md, section 4, "Without a profiler".
"""

from __future__ import annotations

from itertools import pairwise
from statistics import mean, median
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.iterations._marks import BY_LOOPS
from kanalyze.units import percent, shortened, time, times

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.report import BareRun, Report

#: Marks of a program that repeats less often may be as many by chance.
_FEWEST: Final = 5

#: The mark of a program that profiles itself, and those of torch that tell iterations.
OWN: Final = "the program's own profiler"
OF_TORCH: Final = ("Optimizer.step#", "the outermost module's call")

#: Runs that differ by more than this part vary; and the part of iterations at each end that the range leaves out.
_VARIES: Final = 0.05
_TENTH: Final = 0.1

#: Times that differ by less than this part are the same.
_SAME: Final = 0.02

#: Longer names of marks are shortened.
_LONGEST: Final = 48


class BareIteration(NamedTuple):
    """An iteration without a profiler.

    Attributes:
        ns: The mean over the iterations of the steady part; of several runs the median of theirs.
        recorded_ns: The mean over the same iterations as recorded.
        runs_ns: The mean of each run, in order.
        low_ns: Nine of ten iterations, of all runs, take as long at least.
        high_ns: Nine of ten take as long at most.
        mark: The mark of the program by which its iterations are known.
        by_device: Whether the host was ahead, so that an iteration takes as long as the GPU works in it.
        of_loop: Whether the mark is a loop of the program, by file and line.
    """

    ns: float
    recorded_ns: float
    runs_ns: tuple[float, ...]
    low_ns: float
    high_ns: float
    mark: str
    by_device: bool
    of_loop: bool = False

    @property
    def spread_ns(self) -> float:
        """How far the means of its runs are apart."""
        return max(self.runs_ns) - min(self.runs_ns)


class Bare(NamedTuple):
    """Runs of a program without a profiler.

    Attributes:
        programs_ns: How long each took, from start to end of the process.
        iteration: An iteration of them; None where no mark tells it.
    """

    programs_ns: tuple[int, ...]
    iteration: BareIteration | None


def without_profiler(report: Report, steady: SteadyPart | None, busy_ns: float) -> Bare | None:
    """The runs without a profiler in the report's capture; None without any.

    Args:
        report: The report.
        steady: Its steady part; None where nothing repeats.
        busy_ns: Time that the GPU is busy in an iteration: none is shorter.
    """
    programs_ns, runs, damage = report.whole.bare()
    if damage is not None:
        report.go_without("of runs without a profiler", damage)
    if not programs_ns or any(OWN in run.starts_ns for run in runs):  # a program that profiles itself
        return None
    whole = report.meta.recorder.every_launch and not report.meta.partial and report.whole is report
    if steady is None or not whole:
        return Bare(programs_ns, None)
    return Bare(programs_ns, _iteration(_of_rank(runs, report.meta.rank), steady, busy_ns))


def _of_rank(runs: Sequence[BareRun], rank: int | None) -> list[BareRun]:
    """The runs of a rank; where none is of it, those of the first one."""
    ranks = {one.rank for one in runs}
    wanted = rank if rank in ranks else min(ranks, key=lambda one: -1 if one is None else one, default=None)
    return [one for one in runs if one.rank == wanted]


def _iteration(runs: Sequence[BareRun], steady: SteadyPart, busy_ns: float) -> BareIteration | None:
    windows = steady.rows.filter(pl.col("name") == steady.each).sort("start_ns").get_column("window")
    first, last = windows.index_of(steady.first), windows.index_of(steady.last)
    if first is None or last is None:
        return None
    loop = steady.found_by.removeprefix(BY_LOOPS).strip() if steady.found_by.startswith(BY_LOOPS) else None
    told = [lengths_of(run.starts_ns, loop or steady.each, windows.len(), first, last) for run in runs]
    known = [one for one in told if one is not None]
    if not known:
        return None
    means_ns = [mean(lengths) for _, lengths in known]
    every = pl.Series([ns for _, lengths in known for ns in lengths])
    low, high = (max(every.quantile(part, "nearest") or 0.0, busy_ns) for part in (_TENTH, 1 - _TENTH))
    runs_ns, recorded_ns = tuple(max(ns, busy_ns) for ns in means_ns), steady.ns / steady.number
    if not median(runs_ns):
        return None
    mark, by_device = known[0][0], median(means_ns) <= busy_ns
    return BareIteration(
        median(runs_ns), recorded_ns, runs_ns, low, high, mark, by_device=by_device, of_loop=mark == loop
    )


def lengths_of(
    starts_ns: Mapping[str, Sequence[int]], each: str, count: int, first: int, last: int
) -> tuple[str, list[int]] | None:
    """The mark that tells iterations, and the time from the start of each to that of the next one, ns.

    Args:
        starts_ns: When occurrences of a mark began, by name.
        each: The name of an iteration, or the loop that it is a pass of.
        count: The number of iterations of the program.
        first: The number of the first iteration that counts, from 0.
        last: That of the last one.

    None where neither the ranges of that name, nor the steps of an optimizer, nor the calls of the outermost module are
    as many as the iterations.
    """
    if count < _FEWEST or last <= first:
        return None
    # of a loop the last pass that begins is none where Python only finds that there is no further one
    counts = {name: len(starts) for name, starts in starts_ns.items()}
    alike = [
        name
        for name, many in counts.items()
        if (many == count and _called(name)) or (name == each and many in (count, count + 1))
    ]
    if not alike:
        return None
    name = min(alike, key=lambda one: (one != each, _place(one)))
    return name, [later - start for start, later in pairwise(starts_ns[name][first : last + 1])]


def _place(mark: str) -> int:
    """The place of a mark among those of torch, the surest first."""
    return next((at for at, start in enumerate(OF_TORCH) if mark.startswith(start)), len(OF_TORCH))


def _words(one: BareIteration) -> str:
    """What tells an iteration, in a sentence."""
    mark = shortened(one.mark, _LONGEST)
    return _called(one.mark) or (f"the passes of {mark}" if one.of_loop else repr(mark))


def _called(mark: str) -> str:
    """What a mark of torch is called in a sentence; empty for another one."""
    return ("steps of the optimizer", "calls of the outermost module", "")[_place(mark)]


def corrected_sentence(bare: Bare, tool: str, slower: float, ns: float) -> str:
    """A sentence on what an iteration of `ns` took while `tool` recorded it, on a page of times without it."""
    one = bare.iteration
    if one is None:
        return ""
    mark = _words(one)
    if slower <= 1 + _SAME:
        return f"A run without {tool} took about as long, by {mark}."
    if one.by_device:
        ahead = f"in a run without it the host is ahead of the GPU, by {mark}"
        return f"While {tool} recorded, it took {time(ns * slower)}, up to {times(slower)} as long: {ahead}."
    took = f"{time(ns * slower)}, {times(slower)} as long"
    apart = f", in which it took {time(one.ns)}" if abs(one.ns / ns - 1) > _SAME else ""
    return f"While {tool} recorded, it took {took}: a run without it tells, by {mark}{apart}."


def bare_sentence(bare: Bare, tool: str) -> str:
    """A sentence on the runs without a profiler, beside a report of `tool`."""
    one = bare.iteration
    if one is None:
        return f"Without a profiler the program took {time(median(bare.programs_ns))} from start to end."
    mark = _words(one)
    how = "as long as the GPU works" if one.by_device else f"by {mark}"
    spread = one.spread_ns / one.ns
    varies = f"; its {len(one.runs_ns)} runs vary by {percent(spread)}" if spread > _VARIES else ""
    range_of = f"{time(one.low_ns)} to {time(one.high_ns)}, " if one.high_ns > one.low_ns else ""
    least = "at least " if one.by_device else ""
    text = f"Without {tool} it took {least}{time(one.ns)} ({range_of}{how}{varies})"
    ratio = one.recorded_ns / one.ns
    if one.low_ns <= one.recorded_ns <= one.high_ns or abs(ratio - 1) <= _SAME:
        return f"{text}, about as long."
    if ratio < 1:
        return f"{text}, longer than recorded: its runs vary."
    return f"{text}: recorded, {'up to ' if one.by_device else ''}{times(ratio)} as long."
