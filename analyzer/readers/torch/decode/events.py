"""What one event of a Chrome trace of torch.profiler can be: its fields, by category.

The names are those that Kineto writes (libkineto/src/output_json.cpp), and those of older versions. Only what the
tables hold is declared; everything else is skipped without being looked at.
"""

from __future__ import annotations

from typing import Final, Generic, TypeVar

from msgspec import Raw, Struct

#: A whole number that is absent: no number of a trace is this one.
MISSING: Final = -(1 << 63)

#: A time that is absent: no number that JSON can write is this one.
NO_TIME: Final = float("nan")

#: Text that is absent.
NOTHING: Final = Raw(b"")

#: A time: microseconds as a float, where that is exact, or nanoseconds as an int.
T = TypeVar("T")

#: Whole numbers that some versions write as text, and threads that are no number (``stream 7``).
Number = int | str | None


class Linked(Struct, frozen=True, gc=False, rename={"external_id": "External id", "collective": "Collective name"}):
    """Arguments of what belongs to an operator; that it is of a collective is looked at no further here."""

    external_id: Number = MISSING
    collective: Raw = NOTHING


class CallArgs(Linked, frozen=True, gc=False):
    """Arguments of a call of CUDA's runtime or driver."""

    correlation: Number = MISSING


class OpArgs(
    Linked,
    frozen=True,
    gc=False,
    rename={
        "sequence_number": "Sequence number",
        "forward_thread_id": "Fwd thread id",
        "input_shapes": "Input Dims",
        "input_types": "Input type",
        "input_strides": "Input Strides",
    },
):
    """Arguments of an operator."""

    sequence_number: Number = MISSING
    forward_thread_id: Number = MISSING
    input_shapes: Raw = NOTHING
    input_types: Raw = NOTHING
    input_strides: Raw = NOTHING


class DeviceArgs(
    CallArgs, frozen=True, gc=False, rename={"graph_exec_id": "graph id", "graph_node_id": "graph node id"}
):
    """Arguments of everything that runs on a device."""

    device: Number = MISSING
    context: Number = MISSING
    stream: Number = MISSING
    graph_exec_id: Number = MISSING
    graph_node_id: Number = MISSING


class KernelArgs(
    DeviceArgs, frozen=True, gc=False, rename={"registers": "registers per thread", "shared_bytes": "shared memory"}
):
    """Arguments of a kernel."""

    registers: Number = MISSING
    shared_bytes: Number = MISSING
    grid: Raw = NOTHING
    block: Raw = NOTHING


class CopyArgs(
    DeviceArgs,
    frozen=True,
    gc=False,
    rename={"size_bytes": "bytes", "source_device": "fromDevice", "target_device": "toDevice"},
):
    """Arguments of a copy or memset."""

    size_bytes: Number = MISSING
    source_device: Number = MISSING
    target_device: Number = MISSING


class SyncArgs(
    DeviceArgs,
    frozen=True,
    gc=False,
    rename={
        "cuda_event_id": "wait_on_cuda_event_id",
        "record_correlation": "wait_on_cuda_event_record_corr_id",
        "record_stream": "wait_on_stream",
    },
):
    """Arguments of a synchronisation; -1 is nothing."""

    cuda_event_id: Number = MISSING
    record_correlation: Number = MISSING
    record_stream: Number = MISSING


class RecordArgs(DeviceArgs, frozen=True, gc=False, rename={"cuda_event_id": "event_id"}):
    """Arguments of the recording of a CUDA event."""

    cuda_event_id: Number = MISSING


class PythonArgs(Struct, frozen=True, gc=False, rename={"python_id": "Python id", "caller": "Python parent id"}):
    """Arguments of a Python function."""

    python_id: Number = MISSING
    caller: Number = MISSING


class MemoryArgs(
    Struct,
    frozen=True,
    gc=False,
    rename={
        "size_bytes": "Bytes",
        "address": "Addr",
        "device_type": "Device Type",
        "device": "Device Id",
        "allocated_bytes": "Total Allocated",
        "reserved_bytes": "Total Reserved",
    },
):
    """Arguments of an allocation or deallocation in the framework's allocator."""

    size_bytes: Number = MISSING
    address: Number = MISSING
    device_type: Number = MISSING
    device: Number = MISSING
    allocated_bytes: Number = MISSING
    reserved_bytes: Number = MISSING


#: What an event of a collective says beside what its kind does; both operators and kernels have it.
COLLECTIVE: Final = {
    "collective": "Collective name",
    "type": "dtype",
    "in_elements": "In msg nelems",
    "out_elements": "Out msg nelems",
    "group_size": "Group size",
    "group": "Process Group Name",
    "group_description": "Process Group Description",
    "ranks": "Process Group Ranks",
}


class Timed(Struct, Generic[T], gc=False, tag_field="cat"):
    """Anything with a start and a length on a thread."""

    ts: T
    dur: float = NO_TIME  # in nanoseconds, and an int, where the event was taken field by field
    pid: Number = MISSING
    tid: Number = MISSING
    name: str = ""


class Op(Timed[T], gc=False, tag="cpu_op"):
    """An operator."""

    args: OpArgs | None = None


class Annotation(Timed[T], gc=False, tag="user_annotation"):
    """A range that the program named, or a step of the profiler."""

    args: Linked | None = None


class Call(Timed[T], gc=False, tag="cuda_runtime"):
    """A call of CUDA's runtime."""

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
    """A synchronisation, as the device's driver tells of it."""

    args: SyncArgs | None = None


class Record(Timed[T], gc=False, tag="cuda_event"):
    """The recording of a CUDA event into a stream."""

    args: RecordArgs | None = None


class Overhead(Timed[T], gc=False, tag="overhead"):
    """The profiler's own work."""


class Python(Timed[T], gc=False, tag="python_function"):
    """A Python function, or a call of a module."""

    args: PythonArgs | None = None


class Memory(Timed[T], gc=False, tag="cpu_instant_event"):
    """An allocation or deallocation (``[memory]``), or another instant."""

    args: MemoryArgs | None = None


class Link(Struct, Generic[T], gc=False, tag_field="cat", tag="fwdbwd"):
    """One end of the link from a forward operator (``s``) to a backward one (``f``)."""

    ts: T
    ph: str = ""
    id: Number = MISSING
    pid: Number = MISSING
    tid: Number = MISSING


class Launch(Link[T], gc=False, tag="cpu_to_cuda"):
    """One end of the link from an operator to its work on a device, in traces of the first profilers."""


class Projection(Timed[T], gc=False, tag="gpu_user_annotation"):
    """An annotation drawn where its work ran on a device: no event of its own."""


class Span(Timed[T], gc=False, tag="Trace"):
    """The time that the profiler recorded."""


class Flow(Struct, gc=False, tag_field="cat", tag="ac2g"):
    """One end of the link from a call to a device operation: correlation ids say the same."""


class Unread(Timed[T], gc=False, tag="another category"):
    """What Kineto records besides, of other devices and tools."""
