"""Unified memory: migrations between host and devices with their causes, page faults, and round trips of pages."""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, of_used_processes, used_devices, with_facts
from kanalyze.analyses.idle._attribution import host_pieces
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import longest
from kanalyze.columns import LARGEST, beside, nearest, rate
from kanalyze.report import Report

#: Directions of migration, and their names in reports.
WAYS: Final = {
    "to device": r"(?i)^unified.*(?:host-to-device|htod)",
    "to host": r"(?i)^unified.*(?:device-to-host|dtoh)",
    "between devices": r"(?i)^unified.*(?:device-to-device|dtod|peer)",
}

#: Causes of migration, each with a pattern of the profiler's label (CUpti_ActivityUnifiedMemoryMigrationCause).
CAUSES: Final = {
    "User prefetch": r"(?i)user",
    "Page fault": r"(?i)fault|coheren",
    "Speculative prefetch": r"(?i)specul",
    "Eviction": r"(?i)evict",
    "Access counters": r"(?i)access",
    "Unknown": "",
}

#: Causes due to page faults: the faulting pages, and those that the driver moved with them.
FAULT_CAUSES: Final = ("Page fault", "Speculative prefetch")

#: Causes of migrations that the program did not request.
UNASKED: Final = (*FAULT_CAUSES, "Eviction")

#: Stands for the host in place of a device number; the next one for an unknown device.
HOST: Final = -1
NOWHERE: Final = -2

#: The columns of :func:`moves`.
_MOVES: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys(("event_id", "process_id", "device", "dur_ns", "exclusive_ns", "start"), pl.Int64),
    "way": pl.Enum(list(WAYS)),
    "cause": pl.Enum(list(CAUSES)),
    **dict.fromkeys(("address", "size_bytes", "origin", "place"), pl.Int64),
}


@once_per_report
def moves(report: Report) -> pl.DataFrame:
    """The unified-memory copies in scope that overlap the window, not clipped to it.

    Columns: event_id, process_id, device, start, dur_ns, exclusive_ns (inside the window), way (of :data:`WAYS`), cause
    (of :data:`CAUSES`), address (null if not recorded), size_bytes, origin and place: source and target, each a device
    or :data:`HOST`.
    """
    work = exclusive_operations(report).filter(pl.col("kind") == "memcpy")
    names = work.get_column("detail").unique().cast(pl.String).drop_nulls()
    unified = [name for name in names if name.lower().startswith("unified")]
    if not unified:
        return pl.DataFrame(schema=_MOVES)
    keys = ("row", "event_id", "process_id", "device", "dur_ns", "exclusive_ns", "detail")
    found = work.filter(pl.col("detail").is_in(unified)).select(*keys, start="began")
    ends = ("source_device", "target_device")
    moved = with_facts(report, found, "address", "size_bytes", "migration_cause", *ends)
    way = _first_match(pl.col("detail"), WAYS)
    told = moved.with_columns(way.alias("way"), _first_match(pl.col("migration_cause"), CAUSES).alias("cause"))
    return _ends(report, told).with_columns(pl.col("size_bytes").fill_null(0)).select(list(_MOVES))


def _first_match(label: pl.Expr, words: dict[str, str]) -> pl.Expr:
    """The first of `words` whose pattern the label contains; the last one without a match."""
    text, found = label.cast(pl.String).fill_null(""), pl.lit(list(words)[-1])
    for word, pattern in reversed(words.items()):
        found = pl.when(text.str.contains(pattern or "^$")).then(pl.lit(word)).otherwise(found)
    return found.cast(pl.Enum(list(words)))


def _ends(report: Report, moved: pl.DataFrame) -> pl.DataFrame:
    """Adds origin and place to `moved`; copies between devices use the process' own device numbers."""
    ordinals = report.processes.select("process_id", "cuda_ordinal", "device").drop_nulls()
    known = moved
    for end in ("source", "target"):
        named = ordinals.select("process_id", pl.col("cuda_ordinal").alias(f"{end}_device"), known="device")
        named = named.unique(["process_id", f"{end}_device"], keep="first").rename({"known": end})
        known = known.join(named, on=["process_id", f"{end}_device"], how="left", maintain_order="left")
    to_host, to_device = pl.col("way") == "to host", pl.col("way") == "to device"
    own = pl.col("device")
    return known.with_columns(
        pl.when(to_host)
        .then(own)
        .when(to_device)
        .then(HOST)
        .otherwise(pl.col("source").fill_null(NOWHERE))
        .alias("origin"),
        pl.when(to_host).then(HOST).when(to_device).then(own).otherwise(pl.coalesce("target", own)).alias("place"),
    )


@once_per_report
def faults_seen(report: Report) -> pl.DataFrame:
    """The page faults in scope: of processes that used the device in scope, and of the device itself.

    Columns: event_id, side, process_id, device (null for the CPU), start, end, address, faults (number), access,
    function, module, source_file, source_line.
    """
    events = report.seen("fault").select("event_id", "process_id", "device", "start_ns", "dur_ns")
    device = report.scope.device
    if device is not None:
        events = of_used_processes(report, events).filter(pl.col("device").is_null() | (pl.col("device") == device))
    told = ("side", "address", "faults", "access", "function", "module", "source_file", "source_line")
    texts = ("module", "source_file")  # an empty text means unknown
    known = beside(events, report.table("fault_detail"), *told)
    known = known.with_columns(pl.when(pl.col(name) != "").then(pl.col(name)).alias(name) for name in texts)
    return known.select("event_id", "side", "process_id", "device", *told[1:], **intervals.OF_EVENTS)


@once_per_report
def faulting_host(report: Report) -> dict[int, pl.DataFrame]:
    """Page faults of the CPU while each device waits for the program's own code, by device.

    Columns: function, faults, at, and start and end of the piece of such time that they are in.
    """
    found = {}
    faults = faults_seen(report).filter(pl.col("side") == "CPU") if "fault" in report.kinds else pl.DataFrame()
    for device, pieces in host_pieces(report).items() if faults.height else ():
        users = used_devices(report).filter(pl.col("device") == device)
        own = faults.join(users, on="process_id", how="semi").select("faults", "function", at="start")
        inside = nearest(own, pieces.select("start", "end"), ("at", "start"))
        found[device] = inside.filter(pl.col("at") < pl.col("end"))
    return found


def moved_bytes(of: pl.Expr, name: str) -> pl.Expr:
    """The sum of size_bytes where `of` holds; null without such rows."""
    return pl.when(of.any()).then(pl.col("size_bytes").filter(of).sum()).alias(name)


def by_way() -> list[pl.Expr]:
    """Bytes by direction, null without any; then by cause, 0 without any."""
    ways = {"h2d_bytes": "to device", "d2h_bytes": "to host", "d2d_bytes": "between devices"}
    return [moved_bytes(pl.col("way") == way, name) for name, way in ways.items()]


def by_cause() -> list[pl.Expr]:
    """Bytes by the causes that a program can avoid."""
    causes = {"fault_bytes": FAULT_CAUSES, "prefetch_bytes": ("User prefetch",), "eviction_bytes": ("Eviction",)}
    return [
        pl.col("size_bytes").filter(pl.col("cause").is_in(list(words))).sum().alias(name)
        for name, words in causes.items()
    ]


def bandwidth() -> pl.Expr:
    """Bandwidth in bytes per second, from size_bytes and total_ns; null for no time."""
    return rate(pl.col("size_bytes"), pl.col("total_ns")).alias("bandwidth_bytes_per_s")


# Round trips of unified-memory pages, by address, independent of how the driver split migrations into copies.

#: Batch size in pieces of copies, which bounds the memory needed for large reports.
PARTS_AT_ONCE: Final = 1 << 22

_AGAIN: Final = {"event_id": pl.Int64, "again_bytes": pl.Int64}
_PIECES: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "round_trips": pl.Int64,
    "on_device_ns": pl.Int64,
}
_TRIPS: Final = {"device": pl.Int64, "trips": pl.Int64}


class Pages(NamedTuple):
    """The effect of the copies of :func:`kanalyze.analyses.memory._unified_moves.moves` on the memory that they moved.

    Attributes:
        again: For each copy, its bytes that had moved to the same place before, in scope; columns event_id,
            again_bytes.
        pieces: The address ranges that moved, split wherever a copy begins or ends; columns process_id, start and end
            (addresses), round_trips, and on_device_ns: start of the first copy to a device, null without one. The round
            trips of a piece are half of its returns to where it had been before its last move, rounded up.
        unasked: For each device, the maximum number of round trips of a page that ended with a copy which nobody
            requested (page fault or eviction); columns device, trips. Of a page, returns to one place are counted, at
            the place with most; devices without any are omitted.
    """

    again: pl.DataFrame
    pieces: pl.DataFrame
    unasked: pl.DataFrame


@once_per_report
def pages(report: Report) -> Pages:
    """The traffic of each piece of unified memory; processes do not share addresses."""
    known = moves(report).filter(pl.col("address") <= LARGEST, pl.col("size_bytes") > 0)
    again, pieces, trips = ([pl.DataFrame(schema=schema)] for schema in (_AGAIN, _PIECES, _TRIPS))
    for (process,), part in known.partition_by("process_id", as_dict=True).items():
        for parts in _cut(part):
            again.append(_again(parts))
            runs = _runs(parts)
            pieces.append(_pieces(runs).insert_column(0, pl.lit(process, dtype=pl.Int64).alias("process_id")))
            trips.append(_unasked(runs))
    # a copy in two batches has a row from each
    sums = pl.concat(again).group_by("event_id").agg(pl.col("again_bytes").sum())
    most = pl.concat(trips).group_by("device").agg(pl.col("trips").max()).sort("device")
    return Pages(sums.sort("event_id"), pl.concat(pieces).sort("process_id", "start"), most)


def _cut(moved: pl.DataFrame) -> list[pl.DataFrame]:
    """Splits the copies of one process at all addresses where any of them begins or ends, in batches of pieces.

    Columns: start and end (addresses), time, event_id, device, origin, place, unasked; sorted by start, time and
    event_id.
    """
    real = moved.select(
        *("event_id", "device", "origin", "place"),
        pl.col("cause").is_in(list(UNASKED)).alias("unasked"),
        time="start",
        start="address",
        end=pl.col("address") + pl.col("size_bytes"),
    )
    begins, ends = real.get_column("start").sort(), real.get_column("end").sort()
    edges = pl.concat([begins, ends]).unique().sort()
    pieces = pl.DataFrame({"start": edges.slice(0, len(edges) - 1), "end": edges.slice(1)})
    first = pieces.get_column("start")
    depth = begins.search_sorted(first, side="right").cast(pl.Int64) - ends.search_sorted(first, side="right")
    batch = depth.cum_sum() // PARTS_AT_ONCE
    pieces = pieces.with_columns(batch=batch).filter(depth > 0)
    batches = pieces.partition_by("batch", maintain_order=True, include_key=False)
    return [intervals.cut(real, some).sort("start", "time", "event_id") for some in batches]


def _again(parts: pl.DataFrame) -> pl.DataFrame:
    """The bytes of each copy that had moved to the same place before."""
    piece, place = pl.col("start").rle_id().cast(pl.Int64), pl.col("place") - parts.get_column("place").min()
    places = longest(parts.select(place), "place") + 1
    first = parts.select((piece * places + place).is_first_distinct()).to_series()
    length = pl.col("end") - pl.col("start")
    return parts.select("event_id", again_bytes=pl.when(first).then(0).otherwise(length))


def _runs(parts: pl.DataFrame) -> pl.DataFrame:
    """`parts` without moves to the current place, with `returned`: whether the piece had been there before."""
    known = parts.with_columns(new=(pl.col("start") != pl.col("start").shift(1)).fill_null(value=True))
    stays = ~pl.col("new") & (pl.col("place") == pl.col("place").shift(1))
    runs = known.with_columns(stays=stays).filter(~pl.col("stays"))
    two_back = pl.when(pl.col("new").shift(1)).then(pl.col("origin").shift(1)).otherwise(pl.col("place").shift(2))
    return runs.with_columns(returned=(~pl.col("new") & (pl.col("place") == two_back)).fill_null(value=False))


def _pieces(runs: pl.DataFrame) -> pl.DataFrame:
    """The pieces of `runs`, with their round trips."""
    arrived = pl.when(pl.col("place") != HOST).then("time")
    sums = runs.with_columns(arrived=arrived).group_by("start", maintain_order=True)
    return sums.agg(
        pl.col("end").first(),
        round_trips=(pl.col("returned").sum().cast(pl.Int64) + 1) // 2,
        on_device_ns=pl.col("arrived").min(),
    )


def _unasked(runs: pl.DataFrame) -> pl.DataFrame:
    """The maximum number of round trips of a piece by unrequested copies, by device."""
    back = runs.filter(pl.col("returned") & pl.col("unasked")).group_by("device", "start", "place").len("trips")
    return back.group_by("device").agg(pl.col("trips").max().cast(pl.Int64))
