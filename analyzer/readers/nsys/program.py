"""The installed nsys: its path, its version, and a run of it.

It knows where NVIDIA's installers put the program, and how it shows its progress.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from glob import glob
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, NoReturn

from kanalyze.machinery.parents import ending_with
from kanalyze.machinery.unfinished import end_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from types import FrameType

    Starter = Callable[[Sequence[str], IO[bytes]], subprocess.Popen[bytes]]

#: Usual places of nsys when it is not on PATH.
_USUAL: Final = (
    "/opt/nvidia/nsight-systems/*/bin/nsys",
    "/opt/nvidia/nsight-systems/*/target-linux-*/nsys",
    "/opt/nvidia/nsight-systems-cli/*/bin/nsys",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-*/nsys",
    "/usr/local/cuda*/bin/nsys",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin/nsys",
)

#: A progress line: ``Processing 1145 events: [=====42%        ]``.
_PERCENT: Final = re.compile(rb"\[[= ]*(\d{1,3})%")

#: Grace period before a terminated program is killed.
_GRACE_S: Final = 3

_VERSION_LIMIT_S: Final = 20

_ALL: Final = 100  # per cent

_LOOK_EVERY_S: Final = 0.05

#: Longer than two progress lines.
_LINE_BYTES: Final = 400


def find() -> Path | None:
    """The nsys on PATH, else the newest in the usual folders; None if there is none."""
    return installed("nsys", _USUAL)


def installed(name: str, usual: Sequence[str]) -> Path | None:
    """The program of this `name` on PATH, else the newest in the `usual` places; None if there is none."""
    on_path = shutil.which(name)
    if on_path:
        return Path(on_path)
    found = [path for pattern in usual for path in glob(pattern) if shutil.which(path)]  # noqa: PTH207 - absolute
    return Path(max(found, key=_numbers)) if found else None


def _numbers(path: str) -> list[int]:
    """The numbers in a path, as a sort key by version."""
    return [int(number) for number in re.findall(r"\d+", path)]


def version(program: Path) -> str:
    """The version printed by the program, such as ``2025.3.2.474``; empty if it prints none."""
    try:
        said = subprocess.run(  # noqa: S603 - nsys, with a fixed argument
            [program, "--version"], capture_output=True, check=False, stdin=subprocess.DEVNULL, timeout=_VERSION_LIMIT_S
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    found = re.search(rb"version (\d[\d.]*)", said.stdout + said.stderr)
    return found.group(1).decode() if found else ""


def start(command: Sequence[str], said: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start a program in its own process group, with stdout and stderr in one file.

    Raises:
        OSError: It cannot be started.
    """
    return subprocess.Popen(  # noqa: S603 - nsys, with two paths and no shell
        command,
        stdin=subprocess.DEVNULL,
        stdout=said,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=ending_with(os.getpid()),  # noqa: PLW1509 - calls the system alone
    )


def run(
    command: Sequence[str], log: Path, share_done: Callable[[float], object], starter: Starter
) -> tuple[int, list[str]]:
    """Run a program to its end; on any exception it is terminated with its children.

    Its output goes to the file `log`, which is polled: waiting on a pipe would delay Ctrl-C where a library such as
    polars sets signals to restart system calls.

    Returns:
        The exit status, and the lines of output without progress.

    Raises:
        OSError: It cannot be started.
    """
    with log.open("wb") as said, _stoppable(), starter(command, said) as process, ExitStack() as early:
        early.callback(_end, process)
        last = 0
        while (status := process.poll()) is None:
            time.sleep(_LOOK_EVERY_S)
            last = _tell(log, last, share_done)
        early.pop_all()  # it ended on its own
    _tell(log, last, share_done)
    lines = [line.rpartition(b"]")[-1] if _PERCENT.search(line) else line for line in log.read_bytes().splitlines()]
    return status, [line.decode(errors="replace") for line in lines if line.strip()]


def _tell(log: Path, last: int, share_done: Callable[[float], object]) -> int:
    """Report progress from `log` to `share_done` if above `last` per cent; returns the current per cent."""
    with log.open("rb") as said:
        said.seek(max(log.stat().st_size - _LINE_BYTES, 0))
        found = [int(number) for number in _PERCENT.findall(said.read())]
    now = max((percent for percent in found if percent <= _ALL), default=0)
    if now > last:
        share_done(now / _ALL)
    return max(now, last)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Terminate a process and its children, since it may be a script."""
    try:
        _signal(process, signal.SIGTERM)
        process.wait(_GRACE_S)
    except subprocess.TimeoutExpired:
        pass
    finally:
        _signal(process, getattr(signal, "SIGKILL", signal.SIGTERM))
        process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    with suppress(OSError):
        if hasattr(os, "killpg"):
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Turn termination signals into an exception, so that a child program is terminated too.

    Ctrl-C raises one already. Signal handlers can only be set in the main thread, and handlers of others stay.
    """
    names = ("SIGTERM", "SIGHUP") if threading.current_thread() is threading.main_thread() else ()
    handlers = {number: signal.getsignal(number) for name in names if (number := getattr(signal, name, None))}
    ours = {number: handler for number, handler in handlers.items() if handler in (signal.SIG_DFL, end_by)}
    for number in ours:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in ours.items():
            signal.signal(number, handler)


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    del frame
    raise SystemExit(128 + number)
