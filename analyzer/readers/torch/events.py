"""Events of torch.profiler's Chrome traces: kinds, the categories that each is written under, and their fields.

The names are those that Kineto writes (libkineto/src/output_json.cpp), and those of older versions. Only what the
tables hold is declared; everything else is skipped without being looked at. Fields take any value, so that no event
has an unexpected type; :mod:`kanalyze.readers.torch.columns` makes numbers of them.
"""

import re
from collections.abc import Iterable
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from msgspec import Raw, field

#: Sentinel for an absent integer; no number of a trace has this value.
MISSING: Final = -(1 << 63)
#: Sentinel for an absent duration; JSON cannot express this number.
NO_TIME: Final = float("nan")
#: Sentinel for absent text.
NOTHING: Final = Raw(b"")

#: Arguments that are kept as they stand, as codes of texts; all others are numbers.
KEPT: Final = frozenset(
    {"grid", "block", "input_shapes", "input_types", "input_strides", "input_values"}
    | {"mark", "mark_name", "mark_list"}
    | {"copy_kind", "source_kind", "target_kind"}
)

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


def _keys(text: str) -> dict[str, str]:
    """Names of columns, each with the key of an argument: ``external_id: External id, stream: stream``."""
    return dict(one.split(": ") for one in text.split(", "))


_LINKED: Final = _keys("external_id: External id")
_INPUTS: Final = _keys("input_shapes: Input Dims, input_types: Input type")
_CALL: Final = _LINKED | _keys("correlation: correlation")
_DEVICE: Final = _CALL | _keys(
    "device: device, context: context, stream: stream, graph_exec_id: graph id, graph_node_id: graph node id"
)
#: What the program says of nodes of CUDA graphs by torch.cuda's mark_kernels: with PyTorch 2.12 and 2.13, from 2.14 on,
#: and as a list, which the writer of 2.13 by CUPTI's own activities makes of them.
_MARKED: Final = _DEVICE | _keys("mark: str, mark_name: name, mark_list: annotation")
#: PyTorch 2.15 has in the last three what the name of a copy says in earlier versions.
_COPY: Final = _MARKED | _keys(
    "size_bytes: bytes, source_device: fromDevice, target_device: toDevice, copy_kind: copy kind, "
    "source_kind: src kind, target_kind: dst kind"
)

#: Kinds of events: their arguments, by the names of columns, as Kineto calls them.
KINDS: Final[dict[str, dict[str, str]]] = {
    "Op": _LINKED
    | _keys("sequence_number: Sequence number, forward_thread_id: Fwd thread id")
    | _INPUTS
    | _keys("input_strides: Input Strides, input_values: Concrete Inputs"),
    # or a profiler step; the framework's own annotations, such as those of collectives on the CPU, have inputs
    "Annotation": _LINKED | _INPUTS,
    "Call": _CALL,
    "Kernel": _MARKED | _keys("registers: registers per thread, shared_bytes: shared memory, grid: grid, block: block"),
    "Copy": _COPY,
    "Memset": _COPY,
    # as reported by the driver; -1 is absent
    "Sync": _DEVICE
    | _keys(
        "cuda_event_id: wait_on_cuda_event_id, record_correlation: wait_on_cuda_event_record_corr_id, "
        "record_stream: wait_on_stream"
    ),
    "Record": _DEVICE | _keys("cuda_event_id: event_id"),  # cudaEventRecord
    "Overhead": {},  # the profiler's own work
    "Python": _keys("python_id: Python id, caller: Python parent id"),  # or an nn.Module call
    # ``[memory]``, or another instant event
    "Memory": _keys(
        "size_bytes: Bytes, address: Addr, device_type: Device Type, device: Device Id, "
        "allocated_bytes: Total Allocated, reserved_bytes: Total Reserved"
    ),
    "Projection": {},  # an annotation on the device timeline; ignored
    "Span": {},  # the recorded time span
    # a node of a CUDA graph that calls the host or records an event (torch/profiler/_cupti/monitor_trace.py)
    "GraphNode": {},
    # a sample of a counter of a GPU: PyTorch 2.15 writes phase "C" without a category, as process "GPU N Counters",
    # the one value below an empty name (as above)
    "Counter": {"device": "device", "value": ""},
    "Unread": {},  # Kineto's events of other devices and tools; ignored
    "Link": {},  # one end of a forward-to-backward flow: ``s`` at the forward operator, ``f`` at the backward one
    "Launch": {},  # one end of an operator-to-kernel flow, in traces of the first profilers
    # one end of an arrow between nodes of a CUDA graph, from the end of one to the start of one that depends on it
    # (enable_graph_dependencies of PyTorch 2.14 and later, torch/profiler/_cupti/monitor_trace.py)
    "Edge": {},
}
#: Ends of flows, which have a phase and an id in place of a name and a duration.
LINKS: Final = ("Link", "Launch", "Edge")
#: The first id of arrows between nodes of graphs, which some versions write as flows like any other.
EDGES: Final = 1 << 40
#: The name of a collective only marks the events that are one, of kinds that are linked to operators.
MARKER: Final = "collective"
#: One end of a call-to-device flow; ignored where correlation ids say the same.
FLOW: Final = "Flow"

#: Categories of torch 1.8 to 1.10. What Kineto calls "External id" since is "external id" there, "Input Dims" was
#: "Input dims" at first, and what makes a step of the profiler is an operator like all others; later an annotation.
OLD: Final = {"Operator": "Op", "Runtime": "Call", "Kernel": "Kernel", "Memcpy": "Copy", "Memset": "Memset"}
OLD_KEYS: Final = {"External id": "external id", "Input Dims": "Input dims"}
#: Name prefix of a profiler step.
STEP: Final = "ProfilerStep#"

#: The categories of each kind, in any version.
_CATEGORIES: Final = {
    "Op": "cpu_op",
    "Annotation": "user_annotation",
    "Call": "cuda_runtime xpu_runtime mtia_runtime privateuse1_runtime glow_runtime"
    " cuda_driver xpu_driver privateuse1_driver",
    "Kernel": "kernel",
    "Copy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Sync": "cuda_sync",
    "Record": "cuda_event",
    "Overhead": "overhead",
    "Python": "python_function",
    "Memory": "cpu_instant_event",
    "Projection": "gpu_user_annotation gpu_user_Annotation",
    "Span": "Trace",
    "GraphNode": "graph_host_node graph_event_node",
    "Unread": "external_correlation cuda_profiler_range collective_comm hpu_op mtia_ccp_events mtia_counters"
    " mtia_insight xpu_scope_profiler xpu_sync hardware_counters",
    "Link": "fwdbwd forward_backward",
    "Launch": "cpu_to_cuda",
    "Edge": "graph_dep",
    FLOW: "ac2g async async_gpu async_cpu_to_gpu",
}
KIND_OF: Final = {category: kind for kind, words in _CATEGORIES.items() for category in words.split()}


def attribute(key: str) -> str:
    """The attribute of :data:`AnyArgs` that holds an argument."""
    return re.sub(r"\W", "_", key) or "nameless"


def _args(name: str, fields: Iterable[tuple[str, str, bool]]) -> Any:  # noqa: ANN401 - a type that is made at run time
    """A type of arguments: attributes, keys, and whether they are kept as they stand."""
    declared = [
        (own, Raw if kept else Any, field(default=NOTHING if kept else MISSING, name=key)) for own, key, kept in fields
    ]
    return msgspec.defstruct(name, declared, gc=False)


def _args_of(kind: str) -> Any:  # noqa: ANN401 - as above
    """The type of the arguments of a kind, with the marker of collectives where it is linked to operators."""
    keys = KINDS[kind] | ({MARKER: COLLECTIVE[MARKER]} if "external_id" in KINDS[kind] else {})
    return _args(kind, ((own, key, own in KEPT) for own, key in keys.items()))


#: The type of the arguments of each kind that has some, and arguments without any value.
ARGS: Final[dict[str, Any]] = {kind: _args_of(kind) for kind, keys in KINDS.items() if keys}
NO_ARGS: Final = {kind: args() for kind, args in ARGS.items()}

_KEPT_KEYS: Final = {key for keys in KINDS.values() for own, key in keys.items() if own in KEPT} | {"Input dims"}
_ANY_KEYS: Final = dict.fromkeys(
    (*(key for keys in KINDS.values() for key in keys.values()), *COLLECTIVE.values(), *OLD_KEYS.values(), "name")
)
#: The type of arguments of any kind.
AnyArgs: Final = _args("AnyArgs", ((attribute(key), key, key in _KEPT_KEYS) for key in _ANY_KEYS))
NO_ARGS_OF_ANY: Final = AnyArgs()


def _event(kind: str, times: Any, **options: Any) -> Any:  # noqa: ANN401 - as above
    """The type of events of a kind, with times of a type."""
    start, end = (NOTHING, NOTHING) if times is Raw else (None, NO_TIME)
    fields: list[tuple[str, Any, Any]] = [("ts", times, start), ("pid", Any, MISSING), ("tid", Any, MISSING)]
    if kind in (*LINKS, FLOW):
        fields += [("ph", Any, None), ("id", Any, MISSING)]
    else:
        fields += [("dur", times, end), ("name", Any, "")]
    if kind in ARGS:
        fields.append(("args", ARGS[kind] | None, None))
    return msgspec.defstruct(kind, fields, gc=False, **options)


def _types(times: Any) -> dict[Any, str]:  # noqa: ANN401 - as above
    """A type for each category, by which it is told: with its kind."""
    return {_event(kind, times, tag=category, tag_field="cat"): kind for category, kind in KIND_OF.items()}


#: Kinds by types of events with times as numbers, and with times as text, where a float does not hold them.
OF_NUMBERS: Final = _types(int | float | str | None)
OF_TEXTS: Final = _types(Raw)
#: A type of events by kind.
TYPE_OF: Final = {kind: one for one, kind in OF_TEXTS.items()} | {"Counter": _event("Counter", Raw)}
MEANT: Final = {**OF_NUMBERS, **OF_TEXTS, TYPE_OF["Counter"]: "Counter"}
#: An event of any kind or none, and an entry of the list of events.
AnyEvent: Final[Any] = msgspec.defstruct(
    "AnyEvent",
    [
        *((name, Any, None) for name in ("ph", "cat")),
        *(("name", Any, ""), ("pid", Any, MISSING), ("tid", Any, MISSING), ("id", Any, MISSING)),
        *(("ts", Raw, NOTHING), ("dur", Raw, NOTHING)),
        ("args", AnyArgs | list[Any] | str | float | bool | None, None),
    ],
    gc=False,
)
ENTRY: Final = AnyEvent | list[Any] | str | float | bool | None

#: Bound on times, in nanoseconds: some 146 years on either side of the epoch.
_LATEST_NS: Final = 1 << 62
#: Bound on the digits of a number: more than any time or 64-bit integer has.
_DIGITS: Final = 20
_WHOLE: Final = re.compile(rf"(?:stream )?\s*(-?\d{{1,{_DIGITS}}}|0[xX][0-9a-fA-F]{{1,16}})\s*", re.ASCII)


def number(value: object) -> int:
    """An int64 from a number or numeric text; the sentinel if absent or invalid."""
    if isinstance(value, str):
        match = _WHOLE.fullmatch(value)
        value = int(match[1], 16 if match[1][:2] in {"0x", "0X"} else 10) if match else None
    elif isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if type(value) is int and abs(value) < -MISSING else MISSING


def in_ns(us: object) -> int | None:
    """Nanoseconds of microseconds, exactly; None for an invalid time."""
    text = bytes(us).decode(errors="replace").strip('"') if isinstance(us, Raw) else str(us)
    try:
        time = Decimal(text)
    except InvalidOperation:  # also an exponent of twenty digits
        return None
    if not time.is_finite() or time.adjusted() >= _DIGITS:
        return None
    ns = int((time * 1000).to_integral_value(ROUND_HALF_EVEN))
    return ns if abs(ns) < _LATEST_NS else None
