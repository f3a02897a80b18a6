"""Every error that a user can cause, each a kind of its own with a slug, a remedy and an exit status.

The command line prints these in one place (:mod:`kanalyze.cli`): message, remedy, and the slug under which
``docs/errors.md`` explains the case. A test demands an entry there for every slug.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class KanalyzeError(Exception):
    """A cause that the user can do something about.

    Attributes:
        slug: Stable name of the case, the anchor in ``docs/errors.md``.
        exit_status: What the command exits with; 2 for bad input or use.
        remedy: What to do about it, one sentence.
    """

    slug: ClassVar[str] = "error"
    exit_status: ClassVar[int] = 2

    def __init__(self, message: str, remedy: str) -> None:
        """Keep the message (what was found, and where) apart from the remedy (what to do)."""
        super().__init__(message)
        self.remedy = remedy


class ReportNotFoundError(KanalyzeError):
    """The path names nothing."""

    slug = "report-not-found"

    @classmethod
    def at(cls, path: Path) -> ReportNotFoundError:
        """The file `path` does not exist; names the nearest one beside it."""
        beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = nearest(path.name, beside)
        remedy = f"Did you mean {path.parent / hint}?" if hint else "Check the path."
        return cls(f"{path}: no such file.", remedy)


class UnreadableReportError(KanalyzeError):
    """The operating system does not let us read the file."""

    slug = "report-unreadable"

    @classmethod
    def because(cls, path: Path, reason: str) -> UnreadableReportError:
        """Reading `path` failed with `reason`, the operating system's own words."""
        remedy = "Check the file's permissions, or copy it to a local disk."
        return cls(f"{path}: cannot be read ({reason}).", remedy)


class UnknownFormatError(KanalyzeError):
    """The file is not a report that kanalyze reads."""

    slug = "unknown-format"

    @classmethod
    def of(cls, path: Path, found: str, remedy: str = "") -> UnknownFormatError:
        """`path` holds `found`, a noun phrase, instead of a report."""
        usual = "Give the .sqlite file that `nsys export --type=sqlite report.nsys-rep` writes."
        return cls(f"{path}: {found}, not a report that kanalyze reads.", remedy or usual)


class DamagedReportError(KanalyzeError):
    """The file is a report, but part of it is missing or makes no sense."""

    slug = "report-damaged"

    @classmethod
    def at(cls, path: Path, where: str, what: str) -> DamagedReportError:
        """In `path`, at `where` (table, page or row), `what` was found."""
        return cls(
            f"{path}: damaged at {where}: {what}.",
            "Copy the file again, or export it again: `nsys export --type=sqlite --force-overwrite=true REPORT`.",
        )


class BadWindowError(KanalyzeError):
    """The text given as ``--window`` names no part of the report's time."""

    slug = "bad-window"

    @classmethod
    def of(cls, text: str, reason: str) -> BadWindowError:
        """`text` cannot be a window because of `reason`."""
        return cls(
            f"--window {text!r}: {reason}.",
            "Write start..end with units, as in 120ms..250ms; either side may be left out. Times are the report's own.",
        )


class UnknownNameError(KanalyzeError):
    """A table, column, device, process or grouping that does not exist."""

    slug = "unknown-name"

    @classmethod
    def of(cls, what: str, name: object, known: Iterable[object]) -> UnknownNameError:
        """There is no `what` called `name`; says the nearest of the `known` ones, or all of them."""
        choices = [str(choice) for choice in known]
        hint = nearest(str(name), choices)
        listed = ", ".join(choices) if choices else "none"
        remedy = f"Did you mean {hint}? There are: {listed}." if hint else f"There are: {listed}."
        return cls(f"no {what} {str(name)!r}.", remedy)


class OutputError(KanalyzeError):
    """The result cannot be written where it was asked for."""

    slug = "output-failed"

    @classmethod
    def because(cls, path: Path, reason: str) -> OutputError:
        """Writing `path` failed with `reason`; nothing was left under that name."""
        return cls(f"{path}: cannot be written ({reason}).", "Choose another place with -o, or free some space.")

    @classmethod
    def needs_file(cls, form: str) -> OutputError:
        """The format `form` is binary and goes to a file only."""
        return cls(f"--format {form} is binary and is not printed.", "Say where it goes: -o FILE.")


class CannotTellError(KanalyzeError):
    """The report does not hold what the question needs; not the same as an empty answer."""

    slug = "cannot-tell"

    @classmethod
    def without(cls, table: str, path: Path, missing: Iterable[str]) -> CannotTellError:
        """The `table` cannot be made of the report at `path`, which records no events of the kinds `missing`."""
        kinds = ", ".join(missing)
        return cls(
            f"{path}: cannot tell {table}, because the report records no events of kind {kinds}.",
            "Record it again with that trace on: `nsys profile --trace=cuda,nvtx …`.",
        )


def nearest(name: str, choices: Iterable[str]) -> str | None:
    """The one of `choices` that looks most like `name`, or None where none is close."""
    found = difflib.get_close_matches(name, list(choices), n=1, cutoff=0.6)
    return found[0] if found else None
