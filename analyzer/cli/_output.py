"""Where a command's result goes: the terminal, a pipe, or a file that is whole or absent."""

from __future__ import annotations

import errno
import os
import shutil
import sys
import tempfile
from pathlib import Path

import click

from kanalyze.errors import OutputError

_NARROWEST = 40


def emit(data: bytes | str, output: Path | None) -> None:
    """Print `data`, or write it to `output`. Bytes go out as they are, text as the terminal can show it.

    Raises:
        OutputError: It cannot be written; nothing is left under the file's name.
    """
    if output is not None:
        _write(data.encode() if isinstance(data, str) else data, output)
        return
    try:
        if isinstance(data, str):
            click.echo(_speakable(data), nl=False)
        else:
            click.echo(data, nl=False)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise
        raise OutputError.because(Path("standard output"), error.strerror or str(error)) from error


def refuse_overwriting(report: Path, output: Path | None) -> None:
    """Raise :class:`OutputError` if the result would replace the report that it is made of."""
    if output is not None and output.exists() and report.exists() and output.samefile(report):
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
        from kanalyze.renderers.terminal import ASCII  # noqa: PLC0415 - for terminals of the last century only

        return text.translate(ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def width() -> int:
    """Columns of the terminal; 80 where there is none to ask, and never so few that nothing fits."""
    return max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST)


def colour(output: Path | None) -> bool:
    """Whether escape codes are welcome: on a terminal, and not where NO_COLOR is set (https://no-color.org)."""
    return output is None and sys.stdout.isatty() and not os.environ.get("NO_COLOR")
