"""What is given twice counts once: a file by two paths, alone and in its capture, a report and its pages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kanalyze.analyses._kernel_groups import SHAPE, kernels_in
from kanalyze.decoder.same_name import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kanalyze.report import Report


def different_files(reports: Sequence[Report]) -> list[Report]:
    """The `reports`, each file once: the one in its capture, which says more of it, or else the first."""
    found: dict[object, Report] = {}
    for number, one in enumerate(reports):
        path = _file(one)
        key = (one.meta.tool, path.resolve(), one.scope) if path.exists() else number
        if key not in found or (found[key].meta.capture is None and one.meta.capture is not None):
            found[key] = one
    return list(found.values())


def different(reports: Sequence[Report]) -> list[Report]:
    """The `reports`, which are of one tool, each measurement once; of traces each, at whatever path a copy of it is."""
    found: list[Report] = []
    for one in different_files(reports):
        if not any(_same_run(one, other) or _same_trace(one, other) for other in found):
            found.append(one)
    return found


def _file(report: Report) -> Path:
    return report.meta.read_from or report.meta.path


def _same_trace(report: Report, other: Report) -> bool:
    """Whether two traces tell the same kernels at the same times; those of one capture are of its ranks and cycles."""
    if report.meta.timeless or other.meta.timeless:
        return False
    if report.meta.capture == other.meta.capture is not None or report.meta.rank != other.meta.rank:
        return False
    first, second = (one.seen("kernel").select("name", "start_ns", "dur_ns") for one in (report, other))
    return first.height > 0 and first.equals(second)


def _same_run(report: Report, other: Report) -> bool:
    """Whether two reports of ncu are of the same kernels of the same run; one may have their names cut short."""
    if not (report.meta.timeless and other.meta.timeless):
        return False
    first, second = (kernels_in(one).select("dur_ns", *SHAPE) for one in (report, other))
    if not first.equals(second) or first.get_column("dur_ns").has_nulls():
        return False
    names = (kernels_in(one).get_column("name").fill_null("") for one in (report, other))
    return all(shortened(a, b) or shortened(b, a) for a, b in zip(*names, strict=True))
