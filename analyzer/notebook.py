"""Notebook display of the Python API: reports and summaries as pages, tables with units.

The values are unchanged: a :class:`NotebookTable` is a polars frame, a :class:`NotebookReport` a report. Only their
display in IPython differs.
"""

import inspect
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import wraps
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, Unpack

import polars as pl

from kanalyze import analyses, catalog, outlets, readers, units
from kanalyze.analyses.comparing import _comparison, _pair
from kanalyze.analyses.page import batch_page, overview_page, time_page
from kanalyze.analyses.ranks._job import Job
from kanalyze.analyses.replay import _changes, _unprofiled, _whatif
from kanalyze.analyses.timeline import _tracks
from kanalyze.analyses.work._configuration import Configuration
from kanalyze.errors import ClosedReportError, KanalyzeError, refuse_unknown
from kanalyze.readers.capture import reports as capture_reports
from kanalyze.readers.request_log import read_requests as read_requests  # noqa: PLC0414 - public as it is
from kanalyze.renderers.formats import document
from kanalyze.report import Report, Where
from kanalyze.several import Asked, jobs, reducing, sides
from kanalyze.window import Window

if TYPE_CHECKING:
    import pandas as pd

T = TypeVar("T")

#: A side of a comparison: a report, a path, or several of these.
Given: TypeAlias = Report | str | PathLike[str] | Iterable[Report | str | PathLike[str]]


def _page_html(content: overview_page.Summary | _comparison.Comparison | _whatif.WhatIf) -> str:
    """A page as it displays itself in notebooks."""
    return document.page(content, 8 if content.kind in ("time", "joint", "counters", "whatif") else None)


_kind: Any
for _kind in (overview_page.Summary, _comparison.Comparison, _whatif.WhatIf):
    _kind._repr_html_ = _page_html


class NotebookTable(pl.DataFrame):
    """A table with notebook display; results of operations on it are plain polars frames."""

    def to_pandas(self, *, use_pyarrow_extension_array: bool = False, **kwargs: object) -> "pd.DataFrame":
        """Converts to a pandas frame; integer and boolean columns keep their types with nulls (nullable types).

        Polars makes floats and objects of those; here they have pandas' nullable types, unless keywords say how.
        """
        from pandas import arrays  # noqa: PLC0415 - only who has pandas asks for it

        frame = super().to_pandas(use_pyarrow_extension_array=use_pyarrow_extension_array, **kwargs)
        for column in self.iter_columns():
            if column.null_count() and str(frame.dtypes[column.name]) == _LOST.get(column.dtype.base_type()):
                array_type = arrays.BooleanArray if column.dtype == pl.Boolean else arrays.IntegerArray
                values = column.fill_null(value=False if column.dtype == pl.Boolean else 0)
                nulls = column.is_null().to_numpy(writable=True)
                frame[column.name] = array_type(values.to_numpy(writable=True), nulls)
        return frame

    def _repr_html_(self, *, _from_series: bool = False) -> str:
        return document.table(self)


#: What pandas makes of columns with nulls.
_LOST: Final[dict[pl.datatypes.DataTypeClass, str]] = {
    **dict.fromkeys((pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64), "float64"),
    pl.Boolean: "object",
}


def _table(name: str, doc: str) -> property:
    """A table of a comparison, or of a job, as an attribute of it."""
    return property(lambda result: result.table(name), doc=f"{doc}: table `{name}`.")


class NotebookComparison(_comparison.Comparison):
    """A comparison displayed as its page, with its tables as attributes."""

    def table(self, name: str) -> pl.DataFrame:
        """A table of the comparison, such as ``compare_kernels``; `kanalyze show` lists them."""
        return NotebookTable(super().table(name))

    buckets = _table("compare", "Difference by bucket")
    kernels = _table("compare_kernels", "Kernels, copies and memsets before and after")
    ranges = _table("compare_ranges", "The program's own ranges")
    calls = _table("compare_calls", "CUDA calls, those that wait among them")
    copies = _table("compare_copies", "Copies and memsets by kind, with their bytes")
    ops = _table("compare_ops", "Operators of traces by the call tree")
    memory = _table("compare_memory", "Peaks and allocations by kind of memory")
    findings = _table("compare_findings", "Findings that went, came or stay")
    counters = _table("compare_counters", "Counters of ncu kernel by kernel")
    ranks = _table("compare_ranks", "Ranks before and after, each with its verdict")

    def __repr__(self) -> str:
        """Both sides and the verdict, in one line."""
        base, new = self.names
        return f"<Comparison of {base!r} with {new!r}: {self.verdict.word}>"


class NotebookJob:
    """The ranks of one job, displayed as their page, with its tables as attributes.

    Attributes:
        job: What the tables and the page are made of.
        left_out: What could not be read.
    """

    def __init__(self, job: Job, left_out: Sequence[KanalyzeError] = ()) -> None:
        """Show `job`."""
        self.job = job
        self.left_out = [*left_out]

    def table(self, name: str) -> pl.DataFrame:
        """A table of the job, such as ``collectives``; `kanalyze show` lists them."""
        refuse_unknown("table of a job", name, analyses.homes_of_jobs())
        return NotebookTable(self.job.table(name))

    @property
    def tables(self) -> dict[str, pl.DataFrame]:
        """All tables, by name."""
        return {name: self.table(name) for name in analyses.homes_of_jobs()}

    collectives = _table("collectives", "Each collective on each rank: waiting, transfer, bandwidth")
    collective_summary = _table("collective_summary", "Collectives by kind, group and size")
    ranks = _table("ranks", "Each rank's time, with communication split into waiting and transfer")
    rank_steps = _table("rank_steps", "Each step on each rank: waiting, lateness and its cause")
    clocks = _table("clocks", "Offsets of the clocks of hosts, with bounds")

    @property
    def doubts(self) -> pl.DataFrame:
        """Doubts about the job: what was looked at, how often, and what cannot be trusted."""
        schema = {"check": pl.String, "count": pl.Int64, "effect": pl.String}
        return NotebookTable(pl.DataFrame(self.job.doubts, schema=schema, orient="row"))

    @property
    def world_size(self) -> int:
        """Number of ranks of the job, as the reports tell; at least those that were read."""
        return self.job.world_size

    @property
    def missing(self) -> list[int]:
        """The ranks that were not read."""
        return self.job.missing

    def __repr__(self) -> str:
        """How many ranks were read, in one line."""
        return f"<Job of {self.world_size:,} ranks, {self.job.ranks.height:,} read>"

    def _repr_html_(self) -> str:
        return document.page(self.job, None) + _left_out(self.left_out)


class NotebookReport(Report):
    """A report displayed as its first page; for a capture folder with the other tools' reports."""

    def table(self, name: str) -> pl.DataFrame:
        """A table provided by the reader; see :meth:`kanalyze.report.Report.table`."""
        return NotebookTable(super().table(name))

    def _repr_html_(self) -> str:
        missing: list[KanalyzeError] = []
        with ExitStack() as opened:
            try:
                reports: list[Report] = []
                if self.meta.capture == self.meta.path and capture_reports.several_tools(self.meta.path):
                    reports = capture_reports.every_report(self.meta.path, left_out=missing.append)
                if others := [opened.enter_context(report) for report in reports if report.meta.tool != self.meta.tool]:
                    page = time_page.overviews_together(self, *others)[0]
                elif self.meta.timeless:
                    page = time_page.summarize_counters(self)
                else:
                    page = overview_page.overview(self)
            except ClosedReportError as error:
                return f"<p>{outlets.html(str(error))}</p>"
        return _page_html(page) + _left_out(missing)


def _left_out(errors: Iterable[KanalyzeError]) -> str:
    return "".join(f"<p>Left out: {outlets.html(str(error))}</p>" for error in errors)


def read(path: str | PathLike[str], progress: readers.Progress | None = None, *, cache: bool = True) -> Report:
    """Opens the report in the file or folder at `path`; see :func:`kanalyze.readers.read`."""
    return _shown_as(NotebookReport, readers.read(path, progress, cache=cache))


def read_all(
    *paths: str | PathLike[str], progress: readers.Progress | None = None, cache: bool = True, runs: bool = False
) -> list[Report]:
    """Opens the reports at `paths`, for tables of several; of a capture folder those of each tool.

    See :func:`kanalyze.readers.capture.reports.every_report`.
    """
    groups = (capture_reports.every_report(Path(path), progress, cache=cache, runs=runs) for path in paths)
    return [_shown_as(NotebookReport, report) for some in groups for report in some]


def _shown_as(kind: type[T], plain: Any) -> T:  # noqa: ANN401 - a report or a comparison
    """The same as what displays itself in notebooks, but for the views of a report, which are of its own kind."""
    same = (field.name for field in fields(plain) if field.init and field.name != "_whole")
    return kind(**{name: getattr(plain, name) for name in same})


def without_profiler(report: Report) -> Report:
    """The whole report at the times that it would have without its profiler, by a run of its capture without one.

    Every table can be made of it: ``kanalyze.ledger(kanalyze.without_profiler(report), window="steady")``. See
    docs/definitions.md, section 12, "Without the profiler".

    Args:
        report: A report of nsys from a capture that `kanalyze collect` wrote.

    Raises:
        CannotTellError: No run without the profiler tells how much shorter an iteration is, or the report has more than
            524,288 operations and calls.
    """
    _refuse_others("without_profiler", (report,), several=False)
    return _shown_as(NotebookReport, _unprofiled.without(report))


def summarize(*reports: Report) -> overview_page.Summary:
    """Summarises a report as the data of its page; see :func:`kanalyze.analyses.page.time_page.summarize`.

    Of a report of ncu see :func:`kanalyze.analyses.page.time_page.summarize_counters`; of several, of one program
    by different tools, :func:`kanalyze.analyses.page.time_page.summarize_together`: that of the first with times.
    """
    _refuse_others("summarize", reports, several=True)
    if not reports:
        raise TypeError("kanalyze.summarize takes reports, which kanalyze.read(path) gives")
    if len(reports) > 1:
        return time_page.summarize_together(*reports)[0]
    return time_page.summarize_counters(*reports) if reports[0].meta.timeless else time_page.summarize(*reports)


def overview(report: Report, *, whole: bool = False) -> overview_page.Summary:
    """Makes the first page of a report; see :func:`kanalyze.analyses.page.overview_page.overview`."""
    _refuse_others("overview", (report,), several=False)
    return overview_page.overview(report, whole=whole)


def whatif(  # noqa: PLR0913 - the options of the command
    report: Report,
    *,
    faster: Mapping[str, float] | None = None,
    without: Iterable[str] = (),
    graph: bool = False,
    copies: str | None = None,
    gpu: str | None = None,
    batch: int | str | None = None,
    length: int | str | None = None,
    dtype: str | None = None,
    each: bool = False,
    measured: str | None = None,
    **where: Unpack[Where],
) -> _whatif.WhatIf:
    """Result of a change, by a replay of the recording; see docs/whatif.md.

    Args:
        report: A report of nsys or torch.profiler.
        faster: How many times as fast kernels are by pattern (``{"gemm*": 2}``), ``copies``, ``host``, the host code of
            a range (``host:fwd``), or ``calls``.
        without: What takes no time: of ``launch-gaps``, ``sync``, ``startup``.
        graph: Whether each sequence of launches that repeats becomes one CUDA graph.
        copies: Bandwidth of copies between host and device, such as ``"50GB/s"``.
        gpu: Another GPU, such as ``"H200"``, by what its peaks and bandwidth bring each operator.
        batch: Another batch size, by the work of operators whose shapes are known: 2, or ``"8=2"``; by the law of its
            steps of a serving engine.
        length: Another sequence length, likewise.
        dtype: Another type of arithmetic and tensors: fp64, fp32, tf32, bf16, fp16 or fp8.
        each: Whether single changes are tried, too.
        measured: What the window (an iteration of it) takes without a profiler, such as ``"1.9ms"``.
        **where: Window, device and process; see :class:`kanalyze.report.Where`.

    Raises:
        CannotTellError: The report has no operations with times.
        UnknownNameError: A pattern matches nothing, or no GPU is called so.
        ValueError: A factor is below 0.001, or a bandwidth, time, size or type is none.
    """
    _refuse_others("whatif", (report,), several=False)
    factors, left_out = dict(faster or {}), tuple(without)
    if not all(units.SLOWEST <= factor < math.inf for factor in factors.values()):
        raise ValueError(f"factors of faster are above 0, at least {units.SLOWEST}, not {factors!r}")
    if unknown := {*left_out} - {*_changes.WITHOUT}:
        raise ValueError(f"without is of {', '.join(_changes.WITHOUT)}, not {', '.join(sorted(unknown))}")
    rate = None if copies is None else units.parse_rate(copies)
    took = None if measured is None else units.parse_time_ns(measured)
    if (copies is not None and rate is None) or (measured is not None and not took):
        raise ValueError("copies is a bandwidth such as '50GB/s', measured a time such as '1.9ms'")
    part = report.narrow(**where)
    changes = _changes.Changes(tuple(factors.items()), left_out, graph, rate)
    configuration = Configuration.of(gpu, batch, length, dtype)
    options = changes.options(copies)
    return batch_page.changed(part, changes, options, each=each, measured_ns=took, configuration=configuration)


class NotebookTimeline:
    """A timeline displayed in its cell, as in the HTML report.

    Attributes:
        drawn: The tracks, events and counters.
    """

    def __init__(self, drawn: _tracks.Timeline, title: str) -> None:
        """Show `drawn` under a title."""
        self.drawn = drawn
        self._title = title

    def __repr__(self) -> str:
        """How much is in it, in one line."""
        return f"<Timeline of {self._title!r}, {len(self.drawn.tracks):,} tracks>"

    def _repr_html_(self) -> str:
        return document.cell(self.drawn, self._title)


def timeline(report: Report, **where: Unpack[Where]) -> NotebookTimeline:
    """The timeline of a report or its part, which a notebook shows in the cell: zoom, pan, search and select as there.

    Args:
        report: The report.
        where: A window, device or process to look at alone.

    Raises:
        CannotTellError: The report has no times, or no events at all.
    """
    _refuse_others("timeline", (report,), several=False)
    return NotebookTimeline(_tracks.timeline(report.narrow(**where), most=100_000), report.meta.path.name)


def sql(report: Report | Sequence[Report], statement: str, **where: Unpack[Where]) -> NotebookTable:
    """The answer to an SQL statement over the tables of a report, by the names that ``kanalyze show`` lists.

    Of several reports each table has the rows of all, with a first column `report`.

    Raises:
        UnknownNameError: There is no such table.
        CannotTellError: A report does not hold what a table needs.
        SqlError: The statement is no SQL that polars understands.
    """
    _refuse_others("sql", report if isinstance(report, list | tuple) else [report], several=False)
    return NotebookTable(catalog.sql(report, statement, **where))


def compare(  # noqa: PLR0913 - the options of the command
    base: Given,
    new: Given,
    *,
    window: Window | str | None = None,
    device: int | None = None,
    process: int | None = None,
    least_effect: float = _pair.Limits().least_effect,
    floor: float | None = None,
    other_ranks: bool = False,
) -> NotebookComparison:
    """Compares two sides of runs: faster or slower, by how much, where the difference went, and how sure that is.

    Args:
        base: The one side: a report, a path (a report, a folder of reports, a capture, or a baseline ``.kz``), or
            several of these. Reports at paths are opened one at a time.
        new: The other one.
        window: The part of each run that is compared, in place of its steady iterations; see
            :class:`kanalyze.report.Where`.
        device: One GPU of each run.
        process: One process of each run.
        least_effect: The least change that counts, as a part of the time.
        floor: The part by which two runs of the same program differ, as ``kanalyze compare --noise`` measures it;
            judges one run a side.
        other_ranks: Whether one rank of base may be compared with another one of new.

    Raises:
        IncomparableError: A side is empty, or they have no tool, rank or step in common.
        TypeError: A side is neither a report nor a path nor several of these.
        ValueError: `least_effect` is not between 0 and 1, or `floor` is negative.
    """
    if not 0 < least_effect < 1:
        raise ValueError(f"least_effect is a part of the time, such as 0.02, not {least_effect!r}")
    if floor is not None and not 0 <= floor < math.inf:
        raise ValueError(f"floor is a part of the time, such as 0.01, not {floor!r}")
    where: Where = {"window": window, "device": device, "process": process}
    asked = Asked(where, limits=_pair.Limits(least_effect=least_effect, floor=floor), other_ranks=other_ranks)
    comparison = sides.comparison(_side("base", base), _side("new", new), asked)
    others: dict[str, _comparison.Comparison] = {
        tool: _shown_as(NotebookComparison, one) for tool, one in comparison.others.items()
    }
    return _shown_as(NotebookComparison, replace(comparison, others=others))


def _side(name: str, side: Given) -> list[Report | Path]:
    """The reports and paths of one side; a TypeError where it is, or has in it, anything else."""
    several = [side] if isinstance(side, Report | str | os.PathLike) or not isinstance(side, Iterable) else [*side]
    return _reports_or_paths(several, f"kanalyze.compare takes reports and paths; {name} has a")


def _reports_or_paths(arguments: Iterable[object], refusal: str) -> list[Report | Path]:
    """The reports as they are, and the others as paths; a TypeError where one is neither."""
    sources: list[Report | Path] = []
    for argument in arguments:
        if not isinstance(argument, Report | str | os.PathLike):
            raise TypeError(f"{refusal} {type(argument).__name__}")
        sources.append(argument if isinstance(argument, Report) else Path(argument))
    return sources


def ranks(*reports: Report | str | PathLike[str], one_host: bool = False, cache: bool = True) -> NotebookJob:
    """Puts the ranks of one job together: who waits for whom, why, and at what bandwidth collectives run.

    What cannot be read is :attr:`NotebookJob.left_out`; the rest goes on.

    Args:
        reports: Reports, and paths of reports, folders of them, captures, or what :func:`reduce` wrote.
        one_host: Whether all ranks ran on one host, so that their clocks are one.
        cache: Whether cached results of an earlier opening may be used.

    Raises:
        NoJobError: No report has a rank.
        KanalyzeError: None of them can be read; the first reason.
        TypeError: An argument is neither a report nor a path.
    """
    sources = _reports_or_paths(reports, "kanalyze.ranks takes reports and paths, not")
    left_out: list[KanalyzeError] = []
    job = jobs.job(sources, Asked(one_host=one_host, cache=cache, left_out=left_out.append))
    return NotebookJob(job, left_out)


def reduce(
    paths: str | PathLike[str] | Iterable[str | PathLike[str]],
    out: str | PathLike[str],
    executor: Executor | None = None,
    *,
    progress: Callable[[int, int], object] | None = None,
    cache: bool = False,
) -> reducing.Reduced:
    """Keeps what :func:`ranks` needs of reports in a folder, each as small Parquet files beside a manifest.

    What the folder has already is not read again, unless it changed.

    Args:
        paths: Reports, folders of them, captures, or addresses on object stores (``s3://…``, with fsspec).
        out: The folder; may exist.
        executor: Does the work: any of :mod:`concurrent.futures`, of loky, or ``Client.get_executor()`` of
            dask.distributed, whose workers see the reports. Without one it is done here, one report after the other.
        progress: Told how many reports are done, of how many.
        cache: Whether decoded traces are kept in the user's cache, and used.

    Raises:
        NoJobError: There is no report.
        OutputError: `out` cannot be written.
        KanalyzeError: Nothing could be reduced; the first reason.
        ValueError: The executor forks processes, in which polars would wait for ever.
    """
    several = [paths] if isinstance(paths, str | os.PathLike) else [*paths]
    sources = [path if isinstance(path, str) else Path(path) for path in several]
    engine = reducing.one_by_one if executor is None else reducing.by_executor(executor)
    return reducing.reduce_reports(sources, Path(out), engine, progress=(progress or (lambda *_: None)), cache=cache)


def shown(analysis: Callable[..., pl.DataFrame]) -> Callable[..., pl.DataFrame]:
    """Wraps an analysis for users: notebook display with units, and a docstring that lists the columns."""
    name = analysis.__name__
    several = catalog.table(name).together

    @wraps(analysis)
    def table(*args: object, **keys: object) -> pl.DataFrame:
        _refuse_others(name, args if several else args[:1], several=several)
        return NotebookTable(analysis(*args, **keys))

    columns = "\n\n".join(form.told() for form in (catalog.table(name), *catalog.forms(name)))
    table.__doc__ = f"{inspect.cleandoc(analysis.__doc__ or '')}\n\n{columns}\n"
    return table


def _refuse_others(name: str, arguments: Iterable[object], *, several: bool) -> None:
    """Raise a TypeError that says what to pass unless every argument is a report; `several`: the table takes many."""
    for argument in arguments:
        if isinstance(argument, Report):
            continue
        takes = f"kanalyze.{name} takes {'reports' if several else 'a report'}"
        if isinstance(argument, str | os.PathLike):
            raise TypeError(f"{takes}, not a path: kanalyze.{name}(kanalyze.read({os.fspath(argument)!r}))")
        if isinstance(argument, list | tuple) and several:
            raise TypeError(f"{takes} one by one, not a {type(argument).__name__} of them: kanalyze.{name}(*reports)")
        raise TypeError(f"{takes}, which kanalyze.read(path) gives, not {type(argument).__name__}")
