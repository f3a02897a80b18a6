"""Pages of a report, of several of one program, and of two sides: ``kanalyze summarize``, ``compare`` and the like."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze import cli, errors, machinery, outlets, units
from kanalyze.cli import _answers
from kanalyze.cli._answers import Where
from kanalyze.cli._process import PAGES, InputPath, Out, emit, print_message, session, width
from kanalyze.decoder.fields import OTHER

with machinery.late():
    from kanalyze.analyses.comparing import _comparison, _pair
    from kanalyze.analyses.joining import agreement
    from kanalyze.analyses.page import batch_page, file_page, overview_page, time_page
    from kanalyze.analyses.ranges import instances
    from kanalyze.analyses.replay import _changes
    from kanalyze.analyses.work import _configuration
    from kanalyze.decoder import decode
    from kanalyze.readers.capture import read_capture, reports as captures
    from kanalyze.reduction import baselines
    from kanalyze.renderers.formats import json
    from kanalyze.renderers.tables import descriptions, frame, listings
    from kanalyze.several import jobs, sides

if TYPE_CHECKING:
    from kanalyze.analyses.page.overview_page import Summary
    from kanalyze.renderers.page import Shown
    from kanalyze.report import Report
    from kanalyze.several import Asked


@cli.command(
    cli.REPORTS,
    *cli.SCOPE,
    cli.top("Rows in each table of the page; as many as suit it unless told."),
    cli.flag("--full", "All sections, of the whole recording or the window."),
    cli.flag("--whole", "The page of the whole recording, not of what the program repeats."),
    cli.flag("--recorded", "Times as recorded, where a run without the profiler tells others."),
    cli.answering(
        "--schema", "Print the JSON Schema of --format json, and stop.", lambda: json.SCHEMA.read_text(encoding="utf-8")
    ),
    *cli.formats(*PAGES),
)
def summarize(reports: Sequence[Path], where: Where, to: Out, **form: bool) -> None:
    """Show one page that says where the time of each REPORT went, or each report in a folder of them."""
    pages = _pages(reports, where, **form)
    _point_to_ranks(pages, reports)
    to.emit_pages(pages)


def shown(reports: Sequence[Path]) -> None:
    """Print the pages of `reports`, whole, as the command does that is given no option."""
    Out().emit_pages(_pages(reports, Where()))
    _answers.print_doubts(everything=True)


def _point_to_ranks(pages: Sequence[Shown], reports: Sequence[Path]) -> None:
    """Says which command looks at the ranks of one job together, where the reports are of several."""
    command_says = f"`{outlets.command('kanalyze', 'ranks', *reports)}` says who"
    of_time = [page for page in pages if page.kind in ("overview", "time", "joint")]
    if _answers.several_ranks(meta for page in of_time for meta in (page.meta, *page.others)):
        message = f"these are ranks of one job: {command_says} waits for whom, and why."
    elif sum(page.kind == "overview" and page.communicates for page in pages) > 1:
        message = f"if these are ranks of one job, {command_says} waits for whom, and why."
    elif any(page.kind == "overview" and page.waits_for_others for page in pages):
        message = f"GPUs of this report wait for each other: {command_says} for whom, and why."
    else:
        return
    print_message(f"kanalyze: {message}")


def _pages(
    reports: Sequence[Path], where: Where, *, full: bool = False, whole: bool = False, recorded: bool = False
) -> Sequence[Shown]:
    """One page of reports of one program by different tools, or of a capture that has such; else a page for each.

    Where several reports give time, such as those of two captures, each has its page, and the others are on it.
    """

    def make(one: Report) -> Summary:
        return time_page.summarize(one) if full else overview_page.overview(one, whole=whole, as_recorded=recorded)

    reports = _answers.expanded(reports)
    several = len(reports) > 1 or (_answers.folder_at(reports[0]) is not None and captures.several_tools(reports[0]))
    if where.several or not several:
        return _answers.of_each(reports, lambda report: _page(report, where, make))
    opened_reports = _answers.opened_each(reports, where)
    if len({one.meta.tool for one in opened_reports}) == 1 or all(one.meta.timeless for one in opened_reports):
        open_at = {one.meta.path: one for one in opened_reports}
        session().undoubted.clear()  # as long as none is held for that
        opened_reports.clear()  # each goes when its page is made
        return _answers.of_each(reports, lambda report: _page(report, where, make, open_at.pop(report, None)))
    if full:
        pages = time_page.summarize_together(*opened_reports, **where.part)
    else:
        pages = time_page.overviews_together(*opened_reports, whole=whole, as_recorded=recorded, **where.part)
    return [_first_of_runs(page, page.meta.path) for page in pages]


def _first_of_runs(page: Summary, report: Path) -> Summary:
    """The page of a report; where it is the first of several runs, it says so, and what compares them."""
    folder = _answers.folder_at(report)
    if page.kind == "counters" or folder is None or not read_capture.accepts(folder, b""):
        return page
    runs = len(read_capture.reports_in(folder))
    first = f" This is the first of {runs} runs; `kanalyze compare --noise` says how far they are apart."
    return page if runs == 1 else replace(page, answer=f"{page.answer}{first}")


def _page(report: Path, where: Where, make: Callable[[Report], Summary], whole: Report | None = None) -> Shown:
    """The page of a report, of counters or of time, or the comparison of instances where the window names several.

    `whole` is the report where it is open.
    """
    if whole is not None:
        session().undoubted.append(whole)
    parts = _answers.opened_parts(report, where) if whole is None else _answers.parts_of(whole, where)
    page: Shown
    if None not in parts:
        page = instances.compare([*parts.values()])
    elif parts[None].meta.timeless:
        page = time_page.summarize_counters(parts[None])
    else:
        page = _first_of_runs(make(parts[None]), report)
    _answers.print_doubts(everything=True)  # the page looked at all of it
    return page


@cli.command(
    cli.REPORTS,
    cli.flag("--one-host", "All ranks ran on one host: their clocks are one."),
    cli.NO_CACHE,
    cli.top(),
    *cli.formats(*PAGES),
)
def ranks(reports: Sequence[Path], where: Where, to: Out, *, one_host: bool) -> None:
    """Show one page on the ranks of a job, from their traces, from nsys reports, folders of them, or a capture."""
    to.emit_pages([jobs.job(reports, _answers.request(where, one_host=one_host, done=_answers.doubted))])


@cli.command(
    cli.REPORT,
    cli.option(
        "--faster",
        "So many times as fast: kernels by name ('gemm*') or range:RANGE, copies, host (code), host:RANGE, or calls.",
        "WHAT=FACTOR",
        multiple=True,
    ),
    cli.option(
        "--without", "Leave out what takes time.", multiple=True, type=click.Choice(("launch-gaps", "sync", "startup"))
    ),
    cli.flag("--graph", "Launch each sequence that repeats as one CUDA graph."),
    cli.option("--copies", "Bandwidth of copies between host and device, such as 50GB/s.", "RATE"),
    cli.option("--gpu", "Another GPU, such as H200, by what its peaks and bandwidth bring each operator.", "NAME"),
    cli.option(
        "--batch",
        "Another batch size, by the work of operators whose shapes are known, or a law of steps: 2, or 8=2.",
        "SIZE",
    ),
    cli.option("--length", "Another sequence length, likewise: 512, or 1024=512.", "SIZE"),
    cli.option(
        "--dtype",
        "Another type of arithmetic and tensors.",
        type=click.Choice(("fp64", "fp32", "tf32", "bf16", "fp16", "fp8")),
    ),
    cli.flag("--each", "Try single changes, everything twice as fast, by gain."),
    cli.option("--measured", "What the window (an iteration of it) takes without a profiler, such as 1.9ms.", "TIME"),
    cli.UNPROFILED,
    *cli.SCOPE,
    cli.top(),
    *cli.formats(*PAGES),
)
def whatif(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path,
    where: Where,
    to: Out,
    *,
    faster: Sequence[str],
    without: Sequence[str],
    graph: bool,
    copies: str | None,
    each: bool,
    measured: str | None,
    **configured: str | None,
) -> None:
    """Replay REPORT with a change: its operations and calls start anew as soon as what they wait for allows."""
    factors = tuple(_faster(text) for text in faster)
    rate = None if copies is None else units.parse_rate(copies)
    if copies is not None and rate is None:
        raise click.BadParameter(f"{copies!r} is not a bandwidth, such as 50GB/s.", param_hint="--copies")
    took_ns = None if measured is None else units.parse_time_ns(measured)
    if measured is not None and (not took_ns or took_ns < 0):
        raise click.BadParameter(f"{measured!r} is not a time with a unit, such as 1.9ms.", param_hint="--measured")
    changes = _changes.Changes(factors, tuple(dict.fromkeys(without)), graph, rate)
    try:
        config = _configuration.Configuration.of(**configured)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--batch, --length") from error
    pages = []
    for name, part in _answers.opened_parts(report, where).items():
        options = [*changes.options(copies), *([f"--window {name}"] if name else [])]
        pages.append(batch_page.changed(part, changes, options, each=each, measured_ns=took_ns, configuration=config))
    to.emit_pages(pages)


def _faster(text: str) -> tuple[str, float]:
    what, sign, number = text.rpartition("=")
    try:
        factor = float(number)
    except ValueError:
        factor = math.nan
    if not sign or not what or not units.SLOWEST <= factor < math.inf:
        message = f"{text!r} is not WHAT=FACTOR of at least {units.SLOWEST}, such as 'gemm*=2'."
        raise click.BadParameter(message, param_hint="--faster")
    return what, factor


@cli.command(
    cli.Argument(["name"], required=False, shell_complete=cli.complete_findings),
    cli.Argument(["reports"], nargs=-1, type=cli.READ, metavar="[REPORT]..."),
    *cli.SCOPE,
    cli.top("Rows in each table of the page of a REPORT."),
    *cli.formats(*PAGES),
)
def explain(name: str | None, reports: Sequence[Path], where: Where, to: Out) -> None:
    """Explain the finding NAME, a word of a page, or a kernel's name; of a REPORT show what the finding is made of.

    Without a name all findings are listed, a line each.
    """
    if name is None and reports:
        raise click.UsageError("Missing argument 'NAME', before the report: `kanalyze REPORT` names its findings.")
    is_finding = name is not None and name in descriptions.names()
    if is_finding and reports:
        parts = [part for report in reports for part in _answers.opened_parts(report, where).values()]
        to.emit_pages(file_page.evidence(parts, name or ""))
        return
    words = descriptions.meanings(" ".join(map(str, (name, *reports)))) if name and not is_finding else []
    if words:
        to.emit_as(descriptions.WORDS, words, descriptions.meant)
    elif name and not is_finding and not reports and _names_kernel(name):
        to.emit_as(descriptions.NAMES, (name, decode.decode(name)), descriptions.decoded)
    elif name:
        to.emit_as(descriptions.FINDINGS, [_explanation(name)], lambda one, wide: descriptions.explained(one[0], wide))
    else:
        to.emit_as(descriptions.FINDINGS, [*map(_explanation, descriptions.names())], descriptions.headlines)


def _names_kernel(name: str) -> bool:
    """Whether a text is a kernel's name: it tells what the kernel does, or is written as in C++ or Triton."""
    if decode.decode(name).family != OTHER or any(sign in name for sign in "(<"):
        return True
    return "_" in name and errors.nearest(name, [*descriptions.names(), *descriptions.words()]) is None


def _explanation(name: str) -> descriptions.Explanation:
    """The explanation of a finding; an UnknownNameError for what is no word of a page either."""
    words = [*descriptions.words()]
    if errors.nearest(name, descriptions.names()) is None and errors.nearest(name, words) is not None:
        raise errors.UnknownNameError.of("word of a page", name, words)
    return descriptions.explanation(name)


# Two sides of runs, and what several tools tell of one program.

#: The exit status of a gate that does not hold, and the least change that counts, unless told.
_STATUS: Final = {"failed": 1, "cannot judge": 3}
_LEAST: Final = "2%"

#: What an option of runs is like.
_RUNS: Final[dict[str, Any]] = {"multiple": True, "type": cli.READ}


@cli.command(
    cli.Argument(["reports"], nargs=-1, type=cli.READ),
    cli.option("--base", "A run of base.", "RUN", **_RUNS),
    cli.option("--baseline", "What --save wrote, as base.", "FILE", type=InputPath(path_type=Path, dir_okay=False)),
    *cli.SCOPE,
    cli.top(),
    cli.option("--least", "The least change that counts.", "SHARE", default=_LEAST, show_default=True),
    cli.option("--floor", "A run of one program: several tell how much one run a side varies.", "RUN", **_RUNS),
    cli.option("--save", "Reduce REPORTS, runs of base, to a baseline of 0.1 MB.", "FILE.kz", type=cli.WRITTEN),
    cli.flag("--noise", "How much REPORTS, runs of one program, differ."),
    cli.option("--fail-above", "End with 1 if new takes more than that longer, 3 if unsure.", "SHARE"),
    cli.option(
        "--metric", "What the gate measures.", "step|quick|busy|bucket:NAME|kernel:NAME|token:KIND", default="step"
    ),
    cli.option("--allow", "Judge even so: runs, cold, gpu, driver, clocks, tool, …", "KIND", multiple=True),
    *cli.formats(*PAGES, "csv", "junit"),
)
def compare(  # noqa: PLR0913 - a click command has a parameter per option
    reports: Sequence[Path],
    base: Sequence[Path],
    where: Where,
    to: Out,
    baseline: Path | None,
    save: Path | None,
    fail_above: str | None,
    metric: str,
    *,
    noise: bool,
    **limits: Any,  # noqa: ANN401 - as of _asked
) -> None:
    """Compare BASE with NEW: reports, folders of them, captures with --repeat, or baselines.

    Several runs a side, such as `kanalyze collect --repeat 4 --against OTHER` makes, show how sure the answer is.

    Exit status with --fail-above: 0 if new is within the limit, 1 if it is beyond, 3 if that cannot be judged (the page
    has the reason, and the --allow that judges even so), 2 for bad input or use. Of several windows each is judged.
    """
    asked = _asked(where, **limits)
    if save is not None:
        _save([*base, *reports], save, asked)
        return
    if noise:
        to.emit_pages([_comparison.noise_of(sides.runs_of_one_tool([*base, *reports], asked))])
        return
    pair = sides.given(reports, base if baseline is None else [*base, baseline])
    least = ["--least", limits["least"]] if limits["least"] != _LEAST else []
    given = (*least, *(word for run in limits["floor"] for word in ("--floor", str(run))))
    compared = sides.comparisons(*pair, asked, several=where.several)
    comparisons = {name: replace(comparison, options=given) for name, comparison in compared.items()}
    if fail_above is not None:
        limit = units.parse_percent(fail_above)
        if limit is None or not isfinite(limit):
            raise errors.BadThresholdError.of(fail_above, "a share, 0 % or more", "3%", "--fail-above")
        comparisons = {
            name: replace(comparison, gate=_comparison.gate_of(comparison, limit, metric, limits["allow"]))
            for name, comparison in comparisons.items()
        }
    if to.form == "csv":
        to.emit_rows(frame.joined({name: comparison.table("compare") for name, comparison in comparisons.items()}))
    elif to.form == "junit":
        to.emit(json.junit(comparisons).encode())
    else:
        to.emit_pages([*comparisons.values()])
    states = {comparison.gate.state for comparison in comparisons.values() if comparison.gate is not None}
    if worst := next((state for state in ("failed", "cannot judge") if state in states), None):
        raise click.exceptions.Exit(_STATUS[worst])  # which leaves the reports open until their doubts are told


def shown_compared(base: Path, new: Path) -> None:
    """Print the page of two sides, whole, as the command does that is given no option."""
    Out().emit_pages([sides.comparison([base], [new], _asked(Where()))])


def _asked(where: Where, least: str = _LEAST, floor: Sequence[Path] = (), allow: Sequence[str] = ()) -> Asked:
    """How the sides are read and compared."""
    effect = units.parse_percent(least)
    if effect is None or not 0 < effect < 1:
        raise errors.BadThresholdError.of(least, "a share between 0 and 100 %", _LEAST, "--least")
    for kind in allow:
        errors.refuse_unknown("kind of doubt", kind, _comparison.KINDS)
    asked = _answers.request(where, done=_answers.doubted, other_ranks="ranks" in allow)
    noise = _comparison.noise_of(sides.runs_of_one_tool(floor, asked)) if floor else None
    return asked._replace(limits=_pair.Limits(effect, *((noise.floor, noise.rows) if noise else ())))


def _save(reports: Sequence[Path], output: Path, asked: Asked) -> None:
    if output.suffix != baselines.SUFFIX:
        raise errors.OutputError.because(output, f"the name of a baseline ends in {baselines.SUFFIX}")
    runs = [run for some in sides.digests(reports, asked).values() for run in some]
    if not runs:
        raise errors.IncomparableError.empty("base")
    emit(baselines.dumped(runs), output)


@cli.command(
    cli.REPORTS,
    *cli.SCOPE,
    cli.flag("--all every", "Also what is equal."),
    *cli.formats("csv", "json"),
)
def verify(reports: Sequence[Path], where: Where, to: Out, *, every: bool) -> None:
    """Hold REPORTS of one program by different tools, or a capture's folder, against each other.

    Shows what two tools tell differently and why; ends with status 1 where nothing explains it.
    """
    opened = _answers.opened_together(reports, where)
    rows = frame.joined(_answers.per_window(opened, where, lambda at: agreement.agreement(*opened, **at.part)))
    differing = rows if every else rows.filter(rows.get_column("verdict") != "equal")
    if to.form == "terminal":
        to.emit(listings.agreement(rows, differing, width()))
    else:
        to.emit_rows(differing)
    if "unexplained" in rows.get_column("verdict"):
        raise click.exceptions.Exit(_STATUS["failed"])  # as above
