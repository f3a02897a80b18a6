"""``kanalyze summarize``: the page, or one for each of several reports."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, Unpack

import click

from kanalyze import outlets
from kanalyze.cli import _options
from kanalyze.cli._answers import expanded, of_each
from kanalyze.cli._late import late
from kanalyze.cli._output import answering, drop_registered, emit_pages, print_doubts, print_message, register_figures
from kanalyze.errors import KanalyzeError
from kanalyze.readers.archives import unpacked

with late():
    from kanalyze.analyses.page import counters_page, overview_page, time_page
    from kanalyze.analyses.ranges import _instances
    from kanalyze.readers.capture import read_capture
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.formats import json

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kanalyze.analyses.page.counters_page import CounterSummary, JointSummary
    from kanalyze.analyses.page.overview_page import Overview
    from kanalyze.analyses.page.time_page import Summary
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.report import Meta, Report


class Form(NamedTuple):
    """Form of the page: with all sections, of the whole recording, or with times as they were recorded."""

    full: bool = False
    whole: bool = False
    recorded: bool = False


@click.command()
@_options.reports_argument
@_options.scope
@_options.top(None, "Rows in each table of the page; as many as suit it unless told.")
@click.option("--full", is_flag=True, help="All sections, of the whole recording or the window.")
@click.option("--whole", is_flag=True, help="The page of the whole recording, not of what the program repeats.")
@click.option("--recorded", is_flag=True, help="Times as recorded, where a run without the profiler tells others.")
@_options.formats("markdown", "json")
@answering(
    "--schema", "Print the JSON Schema of --format json, and stop.", lambda: json.SCHEMA.read_text(encoding="utf-8")
)
@_options.output
@_options.in_one_thread_if_small
def summarize(  # noqa: PLR0913 - the options of the command
    reports: Sequence[Path],
    top: int | None,
    form: str,
    output: Path | None,
    *,
    full: bool,
    whole: bool,
    recorded: bool,
    **where: Unpack[_options.Where],
) -> None:
    """Show one page that says where the time of each REPORT went, or each report in a folder of them."""
    pages = _pages(reports, where, Form(full=full, whole=whole, recorded=recorded))
    _point_to_ranks(pages, reports)
    emit_pages(pages, form, top, output)


def _point_to_ranks(pages: Sequence[Shown], reports: Sequence[Path]) -> None:
    """Says which command looks at the ranks of one job together, where the reports are of several."""
    told = outlets.command("kanalyze", "ranks", *reports)
    if _options.several_ranks(meta for page in pages for meta in _metas(page)):
        print_message(f"kanalyze: these are ranks of one job: `{told}` says who waits for whom, and why.")
    elif sum(page.kind == "overview" and page.communicates for page in pages) > 1:
        print_message(f"kanalyze: if these are ranks of one job, `{told}` says who waits for whom, and why.")
    elif any(page.kind == "overview" and page.waits_for_others for page in pages):
        print_message(f"kanalyze: GPUs of this report wait for each other: `{told}` says who for whom, and why.")


def _metas(page: Shown) -> Sequence[Meta]:
    """Descriptions of the reports that a page of time is of."""
    if page.kind == "overview":
        return [page.meta, *page.others]
    if page.kind == "joint":
        return page.metas
    return [page.meta] if page.kind == "time" else []


def _pages(reports: Sequence[Path], where: _options.Where, form: Form) -> Sequence[Shown]:
    """One page of reports of one program by different tools, or of a capture that has such; else a page for each.

    Where several reports give time, such as those of two captures, each has its page, and the others are on it.
    """
    reports = expanded(reports)
    instances = (where["window"] is not None and where["window"].endswith("#*")) or where["window"] == "steps"
    if not _several(reports) or instances:
        return of_each(reports, lambda report: _page(report, where, form))
    opened = of_each(_options.different(reports), lambda report: _options.opened_together([report], where, runs=False))
    given = [one for some in opened for one in some]
    opened.clear()
    if len({one.meta.tool for one in given}) == 1 or all(one.meta.timeless for one in given):
        known = {one.meta.path: one for one in given}
        drop_registered()  # as long as none is held for that
        given.clear()  # each goes when its page is made
        return of_each(reports, lambda report: _page(report, where, form, known.pop(report, None)))
    if form.full:
        return [
            _with_runs(page, where, form) for page in counters_page.summarize_together(*given, **_options.part(where))
        ]
    how = {"whole": form.whole, "as_recorded": form.recorded}
    pages = counters_page.overviews_together(*given, **how, **_options.part(where))
    return [_with_runs(page, where, form) for page in pages]


def _with_runs(page: JointSummary | Overview | Summary | CounterSummary, where: _options.Where, form: Form) -> Shown:
    """The page of a report that may have been recorded several times; it then says how far the runs are apart."""
    if page.kind == "joint":
        answer = _apart(page.summary, page.metas[0].path, where, form).answer
        return replace(page, summary=replace(page.summary, answer=answer))
    if page.kind == "counters":
        return page
    return _apart(page, page.meta.path, where, form)


def _apart(page: Summary | Overview, report: Path, where: _options.Where, form: Form) -> Summary | Overview:
    """The same of a page of one report; a run that cannot be read, or lacks that part, is left out with a word."""
    folder = unpacked(report)
    if not os.path.isdir(folder) or page.meta.slower is not None:  # noqa: PTH112 - never raises
        return page  # other runs are as they were recorded
    others = read_capture.reports_in(folder)[1:] if read_capture.accepts(folder, b"") else []
    if not others:
        return page
    runs = [page]
    for run in others:
        try:
            parts = _options.opened_parts(run, where)
            runs += [_timed(parts[None], form)] if None in parts else []
        except KanalyzeError as error:
            _options.print_left_out(error)
    return overview_page.repeated(runs)


def _several(reports: Sequence[Path]) -> bool:
    """Whether several reports are asked for, or a capture that has some of several tools."""
    if len(reports) > 1:
        return True
    if not os.path.isdir(unpacked(reports[0])):  # noqa: PTH112 - never raises; a reader need not wait for polars
        return False
    return captures.several_tools(reports[0])


def shown(reports: Sequence[Path]) -> None:
    """Print the pages of `reports`, whole, as the command does that is given no option."""
    emit_pages(_pages(reports, _options.WHOLE, Form()), "terminal", None, None)
    print_doubts(everything=True)


def _timed(report: Report, form: Form) -> Summary | Overview:
    if form.full:
        return time_page.summarize(report)
    return overview_page.overview(report, whole=form.whole, as_recorded=form.recorded)


def _page(report: Path, where: _options.Where, form: Form, whole: Report | None = None) -> Shown:
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
