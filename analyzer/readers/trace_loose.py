"""Events of a trace that do not fit their types, taken field by field; and text that is no JSON, repaired.

For old versions, for what other tools made of a trace, and for damaged files: a few microseconds for each event.
"""

from __future__ import annotations

import re
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TYPE_CHECKING, Any, Final

import msgspec

from kanalyze.readers import trace_events as of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

#: Arguments by event; the others have none.
_ARGS: Final[dict[type, type[msgspec.Struct]]] = {
    of.Op: of.OpArgs,
    of.Annotation: of.Linked,
    of.Call: of.CallArgs,
    of.Kernel: of.KernelArgs,
    of.Copy: of.CopyArgs,
    of.Memset: of.CopyArgs,
    of.Sync: of.SyncArgs,
    of.Python: of.PythonArgs,
    of.Memory: of.MemoryArgs,
}

#: What stands for a category in the traces of the first profilers, which have none, by what they call the process.
_WITHOUT_CATEGORY: Final = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}

#: Longer than any recording, in nanoseconds: some 29 years on either side of the origin, but for epochs.
_LATEST_NS: Final = 1 << 62

_DECODER: Final = msgspec.json.Decoder(float_hook=Decimal)

#: Between two events, in any style.
_BETWEEN: Final = re.compile(rb"\}(?=\s*,\s*\{)")

#: So many pieces between such places are tried together: an event may hold a list of objects.
_TOGETHER: Final = 16

#: A name as Kineto writes it, also where it has quotes in it, which its versions until 2026 do not escape.
_NAME: Final = re.compile(rb'("name": ")(.*?)(",(?= "pid": ))')

#: Words that some writers have for numbers that JSON does not know.
_NO_NUMBER: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|(?<=[:\[,\s])[-+]?(?:nan|inf(?:inity)?|n/a|none|null)\b', re.IGNORECASE)
_SUSPECT: Final = re.compile(rb"[:\[,]\s*[-+]?(?:nan|inf|n/a|none)", re.IGNORECASE)

#: Characters that a JSON text may not hold as they are, but for those between its values.
_CONTROLS: Final = bytes(range(32))
_SPACES: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))


def as_event(raw: bytes, kinds: Mapping[str, type], meta: list[dict[str, Any]]) -> Any:  # noqa: ANN401
    """The event in a JSON object, its times in nanoseconds; or a word on why it is none.

    What tells the names of processes and threads goes to `meta`, as do spans; the answer is then None.
    """
    event = _DECODER.decode(raw)
    if not isinstance(event, dict):
        return "no object"
    if event.get("ph") == "M":
        meta.append(event)
        return None
    category = event.get("cat")
    if category is None and event.get("ph") == "X":
        category = _WITHOUT_CATEGORY.get(str(event.get("pid")))
    kind = kinds.get(category) if isinstance(category, str) else None
    if kind is None:
        return f"category {category}" if category is not None else "no category"
    if kind is of.Flow:
        return of.Flow()
    ts = _ns(event.get("ts"))
    if ts is None:
        return "no time"
    return _of_kind(kind, event, ts)


def in_us(event: Any) -> None:  # noqa: ANN401 - of any kind
    """Give an event's times in microseconds, as those have them that fit their types."""
    if isinstance(event, of.Flow):
        return
    event.ts /= 1000
    if isinstance(event, of.Timed):
        event.dur = of.NO_TIME if event.dur == of.MISSING else event.dur / 1000


def _of_kind(kind: Any, event: Mapping[str, Any], ts: int) -> Any:  # noqa: ANN401
    fields: dict[str, Any] = {"ts": ts, "pid": event.get("pid"), "tid": event.get("tid")}
    if kind is of.Link:
        return kind(**fields, ph=str(event.get("ph")), id=event.get("id"))
    dur = _ns(event.get("dur"))
    fields["dur"] = of.MISSING if dur is None else dur
    name = event.get("name")
    fields["name"] = name if isinstance(name, str) else "" if name is None else str(name)
    if kind in _ARGS:
        given = event.get("args")
        fields["args"] = _args(_ARGS[kind], given if isinstance(given, dict) else {})
    return kind(**fields)


def _args(kind: type[msgspec.Struct], given: Mapping[str, Any]) -> msgspec.Struct:
    values: dict[str, Any] = {}
    old = {key.lower().replace("_", " "): value for key, value in given.items()}
    for name, key, empty in zip(
        kind.__struct_fields__, kind.__struct_encode_fields__, kind.__struct_defaults__, strict=True
    ):
        value = given.get(key, old.get(key.lower()))
        if value is None:
            continue
        if isinstance(empty, msgspec.Raw):
            values[name] = msgspec.Raw(msgspec.json.encode(value, enc_hook=str))
        else:
            values[name] = int(value) if isinstance(value, Decimal) and value == value.to_integral_value() else value
    return kind(**values)


def _ns(value: object) -> int | None:
    """A time of so many microseconds in nanoseconds, exactly; None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | str):
        return None
    try:
        us = Decimal(value)
        ns = int((us * 1000).to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError, OverflowError):
        return None
    return ns if abs(ns) < _LATEST_NS else None


def repaired(text: bytes) -> tuple[bytes, int]:
    """`text` with what no JSON may hold replaced, and how many places that were.

    Control characters become spaces, bytes that are no UTF-8 become U+FFFD, and NaN, inf and N/A become null.
    """
    count = 0
    try:
        text.decode()
    except UnicodeDecodeError:
        better = text.decode("utf-8", "replace")
        count += better.count("\N{REPLACEMENT CHARACTER}")
        text = better.encode()
    if _SUSPECT.search(text):
        text, count = _numbers_repaired(text, count)
    try:
        msgspec.json.Decoder(list[msgspec.Raw]).decode(text)
    except msgspec.DecodeError:
        count += sum(map(text.count, (_CONTROLS[i : i + 1] for i in range(32) if i not in b"\t\n\r")))
        text = text.translate(_SPACES)
    return text, count


def _numbers_repaired(text: bytes, count: int) -> tuple[bytes, int]:
    found = 0

    def replaced(match: re.Match[bytes]) -> bytes:
        nonlocal found
        word = match[0]
        if word.startswith(b'"') or word == b"null":
            return word
        found += 1
        return b"null"

    return _NO_NUMBER.sub(replaced, text), count + found


def whole_objects(text: bytes) -> Iterator[tuple[bytes, bool] | int]:
    """The JSON objects that can be read of a damaged `text`, and between them how many bytes cannot be.

    With each object comes whether it had to be mended.
    """
    cuts = [match.end() for match in _BETWEEN.finditer(text)]
    parts = [text[a:b].lstrip(b", \t\r\n") for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    at = 0
    while at < len(parts):
        for many in range(1, min(_TOGETHER, len(parts) - at) + 1):
            candidate = b",".join(parts[at : at + many]).rstrip(b", \t\r\n")
            if _is_object(candidate):
                yield candidate, False
                at += many
                break
        else:
            requoted = _NAME.sub(_escaped, parts[at].rstrip(b", \t\r\n"))
            if _is_object(requoted):
                yield requoted, True
                at += 1
                continue
            yield len(parts[at])
            at += 1


def _escaped(match: re.Match[bytes]) -> bytes:
    """A name with its quotes escaped."""
    return match[1] + match[2].replace(b'"', b'\\"') + match[3]


def _is_object(text: bytes) -> bool:
    try:
        return isinstance(_DECODER.decode(text), dict)
    except (msgspec.DecodeError, UnicodeDecodeError, InvalidOperation):
        return False
