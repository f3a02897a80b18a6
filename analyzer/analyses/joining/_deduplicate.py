"""Removes duplicates from the given reports: one file twice, a file and its capture, an ncu report and its pages."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.joining._kernel_groups import kernels_in
from kanalyze.decoder.same_name import shortened

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report

#: The units of durations on ncu's details page, in ns; a duration is printed in the largest one not above it.
_UNITS_NS: Final = (1_000, 1_000_000, 1_000_000_000)


def different_files(reports: Sequence[Report]) -> list[Report]:
    """Removes repeated files from `reports`: keeps the one in a capture, which says more, else the first."""
    found: dict[object, Report] = {}
    for number, one in enumerate(reports):
        path = one.meta.read_from or one.meta.path
        key = (one.meta.tool, os.path.realpath(path), one.scope) if os.path.exists(path) else number  # noqa: PTH110 - raises nothing
        if key not in found or (found[key].meta.capture is None and one.meta.capture is not None):
            found[key] = one
    return list(found.values())


def different(reports: Sequence[Report]) -> list[Report]:
    """Removes repeated measurements from `reports` of one tool: files, copies of traces, parts of an ncu report.

    Of reports with the same kernels the one that belongs to a capture is kept.
    """
    files = different_files(reports)
    larger = sorted(
        range(len(files)), key=lambda at: (-files[at].kind("kernel").height, files[at].meta.capture is None)
    )
    found: list[int] = []
    for at in larger:
        if not any(_same_trace(files[at], files[of]) or _part_of(files[at], files[of]) for of in found):
            found.append(at)
    return [files[at] for at in sorted(found)]


def _same_trace(report: Report, other: Report) -> bool:
    """Whether two traces have the same kernels at the same times; never for ranks and cycles of one capture."""
    if report.meta.timeless or other.meta.timeless:
        return False
    if report.meta.capture == other.meta.capture is not None or report.meta.rank != other.meta.rank:
        return False
    first, second = (one.seen("kernel").select("name", "start_ns", "dur_ns") for one in (report, other))
    return first.height > 0 and first.equals(second)


def _part_of(report: Report, other: Report) -> bool:
    """Whether an ncu report is contained in another; one of them may have shortened names and rounded durations."""
    if not (report.meta.timeless and other.meta.timeless):
        return False
    run, held = kernels_in(report), kernels_in(other).rename(lambda name: f"{name}_other")
    if run.is_empty() or run.height > held.height or run.get_column("dur_ns").has_nulls():
        return False
    places = held.head(held.height - run.height + 1).with_row_index("at").join(run.head(1), how="cross")
    begins = places.filter(_same_but_names()).get_column("at")
    return any(_same_launches(pl.concat([run, held.slice(at, run.height)], how="horizontal")) for at in begins)


def _same_launches(both: pl.DataFrame) -> bool:
    """Whether the launches paired in each row are the same, names included."""
    if not both.select(_same_but_names().all()).item():
        return False
    names = both.select(pl.col("name", "name_other").fill_null("")).iter_rows()
    return all(shortened(a, b) or shortened(b, a) for a, b in names)


def _same_but_names() -> pl.Expr:
    """Whether the two launches of a row agree in all but their names: shape, process and duration."""
    same = [pl.col(name).eq_missing(pl.col(f"{name}_other")) for name in SHAPE]
    process = (pl.col("process_id") == pl.col("process_id_other")).fill_null(value=True)
    return pl.all_horizontal(*same, process, _same_duration("dur_ns", "dur_ns_other"))


def _same_duration(first: str, second: str) -> pl.Expr:
    """Whether two durations are equal, or one is the other rounded as ncu prints it: to hundredths of its unit."""
    one, other = pl.col(first), pl.col(second)
    longer = pl.max_horizontal(one, other)
    step = pl.lit(1)
    for unit in _UNITS_NS:
        step = pl.when(longer >= unit).then(unit // 100).otherwise(step)
    rounded = (one % step == 0) | (other % step == 0)
    return ((one == other) | (rounded & (2 * (one - other).abs() <= step))).fill_null(value=False)
