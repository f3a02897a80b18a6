"""Recording instructions for data that a report lacks, per tool."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

#: nsys options for event kinds that `_TRACE` does not record.
_NSYS: Final = {
    "fault": "--cuda-um-cpu-page-faults=true --cuda-um-gpu-page-faults=true",
    "memory": "--cuda-memory-usage=true",
    "osrt": "--trace=cuda,nvtx,osrt",
    "gpu_metrics": "--trace=cuda,nvtx --gpu-metrics-devices=all",
    "samples": "--trace=cuda,nvtx,osrt --sample=process-tree --cpuctxsw=process-tree",
}
_TRACE: Final = "--trace=cuda,nvtx"

_TORCH: Final = "torch.profiler"

#: torch.profiler options for event kinds beyond its activities.
_ACTIVITIES: Final = "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_ARGUMENTS: Final = {
    "python": "with_stack=True",
    "memory": "profile_memory=True",
    "sync": "experimental_config=_ExperimentalConfig(enable_cuda_sync_events=True)",
}
_BY_ACTIVITIES: Final = ("kernel", "graph", "memcpy", "memset", "api", "range", "op")

#: Kinds that only torch.profiler records.
_ONLY_TORCH: Final = ("op", "python")


def again(kinds: Sequence[str], tool: str) -> str:
    """Sentence on recording a report of `tool` with `kinds`."""
    if tool == _TORCH and (wanted := _torch(kinds)):
        return f"Record it again with them on: `torch.profiler.profile({wanted})`."
    option = next((_NSYS[kind] for kind in reversed(kinds) if kind in _NSYS), _TRACE)
    if tool == _TORCH:
        return f"torch.profiler does not record that; nsys does: `nsys profile {option} …`."
    if set(kinds) <= {*_ONLY_TORCH}:
        return f"Record it with torch.profiler, and give its trace: `torch.profiler.profile({_torch(kinds)})`."
    return f"Record it again with that trace on: `nsys profile {option} …`."


def _torch(kinds: Sequence[str]) -> str:
    """The torch.profiler options for the first of `kinds` that it can record."""
    first = next((kind for kind in kinds if kind in _ARGUMENTS or kind in _BY_ACTIVITIES), None)
    if first is None:
        return ""
    return ", ".join([_ACTIVITIES, *([_ARGUMENTS[first]] if first in _ARGUMENTS else [])])
