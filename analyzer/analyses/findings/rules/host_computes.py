"""Idle time of the device while its host thread runs the program's own code: loops of Python, and all other."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import nearest_launches, used_devices
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import HEADLINE_LONGEST, Finding, literal
from kanalyze.analyses.findings.rules._copies import TO_DEVICE, device_copies
from kanalyze.analyses.findings.rules._kernels import launch_less, nothing_within
from kanalyze.analyses.findings.rules._telling import (
    AHEAD,
    LOADS_NEXT,
    all_along,
    idle_worth_saying,
    in_pytorch,
    of_window,
    per_iteration,
    phase,
    sites,
)
from kanalyze.analyses.host._call_kinds import captures
from kanalyze.analyses.host._context_creation import loading_seen
from kanalyze.analyses.idle._attribution import SHORT_NS, host_by_name, host_pieces, idle_within
from kanalyze.analyses.idle.culprits import culprits, own_samples
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.memory._unified_moves import faults_seen
from kanalyze.analyses.naming._host_names import host_names, placed
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.named_ranges import located, of_iteration
from kanalyze.units import moment, plural, time

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.report import Report
    from kanalyze.window import PerIteration

#: What DataLoader calls the range (in old versions the operator) in which it gets a batch, with the kind of loader.
_NEXT: Final = r"enumerate\(DataLoader\)#\w*?(SingleProcess|MultiProcessing)\w*\.__next__"

#: The same among Python functions, and a function that only a loader with workers calls.
_FUNCTION: Final = r"torch/utils/data/dataloader\.py\(\d+\): __next__$"
_OF_WORKERS: Final = r"torch/utils/data/dataloader\.py\(\d+\): _try_get_data$"

#: Getting a batch takes so long at least where it counts: workers that keep up need some time to hand one over, too.
_HANDOVER_NS: Final = {False: 250_000, True: 1_000_000}

#: Maximum number of culprits named in the sentence, and the least part of the time that one takes.
_NAMED_CULPRITS: Final = 2
_NOTABLE_CULPRIT: Final = 0.1

_BATCHES: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys((*THREAD, "start", "end"), pl.Int64),
    "workers": pl.Boolean,
}


def data_loading(report: Report) -> list[Finding]:
    """At most one finding per device on loaders without workers, and one on loaders with workers."""
    return [
        _batches_finding(report, device, pieces, workers=workers)
        for workers, waits in _waits(report).items()
        for device, pieces in waits.items()
    ]


def _waits(report: Report) -> dict[bool, dict[int, pl.DataFrame]]:
    """Idle time while its thread gets a batch, where worth a finding: by whether there are workers, and device."""
    parts = _slow_batches(report).partition_by("workers", as_dict=True, maintain_order=True)
    return {bool(workers): idle_worth_saying(report, batches) for (workers,), batches in parts.items()}


@once_per_report
def _slow_batches(report: Report) -> pl.DataFrame:
    """The intervals in scope in which a thread gets a batch, those of a mere handover aside: :data:`_BATCHES`."""
    least = pl.when("workers").then(_HANDOVER_NS[True]).otherwise(_HANDOVER_NS[False])
    return getting_batches(report).filter(pl.col("end") - pl.col("start") >= least)


def getting_batches(report: Report) -> pl.DataFrame:
    """The intervals in scope in which a thread gets a batch, by ranges or operators, else by Python functions.

    Where the report of a capture has none, those of the trace beside it, as far as it names the report's host time.
    """
    found = _recorded(report)
    if found.is_empty() and (other := report.beside()) is not None and host_names(report).lines:
        return intervals.overlapping(placed(report, _recorded(other)), report.scope.sides)
    return found


def _recorded(report: Report) -> pl.DataFrame:
    found = pl.concat([pl.DataFrame(schema=_BATCHES), *(_named(report, kind) for kind in ("range", "op"))])
    return _functions(report) if found.is_empty() and "python" in report.kinds else found


def _named(report: Report, kind: str) -> pl.DataFrame:
    events = report.kind(kind)
    names = events.get_column("name").unique()
    which = names.cast(pl.String).str.extract(_NEXT)
    if which.is_null().all():
        return pl.DataFrame(schema=_BATCHES)
    known = pl.DataFrame([names, (which == "MultiProcessing").alias("workers")]).drop_nulls()
    return _spans(report.seen(kind).join(known, on="name"))


def _functions(report: Report) -> pl.DataFrame:
    names = report.kind("python").get_column("name").unique()
    texts = names.cast(pl.String)
    wanted = names.filter(texts.str.contains(_FUNCTION).fill_null(value=False))
    if wanted.is_empty():
        return pl.DataFrame(schema=_BATCHES)
    events = report.seen("python").filter(pl.col("name").is_in(wanted.implode()))
    return _spans(events.with_columns(workers=pl.lit(texts.str.contains(_OF_WORKERS).any())))


def _spans(events: pl.DataFrame) -> pl.DataFrame:
    end = pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    return events.select(*THREAD, start="start_ns", end=end, workers="workers")


def _batches_finding(report: Report, device: int, pieces: pl.DataFrame, *, workers: bool) -> Finding:
    per, stake = per_iteration(report), intervals.length(pieces)
    took = _slow_batches(report).filter(workers=workers).select(ns=pl.col("end") - pl.col("start"))
    median = f"{time(median_of(took, 'ns'))} in the median, the longest {time(longest(took, 'ns'))}"
    told = "" if not _recorded(report).is_empty() else ", by the trace of the same program"
    each = f"{per.plural(took.height, 'batch')}, {median}{told}"
    if workers:
        text = (
            f"GPU {device} idles for {per.time(stake)} while the loop that launches its work waits in DataLoader for a "
            f"batch of the loader's workers ({each})."
        )
        remedy = (
            "More or faster workers: a higher num_workers, up to the CPU cores of this process, and prefetch_factor; "
            "persistent_workers=True if the long waits are at the start of an epoch; less work in __getitem__."
        )
        headline = "The loop waits for DataLoader's workers"
        action = "DataLoader(…, num_workers=more, prefetch_factor=4, persistent_workers=True)"
    else:
        text = (
            f"GPU {device} idles for {per.time(stake)} while the loop that launches its work reads batches itself: its "
            f"DataLoader has no workers ({each}){_most_in_loader(report, device)}."
        )
        remedy = (
            "Give DataLoader workers, which read the next batches meanwhile: num_workers=N, up to the CPU cores of "
            "this process, persistent_workers=True, and pin_memory=True for batches that are copied to the GPU."
        )
        headline = "The loop reads its batches itself: DataLoader has no workers"
        action = "DataLoader(…, num_workers=N, persistent_workers=True, pin_memory=True)"
    spans = _slow_batches(report).filter(workers=workers).select("process_id", "start", "end")
    return Finding(
        "data-loading",
        device,
        stake,
        text,
        remedy,
        "culprits",
        headline=headline,
        action=action,
        mending=lambda _: Mending(host=spans),
        claims=pieces,
    )


def _most_in_loader(report: Report, device: int) -> str:
    """Culprit of most of the idle time in the loader's range, where the report names it."""
    rows = culprits(report).filter(
        (pl.col("device") == device) & (pl.col("bucket") == "host") & pl.col("range").str.contains(_NEXT)
    )
    inner = rows.filter(~pl.col("culprit").str.contains(_NEXT)).group_by("culprit").agg(pl.col("ns").sum())
    notable = inner.filter(pl.col("ns") >= _NOTABLE_CULPRIT * total(rows, "ns"))
    top = notable.sort("ns", "culprit", descending=[True, False]).head(_NAMED_CULPRITS)
    named = ", ".join(
        f"{literal(name)} {per_iteration(report).mean_time(ns)}" for name, ns in top.select("culprit", "ns").iter_rows()
    )
    return f"; in it most takes {named}" if named else ""


#: Operators that select one element, with which a pass through such a loop begins.
_SELECTS: Final = ("aten::select",)

#: Fewest passes in a row, the most operators of one (longer ones do more than indexing), and the most kinds of passes
#: in a loop, which may have branches.
_PASSES: Final = 10
_LONGEST_PASS: Final = 6
_KINDS: Final = 4


def loop_indexing(report: Report) -> list[Finding]:
    """At most one finding per device, on all such loops together."""
    loops = _loops(report)
    idle = idle_worth_saying(report, loops) if loops.height else {}
    return [_indexing_finding(report, device, pieces) for device, pieces in idle.items()]


@once_per_process
def _loops(report: Report) -> pl.DataFrame:
    """The loops, at any time: process_id, thread_id, start, end, passes, operators (of one pass).

    Of operators at one level: short passes in a row, each of which begins with operators of :data:`_SELECTS`, of few
    kinds by the names of their operators, of which `operators` are the most frequent. None is in a DataLoader, which
    gets one sample after the other.
    """
    kept = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "passes": pl.UInt32, "operators": pl.String}
    names = report.kind("op").get_column("name").unique().cast(pl.String)
    if not names.is_in(_SELECTS).any():
        return pl.DataFrame(schema=kept)
    rows = operator_tree(report).rows.with_columns(pl.col("name").cast(pl.String)).with_row_index("row")
    level = [*THREAD, "parent"]
    ops = rows.filter(pl.col("kind") == "op").select(*level, "row", "start", "end", "name").sort(*level, "row")
    selects = pl.col("name").is_in(_SELECTS)
    another = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift(1)) for key in level)
    begins = another | (selects & ~selects.shift(1)).fill_null(value=True)
    passes = ops.with_columns(number=begins.cum_sum()).group_by("number", *level, maintain_order=True)
    each = passes.agg(
        pl.col("start").first(), pl.col("end").last(), operators=pl.col("name").str.join(" → "), size=pl.len()
    )
    short = pl.col("operators").str.starts_with(_SELECTS[0]) & (pl.col("size") <= _LONGEST_PASS)
    alike = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(1)) for key in (*level, "short"))
    runs = each.with_columns(short=short).with_columns(run=(~alike).cum_sum()).filter("short")
    loops = runs.group_by("run", *THREAD, maintain_order=True).agg(
        pl.col("start").first(),
        pl.col("end").last(),
        pl.col("operators").mode(maintain_order=True).first(),
        kinds=pl.col("operators").n_unique(),
        passes=pl.len(),
    )
    found = loops.filter((pl.col("passes") >= _PASSES) & (pl.col("kinds") <= _KINDS)).select(list(kept))
    return found.join(_in_loaders(report, found), on=[*THREAD, "start"], how="anti", nulls_equal=True)


def _in_loaders(report: Report, loops: pl.DataFrame) -> pl.DataFrame:
    """Those of `loops` that begin while their thread gets a batch from a DataLoader."""
    batches = getting_batches(report.whole).select(*THREAD, since="start", until="end")
    inside = nearest(loops, batches, ("start", "since"), THREAD)
    return inside.filter((pl.col("start") < pl.col("until")).fill_null(value=False))


def _indexing_finding(report: Report, device: int, pieces: pl.DataFrame) -> Finding:
    per, stake = per_iteration(report), intervals.length(pieces)
    low, high = pieces.select(pl.col("start").min(), pl.col("end").max().alias("end")).row(0)
    loops = _loops(report).filter((pl.col("end") > low) & (pl.col("start") < high))
    top = loops.sort("passes", "start", descending=[True, False]).head(1)
    at = sites(report, top.select(*THREAD, at="start"))
    where = at.select(pl.coalesce("function", "range")).item()
    text = (
        f"A tensor is indexed element by element in {per.plural(loops.height, 'loop')}, {total(loops, 'passes'):,} "
        f"passes in all, up to {longest(loops, 'passes'):,} in a row of {literal(top.item(0, 'operators'))}"
        f"{f' in {literal(where)}' if where else ''}: GPU {device} idles in them for {per.time(stake)}."
    )
    remedy = (
        "Work on the whole tensor at once: a slice, an index tensor (gather, index_put_, scatter_), or arithmetic on "
        "torch.arange."
    )
    return Finding(
        "loop-indexing",
        device,
        stake,
        text,
        remedy,
        "tree",
        headline="A Python loop indexes a tensor element by element",
        action="Index once: x[indices] in place of x[i] in a loop",
        where=literal(where) if where else "",
        mending=partial(nothing_within, spans=loops.select(*THREAD, "start", "end")),
        claims=pieces,
    )


#: Maximum number of phases named; the next ones only if not much shorter than the first.
_NAMED_PHASES: Final = 3
_NOTABLE: Final = 0.1

#: Fewer stretches than these are none between launches; of iterations, than one in each.
_SEVERAL: Final = 2

#: The least part of the time at stake that other findings tell and that is worth a word.
_TOLD_LEAST: Final = 0.01

#: Smaller copies are of single numbers and the like, which take no time to prepare.
_DATA_BYTES: Final = 1 << 16


def host_computes(report: Report) -> list[Finding]:
    """At most two findings per device, on its time outside CUDA calls: right before data is copied, and all other.

    What is launched into a graph that is being captured runs later: that time is not waited for.
    """
    found, least = [], least_worth_saying(report)
    for device, pieces in host_pieces(report).items():
        spans = intervals.subtract(pieces.select("start", "end"), intervals.union(captures(report)))
        if (ns := intervals.length(spans)) < max(least[device], 1):
            continue
        if per_iteration(report).iterations and not _short_stretches(report, spans):
            data = intervals.union(idle_before_data(report, device))
            found += [_prepares(report, device, data)] if 2 * intervals.length(data) >= ns else []
        found.append(_computes(report, device, spans))
    return found


def idle_before_data(report: Report, device: int) -> pl.DataFrame:
    """Pieces of time in which a device idled while the host ran its own code right before it copied data to it.

    That is in no CUDA call, between the call of such a copy and the thread's launching call before. Columns as in
    :func:`idle_within`.
    """
    to_device = pl.col("detail").cast(pl.String) == TO_DEVICE
    large = (pl.col("device") == device) & (pl.col("size_bytes") >= _DATA_BYTES)
    copying = device_copies(report).filter(large & to_device).select(*THREAD, end="call_start").drop_nulls()
    before = nearest_launches(report, copying.rename({"end": "at"}), "call_end").to_series()
    spans = copying.with_columns(before.alias("start")).drop_nulls().filter(pl.col("end") > pl.col("start"))
    return idle_within(report, spans)[device].filter(bucket="host")


def _prepares(report: Report, device: int, data: pl.DataFrame) -> Finding:
    """The finding on host time right before data is copied to the device."""
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call, right before it copies data to the "
        f"GPU: {_of_window(report, device, data)}. {AHEAD}"
    )
    headline, (action, remedy) = (
        "The GPU waits until the host copies the next data to it",
        _PREFETCH[in_pytorch(report)],
    )
    one = Finding("host-computes", device, intervals.length(data), text, remedy, "culprits", claims=data)
    where = _where(_phases(report, device, data))
    return one._replace(headline=headline, action=action, where=where, retold=partial(_prepares, report, device))


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


def _computes(report: Report, device: int, spans: pl.DataFrame) -> Finding:
    """The finding on host time in `spans` (start, end) of which no other finding tells more."""
    per, stake = per_iteration(report), intervals.length(spans)
    phases = _phases(report, device, spans)
    notable = phases.filter((pl.col("ns") > 0) & (pl.col("ns") >= _NOTABLE * pl.col("ns").max()))
    named = "; ".join(_phase(per, row) for row in notable.head(_NAMED_PHASES).iter_rows(named=True))
    others_ns = intervals.length(host_pieces(report)[device]) - stake
    others = f", besides {per.mean_time(others_ns)} of which other findings tell" * (others_ns > _TOLD_LEAST * stake)
    start, longest_ns = (
        spans.select("start", ns=pl.col("end") - pl.col("start")).sort("ns", "start", descending=[True, False]).row(0)
    )
    longest = f"The longest stretch is {time(longest_ns)}, from {moment(start, report.zero_ns)} on."
    most = f"Most {named}." if named else ""
    sentences = " ".join(filter(None, (most, longest, _faulting(report, device), AHEAD)))
    text = (
        f"GPU {device} idle while the program runs its own code, in no CUDA call: {_of_window(report, device, spans)}"
        f"{others}. {sentences}"
    )
    headline, action, remedy, cause = _advice(report, device, phases, spans)
    one = Finding("host-computes", device, stake, text, remedy, "culprits", claims=spans)
    return one._replace(
        headline=headline,
        action=action,
        where=_where(phases),
        vague=not cause,
        general=not cause,
        retold=partial(_computes, report, device),
    )


def _of_window(report: Report, device: int, spans: pl.DataFrame) -> str:
    """The time of `spans` as a part of the device's window."""
    (window,) = windows(report).filter(device=device).select(pl.col("end") - pl.col("start")).row(0)
    ns = intervals.length(spans)
    return of_window(per_iteration(report), ns, ns / max(window, 1))


def _where(phases: pl.DataFrame) -> str:
    """The range or operator of at least half of the time, escaped; empty if none has."""
    most = _mostly(phases)
    return literal(most.removeprefix("in ")) if most.startswith("in ") else ""


def _mostly(phases: pl.DataFrame) -> str:
    """The phase with at least half of the time; empty if none has."""
    return str(phases.item(0, "where")) if phases.height and 2 * phases.item(0, "ns") >= total(phases, "ns") else ""


def _short_stretches(report: Report, spans: pl.DataFrame) -> int:
    """The number of short stretches, where most of the time is in these, and they are many; else 0."""
    lengths = spans.get_column("end") - spans.get_column("start")
    short = lengths.filter(lengths < SHORT_NS)
    many = len(short) >= max(_SEVERAL, per_iteration(report).iterations or 0)
    return len(short) if many and 2 * short.sum() > lengths.sum() else 0


def _advice(report: Report, device: int, phases: pl.DataFrame, spans: pl.DataFrame) -> tuple[str, str, str, bool]:
    """Headline, action, remedy, and whether these name a cause.

    Of many short stretches, to launch less often; of long ones, where they are, and how to see what they are.
    """
    top = _mostly(phases)
    if many := _short_stretches(report, spans):
        less = launch_less(report, device)
        stretches = per_iteration(report).plural(many, "short stretch")
        headline = f"The GPU waits for the program in {stretches}"
        return headline, less.ahead_action or less.action, less.ahead, False
    if top == LOADS_NEXT and (per_iteration(report).iterations or _loads_all_along(report, device)):
        remedy = (
            "What takes the host long there is mostly to choose, compile or load kernels for shapes that are new: keep "
            "to a few shapes (pad to them), and run each once before."
        )
        action = "keep to a few shapes, for which kernels are chosen once"
        return "The GPU waits while the host prepares new kernels", action, remedy, True
    sampled, python = own_samples(report), in_pytorch(report)
    record = f"nsys profile {'--python-sampling=true' if python else '--sample=process-tree'}"
    action = f"see what it does there: {'kanalyze show culprits --by function' if sampled else record}"
    remedy = (
        "Once it is known what that is (ranges of NVTX and samples tell it), do it on the GPU, do it before it is "
        "needed, on another thread, or less often."
    )
    where = f"The GPU waits for the program {literal(top)}"
    fits = top.startswith("in ") or (top and len(where) <= HEADLINE_LONGEST)
    return where if fits else _UNKNOWN, action, remedy, False


_UNKNOWN: Final = "The GPU waits while the program runs its own code"


def _loads_all_along(report: Report, device: int) -> bool:
    """Whether modules are loaded all along the device's window."""
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    loading = loading_seen(report).filter(pl.col("start").is_between(low, high, closed="left"))
    return bool(loading.select(all_along(pl.col("start"), low, high)).item())


def _phases(report: Report, device: int, spans: pl.DataFrame) -> pl.DataFrame:
    """Host time in `spans` in the user's words, the longest first: where, ns, gaps, longest_ns."""
    sums, each = host_by_name(report, device, spans), per_iteration(report).each
    rows = sums.drop_nulls("culprit").select("culprit", "range").unique().iter_rows()
    words = [(culprit, within, of_iteration(located(phase(culprit), within), each)) for culprit, within in rows]
    names = pl.DataFrame(words, {"culprit": pl.String, "range": pl.String, "where": pl.String}, orient="row")
    named = sums.join(names, on=["culprit", "range"], nulls_equal=True, maintain_order="left")
    told = named.group_by("where", maintain_order=True).agg(pl.col("ns", "gaps").sum(), pl.col("longest_ns").max())
    return told.sort("ns", descending=True, maintain_order=True)


def _faulting(report: Report, device: int) -> str:
    """The sentence on CPU page faults meanwhile, which are not the program's code either; empty without any."""
    if "fault" not in report.kinds:
        return ""
    used = used_devices(report).filter(pl.col("device") == device)
    faults = faults_seen(report).filter(pl.col("side") == "CPU").join(used, on="process_id", how="semi")
    _, low, high = windows(report).row(by_predicate=pl.col("device") == device)
    many = total(faults.filter(pl.col("start").is_between(low, high, closed="left")), "faults")
    return f"Part of it may be {plural(many, 'page fault')} of the CPU on managed memory." if many else ""


def _phase(per: PerIteration, row: dict[str, Any]) -> str:
    longest = f" in {per.plural(row['gaps'], 'gap')}, the longest {time(row['longest_ns'])}" if row["gaps"] > 1 else ""
    return f"{literal(row['where'])}: {per.mean_time(row['ns'])}{longest}"


RULES: Final = (data_loading, loop_indexing, host_computes)
