"""The tables' own descriptions, from their declarations."""

from __future__ import annotations

import json as encoder
import textwrap
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kanalyze.schema import Column, Table

_COLUMN_WIDTH: Final = 30
_UNIT_WIDTH: Final = 8


def terminal(tables: Sequence[Table], width: int) -> str:
    """Every table with its columns, for reading."""
    return "\n".join(_table(table, width) for table in tables)


def _table(table: Table, width: int) -> str:
    lines = [table.name, *textwrap.wrap(table.doc, width - 2, initial_indent="  ", subsequent_indent="  ")]
    if table.equals:
        lines += textwrap.wrap(f"Equals {table.equals}.", width - 2, initial_indent="  ", subsequent_indent="  ")
    if table.groupings:
        lines.append(f"  --by {', '.join(table.groupings)}")
    for column in table.columns:
        start = f"    {column.name.ljust(_COLUMN_WIDTH)} {column.unit.ljust(_UNIT_WIDTH)} "
        lines += textwrap.wrap(_meaning(column), width, initial_indent=start, subsequent_indent=" " * len(start))
    return "\n".join(lines) + "\n"


def _meaning(column: Column) -> str:
    return column.doc if not column.nullable or "null" in column.doc else f"{column.doc} May be missing (null)."


def markdown(tables: Sequence[Table]) -> str:
    """Every table as a section with a table of its columns; the docs page is this."""
    parts = []
    for table in tables:
        lines = [f"## {table.name}", "", table.doc]
        if table.equals:
            lines += ["", f"Equals {table.equals}."]
        if table.groupings:
            lines += ["", "`--by` " + ", ".join(f"`{grouping}`" for grouping in table.groupings)]
        lines += ["", "| column | type | unit | meaning |", "| --- | --- | --- | --- |"]
        lines += [
            f"| `{column.name}` | {_type(column)} | {column.unit} | {_meaning(column)} |" for column in table.columns
        ]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _type(column: Column) -> str:
    return str(column.dtype).partition("(")[0]


def json(tables: Sequence[Table]) -> str:
    """The declarations as a list of objects."""
    found = [
        {
            "table": table.name,
            "doc": table.doc,
            "equals": table.equals,
            "by": list(table.groupings),
            "columns": [
                {
                    "name": column.name,
                    "type": _type(column),
                    "unit": column.unit,
                    "doc": column.doc,
                    "nullable": column.nullable,
                }
                for column in table.columns
            ],
        }
        for table in tables
    ]
    return encoder.dumps(found, indent=2, ensure_ascii=False) + "\n"


FORMATS: Final[dict[str, Callable[[Sequence[Table]], str]]] = {"markdown": markdown, "json": json}
