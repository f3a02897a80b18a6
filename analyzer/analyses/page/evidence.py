"""What shows a finding in a report: its sentence, and the lines, kernels and waits that its time is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings._claims import MOST_REPLAYED
from kanalyze.analyses.findings._places import claimed
from kanalyze.analyses.findings.findings import by_gain
from kanalyze.analyses.idle._attribution import bucket_of, idle_pieces
from kanalyze.analyses.idle.code import has_lines, placed_with_text
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.page.overview_page import unprofiled_page
from kanalyze.errors import UnknownNameError

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.report import Meta, Report
    from kanalyze.window import Window

#: Lines, kernels and waits: by name, how often, and how much of their time a finding is about.
_LINES: Final = {"place": pl.String, "text": pl.String, "ns": pl.Int64}
_KERNELS: Final = {"name": pl.String, "count": pl.Int64, "ns": pl.Int64}
_WAITS: Final = {"reason": pl.String, "culprit": pl.String, "count": pl.Int64, "ns": pl.Int64}


@dataclass(frozen=True, eq=False)
class Evidence:
    """A finding with what it is made of.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        finding: The finding.
        window: The part that it is about; None for all of the report.
        lines: Its time by line of the program: place, text, ns.
        kernels: The device's work in it, or the kernels that it names: name, count, ns.
        waits: The idle time in it: reason, culprit, count, ns.
    """

    kind: ClassVar[Literal["evidence"]] = "evidence"

    meta: Meta
    finding: Finding
    window: Window | None
    lines: pl.DataFrame
    kernels: pl.DataFrame
    waits: pl.DataFrame


def evidence(recorded: Report, rule: str) -> list[Evidence]:
    """What shows the findings of a rule in a report, one of each device: on its page's part, else in all of it.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: It has no such finding.
    """
    report = unprofiled_page(recorded)
    steady = None if report.scope.window is not None else known_steady_part(report)
    views = [report] if steady is None else [report.narrow(window=steady.window), report]
    known: set[str] = set()
    for view in views:
        every = by_gain(view, MOST_REPLAYED)
        if own := [one for one in every if one.rule == rule]:
            return [_of(view, one) for one in own]
        known |= {one.rule for one in every}
    raise UnknownNameError.of(f"finding of {recorded.meta.path.name} called", rule, sorted(known))


def _of(view: Report, finding: Finding) -> Evidence:
    spans = intervals.union(finding.claims.select("start", "end")) if finding.claims is not None else None
    return Evidence(
        meta=view.meta,
        finding=finding,
        window=view.scope.window,
        lines=_lines(view, finding),
        kernels=_kernels(view, finding, spans),
        waits=_waits(view, finding, spans),
    )


def _lines(view: Report, finding: Finding) -> pl.DataFrame:
    if finding.claims is None or not has_lines(view):
        return pl.DataFrame(schema=_LINES)
    sums = claimed(view, finding).group_by("place").agg(pl.col("ns").sum())
    return placed_with_text(view, sums).sort("ns", "place", descending=[True, False]).select(list(_LINES))


def _kernels(view: Report, finding: Finding, spans: pl.DataFrame | None) -> pl.DataFrame:
    """The device's work in the time that is claimed; without that the kernels that the finding names."""
    work = exclusive_operations(view, "name").filter(
        pl.col("device") == finding.device, pl.col("kind").is_in(["kernel", "graph"])
    )
    if spans is None:
        own = work.filter(pl.col("name").cast(pl.String).is_in(finding.names))
        inside = own.get_column("exclusive_ns")
    else:
        covered = intervals.overlap(work.get_column("start"), work.get_column("end"), spans)
        own, inside = work.filter(covered > 0), covered.filter(covered > 0)
    named = own.select(pl.col("name").cast(pl.String), inside.alias("ns"))
    sums = named.group_by("name").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.sort("ns", "name", descending=[True, False]).select(list(_KERNELS))


def _waits(view: Report, finding: Finding, spans: pl.DataFrame | None) -> pl.DataFrame:
    """The idle time that is claimed by bucket, and by what held the device up."""
    if spans is None:
        return pl.DataFrame(schema=_WAITS)
    pieces = intervals.cut(idle_pieces(view)[finding.device], spans)
    named = pieces.select(bucket_of(view, pieces).alias("reason"), "culprit").cast(pl.String)
    lengths = named.with_columns(ns=pieces.get_column("end") - pieces.get_column("start"))
    sums = lengths.group_by("reason", "culprit").agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.sort("ns", "reason", "culprit", descending=[True, False, False]).select(list(_WAITS))
