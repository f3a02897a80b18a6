"""Decodes pages of an SQLite table b-tree into integer columns, a block of pages at a time.

Pure: bytes in, arrays out; :mod:`.table_scan` finds and reads the pages. The source of every definition is
https://sqlite.org/fileformat.html, sections 1.6 (b-tree pages) and 2.1 (record format).
All offsets are bytes from the start of the block's data.

A page that SQLite could not have written is never decoded: cell pointers, cell sizes, the bytes in use on the
page, record headers and record lengths must all agree, for every row and every column, wanted or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Bytes = npt.NDArray[np.uint8]
    Ints = npt.NDArray[np.int64]
    Mask = npt.NDArray[np.bool_]

INTERIOR, LEAF = 5, 13  # the first byte of a table's pages
MOST_COLUMNS = 126  # with more, a record header has 128 bytes or more, and its length two
SLACK = 256  # bytes after a block's last page: as far as a header or value may be read before it is checked

_SMALLEST_FREE = 4
_MORE = 0x80  # the bit that says that a varint goes on
_LONGEST_VARINT = 9
_REAL, _ZERO, _ONE, _UNUSED, _TEXT = 7, 8, 9, (10, 11), 12  # serial types; below 7, integers and NULL (0)
_CUT = 1 << 20  # longer serial types are cut to this, which is longer than any page, to keep sums in range
_WIDTHS = np.array([0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0, *((t - 12) // 2 for t in range(12, 256))], np.uint8)
_SHIFTS = np.array([63, 56, 48, 40, 32, 16, 0, *[63] * 3], np.int64)  # from eight bytes to the value's own


class NotDecodableError(Exception):
    """The table looks sound, but only SQLite itself can read it."""


class DamagedPageError(Exception):
    """A page that SQLite could not have written: page number, from 1, and reason."""

    def __init__(self, page: int, reason: str) -> None:
        """Page number `page` is damaged because of `reason`."""
        super().__init__(f"page {page}: {reason}")


class Column(NamedTuple):
    """One integer column of a block."""

    values: Ints  # [rows]; 0 where the column is NULL
    valid: Mask | None  # [rows], False where it is NULL; None where no row is


class Block(NamedTuple):
    """Consecutive rows of a table, at least one. Columns may share their arrays: do not write to them."""

    rowids: Ints  # [rows], strictly increasing
    columns: dict[str, Column]  # the wanted ones, by name, in the order in which they were asked for


class Layout(NamedTuple):
    """Schema of one table."""

    root: int  # number of its root page
    columns: tuple[str, ...]  # names of all columns, in stored order
    alias: int | None  # index of the INTEGER PRIMARY KEY: stored as NULL, its value is the rowid
    filled: frozenset[int]  # indexes of columns that are not NULL in rows from before they were added


class Pages(NamedTuple):
    """Pages of one kind, read into memory one after the other."""

    data: Bytes  # [pages * size + SLACK]
    numbers: Ints  # [pages], their numbers in the file
    size: int  # bytes per page, a power of two
    usable: int  # bytes per page that SQLite uses, from its start

    @property
    def rows(self) -> Bytes:
        """The pages as uint8[pages, size]."""
        return self.data[: len(self.numbers) * self.size].reshape(-1, self.size)

    def number(self, at: int, shape: str) -> Ints:
        """The number of numpy type `shape` at byte `at` of every page, int64[pages]."""
        return np.ndarray(len(self.numbers), shape, self.data, at, (self.size,)).astype(np.int64)

    def refuse(self, bad: Mask, reason: str) -> None:
        """Raise DamagedPageError for the first page that is `bad`, bool[pages], if one is."""
        if bad.any():
            raise DamagedPageError(int(self.numbers[bad.argmax()]), reason)


class Cells(NamedTuple):
    """Cell positions of some pages."""

    pages: Pages
    starts: Ints  # [cells], offset of each cell, in the order of the cell pointers
    firsts: Ints  # [pages], index of each page's first cell
    tops: Ints  # [pages], where in each page the cell content area begins

    def refuse(self, bad: Mask, reason: str) -> None:
        """Raise DamagedPageError for the page of the first cell that is `bad`, bool[cells], if one is."""
        if bad.any():
            page = np.searchsorted(self.firsts, bad.argmax(), side="right") - 1
            raise DamagedPageError(int(self.pages.numbers[page]), reason)

    def check_space(self, sizes: Ints) -> None:
        """Check the cells' `sizes`, bytes, int64[cells], against the free-space accounting of each page.

        The cell content area holds cells, free blocks and fragments, the sum of which is in the page header,
        and nothing else (fileformat.html, section 1.6).

        Raises DamagedPageError if a cell leaves its page, or the account does not add up.
        """
        pages = self.pages
        self.refuse(((self.starts & (pages.size - 1)) + sizes) > pages.usable, "a cell ends outside of the page")
        used = np.add.reduceat(sizes, self.firsts) + _free_bytes(pages)
        room = pages.usable - self.tops - pages.rows[:, 7]
        pages.refuse(used > room, "the cells overlap")
        pages.refuse(used < room, "the cells do not fill the page")


def _free_bytes(pages: Pages) -> Ints:
    """Bytes in the free blocks of each page, int64[pages]; raises DamagedPageError for a broken chain."""
    numbers = np.ndarray(len(pages.data) - 1, ">u2", pages.data, 0, (1,))
    bases = np.arange(len(pages.numbers)) * pages.size
    at = pages.number(1, ">u2")
    free = np.zeros_like(at)
    while (rows := at > 0).any():
        pages.refuse(at > pages.usable - _SMALLEST_FREE, "a free block outside of the page")
        after, sizes = numbers[bases + at].astype(np.int64), numbers[bases + at + 2].astype(np.int64)
        pages.refuse(rows & (after > 0) & (after < at + sizes), "free blocks that do not rise")
        pages.refuse(rows & (sizes < _SMALLEST_FREE), "a free block that is too small")
        free += np.where(rows, sizes, 0)
        at = np.where(rows, after, 0)
    return free


def find_cells(pages: Pages, kind: int) -> Cells:
    """Read the headers and cell pointers of `pages`, all of which must be of `kind` and hold cells.

    Raises DamagedPageError if a page is not a page of `kind`, or a cell pointer points outside of the cell area.
    """
    pages.refuse(pages.rows[:, 0] != kind, f"not a page of type {kind}")
    header = {INTERIOR: 12, LEAF: 8}[kind]
    counts = pages.number(3, ">u2")
    tops = pages.number(5, ">u2")
    tops[tops == 0] = 1 << 16
    pages.refuse(counts == 0, "an empty page within a table")
    pages.refuse((tops < header + 2 * counts) | (tops > pages.usable), "the cell content area makes no sense")
    most = int(counts.max())
    pointers = np.ascontiguousarray(pages.rows[:, header : header + 2 * most]).view(">u2").astype(np.int64)
    bases = np.arange(len(counts)) * pages.size
    starts = (pointers + bases[:, np.newaxis])[np.arange(most) < counts[:, np.newaxis]]
    firsts = np.cumsum(counts) - counts
    outside = np.minimum.reduceat(starts, firsts) - bases < tops
    outside |= np.maximum.reduceat(starts, firsts) - bases >= pages.usable
    pages.refuse(outside, "a cell pointer points outside of the cell area")
    return Cells(pages, starts, firsts, tops)


def child_pages(pages: Pages) -> Ints:
    """The numbers of the pages below the interior `pages`, from left to right; unchecked numbers.

    Raises DamagedPageError if one of `pages` is not a sound interior page.
    """
    cells = find_cells(pages, INTERIOR)
    _, ends = _varints(pages.data, cells.starts + 4)
    cells.check_space(ends - cells.starts)
    left = np.ndarray(len(pages.data) - 3, ">u4", pages.data, 0, (1,))[cells.starts].astype(np.int64)
    return np.insert(left, np.append(cells.firsts[1:], len(left)), pages.number(8, ">u4"))


def decode(pages: Pages, layout: Layout, columns: Sequence[str]) -> Block:
    """Decode `columns` of all rows on the leaf `pages` of a table.

    Raises DamagedPageError if SQLite could not have written one of the pages; NotDecodableError if a row overflows its
    page, has more columns than declared, or lacks a column that has a default; or one of `columns` holds something else
    than integers and NULL.
    """
    cells = find_cells(pages, LEAF)
    payloads, at = _varints(pages.data, cells.starts)
    rowids, at = _varints(pages.data, at)
    _check_payloads(cells, payloads, at - cells.starts)
    cells.refuse(np.append(False, rowids[1:] <= rowids[:-1]), "rowids do not increase")
    headers, first = _varints(pages.data, at)
    cells.refuse((headers < 1) | (headers > payloads), "a record header is longer than its record")
    types, complete = _serial_types(cells, first, at + headers, len(layout.columns))
    widths = [_column_widths(cells, serial) for serial in types]
    lengths = headers.copy()
    for width in widths:  # in place: one array, not one for each column
        lengths += width
    cells.refuse(lengths != payloads, "a record's columns do not fill it")
    if len(types) > len(layout.columns):
        raise NotDecodableError("a row has more columns than its table")
    wanted = {layout.columns.index(name): name for name in columns}
    lacking = [index for index in wanted if index in layout.filled and index >= complete]
    if lacking:
        raise NotDecodableError(f"rows from before column {wanted[lacking[0]]} was added take its default")
    decoded: dict[str, Column] = {}
    if layout.alias is not None:
        cells.refuse(types[layout.alias] != 0, "an INTEGER PRIMARY KEY not stored as NULL")
        decoded[layout.columns[layout.alias]] = Column(rowids, None)
        wanted.pop(layout.alias, None)
    data, at = pages.data, at + headers  # the value of the next column lies at `at` of `data`
    for index in range(max(wanted, default=-1) + 1):
        if index in wanted:
            decoded[wanted[index]] = _decode_column(wanted[index], types[index], data, at)
        if isinstance(width := widths[index], int):
            data = data[width:]  # as if it were added to each row, in no time
        else:
            at += width
    return Block(rowids, {name: decoded[name] for name in columns})


def _check_payloads(cells: Cells, payloads: Ints, prefixes: Ints) -> None:
    """Check that cells of `prefixes` + `payloads` bytes, int64[rows], fit pages, none overflowing (section 1.6)."""
    usable = cells.pages.usable
    cells.refuse(payloads < 0, "a record of negative length")
    largest = usable - 35
    if int(payloads.max()) <= largest:
        cells.check_space(prefixes + payloads)
        return
    least = (usable - 12) * 32 // 255 - 23
    local = least + (payloads - least) % (usable - 4)
    local[local > largest] = least
    cells.check_space(prefixes + np.where(payloads > largest, local + 4, payloads))
    raise NotDecodableError("a row is longer than a page")


def _serial_types(cells: Cells, at: Ints, ends: Ints, declared: int) -> tuple[list[Bytes | Ints], int]:
    """The serial types in the record headers from `at` to `ends`, offsets int64[rows]; and how many every row has.

    They are of the `declared` columns, and of more if a row has more, [rows] each: 0 (NULL) where a row lacks it.
    """
    data = cells.pages.data
    if (ends - at == declared).all():
        headers = np.ndarray(len(data) - declared, f"V{declared}", data, 0, (1,))[at]
        matrix = np.ascontiguousarray(headers.view(np.uint8).reshape(-1, declared).T)
        if int(matrix.max()) < _MORE:
            return list(matrix), declared
    types: list[Bytes | Ints] = []
    complete = 0
    at = at.copy()
    while (rows := np.flatnonzero(at < ends)).size:
        if len(types) == MOST_COLUMNS:
            cells.refuse(at < ends, "a record of far more columns than its table has")
        complete += int(rows.size == at.size)
        serial = np.zeros(at.size, dtype=np.int64)
        values, at[rows] = _varints(data, at[rows])
        serial[rows] = np.where(values < 0, _CUT, np.minimum(values, _CUT))
        types.append(serial)
    cells.refuse(at != ends, "a record header does not end where it says")
    return [*types, *[np.zeros(at.size, dtype=np.int64)] * (declared - len(types))], complete


def _column_widths(cells: Cells, serial: Bytes | Ints) -> int | Bytes | Ints:
    """Width of values of the `serial` types, [rows], in bytes: a scalar if all are equal."""
    first = int(serial[0])
    if (serial == first).all():
        cells.refuse(np.full(1, first in _UNUSED), "a serial type that does not exist")
        return int(_WIDTHS[first]) if first < _TEXT else (first - _TEXT) // 2
    cells.refuse((serial == _UNUSED[0]) | (serial == _UNUSED[1]), "a serial type that does not exist")
    if serial.dtype == np.uint8:
        return _WIDTHS.take(serial)
    return np.where(serial < _TEXT, _WIDTHS.take(np.minimum(serial, _TEXT)), (serial - _TEXT) // 2)


def _decode_column(name: str, serial: Bytes | Ints, data: Bytes, at: Ints) -> Column:
    """Decode the column `name`, whose values of `serial` types, [rows], lie at `at`, int64[rows], of `data`.

    Raises NotDecodableError for other values than integers and NULL.
    """
    least, most = int(serial.min()), int(serial.max())
    if most > _ONE or (serial == _REAL).any():
        raise NotDecodableError(f"column {name} holds more than integers")
    if ((serial > 1) & (serial < _REAL)).any():
        values = np.ndarray(len(data) - 8, "V8", data, 0, (1,))[at].view(">i8").astype(np.int64)
        values >>= _SHIFTS[least] if least == most else _SHIFTS.take(serial)
    else:
        values = data.take(at).view(np.int8).astype(np.int64)
    if least == 0 or most >= _ZERO:
        np.putmask(values, (serial == 0) | (serial >= _ZERO), 0)
        np.putmask(values, serial == _ONE, 1)
    return Column(values, serial != 0 if least == 0 else None)


def _varints(data: Bytes, at: Ints) -> tuple[Ints, Ints]:
    """The varints at the offsets `at`, int64[n], of `data`, and the offsets behind them.

    Seven bits a byte, the highest first, as long as the byte's top bit is set; a ninth byte gives all eight.
    """
    byte = data.take(at)
    at = at + 1
    values = (byte & 0x7F).astype(np.int64)
    more = byte >= _MORE
    rows: slice | Ints = slice(None)
    for length in range(2, _LONGEST_VARINT + 1):
        if not more.any():
            break
        if not more.all():
            rows = np.flatnonzero(more) if isinstance(rows, slice) else rows[more]
        byte = data.take(at[rows])
        at[rows] += 1
        bits = 7 if length < _LONGEST_VARINT else 8
        values[rows] = values[rows] << bits | byte & ((1 << bits) - 1)
        more = byte >= _MORE
    return values, at
