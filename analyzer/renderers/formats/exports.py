"""Writes files of other programs: slices for speedscope and Perfetto, tables as Parquet, Arrow and CSV.

A trace of Perfetto is protocol buffers with track events.

Format: https://perfetto.dev/docs/reference/trace-packet-proto and https://perfetto.dev/docs/reference/synthetic-track-event.

Packets of slices and counters are made in columns of bytes, in which a number has the width of the largest one. Numbers
that are padded so are within the format: a byte says that another follows, and that one is 0.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import polars as pl

from kanalyze.analyses.timeline._slices import Counter, Slices, Track, edges
from kanalyze.files import number, sized
from kanalyze.schema import Table, unit_of

#: Fields of Trace, TracePacket, TrackEvent, TrackDescriptor and of what is in them.
_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _EVENT, _INTERNED, _FLAGS, _TRACK = 8, 10, 11, 12, 13, 60
_CATEGORIES, _ANNOTATIONS, _TYPE, _NAME, _UUID, _VALUE = 3, 4, 9, 10, 11, 30
_BEGIN, _END, _COUNTER = 1, 2, 4

#: The sequence of all packets; that a packet needs its interned names.
_OURS, _NEEDS = number(_SEQUENCE, 1), number(_FLAGS, 2)

#: The interned name of the annotation that has an event's id.
_EVENT_ID: Final = 1

#: Names in one packet; numbers of processes that Perfetto can hold, of threads it can all.
_NAMES, _MOST_PID = 1 << 12, 1 << 31


def write_perfetto(trace: Slices, file: BinaryIO) -> None:
    """Writes a trace; times before 0 are not in the format, so with such ones the first becomes 0."""
    tracks = _Tracks(trace)
    file.writelines(sized(_PACKET, _OURS + sized(_TRACK, descriptor)) for descriptor in tracks.descriptors)
    # texts that others name by their numbers, from 1
    (distinct_names, names), (categories, kinds) = (_numbered(trace, name, 1) for name in ("name", "kind"))
    first = [sized(1, number(1, at) + sized(2, text)) for at, text in enumerate(categories, 1)]
    annotation = sized(3, number(1, _EVENT_ID) + sized(2, "event_id"))
    file.write(sized(_PACKET, _OURS + number(_FLAGS, 1) + sized(_INTERNED, b"".join(first) + annotation)))
    for at in range(0, len(distinct_names), _NAMES):
        texts = enumerate(distinct_names.slice(at, _NAMES), at + 1)
        interned = b"".join(sized(2, number(1, key) + sized(2, text)) for key, text in texts)
        file.write(sized(_PACKET, _OURS + _NEEDS + sized(_INTERNED, interned)))
    file.writelines(_packets(trace, names, kinds, _line(trace, tracks)))


def _numbered(trace: Slices, column: str, first: int) -> tuple[pl.Series, pl.Series]:
    """The different texts of slices, and the number of that of each slice, from `first` on."""
    texts = trace.slices.get_column(column).cast(pl.String)
    different = texts.unique(maintain_order=True)
    numbers = pl.int_range(first, first + len(different), dtype=pl.UInt32, eager=True)
    return different, texts.replace_strict(different, numbers, return_dtype=pl.UInt32)


class _Tracks:
    """Tracks as Perfetto knows them: a uuid for each, and what describes them, parents first."""

    def __init__(self, trace: Slices) -> None:
        """Describes all tracks of a trace."""
        self.descriptors: list[bytes] = []
        self._uuids: dict[object, int] = {}
        self._names = trace.processes
        processes = {(track.rank, track.process) for track in trace.tracks if track.process is not None}
        self._several = len(processes) > len({rank for rank, _ in processes})
        self.of_slices = [self._of_track(track, rank) for rank, track in enumerate(trace.tracks)]
        self.of_counters = [self._of_counter(counter) for counter in trace.counters]

    def _new(self, key: object, body: bytes, parent: int | None = None) -> int:
        """The uuid of a track, which is described when it is first asked for."""
        if key not in self._uuids:
            self._uuids[key] = len(self._uuids) + 1
            above = b"" if parent is None else number(5, parent)
            self.descriptors.append(number(1, self._uuids[key]) + above + body)
        return self._uuids[key]

    def _process(self, process: int | None, rank: int | None) -> int:
        """The track of a process; one without a number for Perfetto, or of several ranks, has a name alone."""
        key = ("process", process, rank)
        name = self._names.get((rank, -1 if process is None else process), "process")
        if process is not None and rank is None and 0 <= process < _MOST_PID:
            return self._new(key, sized(3, number(1, process) + sized(6, name)))
        return self._new(key, sized(2, f"{_of_rank(rank)}{name} {'?' if process is None else process}"))

    def _parent(self, device: int | None, process: int | None, rank: int | None) -> int:
        if device is None:
            return self._process(process, rank)
        # the children of a track are ordered by their rank
        return self._new(("gpu", device, rank), sized(2, f"{_of_rank(rank)}GPU {device}") + number(11, 3))

    def _of_track(self, track: Track, rank: int) -> int:
        """The track of slices; further lanes of a thread lie below the first."""
        if track.of != "thread":
            label = track.label
            if track.device is not None and self._several and track.process is not None:
                label = f"{label}, process {track.process}"
            parent = self._parent(track.device, track.process, track.rank)
            return self._new(track, sized(2, label) + number(12, rank + 1), parent)
        parent, pid, tid = self._process(track.process, track.rank), track.process, track.thread
        if track.lane:
            return self._new(track, sized(2, track.label), self._uuids[track._replace(lane=0)])
        if pid is None or tid is None or track.rank is not None or not (0 <= pid < _MOST_PID and tid >= 0):
            return self._new(track, sized(2, track.label), parent)
        return self._new(track, sized(4, number(1, pid) + number(2, tid) + sized(5, track.label)))

    def _of_counter(self, counter: Counter) -> int:
        parent = self._parent(counter.device, counter.process, counter.rank)
        unit = number(3, 3) if counter.unit == "bytes" else sized(6, counter.unit)  # 3 is Perfetto's unit of bytes
        return self._new(("counter", len(self._uuids)), sized(2, counter.label) + sized(8, unit), parent)


def _of_rank(rank: int | None) -> str:
    """Prefix of a name where a trace is of several ranks."""
    return "" if rank is None else f"rank {rank}, "


def _line(trace: Slices, tracks: _Tracks) -> pl.DataFrame:
    """All packets in order of time: t, slice (null where none begins), uuid and value (null for slices)."""
    uuids = pl.Series("uuid", tracks.of_slices, dtype=pl.UInt64)
    slice_edges = edges(trace.slices)
    begun = pl.when("begins").then("slice").alias("slice")
    sliced = slice_edges.select("t", begun, uuid=uuids.gather(slice_edges.get_column("track")))
    counted = (
        one.points.select(t="t_ns", uuid=pl.lit(uuid, dtype=pl.UInt64), value=pl.col("value").cast(pl.Int64))
        for uuid, one in zip(tracks.of_counters, trace.counters, strict=True)
    )
    no_value = pl.DataFrame(schema={"value": pl.Int64})
    line = pl.concat([sliced, *counted, no_value], how="diagonal").sort("t", maintain_order=True)
    first = line.item(0, "t") if line.height else 0
    return line.with_columns(pl.col("t") - first) if first < 0 else line


def _packets(trace: Slices, names: pl.Series, kinds: pl.Series, line: pl.DataFrame) -> Iterator[bytes]:
    """The packets of the rows of :func:`_line`; a slice has the numbers of its name and of its kind.

    Flows go from calls to what they launched: each has the row of an operation as number, from 1 on.
    """
    calls = trace.slices.select(slice="launch", flow=pl.int_range(pl.len(), dtype=pl.UInt64) + 1).drop_nulls()
    operations = calls.with_columns(slice=(pl.col("flow") - 1).cast(pl.UInt32))
    launched = pl.concat([calls, operations]).sort("slice", "flow")
    fixed = pl.Series(launched.get_column("flow").to_numpy().astype("<u8").view("V8").tolist(), dtype=pl.Binary)
    # those of a slice as one, which polars does for texts alone
    # behind the tag of field 47, which has 64 bits
    flow = (pl.lit(b"\xf9\x02") + fixed).bin.encode("hex").alias("flow")
    by_slice = launched.with_columns(flow).group_by("slice", maintain_order=True).agg(pl.col("flow").str.join(""))
    at = pl.DataFrame({"slice": pl.int_range(len(names), dtype=pl.UInt32, eager=True)})
    flows = at.join(by_slice, on="slice", how="left", maintain_order="left").get_column("flow").str.decode("hex")
    ids = _numbers(4, trace.slices.get_column("event_id"), number(1, _EVENT_ID) + number(4, 0)[:-1])
    note = _sized(_ANNOTATIONS, ids)
    begin = _numbers(_NAME, names) + _numbers(_CATEGORIES, kinds) + flows.fill_null(b"") + note.fill_null(b"")
    begins, counts = (pl.col(name).is_not_null() for name in ("slice", "value"))
    kind = {what: pl.lit(number(_TYPE, what)) for what in (_BEGIN, _COUNTER, _END)}
    types = pl.when(begins).then(kind[_BEGIN]).when(counts).then(kind[_COUNTER]).otherwise(kind[_END])
    heads = pl.when(begins).then(pl.lit(_OURS + _NEEDS)).otherwise(pl.lit(_OURS))
    for part in line.iter_slices(1 << 16):
        of_type, head = part.select(types, head=heads).get_columns()
        t, slice_, uuid, value = part.select("t", "slice", "uuid", "value").get_columns()
        ours, values = begin.gather(slice_).fill_null(b""), _numbers(_VALUE, value).fill_null(b"")
        event = of_type + _numbers(_UUID, uuid) + ours + values
        packet = _numbers(_TIMESTAMP, t) + head + _sized(_EVENT, event)
        yield b"".join(_sized(_PACKET, packet).to_list())


def _sized(key: int, messages: pl.Series) -> pl.Series:
    """The field with each of these messages; null for null."""
    return _numbers(key, messages.bin.size(), sized(key, b"")[:-1]) + messages


def _numbers(key: int, values: pl.Series, before: bytes | None = None) -> pl.Series:
    """The field with each number, or what is `before` it instead of the field's tag; null for null.

    All have the width of the largest: 7 bits in a byte, the lowest first, with a mark in all but the last.
    """
    numbers = values.cast(pl.Int64).fill_null(0).to_numpy().view(np.uint64)
    width = max(-(-int(numbers.max(initial=0)).bit_length() // 7), 1)
    parts = [(numbers >> np.uint64(7 * at)).astype(np.uint8) & 0x7F | 0x80 for at in range(width)]
    parts[-1] &= 0x7F
    tag = [np.full(len(numbers), byte, dtype=np.uint8) for byte in before or number(key, 0)[:-1]]
    rows = np.stack([*tag, *parts], axis=1)
    fields = pl.Series(rows.view(f"V{rows.shape[1]}").ravel().tolist(), dtype=pl.Binary)
    return fields.zip_with(values.is_not_null(), pl.Series([None], dtype=pl.Binary))


# Speedscope.


def write_speedscope(trace: Slices, file: BinaryIO, name: str) -> None:
    """Writes a trace, which speedscope calls `name`: a profile for each track, in which calls open and close.

    Format: https://www.speedscope.app/file-format-schema.json. Times are whole nanoseconds from the first slice on,
    since programs in JavaScript know no larger whole numbers than 2**53.
    """
    frames, numbers = _numbered(trace, "name", 0)
    first = trace.slices.get_column("start").min() if trace.slices.height else 0
    line = edges(trace.slices).with_columns(pl.col("t") - first)
    line = line.with_columns(frame=numbers.gather(line.get_column("slice")))
    head = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": "kanalyze",
        "name": name,
        "activeProfileIndex": 0,
        "shared": {"frames": [{"name": frame} for frame in frames]},
    }
    file.write(json.dumps(head).removesuffix("}").encode() + b', "profiles": [')
    busiest = line.group_by("track").len().sort("len", "track", descending=[True, False]).get_column("track")
    for at, number_of_track in enumerate(busiest):
        track = trace.tracks[number_of_track]
        title = [track.label, *([] if track.device is None else [f"GPU {track.device}"])]
        if track.process is not None:
            title.append(f"{trace.processes.get((track.rank, track.process), 'process')} {track.process}")
        title += [] if track.rank is None else [f"rank {track.rank}"]
        file.write(b",\n" if at else b"\n")
        _write_profile(file, ", ".join(title), line.filter(pl.col("track") == number_of_track))
    file.write(b"\n]}\n")


def _write_profile(file: BinaryIO, title: str, line: pl.DataFrame) -> None:
    low, high = line.item(0, "t"), line.get_column("t").max()
    head = {"type": "evented", "name": title, "unit": "nanoseconds", "startValue": low, "endValue": high}
    file.write(json.dumps(head).removesuffix("}").encode() + b', "events": [')
    kind = pl.when("begins").then(pl.lit("O")).otherwise(pl.lit("C"))
    text = pl.format('{{"type":"{}","frame":{},"at":{}}}', kind, "frame", "t")
    file.writelines(
        (b"," if at else b"") + ",".join(part.select(text).to_series()).encode()
        for at, part in enumerate(line.iter_slices(1 << 18))
    )
    file.write(b"]}")


# Tables as Parquet, Arrow and CSV; the first two with units and meanings in the fields' metadata.

#: The file in a folder of tables that says what is in it.
CONTENTS: Final = "tables.json"


def write_table(form: str, forms: Sequence[Table], frame: pl.DataFrame, path: Path, origin: str) -> dict[str, object]:
    """Writes a table, of which `forms` are its declaration and those of its other forms; gives its entry in `contents`.

    The format `form` is the ending of such files: parquet, arrow (Feather) or csv. The Arrow schema of the first two
    has the fields' metadata. CSV has numbers and texts unformatted, nulls empty. `origin` is a word on where it is
    from; empty without one.
    """
    # the first two are of a table of several windows or reports
    known = {"instance": "The window that the row is of.", "report": "The report that the row is of, as it was given."}
    known |= {column.name: column.doc for form in reversed(forms) for column in form.columns}
    table = forms[0]
    columns: list[dict[str, Any]] = [
        {
            "name": name,
            "type": str(kind).partition("(")[0],
            "unit": unit_of(name) or None,
            "description": known.get(name, ""),
        }
        for name, kind in frame.schema.items()
    ]
    said = {"file": path.name, "rows": frame.height, "description": table.doc, "origin": origin or None}
    if form == "csv":
        frame.write_csv(path)
        return said | {"columns": columns}
    import pyarrow as pa  # noqa: PLC0415 - takes long to import
    from pyarrow import feather, parquet  # noqa: PLC0415 - as above

    rows = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
    said_of: list[dict[bytes | str, bytes | str]] = [
        {name: one[name] for name in ("description", "unit") if one[name] is not None} for one in columns
    ]
    fields = [field.with_metadata(words) for field, words in zip(rows.schema, said_of, strict=True)]
    rows = rows.cast(pa.schema(fields, metadata={"table": table.name, "description": table.doc}))
    if form == "parquet":
        parquet.write_table(rows, path, compression="zstd")
    else:
        feather.write_feather(rows, path, compression="zstd")
    return said | {"columns": columns}


def contents(reports: Sequence[str], tables: Mapping[str, object], missing: Mapping[str, str]) -> bytes:
    """What is in a folder of tables, as JSON: the entry of each by name, and why others are missing."""
    content = {"version": 1, "reports": reports, "tables": tables, "cannot_tell": missing}
    return json.dumps(content, indent=1).encode() + b"\n"
