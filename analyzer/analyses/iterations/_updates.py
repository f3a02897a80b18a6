"""Repetitions of a training whose texts, graphs and images have any size: from the end of one update to the next one's.

They have as many launches as their steps need, but for an update of the parameters.
"""

from __future__ import annotations

from math import log
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.iterations._marks import HALF, MANY, MOSTLY
from kanalyze.analyses.iterations._units import FEWEST, held, sizes, stretches
from kanalyze.columns.lookup import gathered, nearest_place

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Most launches between two of an optimizer's that belong to one update, the smallest tried first.
_APART: Final = tuple(4**power for power in range(7))

#: A usual number of launches is up to so many times the median, or so small a part of it.
_USUAL: Final = 2

#: Most kinds of updates: of several models in turn, or of averages of parameters.
_KINDS: Final = 4

#: Greatest chance that so many repetitions have a usual number of launches by accident, as every other one has.
_CHANCE: Final = 1e-4


def between_updates(line: pl.DataFrame) -> tuple[int, pl.DataFrame] | None:
    """Repetitions from the end of each update to the end of the next one, if updates and what lies between are alike.

    Code of the update, and columns first, stop (places in `line`), usual, stretch, sorted and disjoint; None if none
    are. The first one begins where the others do, as far as that is known. Copies to the host right after an
    update are part of what it ends.
    """
    for updates in _updates(line):
        kinds = _kinds(updates)
        own = updates.filter(pl.col("word").is_in(kinds[:1]))
        same = own.get_column("sum").unique_counts().max()
        if own.height < FEWEST or not isinstance(same, int) or same < MANY * own.height:
            continue
        # the first one may launch something else: it has nothing to build on
        before = updates.filter(pl.col("stop") <= own.item(0, "first"), ~pl.col("word").is_in(kinds)).tail(1)
        for ends in (pl.concat([before, own]), own) if before.height else (own,):
            rows = _repetitions(line, ends)
            if rows is not None:
                return kinds[0], rows
    return None


def _kinds(updates: pl.DataFrame) -> list[int]:
    """The words of the kinds of updates, that which is followed by most launches first; none if they are many."""
    apart = (pl.col("first").shift(-1) - pl.col("stop")).cast(pl.Int64)
    words = updates.with_columns(apart=apart).group_by("word").agg(pl.len(), pl.col("apart").median())
    often = words.filter(pl.col("len") >= MANY * pl.col("len").max())
    if often.height > _KINDS or int(often.get_column("len").sum()) < MANY * updates.height:
        return []
    return often.sort("apart", "len", "word", descending=True).get_column("word").to_list()


def _updates(line: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Updates by how far apart an optimizer's launches are, if most of what each holds is its own.

    Columns: first and stop (places), word (the name of its first own launch), sum (of the names of all of these).
    """
    own = line.select("optimizer", code="alike").with_row_index("at").filter("optimizer")
    apart = pl.col("at").cast(pl.Int64).diff() - 1
    before = own.height + 1
    for most in _APART:
        updates = own.group_by(
            (apart > most).fill_null(value=False).cum_sum().alias("update"), maintain_order=True
        ).agg(
            pl.col("at").first().alias("first"),
            (pl.col("at").last() + 1).alias("stop"),
            pl.col("code").first().alias("word"),
            pl.col("code").sum().alias("sum"),
        )
        if updates.height < before and own.height >= HALF * int(updates.select(sizes().sum()).item()):
            yield updates
        before = updates.height


def _repetitions(line: pl.DataFrame, updates: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions that end with each of `updates`; None where they do not begin alike, or have any size."""
    begins, names = _after(line, updates.get_column("stop")), line.get_column("loose")
    rows = pl.DataFrame({"first": begins.shift(1, fill_value=0), "stop": begins})
    known = rows.slice(1)
    first = gathered(names, known.get_column("first")).value_counts(sort=True)
    if int(first.item(0, "count")) < MOSTLY * known.height:
        return None
    median = float(known.select(sizes().median()).item())
    usual = sizes().is_between(median / _USUAL, median * _USUAL)
    if not _usual_enough(line, known.with_columns(usual=usual, size=sizes())):
        return None
    rows = _without_lead(rows, (names == first.item(0, names.name)).arg_true(), median)
    return rows.select("first", "stop", usual.alias("usual"), stretches())


def _usual_enough(line: pl.DataFrame, rows: pl.DataFrame) -> bool:
    """Whether nearly all repetitions are usual, and these are no parts of what the others are."""
    usual = rows.filter("usual")
    share = usual.height / rows.height
    other = 1 - share
    distance = share * log(2 * share) + (other * log(2 * other) if other else 0.0)  # from what every other one has
    if share < MANY or rows.height * distance < -log(_CHANCE):
        return False
    most = int(usual.get_column("size").sum()) >= MANY * int(rows.get_column("size").sum())
    return most or int((held(line, usual, "copies") > 0).sum()) >= MANY * usual.height


def _without_lead(rows: pl.DataFrame, begins: pl.Series, median: float) -> pl.DataFrame:
    """Takes from large repetitions, and the first one, what comes before the last place where one may begin.

    Without those in which none fits. `begins` are the places of launches with which repetitions begin.
    """
    latest = rows.get_column("stop").cast(pl.Int64) - int(median / _USUAL)
    begin = gathered(begins, nearest_place(begins.cast(pl.Int64), latest)).alias("begin")
    fits = (pl.col("begin") >= pl.col("first")) & (pl.col("stop") <= pl.col("begin") + median * _USUAL)
    lead = (sizes() > median * _USUAL) | (pl.int_range(pl.len()) == 0)
    rows = rows.with_columns(begin).with_columns(lead=lead).filter(~pl.col("lead") | fits.fill_null(value=False))
    return rows.select(pl.when("lead").then("begin").otherwise("first").alias("first"), "stop")


def _after(line: pl.DataFrame, stops: pl.Series) -> pl.Series:
    """The place after each of `stops` and what is copied to the host from there on."""
    returned = line.get_column("copies") & ~line.get_column("input")
    others = (~returned).arg_true().extend(pl.Series([line.height], dtype=pl.UInt32))
    return gathered(others, others.search_sorted(stops, side="left"))
