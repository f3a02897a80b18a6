"""Time that managing memory takes: allocations in loops, pinning, moves of unified memory, the CPU's page faults."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    exclusive_operations,
    nearest_launches,
    of_device,
    operations,
    used_devices,
)
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal, words_of
from kanalyze.analyses.findings.rules import _operators as on_host
from kanalyze.analyses.findings.rules import _telling as say
from kanalyze.analyses.findings.rules._operators import LARGE_BYTES
from kanalyze.analyses.host._call_kinds import OPENACC, OPENMP, names_that, shown, world
from kanalyze.analyses.idle._attribution import idle_within, reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.memory.memory import allocating_calls
from kanalyze.analyses.memory.migrations import FAULT_CAUSES, UNASKED, faulting_host, faults_seen, moves, pages
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest, part
from kanalyze.report import Report
from kanalyze.units import plural, rate, size, time

_NAMED: Final = 3  # maximum number of calls named in the sentence


@Rule
def allocation_in_loop(report: Report) -> Findings:
    """One finding per device that waited in such calls, on all of them together."""
    # in a window of iterations, calls that recur with these count as well, also where there are few iterations
    every, window, counts = allocating_calls(report), report.scope.window, pl.col("round").is_not_null()
    if window is not None and window.count:
        sums = intervals.overlapping(every, report.scope.sides).group_by("name").len()
        often = sums.filter(pl.col("len") >= max(say.OFTEN * window.count, say.FEWEST)).get_column("name")
        counts = counts | pl.col("name").is_in(often.implode())
    looping = intervals.overlapping(every.filter(counts), report.scope.sides).with_columns(call=shown(pl.col("name")))
    for device, idle in idle_spans(report).items():
        used = used_devices(report).filter(pl.col("device") == device)
        yield _allocations(report, device, looping.join(used, on="process_id", how="semi", nulls_equal=True), idle)


def _allocations(report: Report, device: int, calls: pl.DataFrame, idle: pl.DataFrame) -> Finding | None:
    """The finding on the allocating `calls` of processes that use a device, each as the ledger has it in `idle`."""
    exposed, ns = intervals.overlap(calls.get_column("start"), calls.get_column("end"), idle), pl.col("exposed").sum()
    sums = calls.with_columns(exposed.alias("exposed")).group_by("call").agg(ns)
    sums = sums.sort("exposed", "call", descending=[True, False])
    waits = (pl.col("device") == device) & (pl.col("bucket").cast(pl.String) == "allocation")
    held = sums.join(bucket_sums(report).filter(waits).select(call="detail", held="ns"), on="call")
    if not (stake := int(held.select(pl.min_horizontal("exposed", "held").sum()).item())):
        return None
    *others, last = sums.get_column("call").head(_NAMED)
    named = " and ".join([", ".join(others), last] if others else [last])
    rounds = calls.drop_nulls("round").select("process_id", "round", "launches").unique()
    per, retries = say.per_iteration(report), _retries(report, calls) if say.in_pytorch(report) else 0
    launches = plural(total(rounds, "launches"), "launch")
    between = f" in {plural(rounds.height, 'round')} with {launches}" if rounds.height else ""
    host_ns = int(calls.select((pl.col("end") - pl.col("start")).sum()).item())
    short = (
        f" In {plural(retries, 'case')} one to allocate was followed at once by some to free and another to "
        "allocate: PyTorch's allocator does so where memory is short."
    )
    pieces = reasoned_pieces(report, device).filter(bucket="allocation")
    return words_of(f"allocation-in-loop{': retries' * (retries > 0)}", report).finding(
        device,
        f"{literal(named)} are called over and over between launches: {per.plural(calls.height, 'call')}"
        f"{between}, {per.time(host_ns)} of host time. The device waited {per.time(stake)} for them."
        f"{short if retries else ''} More may follow: the host is spared the calls.",
        pieces.filter(pl.col("detail").is_in(held.get_column("call").implode())),
        stake,
        headline=f"{per.plural(calls.height, 'call')} to allocate or free GPU memory",
        mending=Mending(calls=calls.get_column("row")),
    )


def _retries(report: Report, calls: pl.DataFrame) -> int:
    """How often a call that allocates was followed by calls that free, and another that allocates, without a launch."""
    line = calls.sort("process_id", "start", "row")
    before = nearest_launches(report, line.select("process_id", at="start"), "call_row").to_series()

    def beside(column: str, by: int, *, missing: bool | None = None) -> pl.Expr:
        return pl.col(column).shift(by, fill_value=missing).over("process_id")

    line = line.with_columns(before.alias("before"))
    alone = line.filter(~pl.col("gives") | ~beside("gives", 1, missing=False))
    same = [pl.col("before").eq_missing(beside("before", by)) for by in (1, -1)]
    around = [~beside("gives", by, missing=True) for by in (1, -1)]
    return alone.filter(pl.col("gives"), *same, *around).height


#: Of kernels meanwhile, and why mending may gain more than what is seen.
_STALLED: Final = " For {} kernels ran while page faults of the GPU were handled."
_FAULTS: Final = " More may follow where the host waits for page faults of its own."

#: One round trip is normal use on both sides; from so many on, memory thrashes.
_ROUND_TRIPS: Final = 2

_MANY: Final = 8  # minimum number of copies for a finding
_END: Final = pl.col("start") + pl.col("dur_ns")


@Rule
def unified_memory(report: Report) -> Findings:
    """At most one finding of each of the two rules per device."""
    if (moved := moves(report)).is_empty():
        return
    moved = moved.join(pages(report).again, on="event_id", how="left", maintain_order="left")
    moved = moved.with_columns(pl.col("again_bytes").fill_null(0))
    for device in windows(report).get_column("device"):
        own = moved.filter(pl.col("device") == device)
        yield from (_thrash(report, device, own), _prefetch(report, device, own))


def _thrash(report: Report, device: int, moved: pl.DataFrame) -> Finding | None:
    """Pages that migrated back and forth more than once, by page faults or eviction."""
    unasked = moved.filter(pl.col("cause").is_in(list(UNASKED)))
    trips = longest(pages(report).unasked.filter(pl.col("device") == device), "trips")
    again = total(unasked, "again_bytes")
    if not again or trips < _ROUND_TRIPS:
        return None
    of_kernels = part(pl.col("exclusive_ns"), pl.col("again_bytes"), pl.col("size_bytes"))
    stalled = _stalled(report, device, again=True)
    evicted = total(unasked.filter(pl.col("cause") == "Eviction"), "size_bytes")
    host = _faulting_times(faulting_host(report).get(device, pl.DataFrame(schema=intervals.SPANS)))
    waits, per = intervals.length(host), say.per_iteration(report)
    return words_of("unified-memory-thrash").finding(
        device,
        f"Page faults moved {size(total(unasked, 'size_bytes'))} of managed memory, {size(again)} of it to where it "
        f"had been before; the busiest page went there and back {plural(trips, 'time')}."
        + (_STALLED.format(per.time(stalled)) if stalled else "")
        + (f" The device had no room for {size(evicted)}." if evicted else "")
        + _FAULTS
        + (f" For {per.time(waits)} the device waits while the CPU faults them back, and works." if waits else ""),
        pl.concat([unasked.select("start", end=_END), host]),
        int(unasked.select(of_kernels.sum()).item()) + stalled + waits,
        headline=f"{size(again)} of managed memory moved back and forth",
    )


def _prefetch(report: Report, device: int, moved: pl.DataFrame) -> Finding | None:
    """The finding on migrations by page fault that one prefetch would replace; None if they are few."""
    faulted = moved.filter(pl.col("cause").is_in(list(FAULT_CAUSES)))
    if faulted.height < _MANY:
        return None
    stalled = _stalled(report, device)
    asked = moved.filter((pl.col("cause") == "User prefetch") & (pl.col("size_bytes") >= LARGE_BYTES))
    against = f", prefetched memory at {rate(on_host.bandwidth(asked))}" if asked.height else ""
    per, bytes_moved = say.per_iteration(report), total(faulted, "size_bytes")
    many, in_all = per.plural(faulted.height, "copy"), " in all," if per.iterations else ""
    return words_of("unified-memory-prefetch").finding(
        device,
        f"Page faults moved {size(bytes_moved)} of managed memory{in_all} in {many} of "
        f"{size(bytes_moved / faulted.height)} on average, at {rate(on_host.bandwidth(faulted))}{against}."
        f"{_STALLED.format(per.time(stalled)) if stalled else ''}{_FAULTS}",
        faulted.select("start", end=_END),
        total(faulted, "exclusive_ns") + stalled,
        headline=f"Managed memory moves in {many} by page faults",
    )


def _stalled(report: Report, device: int, *, again: bool = False) -> int:
    """How long kernels ran during page faults, with `again` of those that had moved there: their stall at most."""
    if "fault" not in report.kinds:
        return 0
    groups = faults_seen(report).filter((pl.col("side") == "GPU") & (pl.col("device") == device))
    if again:
        pieces = pages(report).pieces.select("process_id", "on_device_ns", first="start", behind="end")
        groups = nearest(groups, pieces, ("address", "first"), ["process_id"])
        groups = groups.filter((pl.col("address") < pl.col("behind")) & (pl.col("on_device_ns") < pl.col("start")))
    work = of_device(exclusive_operations(report).select("device", "start", "end", "bucket"), device)
    running = work.filter(pl.col("bucket").is_in(["kernel", "communication"]))
    return intervals.length(intervals.intersect(intervals.union(running), intervals.union(groups)))


#: Calls that pin memory of the host.
_PINNING: Final = re.compile(
    r"cudaHostAlloc|cudaMallocHost|cudaHostRegister|cuMemHostAlloc|cuMemAllocHost|cuMemHostRegister"
)


@Rule
def pinned_allocation(report: Report) -> Findings:
    """One finding per device that waited in calls that pin memory, other than in loops."""
    names = names_that(report, _PINNING.match)
    calls = allocating_calls(report).filter(pl.col("name").is_in(names) & pl.col("round").is_null())
    calls = intervals.overlapping(calls, report.scope.sides)
    if calls.is_empty():
        return
    details = pl.Series("name", names).to_frame().select(shown(pl.col("name"))).to_series()
    pinning = (pl.col("bucket") == "allocation") & pl.col("detail").is_in(details.implode())
    idle = idle_within(report, calls.select(*THREAD, "start", "end"))
    named = ", ".join(calls.select(name=shown(pl.col("name"))).to_series().unique().sort())
    for device, waits in idle.items():
        pieces = waits.filter(pinning)
        if stake := intervals.length(pieces):
            text = (
                f"GPU {device} waits {time(stake)} for {plural(calls.height, 'call')} to pin memory of the host, not "
                f"in a loop ({literal(named)}). It takes time for each page."
            )
            yield words_of("pinned-allocation", report).of(time(stake)).finding(device, text, pieces, at_most=True)


_FEWEST_FAULTS: Final = 8  # fewer page faults are of what every program touches
_MOST: Final = 0.5  # a function is named where it has this share of the time


@Rule
def cpu_page_faults(report: Report) -> Findings:
    """At most one finding per device, on all of the CPU's work in which it faults on managed memory."""
    per, ns = say.per_iteration(report), (pl.col("end") - pl.col("start")).sum()
    told = words_of("cpu-page-faults")
    if world(report) in (OPENMP, OPENACC):
        told = told._replace(action="map(to: …) and map(from: …) in place of managed memory, or do that on the GPU")
    for device, inside in faulting_host(report).items():
        claims = _faulting_times(inside)
        if total(inside, "faults") < _FEWEST_FAULTS:
            continue
        each = inside.unique("start", keep="first").group_by(pl.col("function").cast(pl.String)).agg(ns=ns).drop_nulls()
        functions = each.sort("ns", "function", descending=[True, False])
        named = ", ".join(f"{literal(name)} {per.mean_time(ns)}" for name, ns in functions.head(3).iter_rows())
        kernels = operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
        after = intervals.length(claims.filter(pl.col("start") >= longest(kernels, "end")))
        behind = f" {time(after)} of that is after the last kernel." if after else ""
        name, most_ns = functions.row(0) if functions.height else ("", 0)
        stake = intervals.length(claims)
        text = (
            f"The CPU works on managed memory for {per.time(stake)} while GPU {device} waits, and faults in "
            f"{plural(total(inside, 'faults'), 'page')} as it goes{f': {named}' if named else ''}.{behind}"
        )
        yield told.finding(device, text, claims, where=literal(name) if most_ns >= _MOST * stake else "")


def _faulting_times(inside: pl.DataFrame) -> pl.DataFrame:
    """When a device waits for such work: start, end."""
    return inside.select("start", "end").unique().sort("start")
