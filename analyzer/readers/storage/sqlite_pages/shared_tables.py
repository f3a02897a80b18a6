"""Decodes tables of a file into memory that processes share, for :mod:`.decoded_ahead`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from kanalyze.readers.storage.sqlite_pages.table_scan import DamagedPageError, NotDecodableError, PagesFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from mmap import mmap
    from pathlib import Path

    import numpy.typing as npt

    from kanalyze.readers.storage.sqlite_pages.table_scan import Column

    #: Place of a column: the byte from which on its numbers stand, int64; the byte from which on a bit says of each
    #: that it is not null, the lowest first, None where none is. Or the one value of all rows, and no bytes.
    Place = tuple[int | None, int | None, int | None]

#: Bytes of a number; columns begin at multiples of it.
_WORD: Final = 8

#: So much of the file is decoded at a time.
_BLOCK_BYTES: Final = 1 << 20


def decode_tables(
    path: Path, tables: Iterable[tuple[str, Sequence[str]]], memory: mmap
) -> Iterator[tuple[str, int, dict[str, Place]]]:
    """Decodes tables of a file, given with the columns that are wanted, into `memory`.

    Yields:
        Name and rows of each table, and the places of its columns, in row order. A table is left out if a column of it
        cannot be decoded, or if its columns might not fit: errors are told by who reads it.
    """
    end = 0
    for name, columns in tables:
        try:
            with PagesFile(path) as file:
                blocks = _fitting(file, name, columns, len(memory) - end)
        except (DamagedPageError, NotDecodableError):
            continue
        places = {}
        for column in columns if blocks else ():
            places[column], end = _put([block[column] for block in blocks], memory, end)
        yield name, sum(len(block[columns[0]].values) for block in blocks), places


def _fitting(file: PagesFile, name: str, columns: Sequence[str], most_bytes: int) -> list[dict[str, Column]]:
    """The columns of a table, block by block; nothing if they and what says of each number that it is one take more."""
    blocks: list[dict[str, Column]] = []
    rows = 0
    for block in file.scan(name, columns, lambda block: block.columns, threads=1, block_bytes=_BLOCK_BYTES):
        rows += len(block[columns[0]].values)
        if len(columns) * (rows * (_WORD + 1 / 8) + 2 * _WORD) > most_bytes:
            return []
        blocks.append(block)
    return blocks


def _put(blocks: Sequence[Column], memory: mmap, at: int) -> tuple[Place, int]:
    """Writes a column, given by `blocks`, to `memory` from byte `at` on; its place, and the byte behind it."""
    valid = _valid(blocks)
    same, value = _single_value(blocks, valid)
    if same:
        return (None, None, value), at
    rows = sum(len(block.values) for block in blocks)
    np.concatenate([block.values for block in blocks], out=np.frombuffer(memory, np.int64, rows, at))
    end = at + rows * _WORD
    if valid is None:
        return (at, None, None), end
    bits = np.packbits(valid, bitorder="little")
    np.frombuffer(memory, np.uint8, len(bits), end)[:] = bits
    return (at, end, None), end + -(-len(bits) // _WORD) * _WORD


def _valid(blocks: Sequence[Column]) -> npt.NDArray[np.bool_] | None:
    """Which numbers of a column are not null; None where all are."""
    if all(block.valid is None for block in blocks):
        return None
    return np.concatenate(
        [np.ones(len(block.values), np.bool_) if block.valid is None else block.valid for block in blocks]
    )


def _single_value(blocks: Sequence[Column], valid: npt.NDArray[np.bool_] | None) -> tuple[bool, int | None]:
    """Whether all rows of a column have the same value, and that value."""
    if valid is not None:
        return not valid.any(), None
    first = int(blocks[0].values[0])
    return all(bool((block.values == first).all()) for block in blocks), first
