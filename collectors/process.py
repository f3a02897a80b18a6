"""External programs: found, asked short questions, and run to the end of all their descendants; what they write into.

A command is data, for the dry run to print. A program may move its children into process groups and sessions of their
own (torchrun does), or let them outlive it. So every process of a step inherits a mark in its environment, and all
marked processes are terminated with the step.
"""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Final, Literal, NamedTuple

from kanalyze.collectors.options import BadOptionError
from kanalyze.errors import OutputError, writable
from kanalyze.tools import installed
from kanalyze.units import size

#: A version number in the output of ``--version``: ``2025.3.1.90-253135822v0``, ``release 13.0, V13.0.88``.
_VERSION: Final = re.compile(r"V?(\d+\.\d+(?:\.\d+)*)")


class Program(NamedTuple):
    """An external tool, found or not; one with a `problem` cannot be used, and `remedy` says how to get another."""

    name: str
    path: Path | None = None
    version: str | None = None
    problem: str = ""
    remedy: str = ""

    @property
    def usable(self) -> bool:
        """True if it was found without known problems."""
        return self.path is not None and not self.problem

    @property
    def command(self) -> str:
        """The command to call it; its bare name if not found, for commands to be run on another machine."""
        return str(self.path) if self.path else self.name


def find(name: str, option: str, value: str | os.PathLike[str] | None, folders: Sequence[str], remedy: str) -> Program:
    """Finds the tool `name`.

    That is the `value` of an option, else the one on PATH, else one in the usual installation `folders`:
    patterns below ``/``, best first, and among versions the newest first.
    """
    on_path = shutil.which(name)
    if value is not None:
        candidates = [runnable(option, value)]
    else:
        candidates = [Path(on_path)] if on_path else installed(name, folders)
    if not candidates:
        return Program(name, problem="not found on PATH or where its installers put it", remedy=remedy)
    path = candidates[0]
    status, text = answer(path, "--version")
    if status != 0:
        how = "does not run" if status is None else f"ended with status {status}: {' '.join(text.split())[:200]}"
        return Program(name, path, problem=f"{path} --version {how}", remedy=remedy)
    version = _VERSION.search(" ".join(re.findall(r"V\d[\d.]+", text)) or text)
    return Program(name, path, version.group(1) if version else None, remedy=remedy)


def runnable(option: str, value: str | os.PathLike[str]) -> Path:
    """Resolves the program given with `option`: a file, or a name on PATH; raises BadOptionError."""
    path = Path(value)
    place = shutil.which(path.absolute() if path.parent != Path() or path.exists() else path)
    if place is None:
        raise BadOptionError.of(option, str(value), "a program that can be run")
    return Path(place)


def version_of(*command: str) -> str | None:
    """The version printed by a command; None if it prints none."""
    status, text = answer(*command, "--version")
    version = _VERSION.search(text) if status == 0 else None
    return version.group(1) if version else None


def answer(*command: str | Path, patience_s: float = 60) -> tuple[int | None, str]:
    """Exit status and output of a short command; None and no output if it cannot be started or times out."""
    with suppress(OSError, subprocess.SubprocessError):
        ended = subprocess.run(  # noqa: S603 - a list of arguments, no shell
            [str(word) for word in command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=patience_s,
            check=False,
        )
        return ended.returncode, ended.stdout.decode(errors="replace")
    return None, ""


# Running a step

#: Environment variable that marks the processes of a step.
MARK: Final = "KANALYZE_STEP"

#: Seconds between SIGTERM and SIGKILL, in which tools finish their files; and between two looks at a step.
_GRACE_S, _POLL_S = 5.0, 0.05

#: Bytes at the beginning and at the end of a longer log that are kept, and the line between them.
KEPT_BYTES: Final = 8 << 20
_LEFT_OUT: Final = b"\n[kanalyze: output left out here]\n"

_CHECK: Final = re.compile(r"^(?:[\w.:-]+\s)?(check: *(ok|FAILED)\b.*|Max error: *(\S+).*)$", re.MULTILINE | re.ASCII)


@dataclass(frozen=True)
class Step:
    """A command with its environment, log and expected outputs; its log, progress and manifest have its `name`."""

    name: str
    argv: tuple[str, ...]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[Path, ...] = ()  # files that it must produce, complete and not empty
    stdout: Path | None = None  # a separate file for standard output, if that is a result
    runs_workload: bool = False  # exit status and check lines are then the workload's
    has_runner: bool = False  # whether the torch runner replaces the script on the command line

    @property
    def shell(self) -> str:
        """The command quoted for a shell, to copy and paste."""
        assigned = [f"{name}={shlex.quote(value)}" for name, value in self.env.items()]
        redirected = [f"> {shlex.quote(str(self.stdout))}"] if self.stdout else []
        return " ".join([*assigned, shlex.join(self.argv), *redirected])


@dataclass(frozen=True)
class Event:
    """A progress event.

    Attributes:
        kind: Step started, step running, step ended, or a note.
        step: The step; of a note, the pass.
        text: The tool's last output, the step's result, or the note.
        elapsed_s: Seconds since the step began.
    """

    kind: Literal["begin", "tick", "end", "note"]
    step: str
    text: str = ""
    elapsed_s: float = 0.0


Progress = Callable[[Event], object]

#: Starts a process, as :class:`subprocess.Popen` does.
Starter = Callable[..., "subprocess.Popen[bytes]"]


class Ended(NamedTuple):
    """Result of a command: its exit status, negative for a signal and None if it was stopped, and its run time.

    `shortened` says whether its log keeps only the beginning and the end of what it printed.
    """

    status: int | None
    seconds: float
    shortened: bool = False


def run(
    step: Step,
    timeout_s: float,
    tick: Callable[[float, str], object] = lambda *_: None,
    *,
    starter: Starter = subprocess.Popen,
) -> Ended:
    """Runs a step to its end, with its output in its log: :data:`KEPT_BYTES` of its beginning and of its end.

    It is executed without a shell, with its variables added to this process's environment, and terminated after
    `timeout_s`; `tick` is called a few times a second with the seconds since the start and the last line printed. The
    log is appended to.
    """
    mark, log, began = uuid.uuid4().hex, step.log, time.monotonic()
    with ExitStack() as files:
        printed: IO[bytes] = files.enter_context(log.open("ab"))
        process = starter(
            list(step.argv),
            stdin=subprocess.DEVNULL,
            stdout=files.enter_context(step.stdout.open("wb")) if step.stdout else printed,
            stderr=printed,
            env={**os.environ, **step.env, MARK: mark},
            start_new_session=True,
        )
        status, pause = None, _POLL_S
        try:
            while time.monotonic() - began < timeout_s:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(timeout=pause)
                    break
                _shorten(log)
                tick(time.monotonic() - began, next(iter(tail(log, 1)), ""))
                pause = min(pause * 2, 0.25)
        finally:
            _end_all(process, mark)
    return Ended(status, time.monotonic() - began, shortened=_shorten(log))


def _end_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """Terminate all processes of a step; kill those left after a grace period, or at a second Ctrl-C."""
    try:
        deadline = time.monotonic() + _GRACE_S
        signalled: set[int] = set()
        while (alive := _alive(process, mark)) and time.monotonic() < deadline:
            _signal(alive - signalled, signal.SIGTERM)
            signalled |= alive
            time.sleep(_POLL_S)
    finally:
        while alive := _alive(process, mark):
            _signal(alive, signal.SIGKILL)
            time.sleep(_POLL_S)


def _shorten(log: Path) -> bool:
    """Takes the middle out of a long log, while others may append to it; returns whether it is out."""
    with log.open("r+b") as file:
        printed = file.seek(0, os.SEEK_END)
        if is_long := printed >= 2 * KEPT_BYTES + len(_LEFT_OUT):
            file.seek(printed - KEPT_BYTES)
            end = file.read()
            file.seek(KEPT_BYTES)
            file.write(_LEFT_OUT + end)
            file.truncate()
    return is_long


def _alive(process: subprocess.Popen[bytes], mark: str) -> set[int]:
    """Ids of a step's running processes."""
    assigned = f"{MARK}={mark}".encode()
    entries = Path("/proc").glob("[0-9]*")
    running = {int(entry.name) for entry in entries if _is_of(entry, process.pid, assigned)} - {os.getpid()}
    return running | {process.pid} if process.poll() is None else running - {process.pid}


def _is_of(entry: Path, leader: int, mark: bytes) -> bool:
    """Whether a process is in the session of `leader`, zombies aside, or has `mark` in an environment that is shown."""
    with suppress(OSError, ValueError, IndexError):
        state, _, _, session = (entry / "stat").read_bytes().rpartition(b") ")[2].split()[:4]
        if int(session) == leader and state not in (b"Z", b"X"):
            return True
    with suppress(OSError):
        return mark in (entry / "environ").read_bytes().split(b"\0")
    return False


def _signal(processes: set[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def end_of(log: Path, most: int = 1 << 20) -> str:
    """The last bytes of a log, `most` of them; none where there is no log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - most, 0))
        return file.read().decode(errors="replace")
    return ""


def tail(log: Path, lines: int) -> list[str]:
    """The last non-empty lines of a log, with carriage returns applied as on a terminal."""
    shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in end_of(log, 1 << 16).split("\n"))
    return [line for line in shown if line][-lines:]


class Check(NamedTuple):
    """A line in which a program reports whether its result is correct, and whether it says that it is."""

    line: str
    passed: bool


def checks(log: Path) -> list[Check]:
    """The distinct check lines in a log: ``check: ok …``, ``check: FAILED …`` and ``Max error: 0``."""
    text = end_of(log).replace("\r", "\n")  # a check is the last thing a program prints
    lines = (match.groups() for match in _CHECK.finditer(text))
    return list(dict.fromkeys(Check(line.strip(), _passed(word, error)) for line, word, error in lines))


def _passed(word: str | None, error: str | None) -> bool:
    """Whether a check is passed; an error that is no number, or nan, is none that passes."""
    with suppress(ValueError):
        return word == "ok" if error is None else abs(float(error.rstrip(",;."))) <= 1e-3  # noqa: PLR2004 - of float
    return False


# The folder of a capture: written under a temporary name, moved when complete, never overwriting another

#: Message for a full disk.
NO_SPACE: Final = "there is no space left on the disk"

#: Bytes of free space below which a disk counts as full, and below which no capture is started; bytes that a capture of
#: a longer program easily reaches.
NOTHING_BYTES, _LEAST_BYTES, ENOUGH_BYTES = 1_000_000, 50_000_000, 2_000_000_000


def target(name: str, output: str | os.PathLike[str] | None) -> Path:
    """The folder to write a capture to; raises OutputError."""
    if output is None:
        return vacant(Path(f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"))
    if os.path.lexists(output):
        raise OutputError.exists(Path(output))
    return Path(output)


def scratch(final: Path, sides: Iterable[str] = ("",)) -> Path:
    """Creates a temporary folder beside `final`, with one for logs in it, or in each of its `sides`; absolute path.

    Leftovers of killed runs are found by its name. A signal leaves it, since what was finished is kept.
    """
    parent = final.absolute().parent
    with writable(final):
        free = shutil.disk_usage(parent).free
        if free < _LEAST_BYTES:
            raise OutputError.because(final, f"{size(free)} are free there")
        folder = parent / f".collecting-{final.name}-{uuid.uuid4().hex[:8]}"
        for side in sides:
            (folder / side / "logs").mkdir(parents=True)
    return folder


def scarce(folder: Path) -> str:
    """A warning if the disk of `folder` may fill up during a longer program; else empty."""
    free = shutil.disk_usage(folder).free
    return f"{size(free)} are free; a longer program takes {size(ENOUGH_BYTES)}" if free < ENOUGH_BYTES else ""


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
        with path.open("rb") as file:
            head = file.read(100)
    except OSError:
        return "was not written"
    if not head:
        return "is empty"
    page = int.from_bytes(head[16:18], "big")  # of SQLite: its size, and behind it how many there are
    all_bytes = (65536 if page == 1 else page) * int.from_bytes(head[28:32], "big")
    is_whole = path.suffix != ".sqlite" or (head.startswith(b"SQLite format 3\0") and path.stat().st_size == all_bytes)
    return "" if is_whole else "was written in part"
