"""Notes in which line of the program's own code each thread is, while a Python workload is recorded.

From Python 3.12 on every change of the line is noted, through sys.monitoring, of the program's own files alone: what
Python and installed packages run costs nothing after its first call. Older Pythons are sampled: a thread looks at the
frames a thousand times a second.

The file (gzipped JSON) is written at the end, whole or not at all. It has

    schema     the layout
    process    the process
    exact      whether every change was noted
    clocks     pairs of Unix time and the clock of `times`, ns: at the beginning and at the end
    files      path of each file, relative to the script's folder where it lies in that
    places     file (by number), line, function and text of each place
    threads    id, times (ns, each since the one before), and places by number, -1 for none of the program's own
"""

from __future__ import annotations

import gzip
import json
import linecache
import os
import sys
import sysconfig
import threading
import time
from array import array
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import torch_script  # relative: the runner loads these files without their package
from .whole_files import write_bytes

if TYPE_CHECKING:
    from types import CodeType, FrameType

#: Layout of the file.
SCHEMA = 1

#: So many changes are kept of a thread; nothing is noted after that.
MOST = 2_000_000

#: Where a thread changes its line more often than this many times in so many ns, its busiest function is noted whole.
_LOOKED_AT = 1 << 12
_SHORTEST_NS = _LOOKED_AT * 5_000

#: Bits of a line's number in a place.
_LINE_BITS = 24

#: The time between samples of older Pythons, s.
_PAUSE_S = 0.001

#: Longer texts of lines are cut.
_LONGEST = 200

_NOWHERE = -1
_NAME = "kanalyze"

_INSTALLED = tuple(
    {os.path.realpath(path) + os.sep for name, path in sysconfig.get_paths().items() if name.endswith(("lib", "stdlib"))}
    | {f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages")}
)


class Lines:
    """The lines that the program's threads are in, from :meth:`start` on."""

    def __init__(self, file: Path, script: str) -> None:
        """Takes the file to write, and the path of the script that runs."""
        self._file, self._folder = file, os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - no resolving
        self._codes: list[CodeType] = []
        self._bases: dict[int, int] = {}
        self._rows: dict[int, array[int]] = {}
        self._own: dict[str, bool] = {}
        self._ids: dict[int, int] = {}
        self._clocks: list[tuple[int, int]] = []
        self._process = os.getpid()
        self._stopped = threading.Event()
        self._tool: int | None = None

    def start(self) -> None:
        """Notes lines from now on, in this process alone."""
        self._clocks.append((time.time_ns(), time.perf_counter_ns()))
        os.register_at_fork(after_in_child=self._stop)
        monitoring: Any = getattr(sys, "monitoring", None)
        free = [number for number in range(6) if monitoring.get_tool(number) is None] if monitoring else []
        if free:
            self._tool = free[-1]
            self._monitor(monitoring)
        else:
            threading.Thread(target=self._sample, name=_NAME, daemon=True).start()

    def write(self) -> bool:
        """Notes no more, and writes the file; whether it was written. Nothing in a child of the process."""
        self._stop()
        if os.getpid() != self._process:
            return False
        self._clocks.append((time.time_ns(), time.perf_counter_ns()))
        with suppress(Exception):  # the recording is what was asked for
            write_bytes(self._file, gzip.compress(json.dumps(self._content()).encode(), 6))
            return True
        return False

    # Every change, of Python 3.12 and later

    def _monitor(self, monitoring: Any) -> None:  # noqa: ANN401 - a module that older Pythons do not have
        tool, events = self._tool, monitoring.events
        inside = events.PY_RETURN | events.PY_YIELD | events.PY_RESUME
        bases, rows, ident, now, frame = self._bases, self._rows, threading.get_ident, time.perf_counter_ns, sys._getframe

        def began(code: CodeType, _: int) -> object:
            if id(code) not in bases and self._is_own(code.co_filename):
                self._base(code)
                monitoring.set_local_events(tool, code, events.LINE | inside)
            elif id(code) in bases:
                note(bases[id(code)] + code.co_firstlineno)
                return None
            return monitoring.DISABLE

        def note(place: int) -> None:
            thread = ident()
            if thread not in rows:
                self._thread(thread)
            own = rows[thread]
            own.extend((now(), place))
            if not len(own) % (2 * _LOOKED_AT):
                relieve(own)

        def line(code: CodeType, number: int) -> None:
            note(bases[id(code)] + number)

        def left(*_: object) -> None:
            note(self._place(frame(1).f_back))

        def resumed(*_: object) -> None:
            note(self._place(frame(1)))

        def relieve(own: array[int]) -> None:
            last = own[-2 * _LOOKED_AT :]
            if len(own) >= 2 * MOST:
                self._stop()
            elif last[-2] - last[0] < _SHORTEST_NS:
                numbers = [place >> _LINE_BITS for place in last[1::2] if place >= 0]
                if numbers:
                    busiest = self._codes[max(set(numbers), key=numbers.count)]
                    monitoring.set_local_events(tool, busiest, events.PY_START | inside)

        monitoring.use_tool_id(tool, _NAME)
        for event, callback in (
            (events.PY_START, began), (events.LINE, line), (events.PY_RETURN, left), (events.PY_YIELD, left),
            (events.PY_RESUME, resumed),
        ):
            monitoring.register_callback(tool, event, callback)
        monitoring.set_events(tool, events.PY_START)

    # Samples, of older ones

    def _sample(self) -> None:
        own = threading.get_ident()
        while not self._stopped.wait(_PAUSE_S):
            at = time.perf_counter_ns()
            for thread, frame in sys._current_frames().items():
                place = self._place(frame) if thread != own else _NOWHERE
                rows = self._rows.get(thread)
                if rows is None and place != _NOWHERE:
                    rows = self._thread(thread)
                if rows is not None and rows[-1:].tolist() != [place] and len(rows) < 2 * MOST:
                    rows.extend((at, place))

    # Both

    def _place(self, frame: FrameType | None) -> int:
        """The place of the innermost frame of the program's own code."""
        while frame is not None:
            code = frame.f_code
            if id(code) in self._bases or (self._tool is None and self._is_own(code.co_filename)):
                return self._base(code) + (frame.f_lineno or code.co_firstlineno)
            frame = frame.f_back
        return _NOWHERE

    def _base(self, code: CodeType) -> int:
        """The number of a code's place before its first line; the code is kept, so that its id stays its own."""
        if id(code) not in self._bases:
            self._bases[id(code)] = len(self._codes) << _LINE_BITS
            self._codes.append(code)
        return self._bases[id(code)]

    def _is_own(self, file: str) -> bool:
        """Whether a file is the program's: not Python's, no installed package's, not of the runner."""
        if file not in self._own:
            path = os.path.realpath(file)
            runner = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - a prefix
            installed = path.startswith(_INSTALLED) or any(part in path for part in _INSTALLED[-2:])
            self._own[file] = os.path.isfile(path) and not installed and not path.startswith(runner)  # noqa: PTH113
        return self._own[file]

    def _thread(self, thread: int) -> array[int]:
        native = {one.ident: one.native_id for one in threading.enumerate()}
        self._ids[thread] = native.get(thread) or threading.get_native_id()
        return self._rows.setdefault(thread, array("q"))

    def _stop(self) -> None:
        """Notes no more."""
        self._stopped.set()
        monitoring: Any = getattr(sys, "monitoring", None)
        if self._tool is not None and monitoring.get_tool(self._tool) == _NAME:
            monitoring.set_events(self._tool, 0)
            for code in self._codes:
                monitoring.set_local_events(self._tool, code, 0)
            monitoring.free_tool_id(self._tool)

    def _content(self) -> dict[str, object]:
        numbers: dict[int, int] = {_NOWHERE: _NOWHERE}
        files: dict[str, int] = {}
        places: list[tuple[int, int, str, str]] = []
        threads = []
        for thread, rows in [*self._rows.items()]:
            times, found = rows[0::2], rows[1::2]
            for place in {*found} - {*numbers}:
                code, line = self._codes[place >> _LINE_BITS], place & ((1 << _LINE_BITS) - 1)
                text = linecache.getline(code.co_filename, line).strip()[:_LONGEST]
                file = files.setdefault(self._shown(code.co_filename), len(files))
                numbers[place] = len(places)
                places.append((file, line, code.co_qualname if hasattr(code, "co_qualname") else code.co_name, text))
            since = [after - before for before, after in zip([0, *times], times, strict=False)]
            threads.append({"id": self._ids[thread], "times": since, "places": [numbers[place] for place in found]})
        return {
            "schema": SCHEMA,
            "process": self._process,
            "exact": self._tool is not None,
            "clocks": self._clocks,
            "files": [*files],
            "places": places,
            "threads": threads,
        }

    def _shown(self, file: str) -> str:
        path = os.path.abspath(file)  # noqa: PTH100 - no resolving
        return os.path.relpath(path, self._folder) if path.startswith(self._folder + os.sep) else path


def run(file: Path, workload: list[str]) -> None:
    """Runs a script or module, and writes the file of its lines; exceptions propagate."""
    rank = os.environ.get("RANK", "")
    stem = file.name.removesuffix(".json.gz")
    file = file.with_name(f"{stem}-rank{rank}.json.gz") if rank.isdecimal() else file
    lines = Lines(file, workload[0])
    torch_script.hide_runner()
    lines.start()
    try:
        torch_script.run(workload, {})
    finally:
        lines.write()
