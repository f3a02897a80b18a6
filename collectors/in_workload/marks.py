"""Notes when the recurring parts of a Python program begin, at about a microsecond each.

Parts are ranges of record_function, torch.cuda.nvtx and the package nvtx, by name (torch puts the optimizer's step and
the DataLoader's next batch in such ranges itself), calls of the outermost module, and starts of a profiler by the
program. Nothing synchronizes, and nothing is imported that the program does not import.
"""

from __future__ import annotations

import functools
import sys
import time
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .import_hooks import when_imported  # relative: the runner loads these files without their package
from .torch_parts import FORWARD, compiling_test, message_of, watch

if TYPE_CHECKING:
    from collections.abc import Callable

#: Occurrences that are kept of a name, and names.
EACH = 20_000
NAMES = 200

#: Names of parts that are no range.
CALL = "the outermost module's call"
OWN = "the program's own profiler"

#: Marks by which the cost of one is measured.
_TRIED = 2_000


class Marks:
    """When each occurrence of a part began.

    Attributes:
        starts: Times in ns of :func:`time.perf_counter_ns`, by name; of a name the first :data:`EACH`.
    """

    def __init__(self) -> None:
        """Starts without marks."""
        self.starts: dict[str, array[int]] = {}

    def mark(self, name: str) -> None:
        """Notes that an occurrence begins."""
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
        """Marks the parts of what the program imports from now on."""
        when_imported("torch", self._watch_torch)
        when_imported("nvtx.nvtx", self._watch_nvtx)

    def _watch_torch(self, torch: Any) -> None:  # noqa: ANN401 - a module
        with suppress(ImportError, AttributeError):  # of another package of that name, or a version without a part
            watch(FORWARD, lambda: self.mark(CALL), lambda: None)
            self._watch_ranges(torch.autograd.profiler.record_function, lambda one: one.name)
            self._watch_function(torch.cuda.nvtx, "range_push")
            for owner, method in ((torch.profiler.profile, "start"), (torch.autograd.profiler.profile, "__enter__")):
                self._watch_start(owner, method)

    def _watch_nvtx(self, nvtx: Any) -> None:  # noqa: ANN401 - a module
        if isinstance(getattr(nvtx, "annotate", None), type):
            self._watch_ranges(nvtx.annotate, lambda one: getattr(getattr(one, "attributes", None), "message", ""))
        if hasattr(nvtx, "push_range"):
            self._watch_function(nvtx, "push_range")

    def _watch_start(self, owner: Any, method: str) -> None:  # noqa: ANN401 - a class
        """Marks each start of a profiler."""
        original = getattr(owner, method)

        @functools.wraps(original)
        def started(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            self.mark(OWN)
            return original(*args, **kwargs)

        setattr(owner, method, started)

    def _watch_ranges(self, manager: Any, name_of: Callable[[Any], object]) -> None:  # noqa: ANN401 - a class
        """Marks each use of a class of context managers."""
        enter, compiling = manager.__enter__, _compiling()

        @functools.wraps(enter)
        def __enter__(one: Any) -> Any:  # noqa: ANN401, N807
            if not compiling():
                self.mark(str(name_of(one)))
            return enter(one)

        manager.__enter__ = __enter__

    def _watch_function(self, module: Any, push: str) -> None:  # noqa: ANN401 - a module
        """Marks each call of a function that opens a range."""
        pushes, compiling = getattr(module, push), _compiling()

        @functools.wraps(pushes)
        def opened(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
            if not compiling():
                self.mark(str(message_of(*args, **kwargs)))
            return pushes(*args, **kwargs)

        setattr(module, push, opened)


def _compiling() -> Callable[[], bool]:
    """Whether torch.compile is tracing, when hooks must do nothing; never, in a program without torch."""
    return compiling_test() if sys.modules.get("torch") else bool
