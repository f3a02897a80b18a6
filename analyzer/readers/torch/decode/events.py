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


class Linked(Struct, frozen=True, gc=False):
    """Arguments of an event linked to an operator; `Collective name` only marks it as a collective."""

    external_id: Number = field(default=MISSING, name="External id")
    collective: Raw = field(default=NOTHING, name="Collective name")


class AnnotationArgs(Linked, frozen=True, gc=False):
    """Arguments of an annotation; the framework's own, such as those of collectives on the CPU, have inputs."""

    input_shapes: Raw = field(default=NOTHING, name="Input Dims")
    input_types: Raw = field(default=NOTHING, name="Input type")


class CallArgs(Linked, frozen=True, gc=False):
    """Arguments of a CUDA runtime or driver call."""

    correlation: Number = MISSING


class OpArgs(Linked, frozen=True, gc=False):
    """Arguments of an operator."""

    sequence_number: Number = field(default=MISSING, name="Sequence number")
    forward_thread_id: Number = field(default=MISSING, name="Fwd thread id")
    input_shapes: Raw = field(default=NOTHING, name="Input Dims")
    input_types: Raw = field(default=NOTHING, name="Input type")
    input_strides: Raw = field(default=NOTHING, name="Input Strides")


class DeviceArgs(CallArgs, frozen=True, gc=False):
    """Arguments of every device event."""

    device: Number = MISSING
    context: Number = MISSING
    stream: Number = MISSING
    graph_exec_id: Number = field(default=MISSING, name="graph id")
    graph_node_id: Number = field(default=MISSING, name="graph node id")


class KernelArgs(DeviceArgs, frozen=True, gc=False):
    """Arguments of a kernel."""

    registers: Number = field(default=MISSING, name="registers per thread")
    shared_bytes: Number = field(default=MISSING, name="shared memory")
    grid: Raw = NOTHING
    block: Raw = NOTHING


class CopyArgs(DeviceArgs, frozen=True, gc=False):
    """Arguments of a copy or memset; PyTorch 2.15 has here what its name says in earlier versions."""

    size_bytes: Number = field(default=MISSING, name="bytes")
    source_device: Number = field(default=MISSING, name="fromDevice")
    target_device: Number = field(default=MISSING, name="toDevice")
    copy_kind: Raw = field(default=NOTHING, name="copy kind")
    source_kind: Raw = field(default=NOTHING, name="src kind")
    target_kind: Raw = field(default=NOTHING, name="dst kind")


class SyncArgs(DeviceArgs, frozen=True, gc=False):
    """Arguments of a synchronisation; -1 is absent."""

    cuda_event_id: Number = field(default=MISSING, name="wait_on_cuda_event_id")
    record_correlation: Number = field(default=MISSING, name="wait_on_cuda_event_record_corr_id")
    record_stream: Number = field(default=MISSING, name="wait_on_stream")


class RecordArgs(DeviceArgs, frozen=True, gc=False):
    """Arguments of a recorded CUDA event (cudaEventRecord)."""

    cuda_event_id: Number = field(default=MISSING, name="event_id")


class PythonArgs(Struct, frozen=True, gc=False):
    """Arguments of a Python function."""

    python_id: Number = field(default=MISSING, name="Python id")
    caller: Number = field(default=MISSING, name="Python parent id")


class MemoryArgs(Struct, frozen=True, gc=False):
    """Arguments of an allocation or free in the framework's allocator."""

    size_bytes: Number = field(default=MISSING, name="Bytes")
    address: Number = field(default=MISSING, name="Addr")
    device_type: Number = field(default=MISSING, name="Device Type")
    device: Number = field(default=MISSING, name="Device Id")
    allocated_bytes: Number = field(default=MISSING, name="Total Allocated")
    reserved_bytes: Number = field(default=MISSING, name="Total Reserved")


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


class Op(Timed[T], gc=False, tag="cpu_op"):
    """An operator."""

    args: OpArgs | None = None


class Annotation(Timed[T], gc=False, tag="user_annotation"):
    """A user annotation (named range) or a profiler step."""

    args: AnnotationArgs | None = None


class Call(Timed[T], gc=False, tag="cuda_runtime"):
    """A CUDA runtime call."""

    args: CallArgs | None = None


class Kernel(Timed[T], gc=False, tag="kernel"):
    """A kernel."""

    args: KernelArgs | None = None


class Copy(Timed[T], gc=False, tag="gpu_memcpy"):
    """A copy."""

    args: CopyArgs | None = None


class Memset(Timed[T], gc=False, tag="gpu_memset"):
    """A memset."""

    args: CopyArgs | None = None


class Sync(Timed[T], gc=False, tag="cuda_sync"):
    """A synchronisation as reported by the driver."""

    args: SyncArgs | None = None


class Record(Timed[T], gc=False, tag="cuda_event"):
    """A CUDA event recorded on a stream (cudaEventRecord)."""

    args: RecordArgs | None = None


class Overhead(Timed[T], gc=False, tag="overhead"):
    """The profiler's own work."""


class Python(Timed[T], gc=False, tag="python_function"):
    """A Python function or nn.Module call."""

    args: PythonArgs | None = None


class Memory(Timed[T], gc=False, tag="cpu_instant_event"):
    """An allocation or free (``[memory]``), or another instant event."""

    args: MemoryArgs | None = None


class Link(Struct, Generic[T], gc=False, tag_field="cat", tag="fwdbwd"):
    """One end of a forward-to-backward flow: ``s`` at the forward operator, ``f`` at the backward one."""

    ts: T
    ph: str = ""
    id: Number = MISSING
    pid: Number = MISSING
    tid: Number = MISSING


class Launch(Link[T], gc=False, tag="cpu_to_cuda"):
    """One end of an operator-to-kernel flow, in traces of the first profilers."""


class Projection(Timed[T], gc=False, tag="gpu_user_annotation"):
    """An annotation projected onto the device timeline; ignored."""


class Span(Timed[T], gc=False, tag="Trace"):
    """The recorded time span."""


class Flow(Struct, gc=False, tag_field="cat", tag="ac2g"):
    """One end of a call-to-device flow; ignored, as correlation ids say the same."""


class GraphNode(Timed[T], gc=False, tag="graph_host_node"):
    """A node of a CUDA graph that calls the host or records an event (torch/profiler/_cupti/monitor_trace.py)."""


class CounterArgs(Struct, frozen=True, gc=False):
    """The device and the value of a counter."""

    device: Number = MISSING
    value: float = 0.0


class Counter(Timed[T], gc=False, tag="counter of a GPU"):
    """A sample of a counter of a GPU.

    PyTorch 2.15 writes phase "C" without a category, as process "GPU N Counters", the one value below an empty name
    (torch/profiler/_cupti/monitor_trace.py).
    """

    args: CounterArgs | None = None


class Unread(Timed[T], gc=False, tag="another category"):
    """Other Kineto events, of other devices and tools; ignored."""


# Categories of a trace, mapped to kinds of events. They have changed their names, and some of them what their events
# hold:
#
# - torch 1.8 to 1.10 call them Operator, Runtime, Kernel, Memcpy and Memset; what Kineto calls "External id" since is
#   "external id" there, and "Input Dims" was "Input dims" at first.
# - What made a step of the profiler was an Operator like all others there; here it is an annotation, as in all that
#   came later.

#: Kineto categories that are ignored.
_UNREAD: Final = (
    "external_correlation",
    "cuda_profiler_range",
    "collective_comm",
    "hpu_op",
    "mtia_ccp_events",
    "mtia_counters",
    "mtia_insight",
    "xpu_scope_profiler",
    "xpu_sync",
    "hardware_counters",
)

#: Categories of torch 1.8 to 1.10, whose events are decoded field by field.
_OLD: Final = {"Operator": Op, "Runtime": Call, "Kernel": Kernel, "Memcpy": Copy, "Memset": Memset}

#: Alternative spellings of categories.
_SPELLINGS: Final[dict[str, Any]] = {
    "cuda_driver": Call,
    "xpu_runtime": Call,
    "mtia_runtime": Call,
    "privateuse1_runtime": Call,
    "glow_runtime": Call,
    "xpu_driver": Call,
    "privateuse1_driver": Call,
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
