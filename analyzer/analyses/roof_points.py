"""The kernels of a roofline picture: where each stands under its roof, and how much time it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._kernel_groups import SHAPE
from kanalyze.analyses._measured_groups import measured_groups
from kanalyze.analyses.joined import joined
from kanalyze.analyses.roofline import roofline
from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report

_ROOF: Final = ("intensity_flop_per_byte", "achieved_flop_per_s", "precision", "peak_flop_per_s",
                "peak_dram_bytes_per_s", "bound", "roof_share", "flop")  # fmt: skip


@dataclass(frozen=True)
class RoofPoints:
    """What the picture shows.

    Attributes:
        title: The report with the counters.
        points: A row per kernel and launch shape that did floating-point work, the longest first: name, time_ns, those
            columns of `roofline`.
        left_out: Kernels without work or bytes, which have no place on logarithmic axes.
        time_from: The tool that gives the time.
    """

    title: str
    points: pl.DataFrame
    left_out: int
    time_from: str


def roof_points(reports: Sequence[Report]) -> RoofPoints:
    """The kernels of the report with counters; sized by the time of another one, where one is given.

    Raises:
        CannotTellError: No report has counters; or several are of one tool.
    """
    ncu = next((one for one in reports if one.meta.timeless), None)
    if ncu is None:
        raise CannotTellError.without_counters("roofline", reports[0].meta.path)
    timed = [one for one in reports if not one.meta.timeless]
    if timed:
        rows = joined(*reports).filter(pl.col("event_id").is_not_null())
        known = rows.select("event_id", "name", time_ns="exclusive_ns")
    else:
        rows = measured_groups(ncu)
        known = rows.select("event_id", "name", *SHAPE, time_ns=pl.col("ncu_dur_ns") * pl.col("ncu_count"))
    found = known.join(roofline(ncu).select("event_id", *_ROOF), on="event_id")
    placed = (pl.col("intensity_flop_per_byte") > 0) & (pl.col("achieved_flop_per_s") > 0)
    points = found.filter(placed.fill_null(value=False)).with_columns(pl.col("time_ns").fill_null(0))
    tool = next((one.meta.tool for name in ("nsys", "torch.profiler") for one in timed if one.meta.tool == name), "ncu")
    return RoofPoints(
        ncu.meta.path.name,
        points.select("name", "time_ns", *_ROOF).sort("time_ns", "name", descending=[True, False]),
        found.height - points.height,
        tool,
    )
