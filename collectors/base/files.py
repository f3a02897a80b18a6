"""Where a capture goes: made under a name of its own, moved to its place when it is whole, and never over another."""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.errors import OutputError
from kanalyze.units import size

if TYPE_CHECKING:
    from os import PathLike

_SQLITE: Final = b"SQLite format 3\0"

#: What is said of a disk that is full.
NO_SPACE: Final = "there is no space left on the disk"

#: A disk with less than this is full for all that tools write.
_NOTHING_BYTES: Final = 1_000_000

#: A capture of a longer program easily has this size.
ENOUGH_BYTES: Final = 2_000_000_000

#: With less space than this nothing is begun.
_LEAST_BYTES: Final = 50_000_000

#: Folders of captures that were killed are told apart by this.
SCRATCH: Final = ".collecting-"


def target(name: str, output: str | PathLike[str] | None) -> Path:
    """The folder that a capture is to have.

    Raises:
        OutputError: There is something under that name already, or no folder to put it in.
    """
    if output is not None:
        if os.path.lexists(output):
            raise OutputError.exists(Path(output))
        return Path(output)
    stem = f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    tried = (Path(stem if number == 1 else f"{stem}-{number}") for number in range(1, 1000))
    return next(path for path in tried if not os.path.lexists(path))


def scratch(final: Path) -> Path:
    """A new folder beside `final`, absolute.

    Raises:
        OutputError: It cannot be made, or there is no space for anything.
    """
    try:
        free = shutil.disk_usage(final.absolute().parent).free
        if free < _LEAST_BYTES:
            raise OutputError.because(final, f"{size(free)} are free there")
        made = Path(tempfile.mkdtemp(prefix=f"{SCRATCH}{final.name}-", dir=final.absolute().parent))
        (made / "logs").mkdir()
    except OSError as error:
        raise OutputError.because(final, error.strerror or str(error)) from error
    return made


def scarce(folder: Path) -> str:
    """What to say of the disk that `folder` is on, where a longer program may fill it; empty where it may not."""
    free = shutil.disk_usage(folder).free
    return f"{size(free)} are free; a longer program takes {size(ENOUGH_BYTES)}" if free < ENOUGH_BYTES else ""


def vacant(final: Path) -> Path:
    """`final`, or a name beside it where something has come there in the meantime."""
    beside = (final.with_name(f"{final.name}-{number}") for number in itertools.count(2))
    return final if not os.path.lexists(final) else next(path for path in beside if not os.path.lexists(path))


def settle(made: Path, final: Path) -> None:
    """Move a finished capture to its place.

    Raises:
        OSError: The disk does not take it.
    """
    made.chmod(0o777 & ~_umask())
    made.rename(final)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def full(folder: Path) -> bool:
    """Whether there is as good as no space left."""
    return shutil.disk_usage(folder).free < _NOTHING_BYTES


def discard(paths: set[Path]) -> None:
    """Remove files and folders, as far as possible."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def entries(folder: Path) -> set[Path]:
    """What is in a folder, the logs aside."""
    return {entry for entry in folder.iterdir() if entry.name != "logs"}


def sizes(folder: Path) -> dict[str, int]:
    """Every file in a folder, by its path in there, with its size in bytes."""
    return {str(path.relative_to(folder)): path.stat().st_size for path in sorted(folder.rglob("*")) if path.is_file()}


def incomplete(path: Path) -> str:
    """What is wrong with a file that a tool was to write; empty where it is there and whole, as far as one can see."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return "was not written"
    if not size:
        return "is empty"
    if path.suffix == ".sqlite" and size != _sqlite_size(head):
        return "was written in part"
    return ""


def _sqlite_size(head: bytes) -> int | None:
    """How long a database is that begins with `head`; None where it is none."""
    if not head.startswith(_SQLITE) or len(head) < 32:  # noqa: PLR2004 - up to the number of pages
        return None
    page = int.from_bytes(head[16:18], "big")
    return (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
