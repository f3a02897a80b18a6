"""Runs a Python workload without a profiler, and notes when its recurring parts began, at about a microsecond each.

Parts are ranges of record_function, torch.cuda.nvtx and the package nvtx, by name (torch puts the optimizer's step and
the DataLoader's next batch in such ranges itself), calls of the outermost module, starts of a profiler by the program,
and, from Python 3.12 on, passes of the program's own loops but the first, by file and line. Nothing synchronizes, and
nothing is imported that the program does not import.

The file (NAME.json; NAME-rankN.json where RANK is a number) is written at the end, whole or not at all. It has

    duration_ns   how long the script ran
    starts_ns     when each occurrence of a part began, by name, of a name the first 20,000
    mark_ns       what one mark cost

A workload that is killed or leaves by os._exit has none. The exit status is the workload's own.
"""

from __future__ import annotations

import json
import os
import sys
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from . import torch_script  # relative: the runner loads these files without their package
from .hooks import FORWARD, Ranges, compiling_test, hook, watch, when_imported
from .source_lines import EveryChange, Places, folder_of
from .whole_files import write_bytes

if TYPE_CHECKING:
    from pathlib import Path

#: Layout of the file.
SCHEMA = 1

#: Occurrences that are kept of a name, and names.
EACH = 20_000
NAMES = 200

#: Names of parts that are no range.
CALL = "the outermost module's call"
OWN = "the program's own profiler"

#: Marks by which the cost of one is measured.
_TRIED = 2_000


class Marks:
    """When each occurrence of a part began: times of :func:`time.perf_counter_ns`, by name the first :data:`EACH`."""

    def __init__(self) -> None:
        """Starts without marks."""
        self.starts: dict[str, array[int]] = {}

    def mark(self, part: object) -> None:
        """Notes that an occurrence begins."""
        name = str(part)
        starts = self.starts.get(name)
        if starts is None:
            if len(self.starts) >= NAMES:
                return
            starts = self.starts.setdefault(name, array("q"))
        if len(starts) < EACH:
            starts.append(time.perf_counter_ns())

    def cost_ns(self) -> float:
        """Mean time that one mark takes here, measured on marks that are not kept."""
        others = Marks()
        began_ns = time.perf_counter_ns()
        for _ in range(_TRIED):
            others.mark(CALL)
        return (time.perf_counter_ns() - began_ns) / _TRIED

    def watch(self) -> None:
        """Marks the parts of what the program imports from now on, ranges but while torch.compile is tracing."""
        when_imported("torch", self._watch_torch)
        when_imported("nvtx.nvtx", self._watch_nvtx)

    def _watch_torch(self, torch: Any) -> None:  # noqa: ANN401 - a module
        with suppress(ImportError, AttributeError):  # of another package of that name, or a version without a part
            watch(FORWARD, lambda: self.mark(CALL), lambda: None)
            compiling = compiling_test()
            Ranges(lambda _: not compiling(), self.mark).of_torch(torch)
            for owner, method in ((torch.profiler.profile, "start"), (torch.autograd.profiler.profile, "__enter__")):
                hook(owner, method, lambda *_: self.mark(OWN))

    def _watch_nvtx(self, nvtx: Any) -> None:  # noqa: ANN401 - a module
        compiling = compiling_test() if sys.modules.get("torch") else bool
        Ranges(lambda _: not compiling(), self.mark).of_nvtx(nvtx)


def run(file: Path, workload: list[str]) -> None:
    """Runs a script or module, and writes the file; exceptions propagate."""
    marks, places = Marks(), Places()
    marks.watch()
    torch_script.hide_runner()
    with suppress(AttributeError, IndexError):  # of an older Python, or one whose tools are all in use
        loops = EveryChange(places, lines=False)
        os.register_at_fork(after_in_child=loops.stop)
        loops.start()
    ours, began_ns = os.getpid(), time.perf_counter_ns()
    try:
        torch_script.run(workload, {})
    finally:
        duration_ns = time.perf_counter_ns() - began_ns
        if os.getpid() == ours:  # a forked child ends here, too
            with suppress(Exception):  # the run itself is what was asked for, and other threads may go on
                starts = places.loops(folder_of(workload[0]))
                starts.update({name: list(times) for name, times in list(marks.starts.items())})
                content = {"schema": SCHEMA, "duration_ns": duration_ns, "mark_ns": marks.cost_ns()}
                text = json.dumps({**content, "starts_ns": starts})
                write_bytes(torch_script.of_rank(file), text.encode())
