"""Calls in which the host waits for the device: blocking ones, those that nothing needs, reads of results and data."""

import re
from functools import partial
from typing import Any, Final

import polars as pl

from kanalyze import intervals, tools, units
from kanalyze.analyses.device._operations import (
    exclusive_operations,
    facts_of,
    launch_calls,
    nearest_launches,
    operations,
    with_facts,
)
from kanalyze.analyses.device._windows import busy_spans, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings._copied_lines import on_copied
from kanalyze.analyses.findings.on_host import LARGE_BYTES, PAGEABLE, PINNED, SCALAR_BYTES, SPAN, TO_DEVICE, TO_HOST
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal, phrases
from kanalyze.analyses.host._call_kinds import CUPY, PYTORCH, begun_before, calls_that, shown, world
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle import _attribution, code, ledger
from kanalyze.analyses.idle._idle_parts import named_waits, range_names
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls, in_scope
from kanalyze.analyses.iterations.iterations import iteration_spans, iterations_at
from kanalyze.analyses.launches._launch_costs import worth_saying
from kanalyze.analyses.memory.memory import ON_DEVICE
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.threads import THREAD, line_of
from kanalyze.columns import gathered, in_order, nearest, nearest_place, of_parts, rows_at, sure
from kanalyze.report import Report


@Rule
def host_blocks(report: Report) -> Findings:
    """At most one finding per device, on blocking calls of which no other finding tells more."""
    for device in windows(report).get_column("device"):
        pieces = _attribution.reasoned_pieces(report, device, "sync")
        yield _blocks(report, device, pieces, pieces) if intervals.length(pieces) else None


def _blocks(report: Report, device: int, pieces: pl.DataFrame, left: pl.DataFrame) -> Finding:
    """The finding on the part of `pieces` (start, end, detail) that is `left` of them."""
    stake, every = intervals.length(left), intervals.length(pieces)
    parts = intervals.cut(pieces, left).with_columns(ns=pl.col("end") - pl.col("start"))
    sums = parts.group_by("detail").agg(pl.col("ns").sum()).sort("ns", "detail", descending=[True, False])
    calls, others = sums.head(say.NAMED).rows(), every - stake
    figures = {"part": say.of_window(report, device, stake), "calls": calls, "others": others}
    return say.told(report, "host-blocks", device, left, retold=partial(_blocks, report, device, pieces), **figures)


# Launches that wait for what they launch: CUDA_LAUNCH_BLOCKING=1, and tools that look at one kernel after the other.

_ALL: Final = 0.99  # of kernels; without it hardly any ends while the call that launches it still runs
_FEWEST_KERNELS: Final = 50
_LONG_NS: Final = 20_000  # shorter ones may end while the profiler still notes the call


@Rule
def blocking_launches(report: Report) -> Findings:
    """One finding per device all of whose kernels that are not short end within the calls that launch them."""
    kernels = exclusive_operations(report, "call_start", "call_end").filter(pl.col("kind") == "kernel")
    inside = pl.col("start").is_between("call_start", "call_end") & (pl.col("end") <= pl.col("call_end"))
    for device, own in say.by_device(kernels.drop_nulls("call_end").sort("device")):
        long = own.filter(pl.col("dur_ns") >= _LONG_NS)
        if own.height < _FEWEST_KERNELS or not long.select(inside.mean() >= _ALL).item():
            continue
        idle = _attribution.reasoned_pieces(report, device, "launch", "api", "host")
        waited = own.filter(inside).select((pl.col("call_end") - pl.col("start")).sum()).item()
        # what the host does for the next launches goes on beside kernels then: the shorter of the two is hidden
        stake = min(waited, intervals.length(idle))
        figures = {"many": own.height, "ran": statistics.total(own, "exclusive_ns"), "waited": waited}
        yield say.told(report, "blocking-launches", device, idle, stake, **figures)


# Blocking calls after which the host launched more work without having received any data that the report can see.
#
# Without the call the host would have launched ahead, and the device would not have waited for it to wake up and
# launch. That wait is the upper bound of the gain.

#: Memory that the host may access without a copy; in a process that has any, no wait is called unneeded.
_SHARED_MEMORY: Final = re.compile(
    r"cudaMallocManaged|cuMemAllocManaged|cudaHostGetDevicePointer|cuMemHostGetDevicePointer"
)


@Rule
def unneeded_sync(report: Report) -> Findings:
    """At most one finding per device, on all such calls together."""
    rows = ledger.bucket_sums(report).filter(pl.col("bucket").is_in(("sync", "launch")))
    held = dict(rows.group_by("device").agg(pl.col("ns").sum()).iter_rows())
    if not any(worth_saying(report, ns) for ns in held.values()):
        return
    for device, calls in say.by_device(_of_program(report, avoidable(report))):
        if calls.height < say.FEWEST:
            continue
        ranges = gathered(range_names(report), ranges_at(report, calls.select(*THREAD, at="start"))).cast(pl.String)
        named = calls.select(shown(pl.col("name")).alias("api")).with_columns(ranges.alias("range"))
        top = named.group_by("api", "range").len().sort("len", "api", "range", descending=[True, False, False])
        name, span, times = top.row(0)
        share = "" if times == calls.height else f"{units.percent(times / calls.height)} of them "
        yield say.told(
            report,
            "unneeded-sync",
            device,
            say.idle_in(report, device, calls.select(start="since", end="until")),
            min(statistics.total(calls, "gain_ns"), held.get(device, 0)),
            where=say.main_site(report, calls.select(*THREAD, at="start")),
            mending=partial(_without_waits, calls=calls),
            many=calls.height,
            most=f"{share}{literal(str(name))}{f' in {literal(span)}' if span else ''}",
            blocked=intervals.length(calls),
        )


def _without_waits(report: Report, calls: pl.DataFrame) -> Mending:
    """The `calls` are gone, each with the line that it is in where that does nothing else."""
    at = calls.select(*THREAD, at="start")
    places = code.place_at(report, at).alias("place").drop_nulls().unique()
    texts = code.placed_with_text(report, places.to_frame()).get_column("text").cast(pl.String).fill_null("")
    lines = on_host.stretches_of(report, places.filter(texts.str.contains(on_host.ONLY_WAITS))).sort("start")
    held = lines[on_gpu.span_of(at, lines).drop_nulls().unique().sort()]
    return Mending(calls=calls.get_column("call_row"), host=held.select("process_id", "start", "end"))


def _of_program(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The calls but those for a stream by operators of PyTorch other than copies, which the program does not make."""
    trace = on_host.traced(report)
    if trace is None or calls.is_empty():
        return calls
    waits = blocking_calls(trace).filter(pl.col("scope").is_in(WAITING))
    operator = say.sites(trace, waits.select(*THREAD, at="start")).get_column("operator").str.extract(r"^(\S+)")
    waiting = operator.drop_nulls().unique()
    # operators of PyTorch that wait for a copy, which pinned memory spares; others need a count, or an answer
    waiting = waiting.filter(~waiting.str.contains(r"^aten::(?:to|_to_copy|copy_)$"))
    # those of the launches before and after it whose operators are known
    launched = on_gpu.with_operators(report, on_host.launched(report)).drop_nulls("outer")
    launched = launched.select(*THREAD, "call_start", inside=pl.col("outer").is_in(waiting.implode()))
    near = calls.with_row_index("place").filter(pl.col("scope") == "stream").select("place", "start", *THREAD)
    sides = (nearest(near, launched, ("start", "call_start"), THREAD, side) for side in ("before", "after"))
    own = pl.concat(side.filter("inside").select("place") for side in sides).to_series()
    return calls.filter(~pl.int_range(pl.len()).is_in(own.implode()))


def avoidable(report: Report) -> pl.DataFrame:
    """The blocking calls in scope that nothing in the report requires, with the device's wait for each.

    A call qualifies if its thread launched more work on the device after it, and waited for no other thread or process
    before that, which would last until it ends in any case, if no copy whose completion the host must
    know of (into host memory, or out of pinned memory) was launched since the previous such wait, if the process has no
    memory that host and device share, and if NCCL or RCCL does not make it itself.

    With row (the operation launched next; calls before one are taken together), sync_ns (the part of the device's idle
    time right before that operation that lies in the call), gain_ns (that and the device's wait for the launch, at most
    the call's duration), since and until (from when the device idled in the call until that operation began).
    """
    waiting = blocking_calls(report).filter(pl.col("scope").is_in(WAITING)).drop_nulls(["device", *THREAD])
    keys = [*THREAD, "device"]
    first = operations(report, "call_start", "thread_id").select("row", *keys, "start", at="call_start")
    first = in_order(in_order(first.drop_nulls("at"), "start").drop("start"), "at")
    following = nearest(_with_needs(report, waiting), first, ("end", "at"), keys, "after").drop_nulls("row")
    free = following.filter(~pl.col("needed").any().over("row")).sort("start")
    free = free.filter(~on_gpu.is_inside(free.select(*THREAD, at="start"), on_host.library_ranges(report)))
    lines = named_waits(report)

    def waited_ns(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        return intervals.overlap(part.get_column("end"), part.get_column("at"), line_of(lines, (key[0], key[1])))

    free = free.filter(of_parts(free, THREAD, pl.Int64, waited_ns) == 0)
    calls = free.join(windows(report).rename({"start": "low", "end": "high"}), on="device", maintain_order="left")
    calls = _with_idle(report, calls).hstack(_attribution.waited_ns(report, calls.get_column("row"), "launch_ns"))
    since = pl.max_horizontal("start", "idle")
    idled = pl.col("end").clip("low", "high") - since.clip("low", "high")
    sync = pl.when(pl.col("idle").is_not_null()).then(idled).clip(lower_bound=0).fill_null(0)
    one = pl.col("launch_ns") * pl.col("row").is_last_distinct()
    gain = pl.min_horizontal(sync + one, pl.col("end") - pl.col("start"))
    return calls.with_columns(sync_ns=sync, gain_ns=gain, since=since, until="begins").filter(pl.col("gain_ns") > 0)


def _with_idle(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds when the operation `row` of each call `begins`, and when its device became `idle` before that, or null."""

    def idle(key: tuple[int, ...], part: pl.DataFrame) -> pl.Series:
        starts, ends = busy_spans(report)[key[0]].get_columns()
        place = nearest_place(starts, part.get_column("begins"))
        begun = sure(gathered(starts, place) == part.get_column("begins"))
        return gathered(ends.shift(1), place.set(~begun, None))

    work = facts_of(report, calls.get_column("row"), "device", "start").rename({"start": "begins"})
    return calls.with_columns(work.get_column("begins"), of_parts(work, ["device"], pl.Int64, idle).alias("idle"))


def _with_needs(report: Report, waiting: pl.DataFrame) -> pl.DataFrame:
    """Adds whether the host needs each call, `needed`: for a copy's completion, or because it shares memory."""
    # when the thread last waited for at least the same work; two unknown streams may or may not be the same
    whole = pl.when(pl.col("scope") == "device").then("start").shift(1).forward_fill().over([*THREAD, "device"])
    known = (pl.col("scope") == "stream") & pl.col("stream").is_not_null()
    same = pl.when(known).then(pl.col("start").shift(1).over([*THREAD, "scope", "context_id", "stream"]))
    last = pl.max_horizontal(whole, same).fill_null(intervals.BEFORE_ALL)
    waits = waiting.sort("start", "call_row").with_columns(last_wait=last)
    # copies whose completion the host must know of, and graphs that may contain some
    work = operations(report).filter(pl.col("kind").is_in(["memcpy", "graph"]))
    work = with_facts(report, work, "call_row", "call_start", "source_memory", "target_memory").drop_nulls("call_row")
    at_once = (pl.col("scope") == "copy") & ~pl.col("name").cast(pl.String).str.contains("Async", literal=True)
    done = pl.col("call_row").is_in(blocking_calls(report).filter(at_once).get_column("call_row").implode())
    harmless = pl.col("source_memory").is_in((PAGEABLE, *ON_DEVICE)) & pl.col("target_memory").is_in(ON_DEVICE)
    copies = work.filter((pl.col("kind") == "graph") | ~(done | harmless.fill_null(value=False)))
    copies = copies.select("process_id", copied_at="call_start")
    line = nearest(waits, copies, ("start", "copied_at"), ["process_id"], "strictly before")
    # it may wait for a copy from before the recording
    warm = pl.col("process_id").is_in(begun_before(report).get_column("process_id").implode())
    sharing = calls_that(report, _SHARED_MEMORY.match, "process_id")
    unified = pl.col("name").cast(pl.String).str.contains("Unified", literal=True)
    moved = report.kind("memcpy").select("process_id", "name").unique().filter(unified).select("process_id")
    shared = pl.col("process_id").is_in(pl.concat([sharing, moved]).get_column("process_id").unique().implode())
    copied = (pl.col("copied_at") >= pl.col("last_wait")).fill_null(value=False)
    unseen = shared | (warm & (pl.col("last_wait") == intervals.BEFORE_ALL))
    return line.with_columns(needed=copied | unseen, unseen=unseen)


# Waits for a stream after which the host launches in another one: an event would keep the two in order.


@Rule
def waits_between_streams(report: Report) -> Findings:
    """At most one finding per device, on all such waits, if copies could run beside kernels without them."""
    pinned = pl.any_horizontal(pl.col("source_memory", "target_memory") == PINNED)
    every = _between_streams(report)
    for device, low, high in windows(report).select("device", "start", "end").iter_rows():
        calls = every.filter(pl.col("start").is_between(low, high), device=device)
        if calls.height < max(say.fewest_in(report), say.FEWEST):
            continue
        work = exclusive_operations(report, "detail", "stream", "source_memory", "target_memory").filter(device=device)
        streams = pl.concat([calls.get_column("stream"), calls.get_column("then")]).unique()
        copying = (pl.col("kind") == "memcpy") & (pl.col("exclusive_ns") > 0) & pinned
        # what is copied before the first wait has no work of the device to run beside
        behind = pl.col("start") >= calls.get_column("start").min()
        copies = work.filter(copying, behind, pl.col("stream").is_in(streams.implode()))
        if copies.is_empty():
            continue
        # kernels, and copies of either direction, run one after the other at best
        way = pl.when(pl.col("kind") == "memcpy").then(pl.col("detail").cast(pl.String)).fill_null("")
        parts = work.select("start", "end", way=way).partition_by("way", include_key=False)
        longest = max(intervals.length(intervals.clip(intervals.union(part), low, high)) for part in parts)
        idle = say.idle_in(report, device, calls, calls.select(start="at", end="begins"))
        stake = min(statistics.total(copies, "exclusive_ns") + intervals.length(idle), high - low - longest)
        where = say.main_site(report, calls.select(*THREAD, at="start"))
        figures = {"many": calls.height, "blocked": intervals.length(calls), "where": where}
        yield say.told(report, "unneeded-sync: streams", device, (copies, idle), stake, **figures)


def _between_streams(report: Report) -> pl.DataFrame:
    """The waits in scope for a stream, with when what the thread launches next, in another stream, `begins`.

    Left out is what the host may need: a wait behind a copy to the host in that stream, for memory that it shares with
    the device, and one for a copy from pinned memory that it has the time to fill before the next one.
    """
    waiting = blocking_calls(report).filter(pl.col("scope").is_in(WAITING)).drop_nulls(["device", *THREAD])
    waits = _with_needs(report, waiting).filter(pl.col("scope") == "stream", ~pl.col("unseen")).drop_nulls("stream")
    work = operations(report, "call_start", "thread_id", "stream", "source_memory", "target_memory", "size_bytes")
    work = in_order(work.drop_nulls("call_start").rename({"start": "begins", "call_start": "at"}), "at")
    after = work.select(*THREAD, "device", "at", "begins", then="stream")
    waits = nearest(waits, after, ("end", "at"), [*THREAD, "device"], "after").filter(
        pl.col("then") != pl.col("stream")
    )
    into = ~pl.col("target_memory").is_in(ON_DEVICE).fill_null(value=False) & pl.col("kind").is_in(["memcpy", "graph"])
    reads, of = work.filter(into).select("process_id", "stream", read="at"), ["process_id", "stream"]
    filled = work.filter(pl.col("source_memory") == PINNED)
    last = filled.select(*of, sent="at", bytes="size_bytes")
    for times, name in ((reads, "read"), (last, "sent")):
        waits = nearest(waits, times, ("start", name), of, "strictly before")
    waits = nearest(waits, filled.select("process_id", following="at"), ("end", "following"), ["process_id"], "after")
    calls = report.kind("api").select(*THREAD, **intervals.OF_EVENTS)

    def called_ns(key: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
        own = calls.filter(process_id=key[0], thread_id=key[1])
        return intervals.overlap(part.get_column("end"), part.get_column("until"), intervals.union(own))

    waits = waits.with_columns(until=pl.col("following").fill_null(pl.col("end")))
    free = pl.col("until") - pl.col("end") - of_parts(waits, THREAD, pl.Int64, called_ns)
    # no thread of a host fills more of its memory in a ns
    kept = pl.col("following").is_not_null() & (free < pl.col("bytes") / 50)
    sent, read = ((pl.col(name) >= pl.col("last_wait")).fill_null(value=False) for name in ("sent", "read"))
    return waits.filter(~read, ~sent | kept.fill_null(value=False)).sort("start")


# Copies to pageable memory that the thread does not read before it launches more, of which pageable-copy tells.


@analysis.once_per_report
def _set_aside(report: Report) -> pl.DataFrame:
    """Such copies (row) of data in programs of CUDA C++: that pinned memory is quicker, and waits for none, is sure."""
    if world(report) != tools.CUDA:
        return pl.DataFrame(schema={"row": pl.UInt32})
    copies = on_host.with_next(on_host.launched(report), (pl.col("way") == TO_HOST) & (pl.col("bytes") >= LARGE_BYTES))
    into = on_host.device_copies(report).filter(pl.col("target_memory") == PAGEABLE)
    # no thread of a host reads more of its memory in a ns: what it launches sooner after does not depend on all of a
    # copy
    unread = pl.col("next_call_start") - pl.col("call_end") < pl.col("bytes") / 50
    return copies.filter(unread).join(into, on="row", how="semi").select("row")


# Reads of results for which the host waits, and the idle time of the device that follows from each.


@Rule
def blocking_read(report: Report) -> Findings:
    """At most one finding per device, on all such reads together."""
    for device, pieces in idle_after_reads(report).items():
        own = _of_loops(report, reads(report)).filter(pl.col("device") == device)
        places, where = _places(report, own)
        sizes = own.drop_nulls("size_bytes")
        words = {}
        if say.in_pytorch(report):
            operator = where.split(" ", maxsplit=1)[0]
            small = sizes.height and statistics.longest(sizes, "size_bytes") <= SCALAR_BYTES
            # by the operator that reads, or reads a number; of others by what is read
            texts = phrases("reads")
            others = texts.get(f"number by {operator}", texts["value"]) if small else texts["tensors"]
            words = dict(zip(("headline", "action"), texts.get(operator, others), strict=True))
        # the host no longer waits in these reads: waits and reads of numbers are gone, copies do not block
        spans = own.select(SPAN).with_columns(pl.max_horizontal("end", pl.col("start") + 1))
        calls = on_gpu.calls_within(report, spans)
        waits = blocking_calls(report).filter(pl.col("call_row").is_in(calls.implode()))
        only = pl.col("scope").is_in(WAITING)
        pure, copying = (waits.filter(one).get_column("call_row") for one in (only, ~only))
        numbers = own.filter(pl.col("size_bytes") <= SCALAR_BYTES).get_column("call")
        work = operations(report, "call_row").filter(pl.col("call_row").is_in(numbers.implode()))
        change = Mending(calls=pure, unwaited=copying, gone=work.get_column("row"))
        figures = {"places": places, "sized": sizes.height, "blocked": intervals.length(own)}
        figures["each"] = statistics.median_of(sizes, "size_bytes")
        yield say.told(report, "blocking-read", device, pieces, where=where, mending=change, **figures, **words)


@Rule
def distribution_checks(report: Report) -> Findings:
    """At most one finding per device, on checks by torch.distributions, whose results go into conditions alone."""
    line = on_host.with_code(report)
    before, start = ([pl.col(name).shift(by).over(THREAD) for by in (1, 2)] for name in ("name", "start"))
    compares = before[1].str.contains(r"^aten::(?:eq|ne|[lg][te]|isfinite|logical_\w+|bitwise_\w+|__\w+__|all)$")
    line = line.with_columns(start=pl.when(compares).then(start[1]).otherwise(start[0]), asked=before[0])
    # nothing else asks so for a condition
    asks = line.filter(pl.col("launches") > 0, name="aten::is_nonzero", asked="aten::_is_all_true")
    yield from on_host.on_time(report, "blocking-read: checks", on_host.within(report, asks))


def idle_after_reads(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time that follows from reads, by device, where these are a loop's: columns of `idle_within`."""
    return {
        device: _attribution.idle_within(report, own.select(*THREAD, start="since", end="until"))[device]
        for device, own in say.by_device(_of_loops(report, reads(report)))
        if own.height >= say.fewest_in(report)
    }


def _of_loops(report: Report, all_reads: pl.DataFrame) -> pl.DataFrame:
    """The reads without those of iterations most of which do without them; in a window of these their number tells."""
    if all_reads.is_empty() or (report.scope.window is not None and report.scope.window.count):
        return all_reads
    inside = iterations_at(report, all_reads.select("process_id", at="start"))
    counted = intervals.overlapping(iteration_spans(report), report.scope.sides).group_by(each="name").len("many")
    line = all_reads.with_columns(inside.get_columns()).join(counted, on="each", how="left", maintain_order="left")
    often = pl.col("iteration").n_unique().over("each") >= say.OFTEN * pl.col("many")
    return line.filter(pl.col("iteration").is_null() | often).select(all_reads.columns)


@analysis.once_per_report
def reads(report: Report) -> pl.DataFrame:
    """The reads in scope after which the device idled, with start, end, since and until.

    A read is a copy to the host and the calls in which its thread waits before it launches more, from `start` to `end`.
    From `since` to `until` the device was idle because of it: from the end of the device's work, or from when the call
    began if that was later, until the thread's next launch, but no longer than the read took: without it, the host
    would have come to that launch sooner by as much, and by no more.
    """
    waiting = in_scope(report).filter(pl.col("scope").is_in([*WAITING, "copy"])).drop_nulls(["device", *THREAD])
    work = operations(report, "call_row").select("row", "kind", "detail", "device", "start", "call_row")
    work = work.drop_nulls("call_row")
    launches = in_order(launch_calls(report, "thread_id", "call_row", "call_start"), "call_start")
    launches = launches.select(*THREAD, call="call_row", launch="call_start")
    to_host = (pl.col("kind") == "memcpy") & (pl.col("detail") == TO_HOST)
    copies = with_facts(report, work.filter(to_host).unique("call_row", keep="first"), "size_bytes")
    copies = copies.join(_set_aside(report), on="row", how="anti")
    last = nearest(waiting, launches, ("start", "launch"), THREAD)
    together = last.join(copies.select("size_bytes", call="call_row"), on="call").sort("start")
    by_call = together.group_by(*THREAD, "device", "call", maintain_order=True)
    ended = by_call.agg(pl.col("call_row", "size_bytes").first(), pl.col("start").min(), pl.col("end").max())
    following = nearest(ended, launches.rename({"call": "next"}), ("end", "launch"), THREAD, "after")
    begun = work.filter(pl.col("call_row").is_in(following.get_column("next").drop_nulls().implode()))
    first = begun.sort("start", "row").unique("call_row", keep="first").select("row", "device", next="call_row")
    line = _with_idle(report, following.join(first, on=["next", "device"], maintain_order="left")).drop_nulls("idle")
    line = line.with_columns(since=pl.max_horizontal("idle", "start"))
    until = pl.min_horizontal("begins", pl.col("since") + pl.col("end") - pl.col("start"))
    return line.with_columns(until=until).filter(pl.col("until") > pl.col("since"))


def _places(report: Report, own: pl.DataFrame) -> tuple[str, str]:
    """Places of most reads, with their number; and the first of these places."""
    calls = rows_at(report.kind("api").select("name"), own.get_column("call_row"))
    at = say.sites_of_launches(report, own.select(*THREAD, at="start"))
    named = pl.concat([own, at, calls.select(api=shown(pl.col("name")))], how="horizontal")
    place = pl.coalesce(say.site_text(), "api").fill_null("a call without a name")
    sums = named.group_by(place=place).agg(count=pl.len(), ns=(pl.col("until") - pl.col("since")).sum())
    top = sums.sort("ns", "place", descending=[True, False]).head(say.NAMED)
    per = say.per_iteration(report)
    listed = [f"{literal(name)} ({per.plural(int(number), 'time')})" for name, number, _ in top.iter_rows()]
    rest = statistics.total(sums, "count") - statistics.total(top, "count")
    return ", ".join(listed) + (f", and {rest:,} elsewhere" if rest else ""), literal(str(top.item(0, "place")))


# Data that the host asks for: how many elements of a mask are true, and what is copied to it again and again.

_FINDING: Final = r"NonZeroOp|nonzero|DeviceSelectSweep|DeviceCompactInit|write_indices|cupy_(?:scan|bsum|getitem_mask)"

#: What takes the elements of CuPy's masks, and what counts them before.
_GETS, _SCANS = "cupy_getitem_mask", "cupy_(?:scan|bsum|copy__bool_bool)"

_TURNS: Final = 8  # so many masks of an iteration are a loop's

#: The size of a count, which the host reads.
_COUNT_BYTES: Final = 8


#: A tensor of a model is copied sooner after the one before it, with fewer operations between: it may be converted.
_APART_NS: Final = 200_000
_BETWEEN: Final = 3


@Rule.of(PYTORCH, CUPY)
def boolean_masks(report: Report) -> Findings:
    """At most one finding per device, on reads of how many elements of a mask are true."""
    torch = say.in_pytorch(report)
    finds, own = (pl.col("name") == "aten::nonzero") & pl.col("called"), on_host.operators(report)
    spans = own.filter(finds).select(SPAN) if own.height else _kernels(report)
    if spans.is_empty():
        return
    # each until the next launch of its thread, but at most twice as long: the device waits for that
    points = spans.select(*THREAD, at="end")
    until = nearest_launches(on_host.traced(report) or report, points, "call_start", later=True, equal=True).to_series()
    end = pl.min_horizontal(until.alias("until"), 2 * pl.col("end") - pl.col("start"))
    waited = spans.select(*THREAD, "start", end=pl.coalesce(end, "end")).sort(*THREAD, "start")
    # in which backward sorts gradients to put them where the elements of a mask were
    adds = pl.col("input_values").cast(pl.String).str.contains("True").fill_null(value=False)
    puts = own.filter(adds, name="aten::_index_put_impl_")
    backward = on_gpu.is_inside(puts.select(*THREAD, at="start"), own.filter(on_host.IS_NODE).select(SPAN))
    puts = puts.filter(backward).select(SPAN)
    puts = puts[on_gpu.span_of(spans.select(*THREAD, at="start"), puts).drop_nulls().unique()]
    inside = on_host.within(report, _joined(waited, puts))
    # what takes its place is launched: of arrays an operation, where()
    apart = on_host.launched(report).select(pl.col("call_start").diff().over(THREAD).median()).item() or 0
    kept = pl.min_horizontal(pl.col("start") + (say.LAUNCH_NS if torch else int(apart)), "end")
    turns = spans.height / (say.per_iteration(report).iterations or 1)
    every = spans
    if turns >= _TURNS:  # gathers and scatters of the rows of many masks in turn: sorted once, each is a slice
        parts = own.filter(pl.col("name").is_in(["aten::index", "aten::index_put_"])).select(SPAN)
        parts = nearest(parts, spans.select(*THREAD, begun="start"), ("end", "begun"), THREAD)
        most = 2 * (spans.select(pl.col("start").diff().over(THREAD).median()).item() or 0)
        parts = parts.filter((pl.col("start") - pl.col("begun")).is_between(1, most))
        every = pl.concat([spans, parts.select(SPAN)]).sort(SPAN[:3])
    whole, left = (on_host.within(report, _joined(part, puts)) for part in (every, every.with_columns(start=kept)))
    change = whole.mending._replace(host=left.host) if torch else left.mending
    # what takes the place of puts writes their elements, without sorting them: 7/8 less by torch.where() on an H200
    sorts = [work.rows.select("row", "dur_ns") for work in on_host.works_within(report, puts)]
    if sorts:
        shorter = pl.concat(sorts).select("row", saved_ns=on_gpu.part("dur_ns", 7 / 8))
        change = change.keeping(shorter.get_column("row"))._replace(shorter=shorter)
    name = f"boolean-masks{': CuPy' * (not torch)}"
    yield from on_host.on_time(report, name, inside, change, times=on_host.within(report, waited).host.height)


def _joined(*span_sets: pl.DataFrame) -> pl.DataFrame:
    """The union of spans of threads."""
    return intervals.union_by(pl.concat(part.select(SPAN) for part in span_sets), THREAD)


def _kernels(report: Report) -> pl.DataFrame:
    """Runs of kernels that find true elements, with the read of their number among them."""
    line = on_host.launched(report)
    reads = (pl.col("way") == TO_HOST) & (pl.col("bytes") <= _COUNT_BYTES)
    if world(report) == CUPY:  # whose scans are for sums, too, and which goes over the mask of a matrix once more
        line = line.with_columns(gets=on_host.kernels_named(line, _GETS), scans=on_host.kernels_named(line, _SCANS))
        reads &= pl.when(~pl.col("scans")).then("gets").backward_fill().shift(-1).over(THREAD)
    marked = line.with_columns(finds=on_host.kernels_named(line, _FINDING), reads=reads.fill_null(value=False))
    following = pl.col("call_start").shift(-1).over(THREAD)
    marked = marked.with_columns(until=pl.when("reads").then(following).otherwise(None).fill_null(pl.col("call_end")))
    part = (pl.col("finds") | pl.col("reads")).alias("part")
    reads_before = pl.col("reads").cast(pl.UInt32).cum_sum().shift(1, fill_value=0)
    runs = marked.with_columns(part, run=part.rle_id().over(THREAD), asked=reads_before).filter("part")
    searches = runs.group_by(*THREAD, "run", "asked", maintain_order=True)
    sides = {"start": pl.col("call_start").first(), "end": pl.col("until").last()}
    return searches.agg(pl.col("finds", "reads").any(), **sides).filter("finds", "reads").select(SPAN)


@Rule
def downloads(report: Report) -> Findings:
    """At most one finding per device, on copies of a model, or of data, to the host in each iteration."""
    iterations = say.per_iteration(report).iterations or 1
    copies = on_host.with_next(on_host.launched(report), pl.col("way") == TO_HOST)
    another = (pl.col("next_way") == TO_HOST).fill_null(value=False)
    # those shortly one after the other are of a model, say: small ones are among large ones
    apart = (pl.col("call_start") - pl.col("call_end").shift(1) > _APART_NS) | (pl.col("row").diff() > _BETWEEN)
    copies = copies.with_columns(together=apart.fill_null(value=True).cum_sum().over(THREAD))
    together = (*THREAD, "together")
    large = pl.col("bytes").max().over(together) >= 1 << 12  # no number
    # who sends more data at once had no use for what came; the host passes over it, some times, for no longer than this
    looked_ns = pl.max_horizontal(100_000, 0.1 * pl.col("bytes"))
    sends = (pl.col("next_way") == TO_DEVICE) & (pl.col("next_call_start") - pl.col("call_end") < looked_ns)
    copies = copies.filter(pl.col("bytes") > on_host.SCALAR_BYTES, large, ~sends.fill_null(value=False))
    copies = copies.join(_set_aside(report), on="row", how="anti")
    if world(report) == tools.CUDA:  # who has pinned the memory for a copy means to have all of it
        pinned = on_host.device_copies(report).filter(pl.col("target_memory") == PINNED)
        copies = copies.join(pinned, on="row", how="anti")
    after = pl.col("next_call_start")
    # NumPy computes with what it got from CuPy; else a call that waits returns so long after a copy's, at most (ns), or
    # the host computes with all that it got until then, for as long as it did not compute with before
    got, gap = pl.col("bytes").cum_sum(), (after - pl.col("call_end")).fill_null(0)
    rest = (0.5 * got - gap.cum_sum().shift(1, fill_value=0)).over(together)
    computed = pl.max_horizontal(50_000, 0.5 * pl.col("bytes"), rest).cast(pl.Int64)
    returned = after if world(report) == CUPY else pl.col("call_end") + computed
    end = pl.when(another).then(after).otherwise(pl.min_horizontal(after, returned))
    copies = copies.with_columns(end=pl.coalesce(end, "call_end"))
    seen = copies.join(exclusive_operations(report).select("row"), on="row", how="semi")
    if (moved := statistics.total(seen, "bytes")) >= LARGE_BYTES * iterations:
        spans = copies.select(*THREAD, "end", start="call_start")
        gaps = copies.filter(pl.col("end") < after).select(*THREAD, start="call_end", end="next_call_start")
        inside = on_host.own_within(report, _joined(spans, on_copied(report, gaps)))
        figures = {"many": seen.height, "bytes": moved // iterations, "each": "in each" if iterations > 1 else "in all"}
        yield from on_host.on_time(report, "downloads", inside, **figures)
