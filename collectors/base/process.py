"""Runs a command, and terminates it with all its descendants.

A program may move its children into process groups and sessions of their own (torchrun does), or let them outlive it.
So every process of a step inherits a mark in its environment, and all marked processes are terminated with the step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO

#: Environment variable that marks the processes of a step.
MARK: Final = "KANALYZE_STEP"

#: Seconds between SIGTERM and SIGKILL, in which tools finish their files.
_GRACE_S: Final = 5.0

_POLL_S: Final = 0.05

#: Bytes at the end of a log that are searched for its last lines.
_TAIL_BYTES: Final = 1 << 16

#: Bytes at the beginning and at the end of a longer log that are kept, and the line between them.
KEPT_BYTES: Final = 8 << 20
_LEFT_OUT: Final = b"\n[kanalyze: output left out here]\n"

#: Progress callback: seconds since the start, last line printed.
Tick = Callable[[float, str], object]


class Process(Protocol):
    """The interface of :class:`subprocess.Popen` that is used."""

    @property
    def pid(self) -> int:
        """The process id."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end; returns the exit status."""


Starter = Callable[..., Process]


@dataclass(frozen=True)
class Ended:
    """Result of a command: its exit status, negative for a signal and None if it was stopped, and its run time.

    `shortened` says whether its log keeps only the beginning and the end of what it printed.
    """

    status: int | None
    seconds: float
    shortened: bool = False

    @property
    def timed_out(self) -> bool:
        """True if it was stopped at its time limit."""
        return self.status is None


def run(  # noqa: PLR0913 - all of them belong to one start
    argv: Sequence[str],
    log: Path,
    env: Mapping[str, str],
    timeout_s: float,
    tick: Tick = lambda *_: None,
    *,
    stdout: Path | None = None,
    starter: Starter = subprocess.Popen,
) -> Ended:
    """Runs a command to its end, with its output in `log`: :data:`KEPT_BYTES` of its beginning and of its end.

    It is executed without a shell, with `env` added to this process's environment, and terminated after `timeout_s`;
    `tick` is called a few times a second. The `log` is appended to; `stdout` is a separate file for standard output.

    Raises:
        OSError: It cannot be started, or a file cannot be written.
    """
    mark = uuid.uuid4().hex
    began = time.monotonic()
    with ExitStack() as files:
        said: IO[bytes] = files.enter_context(log.open("ab"))
        result = files.enter_context(stdout.open("wb")) if stdout else said
        process = starter(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=result,
            stderr=said,
            env={**os.environ, **env, MARK: mark},
            start_new_session=True,
        )

        def watch() -> None:
            _shorten(log)
            tick(time.monotonic() - began, last_line(log))

        try:
            status = _wait(process, began, timeout_s, watch)
        finally:
            _end_all(process, mark)
    return Ended(status, time.monotonic() - began, shortened=_shorten(log))


def _wait(process: Process, began: float, timeout_s: float, tick: Callable[[], object]) -> int | None:
    """The exit status; None at the time limit."""
    pause = _POLL_S
    while time.monotonic() - began < timeout_s:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=pause)
        tick()
        pause = min(pause * 2, 0.25)
    return None


def _end_all(process: Process, mark: str) -> None:
    """Terminate all processes of a step; kill those left after a grace period, or at a second Ctrl-C."""
    try:
        deadline = time.monotonic() + _GRACE_S
        asked: set[int] = set()
        while (alive := _alive(process, mark)) and time.monotonic() < deadline:
            _signal(alive - asked, signal.SIGTERM)
            asked |= alive
            time.sleep(_POLL_S)
    finally:
        while alive := _alive(process, mark):
            _signal(alive, signal.SIGKILL)
            time.sleep(_POLL_S)


def _shorten(log: Path) -> bool:
    """Takes the middle out of a long log, while others may append to it; returns whether it is out."""
    with log.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        if is_long := size >= 2 * KEPT_BYTES + len(_LEFT_OUT):
            file.seek(size - KEPT_BYTES)
            end = file.read()
            file.seek(KEPT_BYTES)
            file.write(_LEFT_OUT + end)
            file.truncate()
    return is_long


def _alive(process: Process, mark: str) -> set[int]:
    """Ids of a step's running processes."""
    wanted = f"{MARK}={mark}".encode()
    entries = Path("/proc").glob("[0-9]*")
    found = {int(entry.name) for entry in entries if _is_of(entry, process.pid, wanted)} - {os.getpid()}
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0)
        found.discard(process.pid)
        return found
    return found | {process.pid}


def _is_of(entry: Path, leader: int, mark: bytes) -> bool:
    """Whether a process is in the session of `leader`, zombies aside, or has `mark` in its environment.

    Not every system shows environments.
    """
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


def end_of(log: Path, size: int = 1 << 20) -> bytes:
    """The last `size` bytes of a log; none where there is no log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(file.seek(0, os.SEEK_END) - size, 0))
        return file.read()
    return b""


def tail(log: Path, lines: int) -> list[str]:
    """The last non-empty lines of a log, with carriage returns applied as on a terminal."""
    text = end_of(log, _TAIL_BYTES).decode(errors="replace")
    shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return [line for line in shown if line][-lines:]


def last_line(log: Path) -> str:
    """The last non-empty line of a log."""
    return next(iter(tail(log, 1)), "")
