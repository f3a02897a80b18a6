"""Reports of ncu made by hand: a test lists the metrics of each kernel."""

from pathlib import Path

import polars as pl
import pytest

from kanalyze.counter_model import RULE_RESULTS
from kanalyze.readers.ncu import module
from kanalyze.readers.ncu.read_csv_rep import with_numbers
from kanalyze.readers.ncu.tables import LAUNCHES, Measured, NcuTables, metrics_frame
from kanalyze.report import Meta, Report

needs_module = pytest.mark.skipif(module.module() is None, reason="ncu-report is not installed (extra ncu)")


def measured(  # noqa: PLR0913 - what a test may say of kernels
    *kernels, names=(), grid=(1, 1, 1), rules=(), block=(1, 1, 1), grids=(), asked=None, process=None
):
    """A report of kernels with these metrics; called k where `names` does not say.

    `grids` has blocks in x of each kernel; `asked` is what the command of ncu selected; `process` is the one
    that launched them all.
    """
    launches = [
        {
            **dict.fromkeys(LAUNCHES),
            "event_id": number,
            "name": names[number] if names else "k",
            "device": 0,
            "process_id": process,
            **dict(zip(("grid_x", "grid_y", "grid_z"), (grids[number], 1, 1) if grids else grid, strict=True)),
            **dict(zip(("block_x", "block_y", "block_z"), block, strict=True)),
        }
        for number in range(len(kernels))
    ]
    values = []
    for number, metrics in enumerate(kernels):
        values += [(number, metric, float(value), None, "") for metric, value in metrics.items()]
    where = Path("made by hand")
    schema = {"event_id": pl.Int64, "metric": pl.String, "value": pl.Float64, "text": pl.String, "unit": pl.String}
    found = Measured(
        pl.DataFrame(launches, schema=LAUNCHES, orient="row"),
        metrics_frame(pl.DataFrame(values, schema=schema, orient="row").with_columns(section=pl.lit(None, pl.String))),
        pl.DataFrame(list(rules), schema=RULE_RESULTS.schema, orient="row"),
    )
    return Report(Meta(where, "ncu", capture=where if asked else None), NcuTables(where, with_numbers(found, asked)))
