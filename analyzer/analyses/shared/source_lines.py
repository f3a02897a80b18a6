"""Lines and loops of the program that a capture has; where they are damaged there are none, which is noted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.errors import KanalyzeError
from kanalyze.model import LOOP_PASSES, SOURCE_LINES

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.report import Report
    from kanalyze.schema import Table


@once_per_process
def source_lines(report: Report) -> pl.DataFrame:
    """The lines that threads were in, :data:`SOURCE_LINES`, of the process in scope."""
    return _of_capture(report, SOURCE_LINES)


@once_per_process
def loop_passes(report: Report) -> pl.DataFrame:
    """When loops began a pass, :data:`LOOP_PASSES`, of the process in scope."""
    return _of_capture(report, LOOP_PASSES)


def _of_capture(report: Report, table: Table) -> pl.DataFrame:
    try:
        rows = report.table(table.name)
    except KanalyzeError as damage:
        report.go_without("of the program's lines", damage)
        return table.empty()
    process = report.scope.process
    return rows if process is None else rows.filter(rows.get_column("process_id") == process)
