"""Parses register and local memory use of a CUDA kernel from its cubin; needs no tool and no GPU.

A cubin is an ELF file. Its section ``.nv.info`` is a list of records: a format byte, an attribute byte, a 16-bit size,
and for format 4 that many bytes. The attributes read here are those that ``cuobjdump -elf`` calls EIATTR_REGCOUNT and
EIATTR_FRAME_SIZE; each holds the index of the function's symbol and a value, 32 bits each. PTX has no such thing: its
registers are virtual.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

_MAGIC = b"\x7fELF\x02\x01"  # 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RECORD = struct.Struct("<BBH")
_PAIR = struct.Struct("<II")
_SYMBOLS = 2
_BY_SIZE = 4
_FRAME_SIZE, _REGISTER_COUNT = 0x11, 0x2F


@dataclass(frozen=True)
class Resources:
    """Per thread: `registers`, and the bytes of local memory (spilled registers and arrays on the stack)."""

    registers: int | None
    local_bytes: int | None


def resources(cubin: bytes, function: str) -> Resources | None:
    """Resource use of `function`; None if this is not a cubin or lacks the function."""
    try:
        return _resources(cubin, function)
    except (struct.error, IndexError, OverflowError, ValueError):
        return None


def _resources(cubin: bytes, function: str) -> Resources | None:
    if not cubin.startswith(_MAGIC):
        return None
    sections = _sections(cubin)
    names = _symbol_names(cubin, sections)
    index = names.index(function)
    found: dict[int, int] = {}
    for kind_name, section in sections:
        if kind_name == ".nv.info":
            found.update(_values(cubin[section[4] : section[4] + section[5]], index))
    if not found:
        return None
    return Resources(found.get(_REGISTER_COUNT), found.get(_FRAME_SIZE))


def _sections(cubin: bytes) -> list[tuple[str, tuple[int, ...]]]:
    (start,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names_at = struct.unpack_from("<HHH", cubin, 58)
    headers = [_SECTION.unpack_from(cubin, start + number * size) for number in range(count)]
    names = headers[names_at][4]
    return [(_text(cubin, names + header[0]), header) for header in headers]


def _symbol_names(cubin: bytes, sections: list[tuple[str, tuple[int, ...]]]) -> list[str]:
    table = [header for _, header in sections if header[1] == _SYMBOLS][0]  # noqa: RUF015 - IndexError means none
    strings = sections[table[6]][1][4]
    entries = range(table[4], table[4] + table[5], _SYMBOL.size)
    return [_text(cubin, strings + _SYMBOL.unpack_from(cubin, at)[0]) for at in entries]


def _values(info: bytes, symbol: int) -> dict[int, int]:
    """Values of `symbol` by attribute."""
    found = {}
    at = 0
    while at + _RECORD.size <= len(info):
        form, attribute, size = _RECORD.unpack_from(info, at)
        at += _RECORD.size
        if form != _BY_SIZE:
            continue
        if attribute in (_FRAME_SIZE, _REGISTER_COUNT) and size == _PAIR.size:
            owner, value = _PAIR.unpack_from(info, at)
            if owner == symbol:
                found[attribute] = value
        at += size
    return found


def _text(cubin: bytes, at: int) -> str:
    return cubin[at : cubin.index(b"\0", at)].decode()
