"""Errors of the collectors alone; shared ones are in :mod:`kanalyze.errors`.

``docs/errors.md`` explains every case.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from pathlib import Path

from kanalyze.errors import KanalyzeError, nearest
from kanalyze.units import plural


class WorkloadError(KanalyzeError):
    """The workload does not exist or cannot be profiled."""

    slug = "bad-workload"

    @classmethod
    def missing(cls, path: Path, beside: Iterable[str], references: Iterable[str]) -> WorkloadError:
        """Error: `path` is not a file, nor a program on PATH or a reference workload."""
        near = nearest(path.name, beside)
        hint = str(path.parent / near) if near else nearest(path.name, references)
        usual = "Give a .cu file, a Python script, an executable, or a name that `kanalyze workloads` lists."
        remedy = f"Did you mean {hint}?" if hint else usual
        return cls(f"{path}: no such file, program on PATH or reference workload.", remedy)

    @classmethod
    def folder(cls, path: Path) -> WorkloadError:
        """Error: `path` is a folder."""
        return cls(f"{path}: a folder, not a program.", "Give the .cu file, Python script or executable in it.")

    @classmethod
    def not_runnable(cls, path: Path) -> WorkloadError:
        """Error: `path` is a file that can neither be compiled nor run."""
        return cls(
            f"{path}: neither a .cu file nor a Python script, and not executable.",
            f"If it is a program, make it executable: `chmod +x {shlex.quote(str(path))}`.",
        )

    @classmethod
    def unreadable(cls, path: Path, reason: str) -> WorkloadError:
        """Error: reading `path` failed with `reason`."""
        return cls(f"{path}: cannot be read ({reason}).", "Check the file's permissions.")


class BadOptionError(KanalyzeError):
    """An option has an invalid value."""

    slug = "bad-option"

    @classmethod
    def of(cls, option: str, value: object, wanted: str) -> BadOptionError:
        """Error: `option` has `value`, which is not the `wanted` one, a noun phrase."""
        return cls(f"{option} {str(value)!r}: not {wanted}.", f"`kanalyze collect --help` says what {option} takes.")

    @classmethod
    def together(cls, one: str, other: str) -> BadOptionError:
        """Error: the options `one` and `other` exclude each other."""
        return cls(f"{one} and {other} exclude each other.", "Give one of them.")


class CompileError(KanalyzeError):
    """Compiling a CUDA source failed."""

    slug = "compile-failed"

    @classmethod
    def of(cls, path: Path, errors: Iterable[str], log: Iterable[str]) -> CompileError:
        """Error: compiling `path` failed; the first of `errors` leads the message, nvcc's output is in `log`."""
        lines, printed = list(errors), list(log)
        first = next(iter((*lines, *(line.strip() for line in printed[-1:]))), "nvcc said nothing")
        more = f" {plural(len(lines) - 1, 'error')} more came after it." if len(lines) > 1 else ""
        remedy = f"Correct the source, or give nvcc what it needs after --nvcc.{more}"
        error = cls(f"{path}: does not compile: {first}", remedy)
        error.details = printed
        return error

    @classmethod
    def without_nvcc(cls, path: Path, problem: str, remedy: str) -> CompileError:
        """Error: no usable nvcc to compile `path`, because of `problem`; `remedy` is how to get one."""
        return cls(f"{path}: cannot be compiled: nvcc: {problem}.", f"{remedy[0].upper()}{remedy[1:]}.")


class IncompleteError(KanalyzeError):
    """A capture was saved, but is incomplete."""

    slug = "capture-incomplete"
    exit_status = 1

    @classmethod
    def because(cls, folder: Path, reasons: Iterable[str], sides: Iterable[str] = ("",)) -> IncompleteError:
        """Error: the capture in `folder`, or the captures of two `sides` there, are incomplete for these `reasons`."""
        logs = [str(folder / side / "logs") for side in sides]
        have = f"{' and '.join(logs)} {'has' if len(logs) == 1 else 'have'}"
        return cls(f"{folder}: {'; '.join(reasons)}.", f"What was recorded is kept; {have} what the tools said.")


class InterruptedCaptureError(KanalyzeError):
    """The user interrupted a run."""

    slug = "interrupted"
    exit_status = 130

    @classmethod
    def during(cls, name: str, folder: Path | None) -> InterruptedCaptureError:
        """Error: interrupted in the pass `name`; `folder` holds the finished passes, None if there are none."""
        kept = f"What was finished before is in {folder}." if folder else "Nothing was finished, and nothing was kept."
        return cls(f"stopped during {name}.", kept)
