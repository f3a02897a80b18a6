"""``kanalyze export``: reports as files of other programs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final, Unpack

import click

from kanalyze import outlets
from kanalyze.cli import _complete, _options
from kanalyze.cli._answers import Opened, expanded, rows_of
from kanalyze.cli._in_parts import large, written
from kanalyze.cli._late import late
from kanalyze.cli._output import OutputPath, emit_file, emit_folder, print_message
from kanalyze.errors import CannotTellError
from kanalyze.units import plural

with late():
    from kanalyze import catalog
    from kanalyze.analyses.slices import slices
    from kanalyze.renderers.exports import traces, typed
    from kanalyze.several import pictures

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.analyses.slices.slices import Slices

#: Forms that are a folder of tables, and those that are a file of one report.
_TABLES: Final = ("parquet", "arrow", "csv")
_TRACES: Final = ("perfetto", "speedscope")


@click.command()
@_options.reports_argument
@_options.scope
@click.option("--to", "form", type=click.Choice([*_TABLES, *_TRACES]), required=True, help="What is written.")
@click.option(
    "--tables",
    metavar="A,B",
    shell_complete=_complete.tables,
    help="These tables alone (parquet, arrow, csv); without it all that the reports give.",
)
@click.option(
    "-o",
    "--output",
    type=OutputPath(path_type=Path),
    required=True,
    metavar="PLACE",
    help="A file, or for tables a folder that is not there yet; all of it is written, or nothing.",
)
@_options.in_one_thread_if_small
def export(
    reports: Sequence[Path],
    form: str,
    tables: str | None,
    output: Path,
    **where: Unpack[_options.Where],
) -> None:
    """Write REPORTS as files of other programs.

    parquet, arrow, csv: a folder with a file for each table, named as `kanalyze tables` lists them, and `tables.json`
    with units, meanings, and the reason for each table that the reports cannot give.

    perfetto: a trace for https://ui.perfetto.dev, of one report, or of the ranks of one job on one clock.

    speedscope: the same for https://www.speedscope.app, with the stacks of each host thread and stream.
    """
    if form in _TRACES:
        if tables is not None:
            raise click.UsageError(f"--tables is for {', '.join(_TABLES)}.")
        _write_trace(reports, where, form, output)
        return
    _write_tables(reports, where, form, tables, output)


def _write_tables(reports: Sequence[Path], where: _options.Where, form: str, named: str | None, output: Path) -> None:
    """Writes a folder of tables: those that are `named`, or all that the reports give."""
    opened = Opened(quiet=named is None)
    contents, missing = typed.Contents([str(report) for report in reports]), dict[str, str]()
    names = [name.strip() for name in named.split(",") if name.strip()] if named is not None else catalog.names()
    chosen = [catalog.table(name) for name in dict.fromkeys(names)]
    with emit_folder(output) as folder:
        for table in chosen:
            file, rows = f"{table.name}.{form}", None
            try:
                if large(reports, table, where):
                    with (folder / file).open("wb") as parts:
                        rows = written(reports, table, where, form, parts, opened)
                frame = rows_of(reports, table, where, opened=opened) if rows is None else table.empty()
            except CannotTellError as error:
                if named is not None:
                    raise
                (folder / file).unlink(missing_ok=True)
                missing[table.name] = str(error)
                continue
            made = typed.Exported([table, *catalog.forms(table.name)], frame, opened.origins.get(table.name, ""))
            if rows is None:
                typed.WRITERS[form](made, folder / file)
            contents.add(made, file, rows)
        (folder / typed.CONTENTS).write_bytes(contents.render(missing))
    _say(len(chosen) - len(missing), missing, opened, output / typed.CONTENTS)


def _slices(reports: Sequence[Path], where: _options.Where) -> Slices:
    if (given := len(expanded(reports))) > 1:
        _options.refuse_part(where, "the ranks of a job are written whole; give one of their reports for a part of it.")
        found = pictures.slices_of_job(reports, _options.asked_of_job(where))
        if found is None:
            message = "no report names its rank: give one report, or those of the ranks of one job."
            raise click.UsageError(message)
        if given > (ranks := len({track.rank for track in found.tracks})):
            told = f"of {plural(given, 'report')} those of {plural(ranks, 'rank')}, the first of each"
            print_message(f"kanalyze: {told}; the others are left out.")
        return found
    whole = _options.opened(reports[0], where)
    return slices.slices(whole.narrow(**_options.part(where)))


def _write_trace(reports: Sequence[Path], where: _options.Where, form: str, output: Path) -> None:
    """Writes all events of a report, or of the ranks of a job, as slices on tracks."""
    found = _slices(reports, where)
    name = Path(os.path.realpath(reports[0])).name
    emit_file(
        lambda file: (
            traces.write_perfetto(found, file) if form == "perfetto" else traces.write_speedscope(found, file, name)
        ),
        output,
    )
    further = sum(track.lane > 0 for track in found.tracks)
    overlaps = f", {further} of them for what overlaps" if further else ""
    events = found.slices.height - found.slices.get_column("event_id").null_count()
    told = f"{plural(events, 'event')} on {plural(len(found.tracks), 'track')}{overlaps}, in {output}."
    print_message(outlets.line(f"kanalyze: {told}"))


def _say(written: int, missing: dict[str, str], opened: Opened, contents: Path) -> None:
    """Says what was written, and what could not be given."""
    if opened.origins:
        print_message(outlets.line(f"kanalyze: not of the first report: {', '.join(opened.origins)}."))
    if missing:
        print_message(outlets.line(f"kanalyze: cannot tell, for the reasons in {contents}: {', '.join(missing)}."))
    for report, names in opened.left_out.items():
        print_message(outlets.line(f"kanalyze: left out of {report}: {', '.join(names)}."))
    print_message(outlets.line(f"kanalyze: {plural(written, 'table')} in {contents.parent}."))
