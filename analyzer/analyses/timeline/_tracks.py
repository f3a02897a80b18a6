"""Timeline: streams, host threads, ranges, iterations and the ledger, as events with lanes and tones; and counters.

Counters are quantities over time: memory in use, utilisation, launches in the queue, and bandwidth of copies.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import intervals, units
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    device_operations,
    launch_shapes,
    launching_rows,
    shape_text,
    with_facts,
)
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host._captures import has_captures
from kanalyze.analyses.host._thread_timeline import labels, labels_of, shown_calls
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.idle.ledger import utilisation
from kanalyze.analyses.iterations.phases import steady_part
from kanalyze.analyses.memory.memory import in_use
from kanalyze.analyses.ranges.captured import captured_as
from kanalyze.analyses.replay.critical_path import CAUSES, path, with_names
from kanalyze.analyses.shared import statistics, threads
from kanalyze.analyses.timeline._slices import named_iterations
from kanalyze.columns import gathered, in_order, parts_by, positions, told_of
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report

#: Bins of a device's window in which means are taken.
_BINS: Final = 2000


class Counter(NamedTuple):
    """A quantity over time: t_ns and value.

    With `bin_ns` a value is the mean from its time to the next one, in bins of about that length; without, it stays as
    it is until the next point. The unit is `bytes`, `B/s`, `share` or `launches`.
    """

    group: str
    label: str
    unit: str
    points: pl.DataFrame
    bin_ns: int = 0


def counters(report: Report, low: int, high: int) -> Iterator[Counter]:
    """The counters of a report from `low` to `high` (ns)."""
    yield from _utilisation(report)
    yield from _queues(report)
    yield from _bandwidth(report)
    for device, process, label, points in in_use(report):
        inside = points.filter(pl.col("t_ns").is_between(low, high))
        if inside.height:
            where = f"process {process}" if device is None else f"GPU {device}"
            yield Counter(where, label, "bytes", inside)


def _utilisation(report: Report) -> Iterator[Counter]:
    """The busy share of each device, as the table `utilisation` has it."""
    try:
        rows = utilisation(report, _BINS)
    except CannotTellError:
        return
    for (device,), own in rows.group_by("device", maintain_order=True):
        points = own.select("t_ns", value="busy_share")
        end = int(own.item(-1, "t_ns") + own.item(-1, "dur_ns"))
        yield Counter(f"GPU {device}", "utilisation", "share", _closed(points, end), int(own.item(0, "dur_ns")))


def _queues(report: Report) -> Iterator[Counter]:
    """The launches of each device that have returned, and of which nothing has begun yet.

    A launch of several operations, as of a graph, counts once.
    """
    work = with_facts(report, device_operations(report), "call_id", "call_end").drop_nulls(["call_id", "call_end"])
    launches = work.group_by("device", "process_id", "call_id", "call_end").agg(pl.col("start").min())
    waiting = launches.filter(pl.col("call_end") < pl.col("start"))
    turns = pl.concat([waiting.select("device", t_ns="call_end", by=1), waiting.select("device", t_ns="start", by=-1)])
    for (device,), own in turns.sort("device").group_by("device", maintain_order=True):
        sums = own.group_by("t_ns").agg(pl.col("by").sum()).sort("t_ns")
        points = sums.select("t_ns", value=pl.col("by").cum_sum().cast(pl.Float64))
        yield Counter(f"GPU {device}", "launches in the queue", "launches", points)


def _bandwidth(report: Report) -> Iterator[Counter]:
    """Bytes that copies move per second on each device, by direction; those whose size is known."""
    copies = device_operations(report).filter(pl.col("kind") == "memcpy")
    copies = with_facts(report, copies, "size_bytes", "direction").with_columns(pl.col("direction").cast(pl.String))
    for device, low, high in windows(report).select("device", "start", "end").iter_rows():
        inside = (pl.col("end") > low) & (pl.col("start") < high)
        own = copies.filter((pl.col("device") == device) & (pl.col("size_bytes") > 0) & inside)
        width = max(-(-(high - low) // _BINS), 1)
        for (direction,), part in own.group_by("direction", maintain_order=True):
            points = means(part.select("start", "end", "size_bytes"), low, high, width)
            yield Counter(f"GPU {device}", f"copied {direction or ''}".rstrip(), "B/s", _closed(points, high), width)


def _closed(points: pl.DataFrame, end: int) -> pl.DataFrame:
    """The points with a last one, from which on there is nothing."""
    return pl.concat([points, pl.DataFrame([[end], [0.0]], schema=points.schema)])


def means(moved: pl.DataFrame, low: int, high: int, width: int) -> pl.DataFrame:
    """Bytes per second in bins of `width` ns from `low` to `high`: t_ns and value; the last bin may be shorter.

    A copy moves its bytes (size_bytes) evenly from its start to its end; copies side by side add up.
    """
    end = pl.max_horizontal("end", pl.col("start") + 1)
    speed = pl.col("size_bytes") / (end - pl.col("start"))
    turns = pl.concat([moved.select(t="start", by=speed), moved.select(t=end, by=-speed)])
    # in one order, as sums of fractions depend on it
    ramps = turns.sort("t", "by").group_by("t", maintain_order=True).agg(pl.col("by").sum())
    ramps = ramps.with_columns(slope=pl.col("by").cum_sum())
    ramps = ramps.with_columns(done=(pl.col("slope") * pl.col("t").diff().shift(-1)).cum_sum().shift(1).fill_null(0.0))
    starts = pl.int_range(low, high, width, eager=True)
    done = (pl.col("done") + pl.col("slope") * (pl.col("t") - pl.col("from"))).fill_null(0.0)
    edges = pl.concat([starts, pl.Series([high])]).to_frame("t").set_sorted("t")
    at_edges = edges.join_asof(ramps.with_columns(pl.col("t").alias("from")), on="t").with_columns(done=done)
    value = (pl.col("done").diff() / pl.col("t").diff()).shift(-1) * 1e9
    return at_edges.select(t_ns="t", value=value.clip(0.0)).head(len(starts))


#: What an event is coloured by: the ledger's bucket, or a host event's kind.
TONES: Final = (*statistics.BUCKETS, "range", "operator", "python", "call", "iteration", "odd")

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
    """The events of a track: start, end and tone of each in `spans`.

    `facts_of` gives columns of :data:`_TOLD`, those that there are, of some events by their rows in `spans`. It is
    asked for what is drawn: of a large report a part of the events.
    """

    track: Track
    spans: pl.DataFrame
    facts_of: Callable[[pl.Series], pl.DataFrame]


@dataclass(frozen=True)
class Timeline:
    """Data of a picture of the recording. Times are in nanoseconds, in the report's own origin."""

    start_ns: int  # of what is shown
    end_ns: int  # of what is shown
    zero_ns: int  # origin of displayed times
    tracks: list[Track]  # in order
    #: By track, lane and start: track (index), lane, start, end, name, tone, note, covered_ns (less than the length for
    #: events that stand for several), longest_ns, count, several, launch (row of the launching call in this frame).
    events: pl.DataFrame
    counters: list[Counter]
    left_out: int  # events of the report that are in none of these, since they are nested too deeply
    tracks_left_out: int  # how many more tracks there are: of the threads with fewest CUDA calls
    whole: tuple[int, int] | None = None  # a steady iteration, all of whose events stay single if there is room
    one_clock: bool = True  # whether the times are those of all that is shown, and not of the first of several ranks


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
    # what is shown: the window asked for, else all that is in the tracks
    every_span = pl.concat(line.spans.select("start", "end") for line in lines)
    first, last = every_span.select(pl.col("start").min(), pl.col("end").max()).row(0)
    asked_low, asked_high = report.scope.sides
    low = first if asked_low is None else asked_low
    high = max(last if asked_high is None else asked_high, low + 1)
    shown = (intervals.overlapping(line.spans.with_row_index("row"), report.scope.sides) for line in lines)
    by_track = enumerate(_placed(spans, low, high) for spans in shown)
    events = pl.concat(own.with_columns(track=pl.lit(number, dtype=pl.UInt16)) for number, own in by_track)
    placed, whole, steady = events.drop_nulls("lane"), None, steady_part(report)
    if steady is not None and steady.usual.height:  # the first iteration of the steady part
        start, length = steady.usual.select("start_ns", "dur_ns").row(0)
        whole = start, start + length
    return Timeline(
        low,
        high,
        report.zero_ns,
        [line.track for line in lines],
        _told(reduced(placed, high - low, most, whole), lines),
        [*counters(report, low, high)],
        events.height - placed.height,
        len(every) - len(lines),
        whole,
    )


def _placed(events: pl.DataFrame, low: int, high: int) -> pl.DataFrame:
    """The events of a track clipped to what is shown, by start, the longest first, with their lanes."""
    events = events.with_columns(pl.col("start", "end").clip(low, high))
    events = events.sort("start", "end", descending=[False, True], maintain_order=True)
    return events.with_columns(lanes_of_events(events.get_column("start"), events.get_column("end")))


def _told(events: pl.DataFrame, lines: list[_Line]) -> pl.DataFrame:
    """The events, sorted by track, with name, note, and the row of the launching call in this frame, or null."""
    frames, rows, begin = [pl.DataFrame(schema=_TOLD)], events.get_column("row"), 0
    for length, track in events.get_column("track").rle().struct.unnest().iter_rows():
        facts = lines[track].facts_of(rows.slice(begin, length))
        begin += length
        missing = {name: pl.lit(None) for name in _TOLD if name not in facts.columns}
        frames.append(facts.with_columns(**missing).select(pl.col(name).cast(kind) for name, kind in _TOLD.items()))
    facts = pl.concat(frames)
    launch = positions(facts.get_column("event_id"), facts.get_column("launch_id")).cast(pl.Int64).alias("launch")
    return events.drop("row").hstack(facts.drop("event_id", "launch_id")).with_columns(launch)


def _lines(report: Report) -> Iterator[_Line]:
    """The tracks: iterations, the critical path, of each device the ledger and its streams, then the host threads."""
    several = report.processes.get_column("process_id").n_unique() > 1
    pieces, streams = ledger_pieces(report), _streams(report)
    tone = pl.when(pl.col("kind") == "steady").then(pl.lit("iteration")).otherwise(pl.lit("odd"))
    iterations = named_iterations(report).select("start", "end", "name", tone=tone, note="kind")
    yield _line(Track("Iterations", "iterations", "iteration"), iterations)
    critical = with_names(report, path(report))
    causes = _toned(critical.get_column("cause").cast(pl.Enum(CAUSES)), [_PATH_TONES.get(one, one) for one in CAUSES])
    critical = critical.select("start", "end", "name", tone=causes, note="cause")
    yield _line(Track("Critical path", "critical path", "path"), critical)
    for device in windows(report).get_column("device"):
        group, spans = f"GPU {device}", pieces.filter(pl.col("device") == device)
        buckets = _toned(spans.get_column("bucket"), statistics.BUCKETS)
        ledger = spans.select("start", "end", name="culprit", tone=buckets, note="range")
        yield _line(Track(group, "ledger", "ledger"), ledger)
        for process, stream, spans in streams.get(device, []):
            label = f"stream {'?' if stream is None else stream}"
            track = Track(group, f"{label}, process {process}" if several else label, "stream")
            yield _line(track, spans, partial(_of_operations, report, spans.get_column("at")))
    yield from _host(report, several=several)


def _line(track: Track, events: pl.DataFrame, facts_of: Callable[[pl.Series], pl.DataFrame] | None = None) -> _Line:
    """A track of `events`, which have the columns of :data:`_TOLD` themselves unless there is `facts_of`."""
    spans = events.select("start", pl.max_horizontal("start", "end").alias("end"), pl.col("tone").cast(_TONE))
    return _Line(track, spans, facts_of or events.__getitem__)


def _toned(kinds: pl.Series, tones: Sequence[str]) -> pl.Series:
    """The tone of each of some values of an enumeration, of whose categories `tones` are those."""
    return gathered(pl.Series(tones, dtype=_TONE), kinds.to_physical().cast(pl.UInt32))


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


def _streams(report: Report) -> dict[int, list[tuple[int | None, int | None, pl.DataFrame]]]:
    """Operations of each device in scope by process and stream: start, end, tone, and their rows in ``at``."""
    work = device_operations(report, "stream")
    tone = _toned(work.get_column("bucket"), BUSY_BUCKETS)
    spans = work.select("device", "process_id", "stream", "start", "end", tone=tone).with_row_index("at")
    streams: dict[int, list[tuple[int | None, int | None, pl.DataFrame]]] = {}
    parts = parts_by(spans, ("device", "process_id", "stream"))
    for device, process, number in sorted(parts, key=lambda key: [(one is not None, one) for one in key]):
        own = parts[device, process, number]
        streams.setdefault(device, []).append((process, number, in_order(own, "start")))
    return streams


def _of_operations(report: Report, at: pl.Series, rows: pl.Series) -> pl.DataFrame:
    """Names of operations, how they were launched in words, and their launches; `at` are their rows in all of them."""
    work = device_operations(report).select("row", "event_id", "name")[at.gather(rows)]
    line = with_facts(report, work, "call_id", "shape", "size_bytes")
    size_notes = told_of(line.get_column("size_bytes"), units.size, pl.Categorical).alias("size_note")
    shapes = launch_shapes(report).select(shape_text("grid {} × block {}").cast(pl.Categorical)).to_series()
    notes = line.select(pl.coalesce(gathered(shapes, line.get_column("shape")), size_notes).alias("note")).to_series()
    if has_captures(report):
        place = captured_as(report, line.get_column("row"), "path").alias("place")
        noted = line.with_columns(place, notes.cast(pl.String).fill_null("").alias("note"))
        both = pl.when(place.is_null()).then("note").otherwise(pl.format("{} captured in {}", "note", "place"))
        notes = noted.select(both.replace("", None).cast(pl.Categorical).alias("note")).to_series()
    return line.select("row", "event_id", "name", launch_id="call_id", note=notes)


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
    lines: dict[threads.ThreadKey, list[_Line]] = {}
    weight: dict[threads.ThreadKey, int] = {}
    for kind, label, tone in _HOST:
        if kind not in report.kinds:
            continue
        events = report.kind(kind)
        tones = pl.lit(tone)
        if not tone:  # the bucket of each call; `launch` for those that launch
            buckets = labels(report).get_column("bucket").cast(_TONE)
            rows = labels_of(report, "api", events.get_column("name"))
            tones = pl.lit(gathered(buckets, rows).scatter(launching_rows(report), "launch"))
        # a range that was never closed ends where the recording does; what ends before it starts covers no time
        closed = pl.max_horizontal("start_ns", report.recorded[1])
        end = (pl.col("start_ns") + pl.col("dur_ns").clip(0)).fill_null(closed)
        spans = events.select(*threads.THREAD, start="start_ns", end=end, tone=tones).with_row_index("at")
        parts = parts_by(spans, threads.THREAD)
        for process, thread in sorted(parts, key=lambda key: parts[key].item(0, "at")):
            own = parts[process, thread]
            group = f"thread {'?' if thread is None else thread}" + (f" of process {process}" if several else "")
            facts_of = partial(_of_host, report, kind, own.get_column("at"))
            lines.setdefault((process, thread), []).append(_line(Track(group, label, kind), own, facts_of))
            weight[process, thread] = weight.get((process, thread), 0) + (own.height if kind == "api" else 1)
    for key in sorted(lines, key=lambda one: -weight[one]):
        yield from lines[key]


def _of_host(report: Report, kind: str, at: pl.Series, rows: pl.Series) -> pl.DataFrame:
    """Names of events of a host thread; `at` are their rows in all of their kind."""
    names = report.kind(kind).select("event_id", "name")[at.gather(rows)]
    return names if kind != "api" else names.with_columns(shown_calls(report, names.get_column("name")).alias("name"))


def lanes_of_events(start: pl.Series, end: pl.Series) -> pl.Series:
    """Lane of each event of a track, as UInt16; null for what would need more than :data:`MOST_LANES`.

    They are sorted by start, of equal ones the longest first. The first lane has each event that begins when all before
    it have ended, so the outermost ones where they nest; the next lane the same of the rest, and so on.
    """
    lanes = pl.Series("lane", [None], dtype=pl.UInt16).new_from_index(0, len(start))
    rest = pl.DataFrame([start.alias("start"), end.alias("end")]).with_row_index("at")
    free = pl.col("start") >= pl.col("end").cum_max().shift(1)
    for lane in range(MOST_LANES):
        if rest.is_empty():
            break
        own = rest.select(free.fill_null(value=True)).to_series()
        lanes = lanes.scatter(rest.get_column("at").filter(own), lane)
        rest = rest.filter(~own)
    return lanes


def on_one_clock(timelines: Sequence[tuple[str, int, Timeline]]) -> Timeline:
    """Puts `timelines` (name, by how much its times are moved (ns), timeline; at least one) below each other."""
    tracks: list[Track] = []
    counters: list[Counter] = []
    events: list[pl.DataFrame] = []
    rows = 0
    for label, moved_ns, own in timelines:
        shift = pl.lit(moved_ns, dtype=pl.Int64)
        track = (pl.col("track").cast(pl.UInt32) + len(tracks)).cast(pl.UInt16)
        events.append(own.events.with_columns(pl.col("start", "end") + shift, track, pl.col("launch") + rows))
        rows += own.events.height
        tracks += [track._replace(group=f"{label}, {track.group}") for track in own.tracks]
        moved = [(one, one.points.with_columns(pl.col("t_ns") + shift)) for one in own.counters]
        counters += [one._replace(group=f"{label}, {one.group}", points=points) for one, points in moved]
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


# Fewer events: the longest stay single, the rest are summed in bins of time.

_KEYS: Final = ("track", "lane", "tone")
_ORDER: Final = ("track", "lane", "several", "start")

#: What sums of events have, for an event that stands for itself alone.
_LENGTH: Final = pl.col("end") - pl.col("start")
_ALONE: Final = {
    "covered_ns": _LENGTH,
    "longest_ns": _LENGTH,
    "count": pl.lit(1, dtype=pl.UInt32),
    "several": pl.lit(value=False),
}


def reduced(events: pl.DataFrame, length_ns: int, most: int, whole: tuple[int, int] | None = None) -> pl.DataFrame:
    """Sums short events in bins where there are more than about `most`; adds covered_ns and count.

    In the time `whole` all stay single, unless that is most of them; `events` may be sums already. Sorted by track,
    lane, `several` and start. An event with a count above 1 stands for those of one tone in a bin: from the first start
    to the last end, covered_ns of it, with the name and longest_ns of the longest.
    """
    again = "covered_ns" in events.columns
    of = {name: pl.col(name) for name in _ALONE} if again else _ALONE
    if events.height <= most:
        return events.with_columns(**of).sort(_ORDER, maintain_order=True)
    kept, (low, high) = int(most * 0.6), whole or (0, 0)
    inside = events.select(~of["several"] & (pl.col("end") > low) & (pl.col("start") < high)).to_series()
    inside = inside if whole and 2 * int(inside.sum()) <= kept else inside & False
    others = of["covered_ns"].filter(~of["several"] & ~inside).top_k(kept - int(inside.sum()))
    alone = ~of["several"] & ((of["covered_ns"] > (events.select(others.min()).item() or 0)) | inside)
    long, short = events.filter(alone).with_columns(**of), events.filter(~alone)
    # of each track, lane and tone, and of each of so many slices of time that there are about as many sums as can be
    slices = max((most - kept) // max(short.select(_KEYS).n_unique(), 1), 1)
    in_slice = (pl.col("start") // max(-(-length_ns // slices), 1)).alias("slice")
    numbered = short.with_row_index("place")
    by_bin = numbered.group_by(*_KEYS, in_slice, maintain_order=True).agg(
        pl.col("place").get(of["longest_ns"].arg_max()),
        pl.col("start").min(),
        pl.col("end").max(),
        of["longest_ns"].max().alias("longest_ns"),
        of["covered_ns"].sum().alias("covered_ns"),
        pl.col("count").sum() if again else pl.len().alias("count"),
    )
    own = [name for name in short.columns if name not in (*_KEYS, "start", "end", *_ALONE)]
    longest = short.select(own)[by_bin.get_column("place")]
    summed = by_bin.hstack(longest).with_columns(several=pl.col("count") > 1).select(long.columns)
    return pl.concat([long, summed]).sort(_ORDER, maintain_order=True)


def fewer(timeline: Timeline, most: int) -> Timeline:
    """The timeline with `most` events or about as many."""
    events = reduced(timeline.events.with_row_index("row"), timeline.end_ns - timeline.start_ns, most, timeline.whole)
    rows = events.select(launch=pl.col("row").cast(pl.Int64), found=pl.int_range(pl.len(), dtype=pl.Int64))
    linked = events.join(rows, on="launch", how="left", maintain_order="left")
    return replace(timeline, events=linked.with_columns(launch="found").drop("row", "found"))
