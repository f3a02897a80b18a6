"""The page's table of a framework's operators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze import units
from kanalyze.renderers.grid import Grid, Head, Section, of

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    Tables = Mapping[str, pl.DataFrame]


def operators(tables: Tables, top: int) -> Section:
    """The operators that kept the devices busy longest, or, where nothing ran there, took most host time."""
    table = tables["ops"]
    on_device = bool(table.get_column("exclusive_device_ns").sum())
    device = (Head("device"), Head("share"), Head("launched", spare=True)) if on_device else ()
    heads = (*device, Head("own host"), Head("host", wide=True), Head("count"), Head("operator", left=True))
    rows = [
        (
            *(
                (
                    units.time(row["exclusive_device_ns"]),
                    units.percent(row["exclusive_share"]),
                    units.count(row["operations"]),
                )
                if on_device
                else ()
            ),
            units.time(row["self_cpu_ns"]),
            units.time(row["cpu_ns"]),
            units.count(row["count"]),
            row["name"] or "(no operator)",
        )
        for row in table.head(top).iter_rows(named=True)
    ]
    remark = "share of busy time; own: without what it called" if on_device else "own: without what it called"
    return Section("OPERATORS", of(len(rows), table.height, remark), Grid(heads, rows, cut=True))
