"""How each tool is told to record what a report lacks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What makes nsys record a kind of event that it does not record with `_TRACE`.
_NSYS: Final = {
    "fault": "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true",
    "memory": "--cuda-memory-usage=true",
    "osrt": "--trace=cuda,nvtx,osrt",
}
_TRACE: Final = "--trace=cuda,nvtx"

_TORCH: Final = "torch.profiler"

#: What makes torch's profiler record a kind of event beside its activities.
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_ARGUMENTS: Final = {
    "python": "with_stack=True",
    "memory": "profile_memory=True",
    "sync": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
}
_BY_ACTIVITIES: Final = ("kernel", "graph", "memcpy", "memset", "api", "range", "op")

#: What only torch's profiler records.
_ONLY_TORCH: Final = ("op", "python")


def again(kinds: Sequence[str], tool: str) -> str:
    """What to do for a report of `tool` that has none of `kinds`, one sentence."""
    if tool == _TORCH and (wanted := _torch(kinds)):
        return f"Record it again with them on: `torch.profiler.profile({wanted})`."
    option = next((_NSYS[kind] for kind in kinds if kind in _NSYS), _TRACE)
    if tool == _TORCH:
        return f"torch.profiler does not record that; nsys does: `nsys profile {option} …`."
    if set(kinds) <= {*_ONLY_TORCH}:
        return f"Record it with torch.profiler, and give its trace: `torch.profiler.profile({_torch(kinds)})`."
    return f"Record it again with that trace on: `nsys profile {option} …`."


def _torch(kinds: Sequence[str]) -> str:
    """The arguments that make torch's profiler record the first of `kinds` that it can."""
    first = next((kind for kind in kinds if kind in _ARGUMENTS or kind in _BY_ACTIVITIES), None)
    if first is None:
        return ""
    return ", ".join([_ACTIVITIES, *([_ARGUMENTS[first]] if first in _ARGUMENTS else [])])
