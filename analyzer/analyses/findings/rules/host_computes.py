"""Idle time of the device while its host thread runs the program's own code, in no CUDA call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, launch_calls, used_devices, with_facts
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import (
    AHEAD,
    LOADS_NEXT,
    all_along,
    in_pytorch,
    of_window,
    per_iteration,
    phase,
)
from kanalyze.analyses.findings.rules.loading import idle_while_planning
from kanalyze.analyses.findings.rules.python_loops import idle_in_loaders, idle_in_loops
from kanalyze.analyses.findings.rules.small_copies import idle_for_extra_copies
from kanalyze.analyses.findings.rules.small_kernels import launch_less
from kanalyze.analyses.findings.rules.waits import idle_after_reads
from kanalyze.analyses.host._context_creation import loading_seen
from kanalyze.analyses.idle._attribution import WITHIN, host_time, idle_within
from kanalyze.analyses.idle.culprits import culprits, host_by_culprit
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.memory._unified_moves import faults_seen
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import nearest
from kanalyze.named_ranges import located, of_iteration
from kanalyze.units import moment, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report
    from kanalyze.window import PerIteration

#: Maximum number of phases named; the next ones only if not much shorter than the first.
_NAMED_PHASES: Final = 3
_NOTABLE: Final = 0.1

#: Operators of PyTorch.
_OPERATOR: Final = "aten::"

#: Fewer stretches than these are none between launches; of iterations, than one in each.
_SEVERAL: Final = 2

#: The least part of the time at stake that other findings tell and that is worth a word.
_TOLD_LEAST: Final = 0.01

#: Rules that tell more of some idle time: what they tell by device.
_TELLERS: Final = (idle_in_loaders, idle_after_reads, idle_for_extra_copies, idle_in_loops, idle_while_planning)

#: Smaller copies are of single numbers and the like, which take no time to prepare.
_DATA_BYTES: Final = 1 << 16


def host_computes(report: Report) -> list[Finding]:
    """At most two findings per device, on its time outside CUDA calls: right before data is copied, and all other.

    Without the time of which other rules tell more: around contexts created outside of recorded calls
    (``cold_start``), and that of :data:`_TELLERS`.
    """
    found, least = [], least_worth_saying(report)
    for device, ns, share in bucket_sums(report).filter(bucket="host").select("device", "ns", "share").iter_rows():
        making = host_time(report)[device].unrecorded
        told = _outside(pl.concat([_NOTHING, *(tell(report).get(device, _NOTHING) for tell in _TELLERS)]), making)
        stake = ns - intervals.length(making) - intervals.length(told)
        if stake <= 0 or stake < least[device]:
            continue
        if per_iteration(report).iterations and not _mostly_short(report, device, stake):
            data = _outside(idle_before_data(report, device), pl.concat([told, making]))
            if 2 * (awaited := intervals.length(data)) >= stake:
                found.append(_prepares(report, device, data, share * awaited / ns))
                told, stake = pl.concat([told, data]), stake - awaited
        if stake > 0 and stake >= least[device]:
            found.append(_computes(report, device, told, stake, share * stake / ns))
    return found


_NOTHING: Final = pl.DataFrame(schema=WITHIN)


def _outside(pieces: pl.DataFrame, held: pl.DataFrame) -> pl.DataFrame:
    """Host time in `pieces` as disjoint spans of its threads, without what of these is `held` elsewhere."""
    columns, others = (*THREAD, "start", "end"), parts_by(held, THREAD)
    found = [pieces.select(columns).clear()]
    for key, part in parts_by(pieces.filter(pl.col("bucket") == "host"), THREAD).items():
        spans = intervals.union(part)
        spans = intervals.subtract(spans, intervals.union(others[key])) if key in others else spans
        names = (pl.lit(value, dtype=pl.Int64).alias(name) for name, value in zip(THREAD, key, strict=True))
        found.append(spans.with_columns(names).select(columns))
    return pl.concat(found)


def idle_before_data(report: Report, device: int) -> pl.DataFrame:
    """Pieces of time in which a device idled while the host ran its own code right before it copied data to it.

    That is in no CUDA call, between the call of such a copy and the thread's launching call before. Columns as in
    :func:`idle_within`.
    """
    to_device = (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == "Host-to-Device")
    copies = exclusive_operations(report).filter((pl.col("device") == device) & to_device)
    copies = with_facts(report, copies, "size_bytes", "thread_id", "call_start")
    copying = copies.filter(pl.col("size_bytes") >= _DATA_BYTES).select(*THREAD, end="call_start").drop_nulls()
    launches = launch_calls(report, "thread_id", "call_start", "call_end").drop_nulls()
    launches = launches.rename({"call_end": "start"}).sort("call_start", "start", maintain_order=True)
    spans = nearest(copying, launches, ("end", "call_start"), THREAD, "strictly before")
    spans = spans.drop_nulls("start").filter(pl.col("end") > pl.col("start"))
    return idle_within(report, spans)[device].filter(bucket="host")


def _prepares(report: Report, device: int, data: pl.DataFrame, share: float) -> Finding:
    """The finding on host time right before data is copied to the device."""
    per, stake = per_iteration(report), intervals.length(data)
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call, right before it copies data to the "
        f"GPU: {of_window(per, stake, share)}. {AHEAD}"
    )
    sums = host_by_culprit(report, data).rename({"told_ns": "ns"})
    rows = sums.with_columns(gaps=pl.lit(1, dtype=pl.Int64), longest_ns=pl.lit(None, dtype=pl.Int64))
    advice = "The GPU waits until the host copies the next data to it", *_PREFETCH[in_pytorch(report)], False
    return _told_of(device, stake, text, _told_phases(rows, per.each), advice)


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


def _told_of(device: int, stake: int, text: str, phases: pl.DataFrame, advice: tuple[str, str, str, bool]) -> Finding:
    """The finding with an `advice` as :func:`_advice` gives it, and the range or operator of at least half of it."""
    headline, action, remedy, vague = advice
    where = _mostly(phases)
    where = literal(where.removeprefix("in ")) if where.startswith("in ") else ""
    one = Finding("host-computes", device, stake, text, remedy, "culprits", headline=headline, action=action)
    return one._replace(where=where, vague=vague)


def _mostly(phases: pl.DataFrame) -> str:
    """The phase with at least half of the time; empty if none has."""
    return str(phases.item(0, "where")) if phases.height and 2 * phases.item(0, "ns") >= total(phases, "ns") else ""


def _computes(report: Report, device: int, told: pl.DataFrame, stake: int, share: float) -> Finding:
    """The finding on all host time but what is `told` by others."""
    per = per_iteration(report)
    phases = _told_phases(_phases(report, device, told), per.each)
    notable = phases.filter((pl.col("ns") > 0) & (pl.col("ns") >= _NOTABLE * pl.col("ns").max()))
    named = "; ".join(_phase(per, row) for row in notable.head(_NAMED_PHASES).iter_rows(named=True))
    most = f"Most {named}." if named else ""
    sentences = " ".join(filter(None, (most, _longest(report, device, told), _faulting(report, device), AHEAD)))
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {of_window(per, stake, share)}"
        f"{_besides(report, device, told, stake)}. {sentences}"
    )
    return _told_of(device, stake, text, phases, _advice(report, device, phases, stake))


def _besides(report: Report, device: int, told: pl.DataFrame, stake: int) -> str:
    """The clause on host time of which other findings tell."""
    per, making, others_ns = (
        per_iteration(report),
        intervals.length(host_time(report)[device].unrecorded),
        intervals.length(told),
    )
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
    if _mostly_short(report, device, stake):
        many = per_iteration(report).plural(host_time(report)[device].short[1], "short stretch")
        less = launch_less(report, device)
        return f"The GPU waits for the program in {many}", less.ahead_action or less.action, less.ahead, True
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


def _new_kernels(report: Report, device: int, phases: pl.DataFrame) -> str | None:
    """The headline on a host that prepares new kernels: in an operator, or before it loads some, not just at first."""
    top = _mostly(phases)
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


def _longest(report: Report, device: int, told: pl.DataFrame) -> str:
    """The sentence on the longest stretch; empty where other findings tell of a part of it."""
    start, length = host_time(report)[device].longest
    span = pl.DataFrame([(start, start + length)], intervals.SPANS, orient="row")
    if touched(span, intervals.union(told)).any():
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


def _phases(report: Report, device: int, told: pl.DataFrame) -> pl.DataFrame:
    """The rows of :func:`culprits` on host time, the longest first, less what other findings tell.

    Rows that held such time have no longest_ns: how much of their longest gap it was is unknown.
    """
    rows = culprits(report).filter((pl.col("device") == device) & (pl.col("bucket") == "host"))
    held = pl.concat([told, host_time(report)[device].unrecorded])
    if held.is_empty():
        return rows
    left = rows.join(
        host_by_culprit(report, held), on=["culprit", "range"], how="left", nulls_equal=True, maintain_order="left"
    )
    ns = (pl.col("ns") - pl.col("told_ns").fill_null(0)).clip(lower_bound=0)
    longest = pl.when(pl.col("told_ns").is_null()).then("longest_ns")
    return left.with_columns(ns.alias("ns"), longest.alias("longest_ns")).sort(
        "ns", descending=True, maintain_order=True
    )


def _phase(per: PerIteration, row: dict[str, Any]) -> str:
    several = row["gaps"] > 1 and row["longest_ns"] is not None
    longest = f" in {per.plural(row['gaps'], 'gap')}, the longest {time(row['longest_ns'])}" if several else ""
    return f"{literal(row['where'])}: {per.mean_time(row['ns'])}{longest}"


RULES: Final = (host_computes,)
