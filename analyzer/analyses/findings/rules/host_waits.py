"""Idle time of the device while the host blocks in a call, needed or not, or runs its own code."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations, used_devices, with_facts
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._before_data import idle_before_data
from kanalyze.analyses.findings.rules._copies import outside_library
from kanalyze.analyses.findings.rules._next_launches import followed, idle_since
from kanalyze.analyses.findings.rules._places import main_site
from kanalyze.analyses.findings.rules._telling import LOADS_NEXT, all_along, in_pytorch, per_iteration, phase
from kanalyze.analyses.findings.rules.blocking_reads import idle_after_reads
from kanalyze.analyses.findings.rules.loading import idle_while_planning
from kanalyze.analyses.findings.rules.python_loops import idle_in_loaders, idle_in_loops
from kanalyze.analyses.findings.rules.small_copies import idle_for_extra_copies
from kanalyze.analyses.findings.rules.small_kernels import launch_less
from kanalyze.analyses.host._call_kinds import calls_that, shown
from kanalyze.analyses.host._context_creation import begun_before, loading_seen
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle._attribution import host_time, launch_waits, waited_ns
from kanalyze.analyses.idle._blocking_calls import WAITING, blocking_calls
from kanalyze.analyses.idle._idle_parts import range_names
from kanalyze.analyses.idle.culprits import context_culprits, culprits, host_by_culprit
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying, worth_saying
from kanalyze.analyses.memory._unified_moves import faults_seen
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import gathered
from kanalyze.intervals import BEFORE_ALL
from kanalyze.named_ranges import located, of_iteration
from kanalyze.units import moment, percent, plural, time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report
    from kanalyze.window import PerIteration


def host_blocks(report: Report) -> list[Finding]:
    """At most one finding per device, on blocking calls other than those of :func:`unneeded_sync` and of reads."""
    every = bucket_sums(report).filter(pl.col("bucket") == "sync")
    found = []
    for (device,), rows in every.partition_by("device", as_dict=True, maintain_order=True).items():
        told, read = unneeded(report).get(int(device)), idle_after_reads(report, int(device))
        found += _blocks(per_iteration(report), int(device), rows, told, read)
    return found


def _blocks(
    per: PerIteration, device: int, rows: pl.DataFrame, told: pl.DataFrame | None, read: pl.DataFrame
) -> list[Finding]:
    """The finding on `rows` of the ledger's bucket, less what is reported elsewhere: unneeded calls, and reads."""
    window = float(rows.get_column("ns").item(0)) / float(rows.get_column("share").item(0))
    besides, ns = "", pl.col("end") - pl.col("start")
    if told is not None:
        rows = _less(rows, told.select(shown(pl.col("name")).alias("detail"), told_ns="sync_ns"))
        besides = ", besides the calls that look unneeded"
    if (pl.Series(["sync"]).is_in(read.get_column("bucket").cast(pl.String).implode())).any():
        rows = _less(rows, read.filter(pl.col("bucket") == "sync").select("detail", told_ns=ns))
        besides = f"{besides or ', besides the'}{' and' if besides else ''} reads of results"
    stake = total(rows, "ns")
    calls = ", ".join(
        f"{literal(name)} {per.mean_time(ns)}"
        for name, ns in rows.sort("ns", "detail", descending=[True, False]).select("detail", "ns").head(3).iter_rows()
        if ns
    )
    took = _took(per, stake, stake / window)
    text = f"GPU {device} idle while the host is blocked in a synchronizing call: {took} ({calls}){besides}. {_AHEAD}"
    remedy = (
        "Launch the next work before waiting, or wait for less: an event instead of the device, later instead of now."
    )
    one = Finding("host-blocks", device, stake, text, remedy, "syncs --by api")
    headline, action = "The GPU idles while the host waits for it", "launch the next work before you wait for the last"
    return [one._replace(headline=headline, action=action)] if stake else []


def _took(per: PerIteration, ns: int, share: float) -> str:
    return f"{per.time(ns)}, {percent(share)} of it" if per.iterations else f"{percent(share)} of the window"


def _less(rows: pl.DataFrame, told: pl.DataFrame) -> pl.DataFrame:
    """`rows` of the ledger without the time `told_ns` of each detail."""
    own = told.group_by("detail").agg(pl.col("told_ns").sum())
    left = rows.join(own, on="detail", how="left", nulls_equal=True, maintain_order="left")
    return left.with_columns((pl.col("ns") - pl.col("told_ns").fill_null(0)).clip(lower_bound=0).alias("ns")).drop(
        "told_ns"
    )


#: Why mending may gain more than the idle time that is seen.
_AHEAD: Final = "More may follow: the host could run ahead."

#: Maximum number of phases named; the next ones only if not much shorter than the first.
_NAMED_PHASES: Final = 3
_NOTABLE: Final = 0.1

#: Operators of PyTorch.
_OPERATOR: Final = "aten::"

#: Fewer stretches than these are none between launches; of iterations, than one in each.
_SEVERAL: Final = 2


def host_computes(report: Report) -> list[Finding]:
    """At most two findings per device, on its time outside CUDA calls: right before data is copied, and all other.

    Without the time of which other rules tell more: around contexts created outside of recorded calls
    (``cold_start``), and that of :data:`_TELLERS`.
    """
    found = []
    for device, ns, share in bucket_sums(report).filter(bucket="host").select("device", "ns", "share").iter_rows():
        told = _told(report, device)
        stake = ns - intervals.length(host_time(report)[device].unrecorded) - sum(map(intervals.length, told.values()))
        if stake <= 0 or stake < least_worth_saying(report)[device]:
            continue
        data = {} if _mostly_short(report, device, stake) else _before_data(report, device, told)
        awaited = sum(map(intervals.length, data.values()))
        if 2 * awaited >= stake:
            found.append(_prepares(report, device, data, share * awaited / ns))
            told = {key: intervals.union(pl.concat(_of_thread(key, told, data))) for key in {**told, **data}}
            stake -= awaited
        if stake > 0 and stake >= least_worth_saying(report)[device]:
            found.append(_computes(report, device, told, stake, share * stake / ns))
    return found


def _of_thread(key: ThreadKey, *parts: dict[ThreadKey, pl.DataFrame]) -> list[pl.DataFrame]:
    return [part[key].select("start", "end") for part in parts if key in part]


#: The least part of the time at stake that other findings tell and that is worth a word.
_TOLD_LEAST: Final = 0.01

#: Rules that tell more of some idle time: what they tell of a device.
_TELLERS: Final = (idle_in_loaders, idle_after_reads, idle_for_extra_copies, idle_in_loops, idle_while_planning)


def _told(report: Report, device: int) -> dict[ThreadKey, pl.DataFrame]:
    """Host time that more specific rules tell, by thread: span sets, without context creation."""
    pieces = pl.concat([tell(report, device) for tell in _TELLERS]).filter(pl.col("bucket") == "host")
    return _outside(pieces, _contexts_made(report, device))


def _contexts_made(report: Report, device: int) -> list[tuple[ThreadKey, pl.DataFrame]]:
    """Idle time around the making of contexts that no recorded call tells, with its thread."""
    return [*parts_by(host_time(report)[device].unrecorded, THREAD).items()]


def _outside(pieces: pl.DataFrame, held: Iterable[tuple[ThreadKey, pl.DataFrame]]) -> dict[ThreadKey, pl.DataFrame]:
    """`pieces` by thread, as span sets, without what of the thread is `held` elsewhere."""
    parts = {key: intervals.union(part) for key, part in parts_by(pieces, THREAD).items()}
    for key, other in held:
        if key in parts:
            parts[key] = intervals.subtract(parts[key], intervals.union(other))
    return parts


def _prepares(report: Report, device: int, data: dict[ThreadKey, pl.DataFrame], share: float) -> Finding:
    """The finding on host time right before data is copied to the device, span sets by thread."""
    per, stake = per_iteration(report), sum(map(intervals.length, data.values()))
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call, right before it copies data to the "
        f"GPU: {_took(per, stake, share)}. {_AHEAD}"
    )
    sums = host_by_culprit(report, pl.concat(_with_threads(data))).rename({"told_ns": "ns"})
    rows = sums.with_columns(gaps=pl.lit(1, dtype=pl.Int64), longest_ns=pl.lit(None, dtype=pl.Int64))
    advice = "The GPU waits until the host copies the next data to it", *_PREFETCH[in_pytorch(report)], False
    return _told_of(device, stake, text, _told_phases(rows, per.each), advice)


def _told_of(device: int, stake: int, text: str, phases: pl.DataFrame, advice: tuple[str, str, str, bool]) -> Finding:
    """The finding with an `advice` as :func:`_advice` gives it."""
    headline, action, remedy, vague = advice
    one = Finding("host-computes", device, stake, text, remedy, "culprits", headline=headline, action=action)
    return one._replace(where=_where(phases), vague=vague)


def _where(phases: pl.DataFrame) -> str:
    """The range or operator in which at least half of it lies."""
    mostly = phases.height and 2 * phases.item(0, "ns") >= total(phases, "ns")
    where = str(phases.item(0, "where")) if mostly else ""
    return literal(where.removeprefix("in ")) if where.startswith("in ") else ""


def _computes(report: Report, device: int, told: dict[ThreadKey, pl.DataFrame], stake: int, share: float) -> Finding:
    """The finding on all host time but what is `told` by others, span sets by thread."""
    per = per_iteration(report)
    phases = _told_phases(_phases(report, device, told), per.each)
    notable = phases.filter((pl.col("ns") > 0) & (pl.col("ns") >= _NOTABLE * pl.col("ns").max()))
    named = "; ".join(_phase(per, row) for row in notable.head(_NAMED_PHASES).iter_rows(named=True))
    most = f"Most {named}." if named else ""
    sentences = " ".join(filter(None, (most, _longest(report, device, told), _faulting(report, device), _AHEAD)))
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {_took(per, stake, share)}"
        f"{_besides(report, device, told, stake)}. {sentences}"
    )
    return _told_of(device, stake, text, phases, _advice(report, device, phases, stake))


def _besides(report: Report, device: int, told: dict[ThreadKey, pl.DataFrame], stake: int) -> str:
    """The clause on host time of which other findings tell."""
    per, making = per_iteration(report), intervals.length(host_time(report)[device].unrecorded)
    others_ns = sum(map(intervals.length, told.values()))
    others = [
        *([f"{per.mean_time(making)} around the making of contexts"] if making else []),
        *([f"{per.mean_time(others_ns)} of which other findings tell"] if others_ns > _TOLD_LEAST * stake else []),
    ]
    return f", besides {' and '.join(others)}" if others else ""


def _mostly_short(report: Report, device: int, stake: int) -> bool:
    """Whether most of the time at stake is in short stretches, many of them."""
    short_ns, short = host_time(report)[device].short
    return 2 * short_ns > stake and short >= max(_SEVERAL, per_iteration(report).iterations or 0)


def _advice(report: Report, device: int, phases: pl.DataFrame, stake: int) -> tuple[str, str, str, bool]:
    """Headline, action, remedy, and whether these name no cause.

    Of many short stretches, to launch less often; of long ones, to do something else.
    """
    per = per_iteration(report)
    if _mostly_short(report, device, stake):
        many = per.plural(host_time(report)[device].short[1], "short stretch")
        headline = f"The GPU waits for the program in {many}"
        less = launch_less(report, device)
        return headline, less.ahead_action or less.action, less.ahead, True
    if (waits := _new_kernels(report, device, phases)) is not None:
        remedy = (
            "What takes the host long there is mostly to choose, compile or load kernels for shapes that are new: keep "
            "to a few shapes (pad to them), and run each once before."
        )
        return waits, "keep to a few shapes, for which kernels are chosen once", remedy, False
    headline = "The GPU waits while the program runs its own code"
    action = "prefetch data, launch ahead, move work to another thread"
    remedy = "Give the GPU work before the host needs its time: prefetch data, launch ahead, move work off this thread."
    return headline, action, remedy, True


def _before_data(report: Report, device: int, told: dict[ThreadKey, pl.DataFrame]) -> dict[ThreadKey, pl.DataFrame]:
    """Host time of iterations right before data is copied to a device, of which no other finding tells: span sets."""
    if not per_iteration(report).iterations:
        return {}
    found = _outside(idle_before_data(report, device), [*told.items(), *_contexts_made(report, device)])
    return {key: part for key, part in found.items() if part.height}


#: Action and remedy where the device waits until the next data are copied to it, by whether that is in PyTorch.
_PREFETCH: Final = {
    True: (
        "DataLoader(…, num_workers=8, pin_memory=True, prefetch_factor=4)",
        (
            "If the host prepares that data, let workers of a DataLoader do so (num_workers, prefetch_factor, "
            "pin_memory=True) while the GPU works; if it waits for them, it needs more of them."
        ),
    ),
    False: (
        "prepare the next data in another thread, while the GPU works",
        (
            "If the host prepares that data, prepare the next ones in another thread while the GPU works, and copy "
            "them on a stream of their own."
        ),
    ),
}


def _new_kernels(report: Report, device: int, phases: pl.DataFrame) -> str | None:
    """The headline on a host that prepares new kernels: in an operator, or before it loads some, not just at first."""
    mostly = phases.height and 2 * phases.item(0, "ns") >= total(phases, "ns")
    top = phases.item(0, "where") if mostly else ""
    operator = top.removeprefix("in ").partition(" in ")[0]
    if operator.startswith(_OPERATOR):
        return f"The GPU waits for the host in {literal(operator)}"
    again = top == LOADS_NEXT and (per_iteration(report).iterations or _loads_all_along(report, device))
    return "The GPU waits while the host prepares new kernels" if again else None


def _loads_all_along(report: Report, device: int) -> bool:
    """Whether modules are loaded all along the device's window."""
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    loading = loading_seen(report).filter(pl.col("start").is_between(low, high, closed="left"))
    return bool(loading.select(all_along(pl.col("start"), low, high)).item())


def _told_phases(phases: pl.DataFrame, each: str) -> pl.DataFrame:
    """The `phases` in the user's words, the longest first: where, ns, gaps, longest_ns (null where it is unknown)."""
    rows = phases.drop_nulls("culprit").select("culprit", "range").unique().iter_rows()
    words = [(culprit, within, of_iteration(located(phase(culprit), within), each)) for culprit, within in rows]
    names = pl.DataFrame(words, {"culprit": pl.String, "range": pl.String, "where": pl.String}, orient="row")
    named = phases.with_columns(pl.col("culprit", "range").cast(pl.String)).join(
        names, on=["culprit", "range"], nulls_equal=True, maintain_order="left"
    )
    known = pl.col("longest_ns").is_not_null().all()
    sums = named.group_by("where", maintain_order=True).agg(
        pl.col("ns", "gaps").sum(), longest_ns=pl.when(known).then(pl.col("longest_ns").max())
    )
    return sums.sort("ns", descending=True, maintain_order=True)


def _longest(report: Report, device: int, told: dict[ThreadKey, pl.DataFrame]) -> str:
    """The sentence on the longest stretch; empty where other findings tell of a part of it."""
    start, length = host_time(report)[device].longest
    span = pl.DataFrame([(start, start + length)], intervals.SPANS, orient="row")
    if any(touched(span, part).any() for part in told.values()):
        return ""
    return f"The longest stretch is {time(length)}, from {moment(start, report.zero_ns)} on."


def _faulting(report: Report, device: int) -> str:
    """The sentence on CPU page faults meanwhile, which are not the program's code either; empty without any."""
    if "fault" not in report.kinds:
        return ""
    used = used_devices(report).filter(pl.col("device") == device)
    faults = faults_seen(report).filter(pl.col("side") == "CPU").join(used, on="process_id", how="semi")
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    many = total(faults.filter(pl.col("start").is_between(low, high, closed="left")), "faults")
    return f"Part of it may be {plural(many, 'page fault')} of the CPU on managed memory." if many else ""


def _phases(report: Report, device: int, told: dict[ThreadKey, pl.DataFrame]) -> pl.DataFrame:
    """The rows of :func:`culprits` on host time, the longest first, less the time `told` by other findings.

    Rows that held such time have no longest_ns: how much of their longest gap it was is unknown.
    """
    rows = culprits(report).filter((pl.col("device") == device) & (pl.col("bucket") == "host"))
    held = [] if device not in context_culprits(report) else [context_culprits(report)[device]]
    if spans := _with_threads(told):
        held.append(host_by_culprit(report, pl.concat(spans)))
    if not held:
        return rows
    sums = pl.concat(held).group_by("culprit", "range").agg(pl.col("told_ns").sum())
    left = rows.join(sums, on=["culprit", "range"], how="left", nulls_equal=True, maintain_order="left")
    ns = (pl.col("ns") - pl.col("told_ns").fill_null(0)).clip(lower_bound=0)
    longest = pl.when(pl.col("told_ns").is_null()).then("longest_ns")
    return left.with_columns(ns.alias("ns"), longest.alias("longest_ns")).sort(
        "ns", descending=True, maintain_order=True
    )


def _with_threads(parts: dict[ThreadKey, pl.DataFrame]) -> list[pl.DataFrame]:
    """Span sets by thread, each with the columns of its thread; without the empty ones."""
    return [part.with_columns(_keys(key)).select(*THREAD, "start", "end") for key, part in parts.items() if part.height]


def _keys(key: ThreadKey) -> list[pl.Expr]:
    return [pl.lit(value, dtype=pl.Int64).alias(name) for name, value in zip(THREAD, key, strict=True)]


def _phase(per: PerIteration, row: dict[str, Any]) -> str:
    several = row["gaps"] > 1 and row["longest_ns"] is not None
    longest = f" in {per.plural(row['gaps'], 'gap')}, the longest {time(row['longest_ns'])}" if several else ""
    return f"{literal(row['where'])}: {per.mean_time(row['ns'])}{longest}"


#: A few waits between phases are normal; from so many on there is a finding.
_FEWEST: Final = 3

#: The ledger's buckets that hold the time at stake.
_BUCKETS: Final = ("sync", "launch")


def unneeded_sync(report: Report) -> list[Finding]:
    """At most one finding per device, on all such calls together."""
    found = []
    for device, calls in unneeded(report).items():
        rows = bucket_sums(report).filter((pl.col("device") == device) & pl.col("bucket").is_in(_BUCKETS))
        stake = min(total(calls, "gain_ns"), total(rows, "ns"))
        blocked = int((calls.get_column("end") - calls.get_column("start")).sum())
        per, most = per_iteration(report), _most(report, calls)
        text = (
            f"{per.plural(calls.height, 'blocking call')} ({most}), {per.time(blocked)} of host time, after which the "
            f"host launched more work, with no copy to the host pending: GPU {device} idled {per.time(stake)} until "
            f"they had returned and the next launch was through. That is unneeded unless the host or another process "
            f"reads what kernels wrote without a copy. {_AHEAD}"
        )
        remedy = (
            "Leave them out, or order streams by events, so that the host launches ahead; wait where a result is read."
        )
        action = _UNWAIT[in_pytorch(report)]
        headline = f"{per.plural(calls.height, 'wait')} for the GPU that nothing is seen to need"
        one = Finding("unneeded-sync", device, stake, text, remedy, "syncs --by api")
        where = main_site(report, calls.select(*THREAD, at="start"))
        waits = calls.get_column("call_row")
        found.append(
            one._replace(headline=headline, action=action, where=where, mending=partial(_not_called, calls=waits))
        )
    return found


def _not_called(_: Report, calls: pl.Series) -> Mending:
    return Mending(calls=calls)


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
        operation that lies in the call) and gain_ns (sync_ns plus the device's wait for the launch, at most the call's
        duration).
    """
    waiting = blocking_calls(report).filter(pl.col("scope").is_in(WAITING)).drop_nulls(["device", *THREAD])
    if waiting.is_empty():
        return _with_gains(report, waiting.with_columns(row=pl.lit(None, dtype=pl.UInt32)).clear())
    needed = _needed(report, waiting)
    following = followed(report, waiting.with_columns(needed.alias("needed")))
    free = following.filter(~pl.col("needed").any().over("row"))
    return _with_gains(report, outside_library(report, free))


def _needed(report: Report, waiting: pl.DataFrame) -> pl.Series:
    """Whether the host needs each of the `waiting` calls: for a copy's completion, or because it shares memory."""
    copies, warm = _host_copies(report), begun_before(report).get_column("process_id").to_list()
    since = _since(waiting)
    needed = []
    for (process,), part in since.partition_by("process_id", as_dict=True, maintain_order=True).items():
        at = copies.filter(pl.col("process_id") == process).get_column("at").sort()
        begun = at.search_sorted(part.get_column("start"), side="left")
        earlier = at.search_sorted(part.get_column("since"), side="left")
        earliest = part.get_column("since") == BEFORE_ALL
        unknown = earliest & (process in warm)  # it may wait for a copy from before the recording
        needed.append(part.select("call_row", needed=(begun > earlier) | unknown))
    found = waiting.select("call_row", "process_id").join(
        pl.concat(needed), on="call_row", how="left", maintain_order="left"
    )
    shared = found.get_column("process_id").is_in(_sharing(report).implode())
    return found.get_column("needed") | shared


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
    """Copies whose completion the host must know of, and graphs that may contain some: process_id and `at` (the call).

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
    return pl.concat(part.select("process_id", at="call_start") for part in told)


def _sharing(report: Report) -> pl.Series:
    """The processes that have memory shared by host and device."""
    made = calls_that(report, _SHARED_MEMORY.match, "process_id")
    moved = report.kind("memcpy").select("process_id", "name").unique()
    moved = moved.filter(pl.col("name").cast(pl.String).str.contains("Unified", literal=True)).select("process_id")
    return pl.concat([made, moved]).get_column("process_id").unique()


def _with_gains(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """The `calls` in the windows with the gain of each; calls without a gain are dropped."""
    times = {"sync_ns": pl.Int64, "gain_ns": pl.Int64}
    found = [calls.with_columns(pl.lit(0, dtype=dtype).alias(name) for name, dtype in times.items()).clear()]
    waits = launch_waits(report)
    for device, low, high in windows(report).iter_rows():
        own = calls.filter(pl.col("device") == device).sort("start")
        if own.is_empty():
            continue
        begun = idle_since(report, device, own.get_column("row"))
        gap = own.select(
            pl.max_horizontal("start", begun).clip(low, high).alias("start"),
            pl.col("end").clip(low, high),
            idle=begun,
        )
        inside = gap.select(
            pl.when(pl.col("idle").is_not_null()).then(pl.col("end") - pl.col("start")).clip(lower_bound=0)
        )
        launch = waited_ns(waits, own.get_column("row")).alias("launch")
        together = own.with_columns(inside.to_series().fill_null(0).alias("sync_ns"), launch)
        one = pl.col("launch") * pl.col("row").is_last_distinct()
        gain = pl.min_horizontal(pl.col("sync_ns") + one, pl.col("end") - pl.col("start"))
        found.append(together.with_columns(gain_ns=gain).drop("launch"))
    return pl.concat(found).filter(pl.col("gain_ns") > 0)


RULES: Final = (host_blocks, host_computes, unneeded_sync)
