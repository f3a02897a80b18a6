"""Where a command's result goes: the terminal, a pipe, or a file that is whole or absent."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kanalyze import outlets
from kanalyze.errors import OutputError

if TYPE_CHECKING:
    from typing import TextIO

_NARROWEST = 40

_STANDARD_OUTPUT = Path("standard output")

#: The status where the program that reads the output has ended.
_NOBODY_READS = 1


def emit(data: bytes | str, output: Path | None) -> None:
    """Print `data`, or write it to `output`: a page as it can be shown, and bytes, which programs read, as they are.

    Only a terminal that is to show such bytes gets them without what it would obey.

    Raises:
        OutputError: It cannot be written; nothing is left under the file's name.
    """
    if isinstance(data, str):
        data = outlets.lines(data)
    if output is not None:
        _write(data.encode() if isinstance(data, str) else data, output)
        return
    if sys.stdout is None:
        raise OutputError.because(_STANDARD_OUTPUT, os.strerror(errno.EBADF))
    if isinstance(data, bytes) and sys.stdout.isatty():
        data = outlets.lines(data.decode("utf-8", "replace"))
    try:
        click.echo(_speakable(data) if isinstance(data, str) else data, nl=False)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _let_go_of(sys.stdout)
            sys.exit(_NOBODY_READS)
        raise OutputError.because(_STANDARD_OUTPUT, error.strerror or str(error)) from error


def unwritten(error: BaseException) -> OutputError | None:
    """What is to be said where standard output did not take the help or the version; None of any other error."""
    if isinstance(error, OSError) and error.filename is None and error.errno in {errno.ENOSPC, errno.EBADF, errno.EIO}:
        _let_go_of(sys.stdout)
        return OutputError.because(_STANDARD_OUTPUT, error.strerror or str(error))
    return None


def tell(text: str, *, newline: bool = True) -> None:
    """Say something on standard error, whose texts have been through :mod:`kanalyze.outlets`; or not, if it is gone."""
    with suppress(OSError):
        click.echo(text, nl=newline, err=True)


def told_on_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def hold_closed_streams() -> None:
    """Let no file get the number of a standard stream that is closed: what is written there would go into the file."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # opened the other way round, so that using it still fails
            held = os.open(os.devnull, os.O_RDONLY if number else os.O_WRONLY)
            os.set_inheritable(held, True)  # noqa: FBT003 - a function of the library


def flush(stream: TextIO | None) -> bool:
    """Write what a standard stream still has; whether that could be done."""
    if stream is None:
        return True
    try:
        stream.flush()
    except OSError:
        return False
    return True


def _let_go_of(stream: TextIO) -> None:
    """Drop what a stream still has to write, which would be tried again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def refuse_overwriting(report: Path, output: Path | None) -> None:
    """Raise :class:`OutputError` if the result would replace the report that it is made of."""
    if output is None:
        return
    try:
        same = output.samefile(report)
    except (OSError, ValueError):  # one of them is not there, or cannot be looked at, as who opens it will say
        return
    if same:
        raise OutputError.because(output, "it is the report itself")


def _write(data: bytes, output: Path) -> None:
    try:
        target = output.resolve()
        if target.exists() and not target.is_file():
            target.write_bytes(data)  # a device or a pipe takes what comes, and is not to be replaced
            return
        with tempfile.NamedTemporaryFile(dir=target.parent, prefix=f".{target.name}.", delete=False) as file:
            temporary = Path(file.name)
        try:
            temporary.write_bytes(data)
            temporary.chmod(0o666 & ~_umask())
            temporary.replace(target)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise OutputError.because(output, error.strerror or str(error)) from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _speakable(text: str) -> str:
    """`text` in what the terminal's encoding can say."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        from kanalyze.renderers.formats.terminal import ASCII  # noqa: PLC0415 - for terminals of the last century only

        return text.translate(ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def width() -> int:
    """Columns of the terminal; 80 where there is none to ask, and never so few that nothing fits."""
    return max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST)


def colour(output: Path | None) -> bool:
    """Whether escape codes are welcome: on a terminal, and not where NO_COLOR is set (https://no-color.org)."""
    return output is None and sys.stdout is not None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
