"""Checks that a path is a readable regular file: not a pipe, a folder or a dangling link.

For every file that is read: who opens a pipe that nobody writes to waits for ever.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from kanalyze.errors import UnreadableReportError


def regular(path: Path) -> Path:
    """Returns `path` if it is a regular file.

    Raises:
        UnreadableReportError: There is something else, or nothing.
    """
    with readable(path):
        mode = os.stat(path).st_mode  # noqa: PTH116 - Path.stat of some versions raises what is no OSError
    if not stat.S_ISREG(mode):
        found = "it is a folder" if stat.S_ISDIR(mode) else "it is a pipe or a device"
        raise UnreadableReportError.because(path, found)
    return path


def open_regular(path: Path) -> BinaryIO:
    """Opens a file to be read.

    Raises:
        OSError: There is something else, or nothing, or the system refuses it.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb")  # a pipe would wait for a writer
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is a pipe or a device")
    return file


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """Convert OSError in the block into errors of the report at `path`.

    Raises:
        UnreadableReportError: It refused something.
    """
    try:
        yield
    except OSError as error:
        raise UnreadableReportError.of(path, error) from error
    except UnicodeEncodeError as error:
        raise UnreadableReportError.because(path, "no file has such a name") from error
    except ValueError as error:
        if "null byte" not in str(error):
            raise
        raise UnreadableReportError.because(path, "no path has a null byte in it") from error
