"""ncu: where it is, the commands of its pass, and what its messages mean."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.files import NO_SPACE
from kanalyze.collectors.base.programs import Program, find
from kanalyze.collectors.base.step import with_flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.tools.ncu_launches import Selection

_FOLDERS: Final = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute",
    "/usr/local/cuda*/nsight-compute-*",
    "/usr/lib/nsight-compute",
)

_REMEDY: Final = (
    "install Nsight Compute (https://developer.nvidia.com/nsight-compute; the CUDA toolkit has it) and put its ncu on "
    "PATH, or say where it is with --ncu"
)

#: The pages that are written beside the report.
PAGES: Final = ("details", "raw", "source")

#: How an administrator lets users read counters.
PERMISSION: Final = (
    "an administrator allows it with `options nvidia NVreg_RestrictProfilingToAdminUsers=0` in "
    "/etc/modprobe.d/nvidia-profiling.conf and a reboot; or run as root; in a container, start it with "
    "--cap-add=SYS_ADMIN (https://developer.nvidia.com/ERR_NVGPUCTRPERM)"
)

#: What it means that ncu profiled nothing.
NONE_PROFILED: Final = "no launch was profiled: the program launched none of the kernels that were chosen"

#: What ncu says when it cannot, and what that means.
_MESSAGES: Final = (
    (r"ERR_NVGPUCTRPERM", f"this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): {PERMISSION}"),
    (r"No space left on device", NO_SPACE),
    (r"No kernels were profiled", NONE_PROFILED),
    (r"(?i)driver resource.*unavailable|ERR_NVCMPT_?RESOURCE|profiling is not possible|already in use",
     "another tool holds the GPU's counters (DCGM, another profiler); stop it and try again"),
    (r"(?i)not supported on (this|current) (device|GPU)|Profiling is not supported",
     "this GPU, or the way in which it is shared, does not allow profiling"),
    (r"nsight-compute-lock",
     "another user's run of ncu left its lock file in the folder for temporary files; set TMPDIR to one of your own"),
    (r"The application returned an error code", "the program ended with an error under ncu"),
)  # fmt: skip

#: What ncu says where it may not lock the clocks.
_CLOCKS: Final = re.compile(
    r"(?i)(fail\w*|unable|cannot|not) [^\n]*\b(lock|clock)|clock[^\n]*(fail|not (supported|permitted))"
)

#: What ncu warns of in every run: metrics of parts that this GPU does not have, and that it takes its time.
_USUAL: Final = re.compile(r"Unable to access the following \d+ metrics|taking more time than expected")

#: Kernels of a library have no sources here, and nobody who profiles a Python program can compile them again.
_NO_SOURCES: Final = re.compile(r"No source files were imported")

#: What ncu itself says in the log that the program writes to as well.
OWN_LINE: Final = re.compile(r"^==(PROF|WARNING|ERROR)==")

#: Bit of CAP_SYS_ADMIN in a set of capabilities.
_SYS_ADMIN: Final = 1 << 21


def find_ncu(options: Options) -> Program:
    """The ncu that the user names, or the one on PATH, or of an installer."""
    return find("ncu", "--ncu", options.ncu, _FOLDERS, _REMEDY)


def restricted(params: Path = Path("/proc/driver/nvidia/params"), status: Path = Path("/proc/self/status")) -> bool:
    """Whether the driver lets administrators read counters only, and this process is none.

    Only ncu itself knows for sure; this is what can be told without a run of it.
    """
    try:
        only_admin = re.search(r"^RmProfilingAdminOnly:\s*1", params.read_text(encoding="utf-8"), re.MULTILINE)
        effective = re.search(r"^CapEff:\s*([0-9a-f]+)", status.read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return False
    return bool(only_admin) and not (effective and int(effective[1], 16) & _SYS_ADMIN)


def profile(ncu: str, report: Path, options: Options, selection: Selection, workload: Sequence[str]) -> tuple[str, ...]:
    """The command that profiles the launches of `selection` into ``report``, a path without ending."""
    ours = [
        *(("--set", "full"), ("--import-source", "yes"), ("--target-processes", "all")),
        ("--clock-control", options.clock_control),
        *_part(options),
        *zip(selection.flags[::2], selection.flags[1::2], strict=True),
        ("--export", str(report)),
    ]
    return (ncu, *with_flags(ours, options.ncu_flags), *workload)


def _part(options: Options) -> list[tuple[str, ...]]:
    """What limits profiling to a part of the run; an NVTX range may be one of push and pop, or of start and end."""
    if options.range_name is not None:
        name = re.sub(r"([@/\\*+\[\]])", r"\\\1", options.range_name)
        return [("--nvtx",), ("--nvtx-include", f"{name}/"), ("--nvtx-include", name)]
    return [("--profile-from-start", "off")] if options.cuda_profiler_api else []


def page(ncu: str, report: Path, name: str) -> tuple[str, ...]:
    """The command that prints one page of ``report.ncu-rep`` as CSV, in base units."""
    return (ncu, "--import", f"{report}.ncu-rep", "--csv", "--page", name, "--print-units", "base")


def meaning(log: str) -> str:
    """What ncu's messages mean; empty where there is none that is known."""
    return next((meant for pattern, meant in _MESSAGES if re.search(pattern, log)), "")


def cannot_lock_clocks(log: str) -> bool:
    """Whether ncu said that it cannot lock the clocks."""
    said = "\n".join(line for line in log.splitlines() if line.startswith(("==ERROR==", "==WARNING==")))
    return _CLOCKS.search(said) is not None


def warnings(log: str, *, python: bool = False) -> list[str]:
    """What ncu warned of that a user can do something about, each once; `python` says that the program is a script."""
    lines = (line.removeprefix("==WARNING==").strip() for line in log.splitlines() if line.startswith("==WARNING=="))
    told = (line for line in lines if not _USUAL.search(line) and not (python and _NO_SOURCES.search(line)))
    return list(dict.fromkeys(told))
