"""Maps categories of a Chrome trace to kinds of events (:mod:`kanalyze.readers.torch.decode.events`).

Categories have changed their names, and some of them what their events hold:

- torch 1.8 to 1.10 call them Operator, Runtime, Kernel, Memcpy and Memset; what Kineto calls "External id" since is
  "external id" there, and "Input Dims" was "Input dims" at first.
- What made a step of the profiler was an Operator like all others there; here it is an annotation, as in all that came
  later.
"""

from __future__ import annotations

import types
from typing import Any, Final, get_args

import msgspec

from kanalyze.readers.torch.decode import events as of

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

#: Categories of torch 1.8 to 1.10.
_OLD: Final = {"Operator": of.Op, "Runtime": of.Call, "Kernel": of.Kernel, "Memcpy": of.Copy, "Memset": of.Memset}

#: Alternative spellings of categories.
_SPELLINGS: Final = {
    **_OLD,
    "cuda_driver": of.Call,
    "xpu_runtime": of.Call,
    "mtia_runtime": of.Call,
    "privateuse1_runtime": of.Call,
    "glow_runtime": of.Call,
    "xpu_driver": of.Call,
    "privateuse1_driver": of.Call,
    "gpu_user_Annotation": of.Projection,
    "forward_backward": of.Link,
    "graph_event_node": of.GraphNode,
    **dict.fromkeys(("async", "async_gpu", "async_cpu_to_gpu"), of.Flow),
    **dict.fromkeys(_UNREAD, of.Unread),
}

#: Every kind of event.
_MAIN: Final = (*of.Timed.__subclasses__(), of.Link, of.Launch, of.Flow)

#: Argument type of each kind of event that has arguments.
ARGS: Final[dict[type, type[msgspec.Struct]]] = {
    kind: get_args(field.type)[0]
    for kind in of.Timed.__subclasses__()
    for field in msgspec.structs.fields(kind)
    if field.name == "args"
}

#: Argument type of kinds without arguments.
EMPTY_ARGS: Final = {kind: args() for kind, args in ARGS.items()}

#: Name prefix of a profiler step.
STEP: Final = "ProfilerStep#"


def _old_args(kind: type) -> type[msgspec.Struct]:
    """The argument type of `kind` with the field names of torch 1.8 to 1.10, in the same order."""
    fields = msgspec.structs.fields(ARGS[kind])
    names = {field.name: field.encode_name for field in fields}
    extra: list[tuple[str, type, Any]] = []
    if kind is of.Op:
        extra, names["first_shapes"] = [("first_shapes", msgspec.Raw, of.NOTHING)], "Input dims"
    else:
        names["external_id"] = "external id"
    return msgspec.defstruct(
        f"Old{ARGS[kind].__name__}",
        [*((field.name, field.type, field.default) for field in fields), *extra],
        frozen=True,
        gc=False,
        rename=names,
    )


def _spelled(category: str, base: Any) -> Any:  # noqa: ANN401 - a class that can be subscripted
    parent = base if base is of.Flow else base[of.T]

    def add_args(namespace: dict[str, Any]) -> None:
        if category in _OLD:
            namespace["__annotations__"] = {"args": _old_args(base) | None}
            namespace["args"] = None

    return types.new_class(f"{base.__name__}_{category}", (parent,), {"tag": category, "gc": False}, add_args)


_SPELLED: Final = {category: _spelled(category, base) for category, base in _SPELLINGS.items()}

#: Operator events of torch 1.8 to 1.10, which include profiler steps; :func:`modern` converts them.
OLD_OP: Final = _SPELLED["Operator"]

#: Kind name by decoded class.
MEANT: Final[dict[type, type]] = {
    **{kind: kind for kind in _MAIN},
    **{_SPELLED[category]: base for category, base in _SPELLINGS.items()},
}

#: Decoded class by category.
KIND_OF: Final[dict[str, type]] = {**{str(kind.__struct_config__.tag): kind for kind in _MAIN}, **_SPELLINGS}


def modern(event: Any) -> Any:  # noqa: ANN401 - of any kind
    """Converts an event of torch 1.8 to 1.10 to the current kind."""
    if type(event) is not OLD_OP:
        return event
    args, fields = event.args, {name: getattr(event, name) for name in ("ts", "dur", "pid", "tid", "name")}
    if event.name.startswith(STEP):
        return of.Annotation(**fields, args=args and of.AnnotationArgs(args.external_id, args.collective))
    if args is not None:
        known = {name: getattr(args, name) for name in of.OpArgs.__struct_fields__}
        shapes = args.input_shapes if bytes(args.input_shapes) else args.first_shapes
        args = of.OpArgs(**{**known, "input_shapes": shapes})
    return of.Op(**fields, args=args)
