"""The tools whose reports are read: what tells them apart, and how each records what a report lacks.

A tool's name stands here and in the tool's reader. What others ask is a property of a :class:`Tool`, or which tools
record a kind of events.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple


class Tool(NamedTuple):
    """A tool, and what its reports are like.

    Attributes:
        name: What reports and pages call it.
        short: Its word on the command line, in names of columns and files, and in lists of tables.
        timed: Whether it records when things ran.
        counts: Whether it measures kernels one by one, each replayed alone: durations without time stamps.
        alone: Kinds of events, and tables of them, that no other tool records.
        ranked: Whether each rank writes a report of its own, with its number and its own numbers of GPUs.
        other_clock: Whether its times begin elsewhere than with the recording: with the machine, or with Unix time.
        mends_times: Whether its reader notes host events that end before they start.
        every_launch: Whether it records each launch of the program, so that counts are complete.
        one_trace: Whether calls and the GPU's work are recorded together, or neither.
        nvtx: Whether its ranges are those of NVTX, in which NCCL says what it communicates.
        fine_clock: Whether no two ranges of a thread start at one time; others may have whole microseconds.
        notes_waits: Whether it has a record of each wait for a stream or an event.
        names_memory: Whether it names the memory that each copy reads and writes.
        warns: Whether its own warnings are among the notes on a report, with its name before them.
    """

    name: str
    short: str
    timed: bool = False
    counts: bool = False
    alone: tuple[str, ...] = ()
    ranked: bool = False
    other_clock: bool = False
    mends_times: bool = False
    every_launch: bool = False
    one_trace: bool = False
    nvtx: bool = False
    fine_clock: bool = False
    notes_waits: bool = False
    names_memory: bool = False
    warns: bool = False


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
    alone = [one.short for one in TOOLS if what in one.alone]
    return tuple(alone or [one.short for one in TOOLS if one.timed])


#: nsys options for event kinds that `_TRACE` does not record.
_NSYS: Final = {
    "fault": "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true",
    "memory": "--cuda-memory-usage=true",
    "osrt": "--trace=cuda,nvtx,osrt",
    "gpu_metrics": "--trace=cuda,nvtx --gpu-metrics-devices=all",
    "samples": "--trace=cuda,nvtx,osrt --sample=process-tree --cpuctxsw=process-tree",
}
_TRACE: Final = "--trace=cuda,nvtx"

#: torch.profiler options for event kinds beyond its activities.
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_ARGUMENTS: Final = {
    "python": "with_stack=True",
    "memory": "profile_memory=True",
    "sync": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
}
_BY_ACTIVITIES: Final = ("kernel", "graph", "memcpy", "memset", "api", "range", "op")

_TORCH: Final = "torch.profiler"


def again(kinds: Sequence[str], tool: str = "") -> str:
    """Sentence on recording a report of `tool` with `kinds`."""
    if tool == _TORCH and (wanted := _torch(kinds)):
        return f"Record it again with them on: `torch.profiler.profile({wanted})`."
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
    first = next((kind for kind in kinds if kind in _ARGUMENTS or kind in _BY_ACTIVITIES), None)
    if first is None:
        return ""
    return ", ".join([_ACTIVITIES, *([_ARGUMENTS[first]] if first in _ARGUMENTS else [])])
