"""Reads instructions in a child process, since NVIDIA's disassembler kills its process on a damaged kernel.

The child runs this module, as ``python -m`` with the report and the file to write as arguments.
"""

from __future__ import annotations

import os
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

#: The child's arguments: this module, and nothing of the current folder in its place.
_CHILD: Final = ("-P", "-m", "kanalyze.readers.ncu.module_process")


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
        try:
            said = subprocess.run(  # noqa: S603 - Python itself, with a module of ours
                [sys.executable, *_CHILD, str(path.absolute()), str(out)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
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


if __name__ == "__main__":
    write(sys.argv[1], sys.argv[2])
