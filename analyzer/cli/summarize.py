"""``kanalyze summarize``, ``ranks``, ``whatif`` and ``explain``: pages of a report, and of several of one program."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from kanalyze import outlets
from kanalyze.cli import _complete, _options
from kanalyze.cli._answers import expanded, of_each
from kanalyze.cli._options import (
    OUTPUT,
    READ,
    REPORT,
    REPORTS,
    SCOPE,
    Where,
    argument,
    command,
    flag,
    formats,
    option,
    top,
)
from kanalyze.cli._output import Out, drop_registered, print_doubts, print_message, register_figures, width
from kanalyze.errors import BadWindowError, KanalyzeError, UnknownNameError, nearest
from kanalyze.machinery import late
from kanalyze.readers.archives import unpacked
from kanalyze.units import SLOWEST, parse_rate, parse_time_ns

with late():
    from kanalyze import explanations
    from kanalyze.analyses.page import counters_page, overview_page, time_page
    from kanalyze.analyses.ranges import _instances
    from kanalyze.analyses.replay import _changes, _whatif
    from kanalyze.readers.capture import read_capture
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.formats import json
    from kanalyze.renderers.tables import explanations as rendered
    from kanalyze.several import jobs

if TYPE_CHECKING:
    from kanalyze.analyses.page.counters_page import CounterSummary, JointSummary
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.report import Meta, Report

#: What can be left out of a replay.
_WITHOUT: Final = ("launch-gaps", "sync", "startup")


class Form(NamedTuple):
    """Form of the page: with all sections, of the whole recording, or with times as they were recorded."""

    full: bool = False
    whole: bool = False
    recorded: bool = False


@command(
    REPORTS,
    *SCOPE,
    top("Rows in each table of the page; as many as suit it unless told."),
    flag("--full", "All sections, of the whole recording or the window."),
    flag("--whole", "The page of the whole recording, not of what the program repeats."),
    flag("--recorded", "Times as recorded, where a run without the profiler tells others."),
    formats("markdown", "json"),
    _options.answering(
        "--schema", "Print the JSON Schema of --format json, and stop.", lambda: json.SCHEMA.read_text(encoding="utf-8")
    ),
    OUTPUT,
)
def summarize(reports: Sequence[Path], where: Where, to: Out, **form: bool) -> None:
    """Show one page that says where the time of each REPORT went, or each report in a folder of them."""
    pages = _pages(reports, where, Form(**form))
    _point_to_ranks(pages, reports)
    to.emit_pages(pages)


def shown(reports: Sequence[Path]) -> None:
    """Print the pages of `reports`, whole, as the command does that is given no option."""
    Out().emit_pages(_pages(reports, Where(), Form()))
    print_doubts(everything=True)


def _point_to_ranks(pages: Sequence[Shown], reports: Sequence[Path]) -> None:
    """Says which command looks at the ranks of one job together, where the reports are of several."""
    command_says = f"`{outlets.command('kanalyze', 'ranks', *reports)}` says who"
    if _options.several_ranks(meta for page in pages for meta in _metas(page)):
        message = f"these are ranks of one job: {command_says} waits for whom, and why."
    elif sum(page.kind == "overview" and page.communicates for page in pages) > 1:
        message = f"if these are ranks of one job, {command_says} waits for whom, and why."
    elif any(page.kind == "overview" and page.waits_for_others for page in pages):
        message = f"GPUs of this report wait for each other: {command_says} for whom, and why."
    else:
        return
    print_message(f"kanalyze: {message}")


def _metas(page: Shown) -> Sequence[Meta]:
    """Descriptions of the reports that a page of time is of."""
    if page.kind == "overview":
        return [page.meta, *page.others]
    if page.kind == "joint":
        return page.metas
    return [page.meta] if page.kind == "time" else []


def _pages(reports: Sequence[Path], where: Where, form: Form) -> Sequence[Shown]:
    """One page of reports of one program by different tools, or of a capture that has such; else a page for each.

    Where several reports give time, such as those of two captures, each has its page, and the others are on it.
    """
    reports = expanded(reports)
    instances = where.window is not None and (where.window.endswith("#*") or where.window == "steps")
    if not _several(reports) or instances:
        return of_each(reports, lambda report: _page(report, where, form))
    opened = of_each(_options.different(reports), lambda report: _options.opened_together([report], where, runs=False))
    given = [one for some in opened for one in some]
    opened.clear()
    if len({one.meta.tool for one in given}) == 1 or all(one.meta.timeless for one in given):
        open_at = {one.meta.path: one for one in given}
        drop_registered()  # as long as none is held for that
        given.clear()  # each goes when its page is made
        return of_each(reports, lambda report: _page(report, where, form, open_at.pop(report, None)))
    if form.full:
        return [_with_runs(page, where, form) for page in counters_page.summarize_together(*given, **where.part)]
    pages = counters_page.overviews_together(*given, whole=form.whole, as_recorded=form.recorded, **where.part)
    return [_with_runs(page, where, form) for page in pages]


def _several(reports: Sequence[Path]) -> bool:
    """Whether several reports are asked for, or a capture that has some of several tools."""
    if len(reports) > 1:
        return True
    # os.path never raises, and a reader need not wait for polars
    return os.path.isdir(unpacked(reports[0])) and captures.several_tools(reports[0])  # noqa: PTH112


def _with_runs(page: JointSummary | Overview | Summary | CounterSummary, where: Where, form: Form) -> Shown:
    """The page of a report that may have been recorded several times; it then says how far the runs are apart."""
    if page.kind == "joint":
        answer = _apart(page.summary, page.metas[0].path, where, form).answer
        return replace(page, summary=replace(page.summary, answer=answer))
    return page if page.kind == "counters" else _apart(page, page.meta.path, where, form)


def _apart(page: Summary | Overview, report: Path, where: Where, form: Form) -> Summary | Overview:
    """The same of a page of one report; a run that cannot be read, or lacks that part, is left out with a word."""
    folder = unpacked(report)
    if not os.path.isdir(folder) or page.meta.slower is not None:  # noqa: PTH112 - never raises
        return page  # other runs are as they were recorded
    others = read_capture.reports_in(folder)[1:] if read_capture.accepts(folder, b"") else []
    runs = [page]
    for run in others:
        try:
            parts = _options.opened_parts(run, where)
            runs += [_timed(parts[None], form)] if None in parts else []
        except KanalyzeError as error:
            _options.print_left_out(error)
    return overview_page.repeated(runs) if others else page


def _timed(report: Report, form: Form) -> Summary | Overview:
    if form.full:
        return time_page.summarize(report)
    return overview_page.overview(report, whole=form.whole, as_recorded=form.recorded)


def _page(report: Path, where: Where, form: Form, whole: Report | None = None) -> Shown:
    """The page of a report, of counters or of time, or the comparison of instances where the window names several.

    Of a report that was recorded several times, the page says how far the runs are apart. `whole` is the report where
    it is open.
    """
    if whole is not None:
        register_figures(whole)
    parts = _options.opened_parts(report, where) if whole is None else _options.parts_of(whole, where)
    page: Shown
    if None not in parts:
        page = _instances.compare([*parts.values()])
    elif parts[None].meta.timeless:
        page = counters_page.summarize_counters(parts[None])
    else:
        page = _apart(_timed(parts[None], form), report, where, form)
    print_doubts(everything=True)  # the page looked at all of it
    return page


@command(
    REPORTS,
    flag("--one-host", "All ranks ran on one host: their clocks are one."),
    _options.NO_CACHE,
    top(),
    formats("markdown", "json"),
    OUTPUT,
)
def ranks(reports: Sequence[Path], where: Where, to: Out, *, one_host: bool) -> None:
    """Show one page on the ranks of a job, from their traces, from nsys reports, folders of them, or a capture."""
    to.emit_pages([jobs.job(reports, _options.asked(where, one_host=one_host, done=_options.doubted))])


@command(
    REPORT,
    option(
        "--faster",
        "So many times as fast: kernels by name ('gemm*'), copies, host (code), host:RANGE, or calls (of CUDA).",
        "WHAT=FACTOR",
        multiple=True,
    ),
    option("--without", "Leave out what takes time.", multiple=True, type=click.Choice(_WITHOUT)),
    flag("--without-startup", "Leave out one-time costs: as --without startup."),
    flag("--graph", "Launch each sequence that repeats as one CUDA graph."),
    option("--copies", "Bandwidth of copies between host and device, such as 50GB/s.", "RATE"),
    flag("--each", "Try single changes, everything twice as fast, by gain."),
    option("--measured", "What the window (an iteration of it) takes without a profiler, such as 1.9ms.", "TIME"),
    _options.WITHOUT_PROFILER,
    *SCOPE,
    top(),
    formats("markdown", "json"),
    OUTPUT,
)
def whatif(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path,
    where: Where,
    to: Out,
    *,
    faster: Sequence[str],
    without: Sequence[str],
    without_startup: bool,
    graph: bool,
    copies: str | None,
    each: bool,
    measured: str | None,
) -> None:
    """Replay REPORT with a change: its operations and calls start anew as soon as what they wait for allows."""
    without = [*dict.fromkeys((*without, *(["startup"] if without_startup else [])))]
    factors = tuple(_faster(one) for one in faster)
    if copies is not None and parse_rate(copies) is None:
        raise click.BadParameter(f"{copies!r} is not a bandwidth, such as 50GB/s.", param_hint="--copies")
    took_ns = None if measured is None else parse_time_ns(measured)
    if measured is not None and (not took_ns or took_ns < 0):
        raise click.BadParameter(f"{measured!r} is not a time with a unit, such as 1.9ms.", param_hint="--measured")
    changes = _changes.Changes(factors, tuple(without), graph, None if copies is None else parse_rate(copies))
    parts = _options.opened_parts(report, where)
    if len(parts) > 1:
        raise BadWindowError.of(where.window or "", "it is several windows, and one is replayed")
    (part,) = parts.values()
    window = part.scope.window
    whole_ns = None if took_ns is None else took_ns * ((window.count if window else None) or 1)
    to.emit_pages([_whatif.whatif_of(part, changes, changes.options(copies), each=each, measured_ns=whole_ns)])


def _faster(text: str) -> tuple[str, float]:
    what, sign, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not sign or not what or not SLOWEST <= factor < math.inf:
        message = f"{text!r} is not WHAT=FACTOR of at least {SLOWEST}, such as 'gemm*=2'."
        raise click.BadParameter(message, param_hint="--faster")
    return what, factor


@command(
    argument("name", required=False, shell_complete=_complete.findings),
    argument("reports", nargs=-1, type=READ, metavar="[REPORT]..."),
    *SCOPE,
    top("Rows in each table of the page of a REPORT."),
    formats("markdown", "json"),
    OUTPUT,
)
def explain(name: str | None, reports: Sequence[Path], where: Where, to: Out) -> None:
    """Explain the finding NAME, or a word of a page; of a REPORT show what the finding is made of there.

    Without a name all findings are listed, a line each.
    """
    is_finding = name is not None and name in explanations.names()
    if is_finding and reports:
        parts = [part for report in reports for part in _options.opened_parts(report, where).values()]
        to.emit_pages([page for part in parts for page in overview_page.evidence(part, name or "")])
        return
    words = explanations.meanings(" ".join(map(str, (name, *reports)))) if name and not is_finding else []
    if words:
        to.emit(rendered.words(words, width()) if to.form == "terminal" else rendered.WORDS[to.form](words).encode())
        return
    wanted = [_explanation(one) for one in ([name] if name else explanations.names())]
    text = rendered.terminal(wanted[0], width()) if name else rendered.headlines(wanted, width())
    to.emit(text if to.form == "terminal" else rendered.FORMATS[to.form](wanted).encode())


def _explanation(name: str) -> explanations.Explanation:
    """The explanation of a finding.

    Raises:
        UnknownNameError: It is neither a finding nor a word of a page.
    """
    try:
        return explanations.explanation(name)
    except UnknownNameError:
        if nearest(name, explanations.names()) is None and nearest(name, [*explanations.words()]) is not None:
            raise UnknownNameError.of("word of a page", name, explanations.words()) from None
        raise
