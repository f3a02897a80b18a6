"""Units that repeat in a line of launches, and which of them is an iteration, and not a part or a multiple of one.

A unit is what lies between two occurrences of one launch, again and again. A launch that occurs once in every iteration
(an anchor) cuts the line into segments, and those of one program are alike whichever anchor cuts them. What a segment
holds is compared as a sum of hashes, regardless of the order in it: threads and streams may swap launches within an
iteration. Sums of segments are differences of running sums, so that all launches are tried as anchors in one pass.
"""

from __future__ import annotations

import re
from itertools import product
from math import exp, lgamma, log, log1p
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.host._call_kinds import BLOCKING_COPY, bucket_of, names_that
from kanalyze.columns.grouping import mixed
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Columns of a line whose codes may be alike: of names and shapes, of names, and of names without their numbers.
COLUMNS: Final = ("exact", "alike", "loose")

#: What counts as nearly all of something, most of it, and half; and how far sizes may be apart that are nearly equal.
NEARLY_ALL: Final = 0.9
MOSTLY: Final = 2 / 3
HALF: Final = 0.5
NEAR: Final = 0.1

#: Least and greatest number of launches of a repetition, odd or not, as multiples of the usual number; and from which
#: factor on one size is that of another level.
SMALLEST: Final = 0.5
LARGEST: Final = 1.5

#: Fewest repetitions of a program.
FEWEST: Final = 4

#: Fewest segments that are alike, and fewest launches in all of them.
LEAST_ALIKE: Final = 2
LEAST_LAUNCHES: Final = 6

#: Fewest launches of a unit: many kernels of one library have one name but for the numbers in it.
_LEAST_LENGTH: Final = {"exact": 1, "alike": 1, "loose": 8}

#: Most occurrences of an anchor that are looked at to find units, most units that are examined closely, and most
#: repetitions of which details are compared.
_SAMPLED: Final = 1 << 12
_EXAMINED: Final = 12
COMPARED: Final = 64

#: What must be alike (column of the line), and what an anchor is: a column, and how many launches in a row. Names
#: without their numbers are compared, and several launches in a row are anchors, if what was found before covers less
#: of the line.
_WAYS: Final = (
    ((("exact", "exact", 1), ("alike", "exact", 1), ("alike", "alike", 1)), 1.0),
    ((("loose", "alike", 1), ("loose", "loose", 1)), 0.4),
    (tuple((column, column, size) for size, column in product((2, 8), ("exact", "alike"))), NEARLY_ALL),
)

#: Mixes the codes of several launches in a row.
_MULTIPLIER: Final = 6364136223846793005

#: What a unit's share counts: one that covers a bit less and is more exact is the better one.
_EXACTNESS: Final = {"exact": 1.1, "alike": 1.0, "loose": 0.9}

#: The share of launches in segments of about the unit's length from which on a loop holds nothing else.
_NOTHING_ELSE: Final = 0.99

#: More of the same is so large a part of a unit's launches: with shapes, and by names alone.
_MORE: Final = {"exact": NEAR, "alike": 0.3}


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
    """Running sums over a line, from 0 before its first launch: of its codes and its weights."""

    codes: dict[str, pl.Series]
    weight: pl.Series


def sums_of(line: pl.DataFrame) -> Sums:
    """The running sums of `line`."""
    return Sums({name: running(line.get_column(name)) for name in COLUMNS}, running(line.get_column("weight")))


def units(line: pl.DataFrame, sums: Sums) -> list[Unit]:
    """The units of `line` that may be iterations, the shortest first; of equal length, the most exact one."""
    found: dict[tuple[str, int], Unit] = {}
    for ways, enough in _WAYS:
        if found and max(unit.share for unit in found.values()) >= enough:
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


def held(line: pl.DataFrame, rows: pl.DataFrame, column: str) -> pl.Series:
    """The sum of a column of `line` over each of `rows` (first, stop)."""
    return between(running(line.get_column(column)), rows.get_column("first"), rows.get_column("stop")).alias(column)


def apart(rows: pl.DataFrame) -> pl.DataFrame:
    """What lies between two neighbours of `rows`: first and stop, and the other columns of the one after."""
    gaps = rows.with_columns(first=pl.col("stop").shift(1), stop="first")
    return gaps.filter(pl.col("stop") > pl.col("first"))


def some(rows: pl.DataFrame, most: int = COMPARED) -> pl.DataFrame:
    """At most so many of `rows`, evenly spread."""
    return rows.gather_every(max(-(-rows.height // most), 1))


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


def iteration_unit(report: Report, process: int | None, line: pl.DataFrame, sums: Sums) -> Unit | None:
    """The unit that is an iteration: the shortest in which the host takes part, or else the longest.

    Layers repeat within an iteration, and iterations within an epoch. The host takes part in an iteration: it copies
    data or waits for results. A unit that repeats without anything in between is one, too, and so is one with which
    only more of the same alternates (evaluation).
    """
    levels = _levels(units(line, sums))
    for number, unit in enumerate(levels):
        longer = levels[number + 1 :]
        if not holds(line, unit, "optimizer") and any(holds(line, one, "optimizer") for one in longer):
            continue
        if unit.length == 1 and not _alone(unit):
            continue
        if longer and _more_of_the_same(line, unit, longer[0]):
            return unit
        if holds(line, unit, "optimizer") or _alone(unit) or _host_takes_part(report, process, line, unit):
            return unit
    others = [unit for unit in levels[-1:] if holds(line, unit, "optimizer") or not line.get_column("optimizer").any()]
    return next((unit for unit in others if _spans(sums, unit) >= MOSTLY), None)


def _levels(found: list[Unit]) -> list[Unit]:
    """The best of the units of each length, the shortest first."""
    most = max((unit.share for unit in found), default=0.0)
    worth = {id(unit): unit.share * _EXACTNESS[unit.column] for unit in found}
    levels: list[Unit] = []
    for unit in sorted(found, key=lambda one: (-worth[id(one)], one.length)):
        others = ((unit.length, one.length) for one in levels)
        if unit.share >= most * MOSTLY and all(max(pair) >= LARGEST * min(pair) for pair in others):
            levels.append(unit)
    return sorted(levels, key=lambda one: one.length)


def holds(line: pl.DataFrame, unit: Unit, column: str) -> bool:
    """Whether the unit has a launch of which a column is true."""
    return bool(line.get_column(column).slice(_example(unit), unit.length).any())


def _example(unit: Unit) -> int:
    """Place of an anchor whose segment is the unit, in the middle of the line."""
    places = unit.at.slice(0, len(unit.at) - 1).filter(unit.alike)
    return int(places.item(len(places) // 2))


def _alone(unit: Unit) -> bool:
    """Whether next to nothing but the unit lies between its first and its last anchor."""
    size = (unit.at.slice(1) - unit.at.slice(0, len(unit.at) - 1)).cast(pl.Int64)
    near = (size - unit.length).abs() <= NEAR * unit.length
    return int(size.filter(near).sum()) >= _NOTHING_ELSE * int(size.sum())


def _spans(sums: Sums, unit: Unit) -> float:
    """The share of the weight between the first and the last anchor that lies in segments that are the unit."""
    start, end = unit.at.slice(0, len(unit.at) - 1), unit.at.slice(1)
    weight = between(sums.weight, start, end)
    return float(weight.filter(unit.alike).sum()) / float(weight.sum())


def _host_takes_part(report: Report, process: int | None, line: pl.DataFrame, unit: Unit) -> bool:
    """Whether each repetition copies between host and device, or waits for the device."""
    return holds(line, unit, "copies") or waited_for(report, process, line, unit)


def waited_for(report: Report, process: int | None, line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the host waits for the device in nearly each repetition."""
    starts = waits_of(report, process)
    if len(starts) < unit.alike.sum():
        return False
    before = count_up_to(starts, gathered(line.get_column("since"), unit.at), equal=False).cast(pl.Int64)
    waited = (before.slice(1) > before.slice(0, len(before) - 1)).filter(unit.alike)
    return int(waited.sum()) >= NEARLY_ALL * len(waited)


def waits_of(report: Report, process: int | None, *, copying: bool = False) -> pl.Series:
    """When the process began to wait for the device, be it by `copying`, sorted."""
    calls = report.kind("api").select("process_id", "name", "start_ns")
    waits = names_that(report, lambda name: bucket_of(name) == "sync" or (copying and re.match(BLOCKING_COPY, name)))
    own = pl.col("process_id").eq_missing(process) & pl.col("name").is_in(waits)
    return calls.filter(own).get_column("start_ns").sort()


def only_computes(line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the unit neither copies between host and device nor updates parameters."""
    return not (holds(line, unit, "copies") or holds(line, unit, "optimizer"))


def _more_of_the_same(line: pl.DataFrame, unit: Unit, longer: Unit) -> bool:
    """Whether what else is in a longer unit consists of what this one has: an evaluation between epochs.

    An evaluation of other shapes has the same names, but so has a little of whatever else a program launches.
    """
    for column, least in _MORE.items():
        own, every = (_codes(line, one, column).value_counts(name="count") for one in (unit, longer))
        both = every.join(own.rename({"count": "own"}), on=column, how="left")
        times = both.select((pl.col("count") // pl.col("own")).min()).item() or 0
        rest = both.with_columns(more=pl.col("count") - pl.col("own").fill_null(0) * times)
        more = int(rest.get_column("more").sum())
        if more >= least * unit.length and int(rest.drop_nulls("own").get_column("more").sum()) >= NEARLY_ALL * more:
            return True
    return False


def _codes(line: pl.DataFrame, unit: Unit, column: str) -> pl.Series:
    return line.get_column(column).slice(_example(unit), unit.length)


def chance(line: pl.DataFrame, unit: Unit) -> float:
    """Upper bound for the chance that so many segments are alike where each launch is drawn by itself.

    One segment is this unit with the chance of drawing its launches in any order; of all segments so many are with at
    most that of the binomial distribution (Chernoff's bound).
    """
    tried, alike = len(unit.alike), int(unit.alike.sum())
    every = line.get_column(unit.column).value_counts(name="n")
    own = _codes(line, unit, unit.column).value_counts(name="own").join(every, on=unit.column)
    drawn = lgamma(unit.length + 1)
    for count, often in own.select("own", "n").iter_rows():
        drawn += count * log(often / line.height) - lgamma(count + 1)
    if drawn >= log(alike / tried):
        return 1.0
    share = alike / tried
    against = share * (log(share) - drawn) + ((1 - share) * (log1p(-share) - log1p(-exp(drawn))) if share < 1 else 0.0)
    return exp(min(log(max(len(every), 1)) - tried * against, 0.0))
