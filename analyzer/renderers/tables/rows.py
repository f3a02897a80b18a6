"""Renders all rows of a table for programs and for pull requests: one function per format.

What stands in `FORMATS` is a ``--format`` of every command that prints tables, and the list is known without polars.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kanalyze import machinery, outlets

with machinery.late():
    from kanalyze.renderers import page
    from kanalyze.renderers.page import kernel_names
    from kanalyze.renderers.tables import frame as tables

if TYPE_CHECKING:
    import polars as pl


def _markdown(frame: "pl.DataFrame") -> bytes:
    """Markdown table with units, numbers right-aligned, names of kernels shortened."""
    cells = []
    for name in frame.columns:
        texts = [page.text_of(name, value) for value in frame.get_column(name)]
        if name in tables.KERNELS and name not in tables.PHRASES:
            cells.append([*map(outlets.code, kernel_names.shorten(texts, tables.NAME_MOST))])
        else:
            cells.append([*map(outlets.markdown, texts)])
    rules = [":--" if tables.is_text(kind) else "--:" for kind in frame.schema.values()]
    return "".join(f"| {' | '.join(row)} |\n" for row in (frame.columns, rules, *zip(*cells, strict=True))).encode()


def _parquet(frame: "pl.DataFrame") -> bytes:
    """Parquet file with the table's types."""
    frame.write_parquet(buffer := io.BytesIO())
    return buffer.getvalue()


#: CSV with a header, numbers and texts unformatted, nulls empty; JSON as a list of objects, one per row.
FORMATS: "Final[dict[str, Callable[[pl.DataFrame], bytes]]]" = {
    "csv": lambda frame: frame.write_csv().encode(),
    "json": lambda frame: outlets.escaped_json(frame.write_json()).encode() + b"\n",
    "markdown": _markdown,
    "parquet": _parquet,
}
