"""Notebook display of the Python API: reports and summaries as pages, tables with units.

The values are unchanged: a :class:`NotebookTable` is a polars frame, a :class:`NotebookReport` a report. Only their
display in IPython differs.
"""

from __future__ import annotations

import inspect
import os
from contextlib import ExitStack
from dataclasses import fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import catalog, outlets, readers
from kanalyze.analyses.page import counters_page, joint_page, overview_page, time_page
from kanalyze.errors import ClosedReportError
from kanalyze.readers.capture import reports as capture_reports
from kanalyze.renderers.formats import html
from kanalyze.report import Report
from kanalyze.schema import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from os import PathLike

    import pandas as pd

    from kanalyze.errors import KanalyzeError
    from kanalyze.readers import Progress

#: Rows per table on a page.
_TOP: Final = 8


class NotebookTable(pl.DataFrame):
    """A table with notebook display; results of operations on it are plain polars frames."""

    def to_pandas(self, *, use_pyarrow_extension_array: bool = False, **kwargs: object) -> pd.DataFrame:
        """Converts to a pandas frame; integer and boolean columns keep their types with nulls (nullable types).

        Polars makes floats and objects of those; here they have pandas' nullable types, unless keywords say how.
        """
        found = super().to_pandas(use_pyarrow_extension_array=use_pyarrow_extension_array, **kwargs)
        for column in self.iter_columns():
            if column.null_count() and str(found.dtypes[column.name]) == _LOST.get(column.dtype.base_type()):
                found[column.name] = _nullable(column)
        return found

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return html.table(self)


#: What pandas makes of columns with nulls.
_LOST: Final[dict[pl.datatypes.DataTypeClass, str]] = {
    **dict.fromkeys((pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64), "float64"),
    pl.Boolean: "object",
}


def _nullable(column: pl.Series) -> pd.api.extensions.ExtensionArray:
    """Converts an integer or boolean column with nulls to a nullable pandas array."""
    from pandas import arrays  # noqa: PLC0415 - only who has pandas asks for it

    made = arrays.BooleanArray if column.dtype == pl.Boolean else arrays.IntegerArray
    values = column.fill_null(value=False if column.dtype == pl.Boolean else 0)
    return made(values.to_numpy(writable=True), column.is_null().to_numpy(writable=True))


class NotebookSummary(time_page.Summary):
    """A summary displayed as its page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookOverview(overview_page.Overview):
    """A first page displayed as itself."""

    def _repr_html_(self) -> str:
        return html.page(self, None)


class NotebookCounters(counters_page.CounterSummary):
    """A counter summary displayed as its page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookJoint(joint_page.JointSummary):
    """A summary of several tools' reports displayed as its page."""

    def _repr_html_(self) -> str:
        return html.page(self, _TOP)


class NotebookReport(Report):
    """A report displayed as its first page; for a capture folder with the other tools' reports."""

    def table(self, name: str) -> pl.DataFrame:
        """A table provided by the reader; see :meth:`kanalyze.report.Report.table`."""
        return NotebookTable(super().table(name))

    def _repr_html_(self) -> str:
        missing: list[KanalyzeError] = []
        with ExitStack() as opened:
            try:
                page = self._first_page(*map(opened.enter_context, self._beside(missing)))
            except ClosedReportError as error:
                return f"<p>{outlets.html(str(error))}</p>"
        told = "".join(f"<p>Left out: {outlets.html(str(error))}</p>" for error in missing)
        return html.page(page, _TOP if page.kind == "counters" else None) + told

    def _first_page(self, *others: Report) -> overview_page.Overview | counters_page.CounterSummary:
        if others:
            return joint_page.overviews_together(self, *others)[0]
        return counters_page.summarize_counters(self) if self.meta.timeless else overview_page.overview(self)

    def _beside(self, missing: list[KanalyzeError]) -> list[Report]:
        """The other reports in this report's capture folder; errors of unreadable ones are added to `missing`."""
        if self.meta.capture != self.meta.path or not capture_reports.several_tools(self.meta.path):
            return []
        every = capture_reports.every_report(self.meta.path, left_out=missing.append)
        return [one for one in every if one.meta.tool != self.meta.tool]


def read(path: str | PathLike[str], progress: Progress | None = None, *, cache: bool = True) -> Report:
    """Opens the report in the file or folder at `path`; see :func:`kanalyze.readers.read`."""
    return _shown_well(readers.read(path, progress, cache=cache))


def read_all(
    *paths: str | PathLike[str], progress: Progress | None = None, cache: bool = True, runs: bool = False
) -> list[Report]:
    """Opens the reports at `paths`, for tables of several; of a capture folder those of each tool.

    See :func:`kanalyze.readers.capture.reports.every_report`.
    """
    found = (capture_reports.every_report(Path(path), progress, cache=cache, runs=runs) for path in paths)
    return [_shown_well(report) for some in found for report in some]


def _shown_well(found: Report) -> Report:
    same = (field.name for field in fields(found) if field.init and field.name != "_whole")  # which are of its own kind
    return NotebookReport(**{name: getattr(found, name) for name in same})


def summarize(*reports: Report) -> time_page.Summary | counters_page.CounterSummary | joint_page.JointSummary:
    """Summarises a report as the data of its page; see :func:`kanalyze.analyses.page.time_page.summarize`.

    Of a report of ncu see :func:`kanalyze.analyses.page.counters_page.summarize_counters`; of several, of one program
    by different tools, :func:`kanalyze.analyses.page.joint_page.summarize_together`: the page of the first that gives
    time.
    """
    _refuse_others("summarize", reports, several=True)
    if not reports:
        raise TypeError("kanalyze.summarize takes reports, which kanalyze.read(path) gives")
    report, *others = reports
    if others:
        page = joint_page.summarize_together(*reports)[0]
        made = NotebookJoint if isinstance(page, joint_page.JointSummary) else NotebookSummary
        return made(**vars(page))
    if report.meta.timeless:
        return NotebookCounters(**vars(counters_page.summarize_counters(report)))
    return NotebookSummary(**vars(time_page.summarize(report)))


def overview(report: Report, *, whole: bool = False) -> overview_page.Overview:
    """Makes the first page of a report; see :func:`kanalyze.analyses.page.overview_page.overview`."""
    _refuse_others("overview", (report,), several=False)
    return NotebookOverview(**vars(overview_page.overview(report, whole=whole)))


def shown(analysis: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
    """Wraps an analysis for users: notebook display with units, and a docstring that lists the columns."""
    name = analysis.__name__
    several = catalog.table(name).together

    @wraps(analysis)
    def table(*args: object, **keys: object) -> pl.DataFrame:
        _refuse_others(name, args if several else args[:1], several=several)
        return NotebookTable(analysis(*args, **keys))

    told = "\n\n".join(form.told() for form in (catalog.table(name), *catalog.forms(name)))
    doc, _, _ = inspect.cleandoc(analysis.__doc__ or "").partition(f"\n\n{COLUMNS}\n")
    table.__doc__ = f"{doc}\n\n{told}\n"
    return table


def _refuse_others(name: str, given: Iterable[object], *, several: bool) -> None:
    """Raise unless every argument is a report; `several` says that the table takes more than one.

    Raises:
        TypeError: It says what to pass.
    """
    for one in given:
        if isinstance(one, Report):
            continue
        takes = f"kanalyze.{name} takes {'reports' if several else 'a report'}"
        if isinstance(one, str | os.PathLike):
            raise TypeError(f"{takes}, not a path: kanalyze.{name}(kanalyze.read({os.fspath(one)!r}))")
        if isinstance(one, list | tuple) and several:
            raise TypeError(f"{takes} one by one, not a {type(one).__name__} of them: kanalyze.{name}(*reports)")
        raise TypeError(f"{takes}, which kanalyze.read(path) gives, not {type(one).__name__}")
