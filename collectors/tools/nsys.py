"""nsys: finds it, builds its commands, interprets its messages."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kanalyze.collectors.base.files import NO_SPACE
from kanalyze.collectors.base.programs import Program, find, said
from kanalyze.collectors.base.step import with_flags

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kanalyze.collectors.base.options import Options

_FOLDERS: Final = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-x64",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-sbsa-armv8",
    "/opt/nvidia/nsight-systems/*/target-linux-x64",
    "/opt/nvidia/nsight-systems/*/target-linux-sbsa-armv8",
    "/opt/nvidia/nsight-systems*/*/bin",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin",
    "/opt/nvidia/nsight-compute/*/host/target-linux-x64",
    "/usr/local/cuda*/nsight-systems-*/target-linux-x64",
    "/usr/lib/nsight-systems/target-linux-x64",
)

_REMEDY: Final = (
    "install Nsight Systems (https://developer.nvidia.com/nsight-systems, or the package nsight-systems-cli) and put "
    "its nsys on PATH, or say where it is with --nsys"
)

#: Trace flags: CUDA and NVTX, individual graph nodes, unified memory faults; no CPU sampling, which
#: slows the program down; the pass of samples has it.
_TRACE: Final = (
    "--trace=cuda,nvtx",
    "--cuda-graph-trace=node",
    "--cuda-um-cpu-page-faults=true",
    "--cuda-um-gpu-page-faults=true",
    "--sample=none",
    "--cpuctxsw=none",
)

#: Names of the option for GPU metrics, newest first.
METRICS: Final = ("--gpu-metrics-devices", "--gpu-metrics-device")

#: Longest text of nsys quoted, in characters.
_WIDE: Final = 300

#: Error messages of nsys, and their meaning.
MESSAGES: Final = (
    (r"No space left on device", NO_SPACE),
    (r"(?i)importer.*(not found|failed to start|error)|Unable to (find|start|run).*[Ii]mporter",
     "this nsys lacks its importer, as the copy in Nsight Compute's folder does; install Nsight Systems"),
    (r"(?i)range was not (captured|found)|No reports? (was|were) generated|no data was collected",
     "nothing was recorded; does the range or the call that starts the recording ever happen?"),
    (r"(?i)already (being )?profiled|CUPTI_ERROR_MULTIPLE_SUBSCRIBERS", "another profiler already traces this program"),
)  # fmt: skip

#: Lines of nsys in a log shared with the program.
OWN_LINE: Final = re.compile(
    r"^(Collecting data\.\.\.|Generating '.*\.qdstrm'|\[\d+/\d+\] \[|Generated:|\s+/.*\.(nsys-rep|qdstrm|sqlite)$"
    r"|Processing (\d+ )?events|Capture range (started|ended)|The target application (terminated|returned|exited)"
    r"|Waiting for termination|Use the `--wait` option)"
)


def find_nsys(options: Options) -> Program:
    """Finds nsys: the user's choice, else on PATH, else in an installation folder.

    The one in Nsight Compute's folder records, but most copies of it cannot make a report of the recording.
    """
    found = find("nsys", "--nsys", options.nsys, _FOLDERS, _REMEDY)
    if found.path is None or "nsight-compute" not in str(found.path):
        return found
    real = found.path.resolve()
    if not any(real.parent.parent.glob("host-*/QdstrmImporter")) and not any(real.parent.glob("QdstrmImporter")):
        missing = f"{found.path} lacks its importer, so that it records and cannot write a report"
        return replace(found, problem=missing)
    return found


def profile(nsys: str, report: Path, options: Options, workload: Sequence[str]) -> tuple[str, ...]:
    """The command that records `workload` into ``report``, a path without suffix."""
    ours = [(flag,) for flag in (*_TRACE, *_part(options), f"--output={report}")]
    return (nsys, "profile", *with_flags(ours, options.nsys_flags), *workload)


@dataclass(frozen=True)
class Sampled:
    """Records of the pass of samples.

    Attributes:
        cpu: CPU samples, and what the scheduler did.
        host: Python samples and system calls.
        metrics: Counters of the GPUs.
        python: Whether the program runs Python.
        known: The options of this nsys, as of :func:`options_of`; empty for those of the newest known one.
    """

    cpu: bool
    host: bool
    metrics: bool
    python: bool
    known: str = ""

    @property
    def flags(self) -> list[str]:
        """The flags, those that this nsys has."""
        return [flag for flag in self._wanted() if self._has(flag)]

    @property
    def lacking(self) -> list[str]:
        """Names of options that this nsys does not have."""
        return [flag.partition("=")[0] for flag in self._wanted() if not self._has(flag)]

    def _has(self, flag: str) -> bool:
        return not self.known or has_option(self.known, flag.partition("=")[0])

    def _wanted(self) -> list[str]:
        # system calls say what a thread is blocked on; frame pointers are the cheapest way through a stack
        scope = "process-tree" if self.cpu else "none"
        wanted = [f"--trace=cuda,nvtx{',osrt' if self.host else ''}", "--cuda-graph-trace=node"]
        wanted += [f"--sample={scope}", f"--cpuctxsw={scope}", *(["--backtrace=fp"] if self.cpu else [])]
        if self.host and self.python:
            wanted += ["--python-sampling=true", "--python-sampling-frequency=1000"]
        if self.metrics:
            older = self.known and not has_option(self.known, METRICS[0])
            wanted.append(f"{METRICS[-1]}=all" if older else f"{METRICS[0]}=cuda-visible")
        return wanted


def sampled(nsys: str, report: Path, options: Options, what: Sampled, workload: Sequence[str]) -> tuple[str, ...]:
    """The command that samples `workload` into ``report``, a path without suffix, for a limited time."""
    limited = replace(options, duration_s=min(options.samples_for_s, options.duration_s or options.samples_for_s))
    ours = [(flag,) for flag in (*what.flags, *_part(limited), f"--output={report}")]
    return (nsys, "profile", *with_flags(ours, options.nsys_flags), *workload)


def _part(options: Options) -> list[str]:
    """Flags that limit recording to a part of the run.

    The program runs to its end all the same, but for `duration_s`: it is meant for programs that do not end by
    themselves, and nsys stops them then.
    """
    flags: list[str] = []
    if options.range_name is not None:
        # unregistered strings (all of torch.cuda.nvtx) are compared only with this flag
        name = options.range_name.replace("@", r"\@")
        register = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
        flags += ["--capture-range=nvtx", f"--nvtx-capture={name}", register, "--capture-range-end=stop"]
    elif options.cuda_profiler_api:
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    if options.delay_s is not None:
        flags.append(f"--delay={_seconds(options.delay_s)}")
    if options.duration_s is not None:
        flags.append(f"--duration={_seconds(options.duration_s)}")
    return flags


def _seconds(value: float) -> str:
    """Whole seconds, as nsys requires, rounded up."""
    return str(max(int(-(-value // 1)), 1))


def export(nsys: str, report: Path) -> tuple[str, ...]:
    """The command that exports ``report.nsys-rep`` to ``report.sqlite``."""
    return (nsys, "export", "--type=sqlite", "--include-blobs=true", f"--output={report}.sqlite", f"{report}.nsys-rep")


def launches(nsys: str, report: Path) -> tuple[str, ...]:
    """The command that lists kernel launches of ``report.sqlite`` with mangled names, as CSV."""
    listing = ("--report=cuda_gpu_trace:mangled", "--format=csv", "--output=-")
    return (nsys, "stats", *listing, f"{report}.sqlite")


def warnings(log: str) -> list[str]:
    """Distinct warnings of nsys."""
    lines = (line.strip() for line in log.splitlines() if re.match(r"(?i)\s*warning\b", line))
    return list(dict.fromkeys(line[:_WIDE] for line in lines))


def no_metrics(log: str) -> bool:
    """Whether nsys refused to sample the GPU's counters."""
    return re.search(r"(?i)gpu[- ]metrics|ERR_NVGPUCTRPERM", log) is not None


def options_of(nsys: Program) -> str:
    """Output of ``nsys profile --help``; empty where it does not run."""
    ran = said(nsys.command, "profile", "--help") if nsys.usable else None
    return ran[1] if ran else ""


def has_option(options: str, name: str) -> bool:
    """Whether `options`, of :func:`options_of`, has one of that name."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", options) is not None


def metrics_of(nsys: Program) -> tuple[str, str]:
    """The GPUs whose counters nsys samples here, and where there are none why, both as it says."""
    options = options_of(nsys)
    flag = next((name for name in METRICS if has_option(options, name)), None)
    if flag is None:
        return "", f"nsys {nsys.version or 'of unknown version'} does not sample them"
    ran = said(nsys.command, "profile", f"{flag}=help")
    told = ran[1] if ran else "it does not say for which GPUs it samples them"
    gpus = re.findall(r"^\s*\d+: *(.+?)(?: PCI\[.*)?$", told, re.MULTILINE)
    return ", ".join(gpus), "" if gpus else "nsys: " + " ".join(told.split())[:_WIDE]
