"""What the HTML report shows beside the first page (a timeline, distributions), and what shows a finding."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Unpack

import polars as pl

from kanalyze import errors, intervals, schema
from kanalyze.analyses.counters.counters import HOT_LINES, STALLS, hot_lines, stalls
from kanalyze.analyses.counters.roofline import TABLE as ROOFLINE, roofline
from kanalyze.analyses.device._operations import device_operations, exclusive_operations, with_facts
from kanalyze.analyses.findings import findings, say
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.idle import _attribution, code
from kanalyze.analyses.idle.culprits import waiting_trees
from kanalyze.analyses.iterations.iterations import iteration_ledgers
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.iterations.sample import sample_of
from kanalyze.analyses.joining._report_set import together
from kanalyze.analyses.joining.joined import RoofPoints, counted_of, roof_points
from kanalyze.analyses.operators.tree import tree
from kanalyze.analyses.page.overview_page import Summary, overview, unprofiled_page
from kanalyze.analyses.page.time_page import TABLES, overviews_together, summarize_counters, tables_of
from kanalyze.analyses.ranges.instances import INSTANCES, SPREAD, compare
from kanalyze.analyses.timeline._tracks import Timeline, timeline
from kanalyze.columns import rate
from kanalyze.report import Meta, Report, Where

#: The least size of a copy that shows what its link can do: below it, the start of a copy takes most of its time.
LARGE_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class CopyPoints:
    """Copies by direction, kinds of memory and size."""

    #: direction, source_memory, target_memory, size_bytes, count, total_ns, bandwidth_bytes_per_s; those with most time
    #: first.
    points: pl.DataFrame
    #: The highest bandwidth of a large copy by direction: direction, size_bytes, bandwidth_bytes_per_s. No report says
    #: what a link can do; this is what it did.
    links: pl.DataFrame
    left_out: int  # copies in no point, since there are too many sizes


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
    sums = sums.with_columns(bandwidth_bytes_per_s=rate(pl.col("size_bytes") * pl.col("count"), pl.col("total_ns")))
    points = sums.sort("total_ns", *keys, descending=[True, *[False] * 4]).head(400)
    order = fastest.sort("bandwidth_bytes_per_s", "size_bytes", descending=True)
    links = order.group_by("direction", maintain_order=True).first()
    return CopyPoints(
        points,
        links.select("direction", "size_bytes", "bandwidth_bytes_per_s"),
        copies.height - int(points.get_column("count").sum()),
    )


#: Nodes of the call tree from this share of the time on.
_TREE_SHARE: Final = 0.002

#: The bins of a distribution of durations.
_BINS: Final = 40


@dataclass(frozen=True)
class FilePage:
    """Content of an HTML report."""

    shown: Any  # what the page that it begins with is made of
    metas: list[Meta]  # origin of all reports, the one that gives the time first
    tables: list[tuple[schema.Table, pl.DataFrame]]  # tables with their declarations, complete
    timeline: Timeline | None = None  # the timeline; None where the report has no time
    #: Iterations with the ledger of each; empty where nothing repeats.
    iterations: pl.DataFrame = field(default_factory=pl.DataFrame)
    #: Distribution of the durations of the heaviest kernels: name, least_ns, most_ns, and counts per bin, bins of equal
    #: ratio.
    durations: pl.DataFrame = field(default_factory=pl.DataFrame)
    reasons: dict[str, str] = field(default_factory=dict)  # why a table or the timeline is missing, by name
    #: The call tree, pruned by ``device`` and by ``host`` time; those of which there is any.
    trees: dict[str, pl.DataFrame] = field(default_factory=dict)
    #: Host time while a device waited by stack, for each GPU that some stack tells of, by ``GPU N`` (of another run,
    #: ``GPU N, samples``).
    waiting_trees: dict[str, pl.DataFrame] = field(default_factory=dict)
    #: The steps of each rank of a job, as the table of that name; empty without a job.
    rank_steps: pl.DataFrame = field(default_factory=pl.DataFrame)
    ranks_left_out: int = 0  # how many ranks of a job the timeline does not have
    roofs: RoofPoints | None = None  # kernels that ncu measured under their roofs; None where none has work and bytes
    copies: CopyPoints | None = None  # copies by size and bandwidth; None without any

    def measuring(self, reports: Sequence[Report]) -> "FilePage":
        """The same with what ncu measured in the reports of the program, if anything."""
        try:
            ncu, roofs = counted_of(reports), roof_points(reports)
        except errors.CannotTellError:
            return self
        lines = hot_lines(ncu).filter(pl.col("line").is_not_null() & (pl.col("samples") > 0))
        shown = []
        for table, rows in ((ROOFLINE, roofline(ncu)), (STALLS, stalls(ncu)), (HOT_LINES, lines)):
            # there is more in its rows than which kernels there are
            telling = [rows.get_column(name) for name in table.telling if name != "dur_ns"]
            if rows.height and not (telling and all(values.is_null().all() for values in telling)):
                shown.append((table, rows))
        return replace(self, roofs=roofs if roofs.points.height else None, tables=[*self.tables, *shown])


def file_pages(*reports: Report, most: int, **where: Unpack[Where]) -> list[FilePage]:
    """Makes the content of HTML reports of one program's reports: one for each report that gives the time.

    The reports are whole, `where` is the part to look at, and a timeline has about `most` events.
    """
    if all(report.meta.timeless for report in reports):
        parts = [report.narrow(**where) for report in reports]
        return [FilePage(summarize_counters(one), [one.meta], []).measuring([one]) for one in parts]
    if len(reports) == 1:
        report = reports[0].narrow(**where)
        return [_timed(report, report, [], most)]
    groups = together("timeline", reports, where)
    pages = overviews_together(*reports, **where)
    timed_pages = []
    for page, each in zip(pages, groups, strict=False):
        called = each.operators if where.get("window") is None else None  # a window is of the base's clock
        timed = _timed(each.base, called or each.base, [one.meta for one in each.given[1:]], most, page)
        timed_pages.append(timed.measuring(each.given) if each.ncu is not None else timed)
    return timed_pages


def instances_page(parts: Sequence[Report], most: int) -> FilePage:
    """The content of the page that compares instances of a range, given as the report narrowed to each."""
    shown = compare(parts)
    picture = timeline(parts[0].narrow(window=shown.scope.window), most)
    return FilePage(shown, [shown.meta], [(INSTANCES, shown.instances), (SPREAD, shown.spread)], picture)


def _timed(report: Report, called: Report, others: Sequence[Meta], most: int, page: Summary | None = None) -> FilePage:
    """Content from a report that gives the time, with the call tree of `called`; makes the page unless it is given.

    Times are those without the profiler where the page's are.
    """
    plain = unprofiled_page(report)
    called, report = plain if called is report else called, plain
    shown, picture, (tables, reasons), trees = page or overview(report), None, tables_of(report), {}
    try:
        picture = timeline(report, most)
    except errors.CannotTellError as reason:
        reasons |= {"timeline": str(reason)}
    with suppress(errors.CannotTellError):
        trees = {by: tree(called, by, min_share=_TREE_SHARE) for by in ("device", "host")}
    ledgers = intervals.overlapping(iteration_ledgers(report), report.scope.sides, "start_ns", intervals.END)
    keys = ("process_id", "name")
    sums = ledgers.group_by(*keys, maintain_order=True).agg(pl.col("device_ns").sum())
    most_work = sums.sort("device_ns", descending=True, maintain_order=True).head(1)
    return FilePage(
        shown,
        [report.meta, *others],
        [(table, tables[table.name]) for table in TABLES if table.name in tables],
        picture,
        ledgers.join(most_work.select(keys), on=keys, how="semi", nulls_equal=True),
        durations(report) if picture else pl.DataFrame(),
        reasons,
        {by: rows for by, rows in trees.items() if rows.get_column(f"{by}_ns").sum()},
        _waits(report) if picture else {},
        copies=copy_points(report) if picture else None,
    )


def _waits(report: Report) -> dict[str, pl.DataFrame]:
    """Host time while a device waited by stack; of a report without samples that of the run that has them beside it."""
    trees = {f"GPU {device}": rows for device, rows in waiting_trees(report, _TREE_SHARE).items()}
    other = report.sampled() if not trees and report.whole is report else None
    with suppress(errors.KanalyzeError):  # which is noted
        if other is not None:
            return {f"GPU {device}, samples": rows for device, rows in waiting_trees(other, _TREE_SHARE).items()}
    return trees


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


# What shows a finding in a report: its sentence, and the lines, kernels and waits that its time is made of.

#: Lines and waits: by name, how often, and how much of their time a finding is about.
_LINES: Final = {"place": pl.String, "text": pl.String, "ns": pl.Int64}
_WAITS: Final = {"reason": pl.String, "culprit": pl.String, "count": pl.Int64, "ns": pl.Int64}


def evidence(parts: Sequence[Report], rule: str) -> list[Summary]:
    """What shows the findings of a rule in reports or parts of them, of each device one in each.

    Raises:
        CannotTellError: A report records no device operations.
        UnknownNameError: None has such a finding.
    """
    rules: set[str] = set()
    pages = [one for part in parts for one in _evidence(part, rule, rules)]
    if not pages:
        where = ", ".join(filter(None, (parts[0].meta.path.name, str(parts[0].scope))))
        more = f" (and {len(parts) - 1} more)" if len(parts) > 1 else ""
        raise errors.UnknownNameError.of(f"finding of {where}{more} called", rule, sorted(rules))
    return pages


def _evidence(recorded: Report, rule: str, rules: set[str]) -> list[Summary]:
    """The same of a report, on its page's part, else in all of it; adds to `rules` what it has instead."""
    report = unprofiled_page(recorded)
    steady = None if report.scope.window is not None else steady_part(report)
    views = [report] if steady is None else [report.narrow(window=steady.window), report]
    for view in views:
        part, _, which = sample_of(view)
        every = findings.by_gain(part)
        own = [one for one in every if one.rule == rule]
        if own and not (which and rule in findings.OF_ALL):
            return [_of(part, one.over(1, which) if which else one) for one in own]
        rules |= {one.rule for one in every}
    # what counters of ncu prove is told on the page of both
    ncu = recorded.whole.counted()
    proven = [one for page in overviews_together(recorded, ncu) for one in page.findings] if ncu is not None else []
    rules |= {one.rule for one in proven}
    return [_of(views[0], one) for one in proven if one.rule == rule]


def _of(view: Report, finding: Finding) -> Summary:
    """The finding with its time by line of the program, the device's work in it, and the idle time in it."""
    lines, waits, claims = pl.DataFrame(schema=_LINES), pl.DataFrame(schema=_WAITS), finding.claims
    kind, name = pl.col("kind").is_in(["kernel", "graph"]), pl.col("name").cast(pl.String)
    work = exclusive_operations(view, "name").filter(kind, device=finding.device)
    if claims is None:  # the kernels that it names, instead of the work in the time that is claimed
        work = work.filter(name.is_in(finding.names)).with_columns(ns="exclusive_ns")
    else:
        spans = intervals.union(claims.select("start", "end"))
        work = work.with_columns(ns=intervals.covered(work, spans)).filter(pl.col("ns") > 0)
        pieces = intervals.cut(_attribution.idle_pieces(view)[finding.device], spans)
        named = pieces.select(_attribution.bucket_of(view, pieces).alias("reason"), "culprit").cast(pl.String)
        waits = named.with_columns(ns=pieces.get_column("end") - pieces.get_column("start"))
        waits = waits.group_by("reason", "culprit").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
        if code.has_lines(view):
            lines = code.placed_with_text(view, say.claimed(view, finding).group_by("place").agg(pl.col("ns").sum()))
    kernels = work.group_by(name).agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    tables = {
        "lines": lines.sort("ns", "place", descending=[True, False]).select(list(_LINES)),
        "kernels": kernels.sort("ns", "name", descending=[True, False]),
        "waits": waits.sort("ns", "reason", "culprit", descending=[True, False, False]).select(list(_WAITS)),
    }
    scope = view.scope
    return Summary("evidence", view.meta, scope, answer="", tables=tables, findings=[finding], window=scope.window)
