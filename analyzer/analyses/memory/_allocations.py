"""Allocations and deallocations, each with its effect on the memory in use."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launches_of
from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.statistics import longest
from kanalyze.columns import beside
from kanalyze.report import Report

#: The names of allocating and freeing events; others (such as out of memory) do neither.
_FREE: Final = "Deallocation"
_NAMES: Final = ("Allocation", _FREE)

#: Kinds of memory that lie on the device; pinned and managed memory does not, or not entirely.
ON_DEVICE: Final = ("Device", "Device Static", "Array")

_TOLD: Final = ("memory", "address", "size_bytes", "pool", "pool_size_bytes", "pool_used_bytes")

#: Memory in use is counted separately for each of these.
KEYS: Final = ("device", "process_id", "memory")


@once_per_process
def steps(report: Report) -> pl.DataFrame:
    """All allocations and deallocations of the processes in scope, at any time, sorted by time.

    Columns: event_id, process_id, device, memory, t_ns, correlation_id, address, size_bytes, pool, pool_size_bytes,
    pool_used_bytes, free (whether it is a deallocation), matched (whether it fits the previous event at its address: an
    allocation of free memory, or a deallocation of a recorded allocation), delta_bytes (the change of the memory in
    use; 0 for an unmatched deallocation), told (whether the allocator reports its own totals, whose differences the
    deltas then are), before_bytes (what the allocator had in use before the first event of each process, device and
    kind of memory; else 0).
    A deallocation takes device, memory and size from its allocation. An unmatched allocation shows that the
    deallocation of the earlier one is missing: it replaces that one if both are of one device and kind.
    """
    named = pl.col("name").cast(pl.String) == _FREE
    events = (
        report.kind("memory")
        .filter(pl.col("name").cast(pl.String).is_in(_NAMES))
        .select(
            "event_id",
            "process_id",
            "device",
            "correlation_id",
            named.fill_null(value=False).alias("free"),
            t_ns="start_ns",
        )
    )
    line = beside(events, report.table("memory_detail"), *_TOLD).sort("process_id", "address", "t_ns", "event_id")
    same = pl.col("process_id").eq_missing(pl.col("process_id").shift(1)) & (
        pl.col("address") == pl.col("address").shift(1)
    )
    held = (same & ~pl.col("free").shift(1)).fill_null(value=False)
    line = line.with_columns(held.alias("held"))
    back, lost = pl.col("free") & pl.col("held"), ~pl.col("free") & pl.col("held")
    inherited = [
        pl.when(back).then(pl.col(name).shift(1)).otherwise(pl.col(name)).alias(name)
        for name in ("device", "memory", "size_bytes", "pool")
    ]
    alike = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in ("device", "memory")]
    replaced = pl.when(lost, *alike).then(pl.col("size_bytes").shift(1)).otherwise(0)
    known = line.with_columns(*inherited, replaced.alias("replaced"))
    size, none = pl.col("size_bytes"), pl.lit(0, dtype=pl.Int64)
    delta = pl.when(back).then(-size).when(~pl.col("free")).then(size - pl.col("replaced")).otherwise(none)
    fits = pl.col("free") == pl.col("held")
    found = known.select(*line.columns[:-1], fits.alias("matched"), delta.alias("delta_bytes")).sort("t_ns", "event_id")
    return found.with_columns(_has_allocator_totals()).with_columns(_by_totals()).with_columns(_before())


def in_use(report: Report) -> Iterator[tuple[int | None, int | None, str, pl.DataFrame]]:
    """Memory in use over time, by device (None for host memory), process and kind: these, and points of t_ns and value.

    Of the part in scope; the values count what was in use before its window, too.
    """
    if "memory" not in report.kinds:
        return
    line = steps(report)
    if report.scope.device is not None:
        line = line.filter(pl.col("device") == report.scope.device)
    for (device, process, memory), part in line.group_by(*KEYS, maintain_order=True):
        used = pl.col("before_bytes").first() + pl.col("delta_bytes").cum_sum()
        points = part.sort("t_ns", maintain_order=True).select("t_ns", value=used)
        points = intervals.overlapping(points, report.scope.sides, "t_ns", "t_ns")
        yield device if memory in ON_DEVICE else None, process, f"{memory or 'memory'} in use", points


def _has_allocator_totals() -> pl.Expr:
    """Whether the event is of a framework's allocator that reports totals; it has no address, unlike CUDA's pools."""
    told = pl.col("pool").is_null() & pl.col("pool_used_bytes").is_not_null()
    return told.all().over(KEYS).alias("told")


def _by_totals() -> pl.Expr:
    """The change of the memory in use between consecutive totals of the allocator, where it reports them."""
    size, used = pl.col("size_bytes"), pl.col("pool_used_bytes")
    first = pl.when("free").then(-size).otherwise(size)
    return (
        pl.when("told")
        .then((used - used.shift(1)).over(KEYS).fill_null(first))
        .otherwise("delta_bytes")
        .alias("delta_bytes")
    )


def _before() -> pl.Expr:
    first = (pl.int_range(pl.len()).over(KEYS) == 0) & pl.col("told")
    used, delta = pl.col("pool_used_bytes"), pl.col("delta_bytes")
    return pl.when(first).then(used - delta).otherwise(0).alias("before_bytes")


#: Calls of the ledger's bucket `allocation` that allocate, and those that free.
_TAKES: Final = r"Malloc|Alloc|HostRegister|MemCreate|Array(?:3D)?Create|MipmappedArrayCreate"
_GIVES: Final = r"Free|Unregister|MemRelease|ArrayDestroy"

#: Minimum number of rounds of allocating and freeing, each with launches, for a loop.
LOOP_ROUNDS: Final = 5


@once_per_process
def allocating_calls(report: Report) -> pl.DataFrame:
    """The calls of the processes in scope that allocate or free memory, at any time, sorted by time.

    Columns: row (of the api events), process_id, thread_id, correlation_id, name, start, end, gives (whether it frees),
    round (null outside of loops), launches (of that round).

    A round of a process lasts from an allocating call that follows a freeing one to the next such call. Only rounds
    with a launch, and at least as many freeing as allocating calls, are taken. A call is in a loop if its name occurs
    in at least :data:`LOOP_ROUNDS` of them, with gaps of at most :data:`LOOP_ROUNDS` rounds; it counts from the second
    one on, since one allocation is necessary. Memory that is never freed is in no loop.
    """
    events = report.kind("api").with_row_index("row")
    wanted = names_that(report, lambda name: bucket_of(name) == "allocation")
    text = pl.col("name").cast(pl.String)
    calls = events.filter(pl.col("name").is_in(wanted)).select(
        "row",
        "process_id",
        "thread_id",
        "correlation_id",
        "name",
        text.str.contains(_GIVES).alias("gives"),
        start="start_ns",
        end=pl.col("start_ns") + pl.col("dur_ns"),
    )
    calls = calls.filter(pl.col("gives") | text.str.contains(_TAKES)).sort("process_id", "start", "row")
    parts = [_with_rounds(calls.clear(), pl.Series(dtype=pl.Int64))]
    for (process,), part in calls.partition_by("process_id", as_dict=True).items():
        parts.append(_with_rounds(part, launches_of(report, process, "call_start").to_series()))
    return pl.concat(parts).sort("start", "row")


def _with_rounds(calls: pl.DataFrame, launches: pl.Series) -> pl.DataFrame:
    """The calls of one process, in order, with round and launches."""
    turn = (~pl.col("gives") & pl.col("gives").shift(1)).fill_null(value=False)
    numbered = calls.with_columns(round=turn.cum_sum().cast(pl.Int64))
    if longest(numbered, "round") < LOOP_ROUNDS:
        return calls.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in ("round", "launches"))
    launched = launches.search_sorted(numbered.get_column("start")).cast(pl.Int64)
    rounds = (
        numbered.with_columns(launched.alias("launched"))
        .group_by("round", maintain_order=True)
        .agg(pl.col("launched").first(), surplus=pl.col("gives").sum().cast(pl.Int64) - (~pl.col("gives")).sum())
        .with_columns(launches=pl.col("launched").shift(-1) - pl.col("launched"))
    )
    counting = rounds.filter((pl.col("round") > 0) & (pl.col("launches") > 0) & (pl.col("surplus") >= 0))
    counting = counting.select("round", "launches", turn=pl.int_range(pl.len(), dtype=pl.Int64))
    known = numbered.join(counting, on="round", how="left", maintain_order="left")
    # a program may have several loops, with calls of the same name in between
    apart = pl.col("turn") - pl.col("turn").forward_fill().shift(1) > LOOP_ROUNDS
    known = known.with_columns(loop=apart.fill_null(value=False).cum_sum().over("name"))
    often = pl.col("turn").drop_nulls().n_unique().over("name", "loop") >= LOOP_ROUNDS
    later = pl.col("turn") > pl.col("turn").min().over("name", "loop")
    return known.drop("turn", "loop").with_columns(
        pl.when(known.select(often & later).to_series()).then(pl.col("round", "launches"))
    )
