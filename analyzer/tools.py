"""The tools whose reports are read, and the programming interfaces and processors that reports are of.

A tool's name stands here and in the tool's reader. What others ask is a property of a :class:`Tool`, or which tools
record a kind of events; how each records what a report lacks is told here, too, and so are the words of CUDA and HIP,
the turns in which a tool ran two programs, and where installers put nsys and ncu.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple


class Tool(NamedTuple):
    """A tool, and what its reports are like."""

    name: str  # what reports and pages call it
    short: str  # its word on the command line, in names of columns and files, and in lists of tables
    timed: bool = False  # whether it records when things ran
    counts: bool = False  # whether it measures kernels one by one, each replayed alone: durations without time stamps
    alone: tuple[str, ...] = ()  # kinds of events, and tables of them, that no other tool records
    ranked: bool = False  # whether each rank writes a report of its own, with its number and its own numbers of GPUs
    #: whether its times begin elsewhere than with the recording: with the machine, or with Unix time
    other_clock: bool = False
    mends_times: bool = False  # whether its reader notes host events that end before they start
    every_launch: bool = False  # whether it records each launch of the program, so that counts are complete
    one_trace: bool = False  # whether calls and the GPU's work are recorded together, or neither
    nvtx: bool = False  # whether its ranges are those of NVTX, in which NCCL says what it communicates
    fine_clock: bool = False  # whether no two ranges of a thread start at one time; others may have whole microseconds
    notes_waits: bool = False  # whether it has a record of each wait for a stream or an event
    names_memory: bool = False  # whether it names the memory that each copy reads and writes
    warns: bool = False  # whether its own warnings are among the notes on a report, with its name before them


_SAMPLED: Final = ("cpu_samples", "python_samples", "call_stacks", "stack_frames", "scheduling", "network_metrics")

#: The tools, in the order in which they are asked for the time.
TOOLS: Final = (
    Tool(
        "nsys",
        "nsys",
        timed=True,
        alone=("fault", "osrt", "event_records", "streams", "graphs", "communicator_calls", *_SAMPLED),
        every_launch=True,
        one_trace=True,
        nvtx=True,
        fine_clock=True,
        notes_waits=True,
        names_memory=True,
        warns=True,
    ),
    Tool(
        "torch.profiler",
        "torch",
        timed=True,
        alone=("op", "python", "step", "collective_detail"),
        ranked=True,
        other_clock=True,
        mends_times=True,
    ),
    Tool("ncu", "ncu", counts=True),
)

#: Their short names.
NAMES: Final = tuple(one.short for one in TOOLS)

#: Those that tell the time, as a sentence names them; and the command that makes SQLite of a report of nsys.
TIMED: Final = " or ".join(one.name for one in TOOLS if one.timed)
EXPORT: Final = "nsys export --type=sqlite REPORT"

_BY_NAME: Final = {one.name: one for one in TOOLS} | {one.short: one for one in TOOLS}


def tool_of(name: str) -> Tool:
    """The tool of a name, long or short; one without any property for a name that is in no list."""
    return _BY_NAME.get(name) or Tool(name, name)


def recorders(what: str = "") -> tuple[str, ...]:
    """Short names of the tools that record `what`, a kind of events or a table: one alone, or all that are timed."""
    return tuple([one.short for one in TOOLS if what in one.alone] or [one.short for one in TOOLS if one.timed])


#: nsys options for event kinds that `_TRACE` does not record.
_NSYS: Final = {
    "fault": "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true",
    "memory": "--cuda-memory-usage=true",
    "osrt": "--trace=cuda,nvtx,osrt",
    "gpu_metrics": "--trace=cuda,nvtx --gpu-metrics-devices=all",
    "samples": "--trace=cuda,nvtx,osrt --sample=process-tree --cpuctxsw=process-tree",
}
_TRACE: Final = "--trace=cuda,nvtx"

#: torch.profiler options for event kinds, beside its activities.
_ARGUMENTS: Final = {
    **dict.fromkeys(("kernel", "graph", "memcpy", "memset", "api", "range", "op"), ""),
    "python": "with_stack=True",
    "memory": "profile_memory=True",
    "sync": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
}

_TORCH: Final = "torch.profiler"


def again(kinds: Sequence[str], tool: str = "") -> str:
    """Sentence on recording a report of `tool` with `kinds`."""
    if tool == _TORCH and (keywords := _torch(kinds)):
        return f"Record it again with them on: `torch.profiler.profile({keywords})`."
    option = next((_NSYS[kind] for kind in reversed(kinds) if kind in _NSYS), _TRACE)
    if tool == _TORCH:
        if "gpu_metrics" in kinds:
            which = "records that from PyTorch 2.15 on, if asked to; nsys does, too"
        else:
            which = "does not record that; nsys does"
        return f"torch.profiler {which}: `nsys profile {option} …`."
    if {*kinds} <= {*tool_of(_TORCH).alone}:
        return f"Record it with torch.profiler, and give its trace: `torch.profiler.profile({_torch(kinds)})`."
    return f"Record it again with that trace on: `nsys profile {option} …`."


def _torch(kinds: Sequence[str]) -> str:
    """The torch.profiler options for the first of `kinds` that it can record."""
    first = next((kind for kind in kinds if kind in _ARGUMENTS), "")
    activities = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
    return ", ".join(filter(None, (activities, _ARGUMENTS[first]))) if first else ""


# Programming interfaces, and AMD's GPUs.

#: Programming interfaces; RUNTIME is any other, such as MTIA's.
CUDA, HIP, RUNTIME = "CUDA", "HIP", "runtime"

#: HIP's terms for CUDA's, as whole phrases, so that names of the user's program stay.
_IN_HIP: Final = (
    (r"\bcudaMemcpyBatchAsync, cudaMemcpy2D\b", "hipMemcpy2D"),
    (r"\bcudaHostAlloc\b", "hipHostMalloc"),
    (r"\bcuda(?=(?:MemAdvise|MemPrefetchAsync|MemcpyAsync|MallocAsync|FuncSetAttribute|GraphLaunch)\b)", "hip"),
    (r"\bcudaStream(?=(?:NonBlocking|CreateWithFlags|BeginCapture|WaitEvent)\b)", "hipStream"),
    (r"\bCUDA_MODULE_LOADING=EAGER\b", "HIP_ENABLE_DEFERRED_LOADING=0"),
    (r"\b([0-9,]+|the|per|than|an|empty) SM(s?)\b", r"\1 CU\2"),
    (r"\ban CU\b", "a CU"),
)
_PHRASES: Final = r"\bCUDA(?= (?:calls?|CALLS|graphs?|GRAPHS|contexts?|kernel|activity|API|events?)\b)"

#: AMD processor names (gfx) by a substring of the driver's GPU name.
#: Source: the tables of AMD's GPUs in the ROCm documentation.
_AMD_TARGETS: Final = {
    r"MI(?:50|60)\b": "gfx906",
    r"MI100\b": "gfx908",
    r"MI2(?:10|50X?)\b": "gfx90a",
    r"MI3(?:00[AX]|08X|25X)\b": "gfx942",
    r"MI35[05]X\b": "gfx950",
}

#: Wavefront size of AMD's data-centre GPUs; all others have smaller warps.
_AMD_WAVEFRONT: Final = 64


def worded(text: str, interface: str) -> str:
    """Translates `text` from CUDA's terms to those of `interface`."""
    if interface == CUDA:
        return text
    for pattern, word in _IN_HIP if interface == HIP else ():
        text = re.sub(pattern, word, text)
    outside = text.replace("outside CUDA", "outside HIP" if interface == HIP else "outside the runtime")
    phrases = re.sub(_PHRASES, lambda _: interface, outside)
    return phrases.upper() if text.isupper() else phrases


def is_amd(name: str | None, threads_per_warp: int | None = None) -> bool:
    """Whether a GPU is AMD's, by its driver name, else by its wavefront size."""
    named = re.match(r"AMD\b|.*\b(?:Instinct|Radeon)\b|gfx[0-9]", name or "")
    return bool(named) or (not name and threads_per_warp == _AMD_WAVEFRONT)


def amd_target(name: str | None, major: int | None, minor: int | None) -> str | None:
    """AMD's processor name of a GPU, such as gfx90a; None if unknown."""
    of_name = next((target for part, target in _AMD_TARGETS.items() if re.search(part, name or "")), None)
    return of_name or {(9, 4): "gfx942", (9, 5): "gfx950"}.get((major or 0, minor or 0))


def processor(name: str | None, capability: str | None, count: int | None) -> str:
    """Processor name and count of a GPU: ``sm_90, 132 SMs`` or ``gfx90a, 104 CUs``."""
    amd = is_amd(name) or (capability or "").startswith("gfx")
    kind = capability if amd or not capability else f"sm_{capability.replace('.', '')}"
    return ", ".join(part for part in (kind, f"{count} {'CUs' if amd else 'SMs'}" if count else "") if part)


# Two programs that ran by turns (A B B A …): of a machine that gets warmer each run is compared with the one beside it.

#: The sides of an interleaved collection, each with the other one.
_OTHER: Final = {"base": "new", "new": "base"}

SIDES: Final = tuple(_OTHER)


class Turn(NamedTuple):
    """The place of a run among the runs of an interleaved collection."""

    collection: str  # identifies the collection
    side: str  # ``base`` or ``new``
    number: int  # the place, from 1; turns 1 and 2 are the first pair, 3 and 4 the second

    @property
    def pair(self) -> tuple[str, int]:
        """Identifies the two runs that ran one after the other."""
        return self.collection, (self.number + 1) // 2


def pairs(base: Sequence[Turn | None], new: Sequence[Turn | None]) -> list[tuple[int, int]]:
    """Pairs of neighbouring runs, as indices into `base` and `new`, in the order of `base`.

    A run is in no pair where it was not interleaved, or where its neighbour is not there. What stands for one turn
    several times, such as the traces of several ranks, is in none either.
    """
    counts = Counter((*base, *new))
    beside = {(turn.side, turn.pair): at for at, turn in enumerate(new) if turn and counts[turn] == 1}
    counterparts = [(at, (_OTHER[turn.side], turn.pair)) for at, turn in enumerate(base) if turn and counts[turn] == 1]
    return [(at, beside[key]) for at, key in counterparts if key in beside]


def interleaved(base: Sequence[Turn | None], new: Sequence[Turn | None]) -> bool:
    """Whether every run of one side has its neighbour on the other, so that they can be compared pair by pair."""
    return len(base) == len(new) == len(pairs(base, new)) and bool(base)


# Programs of these tools.

#: Where installers put nsys, best first; the copy in Nsight Compute's folder records, but mostly cannot make a report.
NSYS_FOLDERS: Final = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-x64",
    "/opt/nvidia/nsight-systems-cli/*/target-linux-sbsa-armv8",
    "/opt/nvidia/nsight-systems/*/target-linux-x64",
    "/opt/nvidia/nsight-systems/*/target-linux-sbsa-armv8",
    "/opt/nvidia/nsight-systems*/*/bin",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Systems/bin",
    "/usr/local/cuda*/nsight-systems-*/target-linux-x64",
    "/usr/lib/nsight-systems/target-linux-x64",
)
NCU_FOLDERS: Final = (
    "/usr/local/cuda/bin",
    "/usr/local/cuda-*/bin",
    "/opt/nvidia/nsight-compute/*",
    "/opt/nvidia/hpc_sdk/*/*/profilers/Nsight_Compute",
    "/usr/local/cuda*/nsight-compute-*",
    "/usr/lib/nsight-compute",
)


def installed(name: str, folders: Sequence[str]) -> list[Path]:
    """All programs `name` in `folders` (patterns below ``/``), in that order, newest version first."""

    def by_version(path: Path) -> list[tuple[int, str]]:
        return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", str(path))]

    patterns = (Path("/").glob(pattern.lstrip("/")) for pattern in folders)
    places = (place / name for matches in patterns for place in sorted(matches, key=by_version, reverse=True))
    return [place for place in places if os.access(place, os.X_OK) and place.is_file()]
