"""The page of one program that several tools recorded: that of the time, its kernels with counters and operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanalyze.analyses._together import Together, together
from kanalyze.analyses.gains import gains_of
from kanalyze.analyses.joined import joined_of
from kanalyze.analyses.summary import Summary, summarize

if TYPE_CHECKING:
    from typing import Unpack

    import polars as pl

    from kanalyze.report import Meta, Report, Where


@dataclass(frozen=True)
class JointSummary:
    """What the page shows.

    Attributes:
        summary: Everything of the report that gives the time.
        metas: Where all reports came from, that one first.
        joined: The table `joined`.
        gains: The table `gains`; None where no report has counters.
    """

    summary: Summary
    metas: list[Meta]
    joined: pl.DataFrame
    gains: pl.DataFrame | None

    @property
    def tools(self) -> list[str]:
        """The tools, each once, that of the time first."""
        return list(dict.fromkeys(meta.tool for meta in self.metas))


def summarize_together(*reports: Report, **where: Unpack[Where]) -> list[JointSummary | Summary]:
    """The pages of reports of one program by different tools: one for each that gives the time.

    That of one which no other report belongs to is a page of its own.

    Raises:
        CannotTellError: None gives time.
    """
    return [_page(found) for found in together("joined", reports, where)]


def _page(found: Together) -> JointSummary | Summary:
    if len(found.reports) == 1:
        return summarize(found.base)
    return JointSummary(
        summary=summarize(found.base),
        metas=[one.meta for one in found.given],
        joined=joined_of(found),
        gains=gains_of(found) if found.ncu is not None else None,
    )
