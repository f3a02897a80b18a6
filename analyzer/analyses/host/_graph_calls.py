"""Calls that create CUDA graphs, and stream captures: work submitted to a capturing stream does not run at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._call_kinds import call_names, cuda_name
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Calls that create graphs, by prefix of their names.
_STEPS: Final = re.compile(
    r"(?:cuda|cu)(?:(?P<instantiate>GraphInstantiate)|(?P<upload>GraphUpload)|(?P<begin>StreamBeginCapture)"
    r"|(?P<end>StreamEndCapture)|(?P<build>Graph(?:Create|Clone|Add)))"
)


@once_per_report
def graph_steps(report: Report) -> pl.DataFrame:
    """Calls that create CUDA graphs, sorted by start.

    Columns: step (instantiate, upload, begin or end of a capture, build), event_id, name, process_id, thread_id, start,
    end.
    """
    calls = report.kind("api")
    names = call_names(report).cast(pl.String).drop_nulls()
    steps = {name: step.lastgroup for name in names if (step := _STEPS.match(cuda_name(name)))}
    found = calls.filter(pl.col("name").is_in([*steps])).select(
        pl.col("name").cast(pl.String).replace_strict(steps, return_dtype=pl.String).alias("step"),
        "event_id",
        "name",
        *THREAD,
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0),
    )
    return found.sort("start", "event_id")


@once_per_report
def captures(report: Report) -> pl.DataFrame:
    """Stream captures: process_id, thread_id, start (of the begin call), end (of the end call), event_id.

    Only captures whose begin and end call follow each other on one thread: calls of overlapping captures cannot be
    paired.
    """
    sides = graph_steps(report).filter(pl.col("step").is_in(["begin", "end"]))
    before = [pl.col(name).shift(1).over(THREAD).alias(f"last_{name}") for name in ("step", "start")]
    ended = sides.with_columns(before).filter((pl.col("step") == "end") & (pl.col("last_step") == "begin"))
    return ended.select(*THREAD, "event_id", "name", start="last_start", end="end")
