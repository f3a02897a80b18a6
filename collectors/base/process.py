"""Starts one command and leaves nothing behind: not of it, and not of what it started.

A program may put its children into groups and sessions of their own (torchrun does), or let them outlive it. So every
process of a step carries a mark in its environment, which children inherit, and all that carry it end with the step.
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

#: The variable that marks the processes of a step.
MARK: Final = "KANALYZE_STEP"

#: What is asked to end gets so long before it is killed: tools finish their files then.
_GRACE_S: Final = 5.0

_POLL_S: Final = 0.05

#: The last words are looked for in so much of the end of a log.
_TAIL_BYTES: Final = 1 << 16

#: Told the seconds since the start and the last line that was said.
Tick = Callable[[float, str], object]


class Process(Protocol):
    """The part of :class:`subprocess.Popen` that is used."""

    @property
    def pid(self) -> int:
        """Its number."""

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status when it has ended."""


Starter = Callable[..., Process]


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        status: Its exit status, negative for a signal; None where it had to be stopped.
        seconds: How long it ran.
    """

    status: int | None
    seconds: float

    @property
    def timed_out(self) -> bool:
        """Whether it was stopped because its time was up."""
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
    """Run a command to its end, its output going to `log`.

    Args:
        argv: The program and its arguments; no shell sees them.
        log: The file that takes what it prints; what is there is kept.
        env: What is added to this process's environment.
        timeout_s: After so long it is stopped.
        tick: Called a few times a second.
        stdout: The file that takes its standard output instead of `log`.
        starter: Starts a process, as :class:`subprocess.Popen` does.

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
        try:
            status = _wait(process, began, timeout_s, lambda: tick(time.monotonic() - began, last_line(log)))
        finally:
            _end_all(process, mark)
    return Ended(status, time.monotonic() - began)


def _wait(process: Process, began: float, timeout_s: float, tick: Callable[[], object]) -> int | None:
    """The exit status; None when the time is up before."""
    pause = _POLL_S
    while time.monotonic() - began < timeout_s:
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=pause)
        tick()
        pause = min(pause * 2, 0.25)
    return None


def _end_all(process: Process, mark: str) -> None:
    """End every process of a step: ask first, and kill what is still there after a while, or at a second Ctrl-C."""
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


def _alive(process: Process, mark: str) -> set[int]:
    """The processes of a step that still run."""
    found = _marked(mark) | _in_session(process.pid)
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=0)
        found.discard(process.pid)
        return found
    return found | {process.pid}


def _marked(mark: str) -> set[int]:
    """The processes that carry `mark`; none where the system does not show environments."""
    wanted = f"{MARK}={mark}".encode()
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                found.add(int(entry.name))
    return found - {os.getpid()}


def _in_session(leader: int) -> set[int]:
    """The processes of the session that the process `leader` was started in, zombies aside."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            state, _, _, session = (entry / "stat").read_bytes().rpartition(b") ")[2].split()[:4]
            if int(session) == leader and state not in (b"Z", b"X"):
                found.add(int(entry.name))
    return found


def _signal(processes: set[int], number: signal.Signals) -> None:
    for pid in processes:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


def tail(log: Path, lines: int) -> list[str]:
    """The last lines of a log that are not empty; what a carriage return overwrote is gone as on a terminal."""
    try:
        with log.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    shown = (line.rstrip("\r").rpartition("\r")[2].rstrip() for line in text.split("\n"))
    return [line for line in shown if line][-lines:]


def last_line(log: Path) -> str:
    """The last line of a log that is not empty."""
    return next(iter(tail(log, 1)), "")
