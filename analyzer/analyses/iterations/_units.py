"""Units that repeat in a line of launches: what lies between two occurrences of one launch, again and again.

A launch that occurs once in every iteration (an anchor) cuts the line into segments, and those of one program are alike
whichever anchor cuts them. What a segment holds is compared as a sum of hashes, regardless of the order in it: threads
and streams may swap launches within an iteration. Sums of segments are differences of running sums, so that all
launches are tried as anchors in one pass.
"""

from __future__ import annotations

from itertools import product
from typing import Final, NamedTuple

import polars as pl

from kanalyze.columns.grouping import mixed
from kanalyze.columns.lookup import gathered

#: Columns of a line whose codes may be alike: of names and shapes, of names, and of names without their numbers.
COLUMNS: Final = ("exact", "alike", "loose")

#: Fewest segments that are alike, and fewest launches in all of them.
LEAST_ALIKE: Final = 2
LEAST_LAUNCHES: Final = 12

#: Fewest launches of a unit: many kernels of one library have one name but for the numbers in it.
_LEAST_LENGTH: Final = {"exact": 1, "alike": 1, "loose": 8}

#: Most occurrences of an anchor that are looked at to find units.
_SAMPLED: Final = 1 << 12

#: Most units that are examined closely.
_EXAMINED: Final = 12

#: What must be alike (column of the line), and what an anchor is: a column, and how many launches in a row.
_WAYS: Final = (("exact", "exact", 1), ("alike", "exact", 1), ("alike", "alike", 1))
_LOOSE: Final = (("loose", "alike", 1), ("loose", "loose", 1))
_LONGER: Final = tuple((column, column, size) for size, column in product((2, 8), ("exact", "alike")))

#: Names without their numbers are compared, and several launches in a row are anchors, if what was found before covers
#: less of the line.
_LITTLE: Final = 0.4
_ENOUGH: Final = 0.9

#: Mixes the codes of several launches in a row.
_MULTIPLIER: Final = 6364136223846793005


class Unit(NamedTuple):
    """A segment that recurs.

    Attributes:
        column: Column of the line whose codes are alike in all of its repetitions.
        length: Number of launches.
        word: Sum of their codes.
        anchor: The anchor: what it is, and its code.
        at: Places of its anchor in the line.
        alike: Whether the segment from each anchor to the next one is this unit.
        share: Share of the line's weight in such segments.
    """

    column: str
    length: int
    word: int
    anchor: tuple[str, int, int]
    at: pl.Series
    alike: pl.Series
    share: float

    @property
    def key(self) -> tuple[object, ...]:
        """Key of units with the same launches, in whichever process."""
        return self.column, self.length, self.word


class Sums(NamedTuple):
    """Running sums over a line, from 0 before its first launch: of its codes, its weights and its barriers."""

    codes: dict[str, pl.Series]
    weight: pl.Series
    barriers: pl.Series


def sums_of(line: pl.DataFrame) -> Sums:
    """The running sums of `line`."""
    codes = {name: running(line.get_column(name)) for name in COLUMNS}
    return Sums(codes, *(running(line.get_column(name)) for name in ("weight", "barrier")))


def units(line: pl.DataFrame, sums: Sums) -> list[Unit]:
    """The units of `line` that may be iterations, the shortest first; of equal length, the most exact one."""
    found: dict[tuple[str, int], Unit] = {}
    for ways, less in ((_WAYS, 2.0), (_LOOSE, _LITTLE), (_LONGER, _ENOUGH)):
        if found and max(unit.share for unit in found.values()) >= less:
            continue
        for column, of, size in ways:
            codes = _grams(line.get_column(of), size)
            for code, word in _found(codes, sums, column):
                if (column, word) not in found:
                    found[column, word] = _examined(codes, sums, (column, word), (of, size, code))
    return sorted(found.values(), key=lambda unit: (unit.length, COLUMNS.index(unit.column)))


def between(running: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
    """The sum of what lies from each of `start` up to `end`, from running sums."""
    return gathered(running, end) - gathered(running, start)


def pauses(line: pl.DataFrame) -> pl.Series:
    """Time from the end of the call before to the start of each launch's own, in ns."""
    return line.select((pl.col("since") - pl.col("until").shift(1)).clip(lower_bound=0)).to_series()


def stretches() -> pl.Expr:
    """Number of the stretch of each repetition, by first and stop: each one adjoins the next."""
    apart = (pl.col("first") != pl.col("stop").shift(1)).fill_null(value=True)
    return apart.cum_sum().cast(pl.UInt32).alias("stretch")


def running(values: pl.Series) -> pl.Series:
    """Sums of what lies before each place, from 0 before the first one to the sum of all."""
    sums = values.cum_sum()
    return pl.concat([pl.zeros(1, dtype=sums.dtype, eager=True), sums], rechunk=True)


def needed_share(length: pl.Expr) -> pl.Expr:
    """Least share of an anchor's segments that are alike: chance makes short ones alike, and hardly ever long ones."""
    return 0.5 + 0.45 * pl.lit(0.9).pow(length - 1)


def _found(codes: pl.Series, sums: Sums, column: str) -> list[tuple[int, int]]:
    """The best anchors for one way to tell them, by `codes`: the code of each, and the sum of codes of its unit."""
    segments = _segments(codes, sums, column)
    first = pl.col("code", "word", "length", "segments", "first").first()
    # by one number for both, which takes half the time of two columns
    same = segments.group_by(mixed(("code", "word")).alias("same"))
    alike = same.agg(pl.len().alias("count"), first, pl.col("weight").sum())
    alike = alike.filter(
        pl.col("length") >= _LEAST_LENGTH[column],
        pl.col("count") >= LEAST_ALIKE,
        pl.col("count") * pl.col("length") >= LEAST_LAUNCHES,
    )
    alike = alike.filter(pl.col("count") >= pl.col("segments") * needed_share(pl.col("length")))
    # an anchor that occurs in odd ones, too; what is equal is told apart by its place, since codes depend on the order
    # in which names were read
    best = alike.sort("count", "segments", "first", descending=[True, True, False]).unique(
        "word", keep="first", maintain_order=True
    )
    best = best.sort("weight", "first", descending=[True, False]).head(_EXAMINED)
    return list(best.select("code", "word").iter_rows())


def _grams(codes: pl.Series, size: int) -> pl.Series:
    """One number for each launch and those before it, `size` in a row."""
    while size > 1:
        size //= 2
        codes = (codes.shift(size) * _MULTIPLIER + codes).fill_null(0)
    return codes


def _segments(codes: pl.Series, sums: Sums, column: str) -> pl.DataFrame:
    """Segments between occurrences of each code (of many, those in the middle).

    Columns: code, first (a place of it), segments (how many it has here), word, length and weight.
    """
    places = codes.alias("code").to_frame().with_row_index("at").group_by("code", maintain_order=True).agg("at")
    often = pl.col("at").list.len()
    places = places.filter(often > LEAST_ALIKE)
    first = (often.cast(pl.Int64) - _SAMPLED).clip(lower_bound=0) // 2
    sampled = pl.col("at").list.slice(first, _SAMPLED)
    places = places.with_columns(
        sampled, first=pl.col("at").list.first(), segments=often.clip(upper_bound=_SAMPLED) - 1
    ).explode("at")
    start, code = places.get_column("at"), places.get_column("code")
    inside = (code == code.shift(-1)).fill_null(value=False)
    end, start = start.shift(-1).filter(inside), start.filter(inside)
    return pl.DataFrame(
        {
            "code": code.filter(inside),
            "first": places.get_column("first").filter(inside),
            "segments": places.get_column("segments").filter(inside),
            "word": between(sums.codes[column], start, end),
            "length": end - start,
            "weight": between(sums.weight, start, end),
        }
    )


def _examined(codes: pl.Series, sums: Sums, unit: tuple[str, int], anchor: tuple[str, int, int]) -> Unit:
    """The unit of one anchor in the whole line."""
    column, word = unit
    at = (codes == anchor[-1]).arg_true()
    start, end = at.slice(0, len(at) - 1), at.slice(1)
    alike = between(sums.codes[column], start, end) == word
    weight = between(sums.weight, start, end).filter(alike).sum()
    length = int((end - start).filter(alike).item(0))
    return Unit(column, length, word, anchor, at, alike, weight / sums.weight.item(-1))
