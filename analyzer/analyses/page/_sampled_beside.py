"""The sentences of a page on the run of the same program that nsys sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.iterations._sampling_cost import sampling_cost
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.errors import KanalyzeError
from kanalyze.units import percent, shortened

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A function is told from this share of host time on, if so many samples tell it.
_NOTABLE: Final = 0.1
_SAMPLES: Final = 20

#: Longer names of functions are shortened.
_LONGEST: Final = 48


def sampled_beside(report: Report) -> str:
    """Which function the GPU waited for by the samples of another run, and what they cost.

    Empty without such a run, and for a part of a report.
    """
    other = report.sampled() if report.whole is report else None
    if other is None:
        return ""
    try:
        return f"{_most_waited_for(other)}{sampling_cost(report, other)}"
    except KanalyzeError:  # which a table of that run says
        return ""


def _most_waited_for(report: Report) -> str:
    """The function with most of the host time of the steady part, on the GPU with most of it; empty without samples."""
    steady = known_steady_part(report)
    view = report if steady is None else report.narrow(window=steady.window)
    try:
        rows = culprits(view, by="function")
    except KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns").sum()).sort("ns", "device", descending=[True, False])
    own = rows.join(waited.head(1), on="device", how="semi")
    sums = own.drop_nulls("function").group_by("function").agg(pl.col("host_share", "samples").sum())
    told = sums.filter((pl.col("host_share") >= _NOTABLE) & (pl.col("samples") >= _SAMPLES))
    if told.is_empty():
        return ""
    name, share = told.sort("host_share", "function", descending=[True, False]).select("function", "host_share").row(0)
    what = f"{percent(share)} of the time in which the GPU waits for the program's own code"
    return f"In a run with samples, {shortened(name, _LONGEST)} is {what}. "
