"""nsys: where it lies, its commands, and what its messages mean."""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from kanalyze.collectors.options import Options
from kanalyze.collectors.process import NO_SPACE, Program, answer
from kanalyze.collectors.tools.machine import Permission

REMEDY: Final = (
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

#: Short forms of flags used here.
_LONG: Final = {"-t": "--trace", "-s": "--sample", "-o": "--output", "-p": "--nvtx-capture", "-c": "--capture-range"}

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

#: What nsys says where it refuses to sample the GPU's counters.
NO_METRICS: Final = re.compile(r"(?i)gpu[- ]metrics|ERR_NVGPUCTRPERM")

#: Lines of nsys in a log shared with the program.
OWN_LINE: Final = re.compile(
    r"^(Collecting data\.\.\.|Generating '.*\.qdstrm'|\[\d+/\d+\] \[|Generated:|\s+/.*\.(nsys-rep|qdstrm|sqlite)$"
    r"|Processing (\d+ )?events|Capture range (started|ended)|The target application (terminated|returned|exited)"
    r"|Waiting for termination|Use the `--wait` option)"
)


def sampling(
    options: Options, *, cpu: bool, metrics: bool, python: bool, known: str = ""
) -> tuple[list[str], list[str]]:
    """Flags of the pass of samples: what was asked for and is permitted; and names of options that this nsys lacks.

    That is the CPU and its scheduler, system calls, lines where the program runs `python`, counters of the GPU. `known`
    are the options of this nsys, as of :func:`options_of`, or empty for those of the newest known one.
    """

    def has(flag: str) -> bool:
        return not known or has_option(known, flag.partition("=")[0])

    # system calls say what a thread is blocked on; frame pointers are the cheapest way through a stack
    host, scope = options.samples, "process-tree" if options.samples and cpu else "none"
    counters = f"{METRICS[0]}=cuda-visible" if has(METRICS[0]) else f"{METRICS[-1]}=all"
    flags = [
        *(f"--trace=cuda,nvtx{',osrt' if host else ''}", "--cuda-graph-trace=node"),
        *(f"--sample={scope}", f"--cpuctxsw={scope}", *(["--backtrace=fp"] if host and cpu else [])),
        *(["--python-sampling=true", "--python-sampling-frequency=1000"] if host and python else []),
        *([counters] if options.metrics and metrics else []),
    ]
    return [flag for flag in flags if has(flag)], [flag.partition("=")[0] for flag in flags if not has(flag)]


def profile(
    nsys: str, report: Path, options: Options, workload: Sequence[str], samples: Sequence[str] = ()
) -> tuple[str, ...]:
    """The command that records `workload` into ``report``, a path without suffix; `samples` for a limited time."""
    if samples:
        options = replace(options, duration_s=min(options.samples_for_s, options.duration_s or options.samples_for_s))
    ours = [(flag,) for flag in (*(samples or _TRACE), *_part(options), f"--output={report}")]
    return (nsys, "profile", *with_flags(ours, options.nsys_flags), *workload)


def with_flags(ours: Iterable[tuple[str, ...]], theirs: Sequence[str]) -> list[str]:
    """Merges our flags with the user's, which override ours of the same name: tools reject repeated flags."""
    replaced = {_LONG.get(word, word) for word in (flag.partition("=")[0] for flag in theirs)}
    kept = (flag for flag in ours if flag[0].partition("=")[0] not in replaced)
    return [*(word for flag in kept for word in flag), *theirs]


def _part(options: Options) -> list[str]:
    """Flags that limit recording to a part; of the program itself only `duration_s` is the end, by nsys."""
    flags: list[str] = []
    if options.range_name is not None:
        # unregistered strings (all of torch.cuda.nvtx) are compared only with this flag
        name = options.range_name.replace("@", r"\@")
        register = "--env-var=NSYS_NVTX_PROFILER_REGISTER_ONLY=0"
        flags += ["--capture-range=nvtx", f"--nvtx-capture={name}", register, "--capture-range-end=stop"]
    elif options.cuda_profiler_api:
        flags += ["--capture-range=cudaProfilerApi", "--capture-range-end=stop"]
    times = {"delay": options.delay_s, "duration": options.duration_s}
    # nsys takes whole seconds
    return flags + [f"--{name}={max(math.ceil(time), 1)}" for name, time in times.items() if time is not None]


def export(nsys: str, report: Path) -> tuple[str, ...]:
    """The command that exports ``report.nsys-rep`` to ``report.sqlite``."""
    return (nsys, "export", "--type=sqlite", "--include-blobs=true", f"--output={report}.sqlite", f"{report}.nsys-rep")


def launches(nsys: str, report: Path) -> tuple[str, ...]:
    """The command that lists kernel launches of ``report.sqlite`` with mangled names, as CSV."""
    return (nsys, "stats", "--report=cuda_gpu_trace:mangled", "--format=csv", "--output=-", f"{report}.sqlite")


def warnings(log: str) -> list[str]:
    """Distinct warnings of nsys."""
    lines = (line.strip() for line in log.splitlines() if re.match(r"(?i)\s*warning\b", line))
    return list(dict.fromkeys(line[:_WIDE] for line in lines))


def options_of(nsys: Program) -> str:
    """Output of ``nsys profile --help``; empty where it does not run."""
    return answer(nsys.command, "profile", "--help")[1] if nsys.usable else ""


def has_option(options: str, name: str) -> bool:
    """Whether `options`, of :func:`options_of`, has one of that name."""
    return re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", options) is not None


def metrics_of(nsys: Program) -> Permission:
    """The GPUs whose counters nsys samples here, or where there are none why, as it says."""
    options = options_of(nsys)
    remedy = "it takes a GPU from Turing on, its counters (above), and no other profiler that holds them"
    flag = next((name for name in METRICS if has_option(options, name)), None)
    if flag is None:
        finding = f"nsys {nsys.version or 'of unknown version'} does not sample them"
        return Permission(ok=False, found=finding, remedy=remedy)
    _, text = answer(nsys.command, "profile", f"{flag}=help")
    printed = text or "it does not say for which GPUs it samples them"
    gpus = re.findall(r"^\s*\d+: *(.+?)(?: PCI\[.*)?$", printed, re.MULTILINE)
    return Permission(bool(gpus), ", ".join(gpus) or "nsys: " + " ".join(printed.split())[:_WIDE], remedy)
