"""The process of a command: what it prints and writes, what it may not overwrite, and memory that may run out.

polars, as any program in Rust, aborts where it gets no memory, and the system kills what takes the last of it. Neither
leaves Python a chance to say anything. So where a limit is near, :func:`in_own_process` forks before polars is loaded,
which costs a millisecond, and tells how the child ended.
"""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from mmap import mmap
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, TextIO, TypeVar

import click

from kanalyze import machinery, outlets
from kanalyze.errors import KanalyzeError, OutOfMemoryError, OutputError, SqlError, writable

with machinery.late():
    from kanalyze.renderers import page as pages
    from kanalyze.renderers.formats import json as json_pages, markdown, terminal
    from kanalyze.renderers.tables import frame

if TYPE_CHECKING:
    import polars as pl

    from kanalyze.renderers.page import Shown
    from kanalyze.report import Report

T = TypeVar("T")

_STANDARD_OUTPUT: Final = Path("standard output")


@dataclass
class Session:
    """What a command has read, written and said so far.

    Its `inputs` and `outputs`; paths `found` in a folder, and those of them that `failed`; reports whose doubts are not
    told yet, files whose doubts are; what is opened once, as `kept`. One that asks for several tables `holds` all that
    it opens; a `quiet` one keeps what a report lacks beside others, as `left_out`. `origins` are tables that are not of
    a capture's first report, and what is to be said of that.
    """

    inputs: list[Path | str] = field(default_factory=list)
    outputs: list[Path | str] = field(default_factory=list)
    everything: bool = False
    undoubted: list[Report] = field(default_factory=list)
    doubted: set[str] = field(default_factory=set)
    found: set[Path] = field(default_factory=set)
    failed: dict[Path, KanalyzeError] = field(default_factory=dict)
    holds: bool = False
    kept: dict[tuple[object, ...], Any] = field(default_factory=dict)
    quiet: bool = False
    left_out: dict[Path, list[str]] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def once(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Result of `make` for `key` when it was first asked for."""
        if key not in self.kept:
            self.kept[key] = make()
        result: T = self.kept[key]
        return result


def session() -> Session:
    """That of the command that runs."""
    return click.get_current_context().ensure_object(Session)


class Out(NamedTuple):
    """How a command prints and where, as its options say: to the terminal unless told."""

    form: str = "terminal"
    output: Path | None = None
    top: int | None = None
    no_formulas: bool = False

    def look(self) -> pages.Look:
        """Width of the terminal, and colours on one, unless NO_COLOR is set (https://no-color.org)."""
        terminal_reads = self.output is None and sys.stdout is not None and sys.stdout.isatty()
        return pages.Look(width(), terminal_reads and not os.environ.get("NO_COLOR"))

    def emit(self, data: bytes | str) -> None:
        """Prints or writes a text, or bytes for programs."""
        emit(data, self.output)

    def emit_as(self, forms: Mapping[str, Callable[[Any], str]], what: T, text: Callable[[T, int], str]) -> None:
        """Prints or writes `what` in one of the `forms` for programs, else as text in the width of the terminal."""
        render = forms.get(self.form)
        self.emit(render(what).encode() if render else text(what, width()))

    def emit_rows(self, rows: pl.DataFrame) -> None:
        """Prints or writes a table for programs."""
        self.emit(FORMATS[self.form](outlets.spreadsheet(rows) if self.no_formulas and self.form == "csv" else rows))

    def emit_pages(self, pages: Sequence[Shown]) -> None:
        """Prints or writes pages, in one of :data:`PAGES` or for the terminal."""
        render = PAGES.get(self.form)
        self.emit(render(pages, self.top).encode() if render else terminal.render(pages, self.look(), self.top))


#: What renders pages for programs and pull requests, each a ``--format`` of the commands that print pages.
PAGES: Final[dict[str, Callable[[Sequence[Shown], int | None], str]]] = {
    "markdown": lambda pages, top: markdown.render(pages, top=top),
    "json": lambda pages, _: json_pages.render(pages),
}


def _parquet(rows: pl.DataFrame) -> bytes:
    """Parquet file with the table's types."""
    rows.write_parquet(buffer := io.BytesIO())
    return buffer.getvalue()


#: What renders all rows of a table, each a ``--format`` of the commands that print tables: CSV with a header, numbers
#: and texts unformatted, nulls empty; JSON as a list of objects, one per row.
FORMATS: Final[dict[str, Callable[[pl.DataFrame], bytes]]] = {
    "csv": lambda rows: rows.write_csv().encode(),
    "json": lambda rows: outlets.escaped_json(rows.write_json()).encode() + b"\n",
    "markdown": lambda rows: frame.markdown(rows).encode(),
    "parquet": _parquet,
}


def emit(data: bytes | str, output: Path | None = None) -> None:
    """Print `data`, or write it to `output`: a page as it can be shown, and bytes, which programs read, as they are.

    Only a terminal that is to show such bytes gets them without what it would obey.

    Raises OutputError if it cannot be written; nothing is left under the file's name.
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
            sys.exit(1)  # nobody reads it
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
    with suppress(OSError):
        if stream is not None:
            stream.flush()
        return True
    return False


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
            paths = ctx.ensure_object(Session)
            (paths.outputs if self.written else paths.inputs).append(path)
            for output in [path] if self.written else paths.outputs:
                _refuse_file_of(paths.inputs if self.written else [path], output)
        return path


class OutputPath(InputPath):
    """A path that is written, which is refused where it is of an input of the command."""

    written = True


def refuse_overwriting(output: Path) -> None:
    """Refuses, by an OutputError, an output that is a file of an input of the command, or a link to one."""
    if click.get_current_context(silent=True) is not None:
        _refuse_file_of(session().inputs, output)


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
        status = os.stat(path)  # noqa: PTH116 - Path.stat of some versions raises what is no OSError
        return status.st_dev, status.st_ino
    return None


def _files_of(path: Path | str) -> Iterator[str]:
    """The files of a folder, also behind links in it; of a file those that SQLite keeps beside it."""
    yield from (f"{path}{ending}" for ending in ("-wal", "-shm", "-journal"))
    folders = set()
    for place, below, names in os.walk(path, followlinks=True):
        if (identity := _identity(place)) in folders:
            below.clear()
        folders.add(identity)
        yield from (os.path.join(place, name) for name in names)  # noqa: PTH118 - as above


def emit_file(write: Callable[[BinaryIO], object], output: Path) -> None:
    """Writes a file piece by piece; it has its name when all of it has been written, and is gone before.

    Raises OutputError if it cannot be written, or is a file of an input.
    """
    refuse_overwriting(output)
    with writable(output):
        target = Path(os.path.realpath(output))
        if target.is_symlink():  # to itself
            raise OutputError.because(output, os.strerror(errno.ELOOP))
        if target.exists() and not target.is_file():
            with target.open("wb") as file:  # a device or a pipe takes what comes, and is not to be replaced
                write(file)
            return
        with machinery.unfinished(target) as temporary:
            with temporary.open("wb") as file:
                write(file)
            temporary.replace(target)


@contextmanager
def emit_folder(output: Path) -> Iterator[Path]:
    """An empty folder to be filled, which is at `output` when all of it has been written, and gone before.

    Raises OutputError if there is something, or it cannot be written.
    """
    refuse_overwriting(output)
    with writable(output):
        if output.exists() and not (output.is_dir() and not any(output.iterdir())):
            raise OutputError.exists(output)
        target = Path(os.path.realpath(output))
        with machinery.unfinished(target, folder=True) as folder:
            yield folder
            folder.replace(target)


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
    return max(shutil.get_terminal_size((80, 24)).columns, 40)


# Memory.


#: What the parent is to say of the child's end by a signal, as JSON; it is shared with the child, where there is one.
_notes: list[mmap] = []
_NOTES_BYTES: Final = 4096

#: The note of a child that ended by itself: a library may end it with any exit status.
_BY_ITSELF: Final = b"null"

#: How a process ends that got no memory: of itself, or by the system.
_ENDS: Final = frozenset((signal.SIGABRT, signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS))

#: What is said where memory is refused, by Python, its loader, and polars.
_SIGNS: Final = (
    "annot allocate memory",
    "out of memory",
    "failed to map segment",
    "memory allocation",
    "failed to spawn thread",
    "could not spawn threads",
    *(f"{says} {number}" for says in ("os error", "Os { code:") for number in (errno.EAGAIN, errno.ENOMEM)),
    "can't start new thread",
    "apacity overflow",
)

#: The child has so long to end by Ctrl-C, which it got, too; after that it gets it once more.
_GRACE_S: Final = 0.5

#: A child is ended that so long is at its limit, or has all its threads wait for each other: one got no memory.
#: Python 3.11 tries for ever where it gets none for the place of an exception in a `with`.
_STUCK_S: Final = 5.0

#: The limits of a process, and which word of /proc/…/statm says how much of it is taken.
_LIMITED: Final = {"RLIMIT_AS": 0, "RLIMIT_DATA": 5}

_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60


def refused(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    if isinstance(error, MemoryError) or any(sign in str(error) for sign in _SIGNS):
        return True
    if not isinstance(error, Exception) or not limits_of_process():
        return False
    # polars goes on without its library where that cannot be loaded, up to the first use; nor does an import of
    # Python's always say what it lacked, or compile names of characters without the library that knows them
    return isinstance(error, SystemError | ImportError | SyntaxError) or "polars._plr" not in sys.modules


def tight(arguments: Sequence[str]) -> bool:
    """Whether what the command line asks for may need more memory than there is for this process."""
    if not arguments or arguments[0] == "collect" or not hasattr(os, "fork"):
        return False
    if arguments[0] == "sql" or limits_of_process():  # what SQL asks for may break any bound
        return True
    # these two read no report; of others one may be all that is said
    need = 0 if arguments[0] in ("cache", "doctor") else sum(sum(_estimates(argument)) for argument in arguments)
    return need > 0 and need * 2 > min(_free_bytes(), default=_UNLIMITED)


def most_at_once(reports: Sequence[str]) -> int:
    """How many of the reports fit into memory side by side, judged by the largest; at least one."""
    largest = max((size for report in reports for size in _estimates(report)), default=0)
    return max(1, min(_free_bytes(), default=_UNLIMITED) // max(1, largest))


def limits_of_process() -> dict[str, int]:
    """The limits that are set for this process: RLIMIT_AS and RLIMIT_DATA, in bytes."""
    import resource  # noqa: PLC0415 - there is none on Windows

    limits = {name: resource.getrlimit(getattr(resource, name))[0] for name in _LIMITED}
    return {name: limit for name, limit in limits.items() if limit != resource.RLIM_INFINITY}


def file_sizes(path: Path) -> Iterator[tuple[Path, int]]:
    """The files of a report with their bytes; none where they cannot be looked at: its reader raises the error."""
    with suppress(OSError, ValueError):
        for file in path.rglob("*") if path.is_dir() else (path,):
            yield file, file.stat().st_size


def _estimates(argument: str) -> list[int]:
    """Estimate of the bytes that each file takes in memory, packed ones the most; none of what is no report."""
    return [size * (60 if file.suffix in {".gz", ".nsys-rep"} else 8) for file, size in file_sizes(Path(argument))]


def _free_bytes() -> Iterable[int]:
    """Free memory of the machine and of each control group around this process, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        yield sum(int(meminfo[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree") if name in meminfo)
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            if not kinds:
                yield from free_in_groups(_CGROUPS, path, "memory.max", "memory.current")
            elif "memory" in kinds.split(","):
                yield from free_in_groups(_CGROUPS / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def free_in_groups(root: Path, path: str, limit: str, usage: str) -> Iterable[int]:
    """Free memory of a control group and of those around it; the file cache counts as free."""
    place = root / path.lstrip("/")
    for group in (place, *place.parents):
        with suppress(OSError, ValueError):
            most = int((group / limit).read_text(encoding="ascii"))  # a group of version 2 may say "max"
            if most < _UNLIMITED:
                stat = dict(line.split() for line in (group / "memory.stat").read_text(encoding="ascii").splitlines())
                files = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
                yield most - int((group / usage).read_text(encoding="ascii")) + files
        if group == root:
            return


def in_own_process(work: Callable[[], int], print_error: Callable[[KanalyzeError], None]) -> int:
    """The exit status of `work`, done in a child of this process; 2, and a printed error, if it gets no memory."""
    import tempfile  # noqa: PLC0415 - imports as much as the rest of the command line, where memory is tight only

    with tempfile.TemporaryFile() as log, mmap(-1, _NOTES_BYTES) as notes:
        parent, child = os.getpid(), os.fork()
        if not child:
            machinery.end_with(parent)
            _notes.append(notes)
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # it interrupts the process that gets no thread
            _redirect_stderr(log.fileno())
            limited = bool(limits_of_process())
            if limited:  # what a thread, or cleaning up, lacks memory for is no news
                threading.excepthook = lambda _: None
                sys.unraisablehook = lambda _: None
            try:
                status = work()
            except BaseException:
                if not limited:
                    raise
                os._exit(OutOfMemoryError.exit_status)  # there was none left to say so: the parent does
            notes[: len(_BY_ITSELF)] = _BY_ITSELF
            os._exit(status)
        status = _awaited(child)
        log.seek(0)
        words = log.read(1 << 20)
        reasons = json.loads(notes[:].rstrip(b"\0") or b"{}")
    if status >= 0 and reasons is None:
        if status != OutOfMemoryError.exit_status or not any(one.encode() in words for one in (*_SIGNS, "panicked at")):
            _pass_on(words)
        return status
    signalled = signal.SIGSEGV if b"overflowed its stack" in words else -status
    why = (reasons or {}).get(str(int(signalled)))
    if why or -status in _ENDS or status >= 0:  # a library ended it
        error = SqlError.of(*why) if why else OutOfMemoryError.anywhere()
        print_error(error)
        return error.exit_status
    _pass_on(words)
    return 128 - status


@contextmanager
def noted(reasons: Mapping[int, tuple[str, str]]) -> Iterator[None]:
    """Has the parent say why the child ended meanwhile, by the signal that ended it: what was wrong, and the remedy."""
    text = json.dumps(reasons).encode()
    _notes[0][: len(text)] = text
    try:
        yield
    finally:
        _notes[0][:] = bytes(_NOTES_BYTES)


def apart() -> bool:
    """Whether this is a child of :func:`in_own_process`."""
    return bool(_notes)


def _redirect_stderr(descriptor: int) -> None:
    """Redirects what libraries write to standard error into a file; Python still writes to standard error."""
    if sys.stderr is not None:
        sys.stderr.flush()
        sys.stderr = os.fdopen(os.dup(2), "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1)
    os.dup2(descriptor, 2)


def _pass_on(words: bytes) -> None:
    with suppress(OSError):
        os.write(2, words)


def _awaited(child: int) -> int:
    """Waits for a child: its exit status, or minus the signal that ended it; hands signals on."""
    due: list[tuple[float, int]] = []

    def note(number: int, _: object) -> None:
        due.append((monotonic() + (_GRACE_S if number == signal.SIGINT else 0), number))

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    pause, last_moved, limits = 0.0005, monotonic(), limits_of_process()  # looks often at first: most work is short
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            while due and due[0][0] <= monotonic():
                os.kill(child, due.pop(0)[1])
            if not (limits and (_all_wait(child) or _is_full(child, limits))):
                last_moved = monotonic()
            elif monotonic() - last_moved > _STUCK_S:
                os.kill(child, signal.SIGKILL)
            sleep(pause)
            pause = min(pause * 2, 0.02)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _all_wait(process: int) -> bool:
    """Whether all threads of a process wait for each other, or as idle ones of polars do; False if unknown."""
    with suppress(OSError):
        waits = [file.read_bytes() for file in Path(f"/proc/{process}/task").glob("*/wchan")]
        return any(b"futex" in wait for wait in waits) and all(b"futex" in wait or b"epoll" in wait for wait in waits)
    return False


def _is_full(process: int, limits: Mapping[str, int]) -> bool:
    """Whether a process has no room left for what Python asks for next, an arena of 1 MiB; False if unknown."""
    used_bytes = taken_bytes(process)
    return any(limits[name] - used_bytes[name] < (1 << 20) for name in limits.keys() & used_bytes.keys())


def taken_bytes(process: int | str = "self") -> dict[str, int]:
    """Memory of a process that counts against each of its limits, about; empty where the system does not say."""
    with suppress(OSError, IndexError, ValueError):
        pages = Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()
        return {name: int(pages[word]) * os.sysconf("SC_PAGE_SIZE") for name, word in _LIMITED.items()}
    return {}
