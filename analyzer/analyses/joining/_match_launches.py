"""Matches ncu's measurements with single launches of the program, by the launch numbers in ncu's command.

Definitions: docs/counters.md, One kernel, three tools.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, operations
from kanalyze.analyses.findings._doubts import unused_launches
from kanalyze.analyses.joining._kernel_groups import kernels_in
from kanalyze.analyses.shared.cached import once_per_report, once_together
from kanalyze.decoder.same_name import normalised, shortened

if TYPE_CHECKING:
    from kanalyze.report import Report

_PAIRS: Final[dict[str, type[pl.DataType]]] = {"right": pl.Int64, "number": pl.Int64, "left": pl.Int64}

_TYPED: Final = [pl.col(name).cast(dtype) for name, dtype in _PAIRS.items()]

#: What all launches of a function must have in common for their order to be the same in every run.
_SAME_FOR_ALL: Final = ("process_id", "thread_id", "context_id", "device")


@once_together
def same_launches(base: Report, ncu: Report) -> pl.DataFrame:
    """Matches the kernels that ncu measured with the launches of `base`, as far as ncu's command identifies them.

    The n-th launch in one run of the program is the n-th in another if one thread makes all launches of a function on
    one GPU, and `base` has every launch as an event of its own.

    Returns:
        Columns right (event_id in `ncu`), number (the launch's index among those of its function), left (event_id in
        `base`; null where that launch has another shape or is missing, so that the two runs differ). Kernels in no row
        could not be identified.
    """
    numbers = ncu.table("launch_numbers")
    if numbers.is_empty() or not _of_one_capture(base, ncu) or not complete(base):
        return pl.DataFrame(schema=_PAIRS)
    whole = pl.col("name").replace(whole_names(base, ncu))
    measured = _with_same_name(kernels_in(ncu).join(numbers, on="event_id").with_columns(whole))
    found = _numbered(base.whole, measured.get_column("same_name").unique())
    counted = measured.join(found, on="same_name", how="semi")
    both = counted.join(found, on=["same_name", "number"], how="left", suffix="_left")
    missing, by_one_call = pl.col("alone").is_null(), pl.col("alone").eq_missing(other=False)
    fits = pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_left")) for name in SHAPE)
    in_doubt = (~by_one_call & (missing | ~fits)).any().over("same_name")
    left = pl.when(~in_doubt).then("event_id_left")
    told = both.with_columns(left=left).filter(~by_one_call)
    return told.select(right="event_id", number="number", left="left").select(_TYPED)


def whole_names(base: Report, ncu: Report) -> dict[str, str]:
    """Full names by the shortened ones on ncu's pages, for those that only one function in ncu's command fits."""
    numbers, symbols = ncu.table("launch_numbers"), base.table("symbols")
    if numbers.is_empty() or not _of_one_capture(base, ncu):
        return {}
    found: dict[str, str] = {}
    asked = kernels_in(ncu).join(numbers, on="event_id").select("name", "symbols").unique().drop_nulls()
    for name, wanted in asked.iter_rows():
        names = symbols.filter(pl.col("symbol").is_in(wanted)).get_column("name").unique().to_list()
        if normalised(name) not in map(normalised, names):
            fits = [one for one in names if shortened(name, one)]
            found |= {name: fits[0]} if len(fits) == 1 else {}
    return found


def _of_one_capture(base: Report, ncu: Report) -> bool:
    return base.meta.recorder.every_launch and base.meta.capture is not None and base.meta.capture == ncu.meta.capture


@once_per_report
def complete(base: Report) -> bool:
    """Whether the report has every launch, each as an event of its own."""
    whole = base.whole
    if base.scope.process is not None or whole.kind("graph").height:
        return False
    return unused_launches(whole).filter(~pl.col("captured")).is_empty()


def _with_same_name(kernels: pl.DataFrame) -> pl.DataFrame:
    """`kernels` with the normalised name to join by; without names that two functions share."""
    return kernels.join(_unique_names(kernels.get_column("name")), on="name")


def _unique_names(names: pl.Series) -> pl.DataFrame:
    """Columns name and same_name of the `names` whose normalised name is unique."""
    different = names.unique().cast(pl.String).drop_nulls().to_list()
    known = pl.DataFrame(
        {"name": different, "same_name": [normalised(name) for name in different]},
        schema={"name": pl.String, "same_name": pl.String},
    )
    return known.filter(pl.len().over("same_name") == 1)


def _numbered(base: Report, wanted: pl.Series) -> pl.DataFrame:
    """Numbers the launches of the `wanted` functions: same_name, number, event_id, alone, and the launch shape.

    `alone` is false for several launches of a function by one call (graph nodes): their order is unknown.
    """
    kernels = base.kind("kernel")
    doubled = base.table("symbols").filter(pl.len().over("name") > 1).select("name")
    names = _unique_names(kernels.get_column("name")).join(doubled, on="name", how="anti")
    asked = names.filter(pl.col("same_name").is_in(wanted.implode()))
    own = kernels.filter(pl.col("name").is_in(asked.get_column("name").to_list()))
    columns = ("event_id", "process_id", "context_id", "device")
    named = own.select(*columns, pl.col("name").cast(pl.String)).join(asked, on="name")
    calls = operations(base, "call_row", "thread_id", "call_start", *SHAPE)
    calls = calls.select("event_id", "call_row", "thread_id", "call_start", *SHAPE)
    launched = named.join(calls, on="event_id", how="left")
    in_order = pl.all_horizontal(pl.col(name).n_unique().over("same_name") == 1 for name in _SAME_FOR_ALL)
    known = pl.col("call_start").is_not_null().all().over("same_name")
    order = launched.filter(in_order & known).sort("call_start", "call_row", "event_id")
    numbered = order.with_columns(number=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("same_name"))
    told = numbered.with_columns(alone=pl.len().over("call_row", "same_name") == 1).sort("event_id")
    return told.select("same_name", "number", "event_id", "alone", *SHAPE)
