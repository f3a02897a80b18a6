"""Idle time of the device while the loop that launches its work waits for PyTorch's DataLoader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.idle._attribution import WITHIN, idle_within
from kanalyze.analyses.idle.culprits import culprits
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.naming._host_names import host_names, placed
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import longest, median_of, total
from kanalyze.analyses.shared.thread_lanes import THREAD
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
        _finding(report, device, intervals.length(pieces), workers=workers)
        for workers, waits in _waits(report).items()
        for device, pieces in waits.items()
    ]


def idle_in_loaders(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device that :func:`data_loading` tells of: columns of `idle_within`."""
    return pl.concat(
        [pl.DataFrame(schema=WITHIN), *(waits[device] for waits in _waits(report).values() if device in waits)]
    )


@once_per_report
def _waits(report: Report) -> dict[bool, dict[int, pl.DataFrame]]:
    """Idle time while its thread gets a batch, where worth a finding: by whether there are workers, and device."""
    found = {}
    for (workers,), batches in _slow_batches(report).partition_by("workers", as_dict=True, maintain_order=True).items():
        idle = idle_within(report, batches).items()
        least = least_worth_saying(report)
        found[bool(workers)] = {device: pieces for device, pieces in idle if intervals.length(pieces) >= least[device]}
    return found


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


def _finding(report: Report, device: int, stake: int, *, workers: bool) -> Finding:
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


RULES: Final = (data_loading,)
