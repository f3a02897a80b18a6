"""Page of an ncu report: kernels with their verdicts and the supporting tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import polars as pl

from kanalyze.analyses.counters._kernel_rules import bound, paragraph
from kanalyze.analyses.counters.advice import advice, kernel_facts
from kanalyze.analyses.counters.stalls import stalls
from kanalyze.analyses.findings.health import health
from kanalyze.units import plural, time

if TYPE_CHECKING:
    from kanalyze.report import Meta, Report
    from kanalyze.window import Scope


@dataclass(frozen=True)
class CounterSummary:
    """Content of the page of an ncu report, with complete tables; a renderer decides how many rows to print.

    Attributes:
        kind: Kind of page, by which renderers dispatch without importing the class.
        meta: Where the report came from.
        scope: The part of the report that was analysed.
        answer: Headline, one or two sentences.
        devices: The GPUs that kernels ran on, as in `devices`.
        kernels: A row per kernel: the columns of `counters` and `roofline`, blocks, family, product, and verdict and
            conclusion (:mod:`kanalyze.analyses.counters._kernel_rules`).
        groups: The kernels of one name and launch shape: first (event_id of the longest), count, total_ns; the longest
            total first.
        stalls: The table `stalls`.
        advice: The table `advice`.
        health: The table `health`.
    """

    kind: ClassVar[Literal["counters"]] = "counters"

    meta: Meta
    scope: Scope
    answer: str
    devices: pl.DataFrame
    kernels: pl.DataFrame
    groups: pl.DataFrame
    stalls: pl.DataFrame
    advice: pl.DataFrame
    health: pl.DataFrame


_SHAPE = ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")


def summarize_counters(report: Report) -> CounterSummary:
    """Makes the page of an ncu report.

    Raises:
        CannotTellError: The report has no counters, or a window is asked for: kernels of ncu have no place in time.
    """
    facts = kernel_facts(report)
    rows = facts.to_dicts()
    texts = {"verdict": [bound(row) for row in rows], "conclusion": [paragraph(row) for row in rows]}
    kernels = facts.with_columns(pl.Series(name, told, dtype=pl.String) for name, told in texts.items())
    groups = _groups(kernels)
    used = kernels.get_column("device").unique()
    return CounterSummary(
        meta=report.meta,
        scope=report.scope,
        answer=_answer(kernels, groups),
        devices=report.devices.filter(pl.col("device").is_in(used.implode())),
        kernels=kernels,
        groups=groups,
        stalls=stalls(report),
        advice=advice(report),
        health=health(report),
    )


def _groups(kernels: pl.DataFrame) -> pl.DataFrame:
    order = kernels.sort("dur_ns", "event_id", descending=[True, False], nulls_last=True)
    sums = order.group_by("name", "device", *_SHAPE, maintain_order=True).agg(
        first=pl.col("event_id").first(), count=pl.len().cast(pl.Int64), total_ns=pl.col("dur_ns").sum()
    )
    return sums.select("first", "count", "total_ns").sort("total_ns", "first", descending=[True, False])


def _answer(kernels: pl.DataFrame, groups: pl.DataFrame) -> str:
    """The headline: number of kernels, and their time by verdict."""
    total = int(kernels.get_column("dur_ns").sum())
    sums = (
        kernels.group_by("verdict")
        .agg(pl.col("dur_ns").sum(), timed=pl.col("dur_ns").count(), count=pl.len())
        .sort("dur_ns", "verdict", descending=[True, False])
    )
    if kernels.height == 1:
        row = kernels.row(0, named=True)
        duration = f" in {time(row['dur_ns'])}" if row["dur_ns"] is not None else ""
        return f"One kernel{duration}, measured alone. {row['conclusion']}"
    timed = kernels.get_column("dur_ns").count()
    told = [f"{verdict} {count}{f' ({time(ns)})' if known else ''}" for verdict, ns, known, count in sums.iter_rows()]
    shapes = f", {groups.height} different" if groups.height < kernels.height else ""
    of = "" if timed == kernels.height else f" (of {timed} whose duration was collected)"
    length = f"{time(total)} in all{of}" if timed else "of unknown duration"
    return (
        f"{plural(kernels.height, 'kernel')}{shapes}, {length}, each measured alone. "
        f"By what holds them back: {', '.join(told)}."
    )
