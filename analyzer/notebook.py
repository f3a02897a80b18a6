"""What the Python API gives, so that notebooks show it well: reports and summaries as pages, tables with units.

The values are the same: a :class:`NotebookTable` is a polars frame, a :class:`NotebookReport` a report. Only how
IPython displays them differs.
"""

from __future__ import annotations

from contextlib import ExitStack
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import outlets, readers
from kanalyze.analyses.page import counters_page, joint_page, time_page
from kanalyze.errors import ClosedReportError
from kanalyze.readers.capture import reports as capture_reports
from kanalyze.renderers.formats import html
from kanalyze.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from kanalyze.errors import KanalyzeError
    from kanalyze.readers import Progress

#: Rows of each table on a page.
_TOP: Final = 8


class NotebookTable(pl.DataFrame):
    """A table of kanalyze; whatever is made of it is a plain polars frame."""

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return html.table(self)


class NotebookSummary(time_page.Summary):
    """A summary that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookCounters(counters_page.CounterSummary):
    """A summary of counters that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookJoint(joint_page.JointSummary):
    """A summary of reports of several tools that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookReport(Report):
    """A report that a notebook shows as its page, that of a capture's folder with what other tools recorded there."""

    def table(self, name: str) -> pl.DataFrame:
        """A table that the reader gives; see :meth:`kanalyze.report.Report.table`."""
        return NotebookTable(super().table(name))

    def _repr_html_(self) -> str:
        missing: list[KanalyzeError] = []
        with ExitStack() as opened:
            try:
                page = summarize(self, *map(opened.enter_context, self._beside(missing)))
            except ClosedReportError as error:
                return f"<p>{outlets.html(str(error))}</p>"
        told = "".join(f"<p>Left out: {outlets.html(str(error))}</p>" for error in missing)
        return html.page(page, _TOP) + told

    def _beside(self, missing: list[KanalyzeError]) -> list[Report]:
        """What else is in the capture whose folder this report is; adds to `missing` what cannot be read."""
        if self.meta.capture != self.meta.path or not capture_reports.several_tools(self.meta.path):
            return []
        every = capture_reports.every_report(self.meta.path, left_out=missing.append)
        return [one for one in every if one.meta.tool != self.meta.tool]


def read(path: str | PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """The report in the file or folder at `path`; see :func:`kanalyze.readers.read`."""
    return _shown_well(readers.read(path, progress, cache=cache))


def read_all(
    *paths: str | PathLike[str], progress: Progress | None = None, cache: bool = True, runs: bool = False
) -> list[Report]:
    """The reports at `paths`, for tables of several; of a capture's folder those of each tool.

    See :func:`kanalyze.readers.capture.reports.every_report`.
    """
    found = (capture_reports.every_report(Path(path), progress, cache=cache, runs=runs) for path in paths)
    return [_shown_well(report) for some in found for report in some]


def _shown_well(found: Report) -> Report:
    return NotebookReport(found.meta, found.source, found.scope)


def summarize(*reports: Report) -> time_page.Summary | counters_page.CounterSummary | joint_page.JointSummary:
    """The page of a report as one value; see :func:`kanalyze.analyses.page.time_page.summarize`.

    Of a report of ncu see :func:`kanalyze.analyses.page.counters_page.summarize_counters`; of several, of one program
    by different tools, :func:`kanalyze.analyses.page.joint_page.summarize_together`: the page of the first that gives
    time.
    """
    report, *others = reports
    if others:
        page = joint_page.summarize_together(*reports)[0]
        made = NotebookJoint if isinstance(page, joint_page.JointSummary) else NotebookSummary
        return made(**vars(page))
    if report.meta.timeless:
        return NotebookCounters(**vars(counters_page.summarize_counters(report)))
    return NotebookSummary(**vars(time_page.summarize(report)))


def shown(analysis: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
    """An analysis whose table a notebook shows with units."""

    @wraps(analysis)
    def table(*args: object, **keys: object) -> pl.DataFrame:
        return NotebookTable(analysis(*args, **keys))

    return table
