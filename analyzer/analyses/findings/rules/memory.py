"""Time that managing memory takes: allocations in loops, pinning, moves of unified memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, launches_of, of_device, used_devices
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import names_that, shown
from kanalyze.analyses.idle._attribution import idle_within, reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.memory._allocations import allocating_calls
from kanalyze.analyses.memory._unified_moves import FAULT_CAUSES, UNASKED, faulting_host, faults_seen, moves, pages
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns import exact
from kanalyze.columns.lookup import nearest
from kanalyze.units import plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Maximum number of calls named in the sentence.
_NAMED: Final = 3


def allocation_in_loop(report: Report) -> list[Finding]:
    """One finding per device that waited in such calls, on all of them together.

    In a window of iterations, calls that recur with these count as well, also where there are few iterations.
    """
    every = allocating_calls(report)
    window = report.scope.window
    counts = pl.col("round").is_not_null()
    if window is not None and window.count:
        often = max(_OFTEN * window.count, _FEWEST)
        sums = in_window(report, every).group_by("name").len()
        counts = counts | pl.col("name").is_in(sums.filter(pl.col("len") >= often).get_column("name").implode())
    looping = every.filter(counts)
    if looping.is_empty():
        return []
    known = looping.with_columns(shown(pl.col("name")).alias("call"))
    used = used_devices(report)
    found = []
    for device, idle in idle_spans(report).items():
        calls = known.join(used.filter(pl.col("device") == device), on="process_id", how="semi", nulls_equal=True)
        found.append(_allocations(report, device, in_window(report, calls), idle))
    return [one for one in found if one]


#: In a window of iterations: a call recurs that is made in half of them, at least so often.
_OFTEN: Final = 0.5
_FEWEST: Final = 3


def in_window(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Those of `calls` (start, end) that overlap the window."""
    return intervals.overlapping(calls, report.scope.sides)


def _allocations(report: Report, device: int, calls: pl.DataFrame, idle: pl.DataFrame) -> Finding | None:
    """The finding on the allocating `calls` of the processes that use a device; `idle` are the device's idle intervals.

    Calls on threads that the device did not wait for cost it nothing: at stake is, of each call, no more than what the
    ledger attributes to it.
    """
    exposed = intervals.overlap(calls.get_column("start"), calls.get_column("end"), idle)
    sums = (
        calls.with_columns(exposed.alias("exposed"))
        .group_by("call")
        .agg(pl.len().alias("count"), pl.col("exposed").sum(), ns=(pl.col("end") - pl.col("start")).sum())
    )
    held = bucket_sums(report).filter((pl.col("device") == device) & (pl.col("bucket").cast(pl.String) == "allocation"))
    known = sums.join(held.select(call="detail", held="ns"), on="call").with_columns(
        stake=pl.min_horizontal("exposed", "held")
    )
    stake = total(known, "stake")
    if not stake:
        return None
    top = sums.sort("exposed", "call", descending=[True, False]).head(_NAMED).get_column("call").to_list()
    named = " and ".join(part for part in (", ".join(top[:-1]), top[-1]) if part)
    rounds = calls.drop_nulls("round").select("process_id", "round", "launches").unique()
    per, retries = per_iteration(report), _retries(report, calls) if in_pytorch(report) else 0
    launches = plural(total(rounds, "launches"), "launch")
    between = f" in {plural(rounds.height, 'round')} with {launches}" if rounds.height else ""
    text = (
        f"{literal(named)} are called over and over between launches: {per.plural(calls.height, 'call')}"
        f"{between}, {per.time(total(sums, 'ns'))} of host time. The device waited {per.time(stake)} for them."
    )
    if retries:
        text += (
            f" In {plural(retries, 'case')} one to allocate was followed at once by some to free and another to "
            "allocate: PyTorch's allocator does so where memory is short."
        )
    text += " More may follow: the host is spared the calls."
    remedy = _REMEDIES["retries" if retries else "torch" if in_pytorch(report) else "cuda"]
    one = Finding("allocation-in-loop", device, stake, text, remedy, "memory --by call")
    headline = f"{per.plural(calls.height, 'call')} to allocate or free GPU memory"
    own = reasoned_pieces(report, device).filter(bucket="allocation")
    return one._replace(
        headline=headline,
        action=_KEEP[in_pytorch(report)],
        mending=lambda _: Mending(calls=calls.get_column("row")),
        claims=own.filter(pl.col("detail").is_in(known.get_column("call").implode())),
    )


def _retries(report: Report, calls: pl.DataFrame) -> int:
    """How often a call that allocates was followed by calls that free, and another that allocates, without a launch."""
    found = 0
    for (process,), own in calls.partition_by("process_id", as_dict=True).items():
        line = own.sort("start", "row")
        at = launches_of(report, process, "call_start").to_series()
        turn = line.with_columns(before=at.search_sorted(line.get_column("start")).cast(pl.Int64))
        alone = turn.filter(~pl.col("gives") | ~pl.col("gives").shift(1, fill_value=False))
        alone = alone.select("gives", "before", last=pl.col("before").shift(1), next=pl.col("before").shift(-1))
        same = (pl.col("last") == pl.col("before")) & (pl.col("next") == pl.col("before"))
        around = ~pl.col("gives").shift(1, fill_value=True) & ~pl.col("gives").shift(-1, fill_value=True)
        found += int(alone.select((pl.col("gives") & around & same.fill_null(value=False)).sum()).item())
    return found


_REMEDIES: Final = {
    "cuda": "Allocate once before the loop and reuse the memory, or take it from a pool that keeps what is freed.",
    "torch": (
        "Leave torch.cuda.empty_cache() out of the loop. If sizes change from step to step, set "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
    ),
    "retries": (
        "Leave the allocator room: a smaller batch, activation checkpointing, or "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, which wastes less. torch.cuda.memory_stats() counts "
        "num_alloc_retries."
    ),
}

#: How to keep memory, in CUDA and in PyTorch.
_KEEP: Final = (
    "allocate before the loop, or cudaMallocAsync from a pool",
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; no empty_cache()",
)


#: Why mending may gain more than what is seen.
_FAULTS: Final = " More may follow where the host waits for page faults of its own."

#: One round trip is normal use on both sides; from so many on, memory thrashes.
_ROUND_TRIPS: Final = 2

#: Minimum number of copies for a finding.
_MANY: Final = 8

#: Smaller prefetches do not show the bandwidth of prefetching.
_COMPARABLE_BYTES: Final = 1 << 20


def unified_memory(report: Report) -> list[Finding]:
    """At most one finding of each of the two rules per device."""
    moved = moves(report)
    if moved.is_empty():
        return []
    moved = moved.join(pages(report).again, on="event_id", how="left", maintain_order="left")
    moved = moved.with_columns(pl.col("again_bytes").fill_null(0))
    found = []
    for device, _, _ in windows(report).iter_rows():
        own = moved.filter(pl.col("device") == device)
        found += [finding for finding in (_thrash(report, device, own), _prefetch(report, device, own)) if finding]
    return found


def _thrash(report: Report, device: int, moved: pl.DataFrame) -> Finding | None:
    """Pages that migrated back and forth more than once, by page faults or eviction."""
    unasked = moved.filter(pl.col("cause").is_in(list(UNASKED)))
    trips = longest(pages(report).unasked.filter(pl.col("device") == device), "trips")
    again = total(unasked, "again_bytes")
    if not again or trips < _ROUND_TRIPS:
        return None
    part = exact.part(pl.col("exclusive_ns"), pl.col("again_bytes"), pl.col("size_bytes"))
    stalled = _stalled(report, device, _groups(report, device).filter("again"))
    evicted = total(unasked.filter(pl.col("cause") == "Eviction"), "size_bytes")
    text = (
        f"Page faults moved {size(total(unasked, 'size_bytes'))} of managed memory, {size(again)} of it to where it "
        f"had been before; the busiest page went there and back {plural(trips, 'time')}."
        + _while_stalled(report, stalled)
        + (f" The device had no room for {size(evicted)}." if evicted else "")
        + _FAULTS
    )
    remedy = (
        "Keep data on the side that uses it: cudaMemAdvise, a buffer of its own for each side, or one "
        "cudaMemPrefetchAsync per phase."
    )
    host = (
        faulting_host(report)
        .get(device, pl.DataFrame(schema=intervals.SPANS))
        .select("start", "end")
        .unique()
        .sort("start")
    )
    if waits := intervals.length(host):
        text += f" For {per_iteration(report).time(waits)} the device waits while the CPU faults them back, and works."
    stake = int(unasked.select(part.sum()).item()) + stalled + waits
    one = Finding("unified-memory-thrash", device, stake, text, remedy, "migrations")
    headline = f"{size(again)} of managed memory moved back and forth"
    action = "cudaMemAdvise, or a buffer of its own for each side"
    return one._replace(headline=headline, action=action, claims=pl.concat([_times(unasked), host]))


def _prefetch(report: Report, device: int, moved: pl.DataFrame) -> Finding | None:
    """The finding on migrations by page fault that one prefetch would replace; None if they are few."""
    faulted = moved.filter(pl.col("cause").is_in(list(FAULT_CAUSES)))
    if faulted.height < _MANY:
        return None
    stalled = _stalled(report, device, _groups(report, device))
    asked = moved.filter((pl.col("cause") == "User prefetch") & (pl.col("size_bytes") >= _COMPARABLE_BYTES))
    against = f", prefetched memory at {rate(_bandwidth(asked))}" if asked.height else ""
    per, bytes_moved = per_iteration(report), total(faulted, "size_bytes")
    many, in_all = per.plural(faulted.height, "copy"), " in all," if per.iterations else ""
    text = (
        f"Page faults moved {size(bytes_moved)} of managed memory{in_all} in {many} of "
        f"{size(bytes_moved / faulted.height)} on average, at {rate(_bandwidth(faulted))}{against}."
        f"{_while_stalled(report, stalled)}{_FAULTS}"
    )
    remedy = "Move it before it is used with one cudaMemPrefetchAsync on the stream that needs it."
    stake = total(faulted, "exclusive_ns") + stalled
    one = Finding("unified-memory-prefetch", device, stake, text, remedy, "migrations --by cause")
    headline = f"Managed memory moves in {many} by page faults"
    return one._replace(headline=headline, action="cudaMemPrefetchAsync before it is used", claims=_times(faulted))


def _times(moved: pl.DataFrame) -> pl.DataFrame:
    return moved.select("start", end=pl.col("start") + pl.col("dur_ns"))


def _while_stalled(report: Report, ns: int) -> str:
    told = per_iteration(report).time(ns)
    return f" For {told} kernels ran while page faults of the GPU were handled." if ns else ""


def _bandwidth(moved: pl.DataFrame) -> float:
    return exact.rate_of(total(moved, "size_bytes"), total(moved, "dur_ns"))


def _groups(report: Report, device: int) -> pl.DataFrame:
    """The fault groups of a device: start, end, and again (whether the page had started to move to a device before)."""
    if "fault" not in report.kinds:
        return pl.DataFrame(schema={**intervals.SPANS, "again": pl.Boolean})
    seen = faults_seen(report).filter((pl.col("side") == "GPU") & (pl.col("device") == device))
    pieces = pages(report).pieces.select("process_id", "on_device_ns", first="start", behind="end")
    joined = nearest(seen, pieces, ("address", "first"), ["process_id"])
    again = (pl.col("address") < pl.col("behind")) & (pl.col("on_device_ns") < pl.col("start"))
    return joined.select("start", "end", again.fill_null(value=False).alias("again"))


def _stalled(report: Report, device: int, groups: pl.DataFrame) -> int:
    """The time in which kernels ran on a device during any of `groups`: an upper bound of their stall, in ns."""
    if groups.is_empty():
        return 0
    work = of_device(exclusive_operations(report).select("device", "start", "end", "bucket"), device)
    running = work.filter(pl.col("bucket").is_in(["kernel", "communication"]))
    return intervals.length(intervals.intersect(intervals.union(running), intervals.union(groups)))


#: Calls that pin memory of the host.
_PINNING: Final = re.compile(
    r"cudaHostAlloc|cudaMallocHost|cudaHostRegister|cuMemHostAlloc|cuMemAllocHost|cuMemHostRegister"
)


def pinned_allocation(report: Report) -> list[Finding]:
    """One finding per device that waited in calls that pin memory, other than in loops."""
    names = names_that(report, _PINNING.match)
    calls = allocating_calls(report).filter(pl.col("name").is_in(names) & pl.col("round").is_null())
    calls = in_window(report, calls)
    told = pl.DataFrame({"name": names}, schema={"name": pl.String}).select(shown(pl.col("name"))).to_series()
    pinning = (pl.col("bucket") == "allocation") & pl.col("detail").is_in(told.implode())
    held = bucket_sums(report).filter(pinning).get_column("ns")
    if calls.is_empty() or not any(worth_saying(report, ns) for ns in held):
        return []
    idle = idle_within(report, calls.select(*THREAD, "start", "end"))
    waits = {device: pieces.filter(pinning) for device, pieces in idle.items()}
    return [_pinning(report, device, pieces, calls) for device, pieces in waits.items() if intervals.length(pieces)]


def _pinning(report: Report, device: int, pieces: pl.DataFrame, calls: pl.DataFrame) -> Finding:
    stake = intervals.length(pieces)
    names = calls.select(name=shown(pl.col("name"))).to_series().unique().sort()
    text = (
        f"GPU {device} waits {time(stake)} for {plural(calls.height, 'call')} to pin memory of the host, not in a loop "
        f"({literal(', '.join(names))}). It takes time for each page."
    )
    remedy = "A cost of starting up: pin less, pin once, or pin while the GPU has work."
    one = Finding("pinned-allocation", device, stake, text, remedy, "memory --by call")
    action = "pin less, and keep it" if in_pytorch(report) else "one cudaHostAlloc for all buffers, reused"
    return one._replace(headline=f"Pinning memory of the host takes {time(stake)}", action=action, claims=pieces)


RULES: Final = (allocation_in_loop, unified_memory, pinned_allocation)
