"""ncu: where it lies, its commands and its messages, and the kernel launches that it profiles.

These are the heaviest kernels of the nsys pass, at warm launches. ncu runs the whole program once for every group of
kernels that are to be profiled at the same launch number, and replays each profiled launch some forty times, so that
few groups and few launches are worth having.
"""

import csv
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Final, NamedTuple

from kanalyze.collectors.options import Options
from kanalyze.collectors.process import NO_SPACE
from kanalyze.collectors.tools import machine, nsys

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
    (r"ERR_NVGPUCTRPERM",
     f"this user may not read the GPU's performance counters (ERR_NVGPUCTRPERM): {machine.COUNTERS}"),
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

#: What ncu says where it cannot lock clocks.
CANNOT_LOCK: Final = re.compile(
    r"(?im)^==(?:ERROR|WARNING)==.*(?:(?:fail\w*|unable|cannot|not) .*\b(?:lock|clock)"
    r"|clock.*(?:fail|not (?:supported|permitted)))"
)

#: Lines of ncu in a log shared with the program.
OWN_LINE: Final = re.compile(r"^==(PROF|WARNING|ERROR)==")


def profile(
    ncu: str, report: Path, options: Options, selection: "Selection", workload: Sequence[str]
) -> tuple[str, ...]:
    """The command that profiles the launches of `selection` into ``report``, a path without suffix."""
    ours = [
        *(("--set", "full"), ("--import-source", "yes"), ("--target-processes", "all")),
        ("--clock-control", options.clock_control),
        *_part(options),
        *zip(selection.flags[::2], selection.flags[1::2], strict=True),
        ("--export", str(report)),
    ]
    return (ncu, *nsys.with_flags(ours, options.ncu_flags), *workload)


def _part(options: Options) -> list[tuple[str, ...]]:
    """Flags that limit profiling to a part of the run; an NVTX range may be push/pop or start/end."""
    if options.range_name is not None:
        name = re.sub(r"([@/\\*+\[\]])", r"\\\1", options.range_name)
        return [("--nvtx",), ("--nvtx-include", f"{name}/"), ("--nvtx-include", name)]
    return [("--profile-from-start", "off")] if options.cuda_profiler_api else []


def page(ncu: str, report: Path, name: str) -> tuple[str, ...]:
    """The command that prints one page of ``report.ncu-rep`` as CSV, in base units."""
    return (ncu, "--import", f"{report}.ncu-rep", "--csv", "--page", name, "--print-units", "base")


def warnings(log: str, *, python: bool = False) -> list[str]:
    """Distinct warnings of ncu that a user can act on; `python` says that the program is a script."""
    lines = (line.removeprefix("==WARNING==").strip() for line in log.splitlines() if line.startswith("==WARNING=="))
    useless = r"Unable to access the following \d+ metrics|taking more time than expected"  # of every run
    if python:  # its users cannot recompile kernels of libraries
        useless += "|No source files were imported"
    return list(dict.fromkeys(line for line in lines if not re.search(useless, line)))


# Which launches are profiled

#: Kernels that wait for other GPUs: serialised by ncu, they would deadlock.
_COMMUNICATION: Final = "nccl|nvshmem|mscclpp"

#: A launch is typical if its duration is within this ratio of that which half of their time is at most.
_TYPICAL: Final = 1.25

#: Longest name filter per run of ncu, in characters; mangled template names have hundreds.
_LONGEST_FILTER: Final = 8000

_FIRST_COLUMN: Final = "Start (ns)"


class Launch(NamedTuple):
    """A kernel launch: mangled name; grid, block and shared memory; device and context; start and duration."""

    kernel: str
    shape: tuple[str, ...]
    owner: tuple[str, ...]
    start_ns: int
    dur_ns: int


class Selection(NamedTuple):
    """Kernels, heaviest first, that one run of ncu profiles at the same launch numbers, and the flags that select them.

    `expression` is the name filter among the flags.
    """

    kernels: tuple[str, ...]
    flags: tuple[str, ...]
    expression: str = ""


def parse(text: str) -> list[Launch]:
    """Parses the output of ``nsys stats --report cuda_gpu_trace:mangled --format csv``, in order."""
    lines = text.splitlines()
    head = next((at for at, line in enumerate(lines) if line.startswith(_FIRST_COLUMN)), len(lines))
    launches = [
        Launch(
            row["Name"],
            tuple(value for name, value in row.items() if name and re.match(r"(Grd|Blk)[XYZ]|(Stc|Dym)SMem", name)),
            (row.get("Device", ""), row.get("Ctx", "")),
            int(row[_FIRST_COLUMN]),
            int(row["Duration (ns)"]),
        )
        for row in csv.DictReader(lines[head:])
        if row.get("GrdX") and row.get("Name")
    ]
    return sorted(launches, key=lambda launch: launch.start_ns)


def select(launches: Sequence[Launch], options: Options) -> list[Selection]:
    """Selects the launches to profile, grouped into runs of ncu, heaviest kernel first."""
    of_kernel: defaultdict[str, list[Launch]] = defaultdict(list)
    for launch in launches:
        if not re.search(_COMMUNICATION, launch.kernel, re.IGNORECASE):
            of_kernel[launch.kernel].append(launch)
    groups: dict[tuple[int, ...], list[str]] = {}
    for name in sorted(of_kernel, key=lambda name: -_time(of_kernel[name]))[: options.kernels]:
        numbers = () if options.partial else _numbers(of_kernel[name], options.launches)
        groups.setdefault(numbers, []).append(name)
    return [_selection(part, numbers, options) for numbers, names in groups.items() for part in _parts(names)]


def first_filter(listing: str, kernels: int, launches: int, *, part: bool) -> str:
    """The name filter of the first run for the kernels in a file that nsys wrote; commands of a dry run ask for it."""
    text = Path(listing).read_text(encoding="utf-8", errors="replace")
    chosen = select(parse(text), Options(kernels=kernels, launches=launches, cuda_profiler_api=part))
    return chosen[0].expression if chosen else ""


def _selection(names: Sequence[str], numbers: Iterable[int], options: Options) -> Selection:
    which = "|".join(map(str, numbers))
    # mangled names consist of letters, digits, `_`, `$` and `.`
    escaped = (re.sub(r"([^\w])", r"\\\1", name) for name in names)
    any_of = f"regex:^({'|'.join(escaped)})$"
    expression = f"::{any_of}:{which}" if which else any_of
    return Selection(tuple(names), filter_flags(expression, len(names), options), expression)


def _numbers(launches: Sequence[Launch], count: int) -> tuple[int, ...]:
    """Launch numbers of a kernel to profile, from 1, counted by name as ncu does, over all launch shapes.

    The context and the shape that take the most time decide, and of launches that take shorter and longer, as a kernel
    along the lines of an array and across them does, those with the most time. The kernel's first launch loads the
    module and is left out where there is another; the next one is taken where it is typical, since it is so for most
    kernels and they then share a run.
    """
    owners: defaultdict[tuple[str, ...], list[Launch]] = defaultdict(list)
    for launch in launches:
        owners[launch.owner].append(launch)
    shapes: defaultdict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    for number, launch in enumerate(max(owners.values(), key=_time), 1):
        shapes[launch.shape].append((number, launch.dur_ns))
    series = max(shapes.values(), key=lambda some: sum(dur for _, dur in some))
    warm = [(number, dur) for number, dur in series if number > 1] or series
    durations = sorted(dur for _, dur in warm)[:-1] or [warm[0][1]]  # one alone may have been held up
    usual = durations[bisect_left([*accumulate(durations)], sum(durations) / 2)]
    typical = [number for number, dur in warm if usual <= dur * _TYPICAL and dur <= usual * _TYPICAL]
    return tuple(sorted((typical or [number for number, _ in warm])[:count]))


def first_launch(selection: Selection, options: Options) -> Selection | None:
    """The same kernels at their first launch; None if that was selected already.

    A run of the program may launch less often than the one before, and of several processes on one GPU each launches
    less often than all of them.
    """
    again = None if options.partial or not selection.kernels else _selection(selection.kernels, (1,), options)
    return None if again == selection else again


def _time(launches: Iterable[Launch]) -> int:
    return sum(launch.dur_ns for launch in launches)


def _parts(names: Sequence[str]) -> list[list[str]]:
    """Splits `names` into the fewest lists that fit a filter."""
    parts: list[list[str]] = [[]]
    for name in names:
        if parts[-1] and sum(map(len, parts[-1])) + len(name) > _LONGEST_FILTER:
            parts.append([])
        parts[-1].append(name)
    return parts


def filter_flags(expression: str, kernels: int, options: Options) -> tuple[str, ...]:
    """Flags of ncu that select launches; `expression` is :attr:`Selection.expression`.

    Where a part of the run was recorded, launches have other numbers in it, and ncu takes the first ones: the first
    launch in a part need not be the first of the program.
    """
    based = ("--kernel-name-base", "mangled")
    if options.partial:
        return (*based, "--kernel-name", expression, "--launch-count", str(kernels * options.launches))
    return (*based, "--kernel-id", expression)


def unselected(options: Options) -> Selection:
    """The selection without an nsys pass: the first launches of the program."""
    skipped = ("--kernel-name", f"regex:^(?!.*({_COMMUNICATION}))")
    return Selection((), (*skipped, "--launch-count", str(options.kernels * options.launches)))
