"""Reads instructions in a child process, since NVIDIA's disassembler kills its process on a damaged kernel."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.counter_model import INSTRUCTIONS
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu.damage import DAMAGE, text
from kanalyze.readers.ncu.module import actions, module
from kanalyze.readers.ncu.source import instructions_of_actions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

_PROGRAM: Final = (
    "import sys; sys.path[:] = {path!r}; from kanalyze.readers.ncu.module_process import write; "
    "write({report!r}, {out!r})"
)


def instructions_apart(path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """The instructions of the report at `path`, read in a child process: :data:`kanalyze.counter_model.INSTRUCTIONS`.

    `opened` are its kernels in this process, from which they are read if no child process can be started.

    Raises:
        DamagedReportError: They are invalid.
    """
    if not sys.executable or getattr(sys, "frozen", False):
        return instructions_of_actions(path, opened)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "instructions.arrow"
        program = _PROGRAM.format(path=sys.path, report=str(path.absolute()), out=str(out))
        try:
            said = subprocess.run(  # noqa: S603 - Python itself, with a program of ours
                [sys.executable, "-I", "-c", program],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError:
            return instructions_of_actions(path, opened)
        if said.returncode or not out.is_file():
            why = "what reads them ended" if said.returncode < 0 else "what reads them fails"
            raise ncu_errors.damaged(path, "the instructions of a kernel", why)
        return INSTRUCTIONS.check(pl.read_ipc(out.read_bytes()))


def write(report: str, out: str) -> None:
    """Write the instructions of a report to a file; exits with status 1 if they are damaged."""
    library = module()
    if library is None:
        sys.exit("the module ncu_report is gone")
    path = Path(report)
    try:
        opened, _ = actions(path, library)
        instructions_of_actions(path, opened).write_ipc(out)
    except DAMAGE as error:
        sys.exit(text(error))
