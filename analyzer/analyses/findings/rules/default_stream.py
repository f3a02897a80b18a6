"""Serialisation by the legacy default stream: it and all blocking streams of its context wait for each other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.host._launching_call import calls_of
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.streams._pairs import in_window, stream_pairs
from kanalyze.analyses.streams._serialised import stream_waits
from kanalyze.analyses.streams._streams import used_streams
from kanalyze.columns.lookup import of_rows
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

_REMEDY: Final = (
    "Where they need not wait for each other, create streams with cudaStreamNonBlocking or compile with "
    "--default-stream per-thread, and order by events what depends."
)


def find(report: Report) -> list[Finding]:
    """One finding per device on which the default stream and blocking streams waited for each other."""
    found: list[Finding] = []
    if not _could_wait(report):  # cheap, and false for most programs
        return found
    for (device,), waits in _serialised(report).partition_by("device", as_dict=True, maintain_order=True).items():
        stake = _at_stake_ns(waits)
        if stake:
            null, blocking = (
                ", ".join(map(str, waits.get_column(name).unique().sort())) for name in ("null", "blocking")
            )
            text = (
                f"The default stream ({null}) and blocking streams ({blocking}) never run side by side: "
                f"{plural(waits.height, 'operation')} of one were ready for {time(total(waits, 'held_ns'))} while the "
                "other ran, and nothing but the default stream's rule is known to have held them."
            )
            found.append(Finding("default-stream", device, stake, text, _REMEDY, "concurrency --by pair"))
    return found


def _could_wait(report: Report) -> bool:
    """Whether any context ran operations on both its default stream and a blocking stream."""
    types = (
        used_streams(report)
        .filter(pl.col("type").is_in(["null", "blocking"]))
        .group_by("group")
        .agg(pl.col("type").n_unique())
    )
    return bool(types.select((pl.col("type") > 1).any()).item())


def _serialised(report: Report) -> pl.DataFrame:
    """Pairs of operations of which one waited for the other, one on the default stream and one on a blocking stream.

    Columns: device, null and blocking (numbers of the two streams), held_ns; number, row and ns (stream, row and
    exclusive time of the operation that waited); behind_number, behind_row and behind_ns (those of the other one).
    """
    pairs = stream_pairs(report).filter("never_overlap")
    types = [pl.col("type") == "null", pl.col("other_type") == "null"]
    blocking = [pl.col("other_type") == "blocking", pl.col("type") == "blocking"]
    pairs = pairs.filter((types[0] & blocking[0]) | (types[1] & blocking[1])).select(
        "device",
        *("first", "second"),
        pl.when(types[0]).then("stream").otherwise("other_stream").alias("null"),
        pl.when(types[0]).then("other_stream").otherwise("stream").alias("blocking"),
    )
    both = ("number", "behind_number")
    waits = in_window(report, stream_waits(report)).filter(~pl.col("ordered"))
    waits = waits.with_columns(
        first=pl.min_horizontal(both), second=pl.max_horizontal(both), held_ns=pl.col("end") - pl.col("start")
    ).join(pairs, on=["first", "second"], maintain_order="left")
    call, behind_call = (
        calls_of(report, waits.get_column(row), "call_start").to_series() for row in ("row", "behind_row")
    )
    waits = waits.filter((behind_call < call).fill_null(value=False))
    work = exclusive_operations(report).select("row", "exclusive_ns").sort("row")
    return waits.with_columns(
        of_rows(work, "exclusive_ns", waits.get_column(row)).alias(ns)
        for row, ns in (("row", "ns"), ("behind_row", "behind_ns"))
    )


def _at_stake_ns(waits: pl.DataFrame) -> int:
    """The upper bound of the gain from running the operations of one device concurrently, in ns.

    An operation that waited can overlap the other one for at most its own duration and the time that it was held.
    Together they still take as long as the busiest of their streams.
    """
    hidden = waits.select(pl.min_horizontal("held_ns", "ns").sum()).item()
    involved = pl.concat(
        [waits.select("number", "row", "ns"), waits.select(number="behind_number", row="behind_row", ns="behind_ns")]
    ).unique("row")
    by_stream = involved.group_by("number").agg(pl.col("ns").sum())
    return min(int(hidden), total(by_stream, "ns") - longest(by_stream, "ns"))
