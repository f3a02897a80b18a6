"""Detects periods in series of codes: stretches that equal themselves when shifted by a period.

No step compares all pairs: candidate periods are the distances at which short n-grams of codes recur, best first; each
candidate is then tested on the whole series in one comparison.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Lengths of the n-grams. In a stretch of period p every n-gram of at least p codes recurs after p, and of shorter ones
#: those that occur once per period.
_RUNS: Final = (1, 4, 16, 64)

#: Maximum number of candidate distances per n-gram length, and of periods found in one series.
_TRIED: Final = 6
_ROUNDS: Final = 8

#: Number of candidate periods, those with most matching operations, that are examined closely.
_LIKELY: Final = 4

#: A long series is sampled in so many slices, each of so many operations; shorter ones are looked at together.
_SLICES: Final = 8
_SLICE: Final = 1 << 16

#: Multiplier of a hash that spreads numbers over 64 bits.
_MULTIPLIER: Final = 6364136223846793005

_FOUND: Final = {"place": pl.UInt32, "sequence": pl.Int64, "unit": pl.Int64}
_UNITS: Final = {"place": pl.UInt32, "unit": pl.Int64, "length": pl.Int64}


def periodic(line: pl.DataFrame, *, fewest: int, nodes: int) -> pl.DataFrame:
    """The places of `line` (columns place, series, stretch, code) that belong to something periodic.

    A period counts if a stretch has at least `fewest` repetitions of it and twice `nodes` operations. One repetition
    (`unit`) is a period, or, if that is shorter than `nodes`, as many periods as reach that length.

    Returns:
        Columns place, sequence (a number for each series and unit with the same codes) and unit.
    """
    found = [pl.DataFrame(schema=_UNITS)]
    parts = [part for part in line.partition_by("series") if part.height >= 2 * nodes]
    groups: dict[int, list[pl.DataFrame]] = {}
    for part, reached in zip(parts, accumulate(part.height for part in parts), strict=True):
        groups.setdefault(reached // (_SLICES * _SLICE), []).append(part)
    for some in groups.values():
        tried = _distances(some, fewest)
        for part in some:
            own = part.select("place", "stretch", "code")
            found += _of_series(own, tried[part.item(0, "series")], fewest, nodes)
    # units of the same codes in rotated order are one sequence, since a unit may begin anywhere in the period
    units = pl.concat(found).join(line.select("place", "series", "code"), on="place")
    mixed = (pl.col("code").hash() % (1 << 31)).cast(pl.Int64).sum()
    words = units.group_by("unit").agg(pl.col("series", "length").first(), word=mixed)
    same = pl.struct("series", "length", "word").rank("dense").cast(pl.Int64)
    words = words.with_columns(sequence=same).filter(pl.len().over("sequence") >= fewest)
    numbered = units.join(words.select("unit", "sequence"), on="unit")
    return numbered.select([pl.col(name).cast(dtype) for name, dtype in _FOUND.items()])


def _of_series(part: pl.DataFrame, tried: list[int], fewest: int, nodes: int) -> list[pl.DataFrame]:
    """The units of one series, greedily: of the period that covers most of it, then of the best one for the rest."""
    found, free = [], part
    for _ in range(_ROUNDS):
        if free.height < 2 * nodes:
            break
        agree = {period: _agreeing(free, period) for period in tried}
        likely = sorted(sorted(agree, key=lambda period: -agree[period])[:_LIKELY])
        spans = [_spans(free, period, fewest, nodes) for period in likely if agree[period] >= nodes]
        best = max(spans, key=_covered, default=None)
        if best is None or best.is_empty():
            break
        found.append(_units(free, best))
        taken = pl.col("place").is_in(found[-1].get_column("place").implode())
        # the operations taken split the rest: no run continues across them
        free = free.with_columns(stretch=pl.struct("stretch", taken).rle_id()).filter(~taken)
    return found


def _agreeing(line: pl.DataFrame, period: int) -> int:
    """The number of operations equal to the operation one period before in the same stretch."""
    same = [pl.col(name) == pl.col(name).shift(period) for name in ("code", "stretch")]
    return int(line.select((same[0] & same[1]).sum()).item())


def _distances(parts: Sequence[pl.DataFrame], fewest: int) -> dict[int, list[int]]:
    """Candidate periods by series, ascending: distances at which n-grams of codes recur in one stretch."""
    line = pl.concat(map(_sample, parts)).with_columns(longest=pl.len().over("series") // fewest).with_row_index("at")
    chosen: dict[int, set[int]] = {part.item(0, "series"): set() for part in parts}
    size = 1
    while size <= _RUNS[-1] and line.get_column("gram").null_count() < line.height:
        if size in _RUNS:
            for series, distance in _common_distances(line.drop_nulls("gram")).iter_rows():
                chosen[series].add(distance)
        after = line.select(pl.col("stretch", "gram").shift(-size)).rename({"stretch": "next", "gram": "then"})
        both = line.with_columns(after.get_columns())
        inside = (pl.col("stretch") == pl.col("next")) & pl.col("gram").is_not_null() & pl.col("then").is_not_null()
        joined = (pl.col("gram") * _MULTIPLIER + pl.col("then") + 1).hash().reinterpret(signed=True)
        line = both.select("series", "stretch", "longest", "at", gram=pl.when(inside).then(joined))
        size *= 2
    return {series: sorted(distances) for series, distances in chosen.items()}


def _sample(part: pl.DataFrame) -> pl.DataFrame:
    """The series, stretches and codes (as `gram`) of a series; of a long one, those of slices spread over it."""
    line = part.select("series", pl.col("stretch").cast(pl.UInt64), gram=pl.col("code"))
    if line.height <= _SLICES * _SLICE:
        return line
    apart = (line.height - _SLICE) // (_SLICES - 1)
    slices = [line.slice(number * apart, _SLICE) for number in range(_SLICES)]
    return pl.concat(one.with_columns(pl.col("stretch") * _SLICES + number) for number, one in enumerate(slices))


def _common_distances(line: pl.DataFrame) -> pl.DataFrame:
    """The distances between successive occurrences of an n-gram that would explain most of a series, with it."""
    # sorted, occurrences are neighbours; a window over n-grams takes many times as long where most are different
    line = line.sort("gram", maintain_order=True)
    again = (pl.col("gram") == pl.col("gram").shift(1)) & (pl.col("stretch") == pl.col("stretch").shift(1))
    apart = line.select("series", "longest", distance=pl.col("at").cast(pl.Int64).diff(), again=again).filter("again")
    counts = apart.filter(pl.col("distance") <= pl.col("longest"))
    sums = counts.group_by("series", "distance").agg(explained=pl.len() * pl.col("distance").first())
    top = sums.sort("explained", "distance", descending=[True, False]).group_by("series", maintain_order=True)
    return top.head(_TRIED).select("series", "distance")


def _spans(free: pl.DataFrame, period: int, fewest: int, nodes: int) -> pl.DataFrame:
    """Stretches of `free` in which one period repeats: columns start (a row), count (of units), length (of a unit)."""
    length = period * -(-nodes // period)
    same = [pl.col(name) == pl.col(name).shift(period) for name in ("code", "stretch")]
    again = free.select((same[0] & same[1]).fill_null(value=False)).to_series()
    least = max(fewest * period, 2 * nodes)
    runs = again.rle().struct.unnest().with_columns(end=pl.col("len").cast(pl.Int64).cum_sum())
    runs = runs.filter("value", pl.col("len") + period >= least)
    # an overlap of two runs belongs to the first
    start = pl.max_horizontal(pl.col("end") - pl.col("len") - period, pl.col("end").shift(1))
    spans = runs.select(start=start, count=(pl.col("end") - start) // length, length=pl.lit(length, dtype=pl.Int64))
    return spans.filter(pl.col("count") > 1)


def _covered(spans: pl.DataFrame) -> int:
    """The number of operations in the units of :func:`_spans`."""
    return int(spans.select((pl.col("count") * pl.col("length")).sum()).item())


def _units(free: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The units of :func:`_spans`: columns place, unit (the place of its first operation) and length."""
    stop = pl.col("start") + pl.col("count") * pl.col("length")
    at = spans.select(pl.int_ranges("start", stop).alias("at"), "start", "length").explode("at")
    first = pl.col("at") - (pl.col("at") - pl.col("start")) % pl.col("length")
    rows = at.select(pl.col("at").cast(pl.UInt32), first.cast(pl.UInt32).alias("first"), "length")
    places = free.get_column("place")
    unit = places.gather(rows.get_column("first")).cast(pl.Int64)
    return pl.DataFrame([places.gather(rows.get_column("at")), unit.alias("unit"), rows.get_column("length")])
