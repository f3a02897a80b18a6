"""Builds the sections of a serving engine's steps: by kind, the gaps between them, and the sizes of its graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import polars as pl

from kanalyze import units
from kanalyze.renderers.page import Column, Section, numbers, section, without_folders

Tables = Mapping[str, pl.DataFrame]

#: The titles of the sections.
_KINDS, _GAPS, _SIZES = TITLES = ("ENGINE STEPS", "BETWEEN STEPS", "SIZES OF GRAPHS")


def _gpu(table: pl.DataFrame) -> list[Column]:
    """The column of the GPU, where there are several."""
    return [Column("GPU", "device")] * (table.get_column("device").n_unique() > 1)


def _kinds(tables: Tables, _: int) -> Section:
    """Kinds of steps side by side; all rows."""
    table = tables["engine_steps"].filter(pl.col("count") > 0)
    columns = (
        *_gpu(table),
        *numbers(steps="count"),
        Column("requests", "mean_requests", "{:.3g}".format),
        Column("tokens", lambda row: "" if row["tokens"] is None else units.mean(row["tokens"], row["count"])),
        *numbers(a_step="per_step_ns"),
        Column("a token", "per_token_ns"),
        Column("GPU busy", lambda row: units.percent((row["busy_ns"] + row["gap_busy_ns"]) / max(row["ns"], 1))),
        Column("gap", lambda row: units.time(row["gap_ns"] / row["count"])),
        Column("in graphs", lambda row: units.percent(row["replayed"] / row["count"]), spare=True),
        Column("kind", "kind", left=True),
    )
    return section(_KINDS, table, columns, remark="mean; time with the gap before")


def _gaps(tables: Tables, top: int) -> Section:
    """What the GPU waited for, or ran, between steps."""
    table = tables["engine_gaps"]
    columns = (
        *_gpu(table),
        *numbers(time="ns", share="share", gaps="gaps"),
        Column("before a", "kind", left=True),
        Column("bucket", "bucket", left=True),
        Column("culprit", "culprit", without_folders, left=True),
    )
    return section(_GAPS, table, columns, top, "what the GPU waited for or ran", cut=True)


def _sizes(tables: Tables, top: int) -> Section:
    """Sizes of graphs that steps replayed, and the steps of these kinds without one."""
    table = tables["engine_graphs"]
    columns = (
        *_gpu(table),
        Column("size", lambda row: str(row["padded"] or ("?" if row["mode"] == "graph" else ""))),
        *numbers(steps="count"),
        Column("requests", lambda row: f"{row['least_requests']} to {row['most_requests']}"),
        Column("mean", "mean_requests", "{:.3g}".format, spare=True),
        *numbers(median="median_ns", padding="lost_ns"),
        Column("kind", lambda row: f"{row['kind']}{'' if row['mode'] == 'graph' else ', ' + row['mode']}", left=True),
    )
    return section(_SIZES, table, columns, top, "padding: time that it took, by the size below")


#: The sections in page order, by the table that each needs.
SECTIONS: Final[dict[str, Callable[[Tables, int], Section]]] = {
    "engine_steps": _kinds,
    "engine_gaps": _gaps,
    "engine_graphs": _sizes,
}
