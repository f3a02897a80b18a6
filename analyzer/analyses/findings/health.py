"""Checks how far the report can be trusted: missing information and impossible events."""

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Final

import polars as pl

from kanalyze import errors, model
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.device.occupancy import launch_occupancy
from kanalyze.analyses.findings._doubts import CHECKS, TABLE, Check, check_table, damaged, names, pairing, with_late
from kanalyze.analyses.host._call_kinds import begun_before, interface
from kanalyze.analyses.host._thread_timeline import NEEDED
from kanalyze.analyses.idle import culprits, ledger
from kanalyze.analyses.launches._launch_costs import worth_saying
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.analyses.shared.statistics import total
from kanalyze.report import Report
from kanalyze.tools import worded

__all__ = ["TABLE", "health"]

#: Usual when recording a running program; a doubt if it hides as much time as a finding needs.
_MID_RUN: Final = "processes at work before the recording"


@analysis
def health(report: Report) -> pl.DataFrame:
    """All checks of the whole report, whatever the window.

    Returns:
        :data:`TABLE`: every check that the report allows, also those without a hit, then the reader's notes.
    """
    if report.meta.timeless:
        return check_table(names(report), report.table("notes"))
    paired, unknown, shapes = pairing(report), _attribution(report), _shapes(report)
    checks = paired + [row for _, check in CHECKS[1:] for row in check(report)]
    (hidden,) = [ns or 0 for name, _, ns, _ in unknown if name == _MID_RUN] or [0]
    usual = () if hidden and worth_saying(report, hidden) else (_MID_RUN,)
    with suppress(errors.DamagedReportError):  # which is noted
        _ = report.devices, report.processes
    with suppress(errors.DamagedReportError):
        if culprits.own_samples(report):
            _ = [report.table(name) for name in NEEDED]
    for one in filter(None, (report.beside(), report.sampled()) if report.whole is report else ()):
        _read(one.kind, one.kinds)
        _read(one.table, (*_PAYLOADS, *NEEDED))
    _read(report.table, _PAYLOADS)
    table = check_table([*checks, *unknown, *shapes, *_sharing(report), *damaged(report)], report.table("notes"), usual)
    return with_late({TABLE.name: table}, report)[TABLE.name]


#: Tables of what is packed in others: they tell what of it cannot be decoded.
_PAYLOADS: Final = ("communicator_calls", "gpu_metrics")


def _read(read: Callable[[str], pl.DataFrame], names: Iterable[str]) -> None:
    """Reads what a page uses; what is damaged is noted."""
    for name in names:
        with suppress(errors.KanalyzeError):
            read(name)


def _attribution(report: Report) -> list[Check]:
    if not set(model.DEVICE_KINDS).intersection(report.kinds):
        return []
    rows = ledger.bucket_sums(report).filter(bucket="unknown")
    unknown, waits = rows.filter(pl.col("detail").is_null()), rows.filter(pl.col("detail").is_not_null())
    effect = worded("no launch tells which thread the device waited for; was the CUDA API traced?", interface(report))
    earlier = (
        "the recording begins there: what they waited for first is unknown, and no launch counts as a kernel's first"
    )
    return [
        ("idle time of unknown cause", unknown.height, total(unknown, "ns"), effect),
        (_MID_RUN, begun_before(report).height, total(waits, "ns"), earlier),
    ]


def _sharing(report: Report) -> list[Check]:
    if _operations.used_devices(report.whole).get_column("process_id").n_unique() <= 1:
        return []
    shared = _windows.shared_devices(report.whole)
    effect = (
        "without MPS or MIG their kernels run in turn, in time slices: a kernel's duration holds the slices of others, "
        "and what is idle for one process is not for the other"
    )
    return [("shared use of a GPU", len(shared), sum(one.together_ns for one in shared), effect)]


def _shapes(report: Report) -> list[Check]:
    if "kernel" not in report.kinds:
        return []
    whole = replace(report, scope=replace(report.scope, window=None, device=None))
    effect = "occupancy, tails and the findings about them leave these out"
    unknown = launch_occupancy(report if report.scope == whole.scope else whole).filter(pl.col("unknown").is_not_null())
    why = unknown.sort("count", "unknown", descending=[True, False]).get_column("unknown").head(1)
    effect = ": ".join([effect, *why])
    return [("kernels of unknown occupancy", total(unknown, "count"), total(unknown, "total_ns"), effect)]
