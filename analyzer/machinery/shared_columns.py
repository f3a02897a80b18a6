"""Columns of integers in memory that processes share, as polars series that copy nothing.

Arrow's C data interface (https://arrow.apache.org/docs/format/CDataInterface.html) hands them over, which polars takes
from any object that offers it.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Mapping
    from mmap import mmap


class _Schema(ctypes.Structure):
    """``ArrowSchema``: the type of an array."""

    _fields_ = (
        ("format", ctypes.c_char_p),
        ("name", ctypes.c_char_p),
        ("metadata", ctypes.c_char_p),
        ("flags", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    """``ArrowArray``: the data of an array."""

    _fields_ = (
        ("length", ctypes.c_int64),
        ("null_count", ctypes.c_int64),
        ("offset", ctypes.c_int64),
        ("n_buffers", ctypes.c_int64),
        ("n_children", ctypes.c_int64),
        ("buffers", ctypes.POINTER(ctypes.c_void_p)),
        ("children", ctypes.c_void_p),
        ("dictionary", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private_data", ctypes.c_void_p),
    )


_INT64: Final = b"l"
_NULLABLE: Final = 2
_UNCOUNTED: Final = -1

_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

#: What polars calls when it needs a column no more, in any thread, with Python's lock or without: a function of C that
#: does nothing.
_RELEASE: Final = ctypes.cast(ctypes.pythonapi.Py_IsInitialized, ctypes.c_void_p).value

#: All that was handed over: it stays as long as the process.
_handed_over: list[object] = []


def shared_frame(
    memory: mmap, rows: int, places: Mapping[str, tuple[int | None, int | None, int | None]]
) -> pl.DataFrame:
    """Columns of `rows` numbers, Int64, in `memory`, which is written to no more and stays as long as the process.

    Args:
        memory: What holds them.
        rows: How many numbers each has.
        places: By column, the byte from which on the numbers stand, int64; the byte from which on a bit says of each
            that it is not null, the lowest first, or None where none is; and instead of both, what all numbers are.
    """
    first = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    _handed_over.append(memory)
    return pl.DataFrame([_series(first, rows, *place).alias(name) for name, place in places.items()])


def _series(first: int, rows: int, at: int | None, valid_at: int | None, value: int | None) -> pl.Series:
    """A column, in memory from the address `first` on; or of one value."""
    if at is None:
        return pl.Series([value], dtype=pl.Int64).new_from_index(0, rows)
    return pl.Series(_Column(rows, first + at, None if valid_at is None else first + valid_at))


class _Column:
    """An array that polars asks for."""

    def __init__(self, rows: int, numbers: int, valid: int | None) -> None:
        """`rows` numbers at an address; with `valid`, the address of a bit for each."""
        self._rows, self._numbers, self._valid = rows, numbers, valid

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """The capsules of the type and of the data."""
        del requested_schema  # there is one type
        buffers = (ctypes.c_void_p * 2)(self._valid, self._numbers)
        missing = 0 if self._valid is None else _UNCOUNTED
        schema = _Schema(_INT64, b"", None, _NULLABLE, 0, None, None, _RELEASE, None)
        array = _Array(self._rows, missing, 0, len(buffers), 0, buffers, None, None, _RELEASE, None)
        _handed_over.extend((schema, array, buffers))
        return (
            _new_capsule(ctypes.addressof(schema), b"arrow_schema", None),
            _new_capsule(ctypes.addressof(array), b"arrow_array", None),
        )
