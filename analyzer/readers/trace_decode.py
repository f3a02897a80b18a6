"""Events of a Chrome trace as columns: a piece of the text in, arrays out.

The text is decoded by type, so that only what the tables hold becomes anything at all. Where a piece does not fit the
types (a category that nobody knows, text where a number was expected) its events are decoded one by one, and what
still does not fit is taken field by field. Nothing is lost in silence: :attr:`Columns.counts` tells what was left out.

Imports neither polars nor numpy: it also runs in processes of its own (:mod:`kanalyze.readers.trace_worker`).
"""

from __future__ import annotations

import re
import types
from array import array
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Union

import msgspec

from kanalyze.readers import trace_events as of
from kanalyze.readers.trace_loose import as_event, in_us, repaired, whole_objects

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: Categories of Kineto that no table holds.
_UNREAD: Final = (
    "external_correlation",
    "cuda_event",
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

#: Other spellings of a category: older versions, CUDA's driver.
_SPELLINGS: Final = {
    "Operator": of.Op,
    "cuda_driver": of.Call,
    "Runtime": of.Call,
    "Kernel": of.Kernel,
    "Memcpy": of.Copy,
    "Memset": of.Memset,
    "xpu_runtime": of.Call,
    "mtia_runtime": of.Call,
    "privateuse1_runtime": of.Call,
    "glow_runtime": of.Call,
    "xpu_driver": of.Call,
    "privateuse1_driver": of.Call,
    "gpu_user_Annotation": of.Projection,
    "forward_backward": of.Link,
    **dict.fromkeys(("async", "async_gpu", "async_cpu_to_gpu", "cpu_to_cuda"), of.Flow),
    **dict.fromkeys(_UNREAD, of.Unread),
}

_MAIN: Final = (
    of.Op,
    of.Annotation,
    of.Call,
    of.Kernel,
    of.Copy,
    of.Memset,
    of.Sync,
    of.Overhead,
    of.Python,
    of.Memory,
    of.Link,
    of.Projection,
    of.Span,
    of.Flow,
    of.Unread,
)


def _spelled(category: str, base: Any) -> Any:  # noqa: ANN401 - a class that can be subscripted
    parent = base if base is of.Flow else base[of.T]
    return types.new_class(f"{base.__name__}_{category}", (parent,), {"tag": category, "gc": False})


_SPELLED: Final = {category: _spelled(category, base) for category, base in _SPELLINGS.items()}

#: What an event is, by the class that it was decoded as.
_MEANT: Final[dict[type, type]] = {
    **{kind: kind for kind in _MAIN},
    **{_SPELLED[category]: base for category, base in _SPELLINGS.items()},
}

#: What an event is, by its category.
KIND_OF: Final[dict[str, type]] = {**{kind.__struct_config__.tag: kind for kind in _MAIN}, **_SPELLINGS}

_EMPTY_ARGS: Final = {
    of.Op: of.OpArgs(),
    of.Annotation: of.Linked(),
    of.Call: of.CallArgs(),
    of.Kernel: of.KernelArgs(),
    of.Copy: of.CopyArgs(),
    of.Memset: of.CopyArgs(),
    of.Sync: of.SyncArgs(),
    of.Python: of.PythonArgs(),
    of.Memory: of.MemoryArgs(),
}

#: Times up to this many microseconds are exact to a nanosecond as a float: its steps are then 2⁻¹⁰ µs, and less than
#: half a step from three decimals.
_EXACT_US: Final = float(1 << 43)

#: A time with decimals, and one with three.
_DECIMAL: Final = re.compile(rb'"ts"\s*:\s*-?\d+\.')
_THREE_DECIMALS: Final = re.compile(rb'("ts"\s*:\s*-?\d+)\.(\d{3})(?!\d)')

_COLLECTIVE: Final = b'"Collective name"'

#: Events that have no time of their own.
_TIMELESS: Final = frozenset(kind for kind, meant in _MEANT.items() if meant is of.Flow)

#: What stands between events.
_AROUND: Final = b", \t\r\n"

Block = dict[str, "array[Any]"]


@dataclass
class Columns:
    """What one piece of a trace holds.

    Attributes:
        blocks: For each kind of event (by the name of its class in :mod:`kanalyze.readers.trace_events`) its columns:
            numbers as int64 (:data:`~kanalyze.readers.trace_events.MISSING` where absent), times as µs in float64 or
            as ns in int64, texts as codes.
        counts: How many events there were that no table holds, and what was repaired, by a word.
        collectives: The collectives: kind of the event, its place in its block, and its fields as a JSON object.
        meta: Events that tell names of processes and threads, and spans, as dicts.
    """

    blocks: dict[str, Block] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    collectives: list[tuple[str, int, dict[str, Any]]] = field(default_factory=list)
    meta: list[dict[str, Any]] = field(default_factory=list)


class Texts(dict[Any, int]):
    """Codes of texts, in the order of their first use; absent text is code 0."""

    def __init__(self) -> None:
        """No texts but the empty one."""
        super().__init__({b"": 0, "": 0})
        self.known: list[str] = [""]

    def __missing__(self, text: Any) -> int:  # noqa: ANN401 - str, or the bytes of a JSON value
        code = len(self.known)
        self.known.append(text if isinstance(text, str) else text.decode("utf-8", "replace"))
        self[text] = code
        return code


class Decoder:
    """Turns pieces of a trace into columns; keeps the texts that it has seen."""

    def __init__(self) -> None:
        """With no texts yet."""
        self.texts = Texts()
        self._typed = _decoder(float)
        self._exact = _decoder(int)
        self._single = _single_decoder()
        self._raw = msgspec.json.Decoder(list[msgspec.Raw])

    def columns(self, piece: bytes) -> Columns:
        """The columns of the events in `piece`: whole JSON objects, with commas between them.

        Raises:
            msgspec.DecodeError: It is not that, also after what can be repaired was.
        """
        found = Columns()
        text = b"[" + piece.strip(_AROUND) + b"]"
        try:
            events: list[Any] = self._typed.decode(text)
            if not all(event.ts < _EXACT_US for event in events if type(event) not in _TIMELESS):
                events = self._of_epoch(text, found)
        except msgspec.ValidationError:
            events = self._one_by_one(self._raw.decode(text), found)
        except (msgspec.DecodeError, UnicodeDecodeError):
            text, repairs = repaired(text)
            events = self._one_by_one(self._raw.decode(text), found)
            found.counts["repaired"] += repairs
        self._fill(events, found)
        if _COLLECTIVE in piece:
            self._find_collectives(self._raw.decode(text), events, found)
        return found

    def _of_epoch(self, text: bytes, found: Columns) -> list[Any]:
        """The events of a piece whose times are too long for a float with decimals: microseconds of an epoch."""
        if _DECIMAL.search(text) is None:
            return self._typed.decode(text)
        # with three decimals everywhere, the text without its points says nanoseconds
        whole, changed = _THREE_DECIMALS.subn(rb"\1\2", text)
        if changed == text.count(b'"ts"'):
            return self._exact.decode(whole)
        return self._one_by_one(self._raw.decode(text), found)

    def salvaged(self, piece: bytes) -> Columns:
        """The columns of the events that can be read of a damaged `piece`."""
        found, objects, lost = Columns(), [], Counter[str]()
        text, lost["repaired"] = repaired(piece)
        for part in whole_objects(text):
            if isinstance(part, int):
                lost["unreadable bytes"] += part
                lost["unreadable"] += 1
            else:
                text, mended = part
                lost["repaired"] += mended
                objects.append(msgspec.Raw(text))
        events = self._one_by_one(objects, found)
        found.counts += lost
        self._fill(events, found)
        self._find_collectives(objects, events, found)
        return found

    def _one_by_one(self, objects: Sequence[msgspec.Raw], found: Columns) -> list[Any]:
        """The events of a piece of which some do not fit their types, or whose times no float can hold."""
        events: list[Any] = []
        for raw in objects:
            try:
                event = self._single.decode(raw)
            except (msgspec.DecodeError, UnicodeDecodeError):
                event = self._loose(raw, found)
                if event is not None:
                    in_us(event)
            events.append(event)
        if all(event.ts < _EXACT_US for event in events if event is not None and type(event) not in _TIMELESS):
            return events
        found.counts.clear()
        found.meta.clear()
        return [self._loose(raw, found) for raw in objects]

    def _loose(self, raw: msgspec.Raw, found: Columns) -> Any:  # noqa: ANN401 - of any kind
        event = as_event(bytes(raw), KIND_OF, found.meta)
        if isinstance(event, str):
            found.counts[event] += 1
            return None
        return event

    def _find_collectives(self, objects: Iterable[msgspec.Raw], events: Sequence[Any], found: Columns) -> None:
        """Note the fields of collectives, which few events have."""
        places: Counter[str] = Counter()
        for raw, event in zip(objects, events, strict=True):
            if event is None:
                continue
            kind = _MEANT[type(event)].__name__
            if _COLLECTIVE in bytes(raw):
                args = msgspec.json.decode(raw).get("args") or {}
                fields = {name: args[key] for name, key in of.COLLECTIVE.items() if args.get(key) is not None}
                if "collective" in fields:
                    found.collectives.append((kind, places[kind], fields))
            places[kind] += 1

    def _fill(self, events: Iterable[Any], found: Columns) -> None:
        kinds: defaultdict[type, list[Any]] = defaultdict(list)
        for event in events:
            kinds[type(event)].append(event)
        kinds.pop(type(None), None)
        merged: defaultdict[type, list[Any]] = defaultdict(list)
        for kind, some in kinds.items():
            merged[_MEANT[kind]] += some
        for kind, some in merged.items():
            if kind is of.Flow:
                found.counts["ac2g"] += len(some)
            else:
                found.blocks[kind.__name__] = self._block(kind, some)

    def _block(self, kind: type, events: Sequence[Any]) -> Block:
        """The events of one kind, column by column."""
        names = kind.__struct_fields__  # type: ignore[attr-defined]
        columns = dict(zip(names, zip(*map(msgspec.structs.astuple, events), strict=True), strict=True))
        args = columns.pop("args", None)
        if args is not None:
            empty = _EMPTY_ARGS[kind]
            each = (one or empty for one in args)
            columns |= zip(empty.__struct_fields__, zip(*map(msgspec.structs.astuple, each), strict=True), strict=True)
        return {name: self._column(name, values) for name, values in columns.items()}

    def _column(self, name: str, values: Sequence[Any]) -> array[Any]:
        if name in {"ts", "dur"}:
            return _times(values)
        if isinstance(values[0], msgspec.Raw):
            return array("I", map(self.texts.__getitem__, map(bytes, values)))
        if name in {"name", "ph"}:
            return array("I", map(self.texts.__getitem__, values))
        try:
            return array("q", values)
        except (TypeError, OverflowError):
            return array("q", map(_number, values))


def _events(times: type) -> Any:  # noqa: ANN401 - a type that is made at run time
    """Any event, its times being floats of microseconds or ints of nanoseconds."""
    kinds: list[Any] = [kind if issubclass(kind, of.Flow) else kind[times] for kind in _MEANT]  # type: ignore[index]
    return Union[tuple(kinds)]  # type: ignore[misc]  # noqa: UP007 - made at run time


def _decoder(times: type) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(list[_events(times)])  # type: ignore[misc]


def _single_decoder() -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(_events(float))


def _times(values: Sequence[Any]) -> array[Any]:
    """Times as they came: floats of microseconds, or integers of nanoseconds where each event was looked at."""
    return array("q" if isinstance(values[0], int) else "d", values)


def _number(value: object) -> int:
    """A whole number of 64 bits, also where it was written as text; missing where there is none."""
    if isinstance(value, str):
        digits = value.removeprefix("stream ")
        value = int(digits) if digits.removeprefix("-").isdecimal() else of.MISSING
    return value if isinstance(value, int) and abs(value) < -of.MISSING else of.MISSING
