"""Time that memory takes: allocations in loops, pinning, unified memory, page faults, pageable and small copies."""

import re
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device import _operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_host import LARGE_BYTES, PAGEABLE, PINNED, TO_DEVICE, TO_HOST
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal, phrases
from kanalyze.analyses.host._call_kinds import calls_that, context_calls, names_that, shown
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle import _attribution, ledger
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls, scope_of
from kanalyze.analyses.iterations.iterations import iterations_at
from kanalyze.analyses.memory.memory import allocating_calls
from kanalyze.analyses.memory.migrations import FAULT_CAUSES, UNASKED, faulting_host, faults_seen, moves, pages
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams.concurrency import (
    ordering_calls,
    placed_operations,
    spans_by_stream,
    streamed_operations,
)
from kanalyze.columns import as_of, gathered, in_order, mixed, nearest, part, rate_of
from kanalyze.report import Report
from kanalyze.window import ALL_STEPS, STEP_PREFIX, plain, without_ids

_RELEASE_NS: Final = 50_000  # a wait returns sooner after the work that it was for, unless it does work of its own


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
        used = _operations.used_devices(report).filter(pl.col("device") == device)
        calls = looping.join(used, on="process_id", how="semi", nulls_equal=True)
        sums = calls.with_columns(exposed=intervals.covered(calls, idle)).group_by("call").agg(pl.col("exposed").sum())
        sums = sums.sort("exposed", "call", descending=[True, False])
        waits = (pl.col("device") == device) & (pl.col("bucket") == "allocation")
        held = sums.join(ledger.bucket_sums(report).filter(waits).select(call="detail", held="ns"), on="call")
        if not (stake := int(held.select(pl.min_horizontal("exposed", "held").sum()).item())):
            continue
        releases = _releases(report, calls).filter(device=device)
        released = say.idle_in(report, device, releases)
        stake += (released_ns := intervals.length(released))
        *others, last = sums.get_column("call").head(say.NAMED)
        named = " and ".join([", ".join(others), last] if others else [last])
        rounds = calls.drop_nulls("round").select("process_id", "round", "launches").unique()
        retries = _retries(report, calls) if say.in_pytorch(report) else 0
        host_ns = int(calls.select((pl.col("end") - pl.col("start")).sum()).item())
        pieces = _attribution.reasoned_pieces(report, device, "allocation")
        pieces = pieces.filter(pl.col("detail").is_in(held.get_column("call").implode()))
        # PyTorch keeps what is freed until it is told to give it back, or memory is short
        gives, took = calls.filter("gives"), pl.col("end") - pl.col("start")
        telling = say.in_pytorch(report) or 2 * int(gives.select(took.sum()).item()) > host_ns
        kind = ": retries" if retries else ": pools" if released_ns else ""
        yield say.told(
            report,
            f"allocation-in-loop{kind}",
            device,
            (pieces, released),
            stake,
            calls=calls.height,
            named=named,
            rounds=rounds.height,
            launches=total(rounds, "launches"),
            retries=retries,
            host=host_ns,
            released=released_ns,
            where=say.main_site(report, gives.select(*THREAD, at="start")) if telling else "",
            mending=Mending(calls=calls.get_column("row"), host=releases),
        )


def _releases(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """When waits last long after the device's work was done, since a pool gives back what some of `calls` freed.

    A pool does so at the next wait of any kind, unless its release threshold is raised (CUDA C++ Programming Guide,
    "Stream-ordered memory allocator"). Columns: process_id, device, start, end.
    """
    freed = calls.filter(pl.col("name").cast(pl.String).str.contains("FreeAsync", literal=True))
    waits = blocking_calls(report).filter(pl.col("scope").is_in(WAITING)).drop_nulls("device").sort("start")
    waits = waits.with_columns(before=pl.col("end").shift(1).over("process_id"))
    waits = nearest(waits, freed.select("process_id", freed="start"), ("start", "freed"), ["process_id"])
    waits = waits.filter(pl.col("freed") > pl.col("before").fill_null(pl.col("freed") - 1))
    work = _operations.device_operations(report).select("process_id", "device", at="end").sort("at")
    done = gathered(work.get_column("at"), as_of(waits.select("process_id", "device", at="end"), work))
    ends = waits.select("process_id", "device", start=pl.max_horizontal("start", done), end="end")
    return ends.filter(pl.col("end") - pl.col("start") >= _RELEASE_NS)


def _retries(report: Report, calls: pl.DataFrame) -> int:
    """How often a call that allocates was followed by calls that free, and another that allocates, without a launch."""
    line = calls.sort("process_id", "start", "row")
    before = _operations.nearest_launches(report, line.select("process_id", at="start"), "call_row").to_series()

    def beside(column: str, by: int, *, missing: bool | None = None) -> pl.Expr:
        return pl.col(column).shift(by, fill_value=missing).over("process_id")

    line = line.with_columns(before.alias("before"))
    alone = line.filter(~pl.col("gives") | ~beside("gives", 1, missing=False))
    same = [pl.col("before").eq_missing(beside("before", by)) for by in (1, -1)]
    around = [~beside("gives", by, missing=True) for by in (1, -1)]
    return alone.filter(pl.col("gives"), *same, *around).height


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
    if not again or trips <= 1:  # one round trip is normal use on both sides; from two on, memory thrashes
        return None
    of_kernels = part(pl.col("exclusive_ns"), pl.col("again_bytes"), pl.col("size_bytes"))
    stalled = _stalled(report, device, again=True)
    evicted = total(unasked.filter(pl.col("cause") == "Eviction"), "size_bytes")
    # when the device waits for what the CPU does as it faults
    host = faulting_host(report).get(device, pl.DataFrame(schema=intervals.SPANS)).unique(("start", "end"))
    return say.told(
        report,
        "unified-memory-thrash",
        device,
        (unasked.select("start", end=_END), host),
        int(unasked.select(of_kernels.sum()).item()) + stalled + intervals.length(host),
        moved=total(unasked, "size_bytes"),
        again=again,
        trips=trips,
        stalled=stalled,
        evicted=evicted,
        waits=intervals.length(host),
    )


def _prefetch(report: Report, device: int, moved: pl.DataFrame) -> Finding | None:
    """The finding on migrations by page fault that one prefetch would replace; None if they are few."""
    faulted = moved.filter(pl.col("cause").is_in(list(FAULT_CAUSES)))
    if faulted.height < _MANY:
        return None
    stalled = _stalled(report, device)
    prefetched = moved.filter((pl.col("cause") == "User prefetch") & (pl.col("size_bytes") >= LARGE_BYTES))
    return say.told(
        report,
        "unified-memory-prefetch",
        device,
        faulted.select("start", end=_END),
        total(faulted, "exclusive_ns") + stalled,
        many=faulted.height,
        moved=total(faulted, "size_bytes"),
        often=say.per_iteration(report).iterations,
        each=faulted.get_column("size_bytes").mean(),
        rate=on_host.bandwidth(faulted),
        against=on_host.bandwidth(prefetched) if prefetched.height else 0.0,
        stalled=stalled,
    )


def _stalled(report: Report, device: int, *, again: bool = False) -> int:
    """How long kernels ran during page faults, with `again` of those that had moved there: their stall at most."""
    groups = faults_seen(report).filter((pl.col("side") == "GPU") & (pl.col("device") == device))
    if again:
        pieces = pages(report).pieces.select("process_id", "on_device_ns", first="start", behind="end")
        groups = nearest(groups, pieces, ("address", "first"), ["process_id"])
        groups = groups.filter((pl.col("address") < pl.col("behind")) & (pl.col("on_device_ns") < pl.col("start")))
    work = _operations.of_device(
        _operations.exclusive_operations(report).select("device", "start", "end", "bucket"), device
    )
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
    details = pl.Series("name", names).to_frame().select(shown(pl.col("name"))).to_series()
    pinning = (pl.col("bucket") == "allocation") & pl.col("detail").is_in(details.implode())
    named = ", ".join(calls.select(name=shown(pl.col("name"))).to_series().unique().sort())
    for device, waits in _attribution.idle_within(report, calls.select(*THREAD, "start", "end")).items():
        pieces = waits.filter(pinning)
        yield say.told(report, "pinned-allocation", device, pieces, at_most=True, calls=calls.height, named=named)


_FEWEST_FAULTS: Final = 8  # fewer page faults are of what every program touches


@Rule
def cpu_page_faults(report: Report) -> Findings:
    """At most one finding per device, on all of the CPU's work in which it faults on managed memory."""
    ns = (pl.col("end") - pl.col("start")).sum()
    for device, inside in faulting_host(report).items():
        claims = inside.select("start", "end").unique().sort("start")
        if total(inside, "faults") < _FEWEST_FAULTS:
            continue
        each = inside.unique("start", keep="first").group_by(pl.col("function").cast(pl.String)).agg(ns=ns).drop_nulls()
        functions = each.sort("ns", "function", descending=[True, False])
        kernels = _operations.operations(report).filter(kind="kernel", device=device)
        after = intervals.length(claims.filter(pl.col("start") >= longest(kernels, "end")))
        name, most_ns = functions.row(0) if functions.height else ("", 0)
        figures = {"pages": total(inside, "faults"), "most": functions.head(3).rows(), "behind": after}
        where = literal(name) if most_ns >= 0.5 * intervals.length(claims) else ""
        yield say.told(report, "cpu-page-faults", device, claims, where=where, **figures)


# Copies of pageable memory, which hold up the host.

_ALIKE: Final = 5  # outside of iterations copies of one size recur where so many have other work between them
_WAY: Final = ("process_id", "device", "detail")  # copies of one way

#: Whether the host waits for what a synchronous call copies to it.
_NEEDED: Final = pl.col("synchronous") & (pl.col("detail") == TO_HOST)


@once_per_report
def copies_by_calls(report: Report) -> pl.DataFrame:
    """The program's :func:`device_copies` by calls and device: with the host's `memory`, and if `synchronous`."""
    work = on_host.device_copies(report)
    names = work.get_column("call_name").unique().drop_nulls()
    blocks = pl.Series("synchronous", [scope_of(name) == "copy" for name in names.cast(pl.String)], dtype=pl.Boolean)
    copying = pl.DataFrame([names, blocks]).filter(blocks | names.cast(pl.String).str.contains("Async", literal=True))
    host = pl.when(pl.col("source_memory").is_in([PAGEABLE, PINNED])).then("source_memory").otherwise("target_memory")
    copies = work.join(copying, on="call_name", maintain_order="left").with_columns(memory=host)
    copies = copies.drop("source_memory", "target_memory").drop_nulls("size_bytes")
    return on_host.without_set_up(report, copies).sort("device")


@once_per_report
def _pageable(report: Report) -> pl.DataFrame:
    """The pageable ones of :func:`copies_by_calls`, with the host time that pinned memory saves: spared, until.

    That is the call. But if the thread waits for the stream or device after a copy to the host, before it launches
    more, it would wait there anyway for earlier work: what the host does up to the end of that wait could overlap it.
    """
    # CUDA takes up to so much pageable memory with the call, and returns (CUDA C++ Programming Guide,
    # "Concurrent execution between host and device")
    large = ~pl.col("synchronous") | (pl.col("size_bytes") > 1 << 16)
    chosen = pl.col("detail").is_in([TO_DEVICE, TO_HOST]) & (pl.col("memory") == PAGEABLE) & large
    copies = copies_by_calls(report).filter(chosen)
    ends = in_order(in_order(streamed_operations(report).select("row", "start", "end", "number"), "row"), "start")
    ends = ends.select("row", before=pl.col("end").cum_max().shift(1).over("number"))
    ends = ends.filter(pl.col("row").is_in(copies.get_column("row").implode()))
    line = copies.join(ends, on="row", how="left", maintain_order="left").with_row_index("place")
    work = _operations.device_operations(report)
    last = as_of(copies.select(*_WAY[:2], at="start"), work.select(*_WAY[:2], at="end"))
    line = line.with_columns(before=pl.when(_NEEDED).then(gathered(work.get_column("end"), last)).otherwise("before"))
    waits = blocking_calls(report).filter(pl.col("scope").is_in(["stream", "device"]))
    waits = waits.select(*THREAD, wait="start", waited="end", behind="stream").drop_nulls([*THREAD, "wait"])
    launches = _operations.launch_calls(report, "thread_id", "call_start").drop_nulls().rename({"call_start": "launch"})
    for times, name in ((waits, "wait"), (launches, "launch")):
        line = nearest(line, times, ("call_end", name), THREAD, "after")
    first = (pl.col("wait") <= pl.col("launch").fill_null(pl.col("wait"))).fill_null(value=False)
    anyway = (pl.col("detail") == TO_HOST) & first & (pl.col("behind") == pl.col("stream")).fill_null(value=True)
    begun = pl.max_horizontal("call_start", pl.min_horizontal("before", "call_end"))
    spared = pl.when((anyway | _NEEDED) & pl.col("before").is_not_null()).then(begun).otherwise("call_start")
    until = pl.when(anyway).then("waited").otherwise("call_end")
    return line.sort("place").select(*copies.columns, spared=spared, until=until)


def pageable_copies(report: Report) -> pl.DataFrame:
    """The pageable copies in scope, with the columns of :func:`_pageable`, and whether each `recurs` in the report."""
    return _pageable(report).join(_recurring(report.whole), on="row", how="left", maintain_order="left")


@once_per_process
def _recurring(report: Report) -> pl.DataFrame:
    """Which pageable copies of a whole report recur: row, recurs.

    Those whose calls are in iterations of which another one has such a copy, but for those that take far longer than
    the longest ones of an iteration usually do, as an upload in the first one does; and those of one size between which
    the device does something else again and again.
    """
    copies, runs = _pageable(report), _operations.device_operations(report).filter(pl.col("kind") != "memcpy")
    runs = runs.select(*_WAY[:2], at="start")
    inside = iterations_at(report, copies.select("process_id", at="call_start"))
    before = gathered(runs.get_column("at"), as_of(copies.select(*_WAY[:2], at="start"), runs))
    # the union of a copy and the host interval that pinned memory would save
    both = (pl.min_horizontal("until", "end") - pl.max_horizontal("spared", "start")).clip(lower_bound=0)
    took = pl.col("until") - pl.col("spared") + pl.col("end") - pl.col("start") - both
    line = copies.with_columns(inside.get_columns(), before=before, took=took)
    line = line.with_columns(longest=pl.col("took").max().over("iteration"))
    # those that take far longer than the longest of an instance, in the median, do not recur
    usual = pl.col("took") <= 3 * pl.col("longest").median().over("each")
    again = (pl.col("iteration").n_unique().over("each") > 1) & usual
    turns = pl.col("before").n_unique().over(*_WAY, "size_bytes", "each") >= _ALIKE
    return line.select("row", recurs=pl.when(pl.col("each").is_null()).then(turns).otherwise(again))


@Rule
def pageable_copy(report: Report) -> Findings:
    """Findings per device: one on recurring copies, and one on those that happen once."""
    for copies in pageable_copies(report).partition_by("device", "recurs", maintain_order=True):
        device, recurs = copies.select("device", "recurs").row(0)
        rows, spans = copies.get_column("row"), copies.select(start="spared", end="until")
        stake = _gained_at_most(report, device, rows, spans)
        moved, back = (total(part, "size_bytes") for part in (copies, copies.filter(pl.col("detail") == TO_HOST)))
        pinned = _comparable(report, copies)
        what = "copy" if copies.get_column("synchronous").any() else "asynchronous copy"
        figures = {
            "many": copies.height,
            "copies": say.per_iteration(report).plural(copies.height, what, "of pageable memory"),
            "bytes": moved,
            "rate": on_host.bandwidth(copies),
            "against": on_host.bandwidth(pinned) if pinned.height else 0.0,
            "blocked": intervals.length(intervals.union(copies.select(start="call_start", end="call_end"))),
        }
        claims = (copies, say.idle_in(report, device, spans))
        way = "to the host" if 2 * back > moved else "to the GPU"
        if not recurs:
            figures["at_most"] = not copies.select(_NEEDED.any()).item()  # the host may do without what it waits for
            yield say.told(report, "pageable-copy-once", device, claims, stake, vague=True, **figures)
            continue
        yield say.told(
            report,
            "pageable-copy",
            device,
            claims,
            stake,
            **figures,
            action=phrases("pinned copies")[way + " in PyTorch" * say.in_pytorch(report)],
            where=say.place_of(report, rows),
            mending=_pinned(report, copies),
        )


def _pinned(report: Report, copies: pl.DataFrame) -> Mending | None:
    """The copies do not block, and take what pinned ones would; None for large ones where neither is known."""
    # the host still waits for what a synchronous call copies to it
    calls = copies.filter(~_NEEDED).get_column("call_row").drop_nulls().unique()
    against = _comparable(report, copies)
    usual = on_host.pinned_rate(report, copies.item(0, "device"))
    if not (bytes_per_s := on_host.bandwidth(against) if against.height else usual):
        large = longest(copies, "size_bytes") >= LARGE_BYTES
        return None if large or copies.select(_NEEDED.any()).item() else Mending(unwaited=calls)
    saved = pl.col("dur_ns") - (pl.col("size_bytes") / bytes_per_s * 1e9).ceil().cast(pl.Int64)
    return Mending(shorter=copies.select("row", saved_ns=saved.clip(lower_bound=0)), unwaited=calls)


def _comparable(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large pinned copies of the device and direction of `copies`."""
    pinned = copies_by_calls(report).filter((pl.col("memory") == PINNED) & (pl.col("size_bytes") >= LARGE_BYTES))
    return pinned.join(copies, on=_WAY[1:], how="semi")


def _gained_at_most(report: Report, device: int, rows: pl.Series, calls: pl.DataFrame) -> int:
    """Upper bound on how much shorter a device's window gets (ns) if operations (rows) and their calls took no time."""
    # the critical path passes through one of them at every instant that is gained, so that the gain is at most the
    # union of their intervals; other operations of a stream still run one after the other
    low, high = say.sides_of(report, device)
    chosen = pl.col("row").is_in(rows.implode())
    spans = pl.concat([_operations.exclusive_operations(report).filter(chosen).select("start", "end"), calls])
    others = placed_operations(report).filter((pl.col("device") == device) & ~chosen)
    busiest = max(map(intervals.length, spans_by_stream(others.select("number", "start", "end")).values()), default=0)
    return min(intervals.length(intervals.union(intervals.clip(spans, low, high))), high - low - busiest)


# Many small copies in place of one.

RUN: Final = 10  # minimum number of consecutive small copies for a run

#: A stream, keys by which runs are separated (the same calls end all runs of one key), and keys of comparable copies.
_STREAM: Final = ("process_id", "device", "context_id", "stream")
_SAME_MEMORY: Final = ("device", "detail", "source_memory", "target_memory")


@Rule
def many_small_copies(report: Report) -> Findings:
    """One finding per device and direction of copy, on its runs, each of which one copy could replace."""
    for copies in small_copies(report).partition_by("device", "detail", maintain_order=True):
        device, direction = copies.select("device", pl.col("detail").cast(pl.String)).row(0)
        # idle time, less the profiler's overhead and context creation
        overhead = report.kind("overhead").select(**intervals.OF_EVENTS)
        created = context_calls(report).select(start="start_ns", end="made_ns")
        free = intervals.subtract(idle_spans(report)[device], intervals.union(pl.concat([overhead, created])))
        waited = intervals.overlap(copies.get_column("call_start"), copies.get_column("call_end"), free)
        large = on_host.device_copies(report).filter((pl.col("size_bytes") >= LARGE_BYTES) & (pl.col("dur_ns") > 0))
        same = large.join(copies, on=_SAME_MEMORY, how="semi", nulls_equal=True)
        large = same if same.height else large.join(copies, on=_SAME_MEMORY[:2], how="semi")
        speed = total(large, "size_bytes") / total(large, "dur_ns") if large.height else None  # bytes per ns
        sums = copies.with_columns(waited.alias("waited_ns")).group_by("run")
        runs = sums.agg(pl.len().alias("count"), pl.col("exclusive_ns", "waited_ns", "size_bytes", "dur_ns").sum())
        # the cost of one copy for the whole run: at the bandwidth of large ones, but at least that of one small copy
        alone = pl.col("dur_ns") / pl.col("count")
        joined = pl.max_horizontal(alone, pl.col("size_bytes") / speed) if speed else alone
        moving = (pl.col("exclusive_ns") - joined).clip(lower_bound=0).sum().cast(pl.Int64)
        calling = (pl.col("waited_ns") - pl.col("waited_ns") / pl.col("count")).sum().cast(pl.Int64)
        moved_ns, called_ns = runs.select(moving=moving, calling=calling).row(0)
        waits = (pl.col("device") == device) & pl.col("bucket").is_in(("launch", "queued", "sync", "api"))
        called_ns = min(called_ns, total(ledger.bucket_sums(report).filter(waits), "ns"))
        one = runs.select(group="run", kept=pl.lit(1), merged_ns=joined.cast(pl.Int64))
        idle = say.idle_in(report, device, copies.select(start="call_start", end="call_end"))
        yield say.told(
            report,
            "small-copies",
            device,
            (copies, idle),
            moved_ns + called_ns,
            many=copies.height,
            direction=direction,
            bytes=copies.get_column("size_bytes").mean(),
            rate=on_host.bandwidth(copies),
            against=rate_of(speed, 1) if speed else 0.0,
            large=LARGE_BYTES,
            several=runs.height > 1,
            runs=runs.height,
            moved=moved_ns,
            called=called_ns,
            caller=_caller(report, copies),
            one="per run" if runs.height > 1 else "of all",
            where=say.main_site(report, copies.select("process_id", "thread_id", at="call_start")),
            mending=on_gpu.merged(copies.select("row", "dur_ns", group="run").join(one, on="group")),
        )


def _caller(report: Report, copies: pl.DataFrame) -> str:
    """The call that issued most of the copies, and the range around most of them."""
    text = f", by {literal(say.most(copies.select(call=shown(pl.col('call_name'))), 'call'))}"
    inside = ranges_at(report, copies.select("process_id", "thread_id", at="call_start")).drop_nulls()
    if inside.is_empty():
        return text
    names = named_ranges(report).select(without_ids(pl.col("range"))).to_series().gather(inside)
    ranges = names.str.replace(rf"^:?{STEP_PREFIX}\d+$", ALL_STEPS).alias("range")
    name = say.most(ranges.to_frame(), "range")
    often = "" if (ranges == name).sum() == copies.height else ", most often"
    return f"{text}{often} in the range {literal(plain(name))}"


def small_copies(report: Report) -> pl.DataFrame:
    """The small copies in scope that belong to a run of at least :data:`RUN`, by stream and time; with `run`.

    A run is a sequence of copies of one direction in one stream, each by its own call, with no other operation of the
    stream between them, so that one copy could replace it: nothing in between may have written its source or read its
    target. So a new run begins where the process, between the calls of two copies, launched other work on the device or
    made a call of :func:`ordering_calls`; for copies to the host also where it made a call that only waits.
    """
    # of so few bytes the duration hardly depends on the size
    few = pl.col("size_bytes") <= 64 << 10
    small = on_host.device_copies(report).filter(few & pl.col("graph_node_id").is_null())
    small = on_host.without_set_up(report, small.drop_nulls("call_row").filter(~pl.col("call_row").is_duplicated()))
    many = small.filter(pl.len().over(*_STREAM, "detail") >= RUN)
    if many.is_empty():
        return many.with_columns(run=pl.lit(0, dtype=pl.Int64))
    line = many.sort(*_STREAM, "began", "event_id").with_row_index("place")
    line = line.sort(pl.col("place").min().over(_WAY), "place").drop("place").with_row_index("place")
    call, earlier = pl.col("call_start"), pl.col("call_start").shift(1).over(*_STREAM, "detail")
    sides = pl.min_horizontal(call, earlier).alias("low"), pl.max_horizontal(call, earlier).alias("high")
    line = line.with_columns(*sides, earlier=earlier, on=mixed(_STREAM))
    # operations that no call tells of: they have none, or are other copies, large ones, or several by one call
    untold = pl.col("call_row").is_null() | (pl.col("kind") == "memcpy")
    rest = _operations.operations(report, "call_row").filter(
        untold & ~pl.col("row").is_in(many.get_column("row").implode())
    )
    others = _operations.with_facts(report, rest, "context_id", "stream").select(on=mixed(_STREAM), passed="start")
    line = nearest(line, others, ("began", "passed"), ["on"])
    # when a process called something that ends the runs of one direction on a device
    sent = many.select(_WAY).unique()
    sides = many.select(low=pl.col("call_start").min(), high=pl.col("call_start").max()).row(0)
    work = _operations.operations(report, "call_start").select(*_WAY[:2], other="detail", cut="call_start")
    launched = sent.join(work.filter(pl.col("cut").is_between(*sides)), on=_WAY[:2])
    waits = calls_that(report, lambda name: scope_of(name) in WAITING, "process_id", "start_ns")
    waiting = sent.filter(pl.col("detail") == TO_HOST).join(waits.rename({"start_ns": "cut"}), on="process_id")
    asking = sent.join(ordering_calls(report).select("process_id", cut="at"), on="process_id")
    others = launched.filter(pl.col("other").ne_missing(pl.col("detail")))
    cutting = pl.concat([part.select(*_WAY, "cut") for part in (others, asking, waiting)])
    line = nearest(line, cutting, ("high", "cut"), _WAY, "strictly before").sort("place")
    same = pl.col("passed").eq_missing(pl.col("passed").shift(1).over(*_STREAM, "detail"))
    cut = (pl.col("cut") > pl.col("low")).fill_null(value=False)
    numbered = line.with_columns(run=(pl.col("earlier").is_null() | ~same | cut).cum_sum().cast(pl.Int64))
    return numbered.select(*small.columns, "run").filter(pl.len().over("run") >= RUN)
