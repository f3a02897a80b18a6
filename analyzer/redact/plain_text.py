"""Redacts files of lines: pages of ncu as CSV, logs, PTX, source, and what torch prints."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

#: A line is cut here if it is longer: a page of ncu has thousands of columns, but no text of a gigabyte.
_LONGEST: Final = 1 << 24

#: A cell of CSV in quotes; each is a text of its own.
_CELL: Final = re.compile(r'"((?:[^"]|"")*)"')

_HOST_COLUMN: Final = "Host Name"


def learn(source: BinaryIO, names: Names) -> None:
    """Add to `names` what stands in the lines of `source`."""
    while line := source.readline(_LONGEST):
        names.text(_decoded(line))


def copy(source: BinaryIO, target: BinaryIO, texts: Texts, *, cells: bool = False) -> None:
    """Write the lines of `source` to `target`, redacted; with `cells` each quoted cell of a line for itself."""
    host = -1
    while line := source.readline(_LONGEST):
        text = _decoded(line)
        if cells and '"' in text:
            found = _CELL.findall(text)
            host = found.index(_HOST_COLUMN) if _HOST_COLUMN in found else host
            if 0 <= host < len(found) and _HOST_COLUMN not in found:
                text = _without_host(text, host, texts)
            text = _CELL.sub(lambda cell: f'"{texts.free(cell[1])}"', text)
            text = text if '"' in text else texts.free(text)
        else:
            text = texts.free(text)
        target.write(text.encode("utf-8", "surrogateescape"))


def _without_host(line: str, column: int, texts: Texts) -> str:
    """A row of ncu with another name than this host's, unless it is the machine itself, as it calls itself."""
    cells = list(_CELL.finditer(line))
    cell = cells[column]
    if cell[1] in ("", "127.0.0.1", "localhost", "[host]"):
        return line
    texts.removed.add("host names")
    return f'{line[: cell.start()]}"[host]"{line[cell.end() :]}'


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")
