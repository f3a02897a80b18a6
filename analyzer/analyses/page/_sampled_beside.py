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

_OF: Final = "of the time in which the GPU waits for the program's own code"

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
        return f"{_most_waited_for(view)}{sampling_cost(report, other)}"
    except KanalyzeError:  # which a table of that run says
        return ""


def _steady(report: Report) -> Report:
    steady = known_steady_part(report)
    return report if steady is None else report.narrow(window=steady.window)


def _most_waited_for(report: Report) -> str:
    """The function with most of the host time, on the GPU with most of it, and how much the thread was not let run.

    Empty without samples, or where neither is a good part.
    """
    try:
        rows = culprits(report, by="function")
    except KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns").sum()).sort("ns", "device", descending=[True, False])
    own = rows.join(waited.head(1), on="device", how="semi")
    by_stack = pl.col("host_share").filter(pl.col("evidence") == "call stack").sum()
    sums = own.drop_nulls("function").group_by("function").agg(pl.col("host_share", "samples").sum(), stack=by_stack)
    # a stack of each call tells all of it, without samples
    enough = (pl.col("samples") >= _SAMPLES) | (pl.col("stack") >= pl.col("host_share") / 2)
    best = sums.filter((pl.col("host_share") >= _NOTABLE) & enough).sort(
        "host_share", "function", descending=[True, False]
    )
    ready = float(own.filter(pl.col("state") == "runnable").get_column("host_share").sum())
    told = []
    if not best.is_empty():
        told.append(f"{shortened(best.item(0, 'function'), _LONGEST)} is {percent(best.item(0, 'host_share'))} {_OF}")
    if ready >= _NOTABLE:
        told.append(f"its thread is ready but on no processor for {percent(ready)} {'of it' if told else _OF}")
    return f"In a run with samples, {', and '.join(told)}. " if told else ""
