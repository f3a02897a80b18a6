"""Large tables as files, written part by part: not more than a part of them is in memory.

Parts are sorted by time and have to follow each other, as nsys writes them. Where they do not, the table is made whole.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, BinaryIO, Final

from kanalyze.cli._answers import expanded, of_every_report
from kanalyze.cli._late import late
from kanalyze.cli._options import different
from kanalyze.cli._output import emit_file

with late():
    from kanalyze.renderers.exports import typed

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import polars as pl

    from kanalyze.cli._answers import Opened
    from kanalyze.cli._options import Where
    from kanalyze.report import Report
    from kanalyze.schema import Table

#: The tables of which a report may have a hundred million rows, by time.
_LARGE: Final = ("cpu_samples",)
_TIME: Final = "time_ns"


class _NotInOrderError(Exception):
    """A part is of an earlier time than the one before."""


def large(reports: Sequence[Path], table: Table, where: Where) -> bool:
    """Whether a table may be large, and is asked for as the report has it."""
    return table.name in _LARGE and where["window"] is None and len(different(expanded(reports))) == 1


def written(  # noqa: PLR0913 - what commands ask for
    reports: Sequence[Path], table: Table, where: Where, form: str, file: BinaryIO, opened: Opened | None = None
) -> int | None:
    """Writes a :func:`large` table of one report to `file`; its rows, or None where it has to be made whole.

    What was written until then is to be thrown away. Raises as :func:`kanalyze.cli._answers.rows_of`.
    """
    writer = typed.PartWriter(typed.Exported([table], table.empty()), form, file)
    rows, ends = 0, list[int]()

    def add(part: pl.DataFrame) -> pl.DataFrame:
        nonlocal rows
        part = part.sort(_TIME, maintain_order=True)
        if part.height:
            if ends and part.item(0, _TIME) < ends[-1]:
                raise _NotInOrderError
            ends[:] = [part.item(-1, _TIME)]
        writer.add(part)
        rows += part.height
        return part.head(1)

    def make(report: Report) -> pl.DataFrame:
        return report.mapped(table.name, add)

    try:
        of_every_report(reports, table, where, make, opened)
        writer.close()
    except _NotInOrderError:
        return None
    return rows


def emitted(reports: Sequence[Path], table: Table, where: Where, form: str, output: Path | None) -> bool:
    """Whether a table was written to the file `output` in parts; nothing is written where it has to be made whole."""
    if output is None or form not in ("csv", "parquet") or not large(reports, table, where):
        return False
    if os.path.lexists(output) and not os.path.isfile(output):  # noqa: PTH113 - a pipe would keep what was written
        return False

    def write(file: BinaryIO) -> None:
        if written(reports, table, where, form, file) is None:
            raise _NotInOrderError

    try:
        emit_file(write, output)
    except _NotInOrderError:
        return False
    return True
