"""ncu: where it lies, its commands and its messages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.files import NO_SPACE
from kanalyze.collectors.tools.machine import COUNTERS
from kanalyze.collectors.tools.nsys import with_flags

if TYPE_CHECKING:
    from kanalyze.collectors.base.options import Options
    from kanalyze.collectors.tools.launches import Selection

FOLDERS: Final = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute",
    "/usr/local/cuda*/nsight-compute-*",
    "/usr/lib/nsight-compute",
)

REMEDY: Final = (
    "install Nsight Compute (https://developer.nvidia.com/nsight-compute; the CUDA toolkit has it) and put its ncu on "
    "PATH, or say where it is with --ncu"
)

#: Pages written beside the report.
PAGES: Final = ("details", "raw", "source")

#: Meaning of a report without kernels.
NONE_PROFILED: Final = "no launch was profiled: the program launched none of the kernels that were chosen"

#: Error messages of ncu, and their meaning.
MESSAGES: Final = (
    (r"ERR_NVGPUCTRPERM", f"this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): {COUNTERS}"),
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

#: Messages of ncu where locking clocks is not permitted.
_CLOCKS: Final = re.compile(
    r"(?i)(fail\w*|unable|cannot|not) [^\n]*\b(lock|clock)|clock[^\n]*(fail|not (supported|permitted))"
)

#: Warnings of every run: metrics of absent units, slow replay. Those about missing sources are useless for library
#: kernels, which users of Python cannot recompile.
_USUAL: Final = "Unable to access the following \\d+ metrics|taking more time than expected"
_NO_SOURCES: Final = "No source files were imported"

#: Lines of ncu in a log shared with the program.
OWN_LINE: Final = re.compile(r"^==(PROF|WARNING|ERROR)==")


def profile(ncu: str, report: Path, options: Options, selection: Selection, workload: Sequence[str]) -> tuple[str, ...]:
    """The command that profiles the launches of `selection` into ``report``, a path without suffix."""
    ours = [
        *(("--set", "full"), ("--import-source", "yes"), ("--target-processes", "all")),
        ("--clock-control", options.clock_control),
        *_part(options),
        *zip(selection.flags[::2], selection.flags[1::2], strict=True),
        ("--export", str(report)),
    ]
    return (ncu, *with_flags(ours, options.ncu_flags), *workload)


def _part(options: Options) -> list[tuple[str, ...]]:
    """Flags that limit profiling to a part of the run; an NVTX range may be push/pop or start/end."""
    if options.range_name is not None:
        name = re.sub(r"([@/\\*+\[\]])", r"\\\1", options.range_name)
        return [("--nvtx",), ("--nvtx-include", f"{name}/"), ("--nvtx-include", name)]
    return [("--profile-from-start", "off")] if options.cuda_profiler_api else []


def page(ncu: str, report: Path, name: str) -> tuple[str, ...]:
    """The command that prints one page of ``report.ncu-rep`` as CSV, in base units."""
    return (ncu, "--import", f"{report}.ncu-rep", "--csv", "--page", name, "--print-units", "base")


def cannot_lock_clocks(log: str) -> bool:
    """Whether ncu reported that it cannot lock clocks."""
    own = "\n".join(line for line in log.splitlines() if line.startswith(("==ERROR==", "==WARNING==")))
    return _CLOCKS.search(own) is not None


def warnings(log: str, *, python: bool = False) -> list[str]:
    """Distinct warnings of ncu that a user can act on; `python` says that the program is a script."""
    lines = (line.removeprefix("==WARNING==").strip() for line in log.splitlines() if line.startswith("==WARNING=="))
    useless = f"{_USUAL}|{_NO_SOURCES}" if python else _USUAL
    return list(dict.fromkeys(line for line in lines if not re.search(useless, line)))
