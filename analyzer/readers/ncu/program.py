"""Prints a report as CSV pages with the installed ncu, where the module is missing."""

from __future__ import annotations

import os
import subprocess
import tempfile
from typing import IO, TYPE_CHECKING, Final

from kanalyze.machinery.parents import ending_with
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.nsys.program import installed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    Runner = Callable[[Sequence[str], IO[bytes], IO[bytes]], int]

#: Where ncu is when it is not on PATH.
_USUAL: Final = (
    "/opt/nvidia/nsight-compute/*/ncu",
    "/usr/local/cuda*/bin/ncu",
    "/usr/local/cuda*/nsight-compute-*/ncu",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute/ncu",
    "/usr/lib/nsight-compute/ncu",
)

#: Pages to print.
PAGES: Final = ("raw", "details", "source")

#: Prints full kernel names, as other tools do; older versions lack the option and do not shorten.
_WHOLE_NAMES: Final = ("--rename-kernels", "off")


def find() -> Path | None:
    """The ncu on PATH, else the newest in the usual folders; None if there is none."""
    return installed("ncu", _USUAL)


def run(command: Sequence[str], said: IO[bytes], errors: IO[bytes]) -> int:
    """Run a program to its end; returns its exit status.

    Raises:
        OSError: It cannot be started.
    """
    return subprocess.run(  # noqa: S603 - ncu, with the report's path and no shell
        list(command),
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=errors,
        check=False,
        preexec_fn=ending_with(os.getpid()),
    ).returncode


def printed(path: Path, page: str, program: Path, runner: Runner = run) -> bytes:
    """Prints one page of the report at `path` with the ncu `program`, in base units.

    Raises:
        ExportError: It cannot read the report, or not be started.
    """
    options = ("--import", str(path.absolute()), "--csv", "--page", page, "--print-units", "base")
    status, text, errors = _said((str(program), *options, *_WHOLE_NAMES), path, runner)
    if status and b"rename-kernels" in errors + text:
        status, text, errors = _said((str(program), *options), path, runner)
    if status:
        lines = (errors + text).decode(errors="replace").splitlines()
        raise ncu_errors.unreadable(path, str(program), lines)
    return text


def _said(command: Sequence[str], path: Path, runner: Runner) -> tuple[int, bytes, bytes]:
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as errors:
        try:
            status = runner(command, said, errors)
        except OSError as error:
            raise ncu_errors.unreadable(path, command[0], [error.strerror or str(error)]) from error
        said.seek(0)
        errors.seek(0)
        return status, said.read(), errors.read()
