"""Commands on single tables and kernels: ``kanalyze show``, ``sql``, ``plot``, and the source of a kernel."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from kanalyze import cli, machinery, outlets, units
from kanalyze.cli import _answers, _process
from kanalyze.cli._process import FORMATS, Out, print_message, session, width
from kanalyze.errors import BadThresholdError, CannotTellError, OutputError, SqlError, UnknownNameError, refuse_unknown

with machinery.late():
    from kanalyze import catalog
    from kanalyze.analyses.counters import counters
    from kanalyze.analyses.iterations import iterations
    from kanalyze.analyses.joining import joined
    from kanalyze.analyses.operators import tree as trees_of
    from kanalyze.analyses.serving import step_laws
    from kanalyze.analyses.timeline import _tracks
    from kanalyze.readers import request_log
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.formats import charts
    from kanalyze.renderers.page import job
    from kanalyze.renderers.page.kernel_names import short_forms
    from kanalyze.renderers.tables import descriptions, frame as rendered, listings, plots

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.report import Report

#: What is passed on to the table's function as it stands.
_KEYWORDS: Final = ("by", "trace", "graphs", "as_nsys", "as_torch", "segments", "chunks", "log")

#: The environment variables that limit a statement, in seconds and GiB beside its tables, and what they are unless set.
_SECONDS: Final = ("KANALYZE_SQL_SECONDS", 60)
_GIB: Final = ("KANALYZE_SQL_GIB", 4)

#: Kernels of one part of a name that are named.
_MATCHES: Final = 8


@cli.command(
    cli.TABLE,
    cli.Argument(["reports"], nargs=-1, type=cli.READ),
    *cli.SCOPE,
    cli.option("--by", "Group it differently; `kanalyze show TABLE` says how.", "GROUPING"),
    # of some tables alone
    cli.flag("--trace", "A row per instance (range_gpu).", default=None),
    cli.flag("--graphs", "Count graphs that were traced whole, too (range_gpu).", default=None),
    cli.flag("--as-nsys", "Count as nsys itself does (utilisation).", default=None),
    cli.flag("--as-torch", "Every row of torch's own table (ops).", default=None),
    cli.flag("--segments", "Each stretch by itself (critical_path).", default=None),
    cli.option("--log", "What a client wrote of its requests (requests).", "FILE", type=cli.READ),
    cli.option("--chunks", "So many parts of the window (utilisation).", "N", type=click.IntRange(min=1)),
    cli.option("--threshold", "A time such as 10us (gaps), or a share such as 50% (utilisation).", "LEAST"),
    cli.option("--columns", "These columns, in this order; all: also those that do not fit.", "A,B|all"),
    cli.option("--sort", "Sort by a column; -COLUMN is descending. Missing values come last.", "COLUMN"),
    cli.option("--one", "A collective as a timeline of its ranks.", "ID", type=click.IntRange(0, (1 << 63) - 1)),
    cli.option("--depth", "Of the tree: at most so many nodes below each other.", "N", type=cli.COUNT),
    cli.option("--min-share", "Of the tree: leave out what takes less; 1% unless told.", "SHARE"),
    cli.UNPROFILED,
    cli.top("Only the first N rows: of each report, or with --sort of all."),
    *cli.formats(*FORMATS),
)
def show(  # noqa: PLR0913 - a click command has a parameter per option
    table: str | None,
    reports: Sequence[Path],
    where: _answers.Where,
    to: Out,
    columns: str | None,
    sort: str | None,
    threshold: str | None,
    one: int | None,
    **options: Any,  # noqa: ANN401 - each has its own type
) -> None:
    """Show TABLE of REPORTS, all rows; without REPORTS its columns, with units and meaning; alone, list the tables.

    A terminal shows the columns that fit its width, and TABLE `tree` as a tree; other formats have all. TABLE may also
    be `source`: `kanalyze show source REPORT KERNEL --help`.

    Of several reports, or a folder of them, most tables have a first column that names the report; of what `collect`
    wrote they are of the first report that has them. Some, `joined` first of all, join reports of several tools.
    """
    _refuse_terminal(to)
    if table is None and reports:
        raise click.UsageError("Missing argument 'TABLE', before the report. `kanalyze show` lists the tables.")
    if table is None or not reports:
        _describe(table, to)
        return
    declared = catalog.table(table)
    depth, min_share = (options.pop(name) for name in ("depth", "min_share"))
    if declared is trees_of.TABLE and to.form == "terminal" and not any((columns, sort, to.top)):
        _print_trees(reports, where, to, options["by"], depth, min_share)
        return
    if depth is not None or min_share is not None:
        raise click.UsageError("--depth and --min-share are for `show tree` as a tree.")
    rows = _answers.rows_of(reports, declared, where, _keywords(options, threshold, declared.options))
    if rows.is_empty() and declared.no_rows:
        print_message(f"kanalyze: {table} has no rows: {declared.no_rows}.")
    if one is not None:
        _emit_one(rows, one, to)
        return
    first = (*([sort.removeprefix("-")] if sort else []), *catalog.telling(table, rows))
    each = rendered.REPORT if rendered.REPORT in {*rows.columns} - declared.schema.keys() else None
    rows = rendered.chosen(rendered.arranged(rows, sort, to.top, each), columns)
    if to.form == "terminal":
        every = columns is not None and columns.strip() == rendered.ALL
        choice = rendered.Choice(first, "--columns all, or a,b,…", every, columns is not None and not every)
        to.emit(rendered.terminal(rows, width(), choice))
    else:
        to.emit_rows(rows)


def _refuse_terminal(to: Out) -> None:
    """Refuses, by an OutputError, to print what is no text."""
    if to.form == "parquet" and to.output is None:
        raise OutputError.needs_file(to.form)


def _emit_one(rows: pl.DataFrame, one: int, to: Out) -> None:
    """Prints the ranks of a collective."""
    if "last_rank" not in rows.columns:
        raise UnknownNameError.of("option", "--one", ["kanalyze show collectives REPORT… --one ID"])
    ids = rows.get_column("id")
    chosen = rows.filter(ids == one)
    if chosen.is_empty():
        numbers = ids.drop_nulls().unique().sort().to_list()
        raise UnknownNameError.of("collective", one, [f"{numbers[0]} to {numbers[-1]}"] if numbers else [])
    to.emit(job.collective(chosen, width()))


def _keywords(options: dict[str, Any], text: str | None, accepted: Sequence[str]) -> dict[str, object]:
    """What the table's function takes: the options that are given, and the threshold by the keyword that it accepts."""
    keywords = {name: options[name] for name in _KEYWORDS if options[name] is not None}
    if (log := keywords.get("log")) is not None:
        keywords["log"] = request_log.read_requests(log)
    if text is None:
        return keywords
    if "threshold_share" in accepted:
        keyword, value, what, example = "threshold_share", units.parse_percent(text), "a share", "50%"
    else:
        keyword, value, what, example = "threshold_ns", units.parse_time_ns(text), "a time", "10us"
    if value is None and keyword in accepted:
        raise BadThresholdError.of(text, what, example)
    return keywords | {keyword: value}


@cli.command(cli.REPORTS, cli.Argument(["statement"]), *cli.SCOPE, *cli.formats(*FORMATS))
def sql(reports: Sequence[Path], statement: str, where: _answers.Where, to: Out) -> None:
    """Answer STATEMENT, in SQL, over the tables of REPORTS.

    Tables have the names and columns that `kanalyze show` lists; those that the statement names are made. Of several
    reports each has the rows of all, and a first column `report`. The SQL is that of polars; docs/sql.md has examples.
    """
    from polars.exceptions import PolarsError  # noqa: PLC0415 - --help need not import polars

    _refuse_terminal(to)
    opened = session()
    opened.holds = True
    bounded = _bounded if _process.apart() else nullcontext
    rows = catalog.answer(statement, lambda name: _answers.rows_of(reports, catalog.table(name), where), bounded)
    for origin in opened.origins.values():
        print_message(outlets.line(f"kanalyze: {origin}"))
    if to.form == "terminal":
        to.emit(rendered.terminal(rows, width(), rendered.Choice(tuple(rows.columns), "--format csv has all")))
        return
    try:
        to.emit_rows(rows)
    except PolarsError as error:  # lists, which CSV cannot hold
        raise catalog.refused(error) from error


@contextmanager
def _bounded() -> Iterator[None]:
    """Lets a statement open neither files nor sockets in here, and ends this process where it takes too much."""
    import resource  # noqa: PLC0415 - there is none on Windows

    seconds, gib = _limit(*_SECONDS), _limit(*_GIB)
    limits = {resource.RLIMIT_NOFILE: 0}
    fewer = "Ask for fewer rows, with WHERE or a condition of each JOIN"
    reasons: dict[int, tuple[str, str]] = {
        signal.SIGALRM: (f"it takes more than {seconds:g} s", f"{fewer}; {_SECONDS[0]}={seconds * 10:g} allows more."),
        signal.SIGSEGV: ("it is nested too deeply", "Take fewer parts, or a list: `x IN (…)`."),
    }
    if not _process.limits_of_process():
        limits[resource.RLIMIT_DATA] = _process.taken_bytes().get("RLIMIT_DATA", 0) + int(gib * 2**30)
        more = f"it takes more than {gib:g} GiB of memory beside its tables"
        reasons[signal.SIGABRT] = (more, f"{fewer}; {_GIB[0]}={gib * 2:g} allows more.")
    before = {kind: resource.getrlimit(kind) for kind in limits}
    with _process.noted(reasons):
        for kind, limit in limits.items():
            hard = before[kind][1]
            resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for kind, both in before.items():
                resource.setrlimit(kind, both)


def _limit(name: str, usual: float) -> float:
    """The limit that an environment variable sets, or the usual one."""
    text = os.environ.get(name, "") or str(usual)
    try:
        limit = float(text)
    except ValueError:
        limit = 0
    if not 0 < limit < 1e6:  # noqa: PLR2004 - ten days, a million GiB
        raise SqlError.of(f"{name} is {text!r}, no number above 0 and below 1,000,000", f"Set {name}={usual}, or more.")
    return limit


def _describe(table: str | None, to: Out) -> None:
    """The columns of a table, or of all; for a terminal, of all a line each."""
    if to.form == "terminal" and table is None:
        listed = {subject: [catalog.table(name) for name in names] for subject, names in catalog.subjects().items()}
        to.emit(descriptions.listing(listed, width()))
        return
    described = [(catalog.table(name), catalog.forms(name)) for name in ([table] if table else catalog.every_name())]
    if to.form not in ("terminal", *descriptions.TABLES):
        raise click.UsageError(f"--format {to.form} is of rows: give a report.")
    to.emit_as(descriptions.TABLES, described, descriptions.terminal)


@cli.command(
    cli.REPORTS,
    cli.Argument(["picture"], type=click.Choice(cli.PICTURES)),
    *cli.SCOPE,
    cli.option("--kernel", "durations: of the longest kernel with this in its name.", "TEXT"),
    cli.output("A file that ends in .svg, .png or .pdf.", required=True),
)
def plot(reports: Sequence[Path], picture: str, kernel: str | None, where: _answers.Where, to: Out) -> None:
    """Draw a PICTURE of REPORTS.

    ledger: where the time of each GPU went. timeline: what ran when, of a window. steps: the ledger of each iteration.
    durations: how long the launches of one kernel took. laws: what steps of a serving engine take by their tokens.
    roofline: kernels that ncu measured under their roofs. ranks: the steps of a job's ranks, and who was late. compare:
    from the first report to the second, bucket by bucket.
    """
    form = to.output.suffix.removeprefix(".") if to.output else ""
    refuse_unknown("kind of picture", form, plots.FORMATS)
    if picture in ("timeline", "steps", "durations", "laws") and len(reports) > 1:
        raise click.UsageError(f"{picture} is of one report.")
    if draw := {"ledger": plots.ledger, "compare": plots.waterfall, "ranks": plots.ranks}.get(picture):
        drawn = draw(_answers.rows_of(reports, catalog.table(picture), where), form)
    elif picture == "durations":
        drawn = plots.durations(*_durations(reports[0], where, kernel), form)
    elif picture == "steps":
        drawn = plots.steps(_iterations(reports[0], where), form)
    elif picture == "roofline":
        points = joined.roof_points(_answers.opened_together(_answers.expanded(reports), where))
        chart = charts.roofline_chart(points, listed=12)
        drawn = plots.roofline(chart | {"title": f"Roofline of {points.title}"}, form)
    elif picture == "laws":
        drawn = plots.laws(step_laws.law_points(_answers.opened_part(reports[0], where, picture)), form)
    else:  # so many events in print, single ones and sums
        drawn = plots.timeline(_tracks.timeline(_answers.opened_part(reports[0], where, picture), 6000), form)
    to.emit(drawn)


def _iterations(report: Path, where: _answers.Where) -> pl.DataFrame:
    import polars as pl  # noqa: PLC0415 - --help need not import polars

    each = pl.concat(_answers.answered(report, iterations.TABLE, where, iterations.iteration_ledgers).values())
    if each.is_empty():
        raise CannotTellError(
            f"{report}: cannot tell steps, because nothing in it repeats.",
            "Mark the program's steps by NVTX ranges or torch.profiler, or draw the ledger.",
        )
    return each


def _durations(report: Path, where: _answers.Where, kernel: str | None) -> tuple[str, pl.Series]:
    """The kernel that took longest, of those with a text in their names, and the durations of its launches."""
    import polars as pl  # noqa: PLC0415 - --help need not import polars

    rows = _answers.rows_of([report], catalog.table("events"), where).filter(pl.col("kind") == "kernel")
    launches = rows.select(pl.col("name").cast(pl.String), "dur_ns").drop_nulls()
    sums = launches.group_by("name").agg(pl.col("dur_ns").sum()).sort("dur_ns", "name", descending=[True, False])
    if kernel is not None:
        names = sums.get_column("name").to_list()
        sums = sums.filter(pl.col("name").str.to_lowercase().str.contains(kernel.lower(), literal=True))
        if sums.is_empty():
            raise UnknownNameError.of("kernel", kernel, names)
    if sums.is_empty():
        raise CannotTellError.without("durations", report, ["kernel"])
    longest = sums.item(0, "name")
    return longest, launches.filter(pl.col("name") == longest).get_column("dur_ns")


# What launched kernels, what they are made of, and their limits.

_REMEDY: Final = (
    "Compile it with -lineinfo (nvcc), record it with `ncu --set full --import-source yes`, and give the .ncu-rep "
    "file, since pages have no lines; or ask for --sass."
)


def _print_trees(  # noqa: PLR0913 - as of the command
    reports: Sequence[Path], where: _answers.Where, to: Out, by: str | None, depth: int | None, min_share: str | None
) -> None:
    """Draws the call tree of each report and window."""
    share = trees_of.MIN_SHARE if min_share is None else units.parse_percent(min_share)
    if share is None:
        raise click.BadParameter(f"{min_share!r} is not a share, such as 1%.", param_hint="--min-share")

    def made(part: Report) -> tuple[pl.DataFrame, str]:
        return trees_of.tree(part, by=by, depth=depth, min_share=share), trees_of.default_order(part)

    paths, trees = _answers.different(_answers.expanded(reports)), {}
    for path, each in _answers.of_each(paths, lambda at: (at, _answers.answered(at, trees_of.TABLE, where, made))):
        for name, one in each.items():
            trees[name if len(paths) == 1 else " ".join(filter(None, (str(path), name)))] = one
    texts = [listings.call_tree(nodes, by or order, to.look(), name or "") for name, (nodes, order) in trees.items()]
    to.emit("\n".join(texts))


@cli.command(
    cli.REPORT,
    cli.Argument(["kernel"]),
    cli.option("--sass view", "The GPU's assembly.", flag_value="sass"),
    cli.option("--ptx view", "The PTX that each instruction was made of.", flag_value="ptx"),
    *cli.formats("json"),
)
def source(report: Path, kernel: str, view: str | None, to: Out) -> None:
    """Show the source of KERNEL in REPORT, a report of ncu, with samples, instructions and coalescing by line.

    Of a folder that `kanalyze collect` wrote, REPORT is what ncu wrote there. KERNEL is a number of the table
    `counters` or a part of a name; of several such kernels the longest is shown, and all are named.
    """
    opened = _answers.closed_at_end(captures.counters_at(report))
    event_id, name = _chosen(opened, kernel)
    rows = opened.table("instructions") if view else counters.hot_lines(opened).drop_nulls("line")
    rows = rows.filter(rows.get_column("event_id") == event_id)
    if rows.is_empty() or (view == "ptx" and rows.get_column("ptx").null_count() == rows.height):
        raise CannotTellError.without_source(report, view.upper() if view else "source lines of this kernel", _REMEDY)
    if to.form == "json":
        to.emit(outlets.json({"kernel": name, "rows": rows.to_dicts()}))
    elif view:
        to.emit(listings.instructions(name, rows, view, to.look()))
    else:
        texts = {file: text.split("\n") for file, text in opened.table("source_files").iter_rows()}
        to.emit(listings.source_lines(name, rows, texts, to.look()))


def _chosen(report: Report, kernel: str) -> tuple[int, str]:
    """The kernel that is meant: its event_id and name."""
    table = counters.counters(report).select("event_id", "name", "dur_ns")
    rows = [(number, name or "", duration or 0) for number, name, duration in table.iter_rows()]
    part = kernel.casefold()
    meant = [row for row in rows if str(row[0]) == kernel] or [row for row in rows if part in row[1].casefold()]
    if not meant:
        raise UnknownNameError.of("kernel", kernel, dict.fromkeys(name for _, name, _ in rows))
    meant.sort(key=lambda row: (-row[2], row[0]))
    if len(meant) > 1:
        short = short_forms((name for _, name, _ in meant), width=60)
        named = "; ".join(f"{number} {short[name]} {units.time(ns)}" for number, name, ns in meant[:_MATCHES])
        more = f"; and {len(meant) - _MATCHES} more" if len(meant) > _MATCHES else ""
        print_message(outlets.line(f"kanalyze: {len(meant)} kernels match, the first is shown: {named}{more}."))
    return meant[0][:2]
