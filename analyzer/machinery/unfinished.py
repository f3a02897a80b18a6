"""Files and folders that get their name when they are whole; else they are gone, also if a signal ends the program.

A process that SIGTERM or SIGHUP ends runs no ``finally``, and one that Ctrl-C ends does not wait for other threads: so
the program removes what is unfinished when the signal comes (:func:`remove_at_signals`).
"""

from __future__ import annotations

import os
import shutil
import signal
from contextlib import contextmanager, suppress
from threading import RLock
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import FrameType

#: Characters of a name in that of what becomes it: no name may be longer than 255 bytes.
_NAMED: Final = 40

#: Another thread may go on writing into a folder that is removed.
_ATTEMPTS: Final = 20

_places: set[Path] = set()

#: Held while something is made: what is made after a signal would stay.
_making: Final = RLock()
_signals: list[int] = []


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
