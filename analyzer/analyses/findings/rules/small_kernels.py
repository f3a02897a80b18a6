"""Kernels too short for their launches, with remedies by how the program launches; and kernels that are timed."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import is_compiled, kernel_sums, merged, times_of
from kanalyze.analyses.findings.rules._launching import launch_less, share_of_graphs
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    per_iteration,
    place_of_kernels,
    written_with,
)
from kanalyze.analyses.fusion.fusion import chains, fusion, occurrences
from kanalyze.analyses.idle._attribution import reasoned_pieces
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.iterations._launch_line import timed_runs
from kanalyze.analyses.launches._graph_candidates import candidates, cut_launches, pieces, repetitions
from kanalyze.analyses.launches._launch_costs import launch_costs
from kanalyze.analyses.operators._paths import ARROW
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.model import STREAMS
from kanalyze.units import count, plural, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report


def launch_bound(report: Report) -> list[Finding]:
    """One finding per device with launch-bound kernels for which it waited."""
    waiting = launch_costs(report).bound.filter(pl.col("launch_ns") > 0)
    return [_launch_bound(report, own) for own in waiting.partition_by("device", maintain_order=True)]


def _launch_bound(report: Report, waiting: pl.DataFrame) -> Finding:
    device = int(waiting.item(0, "device"))
    per, less = per_iteration(report), launch_less(report, device)
    top, launches = waiting.row(0, named=True), total(waiting, "count")
    most = f"most for {{0}}: {time(top['api_ns'])} to launch, {time(top['kernel_ns'])} to run"
    which = f"{plural(waiting.height, 'kernel')} in {per.plural(launches, 'warm launch')}"
    stake = total(waiting, "launch_ns")
    waited = f"{per.time(stake)} " if per.iterations else ""
    names = exclusive_operations(report).join(waiting, on=["device", "name"], how="semi")
    text = (
        f"Launch-bound: {which} run shorter than their launch takes, and the GPU waited {waited}for it ({most}). "
        "More may follow: the host is spared what it does between launches, too."
    )
    return Finding(
        "launch-bound",
        device,
        stake,
        text,
        less.remedy,
        "launch_summary",
        (str(top["name"]),),
        headline=f"{per.clause(launches, 'kernel', 'take')} longer to launch than to run",
        action=less.action,
        where=place_of_kernels(report, device, waiting.get_column("name"), stake),
        mending=_graphed,
        claims=_waits_for(report, device, names.get_column("row")).filter(bucket="launch"),
        vague=_graphed(report) is None,
        general=True,
    )


def _waits_for(report: Report, device: int, rows: pl.Series) -> pl.DataFrame:
    """When a device waited for some operations (rows): start, end, and the ledger's bucket."""
    return reasoned_pieces(report, device).filter(pl.col("row").is_in(rows.implode()))


#: The ledger's buckets that a graph reduces.
_LAUNCHING: Final = ("launch", "queued")

#: Where so much of kernel time is of CUDA graphs, most of what can be captured is.
_REPLAYED: Final = 0.5

#: The most pieces of an iteration that calls which no capture allows may leave, to be captured one by one.
_MOST_PIECES: Final = 16

#: Fewer launches than these do not pay for the capture and instantiation of a graph.
_FEWEST_LAUNCHES: Final = 100

#: Of a device that waits for its host for less than this share of its window the host is ahead: what lies between
#: kernels that are queued is theirs.
_LATE: Final = 0.1


def graph_candidate(report: Report) -> list[Finding]:
    """One finding per device that waited for such launches."""
    if device_operations(report).height < _FEWEST_LAUNCHES:
        return []
    of_host = bucket_sums(report).filter(pl.col("bucket").is_in((*_LAUNCHING, "host"))).group_by("device")
    late = of_host.agg(pl.col("share").sum()).filter(pl.col("share") >= _LATE).select("device")
    buckets = bucket_sums(report).filter(pl.col("bucket").is_in(_LAUNCHING)).join(late, on="device", how="semi")
    found = []
    for device, most in buckets.group_by("device").agg(pl.col("ns").sum()).sort("device").iter_rows():
        if share_of_graphs(report).get(device, 0.0) > _REPLAYED or _cut_all_over(report):
            continue
        launches = pl.col("operations") * pl.col("repetitions")
        own = candidates(report).filter((pl.col("device") == device) & (launches >= _FEWEST_LAUNCHES))
        own = own.filter(pl.col("saved_ns") > 0).with_columns(launches=launches)
        if own.height:
            found.append(_graph_candidate(report, device, own, most))
    return found


def _graph_candidate(report: Report, device: int, own: pl.DataFrame, most: int) -> Finding:
    top, stake = own.row(0, named=True), min(total(own, "saved_ns"), most)
    waited = total(own, "launch_ns") + total(own, "queued_ns")
    known = "the median of those in this report" if top["measured"] else "the median of these calls, for want of one"
    which = f"{plural(own.height, 'sequence')} of launches repeat{'' if own.height > 1 else 's'}"
    per, launches = per_iteration(report), total(own, "launches")
    text = (
        f"{which}: {per.plural(launches, 'launch')} for which GPU {device} waited {per.time(waited)}, most for "
        f"{plural(top['operations'], 'operation')} launched {count(top['repetitions'])} times, beginning with {{0}}. "
        f"As CUDA graphs they would save at most {per.time(stake)} of that, if launching one takes "
        f"{time(top['graph_launch_ns'])} ({known}), and the program's own time between them besides."
        f"{_not_capturable(report, device)}"
    )
    own_stream = " (on a stream of its own: the default stream cannot be captured)" if _on_default(report, own) else ""
    less = launch_less(report, device)
    remedy = less.capture or (
        f"Capture the sequence once as a CUDA graph{own_stream} and replay it; arguments that change go through memory."
    )
    return Finding(
        "graph-candidate",
        device,
        stake,
        text,
        remedy,
        "graphs --by candidate",
        (str(top["first"]),),
        headline=f"{per.plural(launches, 'launch')} could be replayed as a graph",
        action=less.action,
        mending=_graphed,
        claims=_waits_for(report, device, repetitions(report).get_column("row")).filter(
            pl.col("bucket").is_in(_LAUNCHING)
        ),
        general=True,
    )


def _graphed(report: Report) -> Mending | None:
    """Each sequence that repeats as one launch; None without any, or where a program would have to be rewritten."""
    return Mending(graph=True) if repetitions(report).height and not _cut_all_over(report) else None


def _cut_all_over(report: Report) -> bool:
    """Whether each iteration waits, reads results, allocates or copies pageable memory in many places."""
    iterations = per_iteration(report).iterations
    devices = max(windows(report).height, 1)
    return iterations is not None and pieces(report) > _MOST_PIECES * iterations * devices


def _on_default(report: Report, own: pl.DataFrame) -> bool:
    """Whether any of the sequences is on the default stream."""
    default = report.table(STREAMS.name).filter(pl.col("type") == "null")
    return not own.join(default, on=["process_id", "stream"], how="semi", nulls_equal=True).is_empty()


def _not_capturable(report: Report, device: int) -> str:
    """The sentence on repeated launches that cannot be captured as they are."""
    cut = cut_launches(report).filter(pl.col("device") == device)
    if not (launches := total(cut, "launches")):
        return ""
    return f" Not counted: {plural(launches, 'launch')} that repeat with a call between them that no capture allows."


#: Of longer chains, this many operators are named at either end.
_ENDS: Final = 2

_FOREACH: Final = "aten::_foreach_"


def fusible(report: Report) -> list[Finding]:
    """One finding per device with chains whose fusion would save time."""
    if not {"op", "kernel"}.issubset(report.kinds):
        return []
    ran = chains(report).group_by("device").agg(pl.col("exclusive_ns").sum())
    most = dict(ran.iter_rows())
    compiled = {one.device for one in kernel_sums(report) if one.chosen(is_compiled).launches}
    found = []
    for (device,), rows in fusion(report).partition_by("device", as_dict=True, maintain_order=True).items():
        worth = rows.filter(pl.col("saved_ns") > 0)
        if worth.is_empty():
            continue
        stake = min(total(worth, "saved_ns"), most[device])
        launches, many = total(worth, "launches"), total(worth, "count")
        per, top = per_iteration(report), worth.row(0, named=True)
        text = (
            f"{per.plural(launches, 'elementwise kernel')} in {per.plural(many, 'chain')} pass their results "
            f"through memory: {per.time(total(worth, 'total_ns'))}. Most: {literal(_longest_chain(top))}. More may "
            f"follow, where the GPU waits for their launches."
        )
        one = Finding("fusion", device, stake, text, _how_to_fuse(worth, compiled=device in compiled), "fusion")
        one = one._replace(claims=times_of(report, _chained(report, device).get_column("row")), general=True)
        headline = f"{per.plural(launches, 'elementwise kernel')} could be fused"
        action = f"torch.compile{' them, too' if device in compiled else ''}, or one kernel in Triton or CUDA"
        found.append(one._replace(headline=headline, action=action, mending=partial(_fused, device=int(device))))
    return found


def _fused(report: Report, device: int) -> Mending:
    """Each chain whose fusion would save time is as many kernels as its largest operator."""
    return merged(_chained(report, device))


def _chained(report: Report, device: int) -> pl.DataFrame:
    """The kernels of these chains: row, dur_ns, group, kept (kernels of its largest operator), merged_ns."""
    fused = occurrences(report).filter(pl.col("fused_ns") < pl.col("total_ns"))
    groups = fused.select(group="number", kept="parts", merged_ns="fused_ns")
    work = chains(report).filter(pl.col("device") == device).select("row", "dur_ns", group="chain")
    return work.join(groups, on="group", maintain_order="left")


def _longest_chain(top: dict[str, Any]) -> str:
    """The chain with the largest saving, with its figures."""
    operators = top["chain"].split(ARROW)
    ends = operators if len(operators) <= 2 * _ENDS else [*operators[:_ENDS], "…", *operators[-_ENDS:]]
    moved = f" and moving {size(top['moved_bytes'])}" if top["moved_bytes"] is not None else ""
    least = f", which would move {size(top['fused_bytes'])}" if top["fused_bytes"] is not None else ""
    known = "at least" if top["fused_bytes"] is not None else "about"
    return (
        f"{ARROW.join(ends)}, {plural(top['kernels'], 'kernel')} {plural(top['count'], 'time')}, taking "
        f"{time(top['total_ns'])}{moved}; {known} {time(top['fused_ns'])} as one kernel each{least}"
    )


def _how_to_fuse(rows: pl.DataFrame, *, compiled: bool) -> str:
    remedy = "Fuse them: torch.compile does, or one Triton or CUDA kernel."
    if compiled:
        remedy = "Fuse them: what runs them is not compiled, as other kernels are; or write one Triton or CUDA kernel."
    if rows.head(1).item(0, "chain").startswith(_FOREACH):
        remedy += " PyTorch's optimizers take fused=True."
    return remedy


_REMEDY: Final = (
    "Where the program is a benchmark, read the times of its kernels alone. What an autotuner chose can be kept "
    "(@triton.autotune(…, cache_results=True), TRITON_CACHE_AUTOTUNING=1; torch.compile does), or be chosen before "
    "what is recorded; fewer configurations take less time."
)
_KEEP: Final = "if an autotuner's: @triton.autotune(…, cache_results=True)"
_KEEP_COMPILED: Final = "record a second run: torch.compile keeps on disk what it chose"


def timed_kernels(report: Report) -> list[Finding]:
    """One finding per device with such fills, on all of them together."""
    runs = timed_runs(report)
    if runs.is_empty():
        return []
    parts = _within(report, runs).partition_by("device", maintain_order=True)
    return [_timed(report, own) for own in parts if own.get_column("fill").any() and not own.get_column("fill").all()]


def _timed(report: Report, own: pl.DataFrame) -> Finding:
    fills, timed, per = own.filter("fill"), own.filter(~pl.col("fill")), per_iteration(report)
    sums = timed.group_by(pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
    name = str(sums.sort("exclusive_ns", "name", descending=[True, False]).item(0, "name"))
    fill, took = (per.time(total(part, "exclusive_ns")) for part in (fills, timed))
    text = (
        f"{per.plural(own.get_column('run').n_unique(), 'run')} of kernels, most of {{0}}, are timed: a fill clears "
        f"the cache before each ({fill}), and events are around what follows ({took}), as triton.testing.do_bench and "
        f"autotuners do."
    )
    device, stake = int(own.item(0, "device")), total(own, "exclusive_ns")
    one = Finding("timed-kernels", device, stake, text, _REMEDY, "kernels", (name,))
    headline = "Kernels are timed, each run after a fill of the cache: {0}"
    action = _KEEP_COMPILED if written_with(report, name) == COMPILED else _KEEP
    return one._replace(headline=headline, action=action, claims=times_of(report, own.get_column("row")))


def _within(report: Report, runs: pl.DataFrame) -> pl.DataFrame:
    """The operations in scope that were launched in `runs`: row, device, name, exclusive_ns, run (its start), fill."""
    work = exclusive_operations(report, "call_start")
    line = work.select("row", "process_id", "device", "name", "exclusive_ns", at="call_start").drop_nulls("at")
    begun = runs.select("process_id", "end", "start", at="start").sort("at")
    line = line.sort("at").join_asof(begun, on="at", by="process_id", check_sortedness=False)
    inside = line.filter(pl.col("at") < pl.col("end"))
    fill = pl.col("at") == pl.col("start")
    return inside.select("row", "device", "name", "exclusive_ns", run="start", fill=fill).sort("device")


RULES: Final = (launch_bound, graph_candidate, fusible, timed_kernels)
