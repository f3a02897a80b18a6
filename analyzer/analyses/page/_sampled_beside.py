"""The sentences of a page on the run of the same program that nsys sampled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.findings import ranked
from kanalyze.analyses.findings.rules.sampled_units import RULES
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

#: So many findings on the GPU's units are told.
_TOLD: Final = 2

#: Longer names are shortened.
_LONGEST: Final = 48


def sampled_beside(report: Report) -> str:
    """Function that the GPU waited for by the samples of another run, and what they cost.

    Empty without such a run, and for a part of a report.
    """
    other = report.sampled() if report.whole is report else None
    if other is None:
        return ""
    try:
        view = _steady(other)
        return f"{_most_waited_for(view)}{_units(view)}{sampling_cost(report, other)}"
    except KanalyzeError:  # which a table of that run says
        return ""


def _steady(report: Report) -> Report:
    steady = known_steady_part(report)
    return report if steady is None else report.narrow(window=steady.window)


def _units(report: Report) -> str:
    """Sentences of findings on the GPU's units in the steady part; empty where there are none."""
    if report.table("gpu_metrics").is_empty():
        return ""
    rules = {rule.__name__.replace("_", "-") for rule in RULES}
    found = [one for one in ranked(report) if one.rule in rules]
    told = [one.headline.format(*(shortened(name, _LONGEST) for name in one.names)) for one in found[:_TOLD]]
    return f"By its GPU metrics: {'; '.join(told)}. " if told else ""


def _most_waited_for(report: Report) -> str:
    """The function with most of the host time, on the GPU with most of it; empty without samples."""
    try:
        rows = culprits(report, by="function")
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
