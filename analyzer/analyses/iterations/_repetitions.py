"""Repetitions of a unit: where each begins and ends in a line of launches, and what they are as parts of a server.

Odd ones and cut ones included. Repetitions in runs, each of which begins with the same kernels in larger shapes, are
prefills and decodes.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.iterations._marks import HALF, MANY, MOSTLY, NEAR, NEARLY_ALL
from kanalyze.analyses.iterations._units import (
    FEWEST,
    LARGEST,
    LONG,
    SHORT,
    SMALLEST,
    Unit,
    apart,
    held,
    sizes,
    stretches,
)
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.columns.lookup import count_up_to, gathered, nearest_place

#: What speaks for a repetition that begins with a launch, beside the gap before it.
_SPEAK: Final = ("fresh", "updated", "returned")

PREFILL: Final = "prefill"
DECODE: Final = "decode"

#: Least blocks and kernel time of a prefill as multiples of the usual: those of a short text only where nothing else
#: tells prefills; and the most blocks of nearly all decodes, if a prefill has not so many times those of nearly all.
_LARGE: Final = ((1.3, 1.3), (2.0, 1.1))
_APART: Final = 1.3
_MOST_DECODES: Final = 0.95

#: Fewest prefills, and how many times as many decodes there are.
_FEWEST_PREFILLS: Final = 3
_DECODES: Final = 2


class Cut(NamedTuple):
    """Beginning of the repetitions of a unit.

    Attributes:
        before: Number of launches of a repetition before its anchor.
        tail: Sum of the codes of those launches, with which the segment before the anchor ends.
        code: Code of the first of them.
        last: How many of them have that code.
    """

    before: int
    tail: int
    code: int
    last: int


def cut_of(line: pl.DataFrame, unit: Unit) -> Cut:
    """Chooses where repetitions begin.

    For a place in the unit speak the usual gap before it (as a part of the longest one), a copy to the device that
    begins there, a copy to the host and an optimizer that end there, and that no stretch of the unit has launches to
    spare if it is cut there. A near unit begins with its anchor.
    """
    if unit.near:
        return Cut(0, 0, unit.word, 0)
    spans = line.with_row_index("first").select("first", "gap", *_SPEAK, stop=pl.col("first") + unit.length)
    places = spans.head(line.height - unit.length + 1)
    places = places.filter(held(line, places, unit.column) == unit.word)
    following = nearest_place(unit.at, places.get_column("first"), later=True)
    places = places.with_columns(stop=gathered(unit.at, following))
    places = places.with_columns(held(line, places, unit.column).alias("tail"), before=sizes())
    inside = places.filter(pl.col("before") < unit.length)
    usual = (pl.col("gap").median(), *((pl.col(name).mean() > HALF).cast(pl.Int64) for name in _SPEAK))
    each = inside.group_by("tail").agg(pl.len().alias("whole"), pl.col("first", "before").first(), *usual)
    number = (unit.alike & ~unit.alike.shift(1, fill_value=False)).sum()
    gap = pl.col("gap").fill_null(0) / pl.col("gap").max().clip(lower_bound=1)
    spare = ((pl.col("whole").cast(pl.Int64) - pl.col("whole").median()) / number).clip(0, 1)
    best = each.sort(pl.sum_horizontal(gap, spare, *_SPEAK), "before", descending=True)
    before, tail, first = best.select(pl.col("before").cast(pl.Int64), "tail", "first").row(0)
    own = line.get_column(unit.column).slice(first, unit.length)
    return Cut(before, tail, own.item(0), (own.head(before) == own.item(0)).sum())


def repetitions(line: pl.DataFrame, unit: Unit, cut: Cut) -> pl.DataFrame:
    """The repetitions of `unit`, sorted and disjoint: first and stop (places in `line`), usual, stretch.

    `usual` says whether a repetition has the launches of the unit; in a stretch each one adjoins the next.
    """
    edges = _edges(line, unit, cut)
    rows = pl.concat([edges, _similar(line, unit, apart(edges))]).sort("first")
    usual = held(line, rows, unit.column) == unit.word
    if unit.near:
        usual = rows.select((sizes() - unit.length).abs() <= NEAR * unit.length).to_series()
    fits = sizes().is_between(unit.length * SMALLEST, unit.length * LARGEST)
    whole = held(line, rows, "barrier") == 0
    rows = rows.with_columns(usual.alias("usual")).filter((fits | pl.col("usual")) & whole)
    return rows.with_columns(stretches()).filter(pl.col("usual").any().over("stretch"))


def _edges(line: pl.DataFrame, unit: Unit, cut: Cut) -> pl.DataFrame:
    """First and stop of the repetition around each anchor."""
    height, after, at = line.height, unit.length - cut.before, unit.at.cast(pl.Int64)
    begins = (line.get_column(unit.column) == cut.code).arg_true().cast(pl.Int64)
    frame = pl.DataFrame(
        {
            "at": at,
            "begin": _nth(begins, count_up_to(begins, at, equal=False).cast(pl.Int64) - cut.last),
            "head_fits": _sums(line, unit, at, at + after) == (unit.word - cut.tail) % (1 << 64),  # sums of codes wrap
            "tail_fits": _sums(line, unit, at - cut.before, at) == cut.tail,
        }
    )
    anchor, following, usual = pl.col("at"), pl.col("at").shift(-1, fill_value=height), pl.col("at") - cut.before
    # an odd one after which nothing else is launched has the rest
    rest = ~pl.col("head_fits").fill_null(value=False) & (following == height)
    rest &= height - usual <= LARGEST * unit.length
    stop = pl.when(rest).then(height).otherwise(pl.min_horizontal(anchor + after, following))
    frame = frame.with_columns(stop=stop).with_columns(before=pl.col("stop").shift(1, fill_value=0))
    # a segment about as long as the unit is one repetition: what is more in it belongs to the one before
    size = anchor - anchor.shift(1)
    joined = size.is_between(SMALLEST * unit.length, LARGEST * unit.length).fill_null(value=False)
    low = pl.when(joined).then(anchor.shift(1)).otherwise("before")
    whole = pl.when(pl.col("tail_fits") & (usual >= low)).then(usual)
    near = joined | (pl.col("begin") >= anchor - LARGEST * cut.before)
    begin = pl.when(near & (pl.col("begin") >= low)).then("begin")
    follows = pl.when(joined & pl.col("head_fits").shift(1)).then("before")
    any_one = pl.when(joined).then("before").otherwise(pl.max_horizontal(usual, "before"))
    first = pl.coalesce(whole, follows, begin, any_one)
    frame = frame.with_columns(first=first, joined=joined)
    stop = pl.when(pl.col("joined").shift(-1, fill_value=False)).then(pl.col("first").shift(-1)).otherwise("stop")
    return frame.select("first", stop=stop).cast(pl.UInt32)


def _sums(line: pl.DataFrame, unit: Unit, first: pl.Series, stop: pl.Series) -> pl.Series:
    """Sums of what lies from each of `first` to `stop`; null where that is not all in the line."""
    inside = (first >= 0) & (stop <= line.height)
    edges = pl.DataFrame({"first": first.set(~inside, None), "stop": stop.set(~inside, None)})
    return held(line, edges.cast(pl.UInt32), unit.column)


def _nth(places: pl.Series, number: pl.Series) -> pl.Series:
    """The places of those numbers; null where there are not so many."""
    inside = (number >= 0) & (number < len(places))
    return gathered(places, number.set(~inside, None).cast(pl.UInt32))


def _similar(line: pl.DataFrame, unit: Unit, gaps: pl.DataFrame) -> pl.DataFrame:
    """Those of `gaps` between repetitions that are repetitions without their anchor."""
    gaps = gaps.filter(sizes().is_between(unit.length * SMALLEST, unit.length * LARGEST))
    if gaps.is_empty():
        return gaps
    own = line.get_column("alike").slice(unit.example, unit.length).unique()
    shared = held(line.select(known=pl.col("alike").is_in(own.implode())), gaps, "known")
    return gaps.filter(shared >= MOSTLY * gaps.select(sizes()).to_series())


def together(line: pl.DataFrame, rows: pl.DataFrame, *, paused: bool) -> pl.DataFrame:
    """The repetitions with those that the host launches in one go as one, if these are nearly always as many.

    Up to its next wait or copy that blocks; or else, if it may be told by how it `paused`, up to where it pauses longer
    each time, as a loop of like layers does from one step to the next. `rows` where it does neither.
    """
    waits = gathered(line.get_column("blocked"), rows.get_column("first"))
    groups = _grouped(_split(rows.with_columns(waits)))
    if groups is None and paused:
        groups = _grouped(_between_pauses(line, rows))
    return rows if groups is None else groups


def _between_pauses(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds `group`: several where the host pauses longer before every so many of them.

    All that tells where like layers begin are such pauses: it may be some launches before or after their first ones.
    """
    longest = rows.filter(stretch=rows.get_column("stretch").mode().sort().item(0)).head(LONG * SHORT)
    half = int(longest.select(sizes().median()).item()) // 2
    rows = rows.with_columns(blocked=0, group=0)
    for shift in sorted(range(-half, half + 1), key=abs):
        first = (pl.col("first").cast(pl.Int64) + shift).clip(0, line.height - 1).cast(pl.UInt32)
        number = _regular(gathered(line.get_column("gap"), longest.select(first).to_series()).fill_null(0))
        if number is not None:
            stop = (pl.col("stop").cast(pl.Int64) + shift).clip(1, line.height).cast(pl.UInt32)
            return rows.with_columns(first, stop, group=pl.int_range(pl.len()).over("stretch") // number)
    return rows


def _split(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds `group` within those between two waits: several where these are a multiple of the usual number.

    A host that runs ahead waits after several iterations. Half of them are that number, and nearly all a multiple.
    """
    together = ("stretch", "blocked")
    many, place = pl.len().over(together), pl.int_range(pl.len()).over(together)
    counts = rows.group_by(together).len().get_column("len")
    usual = counts.mode().sort().item(0)
    if (counts == usual).sum() < HALF * len(counts) or (counts % usual == 0).sum() < NEARLY_ALL * len(counts):
        usual = rows.height  # none is several
    return rows.with_columns(group=pl.when(many % usual == 0).then(place // usual).otherwise(0))


def _grouped(rows: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions of each `group` as one; None where these are few, or do not nearly always have equally many."""
    sums = rows.group_by("stretch", "blocked", "group", maintain_order=True).agg(
        pl.col("first", "phase").first(),
        pl.col("stop").last(),
        pl.col("usual").all(),
        pl.col("weight").sum(),
        many=pl.len().cast(pl.Int64),
    )
    usual, many = int(median_of(sums, "many")), pl.col("many")
    if usual <= 1 or sums.select((many == usual).mean()).item() < NEARLY_ALL:
        return None
    groups = sums.filter(many.is_between(SMALLEST * usual, LARGEST * usual))
    groups = groups.with_columns(usual=pl.col("usual") & (many == usual)).drop("blocked", "group", "many")
    return groups if groups.height >= FEWEST else None


def _regular(gaps: pl.Series) -> int | None:
    """After how many repetitions the host pauses longer: nearly always longer than nearly always before the others."""
    place = pl.int_range(len(gaps), eager=True)
    for number in range(2, min(len(gaps) // SHORT, LONG) + 1):
        first = place % number == 0
        longer = gaps.filter(first).quantile(1 - NEARLY_ALL, "nearest") or 0
        if longer > (gaps.filter(~first).quantile(NEARLY_ALL, "nearest") or 0):
            return number
    return None


def with_phases(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds phase to repetitions, and the prefills that lie between them; null if there are no such phases.

    Columns: first, stop, usual, stretch and phase.
    """
    plain = rows.with_columns(phase=pl.lit(None, dtype=pl.String))
    if rows.height < _FEWEST_PREFILLS * (1 + _DECODES) or line.get_column("optimizer").any():
        return plain
    gaps = apart(rows)
    gaps = gaps.filter(held(line, gaps, "barrier") == 0)
    every = pl.concat([rows.with_columns(gap=False), gaps.with_columns(gap=True, usual=False)]).sort("first")
    every = every.with_columns(held(line, every, name) for name in ("blocks", "work_ns"))
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
    if prefills < _FEWEST_PREFILLS or decodes < _DECODES * prefills or begun < MANY * prefills:
        return None
    phase = pl.when("large").then(pl.lit(PREFILL)).otherwise(pl.lit(DECODE))
    told = told.with_columns(stretches(), phase=phase, usual=pl.col("usual") | pl.col("large"))
    return told.select(*columns, "phase")


def _large(line: pl.DataFrame, rows: pl.DataFrame, least: tuple[float, float]) -> pl.Series | None:
    """Whether each row is a prefill by its size and its launches; None if sizes differ in other ways."""
    usual = rows.filter("usual")
    blocks, ns = usual.get_column("blocks").median(), usual.get_column("work_ns").median()
    more, longer = least
    grown = (pl.col("blocks") > blocks * pl.lit(more)) & (pl.col("work_ns") >= ns * pl.lit(longer))
    large = rows.select(large=grown).to_series()
    others = rows.filter(~large & ~rows.get_column("gap"))
    if large.sum() < _FEWEST_PREFILLS or others.is_empty():
        return None
    even = others.select((pl.col("blocks") <= blocks * pl.lit(1 + NEAR)).mean()).item() >= MANY
    most = others.select(pl.col("blocks").quantile(_MOST_DECODES) * _APART).item()
    if not even and rows.filter(large).select(pl.col("blocks").min()).item() < most:
        return None
    at = (
        others.gather_every(max(-(-others.height // LONG), 1))
        .select(pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("at").explode())
        .to_series()
    )
    known = {name: gathered(line.get_column(name), at).unique() for name in ("loose", "exact")}
    told = line.select(pl.col(name).is_in(codes.implode()) for name, codes in known.items())
    size = pl.col("stop").cast(pl.Int64) - pl.col("first")
    shared = rows.with_columns(held(told, rows, name) for name in known)
    shared = shared.select((pl.col("loose") >= HALF * size) & (pl.col("exact") <= HALF * size))
    found = large & shared.to_series()
    return found if found.sum() >= MANY * int(large.sum()) else None
