"""Renders the comparison of two tools on one program, side by side."""

from __future__ import annotations

from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING

from kanalyze import units
from kanalyze.analyses.joining.agreement import REASONS, VERDICTS
from kanalyze.renderers.text.grid import LEAST_NAME, Column, section, words
from kanalyze.renderers.text.kernel_names import short_forms

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.renderers.text.grid import Row


def render(rows: pl.DataFrame, shown: pl.DataFrame, width: int) -> str:
    """Renders counts of all `rows` by verdict, the rows in `shown`, and the meaning of the reasons."""
    counts = {verdict: rows.filter(rows.get_column("verdict") == verdict).height for verdict in VERDICTS}
    told = [f"{units.plural(rows.height, 'figure')}: {', '.join(f'{counts[one]} {one}' for one in VERDICTS)}"]
    if shown.height:
        grid = section("", shown, _columns(shown), named=True).grid
        room = max(grid.room_for_names(width), LEAST_NAME)
        head, lines = grid.lines(width, short_forms(grid.names(), room))
        told += ["", head, *lines]
    used = shown.get_column("reason").unique(maintain_order=True).drop_nulls().to_list()
    told += [""] * bool(used) + [f"{reason}: {REASONS[reason]}" for reason in used]
    return "\n".join(told) + "\n"


def _columns(shown: pl.DataFrame) -> list[Column]:
    report = Column("report", lambda row: PurePath(row["report"]).name, left=True)
    return [
        *([report] if "report" in shown.columns else []),
        Column("figure", "figure", left=True),
        Column("first", partial(_value, "first")),
        Column("tool", "first_tool", left=True, wide=True),
        Column("second", partial(_value, "second")),
        Column("tool", "second_tool", left=True),
        Column("difference", partial(_value, "difference")),
        Column(
            "why", lambda row: row["reason"] or ("?" if row["verdict"] == "unexplained" else ""), left=True, spare=True
        ),
        words("kernel or copy", "name"),
    ]


def _value(name: str, row: Row) -> str:
    value, unit = row[name], row["unit"]
    if value is None:
        return "-"
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit == "share":
        return sign + units.percent(size)
    text = {"ns": units.time, "bytes": units.size}.get(unit, units.count)(int(size))
    return sign + text
