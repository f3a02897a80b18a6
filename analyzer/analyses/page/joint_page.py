"""The page of one program that several tools recorded: that of the time, its kernels with counters and operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from kanalyze.analyses.joining._match_kernels import same_kernels
from kanalyze.analyses.joining._report_set import Together, together
from kanalyze.analyses.joining.gains import gains_among
from kanalyze.analyses.joining.joined import joined_of
from kanalyze.analyses.page.counters_page import CounterSummary, summarize_counters
from kanalyze.analyses.page.time_page import Summary, summarize

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Unpack

    import polars as pl

    from kanalyze.report import Meta, Report, Where


@dataclass(frozen=True)
class JointSummary:
    """What the page shows.

    Attributes:
        kind: Which kind of page it is of, so that a renderer need not import the others to know.
        summary: Everything of the report that gives the time.
        metas: Where all reports came from, that one first.
        joined: The table `joined`.
        gains: The table `gains`; None where no report has counters.
        outside: By each other tool, how many of its rows without a time are kernels that ran outside of the window.
    """

    kind: ClassVar[Literal["joint"]] = "joint"

    summary: Summary
    metas: list[Meta]
    joined: pl.DataFrame
    gains: pl.DataFrame | None
    outside: Mapping[str, int]

    @property
    def tools(self) -> list[str]:
        """The tools, each once, that of the time first."""
        return list(dict.fromkeys(meta.tool for meta in self.metas))


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[JointSummary | Summary | CounterSummary]:
    """The pages of reports of one program by different tools: one for each that gives the time.

    That of one which no other report belongs to is a page of its own; so is that of one without kernels, to which
    nothing can be joined. Reports that are then on no page have pages of their own at the end.

    Raises:
        CannotTellError: None gives time.
    """
    found = together("joined", reports, where)
    joint = {one for each in found if _can_join(each) for one in each.given}
    alone = dict.fromkeys(one for each in found for one in each.given[1:] if one not in joint)
    others = [summarize_counters(one) if one.meta.timeless else summarize(one) for one in alone]
    return [*map(_page, found), *others]


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
    """How many groups of kernels of another report are in the whole of `base`, and not in the part that it is."""
    if base.whole is base:
        return 0
    inside = same_kernels(base, other)
    return same_kernels(base.whole, other).join(inside, on="right", how="anti").height
