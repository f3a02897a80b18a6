"""Compares the instances of a range: a ledger for each, their median and spread, and outliers.

Steps of a framework's profiler are instances, too. Warm-up steps (:mod:`kanalyze.analyses.ranges._warm_up`) are
excluded from median and spread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Final, Literal

import polars as pl

from kanalyze.analyses.device._operations import BUSY_BUCKETS, used_devices
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.ranges._warm_up import judged, warmed_up
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.statistics import median_of, spread
from kanalyze.report import Meta, Report
from kanalyze.schema import Column, Table
from kanalyze.units import plural, time, times
from kanalyze.window import EVERY, STEPS, Scope, Window, parsed

#: Maximum number of odd instances, and of processes, named in a sentence.
_NAMED: Final = 3

#: Keys of comparable instances: of one process, on one device that it used.
_KEYS: Final = ("process_id", "device")

#: The instances that median, spread and shares are computed from.
USUAL: Final = ~pl.col("warm_up") & ~pl.col("odd")

INSTANCES: Final = Table(
    "instances",
    "One instance of a range on one device, with its ledger.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`: one that the process of the range used."),
        Column("process_id", pl.Int64, "The process whose range it is.", nullable=True),
        Column("instance", pl.Int64, "Its number, from 1 on, in the order of starts."),
        Column("window", pl.String, "What gives it alone as a window: step#3; step:5 for a step of a profiler."),
        Column("start_ns", pl.Int64, "Start of the range."),
        Column("dur_ns", pl.Int64, "Its length, which the buckets add up to."),
        *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket}.") for bucket in BUCKETS),
        Column("warm_up", pl.Boolean, "Whether it is a profiler's step that only warms up; the others are the usual."),
        Column("odd", pl.Boolean, "Whether it is far from the median of the usual instances."),
        Column("cause", pl.String, "Of an odd one: the bucket that differs most from its own median.", nullable=True),
    ),
)

SPREAD: Final = Table(
    "instance_spread",
    "One bucket over the instances of a range of one process, on one device, that neither warm up nor are odd.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("process_id", pl.Int64, "The process whose ranges they are.", nullable=True),
        Column("bucket", pl.String, "A bucket of the ledger, or total."),
        Column("median_ns", pl.Float64, "Median over these instances."),
        Column("min_ns", pl.Int64, "Least."),
        Column("max_ns", pl.Int64, "Most."),
        Column("stddev_ns", pl.Float64, "Sample standard deviation."),
        Column("total_ns", pl.Int64, "Sum over them."),
        Column("share", pl.Float64, "Part of their time."),
    ),
)


@dataclass(frozen=True)
class Instances:
    """All instances of one range, compared: :data:`INSTANCES` and :data:`SPREAD`, with one or two sentences first.

    Attributes:
        kind: The kind of page, so that a renderer need not import the others to distinguish them.
        meta: Where the report came from.
        scope: The part of it in scope; its window spans all instances.
        name: The range, or ``steps``.
        answer: The sentences.
        instances: The instances.
        spread: The largest bucket of each device first, its total last.
        zero_ns: The origin of the times shown.
    """

    kind: ClassVar[Literal["instances"]] = "instances"

    meta: Meta
    scope: Scope
    name: str
    answer: str
    instances: pl.DataFrame
    spread: pl.DataFrame
    zero_ns: int = 0


def compare(parts: Sequence[Report]) -> Instances:
    """Compares the instances of a range, given as the report narrowed to each, sorted by start."""
    first = parts[0]
    windows = [part.scope.window or Window() for part in parts]
    steps = windows[0].group == STEPS
    name = STEPS if steps else parsed(windows[0].name or "")[0]
    rows = _ledgers(first, windows)
    busy = rows.filter(pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS) > 0)
    rows = rows.join(busy, on="device", how="semi") if busy.height else rows  # else of all devices
    rows = rows.sort(*_KEYS, "instance")
    of_each = rows.partition_by("process_id", maintain_order=True) if steps else []
    usual = pl.lit(value=False).alias("warm_up"), pl.lit(None, dtype=pl.String).alias("evidence")
    marked = [part.with_columns(warmed_up(first, part)) for part in of_each] or [rows.with_columns(usual)]
    rows = judged(pl.concat(marked), keys=_KEYS)
    start, ends = windows[0].start_ns, [window.end_ns or 0 for window in windows]
    scope = replace(first.scope, window=Window(start, max(ends), name if steps else f"{name}#{EVERY}"))
    told = answer(name, rows, steps=steps)
    return Instances(first.meta, scope, name, told, INSTANCES.select(rows), _spread(rows), first.zero_ns)


def _ledgers(report: Report, windows: Sequence[Window]) -> pl.DataFrame:
    sides = [(window.start_ns or 0, window.end_ns or 0, window.name, window.process) for window in windows]
    schema = {"start": pl.Int64, "end": pl.Int64, "name": pl.String, "process_id": pl.Int64}
    spans = pl.DataFrame(sides, schema=schema, orient="row")
    found = window_ledgers(report, spans)
    at = found.get_column("window")
    own = spans.select("process_id", start_ns="start", dur_ns=pl.col("end") - pl.col("start"), window="name")
    rows = found.drop("window").hstack(own.select(pl.all().gather(at))).with_columns(instance=at.cast(pl.Int64) + 1)
    if rows.get_column("process_id").n_unique() <= 1:
        return rows
    ran = rows.join(used_devices(report), on=["device", "process_id"], how="semi", nulls_equal=True)
    return ran if ran.height else rows


def _spread(rows: pl.DataFrame) -> pl.DataFrame:
    columns = {**{f"{bucket}_ns": bucket for bucket in BUCKETS}, "dur_ns": "total"}
    usual = rows.filter(USUAL)
    long = usual.unpivot(list(columns), index=[*_KEYS, "instance"], variable_name="bucket", value_name="ns")
    sums = long.group_by(*_KEYS, "bucket").agg(*spread("ns", "", "_ns"), total_ns=pl.col("ns").sum())
    last = pl.col("bucket") == "total"
    named = sums.with_columns(pl.col("bucket").replace_strict(columns)).filter((pl.col("total_ns") > 0) | last)
    whole = pl.col("total_ns").filter(last).first().over(_KEYS)
    shares = named.with_columns(share=pl.when(whole > 0).then(pl.col("total_ns") / whole).otherwise(0.0))
    return SPREAD.select(shares.sort(*_KEYS, last, "total_ns", "bucket", descending=[False, False, False, True, False]))


def answer(name: str, rows: pl.DataFrame, *, steps: bool = False) -> str:
    """One or two sentences on the instances of a range in `rows` (of :func:`judged`, with device, window and instance).

    They refer only to the first device of each process.
    """
    parts = rows.partition_by("process_id", maintain_order=True)
    if len(parts) > 1:
        told = [f"Process {part.item(0, 'process_id')}: {answer(name, part, steps=steps)}" for part in parts[:_NAMED]]
        return " ".join(told) + (f" And {plural(len(parts) - _NAMED, 'process')} more." if len(parts) > _NAMED else "")
    if rows.is_empty():
        return f"{name}: the report holds nothing that a GPU did."
    device = rows.filter(pl.col("device").eq_missing(pl.col("device").first()))
    usual, every = device.filter(USUAL), device.filter(~pl.col("warm_up")).height
    median = median_of(usual, "dur_ns")
    least, most = usual.select(pl.col("dur_ns").min(), most=pl.col("dur_ns").max()).row(0)
    text = plural(every, "step") if steps else f"{plural(every, 'instance')} of {name}"
    text += f": {time(median)}" + (f" in the median, from {time(least)} to {time(most)}" if usual.height > 1 else "")
    odd = rows.filter("odd").unique("window", keep="first", maintain_order=True)
    odd = odd.sort((pl.col("dur_ns") - median).abs(), descending=True, maintain_order=True)
    named = pl.col("window") if steps else pl.format("#{}", "instance")
    told = [
        f"{window} takes {times(ns / max(median, 1))} that{f' ({cause})' if cause else ''}"
        for window, ns, cause in odd.head(_NAMED).select(named, "dur_ns", "cause").iter_rows()
    ]
    if told:
        more = f" and {odd.height - len(told)} more" if odd.height > len(told) else ""
        text += f" without the odd ones: {', '.join(told)}{more}"
    text += "."
    warm = device.filter("warm_up").select("window", "evidence")
    left_out = [f"{window} ({why})" for window, why in warm.iter_rows()]
    more = f" and {len(left_out) - _NAMED} more" if len(left_out) > _NAMED else ""
    return text + (f" Left out as warm-up: {', '.join(left_out[:_NAMED])}{more}." if left_out else "")
