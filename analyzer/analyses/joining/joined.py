"""Kernels of several tools joined: what each saw, what advice would gain, and implementations side by side.

Definitions: docs/definitions.md, section 9.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Unpack

import polars as pl

from kanalyze import errors, tools
from kanalyze.analyses.counters import advice, roofline
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.host.engine_marks import engine_labels
from kanalyze.analyses.joining._report_set import Together, different, of_each, pooled, several, together
from kanalyze.analyses.operators._kernel_groups import (
    FACTS,
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
from kanalyze.analyses.ranges.ranges import range_gpu
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.decoder.fields import OTHER
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.window import Window

_SURE: Final = ", ".join(QUALITIES)
_SAID: Final = ("family", "library", "operation", "dtype")


def _match(tool: str) -> Column:
    doc = f"How sure it is that {tool} saw the same kernel: {_SURE}; null where no report of it was given."
    return Column(f"{tool}_match", pl.String, doc, nullable=True)


TABLE: Final = Table(
    "joined",
    "One kernel in one launch shape on one GPU, as nsys, torch.profiler and ncu saw it.",
    (
        Column("name", pl.String, "Its name, as the tool that gives the time writes it.", nullable=True),
        Column("device", pl.Int64, "The GPU, as the process itself numbers it.", nullable=True),
        *_operations.SHAPE_COLUMNS,
        Column("time_from", pl.String, f"The tool that gives its time: {tools.TIMED}.", nullable=True),
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
        *columns("""
            launch_number int?: Which launch of its function event_id is, from 1.
            launch_event_id int?: That launch in the report of the time.
            launch_ns int?: Its duration there; null outside of the window.
        """),
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


def joined_of(report_set: Together) -> pl.DataFrame:
    """:func:`joined` for one report that provides the time, and the others."""
    analysis.require(report_set.base, TABLE, "kernel")
    window = _windows.windows(report_set.base).select((pl.col("end") - pl.col("start")).sum()).item() or 1
    frame = kernel_groups(report_set.base).with_columns(
        time_from=pl.lit(report_set.base.meta.tool),
        avg_ns=pl.col("total_ns") / pl.col("count"),
        window_share=pl.col("exclusive_ns") / window,
    )
    if report_set.torch is not None:
        groups = kernel_groups(report_set.torch)
        groups = groups.select("group", *GROUP_KEYS, torch_count="count", torch_total_ns="total_ns")
        if "op" in report_set.torch.kinds:
            groups = groups.join(makers_of_groups(report_set.torch), on=GROUP_KEYS, how="left", nulls_equal=True)
        frame = _with_other_tool(frame, groups, report_set.base, report_set.torch)
    if report_set.ncu is not None:
        frame = _with_other_tool(frame, measured_groups(report_set.ncu), report_set.base, report_set.ncu)
        frame = _with_launch(frame, report_set.base, report_set.ncu)
    names = frame.select(pl.col("name").cast(pl.Categorical), event_id=pl.lit(-1, dtype=pl.Int64)).unique("name")
    attributes = _operations.decoded(report_set.base, names, *_SAID).select(pl.col("name").cast(pl.String), *_SAID)
    frame = frame.join(attributes, on="name", how="left", nulls_equal=True)
    frame = frame.with_columns(pl.col(_SAID).fill_null(OTHER))
    if report_set.torch is None and report_set.operators is not None:
        frame = frame.join(makers_of_groups(report_set.operators), on=GROUP_KEYS, how="left", nulls_equal=True)
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
    both = pairs.join(theirs.drop(GROUP_KEYS), left_on="right", right_on="group").drop("right")
    matched = frame.join(both, left_on="group", right_on="left", how="left")
    alone = theirs.join(pairs, left_on="group", right_on="right", how="anti").drop("group")
    return pl.concat([matched, alone], how="diagonal_relaxed").with_columns(pl.col(match).fill_null("none"))


def _with_launch(frame: pl.DataFrame, base: Report, ncu: Report) -> pl.DataFrame:
    """`frame` with the launch of `base` that ncu measured, where its number is known or it is the only one."""
    numbered = same_launches(base, ncu).select(event_id="right", launch_number="number", launch_event_id="left")
    launches = kernels_in(base).select("event_id", "dur_ns", *GROUP_KEYS)
    single = launches.filter(pl.len().over(GROUP_KEYS) == 1).rename({"event_id": "only"}).drop("dur_ns")
    launched = frame.join(numbered, on="event_id", how="left").join(single, on=GROUP_KEYS, how="left", nulls_equal=True)
    only = pl.when(pl.col("ncu_match") == "exact").then("only")
    number = pl.when(pl.col("launch_event_id").is_not_null()).then("launch_number")
    placed = launched.with_columns(launch_number=number, launch_event_id=pl.coalesce("launch_event_id", only))
    times = launches.select(launch_event_id="event_id", launch_ns="dur_ns")
    return placed.join(times, on="launch_event_id", how="left")


# The points of a roofline plot: where each kernel stands under its roof, and how much time it takes.

_ROOF: Final = ("intensity_flop_per_byte", "achieved_flop_per_s", "precision", "peak_flop_per_s",
                "peak_dram_bytes_per_s", "bound", "roof_share", "flop")  # fmt: skip


@dataclass(frozen=True)
class RoofPoints:
    """The data of a roofline plot.

    The `points` are one row per kernel and launch shape that did floating-point work, the longest first: name, time_ns,
    and columns of `roofline`.
    """

    title: str  # the report with the counters, and where the time is from if that is ambiguous
    points: pl.DataFrame
    left_out: int  # kernels without work or bytes, which have no place on logarithmic axes
    time_from: str  # the tool that provides the time


def counted_of(reports: Sequence[Report]) -> Report:
    """The reports with counters, merged into one.

    Raises:
        CannotTellError: None has.
    """
    counted = pooled(different([report for report in reports if report.meta.timeless]))
    if counted is None:
        raise errors.CannotTellError.without_counters("roofline", reports[0].meta.path)
    return counted


def roof_points(reports: Sequence[Report]) -> RoofPoints:
    """The points of the reports with counters, by the time of the first other one with a time, else of measured runs.

    Raises:
        CannotTellError: No report has counters.
    """
    ncu = counted_of(reports)
    timed, title = ncu, ncu.meta.path.name
    if all(report.meta.timeless for report in reports):
        rows = measured_groups(ncu).select("event_id", "name", time_ns=pl.col("ncu_dur_ns") * pl.col("ncu_count"))
    else:
        first, *more = (report_set for report_set in together("roofline", reports, {}) if report_set.ncu is not None)
        ncu, timed = first.ncu or ncu, first.base
        rows = joined_of(first).drop_nulls("event_id").select("event_id", "name", time_ns="exclusive_ns")
        title = ncu.meta.path.name + (f", time of {timed.meta.path.name}" if more else "")
    kernels = rows.join(roofline.roofline(ncu).select("event_id", *_ROOF), on="event_id")
    placed = (pl.col("intensity_flop_per_byte") > 0) & (pl.col("achieved_flop_per_s") > 0)
    points = kernels.filter(placed.fill_null(value=False)).with_columns(pl.col("time_ns").fill_null(0))
    return RoofPoints(
        title,
        points.select("name", "time_ns", *_ROOF).sort("time_ns", "name", descending=[True, False]),
        kernels.height - points.height,
        timed.meta.tool,
    )


# Advice about kernels, ranked by what the whole program would gain.

GAINS: Final = Table(
    "gains",
    "One piece of advice about one kernel that ncu measured, with what the program would gain.",
    (
        Column("name", pl.String, "Its name, as the tool that gives the time writes it.", nullable=True),
        Column("device", pl.Int64, "The GPU, as the process itself numbers it.", nullable=True),
        *_operations.SHAPE_COLUMNS,
        *columns("""
            event_id int: The launch that ncu measured, in the tables of that report.
            ncu_match text: How sure it is that ncu saw the same kernel, as in `joined`.
            window_share float?: Part of the window that the kernel takes.
            exclusive_ns int?: The same as time.
            gain_share float?: Part of the window that is saved at most: window_share times possible_share.
            gain_ns int?: The same as time; null for a local estimate, or without time.
            source text: Whose rule it is: ncu or kanalyze.
            rule text: Name of the rule.
            scope text?: What the estimate is of: global (the duration) or local.
            speedup_share float?: The part of it that the rule estimates can be saved.
            roof_share float?: How near the launch comes to its roof, as in `roofline`.
        """),
        *advice.CAPPED,
        Column("sentence", pl.String, "What was found."),
        Column("remedy", pl.String, "What to do about it; null where the sentence of ncu says so.", nullable=True),
        Column("evidence", pl.String, "The counters that prove it, for our rules.", nullable=True),
    ),
    purpose="what advice of ncu saves of the whole program",
    telling=("gain_share", "gain_ns", "rule"),
    together=True,
)

SEVERAL_GAINS: Final = several(GAINS)


def gains(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """Advice about the longest launch of each kernel that ncu measured, the largest gain for the program first.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Returns:
        :data:`GAINS`. First the estimates for a kernel's whole duration: capped by its distance to the roof, times the
        kernel's share of the window. Then those that do not translate into a gain of the program, by the kernel's
        share.

    Raises:
        CannotTellError: No report provides the time, or none has counters.
    """

    def make(report_set: Together) -> pl.DataFrame:
        if report_set.ncu is None:
            raise errors.CannotTellError.without_counters(GAINS.name, report_set.base.meta.path)
        return gains_among(joined_of(report_set), report_set.ncu)

    return of_each(GAINS, together(GAINS, reports, where), make)


def gains_among(rows: pl.DataFrame, ncu: Report) -> pl.DataFrame:
    """:func:`gains` for the kernels in `rows` of the table `joined`, measured by `ncu`."""
    keys = ("name", "device", *_operations.SHAPE, "event_id", "ncu_match", "window_share", "exclusive_ns", "roof_share")
    kernels = rows.filter(pl.col("event_id").is_not_null()).select(keys)
    findings = advice.advice(ncu).drop("name", "device", "at_stake_ns", "kind")
    possible = {f"gain_{unit}": pl.col(of) * pl.col("possible_share") for unit, of in _GAINS.items()}
    estimates = kernels.join(findings, on="event_id").with_columns(**possible)
    order = ["gain_ns", "exclusive_ns", "speedup_share", "event_id", "source", "rule", "sentence"]
    return GAINS.select(estimates.sort(order, descending=[True] * 3 + [False] * 4, nulls_last=True))


# Compares implementations of one operation: the time of each, and how well it uses the GPU.
#
# Implementations are identified by the program's own ranges: ranges of different names that each contain a range of one
# name, such as ``timed`` in ``torch``, ``cuda`` and ``triton``.

#: What ncu measured of the heaviest kernel, besides its duration.
_COUNTERS: Final = (
    *("occupancy_share", "achieved_occupancy_share", "limiter", "compute_share", "memory_share", "dram_bytes_per_s"),
    *("bound", "roof_share"),
)

VARIANTS: Final = Table(
    "variants",
    "One implementation of an operation that the program ran in several, each in a range of its own.",
    (
        Column("variant", pl.String, "Name of its range."),
        Column("inside", pl.String, "The range in it that is compared, its last instance."),
        Column("repeats", pl.Int64, "Ranges directly in that one that launched anything; 1 where there is none."),
        Column("avg_span_ns", pl.Float64, "From the first operation's start to the last end, for each of them."),
        Column("avg_kernel_ns", pl.Float64, "Time of its kernels, each instant once, for each of them."),
        Column("slower", pl.Float64, "That by the kernel time of the fastest variant."),
        Column("launches", pl.Float64, "Launches of kernels, for each of them."),
        Column("kernels", pl.Int64, "Different kernels and launch shapes."),
        Column("measured_share", pl.Float64, "Part of its kernel time in kernels that ncu measured.", nullable=True),
        Column("kernel", pl.String, "The heaviest kernel, which the rest is of.", nullable=True),
        Column("kernel_share", pl.Float64, "Its part of the kernel time.", nullable=True),
        Column("registers", pl.Int64, "Registers of a thread.", nullable=True),
        Column("shared_bytes", pl.Int64, "Shared memory of a block.", nullable=True),
        Column("ncu_match", pl.String, "How sure it is that ncu saw the same kernel, as in `joined`.", nullable=True),
        Column("ncu_dur_ns", pl.Int64, "Its duration alone, under replay.", nullable=True),
        *(column for name in _COUNTERS for column in FACTS if column.name == name),
    ),
    purpose="implementations of one operation, side by side",
    no_rows="no range of the program stands in several others; mark each implementation by a range of its own around "
    "one that all have, such as `mul` and `pow` around `step`",
    telling=("variant", "avg_span_ns", "avg_kernel_ns", "slower", "launches"),
    together=True,
)

SEVERAL_VARIANTS: Final = several(VARIANTS)


def variants(*reports: Report, **where: Unpack[Where]) -> pl.DataFrame:
    """The implementations that the program ran, the fastest first; empty if its ranges show none: :data:`VARIANTS`.

    Args:
        reports: As :func:`kanalyze.joined` takes them.
        where: As there.

    Raises:
        CannotTellError: No report provides the time, or it lacks ranges or kernels.
    """
    return of_each(VARIANTS, together(VARIANTS, reports, where), _variants_of)


def _variants_of(report_set: Together) -> pl.DataFrame:
    """:func:`variants` for one report that provides the time, and the others."""
    analysis.require(report_set.base, VARIANTS.name, "range")
    analysis.require(report_set.base, VARIANTS, "kernel")
    measured = _measured(report_set.base.whole, report_set.ncu)
    rows = [_row(report_set.base, instance, measured) for instance in _instances(report_set.base).to_dicts()]
    schema = {column.name: column.dtype for column in VARIANTS.columns if column.name != "slower"}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    least = pl.col("avg_kernel_ns").min()
    slower = pl.when(least > 0).then((pl.col("avg_kernel_ns") / least).clip(1.0)).otherwise(1.0)
    return VARIANTS.select(frame.with_columns(slower=slower).sort("avg_kernel_ns", "variant"))


def _instances(report: Report) -> pl.DataFrame:
    """The range to analyse of each variant: columns variant, inside, start, end, repeats."""
    labels = engine_labels(report).get_column("range")  # steps of an engine are one program with several batches
    ranges = range_gpu(report, trace=True, graphs=True).filter(~pl.col("range").is_in(labels.implode()))
    outer = ranges.select(parent_id="event_id", variant="range", level="level")
    inner = ranges.join(outer, on="parent_id", suffix="_outer")
    several = inner.filter(pl.col("variant").n_unique().over("range", "level_outer") > 1)
    highest = several.filter(pl.col("level_outer") == pl.col("level_outer").min())
    last = highest.sort("projected_start_ns").group_by("variant", maintain_order=True).last()
    common = last.group_by("range").len().sort("len", "range", descending=[True, False]).head(1)
    chosen = last.join(common, on="range", how="semi")
    repeats = ranges.group_by(event_id="parent_id").agg(repeats=pl.len().cast(pl.Int64))
    return chosen.join(repeats, on="event_id", how="left").select(
        pl.col("variant").str.strip_prefix(":"),
        pl.col("range").str.strip_prefix(":").alias("inside"),
        start="projected_start_ns",
        end=pl.col("projected_start_ns") + pl.col("projected_ns"),
        repeats=pl.col("repeats").fill_null(1),
    )


def _measured(base: Report, ncu: Report | None) -> pl.DataFrame | None:
    """Measurements by ncu of the kernel groups of the whole report, by :data:`GROUP_KEYS`."""
    if ncu is None:
        return None
    pairs = same_kernels(base, ncu).rename({"match": "ncu_match"})
    counters = measured_groups(ncu).select("group", "ncu_dur_ns", *_COUNTERS)
    both = pairs.join(counters, left_on="right", right_on="group").drop("right")
    groups = kernel_groups(base).select("group", *GROUP_KEYS)
    return groups.join(both, left_on="group", right_on="left").drop("group")


def _row(report: Report, instance: dict[str, Any], measured: pl.DataFrame | None) -> dict[str, Any]:
    groups = kernel_groups(report.narrow(window=Window(instance["start"], instance["end"])))
    if measured is not None:
        groups = groups.join(measured, on=GROUP_KEYS, how="left", nulls_equal=True)
    groups = groups.sort("exclusive_ns", "name", descending=[True, False])
    total, repeats = statistics.total(groups, "exclusive_ns"), instance["repeats"]
    row = {
        **{name: instance[name] for name in ("variant", "inside", "repeats")},
        "avg_span_ns": (instance["end"] - instance["start"]) / repeats,
        "avg_kernel_ns": total / repeats,
        "launches": statistics.total(groups, "count") / repeats,
        "kernels": groups.height,
    }
    if not total:
        return row
    first = groups.row(0, named=True)
    if measured is not None:
        measured_ns = statistics.total(groups.filter(pl.col("ncu_match").is_not_null()), "exclusive_ns")
        row |= {"measured_share": measured_ns / total, "ncu_match": first["ncu_match"] or "none"}
        row |= {name: first[name] for name in ("ncu_dur_ns", *_COUNTERS)}
    return row | {
        "kernel": first["name"],
        "kernel_share": first["exclusive_ns"] / total,
        "registers": first["registers"],
        "shared_bytes": first["shared"],
    }
