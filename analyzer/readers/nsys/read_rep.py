"""Reads ``.nsys-rep`` and older ``.qdrep`` reports, through an export to SQLite by the installed nsys.

Exports lie in the user's cache. An export is keyed by the state of the report (:mod:`kanalyze.readers.user_cache`) and
by the nsys that made it, so that it is never stale, and by its own checksum. Two processes that export the same report
at once each make one, and the later one stays.
"""

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from kanalyze import errors, files, machinery, readers
from kanalyze.readers import user_cache
from kanalyze.readers.nsys.read_sqlite_folder import report_of, shows_nsys
from kanalyze.readers.storage.table_files import SqliteFile
from kanalyze.report import Report
from kanalyze.tools import NSYS_FOLDERS, installed


def accepts(path: Path, head: bytes) -> bool:
    """Whether the file has the magic bytes or the suffix of an nsys report."""
    is_named_so = path.suffix in (".nsys-rep", ".qdrep") and bool(head)
    return head.startswith(b"NVIDIA Tegra Profiler Report") or (is_named_so and not head.startswith(b"SQLite"))


def open_report(path: Path, progress: readers.Progress, *, cache: bool) -> Report:
    """Opens the report at `path`; the first time takes as long as its export.

    Raises ExportError if there is no nsys here, it cannot export the report, or the export cannot be written;
    UnreadableReportError if the report changes while it is exported.
    """
    database = exported(path, progress, cache=cache)
    report = report_of(database)
    return replace(report, meta=replace(report.meta, path=path, read_from=database.path))


def exported(path: Path, progress: readers.Progress, *, cache: bool = True) -> SqliteFile:
    """The SQLite export of the report at `path`: a newer one beside it, else a cached one, else a new one.

    Args:
        path: A report in NVIDIA's own format.
        progress: Receives the share of the export that is done.
        cache: Whether a cached export may be used.

    Raises:
        ExportError: There is no nsys, it cannot export the report, or the export cannot be written.
        UnreadableReportError: The report changes while it is exported.
    """
    folder, program, name, key = files.cache_folder(), find(), user_cache.name_of(path), "*"
    if program is not None:  # its version is told without running it
        file = program.stat()
        key = files.digest(os.fsencode(program.resolve()) + f" {file.st_size} {file.st_mtime_ns}".encode())
    key = f"{name}-{key}"
    if cache:
        exports = (_beside(path), *map(_opened, user_cache.kept(folder, f"{key}.*.sqlite")))
        if (usable := next(filter(None, exports), None)) is not None:
            return usable
    if program is None:
        older = path.with_suffix(".sqlite")
        raise errors.ExportError.without_nsys(path, older if older != path and _opened(older) else None)
    try:
        export = _export(path, key, program, progress)
    except OSError as error:
        raise errors.ExportError.unwritable(path, folder, error.strerror or str(error)) from error
    if user_cache.name_of(path) != name:
        raise errors.UnreadableReportError.because(path, "it changed while it was exported")
    return SqliteFile(export)


def _beside(path: Path) -> SqliteFile | None:
    """The sibling export with suffix .sqlite, if newer than the report and complete; `nsys stats` writes it too."""
    candidate = path.with_suffix(".sqlite")
    with suppress(OSError):
        is_newer = candidate != path and candidate.stat().st_mtime_ns >= path.stat().st_mtime_ns
        if is_newer and not candidate.with_name(candidate.name + "-journal").exists():  # nsys is still writing it
            return _opened(candidate)
    return None


def _opened(path: Path) -> SqliteFile | None:
    """Opens the export at `path`; None if missing or incomplete."""
    with suppress(errors.KanalyzeError):
        database = SqliteFile(path) if path.is_file() else None
        return database if database is not None and shows_nsys(database.tables) else None
    return None


def _export(path: Path, name: str, program: Path, progress: readers.Progress) -> Path:
    """Export the report at `path` under `name`, and remove cached exports of earlier states of the report."""
    cache = files.cache_folder()
    with user_cache.scratch(cache) as folder:
        export = folder / "export.sqlite"
        what = f"exporting {path.name} with {program}"
        progress(what, 0.0)
        flags = ("--type=sqlite", "--include-blobs=true", f"--output={export}")
        command = [str(program), "export", *flags, str(path.absolute())]
        log = folder / "said"
        try:
            status, output = run(command, log, lambda share: progress(what, share))
        except OSError as error:
            if error.filename == str(log):
                raise
            raise errors.ExportError.failed(path, str(program), 0, [error.strerror or str(error)]) from error
        if status or _opened(export) is None:
            raise errors.ExportError.failed(path, f"nsys {version(program)}".strip(), status, output)
        export.chmod(0o600)
        target = cache / f"{name}.{user_cache.checksum(export)}.sqlite"
        with user_cache.alone(cache):
            user_cache.make_room(cache, name.partition("-")[0])
            export.replace(target)
    progress(what, 1.0)
    return target


# The installed nsys: its path, its version, and a run of it.

#: A progress line: ``Processing 1145 events: [=====42%        ]``.
_PERCENT: Final = re.compile(rb"\[[= ]*(\d{1,3})%")

_VERSION_LIMIT_S: Final = 20

_ALL: Final = 100  # per cent


def find() -> Path | None:
    """The nsys on PATH, else the newest where installers put it; None if there is none."""
    return newest("nsys", NSYS_FOLDERS)


def newest(name: str, folders: Sequence[str]) -> Path | None:
    """The program of this `name` on PATH, else the newest in `folders`; None if there is none."""
    on_path = shutil.which(name)
    programs = [Path(on_path)] if on_path else installed(name, folders)
    return max(programs, key=lambda path: [*map(int, re.findall(r"\d+", str(path)))], default=None)


def version(program: Path) -> str:
    """The version printed by the program, such as ``2025.3.2.474``; empty if it prints none."""
    with suppress(OSError, subprocess.SubprocessError):
        completed = subprocess.run(  # noqa: S603 - nsys, with a fixed argument
            [program, "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_VERSION_LIMIT_S
        )
        match = re.search(rb"version (\d[\d.]*)", completed.stdout + completed.stderr)
        return match[1].decode() if match else ""
    return ""


def run(command: Sequence[str], log: Path, share_done: Callable[[float], object]) -> tuple[int, list[str]]:
    """Run a program to its end; on any exception it is terminated with its children.

    Its output goes to the file `log`, which is polled: waiting on a pipe would delay Ctrl-C where a library such as
    polars sets signals to restart system calls.

    Returns:
        The exit status, and the lines of output without progress.

    Raises:
        OSError: It cannot be started.
    """
    last = 0
    with log.open("wb") as output, _stoppable(), ExitStack() as early:
        process = subprocess.Popen(  # noqa: S603 - nsys, with two paths and no shell
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=machinery.ending_with(os.getpid()),  # noqa: PLW1509 - calls the system alone
        )
        early.callback(_end, process)
        while (status := process.poll()) is None:
            time.sleep(0.05)
            last = _tell(log, last, share_done)
        early.pop_all()  # it ended on its own
    _tell(log, last, share_done)
    lines = [line.rpartition(b"]")[-1] if _PERCENT.search(line) else line for line in log.read_bytes().splitlines()]
    return status, [line.decode(errors="replace") for line in lines if line.strip()]


def _tell(log: Path, last: int, share_done: Callable[[float], object]) -> int:
    """Report progress from `log` to `share_done` if above `last` per cent; returns the current per cent."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - 400, 0))  # more than two progress lines
        percents = [int(number) for number in _PERCENT.findall(file.read())]
    now = max((percent for percent in percents if percent <= _ALL), default=0)
    if now > last:
        share_done(now / _ALL)
    return max(now, last)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and its children, since it may be a script."""
    send = partial(os.killpg, process.pid) if hasattr(os, "killpg") else process.send_signal
    try:
        with suppress(OSError, subprocess.TimeoutExpired):
            send(signal.SIGTERM)
            process.wait(3)
    finally:
        with suppress(OSError):
            send(getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn termination signals, as Ctrl-C, into an exception: a child program is terminated too; main thread only."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        del frame
        raise SystemExit(128 + number)

    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    ours = {number: handler for number, handler in handlers.items() if handler in (signal.SIG_DFL, machinery.end_by)}
    for number in ours:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)
