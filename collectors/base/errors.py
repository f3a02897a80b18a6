"""What can go wrong with a run of the collectors alone; like :mod:`kanalyze.errors`, which has what others share.

``docs/errors.md`` explains every case.
"""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kanalyze.errors import KanalyzeError, nearest
from kanalyze.units import plural

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class WorkloadError(KanalyzeError):
    """There is no such program, or it is none that can be profiled."""

    slug = "bad-workload"

    @classmethod
    def missing(cls, path: Path, beside: Iterable[str], references: Iterable[str]) -> WorkloadError:
        """There is no file `path`, and neither a program on PATH nor a reference workload of that name."""
        near = nearest(path.name, beside)
        hint = str(path.parent / near) if near else nearest(path.name, references)
        usual = "Give a .cu file, a Python script, an executable, or a name that `kanalyze workloads` lists."
        remedy = f"Did you mean {hint}?" if hint else usual
        return cls(f"{path}: no such file, program on PATH or reference workload.", remedy)

    @classmethod
    def folder(cls, path: Path) -> WorkloadError:
        """`path` is a folder."""
        return cls(f"{path}: a folder, not a program.", "Give the .cu file, Python script or executable in it.")

    @classmethod
    def not_runnable(cls, path: Path) -> WorkloadError:
        """`path` is a file that can neither be compiled nor run."""
        return cls(
            f"{path}: neither a .cu file nor a Python script, and not executable.",
            f"If it is a program, make it executable: `chmod +x {shlex.quote(str(path))}`.",
        )

    @classmethod
    def unreadable(cls, path: Path, reason: str) -> WorkloadError:
        """Reading `path` failed with `reason`."""
        return cls(f"{path}: cannot be read ({reason}).", "Check the file's permissions.")


class BadOptionError(KanalyzeError):
    """An option of a run has a value that cannot be."""

    slug = "bad-option"

    @classmethod
    def of(cls, option: str, value: object, wanted: str) -> BadOptionError:
        """The `option` has the `value`, which is not what is `wanted`, a noun phrase."""
        return cls(f"{option} {str(value)!r}: not {wanted}.", f"`kanalyze collect --help` says what {option} takes.")

    @classmethod
    def together(cls, one: str, other: str) -> BadOptionError:
        """The options `one` and `other` exclude each other."""
        return cls(f"{one} and {other} exclude each other.", "Give one of them.")


class CompileError(KanalyzeError):
    """A CUDA source does not compile."""

    slug = "compile-failed"

    @classmethod
    def of(cls, path: Path, errors: Iterable[str], log: Iterable[str]) -> CompileError:
        """Compiling `path` failed; the first of the `errors` stands first, and all that nvcc said is in `log`."""
        lines, told = list(errors), list(log)
        first = lines[0] if lines else (told[-1].strip() if told else "nvcc said nothing")
        more = f" {plural(len(lines) - 1, 'error')} more came after it." if len(lines) > 1 else ""
        error = cls(
            f"{path}: does not compile: {first}", f"Correct the source, or give nvcc what it needs after --nvcc.{more}"
        )
        error.details = told
        return error

    @classmethod
    def without_nvcc(cls, path: Path, problem: str) -> CompileError:
        """There is no nvcc to compile `path` with, because of `problem`."""
        return cls(
            f"{path}: cannot be compiled: nvcc: {problem}.",
            "Install the CUDA toolkit (https://developer.nvidia.com/cuda-downloads) and put its nvcc on PATH, or say "
            "where it is with --nvcc-path.",
        )


class IncompleteError(KanalyzeError):
    """A capture is there, but not all of it is as it should be."""

    slug = "capture-incomplete"
    exit_status = 1

    @classmethod
    def because(cls, folder: Path, reasons: Iterable[str]) -> IncompleteError:
        """The capture in `folder` lacks what the `reasons` say."""
        return cls(
            f"{folder}: {'; '.join(reasons)}.", f"What was recorded is kept; {folder / 'logs'} has what the tools said."
        )


class InterruptedCaptureError(KanalyzeError):
    """The user stopped a run."""

    slug = "interrupted"
    exit_status = 130

    @classmethod
    def during(cls, name: str, folder: Path | None) -> InterruptedCaptureError:
        """It was stopped in the pass `name`; `folder` has the passes before, None where there is none."""
        kept = f"What was finished before is in {folder}." if folder else "Nothing was finished, and nothing was kept."
        return cls(f"stopped during {name}.", kept)
