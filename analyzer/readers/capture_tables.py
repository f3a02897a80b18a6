"""What a capture has beside its nsys report: the kernels that Triton and inductor compiled."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.errors import CannotTellError, DamagedReportError
from kanalyze.model import COMPILED_KERNELS
from kanalyze.readers.regular_files import readable, regular

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kanalyze.source import Source

_COMPILED: Final = "compiled.json"

#: What is written where a Python workload ran under torch.profiler, and whatever was compiled was seen.
_LOOKED: Final = "torch-run*.json"


class CaptureTables:
    """The tables of the nsys report in a capture, and what was compiled; see :class:`kanalyze.source.Source`."""

    def __init__(self, folder: Path, source: Source) -> None:
        """Read from `folder`, and what belongs to nsys from `source`."""
        self._folder, self._source = folder, source

    @property
    def kinds(self) -> Iterable[str]:
        """The kinds of events that nsys recorded."""
        return self._source.kinds

    def events(self, kind: str) -> pl.DataFrame:
        """The events of one kind."""
        return self._source.events(kind)

    def table(self, name: str) -> pl.DataFrame:
        """One of the other tables."""
        return self._compiled() if name == COMPILED_KERNELS.name else self._source.table(name)

    def close(self) -> None:
        """Close the report of nsys."""
        self._source.close()

    def notes_of_read(self) -> pl.DataFrame:
        """The notes on what was read of the nsys report."""
        return self._source.notes_of_read()

    def _not_compiled(self) -> pl.DataFrame:
        """The table where nothing was written of it: empty if that was looked for."""
        if any(self._folder.glob(_LOOKED)):
            return COMPILED_KERNELS.empty()
        raise CannotTellError.without_capture("compiled", self._folder)

    def _compiled(self) -> pl.DataFrame:
        path = self._folder / _COMPILED
        if not os.path.lexists(path):
            return self._not_compiled()
        with readable(path):
            content = regular(path).read_bytes()
        try:
            rows = json.loads(content.decode())["kernels"]
            found = pl.DataFrame([_row(row) for row in rows], schema=COMPILED_KERNELS.schema)
            return COMPILED_KERNELS.check(found)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, pl.exceptions.PolarsError) as error:
            raise DamagedReportError.at(path, "the rows of kernels", "not what the collector writes") from error


def _row(row: dict[str, object]) -> dict[str, object]:
    """A row as the table has it; backend and architecture are one text."""
    target = [str(row[part]) for part in ("backend", "arch") if row.get(part) is not None]
    return {name: row.get(name) for name in COMPILED_KERNELS.schema} | {"arch": ":".join(target) or None}
