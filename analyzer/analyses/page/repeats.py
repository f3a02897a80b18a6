"""Run-to-run variation of several recordings of one program."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from kanalyze.units import percent, plural, time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary


def repeated(runs: Sequence[Summary | Overview]) -> Summary | Overview:
    """The page of the first of several runs, with the variation of all runs added to its headline."""
    first = runs[0]
    if len(runs) == 1:
        return first
    return replace(first, answer=f"{first.answer} {_variation(runs)}")


def _variation(runs: Sequence[Summary | Overview]) -> str:
    windows = [int(run.windows.get_column("window_ns").sum()) for run in runs]
    busy = [int(run.windows.get_column("busy_ns").sum()) for run in runs]
    idle = sum(not window for window in windows)
    this = f"This is the first of {plural(len(runs), 'run')}"
    if idle:
        return f"{this}; in {idle:,} of them nothing that a GPU did was recorded."
    return f"{this}: their windows are {_spread(windows)}, and their busy times {_spread(busy)}."


def _spread(values: Sequence[int]) -> str:
    middle = median(values)
    apart = f", {percent((max(values) - min(values)) / middle)} apart" if middle else ""
    return f"{time(min(values))} to {time(max(values))} (median {time(middle)}{apart})"
