"""Parses the check lines in which a program reports whether its result is correct."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_LINE: Final = re.compile(rb"^(?:[\w.:-]+\s)?(check: *(ok|FAILED)\b.*|Max error: *(\S+).*)$", re.MULTILINE)

#: Tolerance of a single-precision result.
_TOLERANCE: Final = 1e-3

#: Bytes at the end of a log that are searched, since a check is the last thing a program prints.
_LOOKED_AT_BYTES: Final = 1 << 20


@dataclass(frozen=True)
class Check:
    """A parsed check line.

    Attributes:
        line: The line as printed.
        passed: Whether the result is right.
    """

    line: str
    passed: bool


def checks(log: Path) -> list[Check]:
    """The distinct check lines in a log: ``check: ok …``, ``check: FAILED …`` and ``Max error: 0``."""
    with log.open("rb") as file:
        file.seek(max(file.seek(0, 2) - _LOOKED_AT_BYTES, 0))
        text = file.read().replace(b"\r", b"\n")
    lines = (match.groups(default=b"") for match in _LINE.finditer(text))
    found = (Check(line.decode(errors="replace").strip(), _passed(said, error)) for line, said, error in lines)
    return list(dict.fromkeys(found))


def _passed(said: bytes, error: bytes) -> bool:
    if said:
        return said == b"ok"
    try:
        value = float(error.rstrip(b",;."))
    except ValueError:
        return False
    return math.isfinite(value) and abs(value) <= _TOLERANCE
