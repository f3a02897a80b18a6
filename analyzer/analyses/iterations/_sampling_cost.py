"""What sampling cost a program: its iterations in the run that nsys sampled against those in the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.units import time, times
from kanalyze.window import WORDS, with_article

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._steady import SteadyPart
    from kanalyze.report import Report

#: Iterations of two runs are the same work if their numbers of operations differ by at most this part.
_SAME: Final = 0.01


def sampling_cost(plain: Report, sampled: Report) -> str:
    """How long an iteration took in the run with samples, against the one without, as a sentence.

    Where the two do not repeat the same, that this cannot be told.
    """
    one, other = known_steady_part(plain), known_steady_part(sampled)
    if one is None or other is None or not _same_work(one, other):
        return "What sampling cost cannot be told: the two runs do not repeat the same."
    here, there = (median_of(part.lengths.alias("ns").to_frame(), "ns") for part in (one, other))
    what = with_article(one.each) if one.each in WORDS else f"each {one.each!r}"
    medians = f"{time(there)} against {time(here)}, medians of {other.lengths.len():,} and {one.lengths.len():,}"
    return f"With samples {what} took {times(there / max(here, 1))} as long ({medians})."


def _same_work(one: SteadyPart, other: SteadyPart) -> bool:
    """Whether the iterations of two runs have one name, and launch as many operations."""
    if one.each != other.each:
        return False
    counts = [float(median_of(part.usual, "operations")) for part in (one, other)]
    return abs(counts[0] - counts[1]) <= _SAME * max(counts)
