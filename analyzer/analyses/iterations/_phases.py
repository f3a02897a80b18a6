"""Prefill and decode: repetitions in runs, each of which one begins with the same kernels in larger shapes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.iterations._units import between, stretches
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums

PREFILL: Final = "prefill"
DECODE: Final = "decode"

#: Least blocks and kernel time of a prefill as multiples of the usual: those of a short text only where nothing else
#: tells prefills; and the most blocks of nearly all decodes, if a prefill has not so many times those of nearly all.
_LARGE: Final = ((1.3, 1.3), (2.0, 1.1))
_ALIKE: Final = 1.1
_APART: Final = 1.3
_MOST_DECODES: Final = 0.95

#: Share of prefills and of decodes for which all of this has to hold.
_NEARLY_ALL: Final = 0.8

#: Fewest prefills, and how many times as many decodes there are.
_FEWEST: Final = 3
_DECODES: Final = 2

#: Least share of a prefill's launches whose names, numbers aside, decodes have, and greatest share of those that they
#: have in the same shape.
_SAME_NAMES: Final = 0.5
_SAME_SHAPES: Final = 0.5

#: Number of decodes whose launches are looked at.
_COMPARED: Final = 64


def with_phases(line: pl.DataFrame, sums: Sums, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds phase to repetitions, and the prefills that lie between them; null if there are no such phases.

    Columns: first, stop, usual, stretch and phase.
    """
    plain = rows.with_columns(phase=pl.lit(None, dtype=pl.String))
    if rows.height < _FEWEST * (1 + _DECODES) or line.get_column("optimizer").any():
        return plain
    gaps = rows.select(first=pl.col("stop").shift(1), stop="first", stretch="stretch").filter(
        pl.col("stop") > pl.col("first")
    )
    gaps = gaps.filter(between(sums.barriers, gaps["first"], gaps["stop"]) == 0)
    every = pl.concat([rows.with_columns(gap=False), gaps.with_columns(gap=True, usual=False)], how="diagonal")
    every = _sized(line, every.sort("first"))
    ways = (_told(line, rows.columns, every, way) for way in _LARGE)
    return next((told for told in ways if told is not None), plain)


def _told(
    line: pl.DataFrame, columns: list[str], every: pl.DataFrame, least: tuple[float, float]
) -> pl.DataFrame | None:
    """The repetitions with their phases; None if there are no such phases."""
    large = _large(line, every, least)
    if large is None:
        return None
    told = every.with_columns(large=large).filter(pl.col("large") | ~pl.col("gap"))
    follows = (~pl.col("large")).shift(-1, fill_value=True) & pl.col("large")
    prefills, decodes, begun = told.select(pl.col("large").sum(), b=(~pl.col("large")).sum(), c=follows.sum()).row(0)
    if prefills < _FEWEST or decodes < _DECODES * prefills or begun < _NEARLY_ALL * prefills:
        return None
    phase = pl.when("large").then(pl.lit(PREFILL)).otherwise(pl.lit(DECODE))
    told = told.with_columns(stretches(), phase=phase, usual=pl.col("usual") | pl.col("large"))
    return told.select(*columns, "phase")


def _sized(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds blocks and work_ns of the launches of each row."""
    return rows.with_columns(_summed(line, rows, name) for name in ("blocks", "work_ns"))


def _summed(line: pl.DataFrame, rows: pl.DataFrame, name: str) -> pl.Series:
    running = line.get_column(name).cum_sum()
    running = pl.concat([pl.zeros(1, dtype=running.dtype, eager=True), running], rechunk=True)
    return between(running, rows.get_column("first"), rows.get_column("stop")).alias(name)


def _large(line: pl.DataFrame, rows: pl.DataFrame, least: tuple[float, float]) -> pl.Series | None:
    """Whether each row is a prefill by its size and its launches; None if sizes differ in other ways."""
    usual = rows.filter("usual")
    blocks, ns = usual.get_column("blocks").median(), usual.get_column("work_ns").median()
    more, longer = least
    grown = (pl.col("blocks") > blocks * pl.lit(more)) & (pl.col("work_ns") >= ns * pl.lit(longer))
    large = rows.select(large=grown).to_series()
    others = rows.filter(~large & ~rows.get_column("gap"))
    if large.sum() < _FEWEST or others.is_empty():
        return None
    even = others.select((pl.col("blocks") <= blocks * pl.lit(_ALIKE)).mean()).item() >= _NEARLY_ALL
    most = others.select(pl.col("blocks").quantile(_MOST_DECODES) * _APART).item()
    if not even and rows.filter(large).select(pl.col("blocks").min()).item() < most:
        return None
    compared = others.gather_every(-(-others.height // _COMPARED))
    at = compared.select(pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("at").explode()).to_series()
    known = {name: gathered(line.get_column(name), at).unique() for name in ("loose", "exact")}
    told = line.select(pl.col(name).is_in(codes.implode()).cast(pl.UInt32) for name, codes in known.items())
    size = pl.col("stop").cast(pl.Int64) - pl.col("first")
    shared = rows.with_columns(_summed(told, rows, name) for name in known)
    shared = shared.select((pl.col("loose") >= _SAME_NAMES * size) & (pl.col("exact") <= _SAME_SHAPES * size))
    found = large & shared.to_series()
    return found if found.sum() >= _NEARLY_ALL * int(large.sum()) else None
