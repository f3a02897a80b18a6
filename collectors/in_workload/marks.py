"""Notes when the recurring parts of a Python program begin and end, at about a microsecond each.

Parts are ranges of record_function, torch.cuda.nvtx and the package nvtx, by name (torch puts the optimizer's step and
the DataLoader's next batch in such ranges itself), calls of the outermost module, and steps of the program's own
profiler. Nothing synchronizes, and nothing is imported that the program does not import.
"""

from __future__ import annotations

import functools
import sys
import time
from array import array
from threading import get_ident
from typing import TYPE_CHECKING, Any

from .import_hooks import when_imported  # relative: the runner loads these files without their package
from .torch_parts import FORWARD, compiling_test, watch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Marks beyond these are counted alone: occurrences of a name, and names.
EACH = 20_000
NAMES = 1_000

#: Names of parts that are no range.
CALL = "the outermost module's call"
STEP = "profiler.step"

#: Marks by which the cost of one is measured.
_TRIED = 2_000

_clock_ns = time.perf_counter_ns


class Marks:
    """Begin and end of each occurrence of a part, ns of :func:`time.perf_counter_ns`.

    Attributes:
        spans: Begin and end in turns, by name; an occurrence stands where it ended.
        left_out: Occurrences that are not kept.
    """

    def __init__(self) -> None:
        """Starts without marks."""
        self.spans: dict[str, array[int]] = {}
        self.left_out = 0
        self._open: dict[object, list[tuple[str, int]]] = {}

    def add(self, name: str, start_ns: int, end_ns: int) -> None:
        """Keeps an occurrence."""
        spans = self.spans.get(name)
        if spans is None and len(self.spans) < NAMES:
            spans = self.spans[name] = array("q")
        if spans is None or len(spans) >= 2 * EACH:
            self.left_out += 1
        else:
            spans.extend((start_ns, end_ns))

    def begin(self, key: object, name: str) -> None:
        """Opens an occurrence; the last one of `key` that is open is the one that ends next."""
        self._open.setdefault(key, []).append((name, _clock_ns()))

    def end(self, key: object) -> None:
        """Closes an occurrence; nothing happens where none is open."""
        end_ns = _clock_ns()
        if opened := self._open.get(key):
            self.add(*opened.pop(), end_ns)
            if not opened:
                del self._open[key]

    def cost_ns(self) -> float:
        """Mean time that one mark takes here, measured on marks that are not kept."""
        others = Marks()
        began_ns = _clock_ns()
        for _ in range(_TRIED):
            others.begin(CALL, CALL)
            others.end(CALL)
        return (_clock_ns() - began_ns) / _TRIED

    def watch(self) -> None:
        """Marks the parts of what the program imports from now on."""
        when_imported("torch", self._watch_torch)
        when_imported("nvtx.nvtx", self._watch_nvtx)

    def _watch_torch(self, torch: Any) -> None:  # noqa: ANN401 - a module
        watch(FORWARD, lambda: self.begin((CALL, get_ident()), CALL), lambda: self.end((CALL, get_ident())))
        self._watch_ranges(torch.autograd.profiler.record_function, lambda one: one.name)
        self._watch_functions(torch.cuda.nvtx, "range_push", "range_pop")
        profile = getattr(getattr(torch, "profiler", None), "profile", None)
        if profile is not None:
            step = profile.step

            @functools.wraps(step)
            def stepped(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
                now_ns = _clock_ns()
                self.add(STEP, now_ns, now_ns)
                return step(*args, **kwargs)

            profile.step = stepped

    def _watch_nvtx(self, nvtx: Any) -> None:  # noqa: ANN401 - a module
        if isinstance(getattr(nvtx, "annotate", None), type):
            self._watch_ranges(nvtx.annotate, lambda one: getattr(getattr(one, "attributes", None), "message", ""))
        if hasattr(nvtx, "push_range") and hasattr(nvtx, "pop_range"):
            self._watch_functions(nvtx, "push_range", "pop_range")

    def _watch_ranges(self, manager: Any, name_of: Callable[[Any], object]) -> None:  # noqa: ANN401 - a class
        """Marks each use of a class of context managers."""
        enter, leave, compiling = manager.__enter__, manager.__exit__, _compiling()

        @functools.wraps(enter)
        def __enter__(one: Any) -> Any:  # noqa: ANN401, N807
            if not compiling():
                self.begin(id(one), str(name_of(one)))
            return enter(one)

        @functools.wraps(leave)
        def __exit__(one: Any, *error: Any) -> Any:  # noqa: ANN401, N807
            try:
                return leave(one, *error)
            finally:
                if not compiling():
                    self.end(id(one))

        manager.__enter__, manager.__exit__ = __enter__, __exit__

    def _watch_functions(self, module: Any, push: str, pop: str) -> None:  # noqa: ANN401 - a module
        """Marks ranges that one function opens and another one closes."""
        pushes, pops, compiling = getattr(module, push), getattr(module, pop), _compiling()

        @functools.wraps(pushes)
        def opened(message: Any = "", *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if not compiling():
                self.begin((push, get_ident()), str(message))
            return pushes(message, *args, **kwargs)

        @functools.wraps(pops)
        def closed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            try:
                return pops(*args, **kwargs)
            finally:
                if not compiling():
                    self.end((push, get_ident()))

        setattr(module, push, opened)
        setattr(module, pop, closed)


def _compiling() -> Callable[[], bool]:
    """Whether torch.compile is tracing, when hooks must do nothing; never, in a program without torch."""
    return compiling_test() if sys.modules.get("torch") else bool
