"""Renders the declarations of tables."""

from __future__ import annotations

import json as encoder
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kanalyze.schema import Column, Table

_READ: Final = (
    "The second column says what has it: reports of nsys, torch.profiler or ncu, of any of them, several of one "
    "program, or a capture of `kanalyze collect`."
)
_MORE: Final = "`kanalyze tables NAME` has its columns with units and meaning; `kanalyze show NAME REPORT` its rows."


#: A table, and variants of it.
Described = tuple["Table", "Sequence[Table]"]


def _beside(start: str, text: str, width: int) -> list[str]:
    """A text behind a start, below which it goes on."""
    return textwrap.wrap(text, width, initial_indent=start, subsequent_indent=" " * len(start))


def listing(subjects: Mapping[str, Sequence[Table]], width: int) -> str:
    """Renders a line per table below each subject: name, the reports that give it, what it is for."""
    cells = [(table.name, table.inputs) for listed in subjects.values() for table in listed]
    name, inputs = (max(map(len, texts)) for texts in zip(*cells, strict=True)) if cells else (0, 0)
    lines = []
    for subject, listed in subjects.items():
        lines.append(subject)
        for table in listed:
            start = f"  {table.name.ljust(name)}  {table.inputs.ljust(inputs)}  "
            lines += _beside(start, table.purpose or table.doc, width)
        lines.append("")
    lines += textwrap.wrap(_READ, width) + textwrap.wrap(_MORE, width)
    return "\n".join(lines) + "\n"


def terminal(tables: Sequence[Described], width: int) -> str:
    """Renders every table with its columns as terminal text."""
    return "\n".join(_table(table, forms, width) for table, forms in tables)


def _table(table: Table, forms: Sequence[Table], width: int) -> str:
    lines = [table.name, *_beside("  ", table.doc, width - 2)]
    lines += _beside("  ", f"Equals {table.equals}.", width - 2) if table.equals else []
    lines += [f"  --by {', '.join(table.groupings)}"] if table.groupings else []
    lines += [f"  {', '.join(table.flags)}"] if table.options else []
    lines += _columns(table.columns, width)
    for form in forms:
        lines += _beside("  ", f"{form.when}: {form.doc}", width - 2)
        lines += _columns(_more(form, table), width)
    return "\n".join(lines) + "\n"


def _columns(columns: Sequence[Column], width: int) -> list[str]:
    cells = [(column.name, _type(column), column.unit) for column in columns]
    wide = [max(map(len, texts)) for texts in zip(*cells, strict=True)]
    starts = ["    " + "".join(f"{text.ljust(size)}  " for text, size in zip(row, wide, strict=True)) for row in cells]
    return [line for at, one in zip(starts, columns, strict=True) for line in _beside(at, _meaning(one), width)]


def _meaning(column: Column) -> str:
    return column.doc if not column.nullable or "null" in column.doc else f"{column.doc} May be missing (null)."


def _more(form: Table, table: Table) -> list[Column]:
    """Columns of a variant that the table itself lacks."""
    return [column for column in form.columns if column not in table.columns]


def _type(column: Column) -> str:
    return str(column.dtype).partition("(")[0]


def _markdown(tables: Sequence[Described]) -> str:
    """Renders every table as a Markdown section with its columns; the source of the docs page."""
    parts = []
    for table, forms in tables:
        lines = [f"## {table.name}", "", table.doc]
        lines += ["", f"Equals {table.equals}."] if table.equals else []
        lines += ["", f"`--by` {_code(table.groupings)}"] if table.groupings else []
        lines += ["", f"Options: {_code(table.flags)}"] if table.options else []
        lines += _markdown_columns(table.columns)
        for form in forms:
            lines += ["", f"With `{form.when}`: {form.doc}", *_markdown_columns(_more(form, table))]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _code(words: Sequence[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _markdown_columns(columns: Sequence[Column]) -> list[str]:
    rows = [f"| `{column.name}` | {_type(column)} | {column.unit} | {_meaning(column)} |" for column in columns]
    return ["", "| column | type | unit | meaning |", "| --- | --- | --- | --- |", *rows] if rows else []


def _json(tables: Sequence[Described]) -> str:
    """Renders the declarations as a JSON list."""
    found = [
        {
            "table": table.name,
            "doc": table.doc,
            "equals": table.equals,
            "by": list(table.groupings),
            "options": table.flags,
            "columns": [*map(_object, table.columns)],
            "forms": [{"when": form.when, "doc": form.doc, "columns": [*map(_object, form.columns)]} for form in forms],
        }
        for table, forms in tables
    ]
    return encoder.dumps(found, indent=2, ensure_ascii=False) + "\n"


def _object(column: Column) -> dict[str, object]:
    told = {"unit": column.unit, "doc": column.doc, "nullable": column.nullable}
    return {"name": column.name, "type": _type(column), **told}


FORMATS: Final[dict[str, Callable[[Sequence[Described]], str]]] = {"markdown": _markdown, "json": _json}
