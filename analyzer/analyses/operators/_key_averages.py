"""The rows of torch's own table, key_averages(), with its names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.operators._work import MEMORY, allocations, device_annotations, operator_work
from kanalyze.columns.lookup import beside
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from kanalyze.report import Report

SIDES: Final = ("host", "device")

_SUMS: Final = ("self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", *MEMORY)

#: torch's names for the directions of copies.
_DIRECTIONS: Final = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
}


#: torch's names for waits that nsys names differently.
_WAITS: Final = {
    "Context sync": "Context Sync",
    "Stream sync": "Stream Sync",
    "Event sync": "Event Sync",
    "Stream wait sync": "Stream Wait Event",
}


def torch_rows(report: Report) -> pl.DataFrame:
    """One row for each row of torch's table, without shares and means.

    Columns: name, side, annotation, count, the four times, and the memory taken.
    """
    host = operator_work(report).with_columns(
        pl.col("name").cast(pl.String),
        side=pl.lit("host"),
        annotation=pl.col("kind") == "range",
        self_cpu_ns="self_ns",
        cpu_ns="dur_ns",
    )
    found = [_typed(part) for part in (host, _operations(report), _annotations(report), _memory(report))]
    count = pl.len().cast(pl.Int64).alias("count")
    return pl.concat(found).group_by("name", "side", "annotation").agg(count, pl.col(_SUMS).sum())


def _typed(part: pl.DataFrame) -> pl.DataFrame:
    """Rows with all sum columns; missing ones are 0."""
    missing = [pl.lit(0, dtype=pl.Int64).alias(name) for name in _SUMS if name not in part.columns]
    return part.with_columns(missing).select("name", "side", "annotation", *_SUMS)


def _on_device(frame: pl.DataFrame, *, annotation: bool) -> pl.DataFrame:
    """Device rows from a frame with name and dur_ns."""
    side = pl.lit("device")
    return frame.select("name", side=side, annotation=pl.lit(annotation), self_device_ns="dur_ns", device_ns="dur_ns")


def _operations(report: Report) -> pl.DataFrame:
    """Kernels, copies and memsets, and waits on the device, where recorded."""
    parts = []
    for kind in (*DEVICE_KINDS, "sync"):
        events = report.seen(kind)
        if report.scope.device is not None:
            events = events.filter(pl.col("device") == report.scope.device)
        name = pl.col("name").cast(pl.String).replace(_WAITS)
        if kind in ("memcpy", "memset"):
            events = beside(events, report.copy_detail, "direction", "source_memory", "target_memory")
            name = pl.coalesce(_copy() if kind == "memcpy" else _set(), name)
        parts.append(events.select(name.alias("name"), "dur_ns"))
    return _on_device(pl.concat(parts), annotation=False)


def _copy() -> pl.Expr:
    """Names such as ``Memcpy HtoD (Pageable -> Device)``; null if the trace lacks a part."""
    direction = pl.col("direction").cast(pl.String).replace(_DIRECTIONS)
    memory = (pl.col(name).cast(pl.String) for name in ("source_memory", "target_memory"))
    return pl.format("Memcpy {} ({} -> {})", direction, *memory)


def _set() -> pl.Expr:
    return pl.format("Memset ({})", pl.col("target_memory").cast(pl.String))


def _annotations(report: Report) -> pl.DataFrame:
    """The annotations on each stream."""
    spans = device_annotations(report)
    if report.scope.device is not None:
        spans = spans.filter(pl.col("device") == report.scope.device)
    named = intervals.overlapping(spans, report.scope.sides)
    named = named.with_columns(pl.col("name").cast(pl.String), dur_ns=pl.col("end") - pl.col("start"))
    return _on_device(named, annotation=True)


def _memory(report: Report) -> pl.DataFrame:
    """Allocations without an enclosing host event on any thread, and failed ones."""
    every = intervals.overlapping(allocations(report), report.scope.sides, "at", "at")
    host = intervals.union(operator_tree(report).rows.select("start", end=pl.col("end") + 1))
    at = every.get_column("at")
    outside = (intervals.overlap(at, at + 1, host) == 0) & ~every.get_column("failed")
    taken = pl.when("device").then("bytes").otherwise(0)
    return every.filter(outside | every.get_column("failed")).select(
        pl.when("failed").then(pl.lit("[OutOfMemory]")).otherwise(pl.lit("[memory]")).alias("name"),
        side=pl.lit("host"),
        annotation=pl.lit(value=False),
        self_device_bytes=taken,
        device_bytes=taken,
        self_cpu_bytes=pl.col("bytes") - taken,
        cpu_bytes=pl.col("bytes") - taken,
    )
