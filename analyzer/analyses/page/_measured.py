"""Measured kernels of an HTML report: their roofline, what their warps wait for, and their lines of source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.counters.hot_lines import TABLE as HOT_LINES
from kanalyze.analyses.counters.hot_lines import hot_lines
from kanalyze.analyses.counters.roofline import TABLE as ROOFLINE
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.counters.stalls import TABLE as STALLS
from kanalyze.analyses.counters.stalls import stalls
from kanalyze.analyses.joining._roof_points import counted_of, roof_points, timed_groups
from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.joining._roof_points import RoofPoints
    from kanalyze.report import Report
    from kanalyze.schema import Table

#: What is shown of the kernels that take most time: kernels, reasons and lines of each.
_KERNELS: Final = 8
_REASONS: Final = 6
_LINES: Final = 8


@dataclass(frozen=True)
class Measured:
    """Kernels of a program that ncu measured.

    Attributes:
        roofs: Points of the roofline plot; None where no kernel has work and bytes.
        kernels: The kernels and launch shapes with most time: event_id, name, time_ns.
        time_from: The tool that gives that time.
        reasons: Rows of `stalls` of these kernels, the longest of each.
        lines: Rows of `hot_lines` of these kernels, those with most samples of each.
        tables: The tables of all kernels, with their declarations; those that have rows.
    """

    roofs: RoofPoints | None
    kernels: pl.DataFrame
    time_from: str
    reasons: pl.DataFrame
    lines: pl.DataFrame
    tables: list[tuple[Table, pl.DataFrame]]


def measured(reports: Sequence[Report]) -> Measured | None:
    """Measurements by ncu in the reports of one program; None where they have no counters.

    Args:
        reports: The reports, whole; the first with a timeline gives the time of the kernels.
    """
    try:
        ncu = counted_of(reports)
        groups, _, time_from = timed_groups(reports)
        roofs = roof_points(reports)
    except CannotTellError:
        return None
    kernels = groups.sort("time_ns", "event_id", descending=[True, False], nulls_last=True).head(_KERNELS)
    waits, lines = stalls(ncu), hot_lines(ncu).filter(pl.col("line").is_not_null() & (pl.col("samples") > 0))
    tables = [(ROOFLINE, roofline(ncu)), (STALLS, waits), (HOT_LINES, lines)]
    return Measured(
        roofs if roofs.points.height else None,
        kernels,
        time_from,
        _first_of(kernels, waits, _REASONS),
        _first_of(kernels, lines, _LINES),
        [(table, rows) for table, rows in tables if rows.height and _told(table, rows)],
    )


def _first_of(kernels: pl.DataFrame, rows: pl.DataFrame, most: int) -> pl.DataFrame:
    """The first rows of each of the kernels."""
    return rows.join(kernels.select("event_id"), on="event_id", how="semi").group_by("event_id").head(most)


def _told(table: Table, rows: pl.DataFrame) -> bool:
    """Whether there is more in the rows of a table than which kernels there are."""
    telling = [name for name in table.telling if name != "dur_ns"]
    return not telling or not all(rows.get_column(name).is_null().all() for name in telling)
