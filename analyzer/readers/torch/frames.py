"""Builds one frame per kind of event from decoded columns: times in ns, missing values null, texts resolved.

These frames are what the cache stores (:mod:`kanalyze.readers.torch.read_json`); :mod:`kanalyze.readers.torch.report`
builds the tables from them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, repeat
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import counter_model, device_limits, machinery, outlets, tools
from kanalyze.columns import parts_by
from kanalyze.device_limits import capabilities, memory_bandwidth_bytes_per_s, plausible
from kanalyze.model import COLLECTIVE_DETAIL, DEVICES, NOTES, PROCESSES, Note
from kanalyze.readers.torch.events import COLLECTIVE, KEPT, KINDS, LINKS, MISSING, number

if TYPE_CHECKING:
    from array import array

    from kanalyze.readers.torch.columns import Arrow, Columns
    from kanalyze.readers.torch.pieces import Part


#: Columns of interned text codes.
_TEXTS: Final = KEPT | {"name", "ph"}
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
    """All frames of a trace."""

    #: by the name of a kind (:data:`kanalyze.readers.torch.events.KINDS`) its events, sorted by `start_ns`; columns:
    #: start_ns, dur_ns, pid, tid, name, and the arguments of the kind
    events: dict[str, pl.DataFrame] = field(default_factory=dict)
    #: kind, row in that frame, and fields of each collective
    collectives: pl.DataFrame = field(default_factory=lambda: pl.DataFrame(schema=_COLLECTIVE))
    properties: dict[str, Any] = field(default_factory=dict)  # the trace's own properties
    #: names of processes and threads: (process id, thread id or None, name)
    names: list[tuple[int, int | None, str]] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)  # counters by name: events that no frame holds, repairs
    damage: list[str] = field(default_factory=list)  # problems of the text as a whole, a sentence each

    def frame(self, kind: str) -> pl.DataFrame:
        """The events of one kind: without rows, but with all columns, where there are none."""
        return self.events[kind] if kind in self.events else pl.DataFrame(schema=SCHEMAS[kind])


#: The columns of times.
_TIMES: Final = {"ts": "start_ns", "dur": "dur_ns"}


def _schema(kind: str) -> dict[str, pl.DataType]:
    """The columns of the frame of a kind of events."""
    fields = ("start_ns", "pid", "tid", *(("ph", "id") if kind in LINKS else ("dur_ns", "name")), *KINDS[kind])
    own = {"value": pl.Float64()} | dict.fromkeys(_TEXTS, pl.Categorical())
    return {name: own.get(name, pl.Int64()) for name in fields}


#: The columns of each kind of events.
SCHEMAS: Final = {kind: _schema(kind) for kind in KINDS}


def frames_of(parts: list[Part]) -> Frames:
    """Concatenates decoded `parts`, which are consumed, into frames."""
    texts = {id(part.texts): part.texts for part in parts}
    begins = dict(zip(texts, accumulate(map(len, texts.values()), initial=0), strict=False))
    words = pl.Series([text or None for some in texts.values() for text in some], dtype=pl.Categorical)
    pieces = [(part.columns, begins[id(part.texts)]) for part in parts if part.columns is not None]
    frames, counts = Frames(), Counter[str]()
    for columns, _ in pieces:
        counts.update(columns.counts)
    frames.counts = {word: count for word, count in counts.items() if count}
    frames.names = list(dict.fromkeys(name for columns, _ in pieces for name in columns.names))
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
        frames.events[kind] = frame.select(*SCHEMAS[kind])  # in one order, as where there are none
    frames.collectives = collectives.select(*_COLLECTIVE).sort("kind", "row")
    if arrows := [arrow for columns, _ in pieces for arrow in columns.arrows]:
        _correlate(frames.events, arrows)
    if len(parts) > _MANY_PARTS:  # what decoding took: of a trace of 330 MB the page takes 570 MB, not 760
        machinery.give_back()
    return frames


def _columns(blocks: list[dict[str, array[Any]]], offsets: Sequence[int], words: pl.Series) -> Iterator[pl.Series]:
    """The columns of the frame of a kind, from those of its `blocks`, which are consumed."""
    for name in list(blocks[0]):
        arrays = [block.pop(name) for block in blocks]
        if name in _TEXTS:
            yield words.gather(_joined(arrays, offsets)).alias(name)
        else:
            column = pl.concat(_nanoseconds(arrays), rechunk=True) if name in _TIMES else _known(_joined(arrays))
            yield column.alias(_TIMES.get(name, name))


def _joined(arrays: Sequence[array[Any]], offsets: Iterable[int] = repeat(0)) -> pl.Series:
    """Concatenates arrays of one type, the numbers in each moved by its offset."""
    if sum(map(len, arrays)) < _MANY:
        dtype = {"I": pl.UInt32, "q": pl.Int64, "d": pl.Float64}[arrays[0].typecode]
        parts = [pl.Series(one.tolist(), dtype=dtype) for one in arrays]
    else:
        with machinery.one_blas_thread():
            import numpy as np  # noqa: PLC0415 - small traces need not wait for it

        parts = [pl.Series(np.frombuffer(one, dtype=one.typecode)) for one in arrays]
    moved = (part + offset if offset else part for part, offset in zip(parts, offsets, strict=False))
    return pl.concat(moved, rechunk=True)


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
    """Gives calls and device events without correlation ids those of the arrows that begin and end where they start."""
    own = pl.DataFrame(arrows, schema=("ph", "id", *PLACE), orient="row").filter(pl.col("id") > 0)
    for phase, kinds in (("s", ("Call",)), ("f", ("Kernel", "Copy", "Memset"))):
        ends = own.filter(pl.col("ph") == phase).unique(PLACE, keep="first")
        for kind in (one for one in kinds if one in events):
            frame = events[kind]
            ids = frame.select(PLACE).join(ends, on=PLACE, how="left", maintain_order="left").get_column("id")
            ids = ids.set(~frame.select(pl.struct(PLACE).is_last_distinct()).to_series(), None)
            events[kind] = frame.with_columns(pl.when(pl.col("correlation") > 0).then("correlation").otherwise(ids))


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
#: Frames of device events.
ON_DEVICE: Final = ("Kernel", "Copy", "Memset", "Sync")

#: Device limits, by their names in deviceProperties.
_LIMITS: Final = {
    "sm_count": "numSms",
    "memory_bytes": "totalGlobalMem",
    "max_threads_per_block": "maxThreadsPerBlock",
    "registers_per_sm": "regsPerMultiprocessor",
    "shared_per_sm_bytes": "sharedMemPerMultiprocessor",
    "shared_per_block_bytes": "sharedMemPerBlockOptin",
    "threads_per_warp": "warpSize",
}

#: Kineto's process name for the timeline of a Meta accelerator.
_ACCELERATOR: Final = re.compile(r"MTIA \d+")


def without_echoes(frames: Frames) -> Frames:
    """`frames` without duplicate calls on an accelerator's own timeline; they are counted as ignored."""
    drawn = [pid for pid, thread, name in frames.names if thread is None and _ACCELERATOR.fullmatch(name)]
    calls = frames.frame("Call")
    if not drawn or calls.is_empty():
        return frames
    echo = pl.col("pid").is_in(drawn).fill_null(value=False)
    apart = calls.filter(echo).select("start_ns", "dur_ns")
    unread = pl.concat([frames.frame("Unread"), apart], how="diagonal_relaxed")
    return replace(frames, events={**frames.events, "Call": calls.filter(~echo), "Unread": unread})


def devices(frames: Frames, used: pl.DataFrame) -> pl.DataFrame:
    """The GPUs used, as :data:`kanalyze.model.DEVICES`; with all that the trace describes if it describes none of them.

    Not so of AMD GPUs, whose numbers in events are others: ROCm's tracer numbers a machine's processors, the CPUs
    first; the properties go by HIP's numbers, from 0 on. There, one that has none listed is as all listed ones are, if
    they are alike. `used` has the column device, of device events.
    """
    known = {row["device"]: row for row in map(_device, _properties(frames)) if row["device"] is not None}
    of_amd = any(tools.is_amd(row["name"], row["threads_per_warp"]) for row in known.values())
    models = [{**row, "device": None} for row in known.values()]
    usual = models[0] if of_amd and all(model == models[0] for model in models) else {}
    active = used.get_column("device").drop_nulls().unique().sort()
    rows = {device: known.get(device, {**usual, "device": device}) for device in active}
    if not of_amd and all(len(row) == 1 for row in rows.values()):
        rows |= known
    frame = pl.DataFrame([*rows.values()], schema=DEVICES.schema, orient="row").sort("device")
    limits = capabilities().select("compute_capability", blocks="max_blocks_per_sm")
    joined = frame.join(limits, on="compute_capability", how="left", maintain_order="left")
    return DEVICES.select(plausible(joined.with_columns(max_blocks_per_sm=pl.coalesce("max_blocks_per_sm", "blocks"))))


def _properties(frames: Frames) -> list[dict[str, Any]]:
    """The properties of GPUs that the trace lists."""
    gpus = frames.properties.get("deviceProperties")
    return [gpu for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []


def _device(properties: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {name: _positive(properties.get(key)) for name, key in _LIMITS.items()}
    name = properties["name"] if isinstance(properties.get("name"), str) else None
    major, minor = whole(properties.get("computeMajor")), whole(properties.get("computeMinor"))
    threads, warp = _positive(properties.get("maxThreadsPerMultiprocessor")), row["threads_per_warp"]
    row |= {
        "device": whole(properties.get("id")),
        "name": name,
        "memory_bandwidth_bytes_per_s": memory_bandwidth_bytes_per_s(name),
    }
    if tools.is_amd(name, warp):
        row["compute_capability"] = tools.amd_target(name, major, minor)
    elif major is not None and minor is not None:
        row["compute_capability"] = f"{major}.{minor}"
    return row | {"max_warps_per_sm": threads // warp if threads and warp else None}


def whole(value: object) -> int | None:
    """An int64 from a property, also if written as text or with decimals; None if it is not one."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    integer = MISSING if isinstance(value, bool) else number(value)
    return None if integer == MISSING else integer


def _positive(value: object) -> int | None:
    integer = whole(value)
    return integer if integer is not None and integer > 0 else None


def processes(frames: Frames, used: pl.DataFrame) -> pl.DataFrame:
    """Processes of the trace with the GPUs that they used, as :data:`kanalyze.model.PROCESSES`.

    `used` has the pairs of both: process_id and device.
    """
    gpus = used.drop_nulls().unique().select("process_id", cuda_ordinal="device", device="device")
    named = pl.DataFrame(
        [(pid, name) for pid, thread, name in frames.names if thread is None],
        schema={"process_id": pl.Int64, "name": pl.String},
        orient="row",
    ).unique("process_id", keep="last")
    hosts = [frames.frame(name).select(process_id="pid") for name in ("Call", "Op", "Annotation")]
    every = pl.concat([used.select("process_id"), *hosts]).unique().drop_nulls()
    rows = every.join(gpus, on="process_id", how="left").join(named, on="process_id", how="left")
    return PROCESSES.select(rows.sort("process_id", "device"))


#: A counter's name and the unit in brackets behind it (:class:`kanalyze.readers.torch.events.Counter`).
_METRIC: Final = r"^(.*?)(?: \((W|C|%|MHz)\))?$"


def gpu_metrics(samples: pl.DataFrame) -> pl.DataFrame:
    """The sampled counters of GPUs, as :data:`kanalyze.counter_model.GPU_METRICS`; each holds until the next sample."""
    name = pl.col("name").cast(pl.String)
    unit = name.str.extract(_METRIC, 2)
    metrics = samples.with_columns(
        metric=name.str.extract(_METRIC, 1).cast(pl.Categorical),
        unit=unit.fill_null("").cast(pl.Categorical),
        value=pl.when(unit == "MHz").then(pl.col("value") * 1e6).otherwise("value"),
        samples=pl.lit(1, dtype=pl.Int64),
    ).sort("device", "metric", "start_ns", maintain_order=True)
    follows = (pl.col("start_ns").shift(-1) - pl.col("start_ns")).over("device", "metric")
    usual = follows.filter(follows > 0).median().over("device", "metric").fill_null(1).cast(pl.Int64)
    lasting = pl.when(follows <= 2 * usual).then(follows).otherwise(usual)  # what is longer is a hole in the recording
    return counter_model.GPU_METRICS.select(metrics.with_columns(dur_ns=lasting).filter(pl.col("value").is_finite()))


# Health notes: missing data, and a count of every event that no table holds.

#: Meaning of the decoder's counters.
_WORDS: Final = {
    "repaired": ("characters that JSON does not allow", "they were replaced or left out; names may differ there"),
    "unreadable": ("events that cannot be read", "they are lost: times and counts are too low"),
    "unreadable bytes": ("bytes of events that cannot be read", "what they say is lost"),
    "no time": ("events without a time", "they are left out: times and counts are too low"),
    "no object": ("entries that are no event", "they are left out"),
    "no event": ("entries that are no event of a trace", "they are left out"),
    "no category": ("events without a category", "they are left out: what they are is not said"),
}

_CATEGORY: Final = "category "
#: Most unknown categories listed separately.
_TOLD: Final = 10
#: Longest category name shown, in characters.
_WIDE: Final = 60

#: Frames that no kind of event has, and why that is no loss.
_HELD_ASIDE: Final = {
    "Projection": ("ranges drawn on devices", "where the work of a range ran; no work of their own"),
    "Record": ("recordings of CUDA events", "they tell what a wait waited for"),
    "Counter": ("samples of counters of GPUs", "they are in gpu_metrics"),
    "GraphNode": ("nodes of CUDA graphs that are no work", "they call the host or record an event"),
}


def notes(frames: Frames) -> pl.DataFrame:
    """One note per thing missing from the trace or ignored in it, as :data:`kanalyze.model.NOTES`."""
    entries = [
        *_aside(frames),
        *((sentence, 1, None, "what stood there is lost") for sentence in frames.damage),
        *(
            (check, frames.counts[word], None, effect)
            for word, (check, effect) in _WORDS.items()
            if frames.counts.get(word)
        ),
        *_categories(frames),
        *_odd_times(frames),
    ]
    # operators have an id each, of which calls tell their operator
    ids = frames.frame("Op").filter(pl.col("external_id") != 0).select("external_id", "pid")
    if shared := ids.height - sum(own.get_column("external_id").n_unique() for own in parts_by(ids, ["pid"]).values()):
        entries.append(("operators with the id of another one", shared, None, "which operator launched what is wrong"))
    # each limit by itself: not every version writes all of them
    given = [(name, one[key]) for one in _properties(frames) for name, key in _LIMITS.items() if key in one]
    limits = (pl.DataFrame({name: [whole(value)]}, schema={name: pl.Int64}) for name, value in given)
    if count := sum(map(device_limits.impossible, limits)):
        entries.append((device_limits.IMPOSSIBLE, count, None, device_limits.EFFECT))
    return NOTES.select(pl.DataFrame(entries, schema=NOTES.schema, orient="row"))


def _aside(frames: Frames) -> Iterable[Note]:
    """The number of events in the file, total and by kind, and of entries that are not events of their own."""
    counts = frames.counts
    if entries := counts.get("entries"):
        held = {kind: frames.frame(name).height for name, kind in FRAME_KINDS.items()}
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in sorted(held.items(), key=lambda one: -one[1]) if count)
        yield "events in the trace", entries, None, f"{sum(held.values()):,} are in the tables: {kinds or 'none'}"
    if arrows := counts.get("flow", 0) + sum(frames.frame(name).height for name in LINKS):
        yield "arrows between events", arrows, None, "ids join the same events; backward operators are joined by them"
    for name, (check, effect) in _HELD_ASIDE.items():
        frame = frames.frame(name)
        if frame.height:
            length = int(frame.get_column("dur_ns").sum()) if name == "Projection" else None
            yield check, frame.height, length, effect
    if marks := counts.get("name", 0) + counts.get("mark", 0) + frames.frame("Span").height:
        yield "names and marks", marks, None, "names of processes and threads, and where the recording began and ended"


def _categories(frames: Frames) -> Iterable[Note]:
    """Events of unknown categories, most frequent first, and of known ones that no table holds."""
    effect = "no table holds them"
    categories = [(count, word) for word, count in frames.counts.items() if word.startswith(_CATEGORY) and count]
    categories.sort(key=lambda one: (-one[0], one[1]))
    for count, word in categories[:_TOLD]:
        yield f"events of the category {outlets.cut(word.removeprefix(_CATEGORY), _WIDE)}", count, None, effect
    if rest := categories[_TOLD:]:
        yield f"events of {len(rest)} more categories", sum(count for count, _ in rest), None, effect
    unread = frames.frame("Unread")
    if unread.height:
        yield "events of other devices and tools", unread.height, int(unread.get_column("dur_ns").sum()), effect


def _odd_times(frames: Frames) -> Iterable[Note]:
    """Events without a duration or with impossible times."""
    for name, kind in FRAME_KINDS.items():
        frame = frames.frame(name)
        if kind == "memory":
            continue
        if endless := frame.get_column("dur_ns").null_count():
            effect = f"they count as instants: times of {kind} are too low"
            yield f"{kind} events without a duration", endless, None, effect
        early, short = (frame.filter(pl.col(column) < 0).get_column("dur_ns") for column in ("start_ns", "dur_ns"))
        if len(early):
            yield f"{kind} events at negative times", len(early), int(early.sum()), "their times may be wrong"
        if kind in _ON_HOST and len(short):
            yield f"{kind} events of negative duration", len(short), -int(short.sum()), "their times cannot be right"


#: Kinds whose durations are checked only here.
_ON_HOST: Final = ("op", "range", "python", "overhead", "sync")
