"""Passes of the program's own loops, as ranges are, of captures in which they were noted.

Definitions: docs/definitions.md, section 4, "Iterations".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.shared.source_lines import loop_passes
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

#: So many loops are looked at of a report, those with fewest passes first: the outermost have few.
_MOST: Final = 256

_PASSES: Final = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "name": pl.String}


def passes(report: Report) -> pl.DataFrame:
    """Each pass of a loop from the second on: process_id, thread_id, start, end, name (``train.py:28``).

    A pass ends where the next one begins. From the last one of a run of the loop to the next run is none: a loop around
    it begins a pass of its own there.
    """
    named = (
        loop_passes(report)
        .select(*THREAD, start="time_ns", name=pl.format("{}:{}", "file", "line"))
        .sort(*THREAD, "start")
    )
    told = named.with_columns(end=pl.col("start").shift(-1).over(*THREAD, "name"))
    loops = told.partition_by(*THREAD, "name", maintain_order=True)
    around: dict[tuple[object, ...], list[pl.Series]] = {}
    found = [pl.DataFrame(schema=_PASSES)]
    for loop in sorted(loops, key=lambda one: one.height)[:_MOST]:
        others = around.setdefault(loop.select(*THREAD).row(0), [])
        own, outer = loop.drop_nulls("end"), [one for one in others if _lies_in(loop, one)]
        inside = [_begun_in(own, one) == 0 for one in outer]
        found.append(own.filter(pl.all_horizontal(inside)) if inside else own)
        others.append(loop.get_column("start"))
    return pl.concat([part.select([*_PASSES]) for part in found]).sort(*THREAD, "start")


def _lies_in(loop: pl.DataFrame, around: pl.Series) -> bool:
    """Whether a loop runs within most passes of another, which begin at the times `around`."""
    others = pl.DataFrame([around.alias("start"), around.shift(-1).alias("end")]).drop_nulls()
    held = _begun_in(others, loop.get_column("start")) > 0
    return 2 * int(held.sum()) > len(held)


def _begun_in(spans: pl.DataFrame, times: pl.Series) -> pl.Series:
    """How many of the sorted `times` lie in each of the spans (start, end), their ends left out."""
    first, stop = (times.search_sorted(spans.get_column(side), side="right") for side in ("start", "end"))
    return stop.cast(pl.Int64) - first.cast(pl.Int64)
