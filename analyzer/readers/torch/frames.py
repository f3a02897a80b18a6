"""Builds one frame per kind of event from decoded columns: times in ns, missing values null, texts resolved.

These frames are what the cache stores (:mod:`kanalyze.readers.torch.read_json`); :mod:`kanalyze.readers.torch.report`
builds the tables from them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby, repeat
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.machinery import give_back, one_blas_thread
from kanalyze.model import COLLECTIVE_DETAIL
from kanalyze.readers.torch.decode.events import ARGS, COLLECTIVE, MEANT, MISSING
from kanalyze.readers.torch.decode.old_forms import Arrow, number

if TYPE_CHECKING:
    from array import array

    from kanalyze.readers.torch.decode.columns import Columns
    from kanalyze.readers.torch.decode.text import Part


#: Columns of interned text codes.
_TEXTS: Final = frozenset(
    {"name", "ph", "grid", "block", "input_shapes", "input_types", "input_strides"}
    | {"copy_kind", "source_kind", "target_kind"},
)

#: Columns that place an event's start.
PLACE: Final = ("pid", "tid", "start_ns")

#: Number of pieces whose freed arrays are worth returning to the system.
_MANY_PARTS: Final = 256

#: Columns above this many values are built with numpy; below, importing it costs more than it saves.
_MANY: Final = 1 << 16

#: Columns of the frame of collectives, besides their fields the event's kind and its row in the frame of that.
_WHOLE: Final = tuple(name for name in COLLECTIVE if COLLECTIVE_DETAIL.schema[name] == pl.Int64)
_COLLECTIVE: Final = {
    "kind": pl.String,
    "row": pl.Int64,
    **{name: pl.Int64 if name in _WHOLE else pl.String for name in COLLECTIVE},
}


@dataclass
class Frames:
    """All frames of a trace.

    Attributes:
        events: By the name of a kind (the classes of :mod:`kanalyze.readers.torch.decode.events`) its events, sorted by
            `start_ns`; columns as the class has them, but for times, which are `start_ns` and `dur_ns`.
        collectives: Kind, row in that frame, and fields of each collective.
        properties: The trace's own properties.
        names: Names of processes and threads: (process id, thread id or None, name).
        counts: Counters by name: events that no frame holds, repairs.
        damage: Problems of the text as a whole, a sentence each.
    """

    events: dict[str, pl.DataFrame] = field(default_factory=dict)
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COLLECTIVE))
    properties: dict[str, Any] = field(default_factory=dict)
    names: list[tuple[int, int | None, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    damage: list[str] = field(default_factory=list)

    def frame(self, kind: str) -> pl.DataFrame:
        """The events of one kind: without rows, but with all columns, where there are none."""
        return self.events[kind] if kind in self.events else pl.DataFrame(schema=_SCHEMAS[kind])


def _schema(kind: type) -> dict[str, type[pl.DataType]]:
    """The columns of the frame of a kind of events."""
    fields = [name for one in (kind, ARGS.get(kind)) for name in getattr(one, "__struct_fields__", ())]
    types = {name: pl.Categorical if name in _TEXTS else pl.Int64 for name in fields if name not in _NO_COLUMNS}
    return {_TIMES.get(name, name): pl.Float64 if name == "value" else dtype for name, dtype in types.items()}


#: Fields of events that are no columns, and the columns of those that are times.
_NO_COLUMNS: Final = ("args", "collective")
_TIMES: Final = {"ts": "start_ns", "dur": "dur_ns"}

_SCHEMAS: Final = {kind.__name__: _schema(kind) for kind in MEANT.values()}


def frames_of(parts: list[Part]) -> Frames:
    """Concatenates decoded `parts`, which are consumed, into frames."""
    texts = {id(part.texts): part.texts for part in parts}
    begins = dict(zip(texts, accumulate(map(len, texts.values()), initial=0), strict=False))
    words = pl.Series([text or None for some in texts.values() for text in some], dtype=pl.Categorical)
    pieces = [(part.columns, begins[id(part.texts)]) for part in parts if part.columns is not None]
    found, counts = Frames(), Counter[str]()
    for columns, _ in pieces:
        counts.update(columns.counts)
    found.counts = {word: count for word, count in counts.items() if count}
    found.names = list(dict.fromkeys(name for columns, _ in pieces for name in _names(columns.meta)))
    # the rows are those in the pieces, until the frames are sorted
    collectives = _collectives([columns for columns, _ in pieces])
    for kind in dict.fromkeys(kind for columns, _ in pieces for kind in columns.blocks):
        blocks = [(columns.blocks.pop(kind), offset) for columns, offset in pieces if kind in columns.blocks]
        frame = pl.DataFrame(_columns([block for block, _ in blocks], [offset for _, offset in blocks], words))
        if not frame.get_column("start_ns").is_sorted():
            frame = frame.with_row_index("row").sort("start_ns", maintain_order=True)
            order = frame.select(pl.col("row").cast(pl.Int64), kind=pl.lit(kind)).with_row_index("now")
            moved = collectives.join(order, on=["kind", "row"], how="left", maintain_order="left")
            now = pl.coalesce(pl.col("now").cast(pl.Int64), "row").alias("row")
            collectives, frame = moved.select(*(name for name in _COLLECTIVE if name != "row"), now), frame.drop("row")
        found.events[kind] = frame
    found.collectives = collectives.select(*_COLLECTIVE).sort("kind", "row")
    if arrows := [arrow for columns, _ in pieces for arrow in columns.arrows]:
        _correlate(found.events, arrows)
    if len(parts) > _MANY_PARTS:  # what decoding took: of a trace of 330 MB the page takes 570 MB, not 760
        give_back()
    return found


def _columns(blocks: list[dict[str, array[Any]]], offsets: Sequence[int], words: pl.Series) -> Iterator[pl.Series]:
    """The columns of the frame of a kind, from those of its `blocks`, which are consumed."""
    for name in list(blocks[0]):
        arrays = [block.pop(name) for block in blocks]
        if name in _TEXTS:
            column = words.gather(_joined(arrays, offsets))
        elif name in _TIMES:
            column = pl.concat(_nanoseconds(arrays), rechunk=True)
        else:
            column = _known(_joined(arrays))
        yield column.alias(_TIMES.get(name, name))


def _joined(arrays: Sequence[array[Any]], offsets: Iterable[int] = repeat(0)) -> pl.Series:
    """Concatenates arrays of one type, the numbers in each moved by its offset."""
    if sum(map(len, arrays)) < _MANY:
        dtype = {"I": pl.UInt32, "q": pl.Int64, "d": pl.Float64}[arrays[0].typecode]
        parts = [pl.Series(one.tolist(), dtype=dtype) for one in arrays]
    else:
        with one_blas_thread():
            import numpy as np  # noqa: PLC0415 - small traces need not wait for it

        parts = [pl.Series(np.frombuffer(one, dtype=one.typecode)) for one in arrays]
    return pl.concat(
        [part + offset if offset else part for part, offset in zip(parts, offsets, strict=False)], rechunk=True
    )


def _nanoseconds(arrays: list[array[Any]]) -> Iterator[pl.Series]:
    """Times in nanoseconds; float microseconds are rounded to their three decimals."""
    us = pl.col("us").fill_nan(None)
    whole = us.floor()
    ns = whole.cast(pl.Int64) * 1000 + ((us - whole) * 1000 + 0.5).floor().cast(pl.Int64)
    for kind, alike in groupby(arrays, key=lambda one: one.typecode):
        values = _joined([*alike])
        yield _known(values) if kind == "q" else values.alias("us").to_frame().select(ns.alias("ns")).to_series()


def _known(values: pl.Series) -> pl.Series:
    """Replaces the sentinel of missing values by null."""
    return values.set(values == MISSING, None) if values.min() == MISSING else values


def _correlate(events: dict[str, pl.DataFrame], arrows: list[Arrow]) -> None:
    """Gives calls and device events without correlation ids those of the arrows between them.

    An arrow begins and ends where the events start, on their threads and streams; of several that do, the last has it.
    """
    own = pl.DataFrame(arrows, schema=("ph", "id", *PLACE), orient="row").filter(pl.col("id") > 0)
    for phase, kinds in (("s", ("Call",)), ("f", ("Kernel", "Copy", "Memset"))):
        ends = own.filter(pl.col("ph") == phase).unique(PLACE, keep="first")
        for kind in (one for one in kinds if one in events):
            frame = events[kind]
            told = frame.select(PLACE).join(ends, on=PLACE, how="left", maintain_order="left").get_column("id")
            told = told.set(~frame.select(pl.struct(PLACE).is_last_distinct()).to_series(), None)
            events[kind] = frame.with_columns(pl.when(pl.col("correlation") > 0).then("correlation").otherwise(told))


def _collectives(pieces: Sequence[Columns]) -> pl.DataFrame:
    """All collectives, with the row of the event among all of its kind, in file order."""
    rows, begins = [], Counter[str]()
    for piece in pieces:
        for kind, place, fields in piece.collectives:
            texts = {name: value if isinstance(value, str) else str(value) for name, value in fields.items()}
            whole = {name: fields[name] for name in _WHOLE if isinstance(fields.get(name), int)}
            rows.append({**texts, **dict.fromkeys(_WHOLE), **whole, "kind": kind, "row": begins[kind] + place})
        begins.update({kind: len(block["ts"]) for kind, block in piece.blocks.items()})
    return pl.DataFrame(rows, schema=_COLLECTIVE)


def _names(meta: Sequence[dict[str, Any]]) -> list[tuple[int, int | None, str]]:
    found: list[tuple[int, int | None, str]] = []
    for event in meta:
        args, pid, tid = event.get("args"), number(event.get("pid")), number(event.get("tid"))
        name = args.get("name") if isinstance(args, dict) else None
        if not isinstance(name, str) or pid == MISSING:
            continue
        if event.get("name") == "process_name":
            found.append((pid, None, name))
        elif event.get("name") == "thread_name" and tid != MISSING:
            found.append((pid, tid, name))
    return found


# Maps frames of a trace to kinds of events (:class:`kanalyze.readers.torch.frames.Frames`).

#: Kind in :data:`kanalyze.model.EVENTS` by frame, in the order of event ids.
FRAME_KINDS: Final = {
    "Kernel": "kernel",
    "Copy": "memcpy",
    "Memset": "memset",
    "Call": "api",
    "Sync": "sync",
    "Annotation": "range",
    "Op": "op",
    "Python": "python",
    "Overhead": "overhead",
    "Memory": "memory",
}
FRAME_OF: Final = {kind: frame for frame, kind in FRAME_KINDS.items()}

#: Frames of device events.
ON_DEVICE: Final = ("Kernel", "Copy", "Memset", "Sync")
