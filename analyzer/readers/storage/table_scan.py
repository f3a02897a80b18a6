"""Reads integer columns of large SQLite tables straight from the pages of the file, in several threads.

SQLite's own interface hands out a row at a time, which takes minutes for tens of millions of rows. The file
format is public and fixed (https://sqlite.org/fileformat.html), so this module walks a table's b-tree to its
leaf pages and decodes these in blocks (:mod:`.page_decoder`). It is strict: what SQLite
could not have written raises :class:`DamagedPageError`; what is sound but needs SQLite itself (a write-ahead
log, rows longer than a page, other values than integers) raises :class:`NotDecodableError`. Text columns, and
the schema, are read through :mod:`sqlite3`. :func:`read_blocks` makes polars' frames of the blocks.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import polars as pl

from kanalyze.columns import constant
from kanalyze.errors import DamagedReportError
from kanalyze.machinery import in_order, workers
from kanalyze.readers.storage import page_decoder as decoder

if TYPE_CHECKING:
    import numpy.typing as npt

    Ints = npt.NDArray[np.int64]

T = TypeVar("T")

_REALS = ("REAL", "FLOA", "DOUB")
_AFFINITIES = ("INT", "CHAR", "CLOB", "TEXT", "BLOB", *_REALS)
_BLOCK_BYTES = 4 << 20  # smaller blocks wait more for the interpreter's lock, larger ones leave the cache
_HEADER_BYTES = 100
_LAYOUT = """
    SELECT name, type, dflt_value, pk, hidden,
        EXISTS (SELECT 1 FROM pragma_index_list(:table) WHERE origin = 'pk') FROM pragma_table_xinfo(:table)
"""
_MAGIC = b"SQLite format 3\0"
_NEAR = 4  # pages at most so far apart are read at once, with those between: nsys writes its tables interleaved
_READ_PAGES = 128
_ROOT = """
    SELECT rootpage FROM sqlite_master
    WHERE type = 'table' AND name = ? AND typeof(rootpage) = 'integer' AND rootpage > 0
"""
_ROWS = 1 << 20  # in a batch: each one makes polars' threads and the decoding threads wait for each other
_SMALLEST_USABLE = 480


class PagesFile:
    """An SQLite database, open for reading its pages; a context manager."""

    def __init__(self, path: Path) -> None:
        """Open the database at `path` and check its header.

        Raises OSError if the file cannot be opened; DamagedPageError if the header is not one that SQLite writes, or
        the file is shorter than it says; NotDecodableError if there is a journal beside the file, or the header asks
        for one.
        """
        self._path = path
        self._lock = threading.Lock()
        with ExitStack() as refused:
            self._file = refused.enter_context(path.open("rb"))
            size = os.fstat(self._file.fileno()).st_size
            self._page_size, self._usable, self._pages = _parse_header(self._file.read(_HEADER_BYTES), size)
            for journal in (path.with_name(f"{path.name}{suffix}") for suffix in ("-wal", "-journal")):
                if journal.exists() and journal.stat().st_size:
                    raise decoder.NotDecodableError(f"{journal.name} beside the database may hold part of it")
            refused.pop_all()  # it stays open

    def close(self) -> None:
        """Close the file; no scan may be under way."""
        self._file.close()

    def scan(
        self,
        table: str,
        columns: Sequence[str],
        transform: Callable[[decoder.Block], T],
        *,
        threads: int | None = None,
        block_bytes: int = _BLOCK_BYTES,
    ) -> Iterator[T]:
        """Decode integer `columns` of `table`, both spelled as in the schema, block by block in rowid order.

        Args:
            table: Name of the table.
            columns: Names of the wanted columns.
            transform: Called in a worker thread with each block, which is dropped when it returns.
            threads: How many workers; as many as :func:`workers` says where None. At most
                one block more than that is in memory.
            block_bytes: How much of the file makes a block.

        Raises:
            DamagedPageError: The schema, or a page of the table, is damaged.
            NotDecodableError: There are no such table and columns, or only SQLite can read them.
        """
        layout = _read_layout(self._path, table, columns)
        runs = _split(self._leaf_pages(layout.root), max(1, block_bytes // self._page_size))

        def work(numbers: Ints) -> tuple[int, Ints, T]:
            block = decoder.decode(self._read(numbers), layout, columns)
            return int(numbers[0]), block.rowids[[0, -1]], transform(block)

        last, number = None, min(threads or workers(), len(runs))
        with ThreadPoolExecutor(max(number, 1)) as pool:
            try:
                for page, rowids, result in in_order(pool, work, runs, number) if number > 1 else map(work, runs):
                    if last is not None and rowids[0] <= last:
                        raise decoder.DamagedPageError(page, "rowids do not increase")
                    last = rowids[-1]
                    yield result
            finally:
                pool.shutdown(cancel_futures=True)

    def _leaf_pages(self, root: int) -> Ints:
        """The numbers of the leaf pages under `root` from left to right, int64; none for an empty table."""
        level = np.array([root], dtype=np.int64)
        seen = np.zeros(self._pages + 1, dtype=np.bool_)
        for depth in range(20):
            numbers, counts = np.unique(level, return_counts=True)
            page = int(numbers[0] if numbers[0] <= 1 else numbers[-1])  # page 1 holds the schema
            if not 1 < page <= self._pages:
                raise decoder.DamagedPageError(page, "a table's page that is not in the file")
            if (twice := numbers[(counts > 1) | seen[numbers]]).size:
                raise decoder.DamagedPageError(int(twice[0]), "a page that is twice in a table")
            seen[numbers] = True
            head = self._read(level[:1]).rows[0]
            if depth == 0 and head[0] in (2, 10):
                raise decoder.NotDecodableError("an index for a table: it is WITHOUT ROWID, or damaged")
            if depth == 0 and head[0] == decoder.LEAF and not head[3:5].any():
                if int.from_bytes(head[5:7].tobytes(), "big") != self._usable % (1 << 16):
                    raise decoder.DamagedPageError(root, "an empty page with bytes in use")
                return level[:0]
            if head[0] != decoder.INTERIOR:
                return level
            runs = _split(level, max(1, _BLOCK_BYTES // self._page_size))
            level = np.concatenate([decoder.child_pages(self._read(run)) for run in runs])
        raise decoder.DamagedPageError(root, "the table's tree is deeper than any that SQLite makes")

    def _read(self, numbers: Ints) -> decoder.Pages:
        """Read the pages with these numbers, int64, all within the file."""
        size = self._page_size
        data = np.empty(len(numbers) * size + decoder.SLACK, dtype=np.uint8)
        data[-decoder.SLACK :] = 0
        rows = data[: -decoder.SLACK].reshape(-1, size)
        breaks = np.flatnonzero((np.diff(numbers) < 1) | (np.diff(numbers) > _NEAR)) + 1
        for run in pairwise([0, *breaks.tolist(), len(numbers)]):
            for first in range(*run, _READ_PAGES):
                some = numbers[first : min(first + _READ_PAGES, run[1])]
                self._read_near(some, rows[first : first + len(some)])
        return decoder.Pages(data, numbers, size, self._usable)

    def _read_near(self, numbers: Ints, rows: npt.NDArray[np.uint8]) -> None:
        """Read pages with rising numbers, and the few pages between them, at once into `rows`; thread-safe."""
        size, first = self._page_size, int(numbers[0])
        span = int(numbers[-1]) - first + 1
        together = rows if span == len(numbers) else np.empty((span, size), dtype=np.uint8)
        with self._lock:
            self._file.seek((first - 1) * size)
            if (count := self._file.readinto(together.reshape(-1).data)) < together.size:
                raise decoder.DamagedPageError(first + count // size, "the file ends before it")
        if together is not rows:
            np.take(together, numbers - first, axis=0, out=rows, mode="clip")


def _parse_header(header: bytes, file_bytes: int) -> tuple[int, int, int]:
    """Page size, usable bytes per page, and number of pages of a file, by its first bytes (fileformat.html, 1.3)."""
    if len(header) < _HEADER_BYTES or not header.startswith(_MAGIC):
        raise decoder.DamagedPageError(1, "no SQLite header")
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 1 << 16 if page_size == 1 else page_size
    usable = page_size - header[20]
    if not (page_size.bit_count() == 1 and usable >= _SMALLEST_USABLE and header[21:24] == bytes([64, 32, 32])):
        raise decoder.DamagedPageError(1, "a header that makes no sense")
    if header[18:20] != b"\1\1":
        raise decoder.NotDecodableError("the database has a write-ahead log, or is of a newer format")
    pages = int.from_bytes(header[28:32], "big")
    if not pages or header[24:28] != header[92:96]:
        pages = file_bytes // page_size
    if pages * page_size > file_bytes:
        raise decoder.DamagedPageError(file_bytes // page_size + 1, f"the file ends before it, of {pages} pages")
    return page_size, usable, pages


def _read_layout(path: Path, table: str, wanted: Sequence[str]) -> decoder.Layout:
    """What the schema of the database at `path` says about `table` and its columns `wanted`, none of REAL affinity."""
    uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            root = connection.execute(_ROOT, (table,)).fetchone()
            columns = connection.execute(_LAYOUT, {"table": table}).fetchall()
    except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where an error quotes what is damaged
        raise decoder.DamagedPageError(1, f"SQLite cannot read the schema: {error}") from error
    if root is None or not 0 < len(columns) <= decoder.MOST_COLUMNS or any(column[4] for column in columns):
        raise decoder.NotDecodableError(
            f"no table {table} of up to {decoder.MOST_COLUMNS} columns, none of them generated"
        )
    # the first of these words in a declared type decides (https://sqlite.org/datatype3.html, section 3.1)
    affinity = {column[0]: next((word for word in _AFFINITIES if word in column[1].upper()), "") for column in columns}
    for name in (name for name in wanted if affinity.get(name, _REALS[0]) in _REALS):
        raise decoder.NotDecodableError(f"no column {name}, or one of real numbers")
    keys = [index for index, column in enumerate(columns) if column[3]]
    # An INTEGER PRIMARY KEY is the one kind of key that a rowid table holds without an index.
    alias = keys[0] if len(keys) == 1 and not columns[0][5] else None
    filled = frozenset(i for i, column in enumerate(columns) if (column[2] or "NULL").upper() != "NULL")
    return decoder.Layout(root[0], tuple(column[0] for column in columns), alias, filled)


def _split(numbers: Ints, step: int) -> list[Ints]:
    """Cut `numbers` into runs of `step`, the last one shorter."""
    return [numbers[first : first + step] for first in range(0, len(numbers), step)]


def read_blocks(
    path: Path, table: str, columns: Sequence[str], transform: Callable[[pl.DataFrame], pl.DataFrame]
) -> pl.DataFrame | None:
    """Decodes a table in batches of Int64 `columns`, maps each by `transform` and concatenates.

    None if only SQLite can read the table. The table must have rows, and the columns must exist.

    Raises DamagedReportError if a page is invalid.
    """

    def work(block: decoder.Block) -> pl.DataFrame:
        values = [pl.Series(name, column.values) for name, column in block.columns.items()]
        valid = [column.valid for column in block.columns.values()]
        return pl.DataFrame(
            [one if held is None else one.set(pl.Series(~held), None) for one, held in zip(values, valid, strict=True)]
        )

    try:
        with closing(PagesFile(path)) as file:
            return joined([transform(batch) for batch in _together(file.scan(table, columns, work))])
    except decoder.NotDecodableError:
        return None
    except decoder.DamagedPageError as error:
        raise DamagedReportError.at(path, f"table {table}", str(error)) from error


def _together(blocks: Iterable[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Batches `blocks` into frames of at least :data:`_ROWS` rows, except for the last."""
    waiting: list[pl.DataFrame] = []
    for block in blocks:
        waiting.append(block)
        if sum(one.height for one in waiting) >= _ROWS:
            yield pl.concat(waiting, rechunk=True)
            waiting.clear()
    if waiting:
        yield pl.concat(waiting, rechunk=True)


def joined(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenates `parts`, which are consumed: column by column, so that no more than one of them is there twice.

    Columns of one integer, or of nothing but nulls, become literals, which take no memory.
    """
    columns = (pl.concat([part.drop_in_place(name) for part in parts], rechunk=True) for name in parts[0].columns)
    frame = next(columns).to_frame()
    for values in columns:
        alike = values.null_count() == len(values) or (values.dtype.is_integer() and constant(values))
        one = pl.lit(values[0], values.dtype).alias(values.name) if len(values) and alike else values
        frame = frame.with_columns(one)
    return frame
