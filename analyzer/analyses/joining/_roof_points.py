"""The points of a roofline plot: where each kernel stands under its roof, and how much time it takes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.joining._kernel_groups import measured_groups
from kanalyze.analyses.joining._report_set import different, pooled, together
from kanalyze.analyses.joining.joined import joined_of
from kanalyze.errors import CannotTellError
from kanalyze.report import Report

_ROOF: Final = ("intensity_flop_per_byte", "achieved_flop_per_s", "precision", "peak_flop_per_s",
                "peak_dram_bytes_per_s", "bound", "roof_share", "flop")  # fmt: skip


@dataclass(frozen=True)
class RoofPoints:
    """The data of a roofline plot.

    Attributes:
        title: Heading of the plot: the report with the counters, and where the time is from if that is ambiguous.
        points: One row per kernel and launch shape that did floating-point work, the longest first: name, time_ns, and
            columns of `roofline`.
        left_out: Number of kernels without work or bytes, which have no place on logarithmic axes.
        time_from: The tool that provides the time.
    """

    title: str
    points: pl.DataFrame
    left_out: int
    time_from: str


def counted_of(reports: Sequence[Report]) -> Report:
    """The reports with counters, merged into one.

    Raises:
        CannotTellError: None has.
    """
    found = pooled(different([one for one in reports if one.meta.timeless]))
    if found is None:
        raise CannotTellError.without_counters("roofline", reports[0].meta.path)
    return found


class Timed(NamedTuple):
    """Measured kernels and launch shapes with their time.

    Attributes:
        rows: event_id, name, time_ns.
        ncu: The report with the counters.
        title: Its name, and where the time is from if that is ambiguous.
        time_from: The tool that provides the time.
    """

    rows: pl.DataFrame
    ncu: Report
    title: str
    time_from: str


def timed_groups(reports: Sequence[Report]) -> Timed:
    """The measured kernels with the time of the first other report that provides one, else of the measured runs alone.

    Raises:
        CannotTellError: No report has counters.
    """
    ncu = counted_of(reports)
    if all(one.meta.timeless for one in reports):
        rows = measured_groups(ncu).select("event_id", "name", time_ns=pl.col("ncu_dur_ns") * pl.col("ncu_count"))
        return Timed(rows, ncu, ncu.meta.path.name, ncu.meta.tool)
    found, *more = (one for one in together("roofline", reports, {}) if one.ncu is not None)
    own = found.ncu or ncu
    rows = joined_of(found).drop_nulls("event_id").select("event_id", "name", time_ns="exclusive_ns")
    title = own.meta.path.name + (f", time of {found.base.meta.path.name}" if more else "")
    return Timed(rows, own, title, found.base.meta.tool)


def roof_points(reports: Sequence[Report]) -> RoofPoints:
    """The points of the reports with counters, sized by the time of the first other report that provides it.

    Raises:
        CannotTellError: No report has counters.
    """
    found = timed_groups(reports)
    every = found.rows.join(roofline(found.ncu).select("event_id", *_ROOF), on="event_id")
    placed = (pl.col("intensity_flop_per_byte") > 0) & (pl.col("achieved_flop_per_s") > 0)
    points = every.filter(placed.fill_null(value=False)).with_columns(pl.col("time_ns").fill_null(0))
    return RoofPoints(
        found.title,
        points.select("name", "time_ns", *_ROOF).sort("time_ns", "name", descending=[True, False]),
        every.height - points.height,
        found.time_from,
    )
