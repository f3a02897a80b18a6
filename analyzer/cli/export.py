"""``kanalyze export``, ``html``, ``reduce`` and ``redact``: reports as other files."""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from kanalyze import cli, outlets, units
from kanalyze.cli import _answers, _process
from kanalyze.cli._answers import Where
from kanalyze.errors import CannotTellError, OutputError
from kanalyze.machinery import late, processors

with late():
    from kanalyze import catalog, redact as redaction
    from kanalyze.analyses.page import file_page
    from kanalyze.analyses.timeline import _slices as slices
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.formats import document, exports
    from kanalyze.several import jobs, reducing, sides

#: Forms that are a folder of tables, and those that are a file of one report.
_TABLES: Final = ("parquet", "arrow", "csv")
_TRACES: Final = ("perfetto", "speedscope")

#: Events that the timeline of an HTML file draws one by one or in sums.
_EVENTS = 600_000


@cli.command(
    cli.REPORTS,
    *cli.SCOPE,
    cli.option("--to form", "What is written.", type=click.Choice([*_TABLES, *_TRACES]), required=True),
    cli.option("--tables", "These tables alone (parquet, arrow, csv); without it all that the reports give.", "A,B"),
    cli.output(
        "A file, or for tables a folder that is not there yet; all of it is written, or nothing.",
        type=_process.OutputPath(path_type=Path),
        required=True,
        metavar="PLACE",
    ),
)
def export(reports: Sequence[Path], where: Where, to: _process.Out, tables: str | None) -> None:
    """Write REPORTS as files of other programs.

    parquet, arrow, csv: a folder with a file for each table, named as `kanalyze show` lists them, and `tables.json`
    with units, meanings, and the reason for each table that the reports cannot give.

    perfetto: a trace for https://ui.perfetto.dev, of one report, or of the ranks of one job on one clock.

    speedscope: the same for https://www.speedscope.app, with the stacks of each host thread and stream.
    """
    assert to.output is not None, "it is required"  # noqa: S101 - by click
    if to.form not in _TRACES:
        _write_tables(reports, where, to.form, tables, to.output)
    elif tables is None:
        _write_trace(reports, where, to.form, to.output)
    else:
        raise click.UsageError(f"--tables is for {', '.join(_TABLES)}.")


def _write_tables(reports: Sequence[Path], where: Where, form: str, named: str | None, output: Path) -> None:
    """Writes a folder of tables: those that are `named`, or all that the reports give."""
    opened = _process.session()
    opened.holds, opened.quiet = True, named is None
    written, missing = dict[str, object](), dict[str, str]()
    names = [name.strip() for name in named.split(",") if name.strip()] if named is not None else catalog.names()
    chosen = [catalog.table(name) for name in dict.fromkeys(names)]
    with _process.emit_folder(output) as folder:
        for table in chosen:
            try:
                frame = _answers.rows_of(reports, table, where)
            except CannotTellError as error:
                if named is not None:
                    raise
                missing[table.name] = str(error)
                continue
            forms, origin = [table, *catalog.forms(table.name)], opened.origins.get(table.name, "")
            file = folder / f"{table.name}.{form}"
            written[table.name] = exports.write_table(form, forms, frame, file, origin)
        (folder / exports.CONTENTS).write_bytes(exports.contents([*map(str, reports)], written, missing))
    lines = [f"not of the first report: {', '.join(opened.origins)}."] if opened.origins else []
    if missing:
        lines.append(f"cannot tell, for the reasons in {output / exports.CONTENTS}: {', '.join(missing)}.")
    lines += [f"left out of {report}: {', '.join(tables)}." for report, tables in opened.left_out.items()]
    for line in (*lines, f"{units.plural(len(chosen) - len(missing), 'table')} in {output}."):
        _process.print_message(outlets.line(f"kanalyze: {line}"))


def _write_trace(reports: Sequence[Path], where: Where, form: str, output: Path) -> None:
    """Writes all events of a report, or of the ranks of a job, as slices on tracks."""
    trace = _slices(reports, where)
    if form == "perfetto":
        _process.emit_file(lambda file: exports.write_perfetto(trace, file), output)
    else:
        name = Path(os.path.realpath(reports[0])).name
        _process.emit_file(lambda file: exports.write_speedscope(trace, file, name), output)
    further = sum(track.lane > 0 for track in trace.tracks)
    overlaps = f", {further} of them for what overlaps" if further else ""
    events = trace.slices.height - trace.slices.get_column("event_id").null_count()
    written = f"{units.plural(events, 'event')} on {units.plural(len(trace.tracks), 'track')}{overlaps}, in {output}."
    _process.print_message(outlets.line(f"kanalyze: {written}"))


def _slices(reports: Sequence[Path], where: Where) -> "slices.Slices":
    if (count := len(_answers.expanded(reports))) == 1:
        return slices.slices(_answers.opened_part(reports[0], where, "a trace"))
    where.refuse_part("the ranks of a job are written whole; give one of their reports for a part of it.")
    trace = jobs.slices_of_job(reports, _answers.request(where))
    if trace is None:
        raise click.UsageError("no report names its rank: give one report, or those of the ranks of one job.")
    if count > (ranks := len({track.rank for track in trace.tracks})):
        written = f"of {units.plural(count, 'report')} those of {units.plural(ranks, 'rank')}, the first of each"
        _process.print_message(f"kanalyze: {written}; the others are left out.")
    return trace


@cli.command(
    cli.REPORTS,
    cli.option("--base", "A run of the side to compare with.", "RUN", multiple=True, type=cli.READ),
    *cli.SCOPE,
    cli.output("The file; the report's name with .html unless told."),
    cli.flag("--open opens", "Show it in the browser."),
    small=False,
)
def html(reports: Sequence[Path], base: Sequence[Path], where: Where, to: _process.Out, *, opens: bool) -> None:
    """Write one HTML file of REPORTS of one program: page, timeline, tables; it opens anywhere, without network.

    With --base, or of a folder of `collect --against`, it is of the comparison of two sides.
    """
    target = to.output or Path(f"{Path(os.path.realpath(reports[0])).name.split('.')[0]}.html")
    _process.refuse_overwriting(target)
    if base or (len(reports) == 1 and captures.sides_in(reports[0]) is not None):
        asked, pair = _answers.request(where, done=_answers.doubted), sides.given(reports, base)
        page: file_page.FilePage = sides.file_page_of_sides(*pair, asked, _EVENTS)
    else:
        page = _file_page(reports, where)
    _process.emit(document.document(page).encode(), target)
    _answers.print_doubts(everything=True)
    size = units.size(target.stat().st_size)
    _process.print_message(f"kanalyze: {outlets.line(str(target))}, {size}; open it in any browser.")
    if opens:
        click.launch(str(target))


def _file_page(reports: Sequence[Path], where: Where) -> "file_page.FilePage":
    """The content: of the ranks of one job together, else of the report that gives the time."""
    opened = _answers.opened_each(_answers.expanded(reports), where)
    if _answers.several_ranks(report.meta for report in opened) or (len(opened) > 1 and jobs.of_ranks(opened)):
        where.refuse_part("the ranks of a job are shown whole; give one of their reports for a part of it.")
        return jobs.file_page_of_job(jobs.reports_of_one_tool(opened), _answers.request(where), _EVENTS)
    opened = [*_answers.without_captures(opened)]
    timed = next((one for one in opened if not one.meta.timeless), opened[0])
    if where.several and len(parts := _answers.parts_of(timed, where)) > 1:
        return file_page.instances_page([*parts.values()], _EVENTS)
    pages = file_page.file_pages(*opened, most=_EVENTS, **where.part)
    if len(pages) > 1:
        names = ", ".join(outlets.line(page.metas[0].path.name) for page in pages)
        message = f"{len(pages)} reports have a time of their own ({names}): give one of them, and what belongs to it."
        raise click.UsageError(message)
    return pages[0]


@cli.command(
    cli.Argument(["reports"], nargs=-1, required=True, type=_process.InputPath()),
    cli.option(
        "-o --output out", "The folder of the reductions; may exist.", "DIR", type=_process.OutputPath(), required=True
    ),
    cli.option(
        "-j --jobs",
        "So many reports at once; as many as there are processors and memory unless told.",
        "N",
        type=cli.COUNT,
    ),
    cli.option("--dask", "Let the workers of a dask scheduler do it, such as tcp://host:8786.", "ADDRESS"),
    small=False,
)
def reduce(reports: Sequence[str], out: str, jobs: int | None, dask: str | None) -> None:
    """Keep what `kanalyze ranks` needs of REPORTS in DIR: traces, nsys reports, folders of them, captures.

    A report that DIR has already is not read again, unless it changed. One that cannot be read is named, the others are
    reduced, and the exit status is 1. `kanalyze ranks DIR` makes the page of all that is in DIR, whoever put it there.
    """
    if reducing.is_address(out):
        raise OutputError.because(Path(out), "an address on an object store; what is in a folder can be copied there")

    def shown(done: int, every: int) -> None:
        if _process.stderr_is_terminal():
            _process.print_message(f"\r{done:,} of {units.plural(every, 'report')} reduced", newline=done == every)

    with ExitStack() as at_end:
        if dask is not None:
            engine = at_end.enter_context(reducing.by_dask(dask))
        else:
            most = jobs or min(processors(), _process.most_at_once(reports))
            engine = reducing.by_processes(1 if _process.limits_of_process() else most)
        ended = reducing.reduce_reports(reports, Path(out), engine, progress=shown, left_out=_answers.print_left_out)
    parts = [f"{units.plural(len(ended.made), 'report')} reduced"]
    parts += [f"{len(ended.there):,} there already"] if ended.there else []
    parts += [f"{len(ended.left_out):,} left out"] if ended.left_out else []
    _process.emit(f"{', '.join(parts)}. The page of all: {outlets.command('kanalyze', 'ranks', ended.out)}\n")
    if ended.left_out:
        raise click.exceptions.Exit(1)


@cli.command(
    cli.REPORT,
    cli.output("The copy; it must not exist yet.", type=click.Path(path_type=Path), metavar="OUT"),
    cli.option("--keep", "Leave TEXT, although it looks like a name of yours.", "TEXT", multiple=True),
    cli.option("--remove", "Take out TEXT too, such as the name of a project.", "TEXT", multiple=True),
    cli.flag("--source", "Leave what stands in the lines of the program."),
    cli.flag("--check", "Only say what would be taken out."),
    small=False,
)
def redact(  # noqa: PLR0913 - a click command has a parameter per option
    report: Path, to: _process.Out, *, keep: Sequence[str], remove: Sequence[str], source: bool, check: bool
) -> None:
    """Copy REPORT without what identifies its machine and user, and say what was taken out.

    REPORT is an nsys export (.sqlite), a trace of torch.profiler, a report or page of ncu, or a capture's folder.
    """
    if (to.output is None) is not check:
        raise click.UsageError("Give either -o OUT or --check.")
    gone = redaction.redact(report, to.output, keep=keep, remove=remove, source=source)
    head = f"{report}: would be taken out:" if check else f"{to.output}: written. Taken out:"
    counts = {what: units.count(number) for what, number in gone.counts.most_common()}
    wide = max(map(len, counts.values()), default=0)
    lines = [f"  {number:>{wide}}  {what}" for what, number in counts.items()] or ["  nothing"]
    left_out = [f"left out: {name}, {why}" for name, why in gone.left_out.items()]
    advice = "Names of kernels, ranges and files stay: look at it before you show it; --remove takes out more."
    _process.emit("".join(f"{outlets.line(line)}\n" for line in (head, *lines, *left_out, *gone.notes, advice)))
