"""Notes of a Python workload's run: in which line of the program's own code each thread is, when its parts begin.

From Python 3.12 on every change of the line is noted, through sys.monitoring, of the program's own files alone: what
Python and installed packages run costs nothing after its first call. Older Pythons are sampled: a thread looks at the
frames a thousand times a second.

The file of lines (gzipped JSON) is written at the end, whole or not at all. It has

    schema     the layout
    process    the process
    exact      whether every change was noted
    clocks     pairs of Unix time and the clock of `times`, ns: at the beginning and at the end
    files      path of each file, relative to the script's folder where it lies in that
    places     file (by number), line, function and text of each place
    threads    id; times (ns, each since the one before) and places by number, -1 for none of the program's own, of
               `lines`; the same of `loops`: where a loop begins its next pass, the first excepted

Parts are noted while it runs without a profiler, at about a microsecond each: ranges of record_function,
torch.cuda.nvtx and the package nvtx, by name (torch puts the optimizer's step and the DataLoader's next batch in such
ranges itself), calls of the outermost module, starts of a profiler by the program, and, from Python 3.12 on, passes of
the program's own loops but the first, by file and line. Nothing synchronizes, and nothing is imported that the program
does not import. The file of parts (NAME.json; NAME-rankN.json where RANK is a number) has

    schema     the layout
    starts_ns  when each occurrence of a part began, by name, of a name the first 20,000
    batches    where the outermost module is called first with a batch of whole numbers (`line`), and of each batch how
               wide its rows are and how many positions of each are not padding (`filled`)
    profiler   the line at which the program first starts a profiler of its own

A workload that is killed or leaves by os._exit has no file. The exit status is the workload's own.
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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from . import torch_script  # relative: the runner loads these files without their package
from .batches import Batches
from .hooks import FORWARD, Ranges, compiling_test, hook, watch, when_imported

#: Layout of the files.
SCHEMA = 1

#: So many changes are kept of a thread, then nothing is noted; so many passes of a loop, and occurrences of a name.
MOST, EACH = 2_000_000, 20_000

#: Where a thread changes its line more often than this many times in so many ns, lines that are so often among these
#: changes are noted as one from then on: the first of them that the thread comes to.
_LOOKED_AT = 1 << 12
_SHORTEST_NS = _LOOKED_AT * 5_000
_OFTEN = 1 << 5

#: So often such a line is looked at, and then no more.
_ENOUGH = 50_000

#: Bits of a line's number in a place.
_LINE_BITS = 24
_LINE_MASK = (1 << _LINE_BITS) - 1

#: The place of what is none of the program's own code.
NOWHERE = -1

_NAME = "kanalyze"

#: Where Python's own files lie, the runner's, and those of installed packages.
_PYTHON = map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib"))
_RUNNER = os.path.dirname(os.path.realpath(__file__))  # noqa: PTH120 - of a text
_PREFIXES = tuple(os.path.realpath(path) + os.sep for path in (*_PYTHON, _RUNNER))
_INSTALLED = tuple(f"{os.sep}{name}{os.sep}" for name in ("site-packages", "dist-packages"))


class Places:
    """Places in the program's own code, and when its threads came to them.

    `rows` has times and places in turns, by thread, and `passes` the same of loops that begin their next pass; `bases`
    the number of the place before the first line of each code, by its id. The `codes` are kept: ids stay theirs.
    """

    def __init__(self) -> None:
        """Starts without places."""
        self.rows: dict[int, array[int]] = {}
        self.passes: dict[int, array[int]] = {}
        self.bases: dict[int, int] = {}
        self.codes: list[CodeType] = []
        self._ids: dict[int, int] = {}
        self._own: dict[str, bool] = {}

    def base(self, code: CodeType) -> int:
        """The number of a code's place before its first line."""
        if id(code) not in self.bases:
            self.bases[id(code)] = len(self.codes) << _LINE_BITS
            self.codes.append(code)
        return self.bases[id(code)]

    def is_own(self, file: str) -> bool:
        """Whether a file is the program's: not Python's, no installed package's, not of the runner."""
        if file not in self._own:
            self._own[file] = False
            with suppress(OSError, ValueError):  # the folder that the program works in is gone; no name of a file
                path = os.path.realpath(file)
                others = path.startswith(_PREFIXES) or any(part in path for part in _INSTALLED)
                self._own[file] = os.path.isfile(path) and not others  # noqa: PTH113 - of a text
        return self._own[file]

    def of_frame(self, frame: FrameType | None) -> int:
        """The place of the innermost frame of the program's own code."""
        while frame is not None:
            code = frame.f_code
            if id(code) in self.bases or self.is_own(code.co_filename):
                return self.base(code) + (frame.f_lineno or code.co_firstlineno)
            frame = frame.f_back
        return NOWHERE

    def of_thread(self, thread: int, native: int | None = None) -> array[int]:
        """The rows of a thread, whose number in the system is looked up where it is not given."""
        if thread not in self.rows:
            ids = {} if native else {one.ident: one.native_id for one in threading.enumerate()}
            self._ids[thread] = native or ids.get(thread) or threading.get_native_id()
            self.rows[thread], self.passes[thread] = array("q"), array("q")
        return self.rows[thread]

    def content(self, folder: str) -> dict[str, object]:
        """Files, places and threads as the file has them, the files from a folder on."""
        # copies, since other threads may go on
        noted = {thread: {"lines": self.rows[thread][:], "loops": self.passes[thread][:]} for thread in [*self.rows]}
        numbers: dict[int, int] = {NOWHERE: NOWHERE}
        files: dict[str, int] = {}
        places: list[tuple[int, int, str, str]] = []
        for place in chain.from_iterable(rows[1::2] for parts in noted.values() for rows in parts.values()):
            if place not in numbers:
                code, line = self._line_of(place)
                text = linecache.getline(code.co_filename, line).strip()[:200]
                file = files.setdefault(_shown(code.co_filename, folder), len(files))
                numbers[place] = len(places)
                places.append((file, line, getattr(code, "co_qualname", code.co_name), text))

        def since(rows: array[int]) -> dict[str, list[int]]:
            times = [after - before for before, after in zip([0, *rows[0::2]], rows[0::2])]
            return {"times": times, "places": [numbers[place] for place in rows[1::2]]}

        threads = [
            {"id": self._ids[thread], **{name: since(rows) for name, rows in parts.items()}}
            for thread, parts in noted.items()
        ]
        return {"files": [*files], "places": places, "threads": threads}

    def loops(self, folder: str) -> dict[str, list[int]]:
        """When the passes of each loop began, by file and line."""
        starts: dict[str, list[int]] = {}
        for rows in [passes[:] for passes in [*self.passes.values()]]:  # copies, since other threads may go on
            for at, place in zip(rows[0::2], rows[1::2]):
                starts.setdefault(self.line(place, folder), []).append(at)
        return starts

    def line(self, place: int, folder: str) -> str:
        """The file and line of a place; empty for none."""
        if place == NOWHERE:
            return ""
        code, line = self._line_of(place)
        return f"{_shown(code.co_filename, folder)}:{line}"

    def _line_of(self, place: int) -> tuple[CodeType, int]:
        return self.codes[place >> _LINE_BITS], place & _LINE_MASK


def folder_of(script: str) -> str:
    """The folder of a script, from which on its files are told."""
    return os.path.dirname(os.path.abspath(script))  # noqa: PTH100, PTH120 - no resolving


def _shown(file: str, folder: str) -> str:
    """The path of a file, from a folder on where it lies in that."""
    path = os.path.abspath(file)  # noqa: PTH100 - no resolving
    return os.path.relpath(path, folder) if path.startswith(folder + os.sep) else path


class _Thread(threading.local):
    """The rows of the thread that looks at it: by its number in the system, since another gets those of Python."""

    def __init__(self, places: Places) -> None:
        native = threading.get_native_id()
        self.rows = places.of_thread(native, native)
        self.passes = places.passes[native]


class EveryChange:
    """Notes passes of loops, and each change of the line, through sys.monitoring."""

    def __init__(self, places: Places, *, lines: bool) -> None:
        """Takes where to note them, and whether lines are noted, or passes of loops alone.

        Raises AttributeError where Python is older than sys.monitoring, IndexError where tools use all its numbers.
        """
        self._places, self._bases = places, places.bases
        self._monitoring: Any = sys.monitoring  # type: ignore[attr-defined] # of Python 3.12
        self._events = self._monitoring.events
        self._tool = [number for number in range(6) if self._monitoring.get_tool(number) is None][-1]
        self._leaving = self._events.PY_RETURN | self._events.PY_YIELD | self._events.PY_RESUME if lines else 0
        self._inside = self._events.JUMP | (self._leaving | self._events.LINE if lines else 0)
        self._begins: dict[tuple[int, int], int] = {}
        self._seen: dict[int, int] = {}
        self._busy: dict[int, int] = {}
        self._thread = _Thread(places)

    def start(self) -> None:
        """Notes changes from now on."""
        events = self._events
        self._monitoring.use_tool_id(self._tool, _NAME)
        for event, callback in (
            (events.PY_START, self._began),
            (events.LINE, self._line),
            (events.PY_RETURN, self._left),
            (events.PY_YIELD, self._left),
            (events.PY_RESUME, self._resumed),
            (events.JUMP, self._jumped),
        ):
            self._monitoring.register_callback(self._tool, event, callback)
        self._monitoring.set_events(self._tool, events.PY_START)

    def stop(self) -> None:
        """Notes no more."""
        if self._monitoring.get_tool(self._tool) == _NAME:
            self._monitoring.set_events(self._tool, 0)
            for code in self._places.codes:
                self._monitoring.set_local_events(self._tool, code, 0)
            self._monitoring.free_tool_id(self._tool)

    def _began(self, code: CodeType, _: int) -> object:
        """At the first call of a function: its lines are noted from now on, or nothing of it, ever."""
        if self._places.is_own(code.co_filename):
            self._places.base(code)
            self._monitoring.set_local_events(self._tool, code, self._inside)
        return self._monitoring.DISABLE

    def _line(self, code: CodeType, number: int) -> object:
        return self._note(self._bases[id(code)] + number)

    def _left(self, *_: object) -> None:
        self._note(self._places.of_frame(sys._getframe(1).f_back))  # noqa: SLF001 - the only way

    def _resumed(self, *_: object) -> None:
        self._note(self._places.of_frame(sys._getframe(1)))  # noqa: SLF001 - as above

    def _jumped(self, code: CodeType, since: int, to: int) -> object:
        """At a jump: back is the next pass of a loop, of which the first :data:`EACH` are noted."""
        place = self._begins.get((id(code), to))
        if place is None:
            line = next((line for first, stop, line in code.co_lines() if first <= to < stop), None)
            place = self._begins[id(code), to] = self._bases[id(code)] + (line or code.co_firstlineno)
        self._seen[place] = number = self._seen.get(place, 0) + 1
        if to > since or number > EACH:
            return self._monitoring.DISABLE
        self._thread.passes.extend((time.perf_counter_ns(), place))
        return None

    def _note(self, place: int) -> object:
        """Notes where the thread is, unless it goes from busy line to busy line; what a callback returns."""
        rows = self._thread.rows
        if place in self._busy and rows and rows[-1] in self._busy:
            self._busy[place] = number = self._busy[place] + 1
            return self._monitoring.DISABLE if number > _ENOUGH else None
        rows.extend((time.perf_counter_ns(), place))
        if not len(rows) % (2 * _LOOKED_AT):
            self._relieve(rows)
        return None

    def _relieve(self, rows: array[int]) -> None:
        """Looks for lines that a thread changes to too often, and notes nothing more where there is too much."""
        last = rows[-2 * _LOOKED_AT :]
        if len(rows) >= 2 * MOST:
            self.stop()
        elif last[-2] - last[0] < _SHORTEST_NS:
            often = {place for place, number in Counter(last[1::2]).items() if number >= _OFTEN} - {NOWHERE}
            self._busy |= dict.fromkeys(often - self._busy.keys(), 0)


class Samples:
    """Looks at the threads' frames a thousand times a second, where Python has no sys.monitoring."""

    def __init__(self, places: Places) -> None:
        """Takes where to note what it sees."""
        self._places = places
        self._stopped = False  # no Event: its lock may be held where the process forks, and a child stops this

    def start(self) -> None:
        """Looks from now on, in a thread of its own."""
        threading.Thread(target=self._look, name=_NAME, daemon=True).start()

    def stop(self) -> None:
        """Looks no more."""
        self._stopped = True

    def _look(self) -> None:
        this_thread = threading.get_ident()
        while not self._stopped:
            time.sleep(0.001)
            at = time.perf_counter_ns()
            for thread, frame in sys._current_frames().items():  # noqa: SLF001 - the only way
                place = NOWHERE if thread == this_thread else self._places.of_frame(frame)
                if place != NOWHERE or thread in self._places.rows:
                    rows = self._places.of_thread(thread)
                    if rows[-1:].tolist() != [place] and len(rows) < 2 * MOST:
                        rows.extend((at, place))


@contextmanager
def lines_noted(file: Path, script: str) -> Iterator[None]:
    """Notes the lines that the threads of this process are in meanwhile, and writes the file of them; no child does."""
    places, process, folder = Places(), os.getpid(), folder_of(script)
    watching: EveryChange | Samples
    try:
        watching = EveryChange(places, lines=True)
    except (AttributeError, IndexError):
        watching = Samples(places)
    clocks = [(time.time_ns(), time.perf_counter_ns())]
    os.register_at_fork(after_in_child=watching.stop)
    watching.start()
    try:
        yield
    finally:
        watching.stop()
        if os.getpid() == process:
            clocks.append((time.time_ns(), time.perf_counter_ns()))
            with suppress(Exception):  # the recording is what was asked for
                exact = isinstance(watching, EveryChange)
                content = {"schema": SCHEMA, "process": process, "exact": exact, "clocks": clocks}
                text = json.dumps({**content, **places.content(folder)})
                torch_script.write_bytes(file, gzip.compress(text.encode(), 6))


# Parts

#: So many names are kept.
NAMES = 200

#: Names of parts that are no range.
CALL, OWN, OWN_END = (
    "the outermost module's call",
    "the program's own profiler",
    "the end of the program's own profiler",
)


class Marks:
    """When each occurrence of a part began: times of :func:`time.perf_counter_ns`, by name the first :data:`EACH`.

    And the `batches` that the outermost module is called with, first at a `place`, and that of the first `profiler`.
    """

    def __init__(self, places: Places) -> None:
        """Starts without marks, at which the program is in one of the `places`."""
        self.starts: dict[str, array[int]] = {}
        self.batches, self.place, self.profiler = Batches(), NOWHERE, NOWHERE
        self._places = places

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

    def watch(self) -> None:
        """Marks the parts of what the program imports from now on, ranges but while torch.compile is tracing."""
        when_imported("torch", self._watch_torch)
        when_imported("nvtx.nvtx", self._watch_nvtx)

    def _watch_torch(self, torch: Any) -> None:  # noqa: ANN401 - a module
        with suppress(ImportError, AttributeError):  # of another package of that name, or a version without a part
            self.batches = Batches(torch)
            watch(FORWARD, lambda: self.mark(CALL), lambda: None, self._given)
            compiling = compiling_test()
            Ranges(lambda _: not compiling(), self.mark).of_torch(torch)
            autograd = torch.autograd.profiler
            for owner, *starts_ends in (
                (torch.profiler.profile, "start_trace", "stop_trace"),
                (autograd.profile, "__enter__", "__exit__"),
                (autograd.emit_nvtx, "__enter__", "__exit__"),
            ):
                for method, note in zip(starts_ends, (self._profiling, lambda *_: self.mark(OWN_END))):
                    hook(owner, method, note)

    def _profiling(self, *_: object) -> None:
        """Notes that a profiler of the program starts."""
        self.mark(OWN)
        if self.profiler == NOWHERE:
            self.profiler = self._places.of_frame(sys._getframe(1))  # noqa: SLF001 - the only way

    def _given(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes what the outermost module, the first of `args`, is called with."""
        if self.batches.take(args[1:], kwargs):
            self.place = self._places.of_frame(sys._getframe(1))  # noqa: SLF001 - the only way

    def _watch_nvtx(self, nvtx: Any) -> None:  # noqa: ANN401 - a module
        compiling = compiling_test() if sys.modules.get("torch") else bool
        Ranges(lambda _: not compiling(), self.mark).of_nvtx(nvtx)


@contextmanager
def parts_noted(file: Path, script: str) -> Iterator[None]:
    """Marks when parts of the program begin meanwhile, and writes the file of them."""
    places = Places()
    marks = Marks(places)
    marks.watch()
    with suppress(AttributeError, IndexError):  # of an older Python, or one whose tools are all in use
        loops = EveryChange(places, lines=False)
        os.register_at_fork(after_in_child=loops.stop)
        loops.start()
    ours = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == ours:  # a forked child ends here, too
            with suppress(Exception):  # the run itself is what was asked for, and other threads may go on
                folder = folder_of(script)
                starts = places.loops(folder)
                starts.update({name: list(times) for name, times in list(marks.starts.items())})
                content: dict[str, object] = {"schema": SCHEMA, "starts_ns": starts}
                if filled := marks.batches.filled():
                    content["batches"] = {"line": places.line(marks.place, folder), "filled": filled}
                if line := places.line(marks.profiler, folder):
                    content["profiler"] = line
                torch_script.write_bytes(file, json.dumps(content).encode())
