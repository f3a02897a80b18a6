"""Repetitions that launch nearly the same: kernels of a generation of tokens change with the length of the text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.iterations._iteration_unit import waits_of
from kanalyze.analyses.iterations._units import between, pauses, running, stretches
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums
    from kanalyze.report import Report

#: Fewest launches of a repetition, and fewest of them in a line.
_LEAST_LENGTH: Final = 8
_FEWEST: Final = 8

#: How far the number of launches may be from the usual one, as a part of it; and the share of repetitions in which it
#: is so near, and of those in which the host copies from the device or waits for it.
_NEAR: Final = 0.1
_NEARLY_ALL: Final = 0.9

#: Least and greatest number of launches of an odd one, as multiples of the usual.
_LEAST: Final = 0.5
_MOST: Final = 1.5

#: Number of repetitions whose names, numbers aside, are looked at; the share of them that has the common ones; and the
#: least share of a repetition's launches with such names.
_COMPARED: Final = 16
_COMMON: Final = 0.8
_SIMILAR: Final = 0.4

#: Anchors that cover so large a part of what the best one does cut the line into the same repetitions, if the usual
#: number of launches is that of the shortest.
_AS_MUCH: Final = 0.98


def near_repetitions(
    report: Report, process: int | None, line: pl.DataFrame, sums: Sums
) -> tuple[tuple[int, int], pl.DataFrame] | None:
    """Repetitions from each launch of one name to the next, if nearly all have nearly equally many launches.

    Code of that name and usual number of launches, and columns first, stop (places in `line`), usual, stretch, sorted
    and disjoint; None where there are none, or where kernels of an optimizer run: parts of a training step are alike,
    too. In each the host takes part. `usual` says whether one has about as many launches as most.
    """
    if line.get_column("optimizer").any():
        return None
    anchors = _anchors(report, process, line, sums)
    if anchors.is_empty():
        return None
    code, length = anchors.row(0)
    at = (line.get_column("alike") == code).arg_true()
    rows = pl.DataFrame({"first": at, "next": at.shift(-1, fill_value=line.height)})
    size = pl.col("next").cast(pl.Int64) - pl.col("first")
    # what follows the last one, or comes before a pause, is no part of it
    rows = rows.with_columns(stop=pl.when(size > length * _MOST).then(pl.col("first") + int(length)).otherwise("next"))
    size = pl.col("stop").cast(pl.Int64) - pl.col("first")
    rows = rows.with_columns(usual=(size - length).abs() <= _NEAR * length).filter(size >= _LEAST * length)
    common = running(line.get_column("loose").is_in(_common(line, rows.filter("usual")).implode()).cast(pl.UInt32))
    shared = between(common, rows.get_column("first"), rows.get_column("stop"))
    rows = rows.filter(shared >= _SIMILAR * (rows.get_column("stop") - rows.get_column("first")))
    return (int(code), int(length)), rows.select("first", "stop", "usual", stretches())


def _common(line: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    """Codes of names, numbers aside, that most of some of the rows have."""
    some = rows.gather_every(-(-rows.height // _COMPARED)).with_row_index("row")
    launches = some.select("row", at=pl.int_ranges("first", "stop", dtype=pl.UInt32)).explode("at")
    names = launches.select("row", code=gathered(line.get_column("loose"), launches.get_column("at"))).unique()
    return names.group_by("code").len().filter(pl.col("len") >= _COMMON * some.height).get_column("code")


def _anchors(report: Report, process: int | None, line: pl.DataFrame, sums: Sums) -> pl.DataFrame:
    """Names that cut the line into such repetitions, that with which they most likely begin first: code and length."""
    places = line.select(code="alike").with_row_index("first").with_columns(stop=pl.col("first").shift(-1).over("code"))
    many = pl.len().over("code")
    places = places.filter(many > _FEWEST, many * _LEAST_LENGTH <= line.height).drop_nulls()
    first, stop = places.get_column("first"), places.get_column("stop")
    waited = count_up_to(waits_of(report, process), line.get_column("since"), equal=False).cast(pl.Int64)
    returned = running((line.get_column("copies") & ~line.get_column("input")).cast(pl.UInt32))
    size = (stop - first).cast(pl.Int64).alias("size")
    places = places.with_columns(
        size,
        host=(gathered(waited, stop) > gathered(waited, first)) | (between(returned, first, stop) > 0),
        weight=between(sums.weight, first, stop),
        gap=gathered(pauses(line), first),
    )
    near = (pl.col("size") - pl.col("length")).abs() <= _NEAR * pl.col("length")
    found = (
        places.with_columns(length=pl.col("size").median().over("code"))
        .group_by("code")
        .agg(
            pl.col("first", "length").first(),
            pl.col("host").mean(),
            pl.col("weight").filter(near).sum(),
            pl.col("gap").median(),
            near=near.mean(),
        )
    )
    held = found.filter(pl.col("near") >= _NEARLY_ALL, pl.col("host") >= _NEARLY_ALL, pl.col("length") >= _LEAST_LENGTH)
    held = held.filter(pl.col("length") <= pl.col("length").min() * (1 + _NEAR))
    held = held.filter(pl.col("weight") >= pl.col("weight").max() * _AS_MUCH)
    return held.sort("gap", "first", descending=[True, False]).select("code", "length")
