"""Host time in CUDA calls, by name."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import of_used_processes
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.shared.analysis import analysis, require
from kanalyze.analyses.shared.statistics import DURATION_COLUMNS, duration_statistics, share_of_total
from kanalyze.report import Report
from kanalyze.schema import Table, columns

TABLE: Final = Table(
    "api",
    "One CUDA runtime or driver call; time of calls inside calls counts in both.",
    (
        *columns("name text?: The call as nsys shows it: without the four-digit version of its form."),
        *DURATION_COLUMNS,
    ),
    purpose="CUDA calls by total time",
    equals="nsys stats cuda_api_sum",
)


@analysis
def api(report: Report) -> pl.DataFrame:
    """CUDA calls in scope by name, the longest in total first; with a device in scope, calls of its processes.

    Two versions of one call (``…_v3020`` and ``…_v12000``) are two rows, as in nsys.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report records no CUDA calls.
    """
    require(report, TABLE, "api")
    sums = of_used_processes(report, report.seen("api")).group_by("name").agg(duration_statistics())
    form = pl.col("name").cast(pl.String)
    named = sums.with_columns(share_of_total(), shown(pl.col("name")).alias("name"), form=form)
    return TABLE.select(named.sort("total_ns", "name", "form", descending=[True, False, False]))
