"""Page of one program recorded by several tools: the time page with counters and operators joined to its kernels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, ClassVar, Literal

from kanalyze.analyses.joining._match_kernels import same_kernels
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.gains import gains_among
from kanalyze.analyses.joining.joined import joined_of
from kanalyze.analyses.page._slow_kernels import slow_kernels
from kanalyze.analyses.page.counters_page import CounterSummary, summarize_counters
from kanalyze.analyses.page.overview_page import Overview, overview
from kanalyze.analyses.page.time_page import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    import polars as pl

    from kanalyze.report import Meta, Report, Where


@dataclass(frozen=True)
class JointSummary:
    """Content of the page of several reports.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        summary: The page of the report that gives the time.
        metas: Origin of all reports, that one first.
        joined: The table `joined`.
        gains: The table `gains`; None where no report has counters.
        outside: Number of kernel groups by other tool that have no time because they ran outside the window.
    """

    kind: ClassVar[Literal["joint"]] = "joint"

    summary: Summary
    metas: list[Meta]
    joined: pl.DataFrame
    gains: pl.DataFrame | None
    outside: Mapping[str, int]

    @property
    def tools(self) -> list[str]:
        """The distinct tools, the one that gives the time first."""
        return list(dict.fromkeys(meta.tool for meta in self.metas))


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[JointSummary | Summary | CounterSummary]:
    """Makes the pages of reports of one program by different tools: one per report that gives the time.

    A report that no other belongs to, or without kernels to join with, has a plain page. Reports that are then on no
    page have pages of their own at the end.

    Raises:
        CannotTellError: No report gives the time.
    """
    found = together("joined", reports, where)
    joint = {one for each in found if _can_join(each) for one in each.given}
    alone = dict.fromkeys(one for each in found for one in each.given[1:] if one not in joint)
    others = [summarize_counters(one) if one.meta.timeless else summarize(one) for one in alone]
    return [*map(_page, found), *others]


def overviews_together(
    *reports: Report, whole: bool = False, **where: Unpack[Where]
) -> list[Overview | CounterSummary]:
    """Makes the first pages of reports of one program by different tools, as :func:`summarize_together` does."""
    found = together("joined", reports, where)
    joint = {one for each in found if _can_join(each) for one in each.given}
    alone = dict.fromkeys(one for each in found for one in each.given[1:] if one not in joint)
    further = (summarize_counters(one) if one.meta.timeless else overview(one, whole=whole) for one in alone)
    return [*(_overview(each, whole=whole) for each in found), *further]


def _overview(found: Together, *, whole: bool) -> Overview:
    if not _can_join(found):
        return overview(found.base, whole=whole)
    ncu, rows = found.ncu, cache(partial(joined_of, found))
    beside = None if ncu is None else lambda kernels: slow_kernels(rows(), ncu, kernels)
    page = overview(found.base, whole=whole, beside=beside)
    others = [one.meta for one in found.given[1:]]
    return replace(page, others=others, joined=rows() if page.steady is None else None)


def _can_join(found: Together) -> bool:
    return len(found.reports) > 1 and "kernel" in found.base.kinds


def _page(found: Together) -> JointSummary | Summary:
    if not _can_join(found):
        return summarize(found.base)
    rows = joined_of(found)
    return JointSummary(
        summary=summarize(found.base),
        metas=[one.meta for one in found.given],
        joined=rows,
        gains=gains_among(rows, found.ncu) if found.ncu is not None else None,
        outside={other.meta.tool: _outside(found.base, other) for other in found.reports[1:]},
    )


def _outside(base: Report, other: Report) -> int:
    """Number of kernel groups of another report that match the whole of `base`, but not its narrowed part."""
    if base.whole is base:
        return 0
    inside = same_kernels(base, other)
    return same_kernels(base.whole, other).join(inside, on="right", how="anti").height
