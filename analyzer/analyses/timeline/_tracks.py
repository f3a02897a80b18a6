"""Tracks of a timeline: streams, host threads, ranges, iterations and the ledger, as events with lanes and tones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals, units
from kanalyze.analyses.critical._path import CAUSES, path, with_names
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    device_operations,
    launch_shapes,
    launching_rows,
    with_facts,
)
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._thread_timeline import call_labels, labels, shown_calls
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.iterations.iterations import iterations
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.timeline._counters import counters
from kanalyze.analyses.timeline._reduced import reduced
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered, positions
from kanalyze.columns.ordering import in_order
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.analyses.timeline._counters import Counter
    from kanalyze.report import Report

#: What an event is coloured by: the ledger's bucket, or a host event's kind.
TONES: Final = (*BUCKETS, "range", "operator", "python", "call", "iteration", "odd")

#: Tracks that a picture has room for.
MOST_TRACKS: Final = 1000

_TONE: Final = pl.Enum(TONES)

#: What is told of an event that is drawn, beside its times and tone.
_TOLD: Final[dict[str, DataType | DataTypeClass]] = {
    "name": pl.Categorical,
    "note": pl.Categorical,
    "event_id": pl.Int64,
    "launch_id": pl.Int64,
}

#: Most lanes of a track; what is nested more deeply is left out, and counted.
MOST_LANES: Final = 128


class Track(NamedTuple):
    """A track: which group it stands in, its label, and what kind of thing it holds."""

    group: str
    label: str
    kind: str


class _Line(NamedTuple):
    """The events of a track.

    Attributes:
        track: The track.
        spans: Start, end and tone of each event.
        told: Columns of :data:`_TOLD`, those that there are, of some events by their rows in `spans`. It is asked for
            what is drawn: of a large report a part of the events.
    """

    track: Track
    spans: pl.DataFrame
    told: Callable[[pl.Series], pl.DataFrame]


@dataclass(frozen=True)
class Timeline:
    """Data of a picture of the recording. Times are in nanoseconds, in the report's own origin.

    Attributes:
        start_ns: Start of what is shown.
        end_ns: End of it.
        zero_ns: Origin of displayed times.
        tracks: The tracks, in order.
        events: By track, lane and start: track (index), lane, start, end, name, tone, note, covered_ns (less than the
            length for events that stand for several), longest_ns, count, several, launch (row of the launching call in
            this frame).
        counters: Quantities over time.
        left_out: How many events of the report are in none of these, since they are nested too deeply.
        tracks_left_out: How many tracks there are beyond those: of the threads with fewest CUDA calls.
        whole: The time of a steady iteration, of which all events stay single where there is room; None without one.
        one_clock: Whether the times are those of all that is shown, and not of the first of several ranks.
    """

    start_ns: int
    end_ns: int
    zero_ns: int
    tracks: list[Track]
    events: pl.DataFrame
    counters: list[Counter]
    left_out: int
    tracks_left_out: int
    whole: tuple[int, int] | None = None
    one_clock: bool = True


def timeline(report: Report, most: int) -> Timeline:
    """The timeline of a report, or of its part in scope, with `most` events or about as many.

    Raises:
        CannotTellError: The report has no times, or no events at all.
    """
    if report.meta.timeless:
        raise CannotTellError.timeless("timeline", report.meta.path)
    every = [line for line in _lines(report) if line.spans.height]
    lines = every[:MOST_TRACKS]
    if not lines:
        raise CannotTellError.without("timeline", report.meta.path, (*DEVICE_KINDS, "api", "range"), report.meta.tool)
    low, high = _shown(report, [line.spans for line in lines])
    events = pl.concat(
        _placed(intervals.overlapping(line.spans.with_row_index("row"), report.scope.sides), low, high).with_columns(
            track=pl.lit(number, dtype=pl.UInt16)
        )
        for number, line in enumerate(lines)
    )
    placed, whole = events.drop_nulls("lane"), _steady_iteration(report)
    return Timeline(
        low,
        high,
        report.zero_ns,
        [line.track for line in lines],
        _linked(_told(reduced(placed, high - low, most, whole), lines)),
        [*counters(report, low, high)],
        events.height - placed.height,
        len(every) - len(lines),
        whole,
    )


def _placed(events: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The events of a track clipped to what is shown, by start, the longest first, with their lanes."""
    if events.select((pl.col("start") < low).any() | (pl.col("end") > high).any()).item():
        events = events.with_columns(pl.col("start", "end").clip(low, high))
    if not (events.get_column("start").diff() > 0).all():
        events = events.sort("start", "end", descending=[False, True], maintain_order=True)
    return events.with_columns(lanes_of_events(events.get_column("start"), events.get_column("end")))


def _told(events: pl.DataFrame, lines: list[_Line]) -> pl.DataFrame:
    """The events, sorted by track, with the columns of :data:`_TOLD`."""
    found, rows, begin = [pl.DataFrame(schema=_TOLD)], events.get_column("row"), 0
    for length, track in events.get_column("track").rle().struct.unnest().iter_rows():
        told = lines[track].told(rows.slice(begin, length))
        begin += length
        missing = {name: pl.lit(None) for name in _TOLD if name not in told.columns}
        found.append(told.with_columns(**missing).select(pl.col(name).cast(kind) for name, kind in _TOLD.items()))
    return events.drop("row").hstack(pl.concat(found))


def _steady_iteration(report: Report) -> tuple[int, int] | None:
    """Start and end of the first iteration of the steady part; None where nothing repeats."""
    steady = known_steady_part(report)
    if steady is None or steady.usual.is_empty():
        return None
    start, length = steady.usual.select("start_ns", "dur_ns").row(0)
    return start, start + length


def _shown(report: Report, tracks: list[pl.DataFrame]) -> tuple[int, int]:
    """The time that is shown: the window asked for, else all that is in the tracks."""
    asked = report.scope.window
    low = min(int(events.get_column("start").min()) for events in tracks)  # type: ignore[arg-type]
    high = max(int(events.get_column("end").max()) for events in tracks)  # type: ignore[arg-type]
    if asked is not None:
        low = low if asked.start_ns is None else asked.start_ns
        high = high if asked.end_ns is None else asked.end_ns
    return low, max(high, low + 1)


def _lines(report: Report) -> Iterator[_Line]:
    """The tracks: iterations, the critical path, of each device the ledger and its streams, then the host threads."""
    several = report.processes.get_column("process_id").n_unique() > 1
    pieces, streams = ledger_pieces(report), _streams(report)
    yield _line(Track("Iterations", "iterations", "iteration"), _iterations(report))
    yield _line(Track("Critical path", "critical path", "path"), _critical(report))
    for device in windows(report).get_column("device"):
        group = f"GPU {device}"
        yield _line(Track(group, "ledger", "ledger"), _ledger(pieces.filter(pl.col("device") == device)))
        for process, stream, own in streams.get(device, []):
            label = f"stream {'?' if stream is None else stream}"
            track = Track(group, f"{label}, process {process}" if several else label, "stream")
            yield _line(track, own, partial(_of_operations, report, own.get_column("at")))
    yield from _host(report, several=several)


def _line(track: Track, events: pl.DataFrame, told: Callable[[pl.Series], pl.DataFrame] | None = None) -> _Line:
    """A track of `events`, which have the columns of :data:`_TOLD` themselves unless there is `told`."""
    spans = events.select("start", pl.max_horizontal("start", "end").alias("end"), pl.col("tone").cast(_TONE))
    return _Line(track, spans, told or events.__getitem__)


def _toned(kinds: pl.Series, tones: Sequence[str]) -> pl.Series:
    """The tone of each of some values of an enumeration, of whose categories `tones` are those."""
    return gathered(pl.Series(tones, dtype=_TONE), kinds.to_physical().cast(pl.UInt32))


def _iterations(report: Report) -> pl.DataFrame:
    """The iterations, each named and numbered; empty where the report cannot tell."""
    try:
        found = iterations(report)
    except CannotTellError:
        return pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64, "tone": _TONE})
    named = pl.format("{} {}", "name", "index")
    tone = pl.when(pl.col("kind") == "steady").then(pl.lit("iteration")).otherwise(pl.lit("odd"))
    end = pl.col("start_ns") + pl.col("dur_ns")
    return found.select(start="start_ns", end=end, name=named, tone=tone, note="kind")


#: What pieces of the critical path are coloured by, by cause; others by the bucket of that name.
_PATH_TONES: Final = {
    "transfer": "communication",
    "stream order": "queued",
    "graph order": "queued",
    "event wait": "queued",
    "launch latency": "launch",
    "return of a wait": "sync",
    "call": "api",
}
_CAUSE: Final = pl.Enum(CAUSES)
_TONES_OF_CAUSES: Final = [_PATH_TONES.get(cause, cause) for cause in CAUSES]


def _critical(report: Report) -> pl.DataFrame:
    """The pieces of the critical path, each named for what it is of; the note is its cause."""
    pieces = with_names(report, path(report))
    tone = _toned(pieces.get_column("cause").cast(_CAUSE), _TONES_OF_CAUSES)
    return pieces.select("start", "end", "name", tone=tone, note="cause")


def _ledger(pieces: pl.DataFrame) -> pl.DataFrame:
    tone = _toned(pieces.get_column("bucket"), BUCKETS)
    return pieces.select("start", "end", name="culprit", tone=tone, note="range")


def _streams(report: Report) -> dict[int, list[tuple[int | None, int | None, pl.DataFrame]]]:
    """Operations of each device in scope by process and stream: start, end, tone, and their rows in ``at``."""
    work = device_operations(report, "stream")
    tone = _toned(work.get_column("bucket"), BUSY_BUCKETS)
    spans = work.select("device", "process_id", "stream", "start", "end", tone=tone).with_row_index("at")
    found: dict[int, list[tuple[int | None, int | None, pl.DataFrame]]] = {}
    parts = parts_by(spans, ("device", "process_id", "stream"))
    for device, process, number in sorted(parts, key=lambda key: [(one is not None, one) for one in key]):
        own = parts[device, process, number]
        found.setdefault(device, []).append((process, number, in_order(own, "start")))
    return found


def _of_operations(report: Report, at: pl.Series, rows: pl.Series) -> pl.DataFrame:
    """Names of operations, how they were launched in words, and their launches; `at` are their rows in all of them."""
    work = device_operations(report).select("row", "event_id", "name")[at.gather(rows)]
    line = with_facts(report, work, "call_id", "shape", "size_bytes")
    notes = pl.coalesce(_shape_notes(report, line.get_column("shape")), _size_notes(line.get_column("size_bytes")))
    return line.select("row", "event_id", "name", launch_id="call_id", note=notes)


def _shape_notes(report: Report, numbers: pl.Series) -> pl.Series:
    """Grid and block of each launch shape, as text."""
    sides = [
        pl.concat_str([pl.col(f"{what}_{axis}").cast(pl.String) for axis in "xyz"], separator=",")
        for what in ("grid", "block")
    ]
    text = pl.format("grid {} × block {}", *sides).cast(pl.Categorical)
    return gathered(launch_shapes(report).select(shape_note=text).to_series(), numbers)


def _size_notes(sizes: pl.Series) -> pl.Series:
    """Each size as text."""
    different = sizes.unique().drop_nulls()
    texts = pl.Series([units.size(size) for size in different], dtype=pl.String).cast(pl.Categorical)
    return sizes.replace_strict(different, texts, default=None, return_dtype=pl.Categorical).alias("size_note")


#: Tracks of a host thread, the outermost first: kind of events, what it is called, tone.
_HOST: Final = (
    ("range", "ranges", "range"),
    ("op", "operators", "operator"),
    ("python", "Python", "python"),
    ("osrt", "system calls", "call"),
    ("api", "CUDA calls", ""),
    ("overhead", "profiler overhead", "profiler"),
)


def _host(report: Report, *, several: bool) -> Iterator[_Line]:
    """The tracks of the host threads, those of one thread together, the busiest in CUDA calls first."""
    found: dict[ThreadKey, list[_Line]] = {}
    weight: dict[ThreadKey, int] = {}
    for kind, label, tone in _HOST:
        if kind not in report.kinds:
            continue
        events = report.kind(kind)
        tones = pl.lit(tone) if tone else _call_tones(report, events)
        # a range that was never closed ends where the recording does; what ends before it starts covers no time
        end = (pl.col("start_ns") + pl.col("dur_ns").clip(0)).fill_null(
            pl.max_horizontal("start_ns", report.recorded[1])
        )
        spans = events.select(*THREAD, start="start_ns", end=end, tone=tones).with_row_index("at")
        parts = parts_by(spans, THREAD)
        for process, thread in sorted(parts, key=lambda key: parts[key].item(0, "at")):
            own = parts[process, thread]
            group = f"thread {'?' if thread is None else thread}" + (f" of process {process}" if several else "")
            told = partial(_of_host, report, kind, own.get_column("at"))
            found.setdefault((process, thread), []).append(_line(Track(group, label, kind), own, told))
            weight[process, thread] = weight.get((process, thread), 0) + (own.height if kind == "api" else 1)
    for key in sorted(found, key=lambda one: -weight[one]):
        yield from found[key]


def _of_host(report: Report, kind: str, at: pl.Series, rows: pl.Series) -> pl.DataFrame:
    """Names of events of a host thread; `at` are their rows in all of their kind."""
    told = report.kind(kind).select("event_id", "name")[at.gather(rows)]
    return told if kind != "api" else told.with_columns(shown_calls(report, told.get_column("name")).alias("name"))


def _call_tones(report: Report, calls: pl.DataFrame) -> pl.Series:
    """The bucket of each call; `launch` for those that launch."""
    tones = labels(report).get_column("bucket").cast(_TONE)
    return gathered(tones, call_labels(report, calls.get_column("name"))).scatter(launching_rows(report), "launch")


def _linked(events: pl.DataFrame) -> pl.DataFrame:
    """Replaces the id of the launching call by its row in this frame; null where it is not in it."""
    rows = positions(events.get_column("event_id"), events.get_column("launch_id"))
    return events.drop("event_id", "launch_id").with_columns(rows.cast(pl.Int64).alias("launch"))


def lanes_of_events(start: pl.Series, end: pl.Series) -> pl.Series:
    """Lane of each event of a track, as UInt16; null for what would need more than :data:`MOST_LANES`.

    The first lane has each event that begins when all before it have ended, so the outermost ones where they nest; the
    next lane the same of the rest, and so on.

    Args:
        start: Starts, sorted; of equal ones the longest event first.
        end: Ends.
    """
    found = pl.Series("lane", [None], dtype=pl.UInt16).new_from_index(0, len(start))
    rest = pl.DataFrame([start.alias("start"), end.alias("end")]).with_row_index("at")
    free = pl.col("start") >= pl.col("end").cum_max().shift(1)
    for lane in range(MOST_LANES):
        if rest.is_empty():
            break
        own = rest.select(free.fill_null(value=True)).to_series()
        found = found.scatter(rest.get_column("at").filter(own), lane)
        rest = rest.filter(~own)
    return found


def on_one_clock(timelines: Sequence[tuple[str, int, Timeline]]) -> Timeline:
    """Puts timelines below each other.

    Args:
        timelines: What each is called, by how much its times are moved (ns), and the timeline; at least one.
    """
    tracks: list[Track] = []
    counters: list[Counter] = []
    events: list[pl.DataFrame] = []
    rows = 0
    for label, moved_ns, own in timelines:
        shift = pl.lit(moved_ns, dtype=pl.Int64)
        events.append(
            own.events.with_columns(
                pl.col("start", "end") + shift,
                (pl.col("track").cast(pl.UInt32) + len(tracks)).cast(pl.UInt16),
                pl.col("launch") + rows,
            )
        )
        rows += own.events.height
        tracks += [track._replace(group=f"{label}, {track.group}") for track in own.tracks]
        counters += [
            one._replace(group=f"{label}, {one.group}", points=one.points.with_columns(pl.col("t_ns") + shift))
            for one in own.counters
        ]
    _, moved_ns, first = timelines[0]
    return replace(
        first,
        start_ns=min(own.start_ns + moved for _, moved, own in timelines),
        end_ns=max(own.end_ns + moved for _, moved, own in timelines),
        zero_ns=first.zero_ns + moved_ns,
        tracks=tracks,
        events=pl.concat(events),
        counters=counters,
        left_out=sum(own.left_out for *_, own in timelines),
        whole=first.whole and (first.whole[0] + moved_ns, first.whole[1] + moved_ns),
        one_clock=False,
        tracks_left_out=sum(own.tracks_left_out for *_, own in timelines),
    )
