"""Calls in which the host waits for the device: blocking ones, those that nothing needs, and reads of results."""

from __future__ import annotations

import re
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launch_calls, operations, with_facts
from kanalyze.analyses.device._windows import busy_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._copies import TO_HOST, outside_library
from kanalyze.analyses.findings.rules._kernels import calls_within
from kanalyze.analyses.findings.rules._telling import (
    AHEAD,
    fewest_in,
    idle_in,
    in_pytorch,
    main_site,
    of_window,
    per_iteration,
    site_text,
    sites_of_launches,
)
from kanalyze.analyses.host._call_kinds import calls_that, shown
from kanalyze.analyses.host._context_creation import begun_before
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.host._rounds import rounds, rounds_at
from kanalyze.analyses.idle._attribution import idle_within, launch_waits, reasoned_pieces, waited_ns
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls, in_scope
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying, worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered, nearest, positions, rows_at
from kanalyze.intervals import BEFORE_ALL
from kanalyze.units import percent, size

if TYPE_CHECKING:
    from kanalyze.report import Report


def host_blocks(report: Report) -> list[Finding]:
    """At most one finding per device, on blocking calls of which no other finding tells more."""
    waits = {device: reasoned_pieces(report, device).filter(bucket="sync") for device in windows(report)["device"]}
    return [_blocks(report, device, pieces, pieces) for device, pieces in waits.items() if intervals.length(pieces)]


def _blocks(report: Report, device: int, pieces: pl.DataFrame, left: pl.DataFrame) -> Finding:
    """The finding on the part of `pieces` (start, end, detail) that is `left` of them."""
    per, stake, every = per_iteration(report), intervals.length(left), intervals.length(pieces)
    parts = intervals.cut(pieces, left).with_columns(ns=pl.col("end") - pl.col("start"))
    sums = parts.group_by("detail").agg(pl.col("ns").sum()).sort("ns", "detail", descending=[True, False])
    calls = ", ".join(f"{literal(name)} {per.mean_time(ns)}" for name, ns in sums.head(_NAMED).iter_rows())
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    took = of_window(per, stake, stake / max(high - low, 1))
    others = f", besides {per.mean_time(every - stake)} of which other findings tell" if stake < every else ""
    return Finding(
        "host-blocks",
        device,
        stake,
        f"GPU {device} idle while the host is blocked in a synchronizing call: {took} ({calls}){others}. {AHEAD}",
        "Launch the next work before waiting, or wait for less: an event instead of the device, later instead of now.",
        "syncs --by api",
        headline="The GPU idles while the host waits for it",
        action="launch the next work before you wait for the last",
        claims=left,
        retold=partial(_blocks, report, device, pieces),
    )


#: A few waits between phases are normal; from so many on there is a finding.
_FEWEST: Final = 3

#: The ledger's buckets that hold the time at stake.
_BUCKETS: Final = ("sync", "launch")


def unneeded_sync(report: Report) -> list[Finding]:
    """At most one finding per device, on all such calls together."""
    return [_unneeded(report, device, calls) for device, calls in unneeded(report).items()]


def _unneeded(report: Report, device: int, calls: pl.DataFrame) -> Finding:
    rows = bucket_sums(report).filter((pl.col("device") == device) & pl.col("bucket").is_in(_BUCKETS))
    stake = min(total(calls, "gain_ns"), total(rows, "ns"))
    per, blocked = per_iteration(report), intervals.length(calls)
    text = (
        f"{per.plural(calls.height, 'blocking call')} ({_most(report, calls)}), {per.time(blocked)} of host time, after"
        f" which the host launched more work, with no copy to the host pending: GPU {device} idled {per.time(stake)} "
        f"until they had returned and the next launch was through. That is unneeded unless the host or another process "
        f"reads what kernels wrote without a copy. {AHEAD}"
    )
    return Finding(
        "unneeded-sync",
        device,
        stake,
        text,
        "Leave them out, or order streams by events, so that the host launches ahead; wait where a result is read.",
        "syncs --by api",
        headline=f"{per.plural(calls.height, 'wait')} for the GPU that nothing is seen to need",
        action=_UNWAIT[in_pytorch(report)],
        where=main_site(report, calls.select(*THREAD, at="start")),
        mending=lambda _: Mending(calls=calls.get_column("call_row")),
        claims=idle_in(report, device, calls.select(start="since", end="until")),
    )


#: How not to wait, in CUDA and in PyTorch, whose copies to the GPU wait unless told otherwise.
_UNWAIT: Final = (
    "order streams by cudaStreamWaitEvent; wait where a result is read",
    "no torch.cuda.synchronize(); pinned memory and .cuda(non_blocking=True)",
)


def unneeded(report: Report) -> dict[int, pl.DataFrame]:
    """The rows of :func:`avoidable` by device, for devices with enough of them."""
    rows = bucket_sums(report).filter(pl.col("bucket").is_in(_BUCKETS))
    if not any(worth_saying(report, ns) for ns in rows.group_by("device").agg(pl.col("ns").sum()).get_column("ns")):
        return {}
    parts = avoidable(report).partition_by("device", as_dict=True, maintain_order=True)
    return {int(device): calls for (device,), calls in parts.items() if calls.height >= _FEWEST}


def _most(report: Report, calls: pl.DataFrame) -> str:
    """The name and range of most of `calls`."""
    points = calls.select("process_id", "thread_id", at="start")
    ranges = gathered(range_names(report), ranges_at(report, points)).cast(pl.String)
    named = calls.select(shown(pl.col("name")).alias("api")).with_columns(ranges.alias("range"))
    top = named.group_by("api", "range").len().sort("len", "api", "range", descending=[True, False, False]).row(0)
    name, span, times = top
    what = f"{literal(str(name))} in {literal(span)}" if span else literal(str(name))
    return what if times == calls.height else f"{percent(times / calls.height)} of them {what}"


# Blocking calls after which the host launched more work without having received any data that the report can see.
#
# Without the call the host would have launched ahead, and the device would not have waited for it to wake up and
# launch. That wait is the upper bound of the gain.

#: Memory that the host may access without a copy; in a process that has any, no wait is called unneeded.
_SHARED_MEMORY: Final = re.compile(
    r"cudaMallocManaged|cuMemAllocManaged|cudaHostGetDevicePointer|cuMemHostGetDevicePointer"
)

#: Source memory that CUDA has read when the call returns, or that is not the host's; target memory off the host.
_READ_AT_ONCE: Final = ("Pageable", "Device", "Device Static", "Array")
_OUT_OF_SIGHT: Final = ("Device", "Device Static", "Array")


@once_per_report
def avoidable(report: Report) -> pl.DataFrame:
    """The blocking calls in scope that nothing in the report requires, with the device's wait for each.

    A call qualifies if its thread launched more work on the device after it, if no copy whose completion the host must
    know of (into host memory, or out of pinned memory) was launched since the previous such wait, if the process has no
    memory that host and device share, and if NCCL or RCCL does not make it itself.

    Returns:
        Columns call_row, name, process_id, thread_id, start, end, device, row (the operation launched next; calls
        before one operation are taken together), sync_ns (the part of the device's idle time right before that
        operation that lies in the call), gain_ns (sync_ns plus the device's wait for the launch, at most the call's
        duration), since and until (from when the device idled in the call until that operation began).
    """
    waiting = blocking_calls(report).filter(pl.col("scope").is_in(WAITING)).drop_nulls(["device", *THREAD])
    following = followed(report, _with_needs(report, waiting))
    free = following.filter(~pl.col("needed").any().over("row"))
    return _with_gains(report, outside_library(report, free))


def _with_needs(report: Report, waiting: pl.DataFrame) -> pl.DataFrame:
    """Adds whether the host needs each call, `needed`: for a copy's completion, or because it shares memory."""
    line = nearest(_since(waiting), _host_copies(report), ("start", "copied_at"), ["process_id"], "strictly before")
    # it may wait for a copy from before the recording
    warm = pl.col("process_id").is_in(begun_before(report).get_column("process_id").implode())
    unknown = (pl.col("since") == BEFORE_ALL) & warm
    shared = pl.col("process_id").is_in(_sharing(report).implode())
    copied = (pl.col("copied_at") >= pl.col("since")).fill_null(value=False)
    return line.with_columns(needed=copied | unknown | shared)


def _since(waiting: pl.DataFrame) -> pl.DataFrame:
    """`waiting` with `since`: when its thread last waited for at least the same work; :data:`BEFORE_ALL` if never."""
    order = waiting.sort("start", "call_row")
    stream = [*THREAD, "scope", "context_id", "stream"]
    whole = pl.when(pl.col("scope") == "device").then("start").shift(1).forward_fill().over([*THREAD, "device"])
    # two unknown streams may or may not be the same
    known = (pl.col("scope") == "stream") & pl.col("stream").is_not_null()
    same = pl.when(known).then(pl.col("start").shift(1).over(stream))
    return order.with_columns(since=pl.max_horizontal(whole, same).fill_null(BEFORE_ALL))


def _host_copies(report: Report) -> pl.DataFrame:
    """Copies whose completion the host must know of, and graphs that may contain some: process_id, copied_at (call).

    A copy by a call that is not asynchronous is complete when that returns.
    """
    work = operations(report, "call_row", "call_start").drop_nulls("call_row")
    blocking = blocking_calls(report).filter(pl.col("scope") == "copy")
    names = blocking.get_column("name").unique().cast(pl.String)
    at_once = names.filter(~names.str.contains("Async", literal=True)).to_list()
    done = blocking.filter(pl.col("name").is_in(at_once)).get_column("call_row")
    copies = work.filter((pl.col("kind") == "memcpy") & ~pl.col("call_row").is_in(done.implode()))
    known = with_facts(report, copies, "source_memory", "target_memory")
    harmless = pl.col("source_memory").is_in(_READ_AT_ONCE) & pl.col("target_memory").is_in(_OUT_OF_SIGHT)
    told = (known.filter(~harmless.fill_null(value=False)), work.filter(pl.col("kind") == "graph"))
    return pl.concat(part.select("process_id", copied_at="call_start") for part in told)


def _sharing(report: Report) -> pl.Series:
    """The processes that have memory shared by host and device."""
    made = calls_that(report, _SHARED_MEMORY.match, "process_id")
    moved = report.kind("memcpy").select("process_id", "name").unique()
    moved = moved.filter(pl.col("name").cast(pl.String).str.contains("Unified", literal=True)).select("process_id")
    return pl.concat([made, moved]).get_column("process_id").unique()


def _with_gains(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The `calls` in the windows with the gain of each; calls without a gain are dropped."""
    times = dict.fromkeys(("sync_ns", "gain_ns", "since", "until"), pl.Int64)
    found = [calls.with_columns(pl.lit(0, dtype=dtype).alias(name) for name, dtype in times.items()).clear()]
    for device, low, high in windows(report).iter_rows():
        own = calls.filter(pl.col("device") == device).sort("start")
        if own.is_empty():
            continue
        row = own.get_column("row")
        line = own.with_columns(idle_since(report, device, row), launch=waited_ns(launch_waits(report), row))
        idled = pl.col("end").clip(low, high) - pl.max_horizontal("start", "idle").clip(low, high)
        line = line.with_columns(
            sync_ns=pl.when(pl.col("idle").is_not_null()).then(idled).clip(lower_bound=0).fill_null(0)
        )
        one = pl.col("launch") * pl.col("row").is_last_distinct()
        gain = pl.min_horizontal(pl.col("sync_ns") + one, pl.col("end") - pl.col("start"))
        begins = operations(report).get_column("start").gather(row).alias("until")
        line = line.with_columns(begins, gain_ns=gain, since=pl.max_horizontal("start", "idle"))
        found.append(line.select(found[0].columns))
    return pl.concat(found).filter(pl.col("gain_ns") > 0)


# Reads of results for which the host waits, and the idle time of the device that follows from each.

#: In a window of iterations, a read in so many of them at least is one of the loop.
_OFTEN: Final = 0.5

#: The size of the largest number that PyTorch reads as one.
_SCALAR_BYTES: Final = 16

#: Maximum number of places named in the sentence.
_NAMED: Final = 3


def blocking_read(report: Report) -> list[Finding]:
    """At most one finding per device, on all such reads together."""
    return [_read(report, device, pieces) for device, pieces in idle_after_reads(report).items()]


def idle_after_reads(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time that follows from reads, by device, where it is worth a finding: columns of `idle_within`."""
    least_ns, known = least_worth_saying(report), _of_loops(report, reads(report))
    found: dict[int, pl.DataFrame] = {}
    for (device,), own in known.partition_by("device", as_dict=True, maintain_order=True).items():
        number = int(str(device))
        spans = own.select(*THREAD, start="since", end="until")
        if own.height < fewest_in(report) or intervals.length(spans) < max(least_ns.get(number, inf), 1):
            continue  # what lies in the spans is no longer than they are
        pieces = idle_within(report, spans)[number]
        if intervals.length(pieces) >= max(least_ns[number], 1):
            found[number] = pieces
    return found


def _of_loops(report: Report, known: pl.DataFrame) -> pl.DataFrame:
    """The reads without those of rounds (steps, instances of a range) most of which do without them.

    In a window of iterations the number of these tells as much.
    """
    if known.is_empty() or (report.scope.window is not None and report.scope.window.count):
        return known
    inside = rounds_at(report, known.select("process_id", at="start"))
    line = known.with_columns(inside.select("round", "round_name"))
    every = intervals.overlapping(rounds(report), report.scope.sides)
    counted = every.group_by(round_name="name").agg(many=pl.len())
    line = line.join(counted, on="round_name", how="left", maintain_order="left")
    often = pl.col("round").n_unique().over("round_name") >= _OFTEN * pl.col("many")
    return line.filter(pl.col("round").is_null() | often).select(known.columns)


@once_per_report
def reads(report: Report) -> pl.DataFrame:
    """The reads in scope after which the device idled.

    Columns: process_id, thread_id, device, call_row (its first call), size_bytes (of its last copy), start, end, since
    and until.

    A read is a copy to the host and the calls in which its thread waits before it launches more, from `start` to `end`.
    From `since` to `until` the device was idle because of it: from the end of the device's work, or from when the call
    began if that was later, until the thread's next launch, but no longer than the read took: without it, the host
    would have come to that launch sooner by as much, and by no more.
    """
    columns = (*THREAD, "device", "call_row", "size_bytes", "start", "end")
    grouped = _grouped(report)
    found = [grouped.select(*columns, since="start", until="end").clear()]
    work = operations(report)
    for (device,), own in grouped.drop_nulls("row").partition_by("device", as_dict=True, maintain_order=True).items():
        here = own.filter(work.get_column("device").gather(own.get_column("row")) == device)
        row = here.get_column("row")
        idle = idle_since(report, int(str(device)), row)
        begins = work.get_column("start").gather(row).alias("begins")
        line = here.with_columns(idle, begins).drop_nulls("idle")
        line = line.with_columns(since=pl.max_horizontal("idle", "start"))
        until = pl.min_horizontal("begins", pl.col("since") + pl.col("end") - pl.col("start"))
        line = line.with_columns(until=until).filter(pl.col("until") > pl.col("since"))
        found.append(line.select(found[0].columns))
    return pl.concat(found)


def _grouped(report: Report) -> pl.DataFrame:
    """The reads in scope, whatever they cost: columns of :func:`reads` up to `end`, and `row`.

    `row` is the operation that the thread launched next; null where it launched nothing more.
    """
    waiting = in_scope(report).filter(pl.col("scope").is_in([*WAITING, "copy"])).drop_nulls(["device", *THREAD])
    calls = launch_calls(report, "thread_id", "call_row", "call_start").sort("call_start")
    launches = calls.rename({"call_row": "call", "call_start": "launch"})
    last = nearest(waiting, launches, ("start", "launch"), THREAD)
    together = last.join(_copies_to_host(report), on="call").sort("start").group_by(*THREAD, "device", "call")
    ended = together.agg(pl.col("call_row", "size_bytes").first(), pl.col("start").min(), pl.col("end").max())
    following = nearest(ended, launches.rename({"call": "next"}), ("end", "launch"), THREAD, "after")
    return following.with_columns(_first_operations(report, following.get_column("next")))


def _copies_to_host(report: Report) -> pl.DataFrame:
    """Calls that launched a copy to the host: call (its row), size_bytes."""
    work = operations(report, "call_row").filter(pl.col("kind") == "memcpy").drop_nulls("call_row")
    own = work.filter((pl.col("detail").cast(pl.String) == TO_HOST).fill_null(value=False))
    own = with_facts(report, own.unique("call_row", keep="first"), "size_bytes")
    return own.select("size_bytes", call="call_row")


def _first_operations(report: Report, calls: pl.Series) -> pl.Series:
    """The row of the first operation that each of `calls` launched; null for null."""
    work = operations(report, "call_row").select("row", "start", call="call_row")
    first = work.filter(pl.col("call").is_in(calls.drop_nulls().unique().implode())).sort("start", "row")
    known = pl.DataFrame({"call": calls}).join(
        first.unique("call", keep="first"), on="call", how="left", maintain_order="left"
    )
    return known.get_column("row")


def _read(report: Report, device: int, pieces: pl.DataFrame) -> Finding:
    per, stake = per_iteration(report), intervals.length(pieces)
    own = _of_loops(report, reads(report)).filter(pl.col("device") == device)
    places, where = _places(report, own)
    sizes = own.drop_nulls("size_bytes")
    each = f", {size(median_of(sizes, 'size_bytes'))} each in the median" if sizes.height else ""
    text = (
        f"The host waits for results of GPU {device}: {places}{each}. "
        f"It is blocked for {per.time(intervals.length(own))}, in which the GPU may be at work; of the GPU's idle time "
        f"from then until the host has launched more, {per.time(stake)} come of the wait."
    )
    torch = in_pytorch(report)
    small = torch and sizes.height and longest(sizes, "size_bytes") <= _SCALAR_BYTES
    headline, action, remedy = _TOLD[_kind(where, small=bool(small)) if torch else "copy"]
    return Finding(
        "blocking-read",
        device,
        stake,
        text,
        remedy,
        "syncs --by api",
        headline=headline,
        action=action,
        where=where,
        mending=partial(_unread, own=own),
        claims=pieces,
    )


def _unread(report: Report, own: pl.DataFrame) -> Mending:
    """The host no longer waits in these reads: calls that only wait are gone, copies return once they are launched."""
    calls = calls_within(report, own.select(*THREAD, "start", end=pl.col("end").clip(lower_bound=pl.col("start") + 1)))
    waits = blocking_calls(report).filter(pl.col("call_row").is_in(calls.implode()))
    pure = pl.col("scope").is_in(WAITING)
    return Mending(calls=waits.filter(pure).get_column("call_row"), unwaited=waits.filter(~pure).get_column("call_row"))


def _kind(where: str, *, small: bool) -> str:
    """Kind of value that a program of PyTorch reads, by the operator in which it does."""
    operator = where.split(" ", maxsplit=1)[0]
    return _KINDS.get(operator, "tensor" if not small else "scalar" if operator in _SCALARS else "value")


_IN_TORCH: Final = (
    "Keep results on the GPU and read them every so many steps, or copy them with non_blocking=True into pinned "
    "memory and read them a step later. Shapes that depend on data (nonzero, boolean masks) are waited for, too: "
    "torch.where has none."
)
_KINDS: Final = {
    **dict.fromkeys(("aten::nonzero", "aten::index", "aten::masked_select", "aten::index_put_"), "shape"),
    "aten::is_nonzero": "condition",
}
_SCALARS: Final = ("aten::item", "aten::_local_scalar_dense")

#: Headline, action and remedy by the kind of value that is read: a number or a tensor of PyTorch, or any copy.
_TOLD: Final = {
    "value": (
        "A value read by the host (.item(), x[mask], if) stalls",
        "read it every N steps; torch.where in place of masks and if",
        _IN_TORCH,
    ),
    "shape": (
        "A shape that depends on data (x[mask], nonzero) stalls",
        "torch.where(mask, x, 0) in place of x[mask]",
        _IN_TORCH,
    ),
    "condition": (
        "A tensor as a condition (if x > 0) stalls the GPU",
        "torch.where(x > 0, a, b) in place of if; or ask every N steps",
        _IN_TORCH,
    ),
    "scalar": (
        "A number read by the host (.item(), print) stalls the GPU",
        "loss.detach() instead of .item(); read it every N steps",
        _IN_TORCH,
    ),
    "tensor": (
        "Results read by the host (.cpu() and others) stall the GPU",
        ".to('cpu', non_blocking=True) into pinned memory; read it a step later",
        _IN_TORCH,
    ),
    "copy": (
        "Results that the host waits for stall the GPU",
        "Launch the next work first; wait for an event behind the copy later",
        (
            "Launch the next work before waiting for a result: copy it asynchronously into pinned memory, record an "
            "event behind the copy, and wait for that an iteration later."
        ),
    ),
}


def _places(report: Report, own: pl.DataFrame) -> tuple[str, str]:
    """Places of most reads, with their number; and the first of these places."""
    calls = rows_at(report.kind("api").select("name"), own.get_column("call_row"))
    at = sites_of_launches(report, own.select(*THREAD, at="start"))
    named = pl.concat([own, at, calls.select(api=shown(pl.col("name")))], how="horizontal")
    place = pl.coalesce(site_text(), "api").fill_null("a call without a name")
    sums = named.group_by(place=place).agg(count=pl.len(), ns=(pl.col("until") - pl.col("since")).sum())
    top = sums.sort("ns", "place", descending=[True, False]).head(_NAMED)
    per = per_iteration(report)
    listed = [f"{literal(name)} ({per.plural(int(number), 'time')})" for name, number, _ in top.iter_rows()]
    rest = total(sums, "count") - total(top, "count")
    more = f", and {rest:,} elsewhere" if rest else ""
    return ", ".join(listed) + more, literal(str(top.item(0, "place")))


def followed(report: Report, waiting: pl.DataFrame) -> pl.DataFrame:
    """`waiting` with the `row` of what its thread launched next on the device; calls without one are dropped."""
    keys = [*THREAD, "device"]
    work = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    launches = work.sort("call_start", "start", maintain_order=True).select("row", *keys, at="call_start")
    first = launches.unique([*keys, "at"], keep="first", maintain_order=True)
    return nearest(waiting, first, ("end", "at"), keys, "after").drop_nulls("row")


def idle_since(report: Report, device: int, rows: pl.Series) -> pl.Series:
    """When the device became idle before each of the operations `rows`; null where it did not, or had done nothing."""
    spans = busy_spans(report)[device]
    at = positions(spans.get_column("start"), operations(report).get_column("start").gather(rows))
    return spans.get_column("end").shift(1).gather(at).alias("idle")


RULES: Final = (host_blocks, unneeded_sync, blocking_read)
