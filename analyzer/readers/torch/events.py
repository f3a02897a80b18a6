"""Types of Chrome trace events of torch.profiler: their fields, and the categories that each is written under.

The names are those that Kineto writes (libkineto/src/output_json.cpp), and those of older versions. Only what the
tables hold is declared; everything else is skipped without being looked at.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
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
KEPT: Final = frozenset(
    {"collective", "grid", "block", "input_shapes", "input_types", "input_strides", "input_values"}
    | {"copy_kind", "source_kind", "target_kind"}
)


def _arguments(name: str, base: type[Struct] | None = None, **keys: str) -> type[Struct]:
    """The type of an event's arguments: those of `base`, and fields by what Kineto calls them."""
    fields = [
        (own, Raw, field(default=NOTHING, name=key)) if own in KEPT else (own, Number, field(default=MISSING, name=key))
        for own, key in keys.items()
    ]
    return msgspec.defstruct(name, fields, bases=(base,) if base else None, frozen=True, gc=False)


#: Arguments of an event linked to an operator; `Collective name` only marks it as a collective.
Linked: Final = _arguments("Linked", external_id="External id", collective="Collective name")

#: The framework's own annotations, such as those of collectives on the CPU, have inputs.
_ANNOTATION: Final = _arguments("AnnotationArgs", Linked, input_shapes="Input Dims", input_types="Input type")
_CALL: Final = _arguments("CallArgs", Linked, correlation="correlation")
_OP: Final = _arguments(
    "OpArgs",
    Linked,
    sequence_number="Sequence number",
    forward_thread_id="Fwd thread id",
    input_shapes="Input Dims",
    input_types="Input type",
    input_strides="Input Strides",
    input_values="Concrete Inputs",
)
_DEVICE: Final = _arguments(
    "DeviceArgs",
    _CALL,
    device="device",
    context="context",
    stream="stream",
    graph_exec_id="graph id",
    graph_node_id="graph node id",
)
_SHAPE: Final = {"registers": "registers per thread", "shared_bytes": "shared memory", "grid": "grid", "block": "block"}
KernelArgs: Final[Any] = _arguments("KernelArgs", _DEVICE, **_SHAPE)

#: PyTorch 2.15 has here what the name of a copy says in earlier versions.
_COPY: Final = _arguments(
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
_SYNC: Final = _arguments(
    "SyncArgs",
    _DEVICE,
    cuda_event_id="wait_on_cuda_event_id",
    record_correlation="wait_on_cuda_event_record_corr_id",
    record_stream="wait_on_stream",
)
_RECORD: Final = _arguments("RecordArgs", _DEVICE, cuda_event_id="event_id")
_PYTHON: Final = _arguments("PythonArgs", python_id="Python id", caller="Python parent id")
_MEMORY: Final = _arguments(
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


#: Kinds of events by name, with what follows below.
KINDS: Final[dict[str, Any]] = {
    name: _kind(name, category, args)
    for name, (category, args) in {
        "Op": ("cpu_op", _OP),
        "Annotation": ("user_annotation", _ANNOTATION),  # or a profiler step
        "Call": ("cuda_runtime", _CALL),
        "Kernel": ("kernel", KernelArgs),
        "Copy": ("gpu_memcpy", _COPY),
        "Memset": ("gpu_memset", _COPY),
        "Sync": ("cuda_sync", _SYNC),  # as reported by the driver
        "Record": ("cuda_event", _RECORD),  # cudaEventRecord
        "Overhead": ("overhead", None),  # the profiler's own work
        "Python": ("python_function", _PYTHON),  # or an nn.Module call
        "Memory": ("cpu_instant_event", _MEMORY),  # ``[memory]``, or another instant event
        "Projection": ("gpu_user_annotation", None),  # an annotation on the device timeline; ignored
        "Span": ("Trace", None),  # the recorded time span
        # a node of a CUDA graph that calls the host or records an event (torch/profiler/_cupti/monitor_trace.py)
        "GraphNode": ("graph_host_node", None),
        # a sample of a counter of a GPU: PyTorch 2.15 writes phase "C" without a category, as process
        # "GPU N Counters", the one value below an empty name (as above)
        "Counter": ("counter of a GPU", CounterArgs),
        "Unread": ("another category", None),  # other Kineto events, of other devices and tools; ignored
    }.items()
}


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

KINDS.update(Link=Link, Launch=Launch, Flow=Flow)

#: Alternative spellings of categories, the last of which are ignored.
_SPELLINGS: Final = {
    **dict.fromkeys(("cuda_driver", "xpu_runtime", "mtia_runtime", "privateuse1_runtime", "glow_runtime"), "Call"),
    **dict.fromkeys(("xpu_driver", "privateuse1_driver"), "Call"),
    "gpu_user_Annotation": "Projection",
    "forward_backward": "Link",
    "graph_event_node": "GraphNode",
    **dict.fromkeys(("async", "async_gpu", "async_cpu_to_gpu"), "Flow"),
    **dict.fromkeys(
        (
            *("external_correlation", "cuda_profiler_range", "collective_comm", "hpu_op", "mtia_ccp_events"),
            *("mtia_counters", "mtia_insight", "xpu_scope_profiler", "xpu_sync", "hardware_counters"),
        ),
        "Unread",
    ),
}

#: Categories of torch 1.8 to 1.10, whose events are decoded field by field.
_OLD: Final = {"Operator": "Op", "Runtime": "Call", "Kernel": "Kernel", "Memcpy": "Copy", "Memset": "Memset"}

#: Kind by category.
KIND_OF: Final[dict[str, Any]] = {
    **{str(kind.__struct_config__.tag): kind for kind in KINDS.values()},
    **{category: KINDS[name] for category, name in (_SPELLINGS | _OLD).items()},
}

#: Kind by decoded class: of each kind one for every spelling of its category.
MEANT: Final[dict[type, type]] = {kind: kind for kind in KINDS.values()} | {
    types.new_class(
        f"{name}_{category}", (Flow if name == "Flow" else KINDS[name][T],), {"tag": category, "gc": False}
    ): KINDS[name]
    for category, name in _SPELLINGS.items()
}

#: Argument type of each kind of event that has arguments, and arguments without any value.
ARGS: Final[dict[type, type[Struct]]] = {
    kind: get_args(one.type)[0] for kind in KINDS.values() for one in msgspec.structs.fields(kind) if one.name == "args"
}
EMPTY_ARGS: Final = {kind: args() for kind, args in ARGS.items()}
#: Name prefix of a profiler step.
STEP: Final = "ProfilerStep#"


# Fallback decoders: events of unexpected types, field by field, and repair of invalid JSON. For old versions, for what
# other tools made of a trace, and for damaged files: a few microseconds for each event.

#: Category by process name, in traces of the first profilers, which write no categories.
_WITHOUT_CATEGORY: Final = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}
#: Category of operators of torch 1.8 to 1.10, of which each step of the profiler is one; later it is an annotation.
_OLD_OP: Final = "Operator"
#: What an annotation has of its arguments.
_OF_STEP: Final = ("external id", "External id", "Collective name")
#: The process of a GPU's counters, and the phases of arrows.
_COUNTERS: Final = re.compile(r"GPU (\d{1,9}) Counters")
_FLOWS: Final = ("s", "t", "f")

#: Phase, id, process, thread and time in ns of one end of an arrow.
Arrow = tuple[str, int, int, int, int]

#: Name of allocations in torch 1.9 and 1.10, which write no category for them.
_ALLOCATION: Final = "[memory]"
#: Bound on times, in nanoseconds: some 146 years on either side of the epoch.
_LATEST_NS: Final = 1 << 62
#: Bound on the digits of a number: more than any time or 64-bit integer has.
_DIGITS: Final = 20
_WHOLE: Final = re.compile(rf"(?:stream )?\s*(-?\d{{1,{_DIGITS}}}|0[xX][0-9a-fA-F]{{1,16}})\s*", re.ASCII)


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits overflows
        return None


_DECODER: Final = msgspec.json.Decoder(float_hook=_decimal)
#: The raw fields of an object; of a repeated key the last value.
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def as_event(raw: msgspec.Raw, meta: list[dict[str, Any]]) -> Any:  # noqa: ANN401 - of any kind
    """Decodes one event, times in nanoseconds; else the reason, as a counter name, why it is not an event.

    Metadata events with names of processes and threads are appended to `meta`.
    """
    try:
        event = _DECODER.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "unreadable"
    if not isinstance(event, dict):
        return "no object"
    if event.get("ph") == "M":
        meta.append(event)
        return "name"
    category = event.get("cat", _category_of(event))
    if not isinstance(category, str):
        reasons = {"i": "mark", "I": "mark"}
        phase = event.get("ph")
        return _counter(event) or (reasons.get(phase, "no category") if isinstance(phase, str) else "no event")
    if category == _OLD_OP and str(event.get("name")).startswith(STEP):
        category, args = "user_annotation", event.get("args")
        event["args"] = {name: args[name] for name in args if name in _OF_STEP} if isinstance(args, dict) else None
    kind = KIND_OF.get(category)
    if kind is None:
        unknown = f"category {category}" if "ts" in event else "no time"
        return "flow" if event.get("ph") in _FLOWS else unknown  # arrows between nodes of CUDA graphs
    return _of_kind(kind, event, raw)


def arrow(raw: msgspec.Raw) -> Arrow | None:
    """One end of an arrow from a flow event; None for any other, and without a time."""
    event = _DECODER.decode(raw)
    ts, phase = _ns(event.get("ts")), event.get("ph")
    number_of, pid, tid = (number(_whole(event.get(key))) for key in ("id", "pid", "tid"))
    return (phase, number_of, pid, tid, ts) if ts is not None and phase in ("s", "f") else None


def _counter(event: Mapping[str, Any]) -> Any:  # noqa: ANN401 - as above
    """A sample of a counter of a GPU; None for a counter of anything else."""
    device, ts, args = _COUNTERS.fullmatch(str(event.get("pid"))), _ns(event.get("ts")), event.get("args")
    values = [*args.values()] if isinstance(args, dict) and event.get("ph") == "C" else []
    if device is None or ts is None or len(values) != 1 or not isinstance(values[0], int | Decimal):
        return None
    told = CounterArgs(number(device[1]), float(values[0]))
    return KINDS["Counter"](ts=ts, dur=MISSING, name=str(event.get("name")), args=told)


def _category_of(event: Mapping[str, Any]) -> str | None:
    """Infers the category of an event without one."""
    if event.get("ph") == "X":
        pid = event.get("pid")
        return _WITHOUT_CATEGORY.get(pid) if isinstance(pid, str) else None
    return "cpu_instant_event" if event.get("name") == _ALLOCATION and event.get("ph") in ("i", "I") else None


def in_ns(event: Any, limit_us: float) -> bool:  # noqa: ANN401 - of any kind
    """Convert the event's times from float microseconds to nanoseconds; False if one exceeds the limit."""
    if isinstance(event, Flow):
        return True
    names = ("ts", "dur") if isinstance(event, Timed) else ("ts",)
    times = [getattr(event, name) for name in names]
    if any(abs(us) >= limit_us for us in times):
        return False
    for name, us in zip(names, times, strict=True):
        if us != us:  # noqa: PLR0124 - NaN: absent
            setattr(event, name, MISSING)
        else:
            whole = math.floor(us)
            setattr(event, name, whole * 1000 + int((us - whole) * 1000 + 0.5))
    return True


def _of_kind(kind: Any, event: Mapping[str, Any], raw: msgspec.Raw) -> Any:  # noqa: ANN401
    """Decodes an event of a known kind from `raw`; else the counter name for a missing time."""
    if kind is Flow:
        return Flow()
    ts = _ns(event.get("ts"))
    if ts is None:
        return "no time"
    fields: dict[str, Any] = {"ts": ts, "pid": _whole(event.get("pid")), "tid": _whole(event.get("tid"))}
    if issubclass(kind, Link):
        return kind(**fields, ph=str(event.get("ph")), id=_whole(event.get("id")))
    dur = _ns(event.get("dur"))
    fields["dur"] = MISSING if dur is None else dur
    name = event.get("name")
    fields["name"] = name if isinstance(name, str) else "" if name is None else str(name)
    if kind in ARGS:
        given = event.get("args")
        fields["args"] = _args(ARGS[kind], given if isinstance(given, dict) else {}, raw)
    if kind is KINDS["Kernel"] and event.get("pid") == "CUDA functions":  # the thread is the device there
        fields["args"] = KernelArgs(device=fields["tid"])
    return kind(**fields)


def _args(kind: type[msgspec.Struct], given: Mapping[str, Any], raw: msgspec.Raw) -> msgspec.Struct:
    """Decodes the arguments `given`, tolerating different spellings."""
    values: dict[str, Any] = {}
    spelled = {key.lower().replace("_", " "): key for key in given}
    texts: dict[str, msgspec.Raw] | None = None
    for name, key, empty in zip(
        kind.__struct_fields__, kind.__struct_encode_fields__, kind.__struct_defaults__, strict=True
    ):
        own = key if key in given else spelled.get(key.lower(), key)
        value = given.get(own)
        if value is None:
            continue
        if isinstance(empty, msgspec.Raw):
            texts = _FIELDS.decode(_FIELDS.decode(raw)["args"]) if texts is None else texts
            values[name] = texts[own]
        else:
            values[name] = _whole(value)
    return kind(**values)


def _whole(value: object) -> object:
    """Converts a float with an integral value to int; other values stay."""
    if isinstance(value, bool):
        return None
    if isinstance(value, Decimal) and value.is_finite() and abs(value.adjusted()) < _DIGITS:
        return int(value) if value == value.to_integral_value() else None
    return value if isinstance(value, int | str) else None


def number(value: object) -> int:
    """An int64 from a number or numeric text; the sentinel if absent or invalid."""
    if isinstance(value, str):
        found = _WHOLE.fullmatch(value)
        value = int(found[1], 16 if found[1][:2] in {"0x", "0X"} else 10) if found else None
    return value if isinstance(value, int) and abs(value) < -MISSING else MISSING


def _ns(value: object) -> int | None:
    """Converts microseconds to nanoseconds exactly; None for an invalid time."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return None
    try:
        us = Decimal(value)
    except (InvalidOperation, ValueError):
        return None
    if not us.is_finite() or us.adjusted() >= _DIGITS:
        return None
    ns = int((us * 1000).to_integral_value(ROUND_HALF_EVEN))
    return ns if abs(ns) < _LATEST_NS else None
