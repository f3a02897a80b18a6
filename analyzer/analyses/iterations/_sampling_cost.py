"""Cost of sampling: the iterations of the run that nsys sampled against those of the plain one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import device_operations
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

    Without iterations that are the same work, the time from the first operation to the last, if both have as many; else
    that it cannot be told.
    """
    one, other = known_steady_part(plain), known_steady_part(sampled)
    if one is None or other is None or not _same_work(one, other):
        return _of_all(plain, sampled)
    here, there = (median_of(part.lengths.alias("ns").to_frame(), "ns") for part in (one, other))
    what = with_article(one.each) if one.each in WORDS else f"each {one.each!r}"
    medians = f"{time(there)} against {time(here)}, medians of {other.lengths.len():,} and {one.lengths.len():,}"
    return f"With samples {what} took {times(there / max(here, 1))} as long ({medians})."


def _of_all(plain: Report, sampled: Report) -> str:
    """The same of all operations of two runs."""
    one, other = device_operations(plain), device_operations(sampled)
    if one.is_empty() or one.height != other.height:
        return "What sampling cost cannot be told: the two runs did not do the same."
    spans = [work.select(pl.col("end").max() - pl.col("start").min()).item() for work in (one, other)]
    long = f"{time(spans[1])} against {time(spans[0])}, of {one.height:,} operations"
    ratio = times(spans[1] / max(spans[0], 1))
    return f"With samples the time from the first operation to the last was {ratio} as long ({long})."


def _same_work(one: SteadyPart, other: SteadyPart) -> bool:
    """Whether the iterations of two runs have one name, and launch as many operations."""
    if one.each != other.each:
        return False
    counts = [float(median_of(part.usual, "operations")) for part in (one, other)]
    return abs(counts[0] - counts[1]) <= _SAME * max(counts)
