"""Runs a Python workload without a profiler, and notes when its recurring parts began.

The file (NAME.json; NAME-rankN.json where RANK is a number) is written at the end, whole or not at all. It has

    duration_ns   how long the script ran
    starts_ns     when each occurrence of a part began, by name; marks.py says of what, and how many of each
    mark_ns       what one mark cost

A workload that is killed or leaves by os._exit has none. The exit status is the workload's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from . import torch_script  # relative: the runner loads these files without their package
from .marks import Marks
from .torch_sessions import write_text

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

#: Layout of the file.
SCHEMA = 1


def run(file: Path, workload: list[str]) -> None:
    """Runs a script or module, and writes the file; exceptions propagate."""
    rank = os.environ.get("RANK", "")
    file = file.with_name(f"{file.stem}-rank{rank}{file.suffix}") if rank.isdecimal() else file
    marks, hook = Marks(), sys.excepthook
    marks.watch()

    def shown(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        """Shows an error of the workload without the frames of the runner."""
        own = torch_script.own_traceback(traceback)
        hook(kind, error.with_traceback(own), own)

    sys.excepthook = shown
    ours, began_ns = os.getpid(), time.perf_counter_ns()
    try:
        torch_script.run(workload, {})
    finally:
        duration_ns = time.perf_counter_ns() - began_ns
        if os.getpid() == ours:  # a forked child ends here, too
            with suppress(Exception):  # the run itself is what was asked for, and other threads may go on
                starts = {name: list(times) for name, times in list(marks.starts.items())}
                content = {"schema": SCHEMA, "duration_ns": duration_ns, "mark_ns": marks.cost_ns()}
                write_text(file, json.dumps({**content, "starts_ns": starts}))
