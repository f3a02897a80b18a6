"""Errors about ncu reports, with their remedies, and what guards calls of NVIDIA's module."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from kanalyze import outlets
from kanalyze.errors import DamagedReportError, ExportError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

T = TypeVar("T")

#: Longest program output quoted in an error, in characters.
_LINES: Final = 3
_WIDE: Final = 200


def damaged(path: Path, where: str, what: str) -> DamagedReportError:
    """Error: `what` is wrong in the ncu file at `path`, at `where` (page or file)."""
    return DamagedReportError(
        f"{path}: damaged at {where}: {what}.",
        "Copy the file again, or print it again: `ncu --import REPORT --csv --page details --print-units base`.",
    )


def mixed(path: Path, other: Path, what: str) -> DamagedReportError:
    """Error: `path` and `other` should be pages of one report, but their `what` differs."""
    return DamagedReportError(
        f"{path}: not of the same run as {other} ({what}).",
        "Give the pages that were printed of one report, or each alone.",
    )


def unreadable_here(path: Path) -> ExportError:
    """Error: neither the module ncu_report nor an ncu is installed to read `path`."""
    return ExportError(
        f"{path}: an Nsight Compute report, and there is nothing here that can read it (no module ncu_report, no ncu).",
        "Install the module, `pip install 'kanalyze[ncu]'` (it needs no GPU and no toolkit); or put its ncu "
        "on PATH; or print the report where it was recorded and give that: "
        f"`{outlets.command('ncu', '--import', path, '--csv', '--page', 'raw', '--print-units', 'base')}`.",
    )


def unreadable(path: Path, program: str, said: Iterable[str]) -> ExportError:
    """Error: `program` (a module or an ncu) cannot read `path` and printed `said`."""
    lines = [" ".join(line.split()).rstrip(".") for line in said if line.strip()][-_LINES:]
    reason = "; ".join(word if len(word) <= _WIDE else word[: _WIDE - 1] + "…" for word in lines)
    return ExportError(
        f"{path}: {program} cannot read it: {reason or 'it says nothing'}.",
        "A report of a newer ncu needs a module or an ncu as new (`pip install --upgrade ncu-report`); a file that was "
        "cut off has to be copied again.",
    )


# NVIDIA's module raises many types of errors on damaged reports, or returns invalid text.

#: Exceptions raised by the module's functions for damaged parts of a report.
DAMAGE: Final = (
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SystemError,
    TypeError,
    ValueError,
)

_BEYOND: Final = 1 << 63


class Damage:
    """Counts the parts of a report that could not be read."""

    def __init__(self) -> None:
        """Start at zero."""
        self.count = 0

    def tried(self, ask: Callable[[], T], otherwise: T) -> T:
        """The result of `ask`; on failure `otherwise`, counted as one damaged part."""
        with suppress(*DAMAGE):
            return ask()
        self.count += 1
        return otherwise

    def text(self, said: object) -> str:
        """Valid text, as :func:`text` gives it; counted as one damaged part if it had to be repaired."""
        found = text(said)
        self.count += found != str(said)
        return found

    def notes(self, path_name: str) -> list[tuple[str, int | None, int | None, str]]:
        """The health notes about damaged parts."""
        if not self.count:
            return []
        effect = f"{path_name} is damaged: they are left out, and what is left may be wrong, too; copy it again"
        return [("parts of a report that make no sense", self.count, None, effect)]


def text(said: object) -> str:
    """Text from the module with invalid bytes replaced."""
    found = str(said)
    return found if found.isascii() else found.encode(errors="replace").decode()


def count(value: int) -> int | None:
    """A count as Int64; None if it is out of range."""
    return value if -_BEYOND <= value < _BEYOND else None
