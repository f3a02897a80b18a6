"""Renders all rows of a table for programs and for pull requests: one function per format.

What stands in `FORMATS` is a ``--format`` of every command that prints tables, and the list is known without polars.
"""

import io
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from kanalyze import machinery, outlets

with machinery.late():
    from kanalyze.renderers.tables import frame as tables

if TYPE_CHECKING:
    import polars as pl


def _parquet(frame: "pl.DataFrame") -> bytes:
    """Parquet file with the table's types."""
    frame.write_parquet(buffer := io.BytesIO())
    return buffer.getvalue()


#: CSV with a header, numbers and texts unformatted, nulls empty; JSON as a list of objects, one per row.
FORMATS: "Final[dict[str, Callable[[pl.DataFrame], bytes]]]" = {
    "csv": lambda frame: frame.write_csv().encode(),
    "json": lambda frame: outlets.escaped_json(frame.write_json()).encode() + b"\n",
    "markdown": lambda frame: tables.markdown(frame).encode(),
    "parquet": _parquet,
}
