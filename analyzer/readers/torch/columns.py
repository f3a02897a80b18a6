"""Decodes a piece of a Chrome trace into columns (arrays).

The JSON is decoded with one schema for all events, so that no objects are created for what no table holds. A piece
with times that a float does not hold is decoded again with times as text, and one that is no JSON event by event.
Nothing is lost silently: :attr:`Columns.counts` counts what was left out.

Imports neither polars nor numpy: it also runs in processes of its own (:func:`main`), which
:mod:`kanalyze.readers.torch.pieces` starts.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import signal
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from types import GenericAlias
from typing import IO, Any, Final

import msgspec
from msgspec.structs import astuple

from kanalyze.readers.torch import events as of

#: Float times up to this many microseconds are exact to a nanosecond: their spacing is then 2⁻¹⁰ µs, and less than
#: half a step from three decimals.
EXACT_US: Final = float(1 << 43)
#: Whole microseconds up to this many are exact as a float, and fit int64 as nanoseconds.
_WHOLE_US: Final = float((1 << 62) // 1000)

#: Times with three decimals, as Kineto writes them.
_THREE_DECIMALS: Final = re.compile(rb"-?\d{1,15}\.\d{3}(?:,-?\d{1,15}\.\d{3})*")

#: Counter names of list entries that are not trace events.
_NO_EVENTS: Final = frozenset({"entries", "no object", "no event", "no category", "no time"})

Block = dict[str, "array[Any]"]
#: Phase, id, process, thread and time in ns of one end of an arrow.
Arrow = tuple[str, int, int, int, int | None]


@dataclass
class Columns:
    """Columns decoded from one piece of a trace."""

    #: for each kind of event (:data:`.events.KINDS`) its columns: numbers as int64 (:data:`~.events.MISSING` where
    #: absent), times as µs in float64 or as ns in int64, texts as codes
    blocks: dict[str, Block] = field(default_factory=dict)
    #: counters by name: events that no table holds, repairs; ``entries`` is the length of the list
    counts: Counter[str] = field(default_factory=Counter)
    #: for each collective the kind of event, its index in that block, and its fields
    collectives: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    #: ends of arrows, of a piece whose calls or device events have no correlation ids
    arrows: list[Arrow] = field(default_factory=list)
    #: names of processes and threads: process id, thread id or None, name
    names: list[tuple[int, int | None, str]] = field(default_factory=list)

    @property
    def hollow(self) -> bool:
        """Whether no entry of the piece was an event, as if it lay outside of the event list."""
        return not self.blocks and _NO_EVENTS.issuperset(self.counts)


class Texts(dict[Any, int]):
    """String interning: codes in order of first use; code 0 is absent text."""

    def __init__(self) -> None:
        """Start with code 0, absent text."""
        super().__init__({b"": 0, "": 0})
        self.known: list[str] = [""]

    def __missing__(self, text: Any) -> int:  # noqa: ANN401 - str, or the bytes of a JSON value
        """Assign the next code to a new text."""
        code = len(self.known)
        self.known.append(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        self[text] = code
        return code


class _InexactError(Exception):
    """Times that a float does not hold, or that are no numbers."""


class Decoder:
    """Decodes pieces of a trace into columns; interns texts across pieces."""

    def __init__(self) -> None:
        """Start with no texts."""
        self.texts = Texts()
        self._wide = False
        self._numbers, self._texts = (
            msgspec.json.Decoder(GenericAlias(list, (reduce(or_, types),))) for types in (of.OF_NUMBERS, of.OF_TEXTS)
        )
        self._any, self._single = msgspec.json.Decoder(GenericAlias(list, (of.ENTRY,))), msgspec.json.Decoder(of.ENTRY)
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])

    def columns(self, piece: bytes) -> Columns | None:
        """The columns of the events in `piece`: whole JSON objects, with commas between them.

        None if it is not that, also after what can be repaired was, or is nested deeper than anything that makes sense.
        """
        text = b"".join((b"[", piece.strip(b", \t\r\n"), b"]"))
        try:
            if not self._wide:
                with suppress(_InexactError):
                    return self._filled(self._numbers.decode(text), partial(self._any.decode, text))
                self._wide = True  # as later ones will be
            return self._filled(self._texts.decode(text), partial(self._any.decode, text))
        except (_InexactError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            text, repairs = repaired(text)
        counts = Counter({"repaired": repairs} if repairs else {})
        try:
            return self._of_any(self._any.decode(text), counts)
        except (msgspec.DecodeError, RecursionError):  # one of the events is to blame
            with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                return self._one_by_one(self._raw.decode(text), counts)
            return None

    def salvaged(self, piece: bytes) -> Columns:
        """Columns of the events that can be recovered from a damaged `piece`."""
        objects: list[bytes] = []
        text, repairs = repaired(piece)
        lost = Counter({"repaired": repairs} if repairs else {})
        for part in whole_objects(text):
            if isinstance(part, bytes):
                objects.append(part)
            else:
                lost += part
        return self._one_by_one(objects, lost)

    def _one_by_one(self, objects: Sequence[bytes | msgspec.Raw], counts: Counter[str]) -> Columns:
        """Decodes entry by entry, where one of them cannot be read."""
        entries = list[Any]()
        for raw in objects:
            try:
                entries.append(self._single.decode(raw))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                counts.update(("unreadable", "entries"))
        return self._of_any(entries, counts)

    def _of_any(self, entries: Sequence[Any], counts: Counter[str]) -> Columns:
        """Columns of entries of which some may be no event, or of a category of their own."""
        columns = Columns(counts=counts)
        return self._filled([_as_kind(entry, columns) for entry in entries], lambda: entries, columns)

    def _filled(
        self, events: Sequence[Any], entries: Callable[[], Sequence[Any]], into: Columns | None = None
    ) -> Columns:
        """Columns of `events` (None for an entry that is none); `entries` gives the same with all arguments.

        Raises _InexactError for times to be decoded as text.
        """
        filled = into or Columns()
        filled.counts["entries"] += len(events)
        kinds = _by_kind(events)
        flows = kinds.pop(of.FLOW, [])
        if edges := [one for one in flows if type(one.id) is int and one.id >= of.EDGES]:
            kinds["Edge"] += edges
            flows = [one for one in flows if type(one.id) is not int or one.id < of.EDGES]
        collective = False
        for kind, some in kinds.items():
            columns = _values(kind, some)
            marks = columns.pop(of.MARKER, ())
            collective |= marks.count(of.MISSING) < len(marks)
            filled.blocks[kind] = {name: self._column(name, values) for name, values in columns.items()}
        if collective:
            filled.collectives += _collectives(entries(), events)
        if flows:
            filled.counts["flow"] += len(flows)
            linked = ("Call", "Kernel", "Copy", "Memset")
            ids = [filled.blocks[kind]["correlation"] for kind in linked if kind in filled.blocks]
            if not ids or any(min(some) <= 0 for some in ids):
                filled.arrows += (
                    (str(one.ph), of.number(one.id), of.number(one.pid), of.number(one.tid), of.in_ns(one.ts))
                    for one in flows
                )
        return filled

    def _column(self, name: str, values: Sequence[Any]) -> array[Any]:
        if name in {"ts", "dur"}:
            return _nanoseconds(name, values) if isinstance(values[0], msgspec.Raw) else _microseconds(values)
        if name in of.KEPT:
            return array("I", map(self.texts.__getitem__, map(bytes, values)))
        if name in {"name", "ph"}:
            try:
                return array("I", map(self.texts.__getitem__, values))
            except (TypeError, AttributeError):  # no text
                return array("I", [self.texts["" if one is None else str(one)] for one in values])
        try:
            return array("d" if name == "value" else "q", values)
        except (TypeError, OverflowError):
            return array("q", map(of.number, values))


def _by_kind(events: Iterable[Any]) -> defaultdict[str, list[Any]]:
    """Groups events by kind, without None."""
    types: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        types[type(event)].append(event)
    types.pop(type(None), None)
    kinds: defaultdict[str, list[Any]] = defaultdict(list)
    for one, some in types.items():
        kinds[of.MEANT[one]] += some
    return kinds


def _values(kind: str, events: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """The fields of events of one kind, each as a sequence, those of their arguments among them."""
    names = type(events[0]).__struct_fields__
    fields = dict(zip(names, zip(*map(astuple, events), strict=True), strict=True))
    args = fields.pop("args", None)
    if args is not None:
        empty = of.NO_ARGS[kind]
        try:
            rows = [*map(astuple, args)]
        except TypeError:  # some event has no arguments
            rows = [astuple(one or empty) for one in args]
        fields |= zip(empty.__struct_fields__, zip(*rows, strict=True), strict=True)
    return fields


def _nanoseconds(name: str, texts: Sequence[msgspec.Raw]) -> array[int]:
    """The times that texts tell in µs; raises _InexactError for an event without a start."""
    text = b",".join(map(bytes, texts))
    if _THREE_DECIMALS.fullmatch(text):
        return array("q", map(int, text.replace(b".", b"").split(b",")))
    times = array("q", [of.MISSING if ns is None else ns for ns in map(of.in_ns, texts)])
    if name == "ts" and of.MISSING in times:
        raise _InexactError
    return times


def _microseconds(values: Sequence[Any]) -> array[float]:
    """Times as floats; raises _InexactError where these would not hold them."""
    try:
        times = array("d", values)
    except (TypeError, OverflowError):
        raise _InexactError from None
    known = times if times == times else [time for time in times if time == time]  # noqa: PLR0124 - without NaN
    widest = max(map(abs, (min(known, default=0.0), max(known, default=0.0))))
    if widest < EXACT_US or (widest < _WHOLE_US and {*map(type, values)} == {int}):
        return times
    raise _InexactError


#: The process of a GPU's counters.
_COUNTERS: Final = re.compile(r"GPU (\d{1,9}) Counters")
#: Category by process name, in traces of the first profilers, which write no categories.
_WITHOUT_CATEGORY: Final = {"CPU functions": "cpu_op", "CUDA functions": "kernel"}


def _as_kind(entry: Any, columns: Columns) -> Any:  # noqa: ANN401 - types that are made at run time
    """An entry of the list as an event of its kind; None for what is none, which is counted in `columns`."""
    if type(entry) is not of.AnyEvent:
        columns.counts["no object"] += 1
        return None
    kind = of.KIND_OF.get(entry.cat) if isinstance(entry.cat, str) else None
    kind = kind or _odd_kind(entry, columns)
    if kind is not None and kind != of.FLOW and of.in_ns(entry.ts) is None:
        columns.counts["no time"] += 1
        kind = None
    if kind is None:
        return None
    event_type = of.TYPE_OF[kind]
    fields = {name: getattr(entry, name) for name in event_type.__struct_fields__}
    if kind in of.ARGS:
        args = entry.args if type(entry.args) is of.AnyArgs else of.NO_ARGS_OF_ANY
        keys = of.ARGS[kind].__struct_encode_fields__
        fields["args"] = of.ARGS[kind](*(getattr(args, of.attribute(key)) for key in keys))
    return event_type(**fields)


def _odd_kind(event: Any, columns: Columns) -> str | None:  # noqa: ANN401 - the type is made at run time
    """The kind of an event of another category, which is made like others; names and what is none are noted."""
    args = event.args if type(event.args) is of.AnyArgs else of.NO_ARGS_OF_ANY
    if event.ph == "M":
        columns.counts["name"] += 1
        pid, tid = of.number(event.pid), of.number(event.tid)
        whole = event.name == "process_name"
        name = None
        with suppress(msgspec.DecodeError):
            name = msgspec.json.decode(args.name)
        if (
            isinstance(name, str)
            and pid != of.MISSING
            and (whole or (event.name == "thread_name" and tid != of.MISSING))
        ):
            columns.names.append((pid, None if whole else tid, name))
        return None
    if isinstance(event.cat, str):
        return _old_kind(event, args, columns.counts)
    if event.ph == "X" and isinstance(event.pid, str) and (category := _WITHOUT_CATEGORY.get(event.pid)):
        kind = of.KIND_OF[category]
        if kind == "Kernel":  # the thread is the device there
            event.args = of.AnyArgs(device=event.tid)
        return kind
    if event.ph in ("i", "I"):
        if event.name == "[memory]":  # torch 1.9 and 1.10 write no category for allocations
            return "Memory"
        columns.counts["mark"] += 1
    elif event.ph == "C" and (device := _COUNTERS.fullmatch(str(event.pid))) and type(args.nameless) in (int, float):
        event.args = of.AnyArgs(device=int(device[1]), nameless=args.nameless)
        return "Counter"
    else:
        columns.counts["no category" if isinstance(event.ph, str) else "no event"] += 1
    return None


def _old_kind(event: Any, args: Any, counts: Counter[str]) -> str | None:  # noqa: ANN401 - as above
    """The kind of an event of torch 1.8 to 1.10, with its arguments as called later; others are counted."""
    kind = of.OLD.get(event.cat)
    if kind is None:
        unknown = f"category {event.cat}" if bytes(event.ts) else "no time"
        counts["flow" if event.ph in ("s", "t", "f") else unknown] += 1
        return None
    for key, old in of.OLD_KEYS.items():
        if getattr(args, of.attribute(key)) == getattr(of.NO_ARGS_OF_ANY, of.attribute(key)):
            setattr(args, of.attribute(key), getattr(args, of.attribute(old)))
    if kind != "Op" or not str(event.name).startswith(of.STEP):
        return kind
    event.args = of.AnyArgs(External_id=args.External_id)
    return "Annotation"


def _collectives(entries: Sequence[Any], events: Sequence[Any]) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """The fields of collective operators and kernels, which few events have."""
    places: Counter[str] = Counter()
    for entry, event in zip(entries, events, strict=True):
        if event is not None:
            kind = of.MEANT[type(event)]
            if of.MARKER in of.ARGS.get(kind, of.AnyEvent).__struct_fields__ and type(entry.args) is of.AnyArgs:
                fields = {name: getattr(entry.args, of.attribute(key)) for name, key in of.COLLECTIVE.items()}
                fields = {name: value for name, value in fields.items() if value is not None and value != of.MISSING}
                if of.MARKER in fields:
                    yield kind, places[kind], fields
            places[kind] += 1


# Repair of invalid JSON.

#: The name line of an event as written by Kineto until 2026, with unescaped quotes in the name.
_NAME: Final = re.compile(
    rb'(\n[^\S\n]*+(?:"ph": "X", "cat": "[^"\n]*", )?"name": ")([^\n]*)'
    rb'(",(?: "pid": -?\d+, "tid": "?[^"\n]*"?,[^\S\n]*+\n|[^\S\n]*+\n\s*+"pid": -?\d))'
)

#: Words for numbers that JSON does not have (NaN, inf, N/A).
_NO_NUMBER: Final = re.compile(
    rb'"(?:[^"\\]++|\\.)*+"?|(?<=[:\[,\s])[-+]?(?:nan|inf(?:inity)?|n/a|none)\b', re.IGNORECASE | re.DOTALL
)

#: Invalid escapes, and unpaired surrogates.
_ESCAPE: Final = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}|)', re.DOTALL)
_HALF: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}|\\\\"
)

#: Control characters, invalid within JSON strings.
_CONTROLS: Final = bytes(range(32))
#: Start of an event.
_BEGIN: Final = re.compile(r'\{\s{0,99}"[^"\\]{0,99}"\s{0,99}:')
#: Most attempts to resume parsing in a damaged text; the rest is dropped.
_AGAIN, _AGAIN_AT_LEAST = 4, 1 << 16
#: Deepest nesting of an object, in characters scanned in vain.
_DEEP: Final = 2000
#: JSON decoder for the structure only; numbers stay text.
_SCANNER: Final = json.JSONDecoder(strict=False, parse_int=str, parse_float=str)


class _Chars(str):
    """A str whose lines no error of the JSON decoder counts: 5,000 errors take 0.09 s instead of 3.0."""

    __slots__ = ()

    def count(self, *_: Any) -> int:  # noqa: ANN401
        return 0

    def rfind(self, *_: Any) -> int:  # noqa: ANN401
        return 0


_VALUES: Final = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])


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
    for mend in (
        partial(_replaced, _NAME, lambda match: match[1] + re.sub(rb'\\?"', rb'\\"', match[2]) + match[3]),
        partial(_replaced, _NO_NUMBER, lambda match: match[0] if match[0].startswith(b'"') else b"null"),
        _escapes_mended,
        _controls_mended,
    ):
        if _is_json(text):
            break
        text, replacements = mend(text)
        count += replacements
    return text, count


def _replaced(pattern: re.Pattern[bytes], by: Callable[[re.Match[bytes]], bytes], text: bytes) -> tuple[bytes, int]:
    """Substitutes each match by `by`; returns the text and the number of changed matches."""
    return pattern.sub(by, text), sum(by(match) != match[0] for match in pattern.finditer(text))


def _is_json(text: bytes) -> bool:
    with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        _VALUES.decode(text)
        return True
    return False


def _controls_mended(text: bytes) -> tuple[bytes, int]:
    count = sum(text.count(_CONTROLS[i : i + 1]) for i in range(32) if i not in b"\t\n\r")
    better = text.translate(bytes.maketrans(_CONTROLS, b" " * len(_CONTROLS)))
    return better, count or int(_is_json(better))  # a line's end or a tab, which may also stand between values


def _escapes_mended(text: bytes) -> tuple[bytes, int]:
    if text.count(b"\\") > max(1000, len(text) // 8):
        return text, 0  # not plausible as text
    text, count = _replaced(_ESCAPE, lambda match: b"\\\\" if match[0] == b"\\" else match[0], text)
    text, halves = _replaced(_HALF, lambda match: b"\\ufffd" if len(match[0]) == len(b"\\ud800") else match[0], text)
    return text, count + halves


def whole_objects(text: bytes) -> Iterator[bytes | Counter[str]]:
    """Recovers events from damaged `text`; yields events, and counters of what was lost between them."""
    chars = _Chars(text.decode("utf-8", "replace"))
    at, behind, budget = 0, 0, _AGAIN * len(chars) + _AGAIN_AT_LEAST
    while (match := _BEGIN.search(chars, at)) is not None:
        begin = match.start()
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
    rest = chars.strip(", \t\r\n")
    if rest:
        events = max(1, rest.count('"ph"'))
        yield Counter({"entries": events, "unreadable": events, "unreadable bytes": len(rest.encode())})


# Worker processes.


def main() -> None:
    """Decode pieces on standard input, until its end, into new texts and pickled columns on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent interrupts this worker by closing its input
    gc.disable()  # garbage collection is useless: columns hold no cycles
    decoder, sent_count = Decoder(), 0
    with suppress(BrokenPipeError, EOFError, pickle.UnpicklingError):
        while True:
            columns = decoder.columns(pickle.load(sys.stdin.buffer))  # noqa: S301 - the parent wrote it
            texts = decoder.texts.known[sent_count:]
            sent_count += len(texts)
            send(sys.stdout.buffer, (texts, pickle.dumps(columns, protocol=pickle.HIGHEST_PROTOCOL)))
    os._exit(0)  # nothing to clean up at exit, and the parent waits for it


def send(target: IO[bytes], message: object) -> None:
    """Write one message, pickled; BrokenPipeError if nobody reads any more."""
    pickle.dump(message, target, protocol=pickle.HIGHEST_PROTOCOL)
    target.flush()
