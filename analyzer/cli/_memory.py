"""Protection where memory may run out: the work runs in a child process, whose death by that becomes an error.

polars, as any program in Rust, aborts where it gets no memory, and the system kills what takes the last of it. Neither
leaves Python a chance to say anything. So where a limit is near, :func:`in_own_process` forks before polars is loaded,
which costs a millisecond, and tells how the child ended.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING, Final

from kanalyze.errors import OutOfMemoryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import FrameType

#: So many bytes of memory for each of a report: packed ones hold many times as much.
_PACKED: Final = 60
_PLAIN: Final = 8

#: Commands that read no report, or start programs of the user's.
_OTHERS: Final = frozenset(("collect", "doctor", "name", "tables", "workloads"))

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
    "os error 11",
    "os error 12",
    "Os { code: 11",
    "Os { code: 12",
    "can't start new thread",
    "apacity overflow",
)

#: The child has so long to end by a signal that it got, too; after that it gets it once more.
_GRACE_S: Final = 0.5

#: How often the child is looked after: at first often, as most work is short.
_FIRST_S: Final = 0.0005
_LONGEST_S: Final = 0.02

_CGROUPS: Final = Path("/sys/fs/cgroup")
_UNLIMITED: Final = 1 << 60


def refused(error: BaseException) -> bool:
    """Whether an error says that there was no memory."""
    if isinstance(error, MemoryError):
        return True
    if any(sign in str(error) for sign in _SIGNS):
        return True
    # polars goes on without its library where that cannot be loaded, up to the first use
    odd = isinstance(error, NameError | ImportError | Warning)
    # nor does an import of Python's always say what it lacked
    if isinstance(error, SystemError) and limits_of_process():
        return True
    return odd and "polars._plr" not in sys.modules and bool(limits_of_process())


def tight(arguments: Sequence[str]) -> bool:
    """Whether what the command line asks for may need more memory than there is for this process."""
    if not arguments or arguments[0] in _OTHERS or not hasattr(os, "fork"):
        return False
    if limits_of_process():
        return True
    need = sum(map(_estimated_bytes, arguments[1:]))
    return need > 0 and need * 2 > min(_free_bytes(), default=_UNLIMITED)


def most_at_once(reports: Sequence[str]) -> int:
    """How many of the reports fit into memory side by side, judged by the largest; at least one."""
    largest = max(map(_largest_bytes, reports), default=0)
    return max(1, min(_free_bytes(), default=_UNLIMITED) // max(1, largest))


def limits_of_process() -> list[int]:
    """The limits that are set for this process: RLIMIT_AS and RLIMIT_DATA, in bytes."""
    import resource  # noqa: PLC0415 - there is none on Windows

    found = (resource.getrlimit(kind)[0] for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return [limit for limit in found if limit != resource.RLIM_INFINITY]


def _estimated_bytes(argument: str) -> int:
    """Estimate of the bytes that a report takes in memory; 0 for an argument that is no report."""
    return sum(_estimates(argument))


def _largest_bytes(argument: str) -> int:
    """The same of the largest file of a folder of reports."""
    return max(_estimates(argument), default=0)


def _estimates(argument: str) -> list[int]:
    """Estimate of the bytes that each file takes in memory; none of an argument that is no report."""
    path = Path(argument)
    try:
        files = [*path.rglob("*")] if path.is_dir() else [path]
        return [file.stat().st_size * (_PACKED if file.suffix in {".gz", ".nsys-rep"} else _PLAIN) for file in files]
    except (OSError, ValueError):
        return []


def _free_bytes() -> Iterable[int]:
    """Free memory of the machine and of each control group around this process, in bytes."""
    with suppress(OSError, ValueError, IndexError):
        told = dict(line.split(":") for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        yield sum(int(told[name].split()[0]) << 10 for name in ("MemAvailable", "SwapFree") if name in told)
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


def in_own_process(work: Callable[[], int], print_error: Callable[[OutOfMemoryError], None]) -> int:
    """The exit status of `work`, done in a child of this process; 2, and a printed error, if it gets no memory."""
    import tempfile  # noqa: PLC0415 - imports as much as the rest of the command line, where memory is tight only

    with tempfile.TemporaryFile() as said:
        child = os.fork()
        if not child:
            _redirect_stderr(said.fileno())
            os._exit(work())
        status = _awaited(child)
        said.seek(0)
        words = said.read(1 << 20)
    if status >= 0:
        if status != OutOfMemoryError.exit_status or not any(sign.encode() in words for sign in _SIGNS):
            _pass_on(words)
        return status
    if -status in _ENDS:
        error = OutOfMemoryError.anywhere()
        print_error(error)
        return error.exit_status
    _pass_on(words)
    return 128 - status


def _redirect_stderr(said: int) -> None:
    """Redirects what libraries write to standard error into a file; Python still writes to standard error."""
    if sys.stderr is not None:
        sys.stderr.flush()
        stderr = os.dup(2)
        sys.stderr = os.fdopen(stderr, "w", encoding=sys.stderr.encoding, errors="backslashreplace", buffering=1)
    os.dup2(said, 2)


def _pass_on(words: bytes) -> None:
    with suppress(OSError):
        os.write(2, words)


def _awaited(child: int) -> int:
    """Waits for a child: its exit status, or minus the signal that ended it."""
    got: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        del frame
        got.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    pause = _FIRST_S
    try:
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            if got:
                _hand_on(child, got.pop())
            sleep(pause)
            pause = min(pause * 2, _LONGEST_S)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _hand_on(child: int, number: int) -> None:
    """Send a child a signal if it did not get it as well, as it does of Ctrl-C."""
    late = monotonic() + (_GRACE_S if number == signal.SIGINT else 0)
    while monotonic() < late:
        with suppress(ChildProcessError):
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                return
        sleep(0.02)
    with suppress(ProcessLookupError):
        os.kill(child, number)
