"""How work is submitted: short kernels, CUDA graphs, timed kernels, streams, processes and devices that wait."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from kanalyze import intervals, model, units
from kanalyze.analyses.communication._recorded import TRANSFER, WAITING
from kanalyze.analyses.device import _operations
from kanalyze.analyses.device._windows import overlapping, shared_devices, spans_of_bucket, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle._attribution import reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums, ledger
from kanalyze.analyses.iterations._launch_periods import timed_runs
from kanalyze.analyses.launches._launch_costs import launch_costs, least_worth_saying, worth_saying
from kanalyze.analyses.launches.graphs import repetitive
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.streams import concurrency
from kanalyze.columns import beside, nearest
from kanalyze.report import Report


@Rule
def launch_bound(report: Report) -> Findings:
    """One finding per device with launch-bound kernels for which it waited."""
    graphed = _graphed(report)
    for device, own in say.by_device(launch_costs(report).bound.filter(pl.col("launch_ns") > 0)):
        top, stake = own.row(0, named=True), total(own, "launch_ns")
        less = on_gpu.launch_less(report, device)
        names = _operations.exclusive_operations(report).join(own, on=["device", "name"], how="semi")
        yield say.told(
            report,
            "launch-bound",
            device,
            _waits_for(report, device, names.get_column("row"), "launch"),
            stake,
            kernels=own.height,
            launches=total(own, "count"),
            often=say.per_iteration(report).iterations,
            top=top,
            action=less.action,
            remedy=less.remedy,
            names=(str(top["name"]),),
            where=say.place_of(report, names.filter(device=device).get_column("row")),
            mending=graphed,
            vague=graphed is None,
            general=True,
        )


def _waits_for(report: Report, device: int, rows: pl.Series, *buckets: str) -> pl.DataFrame:
    """When a device waited for some operations (rows), in some of the ledger's buckets: start, end."""
    return reasoned_pieces(report, device, *buckets).filter(pl.col("row").is_in(rows.implode()))


_LAUNCHING: Final = ("launch", "queued")  # the ledger's buckets that a graph reduces
_REPLAYED: Final = 0.5  # where so much of kernel time is of CUDA graphs, most of what can be captured is
_FEWEST_LAUNCHES: Final = 100  # fewer do not pay for the capture and instantiation of a graph
_WORTH_A_GRAPH: Final = 32  # of an iteration that is cut, pieces of so many launches are worth one each

#: Of a device that waits for its host for less than this share of its window the host is ahead: what lies between
#: kernels that are queued is theirs.
_LATE: Final = 0.1


@Rule
def graph_candidate(report: Report) -> Findings:
    """One finding per device that waited for launches that repeat, and could be a CUDA graph."""
    buckets = bucket_sums(report)
    late = buckets.filter(pl.col("bucket").is_in((*_LAUNCHING, "host"))).group_by("device").agg(pl.col("share").sum())
    waits = buckets.filter(pl.col("bucket").is_in(_LAUNCHING)).group_by("device").agg(pl.col("ns").sum())
    waits = waits.join(late.filter(pl.col("share") >= _LATE), on="device", how="semi")
    for device, most in waits.sort("device").iter_rows():
        if on_gpu.share_of_graphs(report).get(device, 0.0) > _REPLAYED or _cut_all_over(report):
            continue
        own = repetitive(report).candidates.with_columns(launches=pl.col("operations") * pl.col("repetitions"))
        worth = (pl.col("launches") >= _FEWEST_LAUNCHES) & (pl.col("saved_ns") > 0)
        own = own.filter((pl.col("device") == device) & worth)
        if own.is_empty():
            continue
        top, stake = own.row(0, named=True), min(total(own, "saved_ns"), most)
        less = on_gpu.launch_less(report, device)
        default = report.table(model.STREAMS.name).filter(pl.col("type") == "null")
        on_default = own.join(default, on=["process_id", "stream"], how="semi", nulls_equal=True).height > 0
        yield say.told(
            report,
            "graph-candidate",
            device,
            _waits_for(report, device, repetitive(report).repetitions.get_column("row"), *_LAUNCHING),
            stake,
            launches=total(own, "launches"),
            sequences=f"{units.plural(own.height, 'sequence')} of launches repeat{'' if own.height > 1 else 's'}",
            waited=total(own, "launch_ns") + total(own, "queued_ns"),
            top=top,
            basis="the median of those in this report"
            if top["measured"]
            else "the median of these calls, for want of one",
            cut=total(repetitive(report).cuts.filter(device=device), "launches"),
            action=less.action,
            on_default=on_default,
            **({"remedy": less.capture} if less.capture else {}),
            names=(str(top["first"]),),
            mending=_graphed(report),
            general=True,
        )


def _graphed(report: Report) -> Mending | None:
    """Each sequence that repeats as one launch; None without any, or where a program would have to be rewritten."""
    return Mending(graph=True) if repetitive(report).repetitions.height and not _cut_all_over(report) else None


def _cut_all_over(report: Report) -> bool:
    """Whether each iteration waits, reads results, allocates or copies pageable memory in many places."""
    iterations, sequences = say.per_iteration(report).iterations, repetitive(report)
    # the most pieces that calls which no capture allows may leave of an iteration
    most = 16 * (iterations or 0) * max(windows(report).height, 1)
    short = sequences.pieces.filter(pl.col("launches") < _WORTH_A_GRAPH)
    # all through a forward pass: a tenth of the launches is more than what reads metrics in a row at its end
    many = sequences.pieces.height > most
    all_through = many and 10 * total(short, "launches") >= total(sequences.pieces, "launches")
    # unless so many launches lie in one of them, as in passes of which each reads its loss
    few = _operations.device_operations(report).height < _WORTH_A_GRAPH * sequences.stretches
    return iterations is not None and (all_through or (sequences.stretches > most and few))


@Rule
def timed_kernels(report: Report) -> Findings:
    """One finding per device with kernels that are timed after a fill of the cache, on all of them together."""
    work = _operations.exclusive_operations(report, "call_start").drop_nulls("call_start")
    begun = timed_runs(report).select("process_id", run="start", until="end")
    line = nearest(work, begun, ("call_start", "run"), ["process_id"]).filter(pl.col("call_start") < pl.col("until"))
    line = line.with_columns(fill=pl.col("call_start") == pl.col("run"))
    for device, own in say.by_device(line.sort("device")):
        fills, timed = own.filter("fill"), own.filter(~pl.col("fill"))
        if fills.is_empty() or timed.is_empty():
            continue
        name = say.most(timed, "name", "exclusive_ns")
        yield say.told(
            report,
            "timed-kernels",
            device,
            own,
            total(own, "exclusive_ns"),
            action="record a second run: torch.compile keeps on disk what it chose"
            if say.written_with(report, name) == say.COMPILED
            else "if an autotuner's: @triton.autotune(…, cache_results=True)",
            names=(name,),
            runs=own.get_column("run").n_unique(),
            fills=total(fills, "exclusive_ns"),
            timed=total(timed, "exclusive_ns"),
        )


# Copies of pinned memory that ran alone, serialised with kernels only by the order of their stream.
#
# A copy to the device that was submitted while an earlier kernel of its stream still ran copies data that the host had
# ready by then. A copy to the host, with a later kernel submitted before the copy ended, yields nothing that this
# kernel could depend on. With double buffering, either could overlap those kernels.

_KERNELS: Final = _operations.BUSY_BUCKETS.index("communication")


@Rule
def serial_copy(report: Report) -> Findings:
    """One finding per device with such copies."""
    if not any(worth_saying(report, ns) for ns in bucket_sums(report).filter(bucket="memcpy").get_column("ns")):
        return
    for device, copies in say.by_device(_serial_copies(report)):
        numbers = concurrency.used_streams(report).filter(pl.col("number").is_in(copies.get_column("number").implode()))
        # of each stream at most what kernels meanwhile and the copies of either direction take one after the other,
        # less the longest of the three, which takes its time in any case
        ns, low, high = pl.col("exclusive_ns"), pl.col("low").min(), pl.col("high").max()
        sums = copies.group_by("number").agg(ns.sum(), low, high, back_ns=ns.filter("to_host").sum())
        kernels = (
            concurrency.placed_operations(report).filter(pl.col("rank") <= _KERNELS).select("number", "start", "end")
        )
        both = pl.min_horizontal("end", "high") - pl.max_horizontal("start", "low")
        ran = kernels.join(sums, on="number").group_by("number").agg(kernel_ns=both.clip(lower_bound=0).sum())
        parts = (pl.col("exclusive_ns") - pl.col("back_ns"), pl.col("back_ns"), pl.col("kernel_ns"))
        gains = sums.join(ran, on="number").select(ns=pl.sum_horizontal(parts) - pl.max_horizontal(parts))
        results = 2 * total(sums, "back_ns") > total(copies, "exclusive_ns")
        yield say.told(
            report,
            "serial-copy: results" if results else "serial-copy",
            device,
            copies,
            total(gains, "ns"),
            many=copies.height,
            bytes=total(copies, "size_bytes"),
            alone=total(copies, "exclusive_ns"),
            streams=_listed(numbers, "stream"),
            at_most=bool(copies.get_column("alone").all()),
        )


def _listed(rows: pl.DataFrame, column: str) -> str:
    return ", ".join(map(str, rows.get_column(column).unique().sort()))


def _serial_copies(report: Report) -> pl.DataFrame:
    """The serial copies on the devices in scope with any exclusive time in the window, outside CUDA graphs.

    Columns: device, number (of the kernel's stream), size_bytes, start, end, exclusive_ns, low and high (the time
    between the copy and the kernel that it could overlap, both included), to_host, alone (whether all of its time is
    exclusive).
    """
    pinned = pl.any_horizontal(pl.col("source_memory", "target_memory") == on_host.PINNED)
    asynchronous = pl.col("call_name").is_in(names_that(report, lambda name: "Async" in name))
    alone = pl.col("exclusive_ns") == pl.col("end") - pl.col("start")
    copies = on_host.device_copies(report).with_columns(pl.col("detail").cast(pl.String), alone=alone)
    copies = copies.filter((pl.col("exclusive_ns") > 0) & asynchronous & pinned)
    if copies.is_empty():
        return copies
    work = concurrency.streamed_operations(report, "call_start", "call_end").with_columns(
        ready=pl.col("call_end") + concurrency.LATENCY_NS
    )
    columns = ("row", "device", "detail", "size_bytes", "exclusive_ns", "alone", "call_start")
    copies = copies.select(columns).join(work.select("row", "start", "end", "number", "group", "ready"), on="row")
    kernels = work.filter((pl.col("rank") <= _KERNELS) & (pl.col("end") > pl.col("start"))).select(
        "number", kernel="row", at="start", low="start", high="end", submitted="ready", called="call_start"
    )
    back, there = copies.filter(detail=on_host.TO_HOST), copies.filter(detail=on_host.TO_DEVICE)
    before = nearest(there, kernels, ("start", "at"), ["number"]).filter(pl.col("high") > pl.col("ready"))
    after = nearest(back, kernels, ("start", "at"), ["number"], "after").filter(pl.col("submitted") < pl.col("end"))
    both = pl.concat([
        before.with_columns(high="end", earlier="called"),
        after.with_columns(low="start", earlier="call_start", call_start="called"),
    ])  # fmt: skip
    both = both.filter(~concurrency.ordered(report, both))
    found = pl.concat(one.select(_KEPT) for one in (both, *_held_by_events(report, back, there, kernels)))
    return found.with_columns(to_host=pl.col("detail") == on_host.TO_HOST).sort("device")


_KEPT: Final = ("device", "number", "size_bytes", "start", "end", "exclusive_ns", "low", "high", "alone", "detail")


def _held_by_events(
    report: Report, back: pl.DataFrame, there: pl.DataFrame, kernels: pl.DataFrame
) -> Iterator[pl.DataFrame]:
    """Copies to the device that waited for a kernel by an event, and those to the host for which one waited so."""
    if (work := concurrency.ready_operations(report)).is_empty():
        return
    waits = concurrency.stream_waits(report).select("row", "behind_row", behind="behind_number")
    lanes = work.filter(pl.col("number").is_in(kernels.get_column("number").unique().implode()))
    kernels = kernels.select("kernel", "low", earlier="called")
    kept = there.join(waits, on="row").join(kernels, left_on="behind_row", right_on="kernel").with_columns(high="end")
    # what came back from the device since may be what is copied there; less is not
    large = on_host.device_copies(report).filter(pl.col("detail") == on_host.TO_HOST)
    large = large.filter(pl.col("size_bytes") >= (kept.get_column("size_bytes").min() or 0))
    kept = nearest(kept, large.select("device", at="end", came="end"), ("start", "at"), ["device"])
    kept = kept.filter((pl.col("came") <= pl.col("earlier")).fill_null(value=True))
    yield kept.filter(concurrency.waits_for_events(report, kept)).with_columns(number="behind")
    # what began as soon as all was done that ended last, also a copy to the device beside it
    lanes = lanes.select("group", "number", "call_start", "earlier", "ready", began="start", high="end")
    held = nearest(lanes, work.select("group", last="end", at="end"), ("began", "at"), ["group"]).drop("at")
    copied = back.drop("number", "call_start", "ready").with_columns(low="start", at="end")
    held = nearest(
        held.filter(pl.col("began") - pl.col("last") < concurrency.LATENCY_NS), copied, ("began", "at"), ["group"]
    )
    held = held.filter(pl.col("at") > pl.col("ready"))
    yield held.filter(concurrency.waits_for_events(report, held))


@Rule
def default_stream(report: Report) -> Findings:
    """One finding per device on which the legacy default stream and its context's blocking streams waited in turn."""
    types = concurrency.used_streams(report).filter(pl.col("type").is_in(["null", "blocking"])).group_by("group")
    if not (types.agg(pl.col("type").n_unique()).get_column("type") > 1).any():  # cheap, and false for most programs
        return
    for device, held in say.by_device(_serialised(report)):
        # what held one may have been held by the same rule itself, as may what its stream ran before
        beside = _beside(report, held)
        ns = intervals.overlap(held.get_column("ready"), held.get_column("end"), intervals.union(beside))
        waits = held.with_columns(ns.alias("held_ns"))
        # one that waited can overlap the others for at most its own duration and the time that it was held, and
        # together they still take as long as the busiest of their streams
        involved = pl.concat([frame.select("number", "row", "ns") for frame in (waits, beside)]).unique("row")
        by_stream = involved.group_by("number").agg(pl.col("ns").sum())
        hidden = int(waits.select(pl.min_horizontal("held_ns", "ns").sum()).item())
        yield say.told(
            report,
            "default-stream",
            device,
            None,
            min(hidden, total(by_stream, "ns") - longest(by_stream, "ns")),
            null=_listed(waits, "null"),
            blocking=_listed(waits, "blocking"),
            operations=waits.height,
            held=total(waits, "held_ns"),
        )


def _beside(report: Report, held: pl.DataFrame) -> pl.DataFrame:
    """The operations, on streams of those `held` or behind, that ran while one was held and could run beside it."""
    numbers = pl.concat([held.get_column("number"), held.get_column("behind_number")]).unique()
    work = concurrency.placed_operations(report).filter(pl.col("number").is_in(numbers.implode()))
    roomy = (pl.col("rank") > _KERNELS) | concurrency.leaves_room(report, work.get_column("row"))
    work = work.filter(roomy | pl.col("row").is_in(held.get_column("behind_row").implode()))
    spans = intervals.union(held.select(start="ready", end="end"))
    return work.filter(intervals.covered(work, spans) > 0).rename({"exclusive_ns": "ns"})


def _serialised(report: Report) -> pl.DataFrame:
    """Operations on the default stream (null) or a blocking one that waited for one `behind` which is on the other."""
    pairs = concurrency.stream_pairs(report).filter("never_overlap")
    first, other = pl.col("type") == "null", pl.col("other_type") == "null"
    pairs = pairs.filter((first & (pl.col("other_type") == "blocking")) | (other & (pl.col("type") == "blocking")))
    null, blocking = (pl.when(one).then("stream").otherwise("other_stream") for one in (first, other))
    both = ("number", "behind_number")
    waits = concurrency.in_window(report, concurrency.stream_waits(report)).filter(~pl.col("ordered"))
    waits = waits.with_columns(first=pl.min_horizontal(both), second=pl.max_horizontal(both))
    named = pairs.select("device", "first", "second", null=null, blocking=blocking)
    took = _operations.exclusive_operations(report).select("row", ns="exclusive_ns")
    waits = waits.join(named, on=["first", "second"], maintain_order="left").join(took, on="row", maintain_order="left")
    waits = waits.with_columns(
        _operations.facts_of(report, waits.get_column(row), "call_start").to_series().alias(call)
        for row, call in (("row", "call"), ("behind_row", "behind_call"))
    )
    return waits.filter((pl.col("behind_call") < pl.col("call")).fill_null(value=False))


@Rule
def shared_gpu(report: Report) -> Findings:
    """One finding per GPU on which processes wait for each other, unless their kernels certainly run concurrently."""
    running = pl.col("kind").is_in(["kernel", "graph"]) & pl.col("process_id").is_not_null()
    for shared in shared_devices(report):
        many = len(shared.processes)
        if shared.side_by_side or many <= 1:
            continue
        kernels = _operations.of_device(_operations.exclusive_operations(report), shared.device).filter(running)
        kernels = kernels.filter(pl.col("end") > pl.col("start")).select("process_id", "start", "end")
        waits = _waits_for_others(report, shared.device, kernels)
        spans = intervals.union(pl.concat([waits, overlapping(kernels)])) if shared.together_ns else waits
        ways = (
            (waited_ns := intervals.length(waits), "what one had submitted waited while kernels of another ran"),
            (shared.together_ns, "kernels of more than one had begun and not ended"),
        )
        took, slowed, (*others, last) = "", shared.slowed, map(str, shared.processes)
        if slowed is not None:
            longest_ns, alone_ns = units.time(slowed["longest_ns"]), units.time(slowed["alone_ns"])
            took = f" {{0}} of process {slowed['process_id']} takes up to {longest_ns} then, {alone_ns} else (median)."
        yield say.told(
            report,
            "shared-gpu",
            shared.device,
            None,
            intervals.length(spans) * (many - 1) // many,
            many=many,
            processes=f"{', '.join(others)} and {last}",
            held=", and ".join(f"for {say.per_iteration(report).time(ns)} {what}" for ns, what in ways if ns),
            took=took,
            turns=shared.turns,
            how="take turns on" if waited_ns else "share",
            names=() if slowed is None else (slowed["name"],),
        )


def _waits_for_others(report: Report, device: int, kernels: pl.DataFrame) -> pl.DataFrame:
    """The span set in which work of a process was submitted, none of it ran, and `kernels` of another one did."""
    low, high = say.sides_of(report, device)
    work = _operations.of_device(_operations.device_operations(report, "call_end"), device)
    line = work.select("process_id", "start", "end", "call_end").drop_nulls()
    waits = [pl.DataFrame(schema=intervals.SPANS)]
    for (process,), own in line.partition_by("process_id", as_dict=True).items():
        others = intervals.union(kernels.filter(pl.col("process_id") != process))
        ready = intervals.clip(intervals.union(own.select(start="call_end", end="start")), low, high)
        waits.append(intervals.intersect(intervals.subtract(ready, intervals.union(own)), others))
    return intervals.union(pl.concat(waits))


# Communication between GPUs that nothing hides.


@Rule
def exposed_communication(report: Report) -> Findings:
    """On all collectives of a device; one finding on their transfer and one on waits, where the report tells them."""
    # how long each device does nothing but communicate, and of that waits for partners, mostly for one
    rows = ledger(report).filter(pl.col("bucket") == "communication")
    ns, detail, waits = pl.col("ns"), pl.col("detail"), pl.col("detail").str.starts_with(WAITING)
    exposed = rows.group_by("device").agg(
        ns=ns.sum(),
        waited_ns=ns.filter(waits).sum(),
        transfer_ns=ns.filter(detail == TRANSFER).sum(),
        partner=detail.filter(waits).sort_by(ns.filter(waits), descending=True).first().str.strip_prefix(WAITING),
    )
    ranks = exposed.join(_collectives(report).group_by("device").agg(collectives=pl.len()), on="device").sort("device")
    for rank in ranks.iter_rows(named=True):
        # how many times as much as of other findings is worth one: the last collective of a step has nothing to hide
        # behind
        least = 10 * least_worth_saying(report)[rank["device"]]
        for one in _of_rank(report, rank, ranks, least):
            if one.at_stake_ns >= least:  # what is hidden gains no more than it takes
                yield one._replace(replayed_low_ns=0, replayed_high_ns=one.at_stake_ns)


def _of_rank(report: Report, rank: dict[str, Any], ranks: pl.DataFrame, worth: float) -> list[Finding]:
    """The findings on transfer and on waits; on both as one where the report tells neither."""
    per, device, ns, partner = say.per_iteration(report), rank["device"], rank["ns"], rank["partner"]
    work = _collectives(report).filter(device=device)
    kinds = _operations.decoded(report, beside(work, report.table("collective_detail"), "collective"), "operation")
    by_kind = kinds.group_by(kind=pl.coalesce(pl.col("collective").cast(pl.String), "operation"))
    sums = by_kind.agg(count=pl.len(), ns=pl.col("exclusive_ns").sum())
    sums = sums.filter(pl.col("ns") > 0).sort("ns", "kind", descending=[True, False])
    whole = intervals.length(intervals.union(work))
    named = [
        f"{literal(kind)} {per.time(took)} ({per.plural(count, 'kernel')})"
        for kind, count, took in sums.head(say.NAMED).iter_rows()
    ]
    more = f", and {units.plural(sums.height - say.NAMED, 'other kind')}" if sums.height > say.NAMED else ""
    figures = {"most": sums.item(0, "kind")[:30], "kinds": f"{', '.join(named)}{more}"}
    alone = spans_of_bucket(report, device, "communication")
    exposed = say.told(report, "exposed-communication", device, alone, ns, part=ns / whole, **figures)
    if not rank["waited_ns"] + rank["transfer_ns"]:
        # the least exposed one of those that run as many, as ranks of one program do but for the edges of a window,
        # tells what can be gained
        as_many = (pl.col("collectives") - rank["collectives"]).abs() <= 0.1 * rank["collectives"]
        other, least_ns = ranks.filter(as_many).sort("ns", maintain_order=True).row(0)[:2]
        waits = f": GPU {other}, which runs as many, has {per.time(least_ns)}, and what is more here may be a wait"
        waits *= other != device
        balance = " If ranks differ in their work, balance that first: a collective waits for the slowest."
        finding = exposed._replace(
            text=f"{exposed.text} Any waiting for the slowest rank is in it{waits}.", remedy=exposed.remedy + balance
        )
        if least_ns >= worth:  # everywhere
            return [finding._replace(at_stake_ns=least_ns)]
        return [finding._replace(action=f"Balance the work of ranks: GPU {other} hardly communicates alone")]
    moved, waited = ns - rank["waited_ns"], per.time(rank["waited_ns"])
    sentences = f" {waited} of that is waiting, mostly for {partner}." if partner else ""
    if rest := moved - rank["transfer_ns"]:
        sentences += f" Of {per.time(rest)} it is not told whether it waits for ranks elsewhere."
    figures = {"partner": partner, "part": rank["waited_ns"] / ns, "where": literal(sums.item(0, "kind"))}
    waiting = say.told(report, "exposed-communication: waits", device, None, rank["waited_ns"], **figures)
    return [exposed._replace(at_stake_ns=moved, text=f"{exposed.text}{sentences}"), waiting]


def _collectives(report: Report) -> pl.DataFrame:
    return _operations.exclusive_operations(report).filter(pl.col("bucket") == "communication")


# Graphs that are launched for fewer rows than they were captured with.

_TAKES_PART: Final = r"^aten::(?:slice|narrow)$"
_FEWEST_FILLS: Final = 8


@Rule
def padded_graphs(report: Report) -> Findings:
    """One finding per device on the graph that is launched most for fewer rows than it takes, as copies show."""
    if not on_gpu.share_of_graphs(report):
        return
    fills = _filled_parts(report).filter(pl.col("whole") == pl.col("whole").mode().sort().first())
    if fills.height < _FEWEST_FILLS:
        return
    # a graph of the next power of two, and of no fewer rows than products take as long for
    least = pl.max_horizontal(2 ** pl.col("rows").log(2).ceil(), 300 / pl.col("inner"))
    kept = fills.select((pl.min_horizontal(least, "whole") / pl.col("whole")).mean()).item()
    sizes = fills.select(fewest=pl.col("rows").min(), most=pl.col("rows").max(), whole=pl.col("whole").max())
    for work in on_host.works_within(report, fills):
        stake, rows = int(work.ns * (1 - kept)), sizes.cast(pl.Int64).row(0, named=True)
        yield work.finding("padding: graphs", left=kept, kept=kept, at_stake_ns=stake, **rows)


def _filled_parts(report: Report) -> pl.DataFrame:
    """Launches of graphs behind a copy of some `rows` into a tensor of `whole` ones: SPAN, rows, whole, inner.

    A part of a tensor of as many rows is taken right after, of what the graph gives: the copy fills a part of what it
    takes, and of no cache. Each of these rows is of so many `inner` ones of which products are made.
    """
    launches = on_host.spans_named("GraphLaunch", (on_host.traced(report) or report).kind("api"))
    line, shapes = on_host.outermost(report).sort(*THREAD, "start"), pl.col("input_shapes")
    name, into = pl.col("name"), on_host.sides(shapes)
    is_copy = name == "aten::copy_"
    before, after = ((name.shift(by).over(THREAD), on_host.sides(shapes.shift(by).over(THREAD))) for by in (1, -1))
    part = before[0].str.contains(_TAKES_PART) & (into.list.slice(1) == before[1].list.slice(1))
    given = after[0].str.contains(_TAKES_PART) & (after[1].list.first() == before[1].list.first())
    given &= ~is_copy.shift(-2, fill_value=False).over(THREAD)  # no part that is copied in next
    inner = into.list.slice(1, into.list.len().cast(pl.Int64) - 2).list.eval(pl.element().product()).list.first()
    sizes = {"rows": into.list.first(), "whole": before[1].list.first(), "inner": inner.fill_null(1)}
    copies = line.select(*THREAD, copied="start", filled=part & given & is_copy, **sizes)
    fills = nearest(launches, copies, ("start", "copied"), THREAD)
    return fills.filter("filled", pl.col("rows").is_between(0, pl.col("whole"), closed="none"))
