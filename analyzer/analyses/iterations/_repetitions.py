"""Repetitions of a unit: where each begins and ends in a line of launches, and what they are as parts of a server.

Odd ones and cut ones included. Repetitions in runs, each of which begins with the same kernels in larger shapes, are
prefills and decodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.iterations._units import (
    COMPARED,
    FEWEST,
    HALF,
    LARGEST,
    MOSTLY,
    NEARLY_ALL,
    SMALLEST,
    apart,
    between,
    held,
    pauses,
    some,
    stretches,
)
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums, Unit

#: Most launches of repetitions whose gaps are compared.
_COMPARED_LAUNCHES: Final = 1 << 19

#: Fewest longer pauses that are regular, and most repetitions from one to the next.
_GROUPS: Final = 8
_MOST_TOGETHER: Final = 64

_INDEX: Final = pl.Int64

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
_FEWEST_PREFILLS: Final = 3
_DECODES: Final = 2


class Cut(NamedTuple):
    """Begins of the repetitions of a unit.

    Attributes:
        after: Number of launches from the anchor of a segment to the beginning of the next repetition: 1 to the unit's.
        head: Sum of the codes of those launches.
        code: Code of the launch with which a repetition begins.
        nth: Which launch of that code it is from the anchor on.
        last: Which one it is back from the next anchor; 0 for that anchor itself.
    """

    after: int
    head: int
    code: int
    nth: int
    last: int


def cut_of(line: pl.DataFrame, sums: Sums, unit: Unit) -> Cut:
    """Chooses where repetitions begin.

    For a place in the unit speak the usual gap before it (as a part of the longest one), a copy to the device that
    begins there, a copy to the host and an optimizer that end there, and that the stretches of the unit begin and end
    there.
    """
    each = _usual(line, unit)
    updated = pl.when("copied_out").then(None).otherwise("optimizer").forward_fill()
    around = pl.concat([each, each]).with_columns(copied_out=pl.col("copies") & ~pl.col("input"))
    around = around.with_columns(  # the unit is a circle, which is why it is there twice
        fresh=pl.col("input") & ~pl.col("input").shift(1),
        updates=~pl.col("optimizer") & ~pl.col("copied_out") & updated.shift(1),
        returned=~pl.col("copied_out") & pl.col("copied_out").shift(1),
    )
    around = around.slice(unit.length).with_columns(ends=_ends(sums, unit, each))
    speak = pl.col("fresh", "updates", "returned").fill_null(value=False).cast(pl.Float64)
    gap = pl.col("gap") / pl.col("gap").max().clip(lower_bound=1)
    score = pl.sum_horizontal(gap, speak, "ends")
    best = around.sort(score, "after", descending=[True, False])
    return Cut(*best.select("after", "head", "code", "nth", "last").row(0))


def _usual(line: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """The unit's launches after the anchor, up to the next one, in their usual order.

    Columns: those of :class:`Cut`, gap (usual time from the end of the call before to the start of its own, in ns),
    copies, input and optimizer. Launches are told by their codes and which of that code they are, since threads may
    swap some.
    """
    starts = unit.at.slice(0, len(unit.at) - 1).filter(unit.alike).cast(_INDEX)
    rows = some(starts.alias("start").to_frame(), _compared(unit))
    offsets = pl.DataFrame({"offset": pl.int_range(unit.length + 1, dtype=_INDEX, eager=True)})
    rows = rows.join(offsets, how="cross", maintain_order="left_right")
    at = rows.select((pl.col("start") + pl.col("offset")).cast(pl.UInt32)).to_series()
    told = line.select(pl.col(unit.column).alias("code"), "copies", "input", "optimizer")[at]
    rows = rows.with_columns(told.get_columns()).with_columns(gap=gathered(pauses(line), at))
    rows = rows.with_columns(nth=pl.col("code").cum_count().over("start", "code").cast(_INDEX))
    each = (
        rows.filter(pl.col("offset") > 0)
        .group_by("code", "nth")
        .agg(pl.col("offset", "gap").median(), pl.col("copies", "input", "optimizer").first())
    )
    each = each.sort("offset", "code", "nth").with_row_index("after", offset=1)
    anchor = pl.lit(int(told.get_column("code").item(0)), dtype=pl.UInt64)
    inside = pl.len().over("code")  # the next anchor stands for the first one
    return each.with_columns(
        pl.col("gap").fill_null(0),
        head=anchor + pl.col("code").cum_sum().shift(1, fill_value=0),
        last=inside.cast(_INDEX) - (pl.col("nth") - 1),
    )


def _compared(unit: Unit) -> int:
    """The number of repetitions of which details are compared."""
    return max(min(COMPARED, _COMPARED_LAUNCHES // unit.length), 1)


def _ends(sums: Sums, unit: Unit, each: pl.DataFrame) -> pl.Series:
    """For each launch of the unit, the shares of its stretches that may end before it and that may begin with it."""
    alike = pl.concat([pl.Series([False]), unit.alike, pl.Series([False])])
    at = unit.at.cast(_INDEX)
    before, after = alike.slice(0, len(at)), alike.slice(1)
    running, places = sums.codes[unit.column], each.select("after", "head")
    last, first = (
        some(edge.alias("at").to_frame(), _compared(unit)).join(places, how="cross")
        for edge in (at.filter(before & ~after), at.filter(after & ~before))
    )
    heads = _sum_at(running, last.get_column("at"), last.get_column("at") + last.get_column("after"))
    begun = first.get_column("at") - (unit.length - first.get_column("after").cast(_INDEX))
    tails = _sum_at(running, begun, first.get_column("at"))
    rest = pl.lit(unit.word, dtype=pl.UInt64) - pl.col("head")
    votes = [
        last.with_columns(same=(heads == last.get_column("head")).fill_null(value=False)),
        first.with_columns(tail=tails).with_columns(same=(pl.col("tail") == rest).fill_null(value=False)),
    ]
    one, other = (vote.group_by("after").agg(pl.col("same").mean()).sort("after")["same"] for vote in votes)
    return one + other


def repetitions(line: pl.DataFrame, sums: Sums, unit: Unit, cut: Cut) -> pl.DataFrame:
    """The repetitions of `unit`, sorted and disjoint: first and stop (places in `line`), usual, stretch.

    `usual` says whether a repetition has the launches of the unit; in a stretch each one adjoins the next.
    """
    edges = _edges(line, sums, unit, cut)
    rows = pl.concat([edges, _similar(line, unit, apart(edges))]).sort("first")
    size = pl.col("stop").cast(_INDEX) - pl.col("first")
    first, stop = rows.get_column("first"), rows.get_column("stop")
    usual = between(sums.codes[unit.column], first, stop) == unit.word
    whole = held(line, rows, "barrier") == 0
    fits = size.is_between(unit.length * SMALLEST, unit.length * LARGEST)
    rows = rows.with_columns(usual=usual).filter((fits | pl.col("usual")) & whole)
    rows = rows.with_columns(stretches())
    return rows.filter(pl.col("usual").any().over("stretch"))


def together(line: pl.DataFrame, rows: pl.DataFrame, waits: pl.Series, *, paused: bool) -> pl.DataFrame:
    """The repetitions with those that the host launches in one go as one, if these are nearly always as many.

    Up to the next of its `waits`; or else, if it may be told by how it `paused`, up to where it pauses longer each
    time, as a loop of like layers does from one step to the next. `rows` where it does neither.
    """
    waited = count_up_to(waits, gathered(line.get_column("since"), rows.get_column("first")), equal=False)
    groups = _grouped(_split(rows.with_columns(waited=waited)))
    if groups is None and paused:
        each = rows.with_columns(pause=gathered(pauses(line), rows.get_column("first")))
        longest = each.get_column("stretch").mode().sort().item(0)
        number = _regular(each.filter(pl.col("stretch") == longest).get_column("pause").fill_null(0))
        places = pl.int_range(pl.len()).over("stretch")
        groups = None if number is None else _grouped(rows.with_columns(waited=0, group=places // number))
    return rows if groups is None else groups


def _split(rows: pl.DataFrame) -> pl.DataFrame:
    """Adds `group` within those with the same `waited`: several where these are a multiple of the usual number.

    A host that runs ahead waits after several iterations. Half of them are that number, and nearly all a multiple.
    """
    together = ("stretch", "waited")
    rows = rows.with_columns(many=pl.len().over(together), place=pl.int_range(pl.len()).over(together))
    counts = rows.group_by(together).len().get_column("len")
    usual = counts.mode().sort().item(0)
    if (counts == usual).sum() < HALF * len(counts) or (counts % usual == 0).sum() < NEARLY_ALL * len(counts):
        usual = rows.height  # none is several
    several = pl.col("many") % usual == 0
    return rows.with_columns(group=pl.when(several).then(pl.col("place") // usual).otherwise(0)).drop("many", "place")


def _grouped(rows: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions of each `group` as one; None where these are few, or do not nearly always have equally many."""
    sums = rows.group_by("stretch", "waited", "group", maintain_order=True).agg(
        pl.col("first", "phase").first(),
        pl.col("stop").last(),
        pl.col("usual").all(),
        pl.col("weight").sum(),
        many=pl.len().cast(_INDEX),
    )
    usual = int(median_of(sums, "many"))
    alike = pl.col("many") == usual
    if usual < 2 or sums.select(alike.mean()).item() < NEARLY_ALL:  # noqa: PLR2004 - one is no more than itself
        return None
    near = pl.col("many").is_between(SMALLEST * usual, LARGEST * usual)
    groups = sums.with_columns(usual=pl.col("usual") & alike).filter(near).select(rows.columns).drop("waited", "group")
    return groups if groups.height >= FEWEST else None


def _regular(pauses_before: pl.Series) -> int | None:
    """After how many repetitions the host pauses longer: nearly always longer than nearly always before the others."""
    place = pl.int_range(len(pauses_before), eager=True)
    for number in range(2, min(len(pauses_before) // _GROUPS, _MOST_TOGETHER) + 1):
        first = place % number == 0
        longer = pauses_before.filter(first).quantile(1 - NEARLY_ALL, "nearest") or 0
        if longer > (pauses_before.filter(~first).quantile(NEARLY_ALL, "nearest") or 0):
            return number
    return None


def _edges(line: pl.DataFrame, sums: Sums, unit: Unit, cut: Cut) -> pl.DataFrame:
    """First and stop of the repetition around each anchor."""
    frame = _limits(line, unit)
    running, wanted = sums.codes[unit.column], (line.get_column(unit.column) == cut.code).arg_true().cast(_INDEX)
    at, tail = frame.get_column("at"), unit.length - cut.after
    seen = count_up_to(wanted, at, equal=False).cast(_INDEX)
    tail_word = (unit.word - cut.head) % (1 << 64)  # sums of codes wrap
    frame = frame.with_columns(
        whole_head=_sum_at(running, at, at + cut.after) == cut.head,
        next=_nth(wanted, seen + (cut.nth - 1)),
        whole_tail=_sum_at(running, at - tail, at) == tail_word,
        last=_nth(wanted, seen - cut.last),
    )
    usual, near = pl.col("at") + cut.after, pl.col("at") + int(cut.after * LARGEST)
    next_one = pl.when(pl.col("next") <= pl.min_horizontal("high", near)).then("next")
    stop = pl.when(pl.col("whole_head") & (usual <= pl.col("high"))).then(usual).otherwise(next_one)
    # an odd one after which nothing else is launched has the rest
    rest = pl.when(pl.col("ends") & (pl.col("high") - pl.col("at") + tail <= LARGEST * unit.length)).then("high")
    frame = frame.with_columns(stop=pl.coalesce(stop, rest, pl.min_horizontal(usual, "high")))
    usual, near = pl.col("at") - tail, pl.col("at") - int(tail * LARGEST)
    low = pl.max_horizontal("low", pl.col("stop").shift(1, fill_value=0))
    complete = pl.when(pl.col("whole_tail") & (usual >= low)).then(usual)
    last_one = pl.when(pl.col("last") >= pl.max_horizontal(low, near)).then("last")
    # a segment about as long as the unit is one repetition: what is more in it belongs to the one before
    size = pl.col("at") - pl.col("at").shift(1)
    joined = (
        (size >= SMALLEST * unit.length) & (size <= LARGEST * unit.length) & (pl.col("low") <= pl.col("at").shift(1))
    )
    joined = joined.fill_null(value=False)
    alone = pl.coalesce(complete, last_one, pl.max_horizontal(usual, low))
    together = pl.coalesce(complete, pl.col("stop").shift(1))
    frame = frame.with_columns(first=pl.when(joined).then(together).otherwise(alone), joined=joined)
    meets = pl.col("joined").shift(-1, fill_value=False)
    stop = pl.when(meets).then(pl.col("first").shift(-1)).otherwise("stop")
    return frame.select(pl.col("first").cast(pl.UInt32), stop.cast(pl.UInt32).alias("stop"))


def _limits(line: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """Each anchor (at), and between which places its repetition lies: after any barrier before, up to the next one.

    Columns: at, low, high, and ends (whether no other anchor comes before `high`).
    """
    at, barriers = unit.at.cast(_INDEX), line.get_column("barrier").arg_true().cast(_INDEX)
    passed = count_up_to(barriers, at, equal=True).cast(_INDEX)
    frame = pl.DataFrame({"at": at, "barrier": _nth(barriers, passed), "passed": _nth(barriers, passed - 1)})
    following = pl.col("at").shift(-1, fill_value=line.height)
    frame = frame.with_columns(high=pl.min_horizontal(following, pl.col("barrier")))
    ends = (pl.col("high") < pl.col("at").shift(-1)).fill_null(value=True)
    return frame.select("at", "high", low=(pl.col("passed") + 1).fill_null(0), ends=ends)


def _sum_at(running: pl.Series, start: pl.Series, end: pl.Series) -> pl.Series:
    """Sums of what lies from each of `start` to `end`; null where that is not all in the line."""
    inside = (start >= 0) & (end < len(running))
    low, high = (side.set(~inside, None).cast(pl.UInt32) for side in (start, end))
    return between(running, low, high)


def _nth(places: pl.Series, number: pl.Series) -> pl.Series:
    """The places of those numbers; null where there are not so many."""
    inside = (number >= 0) & (number < len(places))
    return gathered(places, number.set(~inside, None).cast(pl.UInt32))


def _similar(line: pl.DataFrame, unit: Unit, gaps: pl.DataFrame) -> pl.DataFrame:
    """Those of `gaps` between repetitions that are repetitions without their anchor."""
    size = pl.col("stop") - pl.col("first")
    gaps = gaps.filter(size.is_between(unit.length * SMALLEST, unit.length * LARGEST))
    if gaps.is_empty():
        return gaps
    start = int(unit.at.slice(0, len(unit.at) - 1).filter(unit.alike).item(0))
    own = line.get_column("alike").slice(start, unit.length).unique()
    shared = held(line.select(known=pl.col("alike").is_in(own.implode())), gaps, "known")
    return gaps.filter(shared >= MOSTLY * (gaps.get_column("stop") - gaps.get_column("first")))


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
    if prefills < _FEWEST_PREFILLS or decodes < _DECODES * prefills or begun < _NEARLY_ALL * prefills:
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
    even = others.select((pl.col("blocks") <= blocks * pl.lit(_ALIKE)).mean()).item() >= _NEARLY_ALL
    most = others.select(pl.col("blocks").quantile(_MOST_DECODES) * _APART).item()
    if not even and rows.filter(large).select(pl.col("blocks").min()).item() < most:
        return None
    at = some(others).select(pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("at").explode()).to_series()
    known = {name: gathered(line.get_column(name), at).unique() for name in ("loose", "exact")}
    told = line.select(pl.col(name).is_in(codes.implode()) for name, codes in known.items())
    size = pl.col("stop").cast(pl.Int64) - pl.col("first")
    shared = rows.with_columns(held(told, rows, name) for name in known)
    shared = shared.select((pl.col("loose") >= HALF * size) & (pl.col("exact") <= HALF * size))
    found = large & shared.to_series()
    return found if found.sum() >= _NEARLY_ALL * int(large.sum()) else None
