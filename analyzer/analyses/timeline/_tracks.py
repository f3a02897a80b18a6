"""Tracks of a timeline: streams, host threads, ranges, iterations and the ledger, as events with lanes and tones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import units
from kanalyze.analyses.critical._names import with_names
from kanalyze.analyses.critical._path import path
from kanalyze.analyses.device._operations import device_operations, recorded
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._call_kinds import call_names
from kanalyze.analyses.host._launching_call import launch_rows, launching_rows
from kanalyze.analyses.host._range_lines import overlapping
from kanalyze.analyses.host._thread_timeline import labels, shown_calls
from kanalyze.analyses.iterations._steady import known_steady_part
from kanalyze.analyses.iterations.iterations import iterations
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.timeline._counters import counters
from kanalyze.analyses.timeline._lanes import lanes_of_events
from kanalyze.analyses.timeline._ledger_pieces import ledger_pieces
from kanalyze.analyses.timeline._reduced import reduced
from kanalyze.columns.lookup import gathered
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.timeline._counters import Counter
    from kanalyze.report import Report

#: What an event is coloured by: the ledger's bucket, or a host event's kind.
TONES: Final = (*BUCKETS, "range", "operator", "python", "call", "iteration", "odd")

#: Tracks that a picture has room for.
MOST_TRACKS: Final = 1000

#: Events of a track before lanes and reduction.
_EVENTS: Final[dict[str, DataType | DataTypeClass]] = {
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.Categorical,
    "tone": pl.Enum(TONES),
    "note": pl.Categorical,
    "event_id": pl.Int64,
    "launch_id": pl.Int64,
}


class Track(NamedTuple):
    """A track: which group it stands in, its label, and what kind of thing it holds."""

    group: str
    label: str
    kind: str


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
    every = [(track, events) for track, events in _tracks(report) if events.height]
    pairs = every[:MOST_TRACKS]
    if not pairs:
        raise CannotTellError.without("timeline", report.meta.path, (*DEVICE_KINDS, "api", "range"), report.meta.tool)
    low, high = _shown(report, [events for _, events in pairs])
    parts = []
    for number, (_, events) in enumerate(pairs):
        inside = overlapping(events, report.scope.window)
        line = inside.with_columns(pl.col("start", "end").clip(low, high)).with_columns(
            pl.max_horizontal("start", "end").alias("end")
        )
        line = line.sort("start", "end", descending=[False, True], maintain_order=True)
        lanes = lanes_of_events(line.get_column("start"), line.get_column("end"))
        parts.append(line.with_columns(lanes, track=pl.lit(number, dtype=pl.UInt16)))
    events = pl.concat(parts)
    placed, whole = events.drop_nulls("lane"), _steady_iteration(report)
    return Timeline(
        low,
        high,
        report.zero_ns,
        [track for track, _ in pairs],
        _linked(reduced(placed, high - low, most, whole)),
        [*counters(report, low, high)],
        events.height - placed.height,
        len(every) - len(pairs),
        whole,
    )


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


def _tracks(report: Report) -> Iterator[tuple[Track, pl.DataFrame]]:
    """The tracks: iterations, the critical path, of each device the ledger and its streams, then the host threads."""
    several = report.processes.get_column("process_id").n_unique() > 1
    yield Track("Iterations", "iterations", "iteration"), _iterations(report)
    yield Track("Critical path", "critical path", "path"), _critical(report)
    pieces, work = ledger_pieces(report), _operations(report)
    for device in windows(report).get_column("device"):
        group = f"GPU {device}"
        yield Track(group, "ledger", "ledger"), _ledger(pieces.filter(pl.col("device") == device))
        own = work.filter(pl.col("device") == device)
        for (process, stream), part in own.group_by("process_id", "stream", maintain_order=True):
            label = f"stream {'?' if stream is None else stream}"
            yield Track(group, f"{label}, process {process}" if several else label, "stream"), _only(part)
    yield from _host(report, several=several)


def _only(events: pl.DataFrame) -> pl.DataFrame:
    """The columns of a track; those that are missing are null."""
    missing = {name: pl.lit(None, dtype=kind) for name, kind in _EVENTS.items() if name not in events.columns}
    return events.with_columns(**missing).select(pl.col(name).cast(kind) for name, kind in _EVENTS.items())


def _iterations(report: Report) -> pl.DataFrame:
    """The iterations, each named and numbered; empty where the report cannot tell."""
    try:
        found = iterations(report)
    except CannotTellError:
        return pl.DataFrame(schema=_EVENTS)
    named = pl.format("{} {}", "name", "index")
    tone = pl.when(pl.col("kind") == "steady").then(pl.lit("iteration")).otherwise(pl.lit("odd"))
    end = pl.col("start_ns") + pl.col("dur_ns")
    return _only(found.select(start="start_ns", end=end, name=named, tone=tone, note="kind"))


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


def _critical(report: Report) -> pl.DataFrame:
    """The pieces of the critical path, each named for what it is of; the note is its cause."""
    pieces = with_names(report, path(report))
    tone = pl.col("cause").cast(pl.String).replace(_PATH_TONES)
    return _only(pieces.select("start", "end", "name", tone=tone, note="cause"))


def _ledger(pieces: pl.DataFrame) -> pl.DataFrame:
    return _only(pieces.select("start", "end", name=pl.col("culprit"), tone=pl.col("bucket"), note=pl.col("range")))


def _operations(report: Report) -> pl.DataFrame:
    """Operations of the devices in scope, with their launches, and how they were launched in words."""
    work = device_operations(report)
    places = recorded(report, "stream").get_column("stream").gather(work.get_column("row"))
    launches = gathered(
        report.kind("api").get_column("event_id"), gathered(launch_rows(report), work.get_column("row"))
    )
    line = work.with_columns(places, launches.alias("launch_id"), tone=pl.col("bucket"))
    notes = pl.concat([_launch_notes(report), _copy_notes(report)])
    joined = line.join(notes, on="event_id", how="left", maintain_order="left")
    return joined.sort("device", "process_id", "stream", "start")


def _launch_notes(report: Report) -> pl.DataFrame:
    """Grid and block of each kernel, as text: event_id and note."""
    config = report.kernel_config
    sides = [
        pl.concat_str([pl.col(f"{what}_{axis}").cast(pl.String) for axis in "xyz"], separator=",")
        for what in ("grid", "block")
    ]
    told = pl.format("grid {} × block {}", *sides)
    return config.select("event_id", note=told.cast(pl.Categorical))


def _copy_notes(report: Report) -> pl.DataFrame:
    """Size of each copy and memset, as text: event_id and note."""
    detail = report.copy_detail.select("event_id", "size_bytes").drop_nulls("size_bytes")
    sizes = detail.get_column("size_bytes").unique()
    texts = pl.Series("note", [units.size(size) for size in sizes], dtype=pl.String).cast(pl.Categorical)
    return detail.join(pl.DataFrame([sizes, texts]), on="size_bytes", how="left").select("event_id", "note")


#: Tracks of a host thread, the outermost first: kind of events, what it is called, tone.
_HOST: Final = (
    ("range", "ranges", "range"),
    ("op", "operators", "operator"),
    ("python", "Python", "python"),
    ("osrt", "system calls", "call"),
    ("api", "CUDA calls", ""),
    ("overhead", "profiler overhead", "profiler"),
)


def _host(report: Report, *, several: bool) -> Iterator[tuple[Track, pl.DataFrame]]:
    """The tracks of the host threads, those of one thread together, the busiest in CUDA calls first."""
    found: dict[tuple[int | None, int | None], list[tuple[Track, pl.DataFrame]]] = {}
    weight: dict[tuple[int | None, int | None], int] = {}
    for kind, label, tone in _HOST:
        if kind not in report.kinds:
            continue
        events = report.kind(kind)
        tones = pl.lit(tone) if tone else _call_tones(report, events)
        names = shown_calls(report, events.get_column("name")) if kind == "api" else events.get_column("name")
        # a range that was never closed ends where the recording does; what ends before it starts covers no time
        end = (pl.col("start_ns") + pl.col("dur_ns").clip(0)).fill_null(
            pl.max_horizontal("start_ns", report.recorded[1])
        )
        line = events.with_columns(names.alias("name"), start="start_ns", end=end, tone=tones)
        for key, part in line.group_by("process_id", "thread_id", maintain_order=True):
            process, thread = key
            group = f"thread {'?' if thread is None else thread}" + (f" of process {process}" if several else "")
            found.setdefault((process, thread), []).append((Track(group, label, kind), _only(part)))
            weight[process, thread] = weight.get((process, thread), 0) + (part.height if kind == "api" else 1)
    for key in sorted(found, key=lambda one: -weight[one]):
        yield from found[key]


def _call_tones(report: Report, calls: pl.DataFrame) -> pl.Series:
    """The bucket of each call; `launch` for those that launch."""
    known = labels(report).head(len(call_names(report))).select("name", "bucket")
    tones = calls.select("name").join(known, on="name", how="left", maintain_order="left").get_column("bucket")
    return tones.fill_null("api").scatter(launching_rows(report), "launch")


def _linked(events: pl.DataFrame) -> pl.DataFrame:
    """Replaces the id of the launching call by its row in this frame; null where it is not in it."""
    rows = events.select("event_id", launch=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls("event_id")
    rows = rows.unique("event_id", keep="first")
    linked = events.join(rows, left_on="launch_id", right_on="event_id", how="left", maintain_order="left")
    return linked.drop("event_id", "launch_id")
