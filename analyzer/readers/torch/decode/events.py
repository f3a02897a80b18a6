"""Types of Chrome trace events of torch.profiler: their fields, and the categories that each is written under.

The names are those that Kineto writes (libkineto/src/output_json.cpp), and those of older versions. Only what the
tables hold is declared; everything else is skipped without being looked at.
"""

from __future__ import annotations

import types
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec
from msgspec import Raw, Struct, field

#: Sentinel for an absent integer; no number of a trace has this value.
MISSING: Final = -(1 << 63)

#: Sentinel for an absent time; JSON cannot express this number.
NO_TIME: Final = float("nan")

#: Sentinel for absent text.
NOTHING: Final = Raw(b"")

#: A time: microseconds as a float, where that is exact, or nanoseconds as an int.
T = TypeVar("T")

#: Integers that some versions write as text, and thread ids that are text (``stream 7``).
Number = int | str | None


#: Arguments that are kept as they stand, as codes of texts; all others are numbers.
_KEPT: Final = frozenset(
    {"collective", "grid", "block", "input_shapes", "input_types", "input_strides"}
    | {"copy_kind", "source_kind", "target_kind"}
)


def _args(name: str, base: type[Struct] | None = None, **keys: str) -> type[Struct]:
    """The type of an event's arguments: those of `base`, and fields by what Kineto calls them."""
    fields = [
        (own, Raw, field(default=NOTHING, name=key))
        if own in _KEPT
        else (own, Number, field(default=MISSING, name=key))
        for own, key in keys.items()
    ]
    return msgspec.defstruct(name, fields, bases=(base,) if base else None, frozen=True, gc=False)


#: Arguments of an event linked to an operator; `Collective name` only marks it as a collective.
Linked: Final = _args("Linked", external_id="External id", collective="Collective name")

#: The framework's own annotations, such as those of collectives on the CPU, have inputs.
_ANNOTATION: Final = _args("AnnotationArgs", Linked, input_shapes="Input Dims", input_types="Input type")
_CALL: Final = _args("CallArgs", Linked, correlation="correlation")
_OP: Final = _args(
    "OpArgs",
    Linked,
    sequence_number="Sequence number",
    forward_thread_id="Fwd thread id",
    input_shapes="Input Dims",
    input_types="Input type",
    input_strides="Input Strides",
)
_DEVICE: Final = _args(
    "DeviceArgs",
    _CALL,
    device="device",
    context="context",
    stream="stream",
    graph_exec_id="graph id",
    graph_node_id="graph node id",
)
_SHAPE: Final = {"registers": "registers per thread", "shared_bytes": "shared memory", "grid": "grid", "block": "block"}
KernelArgs: Final[Any] = _args("KernelArgs", _DEVICE, **_SHAPE)

#: PyTorch 2.15 has here what the name of a copy says in earlier versions.
_COPY: Final = _args(
    "CopyArgs",
    _DEVICE,
    size_bytes="bytes",
    source_device="fromDevice",
    target_device="toDevice",
    copy_kind="copy kind",
    source_kind="src kind",
    target_kind="dst kind",
)

#: -1 is absent.
_SYNC: Final = _args(
    "SyncArgs",
    _DEVICE,
    cuda_event_id="wait_on_cuda_event_id",
    record_correlation="wait_on_cuda_event_record_corr_id",
    record_stream="wait_on_stream",
)
_RECORD: Final = _args("RecordArgs", _DEVICE, cuda_event_id="event_id")
_PYTHON: Final = _args("PythonArgs", python_id="Python id", caller="Python parent id")
_MEMORY: Final = _args(
    "MemoryArgs",
    size_bytes="Bytes",
    address="Addr",
    device_type="Device Type",
    device="Device Id",
    allocated_bytes="Total Allocated",
    reserved_bytes="Total Reserved",
)


class CounterArgs(Struct, frozen=True, gc=False):
    """The device and the value of a counter."""

    device: Number = MISSING
    value: float = 0.0


#: Fields of a collective, on operators and kernels alike.
COLLECTIVE: Final = {
    "collective": "Collective name",
    "type": "dtype",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
    "ranks": "Process Group Ranks",
    "first_rank": "Global rank start",
    "rank_stride": "Global rank stride",
    "rank": "Rank",
    "source_rank": "Src Rank",
    "target_rank": "Dst Rank",
    "in_split": "In split size",
    "out_split": "Out split size",
    "sequence_number": "Seq",
    "comms_id": "Comms Id",
}


class Timed(Struct, Generic[T], gc=False, tag_field="cat"):
    """Base of events with a start, a duration and a thread."""

    ts: T
    dur: float = NO_TIME  # int nanoseconds if the event was decoded on its own
    pid: Number = MISSING
    tid: Number = MISSING
    name: str = ""


def _kind(name: str, category: str, args: Any = None) -> Any:  # noqa: ANN401 - a type that is made at run time
    """A kind of events, by the category under which Kineto writes them, with arguments of that type."""

    def fill(namespace: dict[str, Any]) -> None:
        if args is not None:
            namespace |= {"__annotations__": {"args": args | None}, "args": None}

    generic: Any = Timed
    return types.new_class(name, (generic[T],), {"gc": False, "tag": category}, fill)


Op: Final = _kind("Op", "cpu_op", _OP)
Annotation: Final = _kind("Annotation", "user_annotation", _ANNOTATION)  # or a profiler step
Call: Final = _kind("Call", "cuda_runtime", _CALL)
Kernel: Final = _kind("Kernel", "kernel", KernelArgs)
Copy: Final = _kind("Copy", "gpu_memcpy", _COPY)
Memset: Final = _kind("Memset", "gpu_memset", _COPY)
Sync: Final = _kind("Sync", "cuda_sync", _SYNC)  # as reported by the driver
Record: Final = _kind("Record", "cuda_event", _RECORD)  # cudaEventRecord
Overhead: Final = _kind("Overhead", "overhead")  # the profiler's own work
Python: Final = _kind("Python", "python_function", _PYTHON)  # or an nn.Module call
Memory: Final = _kind("Memory", "cpu_instant_event", _MEMORY)  # ``[memory]``, or another instant event
Projection: Final = _kind("Projection", "gpu_user_annotation")  # an annotation on the device timeline; ignored
Span: Final = _kind("Span", "Trace")  # the recorded time span

#: A node of a CUDA graph that calls the host or records an event (torch/profiler/_cupti/monitor_trace.py).
GraphNode: Final = _kind("GraphNode", "graph_host_node")

#: A sample of a counter of a GPU. PyTorch 2.15 writes phase "C" without a category, as process "GPU N Counters", the
#: one value below an empty name (as above).
Counter: Final = _kind("Counter", "counter of a GPU", CounterArgs)

#: Other Kineto events, of other devices and tools; ignored.
Unread: Final = _kind("Unread", "another category")


class Link(Struct, Generic[T], gc=False, tag_field="cat", tag="fwdbwd"):
    """One end of a forward-to-backward flow: ``s`` at the forward operator, ``f`` at the backward one."""

    ts: T
    ph: str = ""
    id: Number = MISSING
    pid: Number = MISSING
    tid: Number = MISSING


class Launch(Link[T], gc=False, tag="cpu_to_cuda"):
    """One end of an operator-to-kernel flow, in traces of the first profilers."""


class Flow(Struct, gc=False, tag_field="cat", tag="ac2g"):
    """One end of a call-to-device flow; ignored, as correlation ids say the same."""


# Categories of a trace, mapped to kinds of events. They have changed their names, and some of them what their events
# hold:
#
# - torch 1.8 to 1.10 call them Operator, Runtime, Kernel, Memcpy and Memset; what Kineto calls "External id" since is
#   "external id" there, and "Input Dims" was "Input dims" at first.
# - What made a step of the profiler was an Operator like all others there; here it is an annotation, as in all that
#   came later.

#: Kineto categories that are ignored.
_UNREAD: Final = (
    *("external_correlation", "cuda_profiler_range", "collective_comm", "hpu_op", "mtia_ccp_events"),
    *("mtia_counters", "mtia_insight", "xpu_scope_profiler", "xpu_sync", "hardware_counters"),
)

#: Categories of torch 1.8 to 1.10, whose events are decoded field by field.
_OLD: Final = {"Operator": Op, "Runtime": Call, "Kernel": Kernel, "Memcpy": Copy, "Memset": Memset}

#: Alternative spellings of categories.
_SPELLINGS: Final[dict[str, Any]] = {
    **dict.fromkeys(("cuda_driver", "xpu_runtime", "mtia_runtime", "privateuse1_runtime", "glow_runtime"), Call),
    **dict.fromkeys(("xpu_driver", "privateuse1_driver"), Call),
    "gpu_user_Annotation": Projection,
    "forward_backward": Link,
    "graph_event_node": GraphNode,
    **dict.fromkeys(("async", "async_gpu", "async_cpu_to_gpu"), Flow),
    **dict.fromkeys(_UNREAD, Unread),
}

#: Every kind of event.
_MAIN: Final[tuple[Any, ...]] = (*Timed.__subclasses__(), Link, Launch, Flow)

#: Argument type of each kind of event that has arguments.
ARGS: Final[dict[type, type[Struct]]] = {
    kind: get_args(one.type)[0]
    for kind in Timed.__subclasses__()
    for one in msgspec.structs.fields(kind)
    if one.name == "args"
}

#: Argument type of kinds without arguments.
EMPTY_ARGS: Final = {kind: args() for kind, args in ARGS.items()}

#: Name prefix of a profiler step.
STEP: Final = "ProfilerStep#"


#: Decoded class by alternative category.
_SPELLED: Final[dict[str, type]] = {
    category: types.new_class(
        f"{base.__name__}_{category}", (base if base is Flow else base[T],), {"tag": category, "gc": False}
    )
    for category, base in _SPELLINGS.items()
}

#: Kind name by decoded class.
MEANT: Final[dict[type, type]] = {
    **{kind: kind for kind in _MAIN},
    **{_SPELLED[category]: base for category, base in _SPELLINGS.items()},
}

#: Decoded class by category.
KIND_OF: Final[dict[str, type]] = {
    **{str(kind.__struct_config__.tag): kind for kind in _MAIN},
    **_SPELLINGS,
    **_OLD,
}
