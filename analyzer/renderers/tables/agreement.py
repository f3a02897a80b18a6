"""Renders the comparison of two tools on one program, side by side."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from kanalyze import units
from kanalyze.analyses.joining.agreement import REASONS, VERDICTS
from kanalyze.renderers.text.grid import LEAST_NAME, Column, Grid
from kanalyze.renderers.text.kernel_names import short_forms

if TYPE_CHECKING:
    import polars as pl

_REPORT = Column("report", left=True)
_HEADS = (
    Column("figure", left=True),
    Column("first"),
    Column("tool", left=True, wide=True),
    Column("second"),
    Column("tool", left=True),
    Column("difference"),
    Column("why", left=True, spare=True),
    Column("kernel or copy", left=True),
)


def render(rows: pl.DataFrame, shown: pl.DataFrame, width: int) -> str:
    """Renders counts of all `rows` by verdict, the rows in `shown`, and the meaning of the reasons."""
    counts = {verdict: rows.filter(rows.get_column("verdict") == verdict).height for verdict in VERDICTS}
    told = [f"{units.plural(rows.height, 'figure')}: {', '.join(f'{counts[one]} {one}' for one in VERDICTS)}"]
    if shown.height:
        heads = (_REPORT, *_HEADS) if "report" in shown.columns else _HEADS
        grid = Grid(heads, [_cells(row) for row in shown.to_dicts()], named=True)
        room = max(grid.room_for_names(width), LEAST_NAME)
        head, lines = grid.lines(width, short_forms(grid.names(), room))
        told += ["", head, *lines]
    used = shown.get_column("reason").unique(maintain_order=True).drop_nulls().to_list()
    told += [""] * bool(used) + [f"{reason}: {REASONS[reason]}" for reason in used]
    return "\n".join(told) + "\n"


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    values = (_value(row[name], row["unit"]) for name in ("first", "second", "difference"))
    first, second, difference = values
    why = row["reason"] or ("?" if row["verdict"] == "unexplained" else "")
    name = row["name"] or "(no name)"
    report = (PurePath(row["report"]).name,) if "report" in row else ()
    return (*report, row["figure"], first, row["first_tool"], second, row["second_tool"], difference, why, name)


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    sign, size = ("-" if value < 0 else ""), abs(value)
    if unit == "share":
        return sign + units.percent(size)
    text = {"ns": units.time, "bytes": units.size}.get(unit, units.count)(int(size))
    return sign + text
