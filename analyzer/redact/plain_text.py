"""Redacts text files line by line: CSV pages of ncu, logs, PTX, source, output of torch."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, BinaryIO, Final

from kanalyze.redact.rules.assigned import CLOSED, LONGEST_KEY, OPENED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kanalyze.redact.rules.names import Names
    from kanalyze.redact.rules.texts import Texts

#: Longest line, in bytes; longer ones are split: a page of ncu has thousands of columns, but no field of a gigabyte.
_LONGEST: Final = 1 << 24

#: A quoted CSV cell; each is redacted on its own. In a row nothing else is quoted, and nothing stands beside quotes.
_CELL: Final = re.compile(r'"((?:[^"]|"")*)"')
_ROW: Final = re.compile(r'(?:"(?:[^"]|"")*+"|[\d.]*)(?:,(?:"(?:[^"]|"")*+"|[\d.]*))*+\s*')
_LINE: Final = re.compile(r"[^\n]*\n|[^\n]+")

_HOST_COLUMN: Final = "Host Name"


def learn(source: BinaryIO, names: Names) -> None:
    """Collect identifying names from the lines of `source` into `names`."""
    for block in _blocks(source):
        names.text(block)


def copy(source: BinaryIO, target: BinaryIO, texts: Texts, *, cells: bool = False) -> None:
    """Write the redacted lines of `source` to `target`; with `cells` each quoted cell on its own."""
    host = -1
    for block in _blocks(source):
        # a private key goes from all its lines at once, before each is redacted on its own
        for line in _LINE.findall(texts.free(block) if "\n" in block[:-1] else block):
            text = line
            if cells and '"' in text and _ROW.fullmatch(text):
                found = _CELL.findall(text)
                host = found.index(_HOST_COLUMN) if _HOST_COLUMN in found else host
                if 0 <= host < len(found) and _HOST_COLUMN not in found:
                    text = _without_host(text, host, texts)
                text = _CELL.sub(
                    lambda cell: '"' + texts.free(cell[1].replace('""', '"')).replace('"', '""') + '"', text
                )
            else:
                text = texts.free(text)
            target.write(text.encode("utf-8", "surrogateescape"))


def _blocks(source: BinaryIO) -> Iterator[str]:
    """Lines of `source`, and those of a private key together."""
    while line := source.readline(_LONGEST):
        block = [_decoded(line)]
        missing, size = len(OPENED.findall(block[0])) - len(CLOSED.findall(block[0])), 0
        while missing > 0 and size < LONGEST_KEY and (line := source.readline(_LONGEST)):
            block.append(_decoded(line))
            missing += len(OPENED.findall(block[-1])) - len(CLOSED.findall(block[-1]))
            size += len(line)
        yield "".join(block)


def _without_host(line: str, column: int, texts: Texts) -> str:
    """A CSV row of ncu with the host name in `column` replaced, unless it is the tool's own placeholder."""
    cells = list(_CELL.finditer(line))
    cell = cells[column]
    if cell[1] in ("", "127.0.0.1", "localhost", "[host]"):
        return line
    texts.removed.add("host names")
    return f'{line[: cell.start()]}"[host]"{line[cell.end() :]}'


def _decoded(line: bytes) -> str:
    return line.decode("utf-8", "surrogateescape")
