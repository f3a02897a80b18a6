"""The sentences of a page on CPU samples: the report's own, or those of another run of the same program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.idle.culprits import culprits, own_samples
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


def sampled_beside(report: Report, view: Report) -> str:
    """Function that the GPU waited for by samples, and what they cost; empty without samples.

    They are those of another run that a capture has for them, which are told of the whole report alone; else the
    report's own, of `view`, the part that the page is of.
    """
    other = report.sampled() if report.whole is report else None
    try:
        if other is not None:
            return f"{_most_waited_for(_steady(other), 'In a run with samples')}{sampling_cost(report, other)}"
        return _most_waited_for(view, "By samples").strip() if own_samples(report) else ""
    except KanalyzeError:  # which is noted
        return ""


def _steady(report: Report) -> Report:
    steady = known_steady_part(report)
    return report if steady is None else report.narrow(window=steady.window)


def _most_waited_for(report: Report, by: str) -> str:
    """The function with most of the host time, on the GPU with most of it, and how much the thread was not let run.

    Empty without samples, where neither is a good part, or where the GPU hardly waits.
    """
    try:
        rows = culprits(report, by="function")
    except KanalyzeError:
        return ""
    waited = rows.group_by("device").agg(pl.col("ns", "share").sum()).sort("ns", "device", descending=[True, False])
    if waited.is_empty() or waited.item(0, "share") < _NOTABLE:
        return ""
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
        name = str(best.item(0, "function"))
        blocked = _blocked(own.filter(pl.col("function") == name))
        told.append(f"{shortened(name, _LONGEST)} is {percent(best.item(0, 'host_share'))} {_OF}{blocked}")
    if ready >= _NOTABLE:
        told.append(f"its thread is ready but on no processor for {percent(ready)} {'of it' if told else _OF}")
    return f"{by}, {', and '.join(told)}. " if told else ""


def _blocked(rows: pl.DataFrame) -> str:
    """Clause on what a function waits for, where that is most of its time; else empty."""
    sums = rows.drop_nulls("waits_on").group_by("waits_on").agg(pl.col("host_share").sum())
    best = sums.sort("host_share", "waits_on", descending=[True, False]).head(1)
    if best.is_empty() or 2 * best.item(0, "host_share") <= rows.get_column("host_share").sum():
        return ""
    return f" (most of it waiting: {best.item(0, 'waits_on')})"
