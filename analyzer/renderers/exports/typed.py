"""Writes tables as Parquet, Arrow and CSV files; the first two with units and meanings in the fields' metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, NamedTuple, cast

import polars as pl

from kanalyze.schema import Table, unit_of

if TYPE_CHECKING:
    from io import IOBase

    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter


#: The file in a folder of tables that says what is in it.
CONTENTS: Final = "tables.json"


#: Meanings of columns that a table has where it is of several windows or reports.
_KEYS: Final = {
    "instance": "The window that the row is of.",
    "report": "The report that the row is of, as it was given.",
}


class Exported(NamedTuple):
    """A table to be written: its declaration with those of its other forms, its rows, and a word on its origin."""

    forms: Sequence[Table]
    frame: pl.DataFrame
    origin: str = ""

    @property
    def name(self) -> str:
        """The table's name."""
        return self.forms[0].name

    def described(self) -> dict[str, tuple[str, str]]:
        """Unit and meaning of each column."""
        known = _KEYS | {column.name: column.doc for form in reversed(self.forms) for column in form.columns}
        return {name: (unit_of(name), known.get(name, "")) for name in self.frame.columns}


def _write(form: str, table: Exported, path: Path) -> None:
    """Writes a whole table."""
    with path.open("wb") as file:
        writer = PartWriter(table, form, file)
        for part in [*table.frame.iter_slices(1 << 16)] if form == "arrow" and table.frame.height else [table.frame]:
            writer.add(part)
        writer.close()


class PartWriter:
    """A table's file that is written part by part: Parquet, Arrow IPC (Feather) or CSV.

    The Arrow schema of the first two has the fields' metadata. CSV has numbers and texts unformatted, nulls empty.
    """

    def __init__(self, table: Exported, form: str, file: BinaryIO) -> None:
        """Nothing is written yet; of `table` the frame is not used."""
        self._table, self._form, self._file = table, form, file
        self._writer: ParquetWriter | pa.RecordBatchFileWriter | None = None
        self._begun = False

    def add(self, part: pl.DataFrame) -> None:
        """Writes further rows; the first ones, none perhaps, give the columns."""
        if self._form == "csv":
            part.write_csv(self._file, include_header=not self._begun)
        else:
            rows = _arrow(self._table._replace(frame=part))
            self._writer = self._writer or self._opened(rows.schema)
            self._writer.write_table(rows)
        self._begun = True

    def close(self) -> None:
        """Writes the end of the file."""
        if self._writer is not None:
            self._writer.close()

    def _opened(self, schema: pa.Schema) -> ParquetWriter | pa.RecordBatchFileWriter:
        from pyarrow import ipc, parquet  # noqa: PLC0415 - takes long to import

        if self._form == "parquet":
            return parquet.ParquetWriter(self._file, schema, compression="zstd")
        return ipc.new_file(cast("IOBase", self._file), schema, options=ipc.IpcWriteOptions(compression="zstd"))


def _arrow(table: Exported) -> pa.Table:
    """A table as Arrow, with its meaning and that of each field."""
    import pyarrow as pa  # noqa: PLC0415 - as above

    found = pl.DataFrame(table.frame).to_arrow(compat_level=pl.CompatLevel.oldest())
    told = table.described()
    fields = []
    for field in found.schema:
        unit, meaning = told[field.name]
        words: dict[bytes | str, bytes | str] = {"description": meaning}
        fields.append(field.with_metadata(words | {"unit": unit} if unit else words))
    about: dict[bytes | str, bytes | str] = {"table": table.name, "description": table.forms[0].doc}
    return found.cast(pa.schema(fields, metadata=about))


class Contents:
    """Contents of a folder of tables, collected while they are written."""

    def __init__(self, reports: Sequence[str]) -> None:
        """Nothing of the `reports` is written yet."""
        self._reports = [*reports]
        self._tables: dict[str, object] = {}

    def add(self, table: Exported, file: str, rows: int | None = None) -> None:
        """A table was written to `file`; with `rows` it has so many, which were written in parts."""
        types = {name: str(kind) for name, kind in table.frame.schema.items()}
        columns = [
            {"name": name, "type": types[name].partition("(")[0], "unit": unit or None, "description": meaning}
            for name, (unit, meaning) in table.described().items()
        ]
        self._tables[table.name] = {
            "file": file,
            "rows": table.frame.height if rows is None else rows,
            "description": table.forms[0].doc,
            "origin": table.origin or None,
            "columns": columns,
        }

    def render(self, missing: Mapping[str, str]) -> bytes:
        """All tables as JSON; `missing` has the reason for each that could not be given."""
        found = {"version": 1, "reports": self._reports, "tables": self._tables, "cannot_tell": dict(missing)}
        return json.dumps(found, indent=1).encode() + b"\n"


#: How each format is written, by its name, which is the file's ending.
WRITERS: Final[dict[str, Callable[[Exported, Path], None]]] = {
    form: partial(_write, form) for form in ("parquet", "arrow", "csv")
}
