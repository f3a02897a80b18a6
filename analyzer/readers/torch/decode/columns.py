"""Decodes a piece of a Chrome trace into columns (arrays).

The JSON is decoded with a typed schema, so that no objects are created for what no table holds. Where a piece does not
fit the schema (an unknown category, text in place of a number) its events are decoded one by one, and those that still
do not fit field by field. Nothing is lost silently: :attr:`Columns.counts` counts what was left out.

Imports neither polars nor numpy: it also runs in processes of its own (:func:`main`), which
:mod:`kanalyze.readers.torch.decode.processes` starts.
"""

from __future__ import annotations

import gc
import json
import os
import pickle
import re
import signal
import struct
import sys
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import IO, Any, Final, Union

import msgspec

from kanalyze.readers.torch.decode import events as of
from kanalyze.readers.torch.decode.events import ARGS, EMPTY_ARGS, MEANT
from kanalyze.readers.torch.decode.old_forms import Arrow, arrow, as_event, in_ns, number, repaired, whole_objects

#: Float times up to this many microseconds are exact to a nanosecond: their spacing is then 2⁻¹⁰ µs, and less than
#: half a step from three decimals.
EXACT_US: Final = float(1 << 43)

#: Whole microseconds up to this many are exact as a float, and fit int64 as nanoseconds.
_WHOLE_US: Final = float((1 << 62) // 1000)

#: A time with decimals, and one with three.
_DECIMAL: Final = re.compile(rb'"(?:ts|dur)"\s*:\s*-?\d+[.eE]')
_THREE_DECIMALS: Final = re.compile(rb'("ts"\s*:\s*-?\d+)\.(\d{3})(?![\deE])')

_COLLECTIVE: Final = f'"{of.COLLECTIVE["collective"]}"'.encode()

#: Counter names of list entries that are not trace events.
_NO_EVENTS: Final = frozenset({"entries", "no object", "no event", "no category", "no time"})

#: Separators before the first event of a piece, and around events.
_BEFORE: Final = re.compile(rb"[, \t\r\n]*+")
_AROUND: Final = b", \t\r\n"

Block = dict[str, "array[Any]"]


@dataclass
class Columns:
    """Columns decoded from one piece of a trace.

    Attributes:
        blocks: For each kind of event (by the name of its class in :mod:`.events`) its columns: numbers as int64
            (:data:`~.events.MISSING` where absent), times as µs in float64 or as ns in int64, texts as codes.
        counts: Counters by name: events that no table holds, repairs; ``entries`` is the length of the list.
        collectives: For each collective the kind of event, its index in that block, and its fields as a JSON object.
        arrows: Ends of arrows, of a piece whose calls or device events have no correlation ids.
        meta: Events that tell names of processes and threads, as dicts.
        widest_us: The largest absolute time among those stored as floats.
    """

    blocks: dict[str, Block] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    collectives: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    meta: list[dict[str, Any]] = field(default_factory=list)
    widest_us: float = 0.0

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


class Decoder:
    """Decodes pieces of a trace into columns; interns texts across pieces."""

    def __init__(self) -> None:
        """Start with no texts."""
        self.texts = Texts()
        self._typed = msgspec.json.Decoder(list[_events(float)])  # type: ignore[misc]
        self._exact = msgspec.json.Decoder(list[_events(int)])  # type: ignore[misc]
        self._single = msgspec.json.Decoder(_events(float))
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])

    def columns(self, piece: bytes) -> Columns | None:
        """The columns of the events in `piece`: whole JSON objects, with commas between them.

        None if it is not that, also after what can be repaired was, or is nested deeper than anything that makes sense.
        """
        try:
            # in a single copy, since pieces are long
            before = _BEFORE.match(piece)
            begin, end = before.end() if before else 0, len(piece)
            while end > begin and piece[end - 1] in _AROUND:
                end -= 1
            return self._columns(b"".join((b"[", memoryview(piece)[begin:end], b"]")))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None

    def _columns(self, text: bytes) -> Columns:
        try:
            events: list[Any] = self._typed.decode(text)
        except (msgspec.ValidationError, RecursionError):
            return self._one_by_one(self._raw.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            text, repairs = repaired(text)
            found = self._one_by_one(self._raw.decode(text))
            found.counts["repaired"] += repairs
            return found
        found = self._filled(events, text)
        return found if found.widest_us < EXACT_US else self._of_epoch(text, found)

    def _of_epoch(self, text: bytes, found: Columns) -> Columns:
        """Columns of a piece whose times exceed float precision, mostly epoch microseconds.

        `found` is the result with float times.
        """
        if found.widest_us < _WHOLE_US and _DECIMAL.search(text) is None:
            return found
        # with three decimals everywhere, the text without its points says nanoseconds
        whole, changed = _THREE_DECIMALS.subn(rb"\1\2", text)
        if changed == text.count(b'"ts"'):
            try:
                better = self._filled(self._exact.decode(whole), text)
            except (msgspec.DecodeError, OverflowError):  # a time below 1 has no digits before its point but 0
                pass
            else:
                if better.widest_us < EXACT_US:
                    return better
        return self._one_by_one(self._raw.decode(text))

    def salvaged(self, piece: bytes) -> Columns:
        """Columns of the events that can be recovered from a damaged `piece`."""
        objects: list[msgspec.Raw] = []
        text, repairs = repaired(piece)
        lost = Counter({"repaired": repairs})
        for part in whole_objects(text):
            if isinstance(part, bytes):
                objects.append(msgspec.Raw(part))
            else:
                lost += part
        found = self._one_by_one(objects)
        found.counts += lost
        return found

    def _one_by_one(self, objects: Sequence[msgspec.Raw]) -> Columns:
        """Decodes event by event: for pieces with events of unexpected types, or times that a float cannot hold."""
        found, events = Columns(), list[Any]()
        for raw in objects:
            try:
                event = self._single.decode(raw)
                fits = in_ns(event, EXACT_US) or (not _DECIMAL.search(raw) and in_ns(event, _WHOLE_US))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                fits = False
            if not fits:
                event = as_event(raw, found.meta)
                if isinstance(event, str):
                    found.counts[event] += 1
                    event = None
            events.append(event)
        return self._filled(events, b"".join(objects), objects, found)

    def _filled(
        self, events: list[Any], text: bytes, objects: Sequence[msgspec.Raw] = (), into: Columns | None = None
    ) -> Columns:
        """Columns of `events` (None for an entry that is not an event), decoded from `text` and `objects`."""
        found = into or Columns()
        found.counts["entries"] += len(events)
        merged = _by_kind(events)
        flows = merged.pop(of.Flow, ())
        if flows:
            found.counts["flow"] += len(flows)
            if not _correlated(merged):
                raws = zip(objects or self._raw.decode(text), events, strict=True)
                found.arrows += filter(None, (arrow(raw) for raw, event in raws if isinstance(event, of.Flow)))
        collective = False
        for kind, some in merged.items():
            columns = self._values(kind, some)
            told = columns.pop("collective", ())
            collective |= told.count(of.NOTHING) < len(told)
            for times in (columns[name] for name in ("ts", "dur") if name in columns):
                if isinstance(times[0], float):
                    found.widest_us = max(found.widest_us, _widest(times))
            found.blocks[kind.__name__] = {name: self._column(name, values) for name, values in columns.items()}
        if collective:
            _find_collectives(objects or self._raw.decode(text), events, found)
        return found

    def _values(self, kind: type, events: Sequence[Any]) -> dict[str, tuple[Any, ...]]:
        """Transposes events of one kind into fields, including their arguments."""
        names = kind.__struct_fields__  # type: ignore[attr-defined]
        fields = dict(zip(names, zip(*map(msgspec.structs.astuple, events), strict=True), strict=True))
        args = fields.pop("args", None)
        if args is not None:
            empty = EMPTY_ARGS[kind]
            try:
                rows = list(map(msgspec.structs.astuple, args))
            except TypeError:  # some event has no arguments
                rows = [msgspec.structs.astuple(one or empty) for one in args]
            fields |= zip(empty.__struct_fields__, zip(*rows, strict=True), strict=True)
        return fields

    def _column(self, name: str, values: Sequence[Any]) -> array[Any]:
        if name in {"ts", "dur"}:  # int nanoseconds, if events were decoded one by one
            return array("q" if isinstance(values[0], int) else "d", values)
        if name == "value":
            return array("d", values)
        if isinstance(values[0], msgspec.Raw):
            return array("I", map(self.texts.__getitem__, map(bytes, values)))
        if name in {"name", "ph"}:
            return array("I", map(self.texts.__getitem__, values))
        try:
            return array("q", values)
        except (TypeError, OverflowError):
            return array("q", map(number, values))


def _events(times: type) -> Any:  # noqa: ANN401 - a type that is made at run time
    """The union type of all events, with start times as float microseconds or int nanoseconds."""
    kinds: list[Any] = list(MEANT)
    return Union[tuple(kind if issubclass(kind, of.Flow) else kind[times] for kind in kinds)]  # noqa: UP007 - see above


#: Correlation ids that are none.
_NO_IDS: Final = (of.MISSING, None, 0, -1)


def _correlated(kinds: Mapping[type, list[Any]]) -> bool:
    """Whether there are calls or device events, all with correlation ids."""
    some = [event.args for kind in (of.Call, of.Kernel, of.Copy, of.Memset) for event in kinds.get(kind, ())]
    return bool(some) and all(args is not None and args.correlation not in _NO_IDS for args in some)


def _by_kind(events: Iterable[Any]) -> dict[type, list[Any]]:
    """Groups events by kind, without None."""
    spelled: defaultdict[type, list[Any]] = defaultdict(list)
    for event in events:
        spelled[type(event)].append(event)
    spelled.pop(type(None), None)
    kinds: defaultdict[type, list[Any]] = defaultdict(list)
    for kind, some in spelled.items():
        kinds[MEANT[kind]] += some
    return kinds


def _widest(times: Sequence[float]) -> float:
    """The largest absolute time, ignoring NaN."""
    low, high = min(times), max(times)
    if low != low or high != high:  # noqa: PLR0124 - NaN at the beginning hides all others
        known = [time for time in times if time == time] or [0.0]  # noqa: PLR0124
        low, high = min(known), max(known)
    return max(-low, high)


def _find_collectives(objects: Iterable[msgspec.Raw], events: Sequence[Any], found: Columns) -> None:
    """Collect the fields of collective operators and kernels, which few events have."""
    places: Counter[str] = Counter()
    for raw, event in zip(objects, events, strict=True):
        if event is None:
            continue
        meant = MEANT[type(event)]
        kind = meant.__name__
        if issubclass(ARGS.get(meant, msgspec.Struct), of.Linked) and _COLLECTIVE in bytes(raw):
            args = _args(bytes(raw))
            fields = {name: args[key] for name, key in of.COLLECTIVE.items() if args.get(key) is not None}
            if "collective" in fields:
                found.collectives.append((kind, places[kind], fields))
        places[kind] += 1


def _args(raw: bytes) -> dict[str, Any]:
    """All arguments of an event, as a dict."""
    try:
        args = json.loads(raw.decode("utf-8", "replace"), strict=False).get("args")
    except (ValueError, RecursionError):  # invalid JSON in what the decoder skips
        return {}
    return args if isinstance(args, dict) else {}


# Worker processes.

#: Message header: length.
LENGTH: Final = struct.Struct("<q")


def main() -> None:
    """Decode pieces on standard input, until its end, into texts and columns on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent interrupts this worker by closing its input
    gc.disable()  # garbage collection is useless: columns hold no cycles
    decoder, told = Decoder(), 0
    with suppress(BrokenPipeError):
        while (piece := receive(sys.stdin.buffer)) is not None:
            columns = decoder.columns(piece)
            for answer in (decoder.texts.known[told:], columns):
                send(sys.stdout.buffer, pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL))
            told = len(decoder.texts.known)
    os._exit(0)  # nothing to clean up at exit, and the parent waits for it


def send(target: IO[bytes], message: bytes) -> None:
    """Write one message.

    Raises:
        BrokenPipeError: Nobody reads any more.
    """
    target.write(LENGTH.pack(len(message)))
    target.write(message)
    target.flush()


def receive(source: IO[bytes]) -> bytes | None:
    """Read one message; None at end of input or if truncated."""
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    size = LENGTH.unpack(head)[0]
    message = source.read(size)
    return message if len(message) == size else None
