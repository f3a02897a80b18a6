"""This process and its children: processors, memory, what ends with what, and what is removed at the end.

Files and folders get their name when they are whole; else they are gone, also if a signal ends the program. A process
that SIGTERM or SIGHUP ends runs no ``finally``, and one that Ctrl-C ends does not wait for other threads: so the
program removes what is unfinished when the signal comes (:func:`remove_at_signals`).
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from types import FrameType
from typing import Final

#: The environment variable that names the process with which a command ends.
PARENT: Final = "KANALYZE_PARENT"

#: More threads wait for each other: for Python's lock, and for memory.
_MOST_WORKERS: Final = 4

_PR_SET_PDEATHSIG: Final = 1

#: Characters of a name in that of what becomes it: no name may be longer than 255 bytes.
_NAMED: Final = 40

#: Another thread may go on writing into a folder that is removed.
_ATTEMPTS: Final = 20

_places: set[Path] = set()

#: Held while something is made: what is made after a signal would stay.
_making: Final = RLock()
_signals: list[int] = []


def processors() -> int:
    """Number of processors that this process may use, which may be fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def workers() -> int:
    """Number of threads that work side by side."""
    return min(processors(), _MOST_WORKERS)


def give_back() -> None:
    """Returns memory to the system that was freed and is kept for later.

    The page of a trace of 330 MB takes 570 MB with it, after decoding, and 760 without. Only glibc has a function for
    that; elsewhere nothing happens.
    """
    if sys.platform == "linux":
        import ctypes  # noqa: PLC0415 - for large reports only

        if trim := getattr(ctypes.CDLL(None), "malloc_trim", None):
            trim(0)


def end_with(parent: int) -> None:
    """Ends this process as soon as `parent` ends, the process that started it, of whose end nothing else may tell."""
    ending_with(parent)()


def ending_with(parent: int) -> Callable[[], None]:
    """What a child calls to end as soon as `parent` does; all that it needs is loaded before the fork.

    Linux alone can do that. Elsewhere children go on until their work is done.
    """
    if sys.platform != "linux":
        return lambda: None
    import ctypes  # noqa: PLC0415 - costs milliseconds, for commands with children only

    prctl = ctypes.CDLL(None).prctl

    def end_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != parent:  # it ended before
            os._exit(1)

    return end_with_parent


@contextmanager
def unfinished(target: Path, *, folder: bool = False) -> Iterator[Path]:
    """A new file or folder beside `target`, to be filled and moved there; removed after the block and by signals.

    Raises:
        OSError: It cannot be made.
    """
    place = target.with_name(f".{target.name[:_NAMED]}.{os.urandom(8).hex()}")
    try:
        with _making:
            if _signals:
                raise KeyboardInterrupt
            _places.add(place)
            place.mkdir() if folder else place.touch(exist_ok=False)
        yield place
    finally:
        _remove(place)
        _places.discard(place)


def remove_at_signals() -> None:
    """Lets signals that end this process, Ctrl-C among them, remove what is unfinished first; those ignored stay so."""
    for number in (signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, end_by)


def end_by(number: int, frame: FrameType | None) -> None:
    """Removes what is unfinished and lets the signal do what it does by default."""
    with _making:
        _signals.append(number)
        for place in [*_places]:
            _remove(place)
    if number == signal.SIGINT:
        signal.default_int_handler(number, frame)
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _remove(place: Path) -> None:
    for _ in range(_ATTEMPTS):
        if not os.path.lexists(place):
            return
        shutil.rmtree(place, ignore_errors=True)
        with suppress(OSError):
            place.unlink()
