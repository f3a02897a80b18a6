"""Records the environment of a run: GPUs and their state, git, environment variables."""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kanalyze.collectors.base.programs import Program, said

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

#: Words in names of variables that may be secrets; these are never recorded.
_SECRET: Final = re.compile(r"TOKEN(_|$)|SECRET|PASSW|CREDENTIAL|AUTH|PRIVATE|KEY$|COOKIE")

#: User and password in a URL.
_USERINFO: Final = re.compile(r"(?<=://)[^/@\s]+@")

Row = dict[str, str | int | float | None]


@dataclass(frozen=True)
class Gpus:
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
    wanted = dict(fields)
    while smi.path is not None and wanted:
        ran = said(smi.path, f"--query-gpu={','.join(wanted.values())}", "--format=csv,noheader,nounits")
        if ran is None:
            return []
        status, text = ran
        if status == 0:
            lines = [line.split(", ") for line in text.splitlines() if line.strip()]
            rows = [dict(zip(wanted, map(_value, cells), strict=True)) for cells in lines if len(cells) == len(wanted)]
            return [{name: row.get(name) for name in fields} for row in rows]
        unknown = [name for name, field in wanted.items() if f'"{field}"' in text]
        if not unknown:
            return []
        wanted = {name: field for name, field in wanted.items() if name not in unknown}
    return []


def _value(text: str) -> str | int | float | None:
    text = text.strip()
    if text in ("", "[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[Insufficient Permissions]"):
        return None
    if re.fullmatch(r"\d+", text):
        return int(text)
    return float(text) if re.fullmatch(r"\d+\.\d\d+", text) else text


def secret(name: str) -> bool:
    """Whether a variable or flag of that name may hold a secret."""
    return _SECRET.search(name.upper().replace("-", "_")) is not None


def environment() -> dict[str, str]:
    """Environment variables that affect GPU programs, without those that may hold secrets."""
    kept = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES) or name in _NAMES}
    return {name: _USERINFO.sub("", kept[name]) for name in sorted(kept) if not secret(name)}


def host() -> dict[str, str | int | None]:
    """Host name, operating system and CPU."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "cpu": _cpu() or platform.processor() or platform.machine(),
        "cpus": os.cpu_count(),
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def git(folder: Path) -> dict[str, str | bool] | None:
    """Commit, branch and dirty state of the repository that contains `folder`; None if there is none."""
    program = shutil.which("git")
    head = said(program, "-C", folder, "rev-parse", "--show-toplevel", "HEAD", patience_s=10) if program else None
    if program is None or head is None or head[0]:
        return None
    root, commit = head[1].splitlines()[:2]
    branch = said(program, "-C", folder, "branch", "--show-current", patience_s=10)
    # --no-optional-locks: must not update the user's index
    changed = said(program, "-C", folder, "--no-optional-locks", "status", "--porcelain", patience_s=30)
    return {
        "root": root,
        "commit": commit,
        "branch": branch[1].strip() if branch else "",
        "changed": bool(changed and changed[1].strip()),
    }
