"""What the Python API gives, so that notebooks show it well: reports and summaries as pages, tables with units.

The values are the same: a :class:`NotebookTable` is a polars frame, a :class:`NotebookReport` a report. Only how
IPython displays them differs.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import readers
from kanalyze.analyses import counter_summary, summary
from kanalyze.renderers import html
from kanalyze.report import Report

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from kanalyze.readers import Progress

#: Rows of each table on a page.
_TOP: Final = 8


class NotebookTable(pl.DataFrame):
    """A table of kanalyze; whatever is made of it is a plain polars frame."""

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return html.table(self)


class NotebookSummary(summary.Summary):
    """A summary that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookCounters(counter_summary.CounterSummary):
    """A summary of counters that a notebook shows as the page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookReport(Report):
    """A report that a notebook shows as its page."""

    def table(self, name: str) -> pl.DataFrame:
        """A table that the reader gives; see :meth:`kanalyze.report.Report.table`."""
        return NotebookTable(super().table(name))

    def _repr_html_(self) -> str:
        return html.page(summarize(self), _TOP)


def read(path: str | PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """The report in the file or folder at `path`; see :func:`kanalyze.readers.read`."""
    found = readers.read(path, progress, cache=cache)
    return NotebookReport(found.meta, found.source, found.scope)


def summarize(report: Report) -> summary.Summary | counter_summary.CounterSummary:
    """The page of a report as one value; see :func:`kanalyze.analyses.summary.summarize`.

    Of a report of ncu see :func:`kanalyze.analyses.counter_summary.summarize_counters`.
    """
    if report.meta.timeless:
        return NotebookCounters(**vars(counter_summary.summarize_counters(report)))
    return NotebookSummary(**vars(summary.summarize(report)))


def shown(analysis: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
    """An analysis whose table a notebook shows with units."""

    @wraps(analysis)
    def table(*args: object, **keys: object) -> pl.DataFrame:
        return NotebookTable(analysis(*args, **keys))

    return table
