"""What the page says of all instances of a range, as texts without layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from kanalyze import units
from kanalyze.renderers.grid import Grid, Head, Section, of
from kanalyze.renderers.page import Page, heading

if TYPE_CHECKING:
    from kanalyze.analyses.instances import Instances


def instances_page(found: Instances, top: int) -> Page:
    """The page of a range's instances: where their time went, and which of them are odd or slowest."""
    sections = []
    for device in found.spread.get_column("device").unique(maintain_order=True):
        here = pl.col("device") == device
        rows = found.instances.filter(here)
        usual = rows.filter(~pl.col("warm_up")).height
        sections += [_spread(found.spread.filter(here), f"GPU {device}, {units.plural(usual, 'instance')}")]
        sections += [_slowest(rows, top, found.zero_ns)]
    first = found.instances.item(0, "window") if found.instances.height else ""
    return Page(
        heading=heading(found.meta, [f"window {found.scope.window.name if found.scope.window else found.name}"]),
        health="",
        answer=found.answer,
        ledgers=[],
        sections=sections,
        topics=[],
        cannot_tell=[],
        more=f"kanalyze summarize {units.printable(found.meta.path.name)} --window '{first}'",
    )


def _spread(rows: pl.DataFrame, remark: str) -> Section:
    heads = (Head("bucket", left=True), *map(Head, ("share", "median", "least", "most")), Head("deviation", wide=True))
    cells = [
        (
            row["bucket"],
            units.percent(row["share"]),
            *(units.time(row[f"{column}_ns"]) for column in ("median", "min", "max", "stddev")),
        )
        for row in rows.iter_rows(named=True)
    ]
    return Section("WHERE THE TIME WENT", remark, Grid(heads, cells))


def _slowest(rows: pl.DataFrame, top: int, zero_ns: int) -> Section:
    """The odd instances first, then the longest."""
    median = float(rows.filter(~pl.col("warm_up")).select(pl.col("dur_ns").median()).item())
    order = rows.sort("odd", (pl.col("dur_ns") - median).abs(), "instance", descending=[True, True, False]).head(top)
    heads = (
        Head("instance"),
        Head("start"),
        Head("time"),
        Head("of median"),
        Head("", left=True),
        Head("most in", left=True),
    )
    cells = [
        (
            _shown(row),
            units.instant(row["start_ns"], zero_ns),
            units.time(row["dur_ns"]),
            units.times(row["dur_ns"] / max(median, 1)),
            "warm-up" if row["warm_up"] else "odd" if row["odd"] else "",
            row["cause"] or "",
        )
        for row in order.iter_rows(named=True)
    ]
    return Section("INSTANCES", of(len(cells), rows.height, "furthest from the median first"), Grid(heads, cells))


def _shown(row: dict[str, Any]) -> str:
    """How an instance is called here: by its number among those of the range, or as a step."""
    numbered = f"#{row['instance']}"
    return numbered if row["window"].endswith(numbered) else row["window"] or numbered
