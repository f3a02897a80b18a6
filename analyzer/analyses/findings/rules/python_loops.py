"""Loops of Python that the device waits for: those that get batches from a DataLoader, or index a tensor."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import nothing_within
from kanalyze.analyses.findings.rules._places import sites
from kanalyze.analyses.findings.rules._telling import idle_worth_saying, per_iteration
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.naming._host_names import host_names, placed
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.units import time

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.report import Report

#: What DataLoader calls the range (in old versions the operator) in which it gets a batch, with the kind of loader.
_NEXT: Final = r"enumerate\(DataLoader\)#\w*?(SingleProcess|MultiProcessing)\w*\.__next__"

#: The same among Python functions, and a function that only a loader with workers calls.
_FUNCTION: Final = r"torch/utils/data/dataloader\.py\(\d+\): __next__$"
_OF_WORKERS: Final = r"torch/utils/data/dataloader\.py\(\d+\): _try_get_data$"

#: Getting a batch takes so long at least where it counts: workers that keep up need some time to hand one over, too.
_HANDOVER_NS: Final = {False: 250_000, True: 1_000_000}

#: Maximum number of culprits named in the sentence, and the least part of the time that one takes.
_NAMED: Final = 2
_NOTABLE: Final = 0.1

_BATCHES: Final[dict[str, DataType | DataTypeClass]] = {
    **dict.fromkeys((*THREAD, "start", "end"), pl.Int64),
    "workers": pl.Boolean,
}


def data_loading(report: Report) -> list[Finding]:
    """At most one finding per device on loaders without workers, and one on loaders with workers."""
    return [
        _batches_finding(report, device, intervals.length(pieces), workers=workers)
        for workers, waits in _waits(report).items()
        for device, pieces in waits.items()
    ]


@once_per_report
def idle_in_loaders(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time that :func:`data_loading` tells of by device: columns of `idle_within`."""
    every = list(_waits(report).values())
    devices = dict.fromkeys(device for waits in every for device in waits)
    return {device: pl.concat([waits[device] for waits in every if device in waits]) for device in devices}


@once_per_report
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


def _batches_finding(report: Report, device: int, stake: int, *, workers: bool) -> Finding:
    per = per_iteration(report)
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
            f"DataLoader has no workers ({each}){_most(report, device)}."
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
    )


def _most(report: Report, device: int) -> str:
    """Culprit of most of the idle time in the loader's range, where the report names it."""
    rows = culprits(report).filter(
        (pl.col("device") == device) & (pl.col("bucket") == "host") & pl.col("range").str.contains(_NEXT)
    )
    inner = rows.filter(~pl.col("culprit").str.contains(_NEXT)).group_by("culprit").agg(pl.col("ns").sum())
    notable = inner.filter(pl.col("ns") >= _NOTABLE * total(rows, "ns"))
    top = notable.sort("ns", "culprit", descending=[True, False]).head(_NAMED)
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
    return [_indexing_finding(report, device, pieces) for device, pieces in idle_in_loops(report).items()]


@once_per_report
def idle_in_loops(report: Report) -> dict[int, pl.DataFrame]:
    """The idle time in such loops, by device, where it is worth a finding: columns of `idle_within`."""
    loops = _loops(report)
    return idle_worth_saying(report, loops) if loops.height else {}


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
    )


RULES: Final = (data_loading, loop_indexing)
