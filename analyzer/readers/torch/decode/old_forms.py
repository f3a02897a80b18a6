"""Fallback decoders: events of unexpected types, field by field, and repair of invalid JSON.

For old versions, for what other tools made of a trace, and for damaged files: a few microseconds for each event.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import Any, Final

import msgspec

from kanalyze.readers.torch.decode import events as of
from kanalyze.readers.torch.decode.events import ARGS, KIND_OF, STEP

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
_MEMORY: Final = "[memory]"

#: Bound on times, in nanoseconds: some 146 years on either side of the epoch.
_LATEST_NS: Final = 1 << 62

#: Bound on the digits of a number: more than any time or 64-bit integer has.
_DIGITS: Final = 20
_WHOLE: Final = re.compile(rf"(?:stream )?\s*(-?\d{{1,{_DIGITS}}}|0[xX][0-9a-fA-F]{{1,16}})\s*", re.ASCII)

#: The name line of an event as written by Kineto until 2026, with unescaped quotes in the name.
_NAME: Final = re.compile(
    rb'(\n[^\S\n]*+(?:"ph": "X", "cat": "[^"\n]*", )?"name": ")([^\n]*)'
    rb'(",(?: "pid": -?\d+, "tid": "?[^"\n]*"?,[^\S\n]*+\n|[^\S\n]*+\n\s*+"pid": -?\d))'
)

#: Words for numbers that JSON does not have (NaN, inf, N/A).
_NO_NUMBER: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?|(?<=[:\[,\s])[-+]?(?:nan|inf(?:inity)?|n/a|none)\b', re.IGNORECASE | re.DOTALL
)
_SUSPECT: Final = re.compile(rb"[:\[,]\s*[-+]?(?:nan|inf|n/a|none)", re.IGNORECASE)

#: Invalid escapes, and unpaired surrogates.
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|)', re.DOTALL)
_HALF: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\\\"
)

#: Control characters, invalid within JSON strings.
_CONTROLS: Final = bytes(range(32))
_SPACES: Final = bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS))

#: Start of an event.
_BEGIN: Final = re.compile(r'\{\s{0,99}"[^"\\]{0,99}"\s{0,99}:')

#: Most attempts to resume parsing in a damaged text; the rest is dropped.
_AGAIN: Final = 4
_AGAIN_AT_LEAST: Final = 1 << 16

#: Deepest nesting of an object, in characters scanned in vain.
_DEEP: Final = 2000

#: JSON decoder for the structure only; numbers stay text.
_SCANNER: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)

_BLANK: Final = ", \t\r\n"


class _Chars(str):
    """A str whose line lookup is disabled: the JSON decoder's errors would count lines from the start each time.

    With a plain str, 1.5 MB with 5,000 broken events take 3.0 s instead of 0.09 s, and 3 MB four times that.
    """

    __slots__ = ()

    def count(self, *_: Any) -> int:  # noqa: ANN401
        return 0

    def rfind(self, *_: Any) -> int:  # noqa: ANN401
        return 0


def _decimal(text: str) -> Decimal | None:
    try:
        return Decimal(text)
    except InvalidOperation:  # an exponent of twenty digits overflows
        return None


_DECODER: Final = msgspec.json.Decoder(float_hook=_decimal)

#: The raw fields of an object; of a repeated key the last value.
_FIELDS: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_VALUES: Final = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])


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
    told = of.CounterArgs(number(device[1]), float(values[0]))
    return of.Counter(ts=ts, dur=of.MISSING, name=str(event.get("name")), args=told)


def _category_of(event: Mapping[str, Any]) -> str | None:
    """Infers the category of an event without one."""
    if event.get("ph") == "X":
        pid = event.get("pid")
        return _WITHOUT_CATEGORY.get(pid) if isinstance(pid, str) else None
    return "cpu_instant_event" if event.get("name") == _MEMORY and event.get("ph") in ("i", "I") else None


def in_ns(event: Any, limit_us: float) -> bool:  # noqa: ANN401 - of any kind
    """Convert the event's times from float microseconds to nanoseconds; False if one exceeds the limit."""
    if isinstance(event, of.Flow):
        return True
    names = ("ts", "dur") if isinstance(event, of.Timed) else ("ts",)
    times = [getattr(event, name) for name in names]
    if any(abs(us) >= limit_us for us in times):
        return False
    for name, us in zip(names, times, strict=True):
        if us != us:  # noqa: PLR0124 - NaN: absent
            setattr(event, name, of.MISSING)
        else:
            whole = math.floor(us)
            setattr(event, name, whole * 1000 + int((us - whole) * 1000 + 0.5))
    return True


def _of_kind(kind: Any, event: Mapping[str, Any], raw: msgspec.Raw) -> Any:  # noqa: ANN401
    """Decodes an event of a known kind from `raw`; else the counter name for a missing time."""
    if kind is of.Flow:
        return of.Flow()
    ts = _ns(event.get("ts"))
    if ts is None:
        return "no time"
    fields: dict[str, Any] = {"ts": ts, "pid": _whole(event.get("pid")), "tid": _whole(event.get("tid"))}
    if issubclass(kind, of.Link):
        return kind(**fields, ph=str(event.get("ph")), id=_whole(event.get("id")))
    dur = _ns(event.get("dur"))
    fields["dur"] = of.MISSING if dur is None else dur
    name = event.get("name")
    fields["name"] = name if isinstance(name, str) else "" if name is None else str(name)
    if kind in ARGS:
        given = event.get("args")
        fields["args"] = _args(ARGS[kind], given if isinstance(given, dict) else {}, raw)
    if kind is of.Kernel and event.get("pid") == "CUDA functions":  # the thread is the device there
        fields["args"] = of.KernelArgs(device=fields["tid"])
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
    return value if isinstance(value, int) and abs(value) < -of.MISSING else of.MISSING


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


def repaired(text: bytes) -> tuple[bytes, int]:
    """Replaces what is invalid in JSON; returns the text and the number of replacements.

    Control characters become spaces; invalid UTF-8 and unpaired surrogates become U+FFFD; NaN, inf and N/A become null;
    unescaped backslashes and quotes are escaped.
    """
    count = 0
    try:
        text.decode()
    except UnicodeDecodeError:
        better = text.decode("utf-8", "replace")
        count += better.count("\N{REPLACEMENT CHARACTER}") - text.count("\N{REPLACEMENT CHARACTER}".encode())
        text = better.encode()
    # names first, while line ends delimit them; afterwards quotes delimit strings
    for mend in (_names_mended, _numbers_mended, _escapes_mended, _controls_mended):
        if _is_json(text):
            break
        text, found = mend(text)
        count += found
    return text, count


def _replaced(pattern: re.Pattern[bytes], text: bytes, by: Callable[[re.Match[bytes]], bytes]) -> tuple[bytes, int]:
    """Substitutes each match by `by`; returns the text and the number of changed matches."""
    parts: list[bytes] = []
    at = 0
    for match in pattern.finditer(text):
        better = by(match)
        if better != match[0]:
            parts += [text[at : match.start()], better]
            at = match.end()
    return b"".join([*parts, text[at:]]), len(parts) // 2


def _is_json(text: bytes) -> bool:
    try:
        _VALUES.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _numbers_mended(text: bytes) -> tuple[bytes, int]:
    if not _SUSPECT.search(text):
        return text, 0
    return _replaced(_NO_NUMBER, text, lambda match: match[0] if match[0].startswith(b'"') else b"null")


def _controls_mended(text: bytes) -> tuple[bytes, int]:
    count = sum(text.count(_CONTROLS[i : i + 1]) for i in range(32) if i not in b"\t\n\r")
    better = text.translate(_SPACES)
    return better, count or int(_is_json(better))  # a line's end or a tab, which may also stand between values


def _escapes_mended(text: bytes) -> tuple[bytes, int]:
    if text.count(b"\\") > max(1000, len(text) // 8):
        return text, 0  # not plausible as text
    text, count = _replaced(_ESCAPE, text, lambda match: b"\\\\" if match[0] == b"\\" else match[0])
    text, halves = _replaced(_HALF, text, lambda match: b"\\ufffd" if len(match[0]) == len(b"\\ud800") else match[0])
    return text, count + halves


def _names_mended(text: bytes) -> tuple[bytes, int]:
    return _replaced(
        _NAME, text, lambda match: match[1] + match[2].replace(b'\\"', b'"').replace(b'"', b'\\"') + match[3]
    )


def whole_objects(text: bytes) -> Iterator[bytes | Counter[str]]:
    """Recovers events from damaged `text`; yields events, and counters of what was lost between them."""
    chars = _Chars(text.decode("utf-8", "replace"))
    at, behind, budget = 0, 0, _AGAIN * len(chars) + _AGAIN_AT_LEAST
    while (found := _BEGIN.search(chars, at)) is not None:
        begin = found.start()
        try:
            value, end = _SCANNER.raw_decode(chars, begin)
        except json.JSONDecodeError as error:
            # an unterminated string consumed the rest
            stop = len(chars) if error.msg.startswith("Unterminated") else error.pos
        except RecursionError:
            stop = begin + _DEEP
        else:
            if "ph" in value or "cat" in value:
                yield from _lost(chars[behind:begin])
                yield chars[begin:end].encode()
                at = behind = end
                continue
            stop = end
        budget -= stop - begin
        at = begin + 1 if budget > 0 else max(begin + 1, min(stop, begin + _DEEP))
    yield from _lost(chars[behind:])


def _lost(chars: str) -> Iterator[Counter[str]]:
    """Counts what is lost between two recovered events."""
    rest = chars.strip(_BLANK)
    if rest:
        events = max(1, rest.count('"ph"'))
        yield Counter({"entries": events, "unreadable": events, "unreadable bytes": len(rest.encode())})
