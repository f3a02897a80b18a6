"""Creates the capture folder: written under a temporary name, moved when complete, never overwriting another."""

from __future__ import annotations

import itertools
import os
import shutil
import uuid
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import OutputError
from kanalyze.units import size

if TYPE_CHECKING:
    from os import PathLike

#: Message for a full disk.
NO_SPACE: Final = "there is no space left on the disk"

#: Bytes of free space below which a disk counts as full, and below which no capture is started.
_NOTHING_BYTES: Final = 1_000_000
_LEAST_BYTES: Final = 50_000_000

#: Bytes that a capture of a longer program easily reaches.
ENOUGH_BYTES: Final = 2_000_000_000


def target(name: str, output: str | PathLike[str] | None) -> Path:
    """The folder to write a capture to; raises OutputError."""
    if output is None:
        return vacant(Path(f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"))
    if os.path.lexists(output):
        raise OutputError.exists(Path(output))
    return Path(output)


def scratch(final: Path, sides: Iterable[str] = ("",)) -> Path:
    """Creates a temporary folder beside `final`, with one for logs in it, or in each of its `sides`; absolute path.

    Leftovers of killed runs are found by its name.
    """
    parent = final.absolute().parent
    try:
        free = shutil.disk_usage(parent).free
        if free < _LEAST_BYTES:
            raise OutputError.because(final, f"{size(free)} are free there")
        made = parent / f".collecting-{final.name}-{uuid.uuid4().hex[:8]}"
        for side in sides:
            (made / side / "logs").mkdir(parents=True)
    except OSError as error:
        raise OutputError.because(final, error.strerror or str(error)) from error
    return made


def scarce(folder: Path) -> str:
    """A warning if the disk of `folder` may fill up during a longer program; else empty."""
    free = shutil.disk_usage(folder).free
    return f"{size(free)} are free; a longer program takes {size(ENOUGH_BYTES)}" if free < ENOUGH_BYTES else ""


def full(folder: Path) -> bool:
    """Whether the disk is practically full."""
    return shutil.disk_usage(folder).free < _NOTHING_BYTES


def vacant(final: Path) -> Path:
    """`final`, or where it is taken the first free name beside it: `final`-2 and so on."""
    beside = (final.with_name(f"{final.name}-{number}") for number in itertools.count(2))
    return next(path for path in itertools.chain((final,), beside) if not os.path.lexists(path))


def discard(paths: set[Path]) -> None:
    """Remove files and folders, ignoring errors."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def incomplete(path: Path) -> str:
    """Reason for which a tool's output file is missing or incomplete; empty if it seems complete."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return "was not written"
    if not size:
        return "is empty"
    page = int.from_bytes(head[16:18], "big")  # of SQLite: its size, and behind it how many there are
    whole_bytes = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    is_whole = path.suffix != ".sqlite" or (head.startswith(b"SQLite format 3\0") and size == whole_bytes)
    return "" if is_whole else "was written in part"
