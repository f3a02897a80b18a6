"""The page of one program that several tools recorded: that of the time, its kernels with counters and operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kanalyze.analyses._together import together
from kanalyze.analyses.gains import gains
from kanalyze.analyses.joined import joined
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
        """The tools, that of the time first."""
        return [meta.tool for meta in self.metas]


def summarize_together(*reports: Report, **where: Unpack[Where]) -> JointSummary:
    """The page of reports of one program by different tools.

    Raises:
        CannotTellError: Several are of one tool, or none gives time.
    """
    found = together("joined", reports, where)
    return JointSummary(
        summary=summarize(found.base),
        metas=[one.meta for one in found.reports],
        joined=joined(*reports, **where),
        gains=gains(*reports, **where) if found.ncu is not None else None,
    )
