"""The calls that make CUDA graphs, and the captures among them: what a stream is given meanwhile runs later."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._call_kinds import call_names, cuda_name
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.thread_lanes import THREAD

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The calls that make graphs, by the beginnings of their names.
_STEPS: Final = re.compile(
    r"(?:cuda|cu)(?:(?P<instantiate>GraphInstantiate)|(?P<upload>GraphUpload)|(?P<begin>StreamBeginCapture)"
    r"|(?P<end>StreamEndCapture)|(?P<build>Graph(?:Create|Clone|Add)))"
)


@once_per_report
def graph_steps(report: Report) -> pl.DataFrame:
    """The calls that make graphs, sorted by start.

    Columns: step (instantiate, upload, begin and end of a capture, build), event_id, name, process_id, thread_id,
    start, end.
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
    """The captures: process_id, thread_id, start (of the first call) and end (of the call that ended it), event_id.

    Only those whose two calls are on one thread with no other capture's call between them: of captures that overlap,
    the calls do not tell which belong together.
    """
    sides = graph_steps(report).filter(pl.col("step").is_in(["begin", "end"]))
    before = [pl.col(name).shift(1).over(THREAD).alias(f"last_{name}") for name in ("step", "start")]
    ended = sides.with_columns(before).filter((pl.col("step") == "end") & (pl.col("last_step") == "begin"))
    return ended.select(*THREAD, "event_id", "name", start="last_start", end="end")
