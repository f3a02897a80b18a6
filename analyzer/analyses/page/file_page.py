"""File page: what the HTML report shows, the first page with its evidence, a timeline and distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Generic, TypeAlias, TypeVar, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters.counters import HOT_LINES, STALLS, hot_lines, stalls
from kanalyze.analyses.counters.roofline import TABLE as ROOFLINE
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.critical._path import path
from kanalyze.analyses.device._operations import device_operations, with_facts
from kanalyze.analyses.idle.culprits import waiting_trees
from kanalyze.analyses.iterations.iterations import iteration_ledgers
from kanalyze.analyses.joining._report_set import together
from kanalyze.analyses.joining.joined import RoofPoints, counted_of, roof_points, timed_groups
from kanalyze.analyses.operators.tree import tree
from kanalyze.analyses.page.counters_page import CounterSummary, overviews_together, summarize_counters
from kanalyze.analyses.page.overview_page import Overview, overview, unprofiled_page
from kanalyze.analyses.page.time_page import TABLES, tables_of
from kanalyze.analyses.shared.analysis import side_by_side
from kanalyze.analyses.timeline._tracks import Timeline, timeline
from kanalyze.columns import rate
from kanalyze.errors import CannotTellError, KanalyzeError
from kanalyze.report import Meta, Report, Where
from kanalyze.schema import Table

#: The least size of a copy that shows what its link can do: below it, the start of a copy takes most of its time.
LARGE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class CopyPoints:
    """Copies by direction, kinds of memory and size.

    Attributes:
        points: direction, source_memory, target_memory, size_bytes, count, total_ns, bandwidth_bytes_per_s; those with
            most time first.
        links: The highest bandwidth of a large copy by direction: direction, size_bytes, bandwidth_bytes_per_s. No
            report says what a link can do; this is what it did.
        left_out: Copies in no point, since there are too many sizes.
    """

    points: pl.DataFrame
    links: pl.DataFrame
    left_out: int


def copy_points(report: Report) -> CopyPoints | None:
    """The copies in scope whose size is known; None without a large one, which alone shows what a link can do."""
    named = ("direction", "source_memory", "target_memory")
    work = device_operations(report).filter(pl.col("kind") == "memcpy")
    copies = with_facts(report, work, "size_bytes", *named).with_columns(pl.col(named).cast(pl.String))
    copies = copies.filter((pl.col("size_bytes") > 0) & (pl.col("dur_ns") > 0))
    large = copies.filter(pl.col("size_bytes") >= LARGE_BYTES)
    if large.is_empty():
        return None
    fastest = large.with_columns(bandwidth_bytes_per_s=rate(pl.col("size_bytes"), pl.col("dur_ns")))
    keys = [*named, "size_bytes"]
    sums = copies.group_by(keys).agg(count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum())
    told = sums.with_columns(bandwidth_bytes_per_s=rate(pl.col("size_bytes") * pl.col("count"), pl.col("total_ns")))
    points = told.sort("total_ns", *keys, descending=[True, *[False] * 4]).head(400)
    order = fastest.sort("bandwidth_bytes_per_s", "size_bytes", descending=True)
    links = order.group_by("direction", maintain_order=True).first()
    return CopyPoints(
        points,
        links.select("direction", "size_bytes", "bandwidth_bytes_per_s"),
        copies.height - int(points.get_column("count").sum()),
    )


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
        timed = timed_groups(reports)
        roofs = roof_points(reports)
    except CannotTellError:
        return None
    kernels = timed.rows.sort("time_ns", "event_id", descending=[True, False], nulls_last=True).head(8)
    waits, lines = stalls(ncu), hot_lines(ncu).filter(pl.col("line").is_not_null() & (pl.col("samples") > 0))
    tables = [(ROOFLINE, roofline(ncu)), (STALLS, waits), (HOT_LINES, lines)]
    shown = []
    for table, rows in tables:
        # there is more in its rows than which kernels there are
        telling = [rows.get_column(name) for name in table.telling if name != "dur_ns"]
        if rows.height and not (telling and all(values.is_null().all() for values in telling)):
            shown.append((table, rows))
    first = ((waits, 6), (lines, 8))
    reasons, most = (
        rows.join(kernels.select("event_id"), on="event_id", how="semi").group_by("event_id").head(number)
        for rows, number in first
    )
    return Measured(roofs if roofs.points.height else None, kernels, timed.time_from, reasons, most, shown)


Pages: TypeAlias = Overview | CounterSummary
Page_co = TypeVar("Page_co", covariant=True)

#: Nodes of the call tree from this share of the time on.
_TREE_SHARE: Final = 0.002

#: The bins of a distribution of durations.
_BINS: Final = 40


@dataclass(frozen=True)
class FilePage(Generic[Page_co]):
    """Content of an HTML report.

    Attributes:
        shown: The page that it begins with.
        metas: Origin of all reports, the one that gives the time first.
        tables: Tables with their declarations, complete.
        timeline: The timeline; None where the report has no time.
        iterations: Iterations with the ledger of each; empty where nothing repeats.
        durations: Distribution of the durations of the heaviest kernels: name, least_ns, most_ns, and counts per bin,
            bins of equal ratio.
        reasons: Why a table or the timeline is missing, by name.
        trees: The call tree, pruned by ``device`` and by ``host`` time; those of which there is any.
        waiting_trees: Host time while a device waited by stack, for each GPU that some stack tells of, by ``GPU N``
            (of another run, ``GPU N, samples``).
        rank_steps: The steps of each rank of a job, as the table of that name; empty without a job.
        ranks_left_out: How many ranks of a job the timeline does not have.
        measured: What ncu measured of the kernels; None where it measured none.
        copies: Copies by size and bandwidth; None without any.
    """

    shown: Page_co
    metas: list[Meta]
    tables: list[tuple[Table, pl.DataFrame]]
    timeline: Timeline | None = None
    iterations: pl.DataFrame = field(default_factory=pl.DataFrame)
    durations: pl.DataFrame = field(default_factory=pl.DataFrame)
    reasons: dict[str, str] = field(default_factory=dict)
    trees: dict[str, pl.DataFrame] = field(default_factory=dict)
    waiting_trees: dict[str, pl.DataFrame] = field(default_factory=dict)
    rank_steps: pl.DataFrame = field(default_factory=pl.DataFrame)
    ranks_left_out: int = 0
    measured: Measured | None = None
    copies: CopyPoints | None = None


def file_pages(*reports: Report, most: int, **where: Unpack[Where]) -> list[FilePage[Pages]]:
    """Makes the content of HTML reports of one program's reports: one for each report that gives the time.

    Args:
        reports: The reports, whole.
        most: Events of a timeline, about.
        where: The part to look at.
    """
    if all(report.meta.timeless for report in reports):
        parts = [report.narrow(**where) for report in reports]
        return [_with_counters(FilePage(summarize_counters(one), [one.meta], []), [one]) for one in parts]
    if len(reports) == 1:
        report = reports[0].narrow(**where)
        return [_timed(report, report, [], most)]
    found = together("timeline", reports, where)
    pages = overviews_together(*reports, **where)
    made = []
    for page, each in zip(pages, found, strict=False):
        called = each.operators if where.get("window") is None else None  # a window is of the base's clock
        timed = _timed(each.base, called or each.base, [one.meta for one in each.given[1:]], most, page)
        made.append(_with_counters(timed, each.given if each.ncu is not None else ()))
    return made


def _with_counters(page: FilePage[Pages], reports: Sequence[Report]) -> FilePage[Pages]:
    """The content with what ncu measured in the reports of the program, if anything."""
    found = measured(reports) if reports else None
    return page if found is None else replace(page, measured=found, tables=[*page.tables, *found.tables])


def _timed(
    report: Report, called: Report, others: Sequence[Meta], most: int, page: Pages | None = None
) -> FilePage[Pages]:
    """Content from a report that gives the time, with the call tree of `called`; makes the page unless it is given.

    Times are those without the profiler where the page's are.
    """
    plain = unprofiled_page(report)
    called, report = plain if called is report else called, plain
    # the critical path is half of the timeline's work, and made beside the rest of it
    makers: list[Callable[[Report], Any]] = [
        lambda report: page or overview(report),
        path,
        partial(_drawn, most=most),
        tables_of,
    ]
    shown, _, (drawn, reason), (tables, reasons) = side_by_side(report, makers)
    return FilePage(
        shown,
        [report.meta, *others],
        [(table, tables[table.name]) for table in TABLES if table.name in tables],
        drawn,
        _iterations(report),
        durations(report) if drawn else pl.DataFrame(),
        reasons | reason,
        _trees(called),
        _waits(report) if drawn else {},
        copies=copy_points(report) if drawn else None,
    )


def _drawn(report: Report, most: int) -> tuple[Timeline | None, dict[str, str]]:
    """The timeline, or why there is none."""
    try:
        return timeline(report, most), {}
    except CannotTellError as reason:
        return None, {"timeline": str(reason)}


def _waits(report: Report) -> dict[str, pl.DataFrame]:
    """Host time while a device waited by stack; of a report without samples that of the run that has them beside it."""
    found = {f"GPU {device}": rows for device, rows in waiting_trees(report, _TREE_SHARE).items()}
    other = report.sampled() if not found and report.whole is report else None
    if other is None:
        return found
    try:
        return {f"GPU {device}, samples": rows for device, rows in waiting_trees(other, _TREE_SHARE).items()}
    except KanalyzeError:  # which is noted
        return {}


def _trees(report: Report) -> dict[str, pl.DataFrame]:
    """The call tree by each kind of time that there is some of; empty where the report does not tell it."""
    try:
        found = {by: tree(report, by, min_share=_TREE_SHARE) for by in ("device", "host")}
    except CannotTellError:
        return {}
    return {by: rows for by, rows in found.items() if rows.get_column(f"{by}_ns").sum()}


def _iterations(report: Report) -> pl.DataFrame:
    """The iterations in scope with their ledgers, of the name with most device time."""
    try:
        found = iteration_ledgers(report)
    except CannotTellError:
        return pl.DataFrame()
    if not found.is_empty():
        found = intervals.overlapping(found, report.scope.sides, "start_ns", pl.col("start_ns") + pl.col("dur_ns"))
    if found.is_empty():
        return found
    keys = ("process_id", "name")
    sums = found.group_by(*keys, maintain_order=True).agg(pl.col("device_ns").sum())
    most = sums.sort("device_ns", descending=True, maintain_order=True).head(1)
    return found.join(most.select(keys), on=keys, how="semi", nulls_equal=True)


def durations(report: Report) -> pl.DataFrame:
    """Distribution of the durations of the heaviest kernels: name, least_ns, most_ns, counts (a list of bins).

    Bins have equal ratios of their ends, so that two modes stand apart whatever their size.
    """
    ns = pl.col("dur_ns")
    work = device_operations(report).filter(pl.col("kind") == "kernel").select("name", "dur_ns")
    heavy = work.group_by("name").agg(ns=ns.sum(), least_ns=ns.min(), most_ns=ns.max())
    heavy = heavy.sort("ns", "name", descending=[True, False]).head(40).drop("ns")
    low, high = (pl.col(name).clip(1).log() for name in ("least_ns", "most_ns"))
    share = (ns.clip(1).log() - low) / (high - low)
    at = (share.fill_nan(0) * _BINS).floor().clip(0, _BINS - 1).cast(pl.Int64)
    of_bin = [(pl.col("bin") == number).sum() for number in range(_BINS)]
    counts = work.join(heavy, on="name").with_columns(bin=at).group_by("name").agg(counts=pl.concat_list(of_bin))
    return heavy.join(counts, on="name", maintain_order="left")
