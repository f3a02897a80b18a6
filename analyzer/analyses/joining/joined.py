"""Joins kernels across tools: time of nsys or torch, operator of torch, counters of ncu.

Definitions: docs/definitions.md, section 9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Unpack

import polars as pl

from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.device._operations import SHAPE_COLUMNS, decoded
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.joining._kernel_groups import (
    GROUP_KEYS,
    MEASURED,
    QUALITIES,
    RULES,
    kernel_groups,
    kernels_in,
    makers_of_groups,
    measured_groups,
    same_kernels,
    same_launches,
)
from kanalyze.analyses.joining._report_set import Together, different, of_each, pooled, several, together
from kanalyze.analyses.shared.analysis import require
from kanalyze.decoder.fields import OTHER
from kanalyze.errors import CannotTellError
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.tools import TIMED

_SURE: Final = ", ".join(QUALITIES)
_SAID: Final = ("family", "library", "operation", "dtype")


def _match(tool: str) -> Column:
    doc = f"How sure it is that {tool} saw the same kernel: {_SURE}; null where no report of it was given."
    return Column(f"{tool}_match", pl.String, doc, nullable=True)


#: Columns for the launch that ncu measured, where it could be identified.
_LAUNCH: Final = (
    Column("launch_number", pl.Int64, "Which launch of its function event_id is, from 1.", nullable=True),
    Column("launch_event_id", pl.Int64, "That launch in the report of the time.", nullable=True),
    Column("launch_ns", pl.Int64, "Its duration there; null outside of the window.", nullable=True),
)

TABLE: Final = Table(
    "joined",
    "One kernel in one launch shape on one GPU, as nsys, torch.profiler and ncu saw it.",
    (
        Column("name", pl.String, "Its name, as the tool that gives the time writes it.", nullable=True),
        Column("device", pl.Int64, "The GPU, as the process itself numbers it.", nullable=True),
        *SHAPE_COLUMNS,
        Column("time_from", pl.String, f"The tool that gives its time: {TIMED}.", nullable=True),
        Column("count", pl.Int64, "Launches there; null where that tool did not see it.", nullable=True),
        Column("total_ns", pl.Int64, "Sum of their durations.", nullable=True),
        Column("avg_ns", pl.Float64, "Mean duration.", nullable=True),
        Column("exclusive_ns", pl.Int64, "Their time, each instant counted for one kernel.", nullable=True),
        Column("window_share", pl.Float64, "Part of the windows of all GPUs that exclusive_ns is.", nullable=True),
        *(Column(name, pl.String, f"What the name says: {name}; `other` where it does not.") for name in _SAID),
        _match("torch"),
        Column("torch_count", pl.Int64, "Launches that torch saw.", nullable=True),
        Column("torch_total_ns", pl.Int64, "Sum of their durations there.", nullable=True),
        Column("operator", pl.String, "The operator that launched most of its time.", nullable=True),
        Column("operators", pl.Int64, "How many different ones did.", nullable=True),
        Column("path", pl.String, "The operators around that one, and itself.", nullable=True),
        Column("module", pl.String, "The nn.Module that launched it, behind those around it.", nullable=True),
        _match("ncu"),
        *MEASURED,
        *_LAUNCH,
        *RULES,
        *columns("""
            gain_share float?: What the best advice would save of the window: window_share times best_speedup_share.
            gain_ns int?: The same as time.
        """),
    ),
    purpose="each kernel as nsys, torch and ncu saw it",
    telling=("count", "exclusive_ns", "window_share", "operator", "bound", "gain_ns"),
    together=True,
)


def joined(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Joins the kernels that several tools saw, the longest total time first; those without a time last.

    Args:
        reports: The first report of nsys, else of torch.profiler, provides the time. Several of nsys, or without nsys
            of torch.profiler, each have a time of their own; all others of one tool are merged.
        where: A window, device or process of the reports that give the time.

    Returns:
        :data:`TABLE`; :data:`SEVERAL` where several reports provide a time. Every kernel of any report occurs once; the
        match is ``none`` where another tool did not see it, or has several candidates that cannot be told apart.

    Raises:
        CannotTellError: No report provides the time, or it has no kernels.
    """
    return of_each(TABLE, together(TABLE, reports, where), joined_of)


def joined_of(found: Together) -> pl.DataFrame:
    """:func:`joined` for one report that provides the time, and the others."""
    require(found.base, TABLE, "kernel")
    window = windows(found.base).select((pl.col("end") - pl.col("start")).sum()).item() or 1
    frame = kernel_groups(found.base).with_columns(
        time_from=pl.lit(found.base.meta.tool),
        avg_ns=pl.col("total_ns") / pl.col("count"),
        window_share=pl.col("exclusive_ns") / window,
    )
    if found.torch is not None:
        groups = kernel_groups(found.torch).select("group", *GROUP_KEYS, torch_count="count", torch_total_ns="total_ns")
        if "op" in found.torch.kinds:
            groups = groups.join(makers_of_groups(found.torch), on=GROUP_KEYS, how="left", nulls_equal=True)
        frame = _with_other_tool(frame, groups, found.base, found.torch)
    if found.ncu is not None:
        frame = _with_other_tool(frame, measured_groups(found.ncu), found.base, found.ncu)
        frame = _with_launch(frame, found.base, found.ncu)
    frame = _with_decoded_names(frame, found)
    if found.torch is None and found.operators is not None:
        frame = frame.join(makers_of_groups(found.operators), on=GROUP_KEYS, how="left", nulls_equal=True)
    frame = TABLE.completed(frame)
    gains = {f"gain_{unit}": pl.col(f) * pl.col("best_speedup_share") for unit, f in _GAINS.items()}
    order = ("exclusive_ns", "total_ns", "ncu_dur_ns", *GROUP_KEYS)
    down = [name.endswith("_ns") for name in order]
    return TABLE.select(frame.with_columns(**gains).sort(order, descending=down, nulls_last=True))


SEVERAL: Final = several(TABLE)

_GAINS: Final = {"share": "window_share", "ns": "exclusive_ns"}


def _with_other_tool(frame: pl.DataFrame, theirs: pl.DataFrame, base: Report, other: Report) -> pl.DataFrame:
    """Joins another tool's columns to `frame`, and appends the kernels that only that tool has."""
    match = f"{other.meta.recorder.short}_match"
    pairs = same_kernels(base, other).rename({"match": match})
    own = theirs.drop(GROUP_KEYS)
    both = pairs.join(own, left_on="right", right_on="group").drop("right")
    matched = frame.join(both, left_on="group", right_on="left", how="left")
    alone = theirs.join(pairs, left_on="group", right_on="right", how="anti").with_columns(
        pl.lit(None, dtype=pl.Int64).alias("group")
    )
    every = pl.concat([matched, alone], how="diagonal_relaxed")
    return every.with_columns(pl.col(match).fill_null("none"))


def _with_launch(frame: pl.DataFrame, base: Report, ncu: Report) -> pl.DataFrame:
    """`frame` with the launch of `base` that ncu measured, where its number is known or it is the only one."""
    numbered = same_launches(base, ncu).select(event_id="right", launch_number="number", launch_event_id="left")
    launches = kernels_in(base).select("event_id", "dur_ns", *GROUP_KEYS)
    single = launches.filter(pl.len().over(GROUP_KEYS) == 1).rename({"event_id": "only"}).drop("dur_ns")
    told = frame.join(numbered, on="event_id", how="left").join(single, on=GROUP_KEYS, how="left", nulls_equal=True)
    only = pl.when(pl.col("ncu_match") == "exact").then("only")
    known = pl.col("launch_event_id").is_not_null()
    placed = told.with_columns(
        launch_number=pl.when(known).then("launch_number"), launch_event_id=pl.coalesce("launch_event_id", only)
    )
    times = launches.select(launch_event_id="event_id", launch_ns="dur_ns")
    return placed.join(times, on="launch_event_id", how="left")


def _with_decoded_names(frame: pl.DataFrame, found: Together) -> pl.DataFrame:
    """`frame` with what the kernel names tell: family, library and so on."""
    names = frame.select(pl.col("name").cast(pl.Categorical), event_id=pl.lit(-1, dtype=pl.Int64))
    said = decoded(found.base, names.unique("name"), *_SAID).with_columns(pl.col("name").cast(pl.String))
    return frame.join(said.drop("event_id"), on="name", how="left", nulls_equal=True).with_columns(
        pl.col(name).fill_null(OTHER) for name in _SAID
    )


# The points of a roofline plot: where each kernel stands under its roof, and how much time it takes.

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
