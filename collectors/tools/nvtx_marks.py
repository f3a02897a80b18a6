"""Builds the library that times the NVTX ranges of a program without a profiler."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE: Final = Path(__file__).parents[1] / "in_workload" / "nvtx_marks.c"

#: The variable by which NVTX loads one library; the program or the user may have another one.
_INJECTION: Final = "NVTX_INJECTION64_PATH"
_FILE: Final = "KANALYZE_MARKS"

_COMPILERS: Final = ("cc", "gcc", "clang")
_FLAGS: Final = ("-O2", "-shared", "-fPIC", "-fvisibility=hidden")
_PATIENCE_S: Final = 60


@contextmanager
def environment(file: Path) -> Iterator[dict[str, str]]:
    """Variables for a program that is to write when its NVTX ranges began and ended into `file`.

    None where there is no C compiler, or something else is to be loaded in place of the library.
    """
    compiler = next((path for name in _COMPILERS if (path := shutil.which(name))), None)
    if compiler is None or _INJECTION in os.environ:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="kanalyze-") as folder:
        library = Path(folder, "nvtx_marks.so")
        command = [compiler, *_FLAGS, "-o", str(library), str(SOURCE), "-lpthread"]
        try:
            subprocess.run(command, check=True, capture_output=True, timeout=_PATIENCE_S)  # noqa: S603 - our own source
        except (OSError, subprocess.SubprocessError):
            yield {}
        else:
            yield {_INJECTION: str(library), _FILE: str(file)}
