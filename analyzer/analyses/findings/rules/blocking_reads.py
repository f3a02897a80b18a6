"""Reads of results for which the host waits, and the idle time of the device that follows from each."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import launch_calls, operations, with_facts
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import calls_within
from kanalyze.analyses.findings.rules._next_launches import idle_since
from kanalyze.analyses.findings.rules._places import site_text, sites_of_launches
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.host._rounds import rounds, rounds_at
from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls, in_scope
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered, rows_at
from kanalyze.columns.ordering import in_order
from kanalyze.units import size

if TYPE_CHECKING:
    from kanalyze.report import Report

_TO_HOST: Final = "Device-to-Host"

#: A few reads between phases are normal; from so many on there is a finding.
_FEWEST: Final = 3

#: In a window of iterations, a read in so many of them at least is one of the loop.
_OFTEN: Final = 0.5

#: The size of the largest number that PyTorch reads as one.
_SCALAR_BYTES: Final = 16

#: Maximum number of places named in the sentence.
_NAMED: Final = 3


def blocking_read(report: Report) -> list[Finding]:
    """At most one finding per device, on all such reads together."""
    return [_finding(report, device, intervals.length(pieces)) for device, pieces in _idle(report).items()]


def idle_after_reads(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device that :func:`blocking_read` tells of: columns of `idle_within`."""
    return _idle(report).get(device, pl.DataFrame(schema=WITHIN))


@once_per_report
def _idle(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time that follows from reads, by device, where it is worth a finding: columns of `idle_within`."""
    known = _of_loops(report, reads(report))
    found: dict[int, pl.DataFrame] = {}
    for (device,), own in known.partition_by("device", as_dict=True, maintain_order=True).items():
        number, least_ns = int(str(device)), least_worth_saying(report)
        spans = own.select(*THREAD, start="since", end="until")
        if own.height < _least_reads(report) or intervals.length(spans) < max(least_ns.get(number, inf), 1):
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


def _least_reads(report: Report) -> float:
    window = report.scope.window
    return max(_OFTEN * window.count, 1) if window is not None and window.count else _FEWEST


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
    copies = _copies_to_host(report)
    found = [waiting.select(*THREAD, "device", "call_row", "start", "end", size_bytes=0, next=0).clear()]
    if waiting.is_empty() or copies.is_empty():
        return found[0].with_columns(row=pl.lit(None, dtype=pl.UInt32))
    calls = launch_calls(report, "thread_id", "call_row", "call_start")
    calls = calls.rename({"call_row": "call", "call_start": "launch"})
    launches = parts_by(in_order(calls, "launch"), THREAD)
    for key, own in parts_by(waiting, THREAD).items():
        if key in launches:
            found.append(_of_thread(own, launches[key], copies))
    every = pl.concat([part.select(found[0].columns) for part in found], how="vertical_relaxed")
    return every.with_columns(_first_operations(report, every.get_column("next")))


def _of_thread(waiting: pl.DataFrame, launches: pl.DataFrame, copies: pl.DataFrame) -> pl.DataFrame:
    """The reads of one thread, by its blocking calls and launches; `next` is the call that launched next."""
    begun, calls = launches.get_column("launch"), launches.get_column("call")
    last = begun.search_sorted(waiting.get_column("start"), side="right").cast(pl.Int64) - 1
    waits = waiting.with_columns(call=gathered(calls, last.set(last < 0, None).cast(pl.UInt32)))
    grouped = (
        waits.join(copies, on="call")
        .sort("start")
        .group_by(*THREAD, "device", "call", maintain_order=True)
        .agg(pl.col("call_row", "size_bytes").first(), pl.col("start").min(), pl.col("end").max())
    )
    after = begun.search_sorted(grouped.get_column("end"), side="left")
    return grouped.with_columns(next=gathered(calls, after.set(after == len(begun), None)))


def _copies_to_host(report: Report) -> pl.DataFrame:
    """Calls that launched a copy to the host: call (its row), size_bytes."""
    work = operations(report, "call_row").filter(pl.col("kind") == "memcpy").drop_nulls("call_row")
    own = work.filter((pl.col("detail").cast(pl.String) == _TO_HOST).fill_null(value=False))
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


def _finding(report: Report, device: int, stake: int) -> Finding:
    per, own = per_iteration(report), _of_loops(report, reads(report)).filter(pl.col("device") == device)
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
    told = _TOLD[_kind(where, small=bool(small)) if torch else "copy"]
    return Finding(
        "blocking-read",
        device,
        stake,
        text,
        told.remedy,
        "syncs --by api",
        headline=told.headline,
        action=told.action,
        where=where,
        mending=partial(_unread, own=own),
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


class _Told(NamedTuple):
    """Words of a finding that depend on the value read: a number or a tensor of PyTorch, or any copy."""

    headline: str
    action: str
    remedy: str


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
_TOLD: Final = {
    "value": _Told(
        "A value read by the host (.item(), x[mask], if) stalls",
        "read it every N steps; torch.where in place of masks and if",
        _IN_TORCH,
    ),
    "shape": _Told(
        "A shape that depends on data (x[mask], nonzero) stalls",
        "torch.where(mask, x, 0) in place of x[mask]",
        _IN_TORCH,
    ),
    "condition": _Told(
        "A tensor as a condition (if x > 0) stalls the GPU",
        "torch.where(x > 0, a, b) in place of if; or ask every N steps",
        _IN_TORCH,
    ),
    "scalar": _Told(
        "A number read by the host (.item(), print) stalls the GPU",
        "loss.detach() instead of .item(); read it every N steps",
        _IN_TORCH,
    ),
    "tensor": _Told(
        "Results read by the host (.cpu() and others) stall the GPU",
        ".to('cpu', non_blocking=True) into pinned memory; read it a step later",
        _IN_TORCH,
    ),
    "copy": _Told(
        "Results that the host waits for stall the GPU",
        "Launch the next work first; wait for an event behind the copy later",
        "Launch the next work before waiting for a result: copy it asynchronously into pinned memory, record an event "
        "behind the copy, and wait for that an iteration later.",
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


RULES: Final = (blocking_read,)
