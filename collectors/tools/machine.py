"""The machine of a run: its GPUs and their state, git, environment variables, and what kernel and driver permit.

Permissions are those of this process: CPU samples, names of kernel functions, counters of the GPU.
"""

import ctypes
import errno
import os
import platform
import re
import shutil
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze.collectors.process import Program, answer

#: nvidia-smi fields that do not change, with our names.
_FIXED: Final = {
    "index": "index",
    "name": "name",
    "uuid": "uuid",
    "driver_version": "driver_version",
    "compute_capability": "compute_cap",
    "memory_total_mib": "memory.total",
    "clock_sm_max_mhz": "clocks.max.sm",
    "clock_memory_max_mhz": "clocks.max.memory",
    "ecc": "ecc.mode.current",
    "mig": "mig.mode.current",
    "persistence": "persistence_mode",
}

#: nvidia-smi fields that change while a program runs.
_STATE: Final = {
    "index": "index",
    "clock_sm_mhz": "clocks.sm",
    "clock_memory_mhz": "clocks.mem",
    "temperature_celsius": "temperature.gpu",
    "power_watts": "power.draw",
    "performance_state": "pstate",
    "utilisation_percent": "utilization.gpu",
    "memory_used_mib": "memory.used",
    "throttle_reasons": "clocks_throttle_reasons.active",
}

#: Environment variables that affect GPU programs: prefixes, and full names.
_PREFIXES: Final = ("CUDA_", "NCCL_", "TORCH", "TRITON_", "PYTORCH_", "CUBLAS_", "CUDNN_", "NVIDIA_", "NVCC_", "OMP_")
_NAMES: Final = (
    *("MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "VIRTUAL_ENV"),
    *("CONDA_DEFAULT_ENV", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
)

_ROOT: Final = Path("/")

#: Bits of capability sets (linux/capability.h).
_SYS_ADMIN, _PERFMON = 1 << 21, 1 << 38

#: Levels of perf_event_paranoid (Linux' Documentation/admin-guide/sysctl/kernel.rst) and what each permits of samples.
_ANY_PROCESS, _KERNEL_TOO, _OWN_ONLY = range(3)

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

Row = dict[str, str | int | float | None]


class Gpus(NamedTuple):
    """The GPUs that `smi`, nvidia-smi, lists, with the constant fields of each.

    `present` says whether there is a GPU at all; nvidia-smi may be missing on a machine with one.
    """

    smi: Program
    rows: tuple[Row, ...] = ()
    present: bool = False

    @property
    def compute_capabilities(self) -> tuple[str, ...]:
        """The distinct compute capabilities, such as ``9.0``."""
        return tuple(dict.fromkeys(str(row["compute_capability"]) for row in self.rows if row["compute_capability"]))

    @property
    def driver_version(self) -> str | None:
        """The driver version, the same for all GPUs of a machine."""
        return next((str(row["driver_version"]) for row in self.rows if row["driver_version"]), None)


def gpus() -> Gpus:
    """Queries the GPUs of this machine."""
    path = shutil.which("nvidia-smi")
    smi = Program("nvidia-smi", Path(path)) if path else Program("nvidia-smi", problem="not found on PATH")
    rows = _query(smi, _FIXED)
    return Gpus(smi, tuple(rows), bool(rows) or has_device_files())


def has_device_files() -> bool:
    """Whether GPU device files exist, including those of WSL."""
    return any(Path("/dev").glob("nvidia[0-9]*")) or Path("/dev/dxg").exists()


def state(smi: Program) -> list[Row]:
    """Current clocks, temperature and power of each GPU; empty if unavailable."""
    return _query(smi, _STATE)


def _query(smi: Program, fields: dict[str, str]) -> list[Row]:
    """Queries fields per GPU; retries without a field that this nvidia-smi does not know."""
    tried = dict(fields)
    while smi.path is not None and tried:
        status, text = answer(smi.path, f"--query-gpu={','.join(tried.values())}", "--format=csv,noheader,nounits")
        if status == 0:
            lines = [line.split(", ") for line in text.splitlines() if line.strip()]
            rows = [dict(zip(tried, map(_value, cells), strict=True)) for cells in lines if len(cells) == len(tried)]
            return [{name: row.get(name) for name in fields} for row in rows]
        known = {name: field for name, field in tried.items() if f'"{field}"' not in text}
        if len(known) == len(tried):
            return []
        tried = known
    return []


def _value(text: str) -> str | int | float | None:
    text = text.strip()
    if text in ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]"):
        return None
    if text.isdecimal():
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d\d+", text) else text


def secret(name: str) -> bool:
    """Whether a variable or flag of that name may hold a secret."""
    words = r"TOKEN(_|$)|SECRET|PASSW|CREDENTIAL|AUTH|PRIVATE|KEY$|COOKIE"
    return re.search(words, name.upper().replace("-", "_")) is not None


def environment() -> dict[str, str]:
    """Environment variables that affect GPU programs, without those that may hold secrets, nor passwords in URLs."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) or name in _NAMES}
    return {name: re.sub(r"(?<=://)[^/@\s]+@", "", kept[name]) for name in sorted(kept) if not secret(name)}


def host() -> dict[str, str | int | None]:
    """Host name, operating system and CPU."""
    model = re.search(r"^model name\s*:\s*(.+)$", _text(_ROOT, "proc/cpuinfo"), re.MULTILINE)
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": (model[1].strip() if model else "") or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
    }


def git(folder: Path) -> dict[str, str | bool] | None:
    """Commit, branch and dirty state of the repository that contains `folder`; None if there is none."""
    program = shutil.which("git") or "git"
    status, text = answer(program, "-C", folder, "rev-parse", "--show-toplevel", "HEAD", patience_s=10)
    if status != 0:
        return None
    root, commit = text.splitlines()[:2]
    _, branch = answer(program, "-C", folder, "branch", "--show-current", patience_s=10)
    # --no-optional-locks: must not update the user's index
    _, changed = answer(program, "-C", folder, "--no-optional-locks", "status", "--porcelain", patience_s=30)
    return {"root": root, "commit": commit, "branch": branch.strip(), "changed": bool(changed.strip())}


class Permission(NamedTuple):
    """Whether something is permitted to this process (None: nothing tells), by which settings, and how to get it."""

    ok: bool | None
    found: str
    remedy: str = ""


def counters(root: Path = _ROOT) -> Permission:
    """Whether this process may read the GPU's performance counters; only running a tool shows for certain."""
    setting = re.search(r"^RmProfilingAdminOnly:\s*(\d+)", _text(root, "proc/driver/nvidia/params"), re.MULTILINE)
    if setting is None:
        return Permission(None, "the driver does not tell whether users may read them")
    if not int(setting[1]):
        return Permission(ok=True, found="every user may read them (RmProfilingAdminOnly is 0)")
    if _capabilities(root) & _SYS_ADMIN:
        why = "administrators only (RmProfilingAdminOnly is 1), which this process is (CAP_SYS_ADMIN)"
        return Permission(ok=True, found=why)
    return Permission(ok=False, found="administrators only (ERR_NVGPUCTRPERM is what tools will say)", remedy=COUNTERS)


def cpu_samples(root: Path = _ROOT, opened: Callable[[], int] | None = None) -> Permission:
    """Whether this process may sample the CPU; `opened` tries and returns the error's number, 0 without one."""
    level, failed = _number(root, "perf_event_paranoid"), (opened or _opened)()
    if level is None or failed == errno.ENOSYS:
        remedy = f"run on a Linux that has perf events; {_CONTAINER}"
        return Permission(ok=False, found="there is no perf_event_open here", remedy=remedy)
    setting, privileged = f"perf_event_paranoid is {level}", bool(_capabilities(root) & (_SYS_ADMIN | _PERFMON))
    if not failed:
        scope = f"your own programs, {'and' if level <= _KERNEL_TOO else 'but not'} the kernel below them"
        if level <= _ANY_PROCESS or privileged:
            scope = f"every process and the kernel{'' if level <= _ANY_PROCESS else ', as this process is privileged'}"
        return Permission(ok=True, found=f"{scope} ({setting})")
    if level > _OWN_ONLY and not privileged:
        return Permission(ok=False, found=f"{setting}, which denies them to users", remedy=f"{_SAMPLES}; {_CONTAINER}")
    why = f"perf_event_open fails ({os.strerror(failed)}); {setting}"
    if failed in (errno.EPERM, errno.EACCES):
        why = f"perf_event_open is refused although {setting}, as by the filter of a container"
    return Permission(ok=False, found=why, remedy=_CONTAINER)


def kernel_names(root: Path = _ROOT) -> Permission | None:
    """Whether samples inside the kernel get names; None where there are no such samples."""
    level, setting = _number(root, "perf_event_paranoid"), _number(root, "kptr_restrict")
    if level is None or (level > _KERNEL_TOO and not _capabilities(root) & (_SYS_ADMIN | _PERFMON)):
        return None
    restrict = "" if setting is None else f" (kptr_restrict is {setting})"
    if re.search(r"^0*[1-9a-f][0-9a-f]* ", _text(root, "proc/kallsyms", 4096), re.MULTILINE):
        return Permission(ok=True, found=f"functions of the operating system have names{restrict}")
    remedy = (
        "an administrator allows it with `sysctl kernel.kptr_restrict=0` on the host; without it samples inside the "
        "kernel have addresses and no names"
    )
    return Permission(ok=False, found=f"the kernel hides where its functions lie{restrict}", remedy=remedy)


def _capabilities(root: Path) -> int:
    effective = re.search(r"^CapEff:\s*([0-9a-f]+)", _text(root, "proc/self/status"), re.MULTILINE)
    return int(effective[1], 16) if effective else 0


def _number(root: Path, setting: str) -> int | None:
    number = re.fullmatch(r"-?\d+", _text(root, f"proc/sys/kernel/{setting}").strip())
    return int(number[0]) if number else None


def _text(root: Path, name: str, size: int = 1 << 16) -> str:
    """The beginning of a file of the kernel; empty if there is none that can be read."""
    with suppress(OSError), (root / name).open(encoding="utf-8", errors="replace") as file:
        return file.read(size)
    return ""


def _opened() -> int:
    """Opens a counter of this process and closes it; the number of the error, 0 without one."""
    number = {"x86_64": 298, "aarch64": 241}.get(platform.machine())  # of the system call perf_event_open
    if number is None:
        return errno.ENOSYS
    attributes = ctypes.create_string_buffer(_ATTRIBUTES, len(_ATTRIBUTES))
    file = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), attributes, 0, -1, -1, ctypes.c_ulong(0))
    if file < 0:
        return ctypes.get_errno()
    os.close(file)
    return 0
