"""All events of a report as slices on tracks, the ledger and the iterations beside them, and counters."""

from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze import errors, model
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.iterations.iterations import TABLE as ITERATIONS_TABLE, iterations
from kanalyze.analyses.memory.memory import in_use
from kanalyze.analyses.replay.critical_path import path, with_names
from kanalyze.analyses.shared.analysis import require
from kanalyze.report import Report

#: Where a slice begins and ends, in an order in which each end closes the slice that was opened last.
EDGES: Final = {"track": pl.UInt32, "t": pl.Int64, "slice": pl.UInt32, "begins": pl.Boolean}


def edges(slices: pl.DataFrame) -> pl.DataFrame:
    """The edges of slices that nest in their tracks: :data:`EDGES`, by track and time.

    Slices are sorted by track, start and, of equal ones, the latest end. At one instant those end first that began
    before, the innermost first; then begin those that last, the outermost first, and then those without a duration,
    each of which ends before the next begins.
    """
    row = pl.int_range(pl.len(), dtype=pl.Int64)
    begin = slices.select("track", t="start", order=2 * row, slice=row.cast(pl.UInt32), begins=pl.lit(value=True))
    instant = pl.col("start") == pl.col("end")
    order = pl.when(instant).then(2 * row + 1).otherwise(-row - 1)
    end = slices.select("track", t="end", order=order, slice=row.cast(pl.UInt32), begins=pl.lit(value=False))
    return pl.concat([begin, end]).sort("track", "t", "order").select(*EDGES)


def lanes(slices: pl.DataFrame) -> pl.Series:
    """Lane of each slice of its track, from 0: the first in which it nests in, or is apart from, all before it."""
    # where all nest, the edges of one depth are pairs: the begin of a slice and the end of the same one
    step = pl.when("begins").then(1).otherwise(-1)
    depth = step.cum_sum() + pl.when("begins").then(0).otherwise(1)
    line = edges(slices).with_columns(depth=depth).sort("depth", maintain_order=True)
    pairs = line.select("track", first=pl.col("slice"), second=pl.col("slice").shift(-1)).gather_every(2)
    crossed = pairs.filter(pl.col("first") != pl.col("second")).get_column("track").unique()
    rows = slices.get_column("track").is_in(crossed.implode()).arg_true()
    first = pl.Series("lane", [0], dtype=pl.UInt32).new_from_index(0, slices.height)
    return first.scatter(rows, _placed(slices[rows]))


def _placed(slices: pl.DataFrame) -> list[int]:
    """Lanes of slices one by one, each with the ends of what is open in it; only tracks that need it come here."""
    lane_numbers: list[int] = []
    current, open_lanes = None, list[list[int]]()
    for track, start, end in slices.select("track", "start", "end").iter_rows():
        if track != current:
            current, open_lanes = track, []
        for number, ends in enumerate(open_lanes):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or ends[-1] >= end:
                ends.append(end)
                lane_numbers.append(number)
                break
        else:
            lane_numbers.append(len(open_lanes))
            open_lanes.append([end])
    return lane_numbers


#: What a track is of, as its events have it.
_PLACE: Final = ("device", "stream", "process_id", "thread_id", "of")

#: Tracks of what is no event of the report.
LEDGER: Final = "ledger"
ITERATIONS: Final = "iterations"
CRITICAL: Final = "critical path"

_KIND: Final = pl.Enum([*model.KINDS, LEDGER, ITERATIONS, CRITICAL])


class Track(NamedTuple):
    """A track: where its slices ran, what they are, its lane among those of one place, and of several ranks its rank.

    `of` is ``thread``, ``stream``, ``ledger``, ``iterations``, ``critical path``, or the kind of other events.
    """

    process: int | None
    thread: int | None
    device: int | None
    stream: int | None
    of: str
    lane: int
    rank: int | None = None

    @property
    def label(self) -> str:
        """The track in words, without its process and device."""
        thread = "?" if self.thread is None else self.thread
        stream = "?" if self.stream is None else self.stream
        where = {"thread": f"thread {thread}", "stream": f"stream {stream}"}.get(self.of)
        if where is None:
            where = self.of if self.stream is None else f"{self.of}, stream {stream}"
        return f"{where} ({self.lane + 1})" if self.lane else where


class Counter(NamedTuple):
    """A quantity over time, which stays as it is until the next point: t_ns and value."""

    process: int | None
    device: int | None
    label: str
    unit: str
    points: pl.DataFrame
    rank: int | None = None


class Slices(NamedTuple):
    """Events as slices on tracks. Times are nanoseconds in the report's own origin."""

    processes: dict[tuple[int | None, int], str]  # their names, by rank (None of one report) and id
    tracks: list[Track]  # of those of one place the first lane comes first
    #: By track, start and, of equal ones, the latest end: track (index), start, end, name, kind, event_id, launch (row
    #: of the call that launched it), `open` (whether it was never closed, so that it ends where the recording does).
    #: Slices of the ledger, of iterations and of the critical path have no event_id; a slice of the ledger is named for
    #: its bucket, and has those of its culprits inside; one of the path for its cause, and has what it is of inside.
    slices: pl.DataFrame
    counters: list[Counter]


def slices(report: Report) -> Slices:
    """All events of a report, or of its part in scope, as slices; those that overlap the window are whole."""
    require(report, "slices", *model.KINDS)
    named = named_iterations(report).drop("kind")
    parts = [*(_events(report, kind) for kind in report.kinds), _beside(named, ITERATIONS)]
    if {*model.DEVICE_KINDS}.intersection(report.kinds):
        pieces = ledger_pieces(report).filter(pl.col("end") > pl.col("start"))
        parts.append(_in_runs(pieces, "device", "bucket", "culprit", LEDGER))
        parts.append(_in_runs(with_names(report, path(report)), "process_id", "cause", "name", CRITICAL))
    events = pl.concat(parts)
    first = ("device", pl.col("of") != LEDGER, *_PLACE)
    places = events.select(_PLACE).unique().sort(*first, nulls_last=True).with_row_index("place")
    line = events.join(places, on=_PLACE, how="left", nulls_equal=True)
    line = line.sort("place", "start", "end", descending=[False, False, True], maintain_order=True)
    line = line.with_columns(lane=lanes(line.rename({"place": "track"})))
    keys = line.select("place", "lane").unique().sort("place", "lane").with_row_index("track")
    line = line.join(keys, on=["place", "lane"], how="left", maintain_order="left")
    line = line.sort("track", maintain_order=True)
    calls = line.select(call_id="event_id", launch=pl.int_range(pl.len(), dtype=pl.UInt32)).drop_nulls()
    launches = operations(report, "call_id").select("event_id", "call_id").drop_nulls().join(calls, on="call_id")
    launched = line.join(launches.drop("call_id"), on="event_id", how="left", maintain_order="left")
    rows = keys.join(places, on="place", how="left", maintain_order="left")
    rows = rows.select("process_id", "thread_id", "device", "stream", "of", "lane")
    processes = report.processes.select("process_id", "name").drop_nulls().unique("process_id", keep="first")
    return Slices(
        {(None, process): name for process, name in processes.iter_rows()},
        [Track(*row) for row in rows.iter_rows()],
        launched.select("track", "start", "end", "name", "kind", "event_id", "launch", "open"),
        [Counter(process, device, label, "bytes", points) for device, process, label, points in in_use(report)],
    )


def of_ranks(parts: Sequence[tuple[int, int, Slices]]) -> Slices:
    """The slices of several ranks as one; of each its rank, by how much its times are moved (ns), and its slices."""
    processes: dict[tuple[int | None, int], str] = {}
    tracks: list[Track] = []
    counters: list[Counter] = []
    frames: list[pl.DataFrame] = []
    rows = 0
    for rank, moved_ns, own in parts:
        shift = pl.lit(moved_ns, dtype=pl.Int64)
        placed = (pl.col("track") + len(tracks), pl.col("launch") + rows, pl.col("start", "end") + shift)
        frames.append(own.slices.with_columns(*placed))
        rows += own.slices.height
        processes |= {(rank, process): name for (_, process), name in own.processes.items()}
        tracks += [track._replace(rank=rank) for track in own.tracks]
        moved = [(one, one.points.with_columns(pl.col("t_ns") + shift)) for one in own.counters]
        counters += [one._replace(rank=rank, points=points) for one, points in moved]
    return Slices(processes, tracks, pl.concat(frames), counters)


def _events(report: Report, kind: str) -> pl.DataFrame:
    """Events of a kind in scope with their place, and with an end where they were never closed."""
    events, last = report.seen(kind), pl.lit(report.recorded[1], dtype=pl.Int64)
    if kind == "range":
        until = report.table("range_detail").select("event_id", "open_until_ns")
        events = events.join(until, on="event_id", how="left", maintain_order="left")
        last = pl.coalesce("open_until_ns", last)
    start, dur = pl.col("start_ns"), pl.col("dur_ns")
    hosted = pl.col("thread_id").is_not_null() & pl.lit(kind not in model.DEVICE_KINDS)
    of = pl.when(hosted).then(pl.lit("thread")).otherwise(pl.lit("stream" if kind in model.DEVICE_KINDS else kind))
    return events.select(
        "event_id",
        pl.col("kind").cast(_KIND),
        pl.col("name").cast(pl.String).fill_null("(no name)"),
        start.alias("start"),
        pl.max_horizontal(start, pl.when(dur.is_null()).then(last).otherwise(start + dur)).alias("end"),
        dur.is_null().alias("open"),
        "process_id",
        pl.when(hosted).then("thread_id").alias("thread_id"),
        *(pl.when(~hosted).then(name).alias(name) for name in ("device", "stream")),
        of.alias("of"),
    )


def _in_runs(pieces: pl.DataFrame, whose: str, run: str, part: str, of: str) -> pl.DataFrame:
    """A slice for each time without a break of one value of `run`, and in it those of its parts."""
    same = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in (whose, run)]
    goes_on = pl.all_horizontal(*same, (pl.col("start") == pl.col("end").shift(1)).fill_null(value=False))
    by_run = pieces.group_by((~goes_on).cum_sum().alias("run"), maintain_order=True)
    runs = by_run.agg(pl.col(whose, "start").first(), pl.col("end").last(), name=pl.col(run).first().cast(pl.String))
    parts = pieces.drop_nulls(part).select(whose, "start", "end", name=pl.col(part).cast(pl.String))
    return _beside(pl.concat([runs.select(parts.columns), parts]), of)


def named_iterations(report: Report) -> pl.DataFrame:
    """The iterations, named and numbered: process_id, start, end, name and kind; none where the report cannot tell."""
    end = pl.col("start_ns") + pl.col("dur_ns")
    try:
        rows = iterations(report)
    except errors.CannotTellError:
        rows = ITERATIONS_TABLE.empty()
    return rows.select("process_id", start="start_ns", end=end, name=pl.format("{} {}", "name", "index"), kind="kind")


def _beside(rows: pl.DataFrame, of: str) -> pl.DataFrame:
    """Slices that are no events, on tracks of their own: the columns of :func:`_events`."""
    given = {"name": pl.String, "start": pl.Int64, "end": pl.Int64}
    ids = dict.fromkeys(("event_id", "process_id", "thread_id", "device", "stream"), pl.Int64)
    missing = [pl.lit(None, dtype=kind).alias(name) for name, kind in ids.items() if name not in rows.columns]
    constants = [pl.lit(of, dtype=_KIND).alias("kind"), pl.lit(value=False).alias("open"), pl.lit(of).alias("of")]
    order = ("event_id", "kind", *given, "open", "process_id", "thread_id", "device", "stream", "of")
    return rows.with_columns(*missing, *constants).select(order)
