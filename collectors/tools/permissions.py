"""Permissions of this process by kernel and driver: CPU samples, names of kernel functions, counters of the GPU."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_ROOT: Final = Path("/")

#: Bits of capability sets (linux/capability.h).
_SYS_ADMIN: Final = 1 << 21
_PERFMON: Final = 1 << 38

#: Levels of perf_event_paranoid (Linux' Documentation/admin-guide/sysctl/kernel.rst) and what each permits of samples.
_EVERY_PROCESS: Final = 0
_KERNEL_TOO: Final = 1
_OWN_ONLY: Final = 2

#: Number of the system call perf_event_open.
_PERF_EVENT_OPEN: Final = {"x86_64": 298, "aarch64": 241}

#: perf_event_attr, first version: a timer of the CPU, disabled, of user code only; 64 bytes.
_ATTRIBUTES: Final = struct.pack("<II5Q2IQ", 1, 64, 0, 0, 0, 0, 1 | 1 << 5 | 1 << 6, 0, 0, 0)

#: How an administrator permits users to read counters.
COUNTERS: Final = (
    "an administrator allows it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/nvidia-profiling.conf and a reboot; or run as root; in a container, start it with "
    "--cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

#: How an administrator permits samples of the CPU.
_SAMPLES: Final = (
    "an administrator allows it with `sysctl kernel.perf_event_paranoid=2` on the host, for good in /etc/sysctl.d; or "
    "run as root"
)
_CONTAINER: Final = "in a container, start it with --cap-add=PERFMON, or --cap-add=SYS_ADMIN before Linux 5.8"

_NAMES: Final = (
    "an administrator allows it with `sysctl kernel.kptr_restrict=0` on the host; without it samples inside the kernel "
    "have addresses and no names"
)


@dataclass(frozen=True)
class Permission:
    """Whether something is permitted to this process (None: nothing tells), by which settings, and how to get it."""

    ok: bool | None
    found: str
    remedy: str = ""


def counters(root: Path = _ROOT) -> Permission:
    """Whether this process may read the GPU's performance counters; only running a tool shows for certain."""
    told = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(root, "proc/driver/nvidia/params"), re.MULTILINE)
    if told is None:
        return Permission(None, "the driver does not tell whether users may read them")
    if not int(told[1]):
        return Permission(ok=True, found="every user may read them (RmProfilingAdminOnly is 0)")
    if _capabilities(root) & _SYS_ADMIN:
        why = "administrators only (RmProfilingAdminOnly is 1), which this process is (CAP_SYS_ADMIN)"
        return Permission(ok=True, found=why)
    return Permission(ok=False, found="administrators only (ERR_NVGPUCTRPERM is what tools will say)", remedy=COUNTERS)


def cpu_samples(root: Path = _ROOT, opened: Callable[[], int] | None = None) -> Permission:
    """Whether this process may sample the CPU; `opened` tries and returns the error's number, 0 without one."""
    level, failed = _number(root, "proc/sys/kernel/perf_event_paranoid"), (opened or _opened)()
    if level is None or failed == errno.ENOSYS:
        remedy = f"run on a Linux that has perf events; {_CONTAINER}"
        return Permission(ok=False, found="there is no perf_event_open here", remedy=remedy)
    setting = f"perf_event_paranoid is {level}"
    if not failed:
        return Permission(ok=True, found=f"{_permitted(root, level)} ({setting})")
    if level > _OWN_ONLY and not _privileged(root):
        return Permission(ok=False, found=f"{setting}, which denies them to users", remedy=f"{_SAMPLES}; {_CONTAINER}")
    if failed in (errno.EPERM, errno.EACCES):
        why = f"perf_event_open is refused although {setting}, as by the filter of a container"
        return Permission(ok=False, found=why, remedy=_CONTAINER)
    return Permission(ok=False, found=f"perf_event_open fails ({os.strerror(failed)}); {setting}", remedy=_CONTAINER)


def kernel_names(root: Path = _ROOT) -> Permission | None:
    """Whether samples inside the kernel get names; None where there are no such samples."""
    level = _number(root, "proc/sys/kernel/perf_event_paranoid")
    if level is None or (level > _KERNEL_TOO and not _privileged(root)):
        return None
    setting = _number(root, "proc/sys/kernel/kptr_restrict")
    told = "" if setting is None else f" (kptr_restrict is {setting})"
    if re.search(r"^0*[1-9a-f][0-9a-f]* ", _text(root, "proc/kallsyms", 4096), re.MULTILINE):
        return Permission(ok=True, found=f"functions of the operating system have names{told}")
    return Permission(ok=False, found=f"the kernel hides where its functions lie{told}", remedy=_NAMES)


def _permitted(root: Path, level: int) -> str:
    if level <= _EVERY_PROCESS or _privileged(root):
        return f"every process and the kernel{'' if level <= _EVERY_PROCESS else ', as this process is privileged'}"
    return f"your own programs, {'and' if level <= _KERNEL_TOO else 'but not'} the kernel below them"


def _privileged(root: Path) -> bool:
    return bool(_capabilities(root) & (_SYS_ADMIN | _PERFMON))


def _capabilities(root: Path) -> int:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(root, "proc/self/status"), re.MULTILINE)
    return int(effective[1], 16) if effective else 0


def _number(root: Path, name: str) -> int | None:
    told = re.fullmatch(r"-?\d+", _text(root, name).strip())
    return int(told[0]) if told else None


def _text(root: Path, name: str, size: int = 1 << 16) -> str:
    """The beginning of a file of the kernel; empty if there is none that can be read."""
    try:
        with (root / name).open(encoding="utf-8", errors="replace") as file:
            return file.read(size)
    except OSError:
        return ""


def _opened() -> int:
    """Opens a counter of this process and closes it; the number of the error, 0 without one."""
    number = _PERF_EVENT_OPEN.get(platform.machine())
    if number is None:
        return errno.ENOSYS
    call = ctypes.CDLL(None, use_errno=True).syscall
    attributes = ctypes.create_string_buffer(_ATTRIBUTES, len(_ATTRIBUTES))
    file = call(ctypes.c_long(number), attributes, 0, -1, -1, ctypes.c_ulong(0))
    if file < 0:
        return ctypes.get_errno()
    os.close(file)
    return 0
