"""Sections of framework operators and profiler steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from kanalyze import units
from kanalyze.renderers.text.grid import Grid, Head, Section, number, of, telling_apart

if TYPE_CHECKING:
    from collections.abc import Mapping

    Tables = Mapping[str, pl.DataFrame]


def operators(tables: Tables, top: int) -> Section:
    """Section of operators by device time; by host time if there is none."""
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


# Section of profiler steps.


def steps(tables: Tables, top: int) -> Section:
    """Section of steps in order; if many, warm-up and outliers first, then those furthest from the median."""
    table = tables["steps"]
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up") & ~pl.col("odd")
    median = length.filter(usual).median().over("process_id", "device")
    known = table.with_columns(ratio=pl.when(median > 0).then(length / median), away=(length - median).abs())
    marked = pl.col("warm_up") | pl.col("odd")
    chosen = known.sort(marked, "away", descending=True, maintain_order=True).head(top)
    rows = chosen.sort("start_ns", "device", maintain_order=True).iter_rows(named=True)
    several = table.get_column("device").n_unique() > 1
    ranks = bool(telling_apart(table, ("step", "device"), ("process_id",)))
    heads = (
        Head("process"),
        Head("step"),
        Head("time"),
        Head("of median"),
        Head("GPU busy"),
        Head("launched", spare=True),
        Head("runs on", spare=True),
        Head("idle most in", left=True),
        Head("", left=True),
    )
    cells = [(number(row["process_id"]) if ranks else "", *_cells(row, several=several)) for row in rows]
    kept = [place for place in range(len(heads)) if any(row[place] for row in cells)]
    shown = [tuple(row[place] for place in kept) for row in cells]
    remark = of(len(cells), table.height, "furthest from the median" if len(cells) < table.height else "")
    return Section("STEPS", remark, Grid(tuple(heads[place] for place in kept), shown))


def _cells(row: dict[str, Any], *, several: bool) -> tuple[str, ...]:
    where = f"GPU {row['device']} " if several and row["device"] is not None else ""
    idle = f"{row['idle_in']} {units.time(row[row['idle_in'] + '_ns'])}" if row["idle_in"] else ""
    return (
        f"{where}{row['step']}",
        units.time(row["dur_ns"]),
        "" if row["ratio"] is None else units.times(row["ratio"]),
        "" if row["busy_share"] is None else units.percent(row["busy_share"]),
        units.count(row["operations"]),
        units.time(row["late_ns"]) if row["late_ns"] else "",
        idle,
        "warm-up" if row["warm_up"] else f"odd ({row['cause']})" if row["cause"] else "odd" if row["odd"] else "",
    )
