"""Reads instructions and sources in a child process, since NVIDIA's module kills its process on some damaged ones.

The child runs this module, as ``python -m`` with what to read, the report and the file to write as arguments.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.counter_model import INSTRUCTIONS, SOURCE_FILES
from kanalyze.machinery.parents import end_with
from kanalyze.readers.ncu import errors as ncu_errors
from kanalyze.readers.ncu.errors import DAMAGE, text
from kanalyze.readers.ncu.module import actions, module
from kanalyze.readers.ncu.source import files_of_actions, instructions_of_actions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from kanalyze.schema import Table

#: The child's arguments: this module, and nothing of the current folder in its place.
_CHILD: Final = ("-P", "-m", "kanalyze.readers.ncu.module_process")


class _Part(NamedTuple):
    """A table that is read in a child process: of which columns, how, and what it is called in messages."""

    declared: Table
    read: Callable[[Path, Sequence[Any]], pl.DataFrame]
    text: str


_PARTS: Final = {
    "instructions": _Part(INSTRUCTIONS, instructions_of_actions, "the instructions of a kernel"),
    "files": _Part(SOURCE_FILES, files_of_actions, "its sources"),
}


def read_apart(name: str, path: Path, opened: Sequence[Any]) -> pl.DataFrame:
    """The ``instructions`` or source ``files`` of the report at `path`, read in a child process.

    Columns: :data:`kanalyze.counter_model.INSTRUCTIONS`, :data:`kanalyze.counter_model.SOURCE_FILES`. `opened` are its
    kernels in this process, from which they are read if no child process can be started.

    Raises:
        DamagedReportError: They are invalid.
    """
    part = _PARTS[name]
    if not sys.executable or getattr(sys, "frozen", False):
        return part.read(path, opened)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "table.arrow"
        try:
            said = subprocess.run(  # noqa: S603 - Python itself, with a module of ours
                [sys.executable, *_CHILD, str(os.getpid()), name, str(path.absolute()), str(out)],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
            )
        except OSError:
            return part.read(path, opened)
        if said.returncode or not out.is_file():
            why = "what reads them ended" if said.returncode < 0 else "what reads them fails"
            raise ncu_errors.damaged(path, part.text, why)
        return part.declared.check(pl.read_ipc(out.read_bytes()))


def write(name: str, report: str, out: str) -> None:
    """Write the named table of a report to a file; exits with status 1 if it is damaged."""
    library = module()
    if library is None:
        sys.exit("the module ncu_report is gone")
    path = Path(report)
    try:
        opened, _ = actions(path, library)
        _PARTS[name].read(path, opened).write_ipc(out)
    except DAMAGE as error:
        sys.exit(text(error))


if __name__ == "__main__":
    end_with(int(sys.argv[1]))
    write(*sys.argv[2:])
