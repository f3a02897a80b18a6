"""``kanalyze show``: one table in full."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from kanalyze.cli import _complete, _options
from kanalyze.cli._answers import rows_of
from kanalyze.cli._in_parts import emitted
from kanalyze.cli._late import late
from kanalyze.cli._output import emit, emit_rows, width
from kanalyze.errors import BadThresholdError, OutputError, UnknownNameError
from kanalyze.units import parse_percent, parse_time_ns

with late():
    from kanalyze import catalog
    from kanalyze.renderers.page import job
    from kanalyze.renderers.tables import fitted
    from kanalyze.renderers.tables import frame as rendered

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl


#: How to see the columns that do not fit.
_HOW = "--columns all, or a,b,…"

#: The first column of the table of several reports.
_REPORT = "report"

#: What is passed on to the table's function as it stands.
_KEYWORDS = ("by", "trace", "graphs", "as_nsys", "as_torch", "segments", "chunks")


@click.command()
@click.argument("table", shell_complete=_complete.tables)
@_options.reports_argument
@_options.scope
@click.option(
    "--by",
    metavar="GROUPING",
    shell_complete=_complete.groupings,
    help="Group it differently; `kanalyze tables TABLE` says how.",
)
@click.option("--trace", is_flag=True, default=None, help="A row per instance (range_gpu).")
@click.option("--graphs", is_flag=True, default=None, help="Count graphs that were traced whole, too (range_gpu).")
@click.option("--as-nsys", is_flag=True, default=None, help="Count as nsys itself does (utilisation).")
@click.option("--as-torch", is_flag=True, default=None, help="Every row of torch's own table (ops).")
@click.option("--segments", is_flag=True, default=None, help="Each stretch by itself (critical_path).")
@click.option("--chunks", type=click.IntRange(min=1), metavar="N", help="So many parts of the window (utilisation).")
@click.option("--threshold", metavar="LEAST", help="A time such as 10us (gaps), or a share such as 50% (utilisation).")
@click.option(
    "--columns",
    metavar="A,B|all",
    shell_complete=_complete.columns,
    help="These columns, in this order; all: also those that do not fit.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    shell_complete=_complete.sorted_columns,
    help="Sort by a column; -COLUMN is descending. Missing values come last.",
)
@click.option("--one", type=_options.NUMBER, metavar="ID", help="A collective as a timeline of its ranks.")
@_options.without_profiler
@_options.top(None, "Only the first N rows: of each report, or with --sort of all.")
@_options.formats("csv", "json", "parquet")
@_options.no_formulas
@_options.output
@_options.in_one_thread_if_small
def show(  # noqa: PLR0913 - a click command has a parameter per option
    table: str,
    reports: Sequence[Path],
    columns: str | None,
    sort: str | None,
    top: int | None,
    form: str,
    output: Path | None,
    threshold: str | None,
    one: int | None,
    **options: Any,  # noqa: ANN401 - each has its own type
) -> None:
    """Show TABLE of REPORTS, all rows. `kanalyze tables` lists the tables.

    A terminal shows the columns that fit its width; other formats have all.

    Of several reports, or a folder of them, most tables have a first column that names the report; of what `collect`
    wrote they are of the first report that has them. Some, `joined` first of all, join reports of several tools.
    """
    if form == "parquet" and output is None:
        raise OutputError.needs_file(form)
    declared = catalog.table(table)
    keywords = _keywords(options, threshold, declared.options)
    where = _options.where_of(options)
    changed = (columns, sort, top, one is not None, options["no_formulas"], options["without_profiler"])
    plain = not keywords and not any(changed)
    if plain and emitted(reports, declared, where, form, output):
        return
    rows = rows_of(reports, declared, where, keywords, first=None if sort or one is not None else top)
    if one is not None:
        _emit_one(rows, one, output)
        return
    first = catalog.telling(table, rows.columns)
    each = _REPORT if _REPORT in rows.columns and _REPORT not in declared.schema else None
    rows = rendered.chosen(rendered.arranged(rows, sort, top, each), columns)
    if form == "terminal":
        every = columns is not None and columns.strip() == rendered.ALL
        emit(
            fitted.terminal(rows, width(), fitted.Choice(first, _HOW, every, columns is not None and not every)), output
        )
    else:
        emit_rows(rows, form, output, no_formulas=options["no_formulas"])


def _emit_one(rows: pl.DataFrame, one: int, output: Path | None) -> None:
    """Prints a collective as a timeline of its ranks."""
    if "last_rank" not in rows.columns:
        raise UnknownNameError.of("option", "--one", ["kanalyze show collectives REPORT… --one ID"])
    found = rows.filter(rows.get_column("id") == one)
    if found.is_empty():
        known = rows.get_column("id").drop_nulls().unique().sort().to_list()
        raise UnknownNameError.of("collective", one, [f"{known[0]} to {known[-1]}"] if known else [])
    emit(job.timeline(found, width()).encode(), output)


def _keywords(options: dict[str, Any], text: str | None, known: Sequence[str]) -> dict[str, object]:
    """What the table's function takes: the options that are given, and the threshold by the keyword that it knows."""
    given = {name: options[name] for name in _KEYWORDS if options[name] is not None}
    if text is None:
        return given
    if "threshold_share" in known:
        keyword, value, what, example = "threshold_share", parse_percent(text), "a share", "50%"
    else:
        keyword, value, what, example = "threshold_ns", parse_time_ns(text), "a time", "10us"
    if value is None and keyword in known:
        raise BadThresholdError.of(text, what, example)
    return given | {keyword: value}
