"""Damage to a file's bytes, whatever is in it, and values that do not belong where they stand.

Disks, transfers and killed programs leave the one; the other are of another type, out of any range, or hostile.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random

NUMBERS = (0, -1, 1, 255, 1 << 31, -(1 << 31), (1 << 32) - 1, 1 << 53, (1 << 62) + 1, (1 << 63) - 1, -(1 << 63))
REALS = (0.5, -0.0, 1e300, -1e300, math.nan, math.inf, -math.inf)
TEXTS = (
    *("", " ", "x", "-1", "1e9", "nan", "\x1b[2J", "\u202egnp", "</script>", "a" * 5000, "\ud800", "\0", "NULL", "🙂"),
)


def scalar(rng: Random) -> object:
    """A value of any type that a table of a report can hold."""
    kind = rng.randrange(4)
    if kind == 0:
        return None
    if kind == 1:
        return rng.choice(NUMBERS)
    return rng.choice(REALS) if kind == 2 else encodable(rng.choice(TEXTS))


def encodable(text: str) -> str:
    """The same without what UTF-8 cannot write."""
    return text.encode("utf-8", "replace").decode()


def json_value(rng: Random, depth: int = 0) -> object:
    """Any JSON value: scalars, and lists and objects of them."""
    kind = rng.randrange(7 if depth < 2 else 4)
    if kind < 4:
        return scalar(rng)
    if kind == 4:
        return rng.random() < 0.5
    if kind == 5:
        return [json_value(rng, depth + 1) for _ in range(rng.randrange(3))]
    return {rng.choice(["name", "args", "ts", "x", ""]): json_value(rng, depth + 1) for _ in range(rng.randrange(3))}


#: What SQLite writes into its header at this place: the size of a page.
_PAGE_SIZE_AT = 16


def flip_bit(rng: Random, data: bytes) -> bytes:
    """One bit is another."""
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def overwrite(rng: Random, data: bytes) -> bytes:
    """Up to 64 bytes in a row are zeros, ones, or anything."""
    start, stop = _stretch(rng, data, 64)
    filler = rng.choice([b"\0", b"\xff", None])
    return data[:start] + (filler * (stop - start) if filler else rng.randbytes(stop - start)) + data[stop:]


def cut(rng: Random, data: bytes) -> bytes:
    """The end is missing."""
    return data[: rng.randrange(len(data))]


def lose(rng: Random, data: bytes) -> bytes:
    """Up to 4 KiB in the middle are missing."""
    start, stop = _stretch(rng, data, 4096)
    return data[:start] + data[stop:]


def repeat(rng: Random, data: bytes) -> bytes:
    """Up to 4 KiB stand twice."""
    start, stop = _stretch(rng, data, 4096)
    return data[:stop] + data[start:]


def insert(rng: Random, data: bytes) -> bytes:
    """Up to 64 bytes that do not belong there."""
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(rng.randint(1, 64)) + data[at:]


def swap(rng: Random, data: bytes) -> bytes:
    """Two stretches of the same length stand in each other's place."""
    size = rng.randint(1, max(1, min(4096, len(data) // 2)))
    first, second = sorted(rng.randrange(max(1, len(data) - size)) for _ in range(2))
    if second < first + size:
        return flip_bit(rng, data)
    middle = data[first + size : second]
    return data[:first] + data[second : second + size] + middle + data[first : first + size] + data[second + size :]


def copy_page(rng: Random, data: bytes) -> bytes:
    """A page of the database lies over another."""
    size, count = _pages(data)
    source, target = rng.randrange(count), rng.randrange(1, count)
    page = data[source * size : (source + 1) * size]
    return data[: target * size] + page + data[(target + 1) * size :]


def zero_page(rng: Random, data: bytes) -> bytes:
    """A page of the database was never written."""
    size, count = _pages(data)
    target = rng.randrange(count)
    return data[: target * size] + bytes(size) + data[(target + 1) * size :]


def lose_pages(rng: Random, data: bytes) -> bytes:
    """The database ends at a page before its last."""
    size, count = _pages(data)
    return data[: rng.randrange(1, count) * size]


def page_header(rng: Random, data: bytes) -> bytes:
    """A byte of the first twelve of a page, which say how to read it, is another."""
    size, count = _pages(data)
    at = rng.randrange(count) * size + rng.randrange(12)
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def _stretch(rng: Random, data: bytes, most: int) -> tuple[int, int]:
    start = rng.randrange(len(data))
    return start, min(len(data), start + rng.randint(1, most))


def _pages(data: bytes) -> tuple[int, int]:
    size = int.from_bytes(data[_PAGE_SIZE_AT : _PAGE_SIZE_AT + 2], "big")
    return size, len(data) // size


BYTES = {of.__name__: of for of in (flip_bit, overwrite, cut, lose, repeat, insert, swap)}
PAGES = {of.__name__: of for of in (copy_page, zero_page, lose_pages, page_header)}
