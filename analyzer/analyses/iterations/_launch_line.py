"""Launches of each process in the order of their calls, with codes that are equal for equal work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._launch_shapes import shape_numbers
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.columns.grouping import mixed, parts_by
from kanalyze.columns.lookup import beside
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Names of copies between host and device, and of those to the device.
_HOST_COPY: Final = r"Host-to-Device|Device-to-Host"
_INPUT: Final = r"Host-to-Device"

#: Names of copies that unified memory makes by itself.
_UNIFIED: Final = r"Unified"

#: Least share of a process' operations that have a launch call, for their calls to give the order.
_MOST: Final = 0.5

#: Columns that a launch takes from the first of its operations, and sums over all of them.
_FIRST: Final = ("row", "thread_id", "since", "until", "copies", "input", "optimizer")

#: Names of kernels with which a training step ends.
_OPTIMIZER: Final = r"(?i)adam|sgd|lamb_|adagrad|rmsprop|optimizer|multi_tensor_apply"


def launch_lines(report: Report) -> dict[int | None, pl.DataFrame]:
    """Launches by process, in the order of their calls, with everything that one call launched as one launch.

    Columns: row (of its first operation in :func:`operations`), thread_id, since and until (its call; the operation
    itself in a process whose calls are unknown), ns (summed durations of its operations), exact (number for names and
    shapes), alike (number for names alone), blocks (of its kernels), copies (between host and device), input (a copy to
    the device), optimizer (a kernel that updates parameters).
    """
    coded = _coded(report)
    return {process: _line(part) for (process,), part in parts_by(coded, ["process_id"]).items()}


def _coded(report: Report) -> pl.DataFrame:
    """Every operation with its call, its codes and its size: without what unified memory moved by itself."""
    work = operations(report).select("row", "event_id", "kind", "name", "start", "end", "dur_ns", "process_id")
    names = work.get_column("name").unique().cast(pl.String).drop_nulls()
    unified = names.filter(names.str.contains(_UNIFIED))
    if len(unified):
        work = work.filter(~pl.col("name").is_in(unified.implode()).fill_null(value=False))
    calls = calls_of(report, work.get_column("row"), "call_row", "thread_id", "call_start", "call_end")
    shapes, numbers = shape_numbers(report)
    shaped = beside(work.select("event_id", pl.col("kind", "name").to_physical()), numbers, "shape")
    shaped = beside(shaped, report.copy_detail, "size_bytes")
    grid = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    blocks = shapes.select(grid.alias("blocks")).to_series()
    known = shaped.select(
        exact=mixed(("kind", "name", "shape", "size_bytes")),
        alike=mixed(("kind", "name")),
        blocks=pl.lit(blocks).gather("shape") if len(blocks) else pl.lit(None, dtype=pl.Int64),
    )
    copy = pl.col("kind") == "memcpy"
    named = {
        like: pl.col("name").is_in(names.filter(names.str.contains(like)).implode()).fill_null(value=False)
        for like in (_HOST_COPY, _INPUT, _OPTIMIZER)
    }
    told = work.select(copies=copy & named[_HOST_COPY], input=copy & named[_INPUT], optimizer=~copy & named[_OPTIMIZER])
    return work.drop("event_id", "kind", "name").with_columns(
        *calls.get_columns(), *known.get_columns(), *told.get_columns()
    )


def _line(part: pl.DataFrame) -> pl.DataFrame:
    """The launches of one process."""
    called = part.get_column("call_start").is_not_null()
    if called.sum() < _MOST * part.height:
        part = part.with_columns(call_start="start", call_end="end", call_row="row")
    elif not called.all():
        part = part.filter(called)
    part = part.rename({"call_start": "since", "call_end": "until", "dur_ns": "ns"}).drop("start", "end")
    part = part.with_columns(pl.col("ns").clip(lower_bound=0).fill_null(0), pl.col("blocks").fill_null(0))
    if part.get_column("call_row").is_duplicated().any():
        # nodes of one graph may run in any order: sums do not depend on it
        sums = [pl.col("ns", "exact", "alike", "blocks").sum()]
        part = part.group_by("call_row", maintain_order=True).agg(pl.col(*_FIRST).first(), *sums)
    return in_order(part.drop("call_row", "process_id", strict=False), "since")
