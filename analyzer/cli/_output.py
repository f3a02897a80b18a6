"""Output of a command: its result to the terminal, a pipe or a file; doubts and progress to standard error."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TextIO

import click

from kanalyze import outlets, units
from kanalyze.errors import KanalyzeError, OutputError
from kanalyze.machinery import late, unfinished

with late():
    from kanalyze.analyses.findings import _doubts
    from kanalyze.readers.capture import read_capture
    from kanalyze.readers.capture import reports as captures
    from kanalyze.renderers.formats import json, markdown, terminal
    from kanalyze.renderers.tables import frame
    from kanalyze.renderers.text import grid

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.collectors.process import Event
    from kanalyze.renderers.page.of_any_kind import Shown
    from kanalyze.report import Report

_NARROWEST = 40

_STANDARD_OUTPUT = Path("standard output")

#: The status where the program that reads the output has ended.
_NOBODY_READS = 1

#: Keys of what the command reads and writes, in its context: paths, reports that it printed no doubts about yet, and
#: files whose doubts it printed.
_INPUTS: Final = "kanalyze.inputs"
_OUTPUTS: Final = "kanalyze.outputs"
_OPENED: Final = "kanalyze.opened"
_SPOKEN_OF: Final = "kanalyze.spoken_of"

#: Most doubts listed, and characters of each.
_NAMED: Final = 6
_WIDE: Final = 120

_CLEAR: Final = "\r\x1b[2K"

#: What the name of a file ends in that SQLite keeps beside a database, and reads with it.
_JOURNALS: Final = ("-wal", "-shm", "-journal")


class Out(NamedTuple):
    """How a command prints and where, as its options say: to the terminal unless told."""

    form: str = "terminal"
    output: Path | None = None
    top: int | None = None
    no_formulas: bool = False

    def look(self) -> grid.Look:
        """Width of the terminal, and colours on one, unless NO_COLOR is set (https://no-color.org)."""
        terminal_reads = self.output is None and sys.stdout is not None and sys.stdout.isatty()
        return grid.Look(width(), terminal_reads and not os.environ.get("NO_COLOR"))

    def emit(self, data: bytes | str) -> None:
        """Prints or writes a text, or bytes for programs."""
        emit(data, self.output)

    def emit_rows(self, rows: pl.DataFrame) -> None:
        """Prints or writes a table for programs."""
        safe = outlets.spreadsheet(rows) if self.no_formulas and self.form == "csv" else rows
        self.emit(frame.FORMATS[self.form](safe))

    def emit_pages(self, pages: Sequence[Shown]) -> None:
        """Prints or writes pages, as JSON, Markdown or for the terminal."""
        if self.form == "json":
            self.emit(json.render(pages).encode())
        elif self.form == "markdown":
            self.emit(markdown.render(pages, self.top).encode())
        else:
            self.emit(terminal.render(pages, self.look(), self.top))


def emit(data: bytes | str, output: Path | None = None) -> None:
    """Print `data`, or write it to `output`: a page as it can be shown, and bytes, which programs read, as they are.

    Only a terminal that is to show such bytes gets them without what it would obey.

    Raises:
        OutputError: It cannot be written; nothing is left under the file's name.
    """
    if isinstance(data, str):
        data = outlets.lines(data)
    if output is not None:
        content = data.encode() if isinstance(data, str) else data
        emit_file(lambda file: file.write(content), output)
        return
    if sys.stdout is None:
        raise OutputError.because(_STANDARD_OUTPUT, os.strerror(errno.EBADF))
    if isinstance(data, bytes) and sys.stdout.isatty():
        data = outlets.lines(data.decode("utf-8", "replace"))
    try:
        click.echo(_encodable(data) if isinstance(data, str) else data, nl=False)
    except OSError as error:
        if error.errno == errno.EPIPE:
            _discard_pending(sys.stdout)
            sys.exit(_NOBODY_READS)
        raise OutputError.because(_STANDARD_OUTPUT, error.strerror or str(error)) from error


def unwritten(error: BaseException) -> OutputError | None:
    """The error to report if standard output did not take the help or the version; None for any other error."""
    if isinstance(error, OSError) and error.filename is None and error.errno in {errno.ENOSPC, errno.EBADF, errno.EIO}:
        _discard_pending(sys.stdout)
        return OutputError.because(_STANDARD_OUTPUT, error.strerror or str(error))
    return None


def print_message(text: str, *, newline: bool = True) -> None:
    """Prints a text, made printable by :mod:`kanalyze.outlets`, on standard error; nothing if that is closed."""
    with suppress(OSError):
        click.echo(text, nl=newline, err=True)


def stderr_is_terminal() -> bool:
    """Whether standard error is a terminal."""
    return sys.stderr is not None and sys.stderr.isatty()


def hold_closed_streams() -> None:
    """Occupies the descriptors of closed standard streams, lest a file opened later gets what is written to them."""
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


def _discard_pending(stream: TextIO) -> None:
    """Drop what a stream still has to write, which would be tried again."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with suppress(OSError, ValueError):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


class InputPath(click.Path):
    """A path that is read, which no output of the command may be: neither the file nor one in a folder."""

    written = False

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:  # noqa: ANN401 - click's
        """The path."""
        path: Any = super().convert(value, param, ctx)
        if ctx is not None and not ctx.resilient_parsing:
            inputs, outputs = (ctx.meta.setdefault(key, []) for key in (_INPUTS, _OUTPUTS))
            (outputs if self.written else inputs).append(path)
            for output in [path] if self.written else outputs:
                _refuse_file_of(inputs if self.written else [path], output)
        return path


class OutputPath(InputPath):
    """A path that is written, which is refused where it is of an input of the command."""

    written = True


def refuse_overwriting(output: Path) -> None:
    """Refuses an output that is a file of an input of the command, or a link to one.

    Raises:
        OutputError: It is.
    """
    context = click.get_current_context(silent=True)
    if context is not None:
        _refuse_file_of(context.meta.get(_INPUTS, ()), output)


def _refuse_file_of(inputs: Sequence[Path | str], output: Path | str) -> None:
    identity = _identity(os.path.realpath(output))  # as it is written: what leads to it need not be there
    for path in inputs if identity else ():
        if identity == _identity(path):
            raise OutputError.because(Path(output), "it is the report itself")
        if any(identity == _identity(file) for file in _files_of(path)):
            raise OutputError.because(Path(output), f"it is a file of {path}, which is read")


def _identity(path: Path | str) -> tuple[int, int] | None:
    """What all names of a file or folder have in common; None where there is none, or it cannot be looked at."""
    with suppress(OSError, ValueError):
        found = os.stat(path)  # noqa: PTH116 - Path.stat of some versions raises what is no OSError
        return found.st_dev, found.st_ino
    return None


def _files_of(path: Path | str) -> Iterator[str]:
    """The files of a folder, also behind links in it; of a file those that SQLite keeps beside it."""
    yield from (f"{path}{ending}" for ending in _JOURNALS)
    folders = set()
    for place, below, names in os.walk(path, followlinks=True):
        if (identity := _identity(place)) in folders:
            below.clear()
        folders.add(identity)
        yield from (os.path.join(place, name) for name in names)  # noqa: PTH118 - as above


def emit_file(write: Callable[[BinaryIO], object], output: Path) -> None:
    """Writes a file piece by piece; it has its name when all of it has been written, and is gone before.

    Raises:
        OutputError: It cannot be written, or is a file of an input.
    """
    refuse_overwriting(output)
    try:
        target = Path(os.path.realpath(output))
        if target.is_symlink():  # to itself
            raise OutputError.because(output, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file():
            with target.open("wb") as file:  # a device or a pipe takes what comes, and is not to be replaced
                write(file)
            return
        with unfinished(target) as temporary:
            with temporary.open("wb") as file:
                write(file)
            temporary.replace(target)
    except OSError as error:
        raise OutputError.because(output, error.strerror or str(error)) from error


@contextmanager
def emit_folder(output: Path) -> Iterator[Path]:
    """An empty folder to be filled, which is at `output` when all of it has been written, and gone before.

    Raises:
        OutputError: There is something, or it cannot be written.
    """
    refuse_overwriting(output)
    try:
        if output.exists() and not (output.is_dir() and not any(output.iterdir())):
            raise OutputError.exists(output)
        target = Path(os.path.realpath(output))
        with unfinished(target, folder=True) as made:
            yield made
            made.replace(target)
    except OSError as error:
        raise OutputError.because(output, error.strerror or str(error)) from error


def _encodable(text: str) -> str:
    """`text` in what the terminal's encoding can say."""
    encoding = sys.stdout.encoding or "ascii"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(terminal.ASCII).encode(encoding, errors="replace").decode(encoding)
    return text


def width() -> int:
    """Columns of the terminal; 80 where there is none to ask, and never so few that nothing fits."""
    return max(shutil.get_terminal_size((80, 24)).columns, _NARROWEST)


def register_figures(report: Report) -> None:
    """Registers a report of which the command prints figures; it is held until :func:`print_doubts`."""
    click.get_current_context().meta.setdefault(_OPENED, []).append(report)


def drop_registered() -> None:
    """Drops the registered reports: the page states their doubts, or another page will be made of them."""
    click.get_current_context().meta.pop(_OPENED, None)


def print_doubts(*, everything: bool) -> None:
    """Prints the doubts about each registered report, once per file, and releases the report.

    With `everything`, checks the whole report; else what the command read of it, since reading the rest may take long.
    """
    meta = click.get_current_context().meta
    spoken_of: set[str] = meta.setdefault(_SPOKEN_OF, set())
    for report in meta.pop(_OPENED, ()):
        file = _file(report)
        if file in spoken_of:
            continue
        try:
            line = doubt_line(file, _doubts.doubts(report, everything=everything))
        except KanalyzeError as error:  # in a table that the command did not need
            line = f"not all of it can be read: {error} See `{command(file)}`"
        if line:
            print_message(f"kanalyze: {outlets.line(line)}")
        spoken_of.add(file)


def _file(report: Report) -> str:
    """The file whose health is that of the report: of a capture it is that of nsys, so one of ncu has its own."""
    path = report.meta.path
    if not report.meta.timeless or not os.path.isdir(path):  # noqa: PTH112 - never raises
        return str(path)
    found = captures.ways(path) if read_capture.accepts(path, b"") else []
    return str(next((way.file for way in found if way.recorder.counts), path))


def doubt_line(file: str, doubts: pl.DataFrame) -> str:
    """The warning for the report in `file`, from doubtful rows of the table `health`; empty if there are none."""
    texts: list[str] = []
    for check, count, ns in doubts.head(_NAMED).select("check", "count", "ns").iter_rows():
        text = check.rstrip(".")
        text = text if len(text) <= _WIDE else text[: _WIDE - 1] + "…"
        texts.append(units.checked(text, count) + (f" ({units.time(ns)})" if ns else ""))
    more = f"; and {units.count(doubts.height - len(texts))} more" if doubts.height > len(texts) else ""
    return f"{file}: not all of this can be trusted: {'; '.join(texts)}{more}. See `{command(file)}`" if texts else ""


def command(file: str) -> str:
    """The command that prints the full health checks of `file`."""
    return outlets.command("kanalyze", "show", "health", file)


def draw_event(event: Event) -> None:
    """Shows how far a run is on standard error: one line that changes on a terminal, plain lines elsewhere."""
    minutes, seconds = divmod(event.elapsed_s, 60)
    elapsed = f"{int(minutes)} min {seconds:02.0f} s" if minutes else f"{seconds:.1f} s"
    line = {
        "tick": f"{event.step}  {elapsed}  {event.text}",
        "begin": f"{event.step} …",
        "end": f"{event.step}: {event.text} after {elapsed}",
        "note": f"{event.step}: {event.text}",
    }[event.kind]
    live, columns = stderr_is_terminal(), shutil.get_terminal_size((80, 24)).columns
    if live and event.kind in ("tick", "begin"):
        print_message(f"{_CLEAR}{outlets.line(line)[: columns - 1]}", newline=False)
    elif event.kind != "tick":
        print_message(f"{_CLEAR if live else ''}{outlets.line(line)}")
