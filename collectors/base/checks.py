"""Parses the check lines in which a program reports whether its result is correct."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.process import end_of

if TYPE_CHECKING:
    from pathlib import Path

_LINE: Final = re.compile(rb"^(?:[\w.:-]+\s)?(check: *(ok|FAILED)\b.*|Max error: *(\S+).*)$", re.MULTILINE)

#: Tolerance of a single-precision result.
_TOLERANCE: Final = 1e-3


@dataclass(frozen=True)
class Check:
    """A check line as printed, and whether it says that the result is right."""

    line: str
    passed: bool


def checks(log: Path) -> list[Check]:
    """The distinct check lines in a log: ``check: ok …``, ``check: FAILED …`` and ``Max error: 0``."""
    text = end_of(log).replace(b"\r", b"\n")  # a check is the last thing a program prints
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
