"""Writes slices as a trace of Perfetto: its protocol buffers with track events, all nanoseconds kept.

Format: https://perfetto.dev/docs/reference/trace-packet-proto and https://perfetto.dev/docs/reference/synthetic-track-event.

Packets of slices and counters are made in columns: each is a row of bytes, in which a number has the width of the
largest one. Numbers that are padded so are within the format: a byte says that another follows, and that one is 0.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import polars as pl

from kanalyze.analyses.slices.slices import edges
from kanalyze.files.protobuf import number, sized

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import BinaryIO

    from numpy.typing import NDArray

    from kanalyze.analyses.slices.slices import Counter, Slices, Track

    Bytes = NDArray[np.uint8]

#: Fields of Trace, TracePacket, TrackEvent, TrackDescriptor and of what is in them.
_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CATEGORIES, _ANNOTATIONS, _TYPE, _NAME, _UUID, _VALUE, _FLOWS = 3, 4, 9, 10, 11, 30, 47
_BEGIN, _END, _COUNTER = 1, 2, 4

#: The sequence of all packets; that its interned names begin here, and that a packet needs them.
_OURS: Final = number(_SEQUENCE, 1)
_CLEARED: Final = number(_FLAGS, 1)
_NEEDS: Final = number(_FLAGS, 2)

#: The interned name of the annotation that has an event's id.
_EVENT_ID: Final = 1

#: The id of what is no event of the report; those of events are numbered from 0 on.
_NONE: Final = (1 << 40) - 1

#: Order of the children of a track: by their rank.
_BY_RANK: Final = number(11, 3)

#: Packets that are made at one time, and names in one packet.
_CHUNK: Final = 1 << 16
_NAMES: Final = 1 << 12

#: Numbers of processes and of threads that Perfetto can hold.
_MOST_PID: Final = 1 << 31
_MOST_TID: Final = 1 << 63

_UNITS: Final = {"bytes": 3}


def write(trace: Slices, file: BinaryIO) -> None:
    """Writes a trace; times before 0 are not in the format, so with such ones the first becomes 0."""
    tracks = _Tracks(trace)
    file.writelines(_packet(_OURS + sized(_TRACK, descriptor)) for descriptor in tracks.descriptors)
    names = trace.slices.get_column("name").cast(pl.String)
    known, kinds = names.unique(maintain_order=True), trace.slices.get_column("kind").cast(pl.String)
    categories = kinds.unique(maintain_order=True)
    file.writelines(_interned(known, categories))
    events = _Events.of(trace, tracks, _places(names, known), _places(kinds, categories))
    line = _line(trace, tracks)
    file.writelines(events.packets(line.slice(at, _CHUNK)) for at in range(0, line.height, _CHUNK))


def _packet(body: bytes) -> bytes:
    return sized(_PACKET, body)


def _places(values: pl.Series, known: pl.Series) -> pl.Series:
    """The number of each value among the known ones, from 1."""
    numbers = pl.int_range(1, len(known) + 1, dtype=pl.UInt64, eager=True)
    return values.replace_strict(known, numbers, return_dtype=pl.UInt64)


def _interned(names: pl.Series, categories: pl.Series) -> Iterator[bytes]:
    """Packets with the texts that others name by their numbers."""
    first = [sized(1, number(1, at) + sized(2, text)) for at, text in enumerate(categories, 1)]
    annotation = sized(3, number(1, _EVENT_ID) + sized(2, "event_id"))
    yield _packet(_OURS + _CLEARED + sized(_INTERNED, b"".join(first) + annotation))
    for at in range(0, len(names), _NAMES):
        texts = enumerate(names.slice(at, _NAMES), at + 1)
        found = b"".join(sized(2, number(1, key) + sized(2, text)) for key, text in texts)
        yield _packet(_OURS + _NEEDS + sized(_INTERNED, found))


class _Tracks:
    """Tracks as Perfetto knows them: a uuid for each, and what describes them, parents first."""

    def __init__(self, trace: Slices) -> None:
        """Describes all tracks of a trace."""
        self.descriptors: list[bytes] = []
        self._uuids: dict[object, int] = {}
        self._names = trace.processes
        ranks = {track.rank for track in trace.tracks}
        self._several = any(
            len({one.process for one in trace.tracks if one.rank == rank} - {None}) > 1 for rank in ranks
        )
        self.of_slices = [self._of_track(track, rank) for rank, track in enumerate(trace.tracks)]
        self.of_counters = [self._of_counter(counter) for counter in trace.counters]

    def _new(self, key: object, body: bytes, parent: int | None = None) -> int:
        uuid = self._uuids[key] = len(self._uuids) + 1
        above = b"" if parent is None else number(5, parent)
        self.descriptors.append(number(1, uuid) + above + body)
        return uuid

    def _process(self, process: int | None, rank: int | None) -> int:
        """The track of a process; one without a number that Perfetto can hold has a name alone.

        So have those of several ranks, which may have one number on two machines.
        """
        key = ("process", process, rank)
        if key in self._uuids:
            return self._uuids[key]
        name = self._names.get((rank, -1 if process is None else process), "process")
        if process is not None and rank is None and 0 <= process < _MOST_PID:
            return self._new(key, sized(3, number(1, process) + sized(6, name)))
        return self._new(key, sized(2, f"{_of_rank(rank)}{name} {'?' if process is None else process}"))

    def _gpu(self, device: int, rank: int | None) -> int:
        key = ("gpu", device, rank)
        return self._uuids.get(key) or self._new(key, sized(2, f"{_of_rank(rank)}GPU {device}") + _BY_RANK)

    def _of_track(self, track: Track, rank: int) -> int:
        if track.of == "thread":
            return self._thread(track)
        label = track.label
        if track.device is not None and self._several and track.process is not None:
            label = f"{label}, process {track.process}"
        rank_of = track.rank
        parent = self._process(track.process, rank_of) if track.device is None else self._gpu(track.device, rank_of)
        return self._new(track, sized(2, label) + number(12, rank + 1), parent)

    def _thread(self, track: Track) -> int:
        """The track of a thread; further lanes of it lie below the first."""
        parent = self._process(track.process, track.rank)
        if track.lane:
            return self._new(track, sized(2, track.label), self._uuids[track._replace(lane=0)])
        pid, tid = track.process, track.thread
        if pid is None or tid is None or track.rank is not None or not (0 <= pid < _MOST_PID and 0 <= tid < _MOST_TID):
            return self._new(track, sized(2, track.label), parent)
        return self._new(track, sized(4, number(1, pid) + number(2, tid) + sized(5, track.label)))

    def _of_counter(self, counter: Counter) -> int:
        where = (counter.process, counter.rank)
        parent = self._process(*where) if counter.device is None else self._gpu(counter.device, counter.rank)
        unit = number(3, _UNITS[counter.unit]) if counter.unit in _UNITS else sized(6, counter.unit)
        return self._new(("counter", len(self._uuids)), sized(2, counter.label) + sized(8, unit), parent)


def _of_rank(rank: int | None) -> str:
    """Prefix of a name where a trace is of several ranks."""
    return "" if rank is None else f"rank {rank}, "


def _line(trace: Slices, tracks: _Tracks) -> pl.DataFrame:
    """All packets in order of time: t, slice (null for counters), begins, uuid and value (null for slices)."""
    uuids = pl.Series("uuid", tracks.of_slices, dtype=pl.UInt64)
    found = edges(trace.slices)
    found = found.select("t", "slice", "begins", uuid=uuids.gather(found.get_column("track")))
    parts = [found.with_columns(value=pl.lit(None, dtype=pl.Int64))]
    for uuid, counter in zip(tracks.of_counters, trace.counters, strict=True):
        point = counter.points.select(
            t="t_ns",
            slice=pl.lit(None, dtype=pl.UInt32),
            begins=pl.lit(value=False),
            uuid=pl.lit(uuid, dtype=pl.UInt64),
            value=pl.col("value").cast(pl.Int64),
        )
        parts.append(point)
    line = pl.concat(parts).sort("t", maintain_order=True)
    first = line.item(0, "t") if line.height else 0
    return line.with_columns(pl.col("t") - first) if first < 0 else line


class _Events(NamedTuple):
    """Slices of packets as arrays, and the flows from calls to what they launched."""

    name: NDArray[np.uint64]
    category: NDArray[np.uint64]
    event: NDArray[np.uint64]
    flow: NDArray[np.uint64]
    many: dict[int, list[int]]
    widths: dict[str, int]  # bytes that the largest number of a kind takes

    @classmethod
    def of(cls, trace: Slices, tracks: _Tracks, names: pl.Series, kinds: pl.Series) -> _Events:
        """Slices of a trace as packets have them."""
        flow, many = _flows(trace.slices)
        name, category = names.to_numpy(), kinds.to_numpy()
        event = trace.slices.get_column("event_id").fill_null(_NONE).to_numpy().astype(np.uint64)
        values = [_unsigned(counter.points.get_column("value")) for counter in trace.counters]
        widths = {"t": _width(_last(trace)), "uuid": _width(len(tracks.descriptors)), "value": _widest(values)}
        widths |= {"name": _widest([name]), "category": _widest([category]), "event": _widest([event])}
        return cls(_more(name), _more(category), _more(event), _more(flow), many, widths)

    def packets(self, line: pl.DataFrame) -> bytes:
        """The packets of some rows of :func:`_line`."""
        rows = line.get_column("slice").fill_null(len(self.flow) - 1).to_numpy()
        begins, counts = line.get_column("begins").to_numpy(), line.get_column("value").is_not_null().to_numpy()
        t, uuid = line.get_column("t").to_numpy().astype(np.uint64), line.get_column("uuid").to_numpy()
        many = np.isin(rows, [*self.many]) & begins if self.many else np.zeros(len(rows), dtype=bool)
        every, begins, event = ~many, begins & ~many, self.event[rows]
        noted = begins & (event != _NONE)
        flowing, wide = noted & (self.flow[rows] > 0), self.widths
        kind = np.where(begins, _BEGIN, np.where(counts, _COUNTER, _END)).astype(np.uint8)[:, None]
        note = _tag(_ANNOTATIONS, 2) + bytes([3 + wide["event"]]) + number(1, _EVENT_ID) + _tag(4)
        told = [
            _Field(every, _tag(_TYPE), kind),
            _Field(every, _tag(_UUID), _padded(uuid, wide["uuid"])),
            _Field(begins, _tag(_NAME), _padded(self.name[rows], wide["name"])),
            _Field(begins, _tag(_CATEGORIES), _padded(self.category[rows], wide["category"])),
            _Field(flowing, _tag(_FLOWS, 1), self.flow[rows].astype("<u8").view(np.uint8).reshape(-1, 8)),
            _Field(noted, note, _padded(event, wide["event"])),
            _Field(counts, _tag(_VALUE), _padded(_unsigned(line.get_column("value")), wide["value"])),
        ]
        packet = [
            _Field(every, _tag(_TIMESTAMP), _padded(t, wide["t"])),
            _Field(begins, _OURS + _NEEDS + _tag(_EVENT, 2), _sizes(told)),
            _Field(every & ~begins, _OURS + _tag(_EVENT, 2), _sizes(told)),
            *told,
        ]
        packet.insert(0, _Field(every, _tag(_PACKET, 2), _sizes(packet)))
        data = _joined(packet)
        if not many.any():
            return data
        # those of calls that launched several operations are made one by one
        ends = [0, *np.cumsum(_sizes(packet), dtype=np.int64).tolist()]
        places = np.flatnonzero(many).tolist()
        parts = [data[: ends[places[0]]]]
        for place, after in pairwise([*places, len(rows)]):
            packet_of_many = self._of_many(int(rows[place]), int(t[place]), int(uuid[place]))
            parts += [packet_of_many, data[ends[place] : ends[after]]]
        return b"".join(parts)

    def _of_many(self, row: int, t: int, uuid: int) -> bytes:
        """The packet of a call that launched several operations."""
        flows = b"".join(_tag(_FLOWS, 1) + flow.to_bytes(8, "little") for flow in self.many[row])
        event = number(_TYPE, _BEGIN) + number(_UUID, uuid) + number(_NAME, int(self.name[row]))
        event += number(_CATEGORIES, int(self.category[row])) + flows
        event += sized(_ANNOTATIONS, number(1, _EVENT_ID) + number(4, int(self.event[row])))
        return _packet(number(_TIMESTAMP, t) + _OURS + _NEEDS + sized(_EVENT, event))


class _Field(NamedTuple):
    """A field of packets, a row each: the packets that have it, constant bytes before it, and its own bytes."""

    has: NDArray[np.bool_]
    before: bytes
    values: Bytes

    def whole(self) -> Bytes:
        """All its bytes, a row for each packet."""
        constant = np.broadcast_to(np.frombuffer(self.before, dtype=np.uint8), (len(self.values), len(self.before)))
        return np.concatenate([constant, self.values], axis=1)


def _sizes(fields: Sequence[_Field]) -> Bytes:
    """How many bytes these fields take, a row for each packet; always fewer than 128."""
    sizes = [one.has * np.uint8(len(one.before) + one.values.shape[1]) for one in fields]
    found: Bytes = np.asarray(sizes, dtype=np.uint8).sum(axis=0, dtype=np.uint8)[:, None]
    return found


def _joined(fields: Sequence[_Field]) -> bytes:
    """The packets one after another, without the fields that each does not have."""
    parts = [one.whole() for one in fields]
    kept = [np.broadcast_to(one.has[:, None], part.shape) for one, part in zip(fields, parts, strict=True)]
    return np.concatenate(parts, axis=1)[np.concatenate(kept, axis=1)].tobytes()


def _flows(slices: pl.DataFrame) -> tuple[NDArray[np.uint64], dict[int, list[int]]]:
    """The flow of each slice (0 for none), and the flows of the calls that launched several operations, by row.

    A flow goes from a call to one operation, and has the number of the operation's row, from 1 on.
    """
    found = slices.select(call="launch", row=pl.int_range(pl.len(), dtype=pl.UInt32)).drop_nulls()
    flow = np.zeros(slices.height, dtype=np.uint64)
    rows = found.get_column("row").to_numpy()
    flow[rows] = rows + 1
    by_call = found.sort("call", "row").group_by("call", maintain_order=True).agg("row")
    single = by_call.filter(pl.col("row").list.len() == 1).select("call", pl.col("row").list.first())
    flow[single.get_column("call").to_numpy()] = single.get_column("row").to_numpy() + 1
    several = by_call.filter(pl.col("row").list.len() > 1)
    return flow, {call: [row + 1 for row in own] for call, own in several.iter_rows()}


def _tag(key: int, kind: int = 0) -> bytes:
    """Tag before a field's value: a number (0), 64 bits (1), or bytes with a length (2)."""
    tag = key << 3 | kind
    return bytes([tag]) if tag < 0x80 else bytes([tag & 0x7F | 0x80, tag >> 7])  # noqa: PLR2004 - 7 bits in a byte


def _more(array: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """An array with a row after the last: points of counters, which are of no slice, have it."""
    return np.append(array, np.uint64(0))


def _last(trace: Slices) -> int:
    """The latest time of a trace, of which the first is not before 0."""
    times = [trace.slices.get_column("start"), trace.slices.get_column("end")]
    times += [counter.points.get_column("t_ns") for counter in trace.counters]
    every = pl.concat([time.rename("t") for time in times])
    if every.is_empty():
        return 0
    low, high = every.to_frame().select(low=pl.col("t").min(), high=pl.col("t").max()).row(0)
    return int(high) - min(int(low), 0)


def _unsigned(values: pl.Series) -> NDArray[np.uint64]:
    """Whole numbers as their 64 bits, as the format has negative ones."""
    return values.cast(pl.Int64).fill_null(0).to_numpy().astype(np.int64).view(np.uint64)


def _widest(arrays: Sequence[NDArray[np.uint64]]) -> int:
    """Bytes that the largest number of the arrays takes."""
    return max((_width(int(array.max())) for array in arrays if len(array)), default=1)


def _width(value: int) -> int:
    return max(-(-value.bit_length() // 7), 1)


def _padded(values: NDArray[np.uint64], width: int) -> Bytes:
    """Numbers of one width each: 7 bits in a byte, the lowest first, with a mark in all but the last."""
    found = np.empty((len(values), width), dtype=np.uint8)
    for at in range(width):
        found[:, at] = (values >> np.uint64(7 * at)).astype(np.uint8) & 0x7F | (0x80 if at < width - 1 else 0)
    return found
