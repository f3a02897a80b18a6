"""Builds the page of all instances of a range, as texts without layout."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import units
from kanalyze.outlets import command
from kanalyze.renderers.page.time import Page, heading, options
from kanalyze.renderers.text.grid import Column, Section, section
from kanalyze.window import Window

if TYPE_CHECKING:
    from kanalyze.analyses.ranges._instances import Instances
    from kanalyze.renderers.text.grid import Row

#: Instances included in medians and shares.
_USUAL: Final = ~pl.col("warm_up") & ~pl.col("odd")


def instances_page(found: Instances, top: int) -> Page:
    """Builds the page of a range's instances: time breakdown, outliers and slowest ones."""
    sections = []
    keys = found.spread.select("process_id", "device").unique(maintain_order=True)
    many = keys.get_column("process_id").n_unique() > 1
    for process, device in keys.iter_rows():
        here = pl.col("process_id").eq_missing(process) & (pl.col("device") == device)
        rows = found.instances.filter(here)
        usual = rows.filter(_USUAL).height
        which = units.plural(usual, "instance") if usual == rows.height else f"{usual} usual instances"
        whose = f", process {process}" if many else ""
        sections += [_spread(found.spread.filter(here), f"GPU {device}{whose}, {which}")]
        sections += [_slowest(rows, top, found.zero_ns)]
    first = found.instances.item(0, "window") if found.instances.height else ""
    scope = replace(found.scope, window=Window(name=first))
    return Page(
        heading=heading(found.meta, [f"window {found.scope.window.name if found.scope.window else found.name}"]),
        answer=found.answer,
        sections=sections,
        more=command("kanalyze", "summarize", found.meta.path, *options(scope)),
    )


def _spread(rows: pl.DataFrame, remark: str) -> Section:
    columns = (
        Column("bucket", "bucket", left=True),
        Column("share", "share"),
        Column("median", "median_ns"),
        Column("least", "min_ns"),
        Column("most", "max_ns"),
        Column("deviation", "stddev_ns", wide=True),
    )
    return section("WHERE THE TIME WENT", rows, columns, remark=remark)


def _slowest(rows: pl.DataFrame, top: int, zero_ns: int) -> Section:
    """Section of instances: outliers first, then longest."""
    median = float(rows.filter(_USUAL).select(pl.col("dur_ns").median()).item())
    order = rows.sort("odd", (pl.col("dur_ns") - median).abs(), "instance", descending=[True, True, False])

    def name(row: Row) -> str:
        """The window, or the number that every window ends in."""
        numbered = f"#{row['instance']}"
        return numbered if row["window"].endswith(numbered) else row["window"] or numbered

    columns = (
        Column("instance", name),
        Column("start", "start_ns", partial(units.instant, zero_ns=zero_ns)),
        Column("time", "dur_ns"),
        Column("of median", "dur_ns", lambda ns: units.times(ns / max(median, 1))),
        Column("", lambda row: "warm-up" if row["warm_up"] else "odd" if row["odd"] else "", left=True),
        Column("most in", "cause", left=True),
    )
    return section("INSTANCES", order, columns, top, "furthest from the median first")
