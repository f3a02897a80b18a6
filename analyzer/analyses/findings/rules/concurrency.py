"""Concurrency that is missing or unwanted: copies beside no kernel, the default stream, other programs on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    BUSY_BUCKETS,
    device_operations,
    exclusive_operations,
    facts_of,
    of_device,
    with_facts,
)
from kanalyze.analyses.device._sharing import overlapping, shared_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._copies import PINNED, TO_DEVICE, TO_HOST, device_copies
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.streams._serialised import LATENCY_NS, ordered, stream_waits
from kanalyze.analyses.streams._streams import placed_operations, streamed_operations, used_streams
from kanalyze.analyses.streams.concurrency import in_window, stream_pairs
from kanalyze.columns.lookup import nearest
from kanalyze.units import plural, size, time

if TYPE_CHECKING:
    from kanalyze.analyses.device._sharing import Shared
    from kanalyze.report import Report
    from kanalyze.window import PerIteration

#: The same in a line, in CUDA and in PyTorch.
_ASIDE: Final = (
    "a second stream and a second buffer: copy ahead of the kernels",
    "copy one batch ahead in a torch.cuda.Stream() of its own",
)

_COPY_ASIDE: Final = (
    "Copy in a stream of its own, into a second buffer, while kernels work on the first; order what depends by events."
)


def serial_copy(report: Report) -> list[Finding]:
    """One finding per device with such copies."""
    if not any(worth_saying(report, ns) for ns in bucket_sums(report).filter(bucket="memcpy").get_column("ns")):
        return []
    parts = serial_copies(report).partition_by("device", maintain_order=True)
    return [
        _serial(report, copies, stake) for copies in parts if (stake := total(hidden_at_most(report, copies), "ns"))
    ]


def _serial(report: Report, copies: pl.DataFrame, stake: int) -> Finding:
    per, where = per_iteration(report), ", ".join(map(str, copies.get_column("stream").unique().sort()))
    text = (
        f"{per.plural(copies.height, 'copy', 'of pinned memory')}, {size(total(copies, 'size_bytes'))}, ran alone for "
        f"{per.time(total(copies, 'exclusive_ns'))} between kernels of the same stream ({where}); the host had "
        f"submitted both by then, and only the stream's order kept them apart."
    )
    one = Finding("serial-copy", int(copies.item(0, "device")), stake, text, _COPY_ASIDE, "concurrency")
    headline = f"{per.clause(copies.height, 'copy', 'run')} between kernels, not beside"
    alone = bool(copies.get_column("alone").all())
    claims = copies.select("start", "end")
    return one._replace(headline=headline, action=_ASIDE[in_pytorch(report)], at_most=alone, claims=claims)


# Copies of pinned memory that ran alone, serialised with kernels only by the order of their stream.
#
# A copy to the device that was submitted while an earlier kernel of its stream still ran copies data that the host had
# ready by then. A copy to the host, with a later kernel submitted before the copy ended, yields nothing that this
# kernel could depend on. With double buffering, either could overlap those kernels.

_KERNELS: Final = BUSY_BUCKETS.index("communication")

#: The columns of :func:`serial_copies`.
_SERIAL: Final = {
    "device": pl.Int64,
    "number": pl.UInt32,
    **dict.fromkeys(("stream", "size_bytes", "start", "end", "exclusive_ns", "low", "high"), pl.Int64),
    **dict.fromkeys(("to_host", "alone"), pl.Boolean),
}


@once_per_report
def serial_copies(report: Report) -> pl.DataFrame:
    """The serial copies on the devices in scope with any exclusive time in the window.

    Columns: device, number (of the stream, as in `used_streams`), stream, size_bytes, start and end (of the copy),
    exclusive_ns, low and high (start and end of the time between the copy and the kernel that it could overlap, both
    included), to_host, alone (whether all of its time is exclusive).
    """
    copies = _pinned_copies(report)
    if copies.is_empty():
        return pl.DataFrame(schema=_SERIAL)
    line = _neighbours(report, copies)
    found = copies.join(line, on="row", maintain_order="left")
    to_device = found.filter(
        (pl.col("detail") == TO_DEVICE) & (pl.col("before_end") > pl.col("call_end") + LATENCY_NS)
    ).with_columns(low="before_start", high="end", earlier="before_call")
    to_host = found.filter((pl.col("detail") == TO_HOST) & (pl.col("after_ready") < pl.col("end"))).with_columns(
        low="start", high="after_end", earlier="call_start", call_start="after_call"
    )
    both = pl.concat([to_device, to_host]).with_columns(to_host=pl.col("detail") == TO_HOST)
    streams = used_streams(report).select("number", "stream")
    free = both.filter(~ordered(report, both)).join(streams, on="number", maintain_order="left")
    return free.select(list(_SERIAL)).sort("device")


def hidden_at_most(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """The upper bound of the gain from overlapping `copies` (of :func:`serial_copies`) with kernels, by stream.

    Columns: device, number, ns: what kernels meanwhile and the copies of either direction take one after the other,
    less the longest of the three, which takes its time in any case.
    """
    back = pl.col("exclusive_ns").filter("to_host").sum()
    sums = copies.group_by("device", "number").agg(
        pl.col("exclusive_ns").sum(), pl.col("low").min(), pl.col("high").max(), back_ns=back
    )
    kernels = placed_operations(report).filter(pl.col("rank") <= _KERNELS).select("number", "start", "end")
    inside = kernels.join(sums, on="number").with_columns(pl.max_horizontal("start", "low").alias("start"))
    time = (pl.min_horizontal("end", "high") - pl.col("start")).clip(lower_bound=0)
    ran = inside.group_by("number").agg(kernel_ns=time.sum())
    there = pl.col("exclusive_ns") - pl.col("back_ns")
    whole = pl.col("exclusive_ns") + pl.col("kernel_ns")
    longest_ns = pl.max_horizontal(there, "back_ns", "kernel_ns")
    return sums.join(ran, on="number").select("device", "number", ns=whole - longest_ns)


def _pinned_copies(report: Report) -> pl.DataFrame:
    """The asynchronous copies between pinned memory and the device, outside CUDA graphs, with any exclusive time.

    Columns: row, device, detail, number, size_bytes, exclusive_ns, alone, call_start, call_end.
    """
    work = device_copies(report).join(
        placed_operations(report).select("row", "number"), on="row", maintain_order="left"
    )
    work = work.filter(pl.col("exclusive_ns") > 0)
    work = work.with_columns(
        pl.col("detail").cast(pl.String), alone=pl.col("exclusive_ns") == pl.col("end") - pl.col("start")
    )
    work = work.filter(pl.col("detail").is_in([TO_DEVICE, TO_HOST]))
    asynchronous = pl.col("call_name").is_in(names_that(report, lambda name: "Async" in name))
    pinned = work.filter(asynchronous & ((pl.col("source_memory") == PINNED) | (pl.col("target_memory") == PINNED)))
    told = ("row", "device", "detail", "number", "size_bytes", "exclusive_ns", "alone", "call_start", "call_end")
    return pinned.select(told)


def _neighbours(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """The nearest kernels before and after each of `copies` (row, number) in its stream.

    Columns: row, start, end (of the copy), before_start, before_end and before_call (the previous kernel and its call),
    after_ready, after_end and after_call (the next one; ready: when it was certainly submitted).
    """
    work = streamed_operations(report).select("row", "rank", "start", "end", "number")
    here = pl.col("number").is_in(copies.get_column("number").unique().implode())
    work = with_facts(report, work.filter(here & (pl.col("end") > pl.col("start"))), "call_start", "call_end")
    kernels = work.filter(pl.col("rank") <= _KERNELS).with_columns(ready=pl.col("call_end") + LATENCY_NS, at="start")
    called, line = kernels.drop_nulls("call_start"), work.select("row", "start", "end", "number")
    line = line.filter(pl.col("row").is_in(copies.get_column("row").implode()))
    before = {"before_start": "start", "before_end": "end"}
    for nearby, told in ((kernels, before), (called, {"before_call": "call_start"})):
        line = nearest(line, nearby.select("number", "at", **told), ("start", "at"), ["number"]).drop("at")
    after = {"after_ready": "ready", "after_call": "call_start"}
    for nearby, told in ((kernels, {"after_end": "end"}), (called, after)):
        line = nearest(line, nearby.select("number", "at", **told), ("start", "at"), ["number"], "after").drop("at")
    return line.drop("number")


_UNBLOCK: Final = (
    "Where they need not wait for each other, create streams with cudaStreamNonBlocking or compile with "
    "--default-stream per-thread, and order by events what depends."
)


def default_stream(report: Report) -> list[Finding]:
    """One finding per device on which the default stream and blocking streams waited for each other.

    The legacy default stream and all blocking streams of its context never run side by side.
    """
    if not _could_wait(report):  # cheap, and false for most programs
        return []
    parts = _serialised(report).partition_by("device", maintain_order=True)
    return [_waits_by_default(per_iteration(report), waits, stake) for waits in parts if (stake := _at_stake_ns(waits))]


def _waits_by_default(per: PerIteration, waits: pl.DataFrame, stake: int) -> Finding:
    null, blocking = (", ".join(map(str, waits.get_column(name).unique().sort())) for name in ("null", "blocking"))
    text = (
        f"The default stream ({null}) and blocking streams ({blocking}) never run side by side: "
        f"{per.plural(waits.height, 'operation')} of one were ready for {per.time(total(waits, 'held_ns'))} while the "
        "other ran, and nothing but the default stream's rule is known to have held them. More may follow where the "
        "host waits for them."
    )
    one = Finding("default-stream", int(waits.item(0, "device")), stake, text, _UNBLOCK, "concurrency --by pair")
    headline = "The default stream and others wait for each other"
    return one._replace(headline=headline, action="cudaStreamCreateWithFlags(…, cudaStreamNonBlocking)")


def _could_wait(report: Report) -> bool:
    """Whether any context ran operations on both its default stream and a blocking stream."""
    types = (
        used_streams(report)
        .filter(pl.col("type").is_in(["null", "blocking"]))
        .group_by("group")
        .agg(pl.col("type").n_unique())
    )
    return bool(types.select((pl.col("type") > 1).any()).item())


def _serialised(report: Report) -> pl.DataFrame:
    """Pairs of operations of which one waited for the other, one on the default stream and one on a blocking stream.

    Columns: device, null and blocking (numbers of the two streams), held_ns; number, row and ns (stream, row and
    exclusive time of the operation that waited); behind_number, behind_row and behind_ns (those of the other one).
    """
    pairs = stream_pairs(report).filter("never_overlap")
    types = [pl.col("type") == "null", pl.col("other_type") == "null"]
    blocking = [pl.col("other_type") == "blocking", pl.col("type") == "blocking"]
    pairs = pairs.filter((types[0] & blocking[0]) | (types[1] & blocking[1])).select(
        "device",
        *("first", "second"),
        pl.when(types[0]).then("stream").otherwise("other_stream").alias("null"),
        pl.when(types[0]).then("other_stream").otherwise("stream").alias("blocking"),
    )
    both = ("number", "behind_number")
    waits = in_window(report, stream_waits(report)).filter(~pl.col("ordered"))
    waits = waits.with_columns(
        first=pl.min_horizontal(both), second=pl.max_horizontal(both), held_ns=pl.col("end") - pl.col("start")
    ).join(pairs, on=["first", "second"], maintain_order="left")
    call, behind_call = (
        facts_of(report, waits.get_column(row), "call_start").to_series() for row in ("row", "behind_row")
    )
    waits = waits.filter((behind_call < call).fill_null(value=False))
    work = exclusive_operations(report).select("row", "exclusive_ns")
    for row, ns in (("row", "ns"), ("behind_row", "behind_ns")):
        waits = waits.join(work.rename({"row": row, "exclusive_ns": ns}), on=row, how="left", maintain_order="left")
    return waits


def _at_stake_ns(waits: pl.DataFrame) -> int:
    """The upper bound of the gain from running the operations of one device concurrently, in ns.

    An operation that waited can overlap the other one for at most its own duration and the time that it was held.
    Together they still take as long as the busiest of their streams.
    """
    hidden = waits.select(pl.min_horizontal("held_ns", "ns").sum()).item()
    involved = pl.concat(
        [waits.select("number", "row", "ns"), waits.select(number="behind_number", row="behind_row", ns="behind_ns")]
    ).unique("row")
    by_stream = involved.group_by("number").agg(pl.col("ns").sum())
    return min(int(hidden), total(by_stream, "ns") - longest(by_stream, "ns"))


#: Fewer processes share nothing.
_SEVERAL: Final = 2


def shared_gpu(report: Report) -> list[Finding]:
    """One finding per GPU on which processes wait for each other, unless their kernels certainly run concurrently.

    At stake is the part of these waits that side by side would save at most: half of them, of two processes.
    """
    found = []
    for shared in shared_devices(report):
        many = len(shared.processes)
        if shared.side_by_side or many < _SEVERAL:
            continue
        waits = _waits_for_others(report, shared.device)
        kernels = _kernels(report, shared.device)
        spans = intervals.union(pl.concat([waits, overlapping(kernels)])) if shared.together_ns else waits
        if stake := intervals.length(spans) * (many - 1) // many:
            found.append(_shared_with(per_iteration(report), shared, intervals.length(waits), stake))
    return found


def _kernels(report: Report, device: int) -> pl.DataFrame:
    """The kernels and whole graphs of known processes on a device in its window: process_id, start, end."""
    work = of_device(exclusive_operations(report), device)
    running = pl.col("kind").is_in(["kernel", "graph"]) & pl.col("process_id").is_not_null()
    return work.filter(running & (pl.col("end") > pl.col("start"))).select("process_id", "start", "end")


def _waits_for_others(report: Report, device: int) -> pl.DataFrame:
    """The span set in which work of a process was submitted, none of it ran, and kernels of another one did."""
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    work = of_device(device_operations(report, "call_end"), device)
    line = work.select("process_id", "start", "end", "call_end").drop_nulls()
    kernels, found = _kernels(report, device), [pl.DataFrame(schema=intervals.SPANS)]
    for (process,), own in line.partition_by("process_id", as_dict=True).items():
        others = intervals.union(kernels.filter(pl.col("process_id") != process))
        ready = intervals.clip(intervals.union(own.select(start="call_end", end="start")), low, high)
        found.append(intervals.intersect(intervals.subtract(ready, intervals.union(own)), others))
    return intervals.union(pl.concat(found))


def _shared_with(per: PerIteration, shared: Shared, waited_ns: int, stake: int) -> Finding:
    *others, last = map(str, shared.processes)
    waited = (
        f"for {per.time(waited_ns)} what one had submitted waited while kernels of another ran" if waited_ns else ""
    )
    together = f"for {per.time(shared.together_ns)} kernels of more than one had begun and not ended"
    held = ", and ".join(filter(None, (waited, together if shared.together_ns else "")))
    text = (
        f"Processes {', '.join(others)} and {last} share GPU {shared.device}: {held}, and the next was another's "
        f"{plural(shared.turns, 'time')}."
    )
    names: tuple[str, ...] = ()
    if (slowed := shared.slowed) is not None:
        took = f"takes up to {time(slowed.longest_ns)} then, {time(slowed.alone_ns)} else (median)"
        text += f" {{0}} of process {slowed.process} {took}."
        names = (slowed.name,)
    text += " Without MPS or MIG they run in turn, in time slices, and a kernel's duration holds the other's slices."
    remedy = (
        "If MPS is off, start it (nvidia-cuda-mps-control -d), so that kernels of several processes run side by side; "
        "or give each process a GPU, or a MIG instance, of its own."
    )
    one = Finding("shared-gpu", shared.device, stake, text, remedy, "concurrency", names)
    how = "take turns on" if waited_ns else "share"
    headline = f"{plural(len(shared.processes), 'process')} {how} GPU {shared.device}"
    return one._replace(headline=headline, action="nvidia-cuda-mps-control -d (MPS), or a GPU for each process")


RULES: Final = (serial_copy, default_stream, shared_gpu)
