"""Repetitions of a unit: where each begins and ends in a line of launches, odd ones and cut ones included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.iterations._units import between, pauses, stretches
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums, Unit

#: Most repetitions whose gaps are compared, and most launches in them.
_COMPARED: Final = 64
_COMPARED_LAUNCHES: Final = 1 << 19

#: What it counts that stretches of repetitions begin and end at a place; the longest gap counts 1, as do copies to the
#: device and optimizers. Less, since a recording may begin and end anywhere.
_ENDS: Final = 0.75

#: Least and greatest number of launches of a repetition, as multiples of the unit's.
_FEWEST: Final = 0.5
_MOST: Final = 1.5

#: Least share of the launches of what has no anchor that the unit has, too, for it to be an odd repetition.
_SIMILAR: Final = 0.75

#: Least share of what lies between two waits for the device that has the same number of repetitions, for these to be
#: one.
_SAME_NUMBER: Final = 0.9

_INDEX: Final = pl.Int64


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
    score = pl.sum_horizontal(gap, speak, pl.col("ends") * _ENDS)
    best = around.sort(score, "after", descending=[True, False])
    return Cut(*best.select("after", "head", "code", "nth", "last").row(0))


def _usual(line: pl.DataFrame, unit: Unit) -> pl.DataFrame:
    """The unit's launches after the anchor, up to the next one, in their usual order.

    Columns: those of :class:`Cut`, gap (usual time from the end of the call before to the start of its own, in ns),
    copies, input and optimizer. Launches are told by their codes and which of that code they are, since threads may
    swap some.
    """
    starts = unit.at.slice(0, len(unit.at) - 1).filter(unit.alike).cast(_INDEX)
    most = max(min(_COMPARED, _COMPARED_LAUNCHES // unit.length), 1)
    starts = starts.gather_every(-(-len(starts) // most)).alias("start")
    offsets = pl.DataFrame({"offset": pl.int_range(unit.length + 1, dtype=_INDEX, eager=True)})
    rows = starts.to_frame().join(offsets, how="cross", maintain_order="left_right")
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


def _ends(sums: Sums, unit: Unit, each: pl.DataFrame) -> pl.Series:
    """For each launch of the unit, the shares of its stretches that may end before it and that may begin with it."""
    alike = pl.concat([pl.Series([False]), unit.alike, pl.Series([False])])
    at = unit.at.cast(_INDEX)
    before, after = alike.slice(0, len(at)), alike.slice(1)
    running, places = sums.codes[unit.column], each.select("after", "head")
    most = max(min(_COMPARED, _COMPARED_LAUNCHES // unit.length), 1)
    last, first = (
        edge.gather_every(-(-len(edge) // most)).alias("at").to_frame().join(places, how="cross")
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
    gaps = edges.select(first=pl.col("stop").shift(1), stop="first").filter(pl.col("stop") > pl.col("first"))
    rows = pl.concat([edges, _similar(line, unit, gaps)]).sort("first")
    size = pl.col("stop").cast(_INDEX) - pl.col("first")
    first, stop = rows.get_column("first"), rows.get_column("stop")
    usual = between(sums.codes[unit.column], first, stop) == unit.word
    whole = between(sums.barriers, first, stop) == 0
    fits = (size >= unit.length * _FEWEST) & (size <= unit.length * _MOST)
    rows = rows.with_columns(usual=usual).filter((fits | pl.col("usual")) & whole)
    rows = rows.with_columns(stretches())
    return rows.filter(pl.col("usual").any().over("stretch"))


def between_waits(line: pl.DataFrame, rows: pl.DataFrame, waits: pl.Series) -> pl.DataFrame:
    """The repetitions with those between two `waits` as one, if nearly always equally many lie there; else `rows`.

    A loop that calls a short one and then waits repeats the whole of it.
    """
    waited = count_up_to(waits, gathered(line.get_column("since"), rows.get_column("first")), equal=False)
    together = rows.with_columns(waited=waited).group_by("stretch", "waited", maintain_order=True)
    sums = together.agg(
        pl.col("first", "phase").first(),
        pl.col("stop").last(),
        pl.col("usual").all(),
        pl.col("weight").sum(),
        many=pl.len().cast(_INDEX),
    )
    usual = int(sums.get_column("many").median() or 1)  # type: ignore[arg-type]
    alike = pl.col("many") == usual
    if usual < 2 or sums.select(alike.mean()).item() < _SAME_NUMBER:  # noqa: PLR2004 - one is no more than itself
        return rows
    near = pl.col("many").is_between(_FEWEST * usual, _MOST * usual)
    return sums.with_columns(usual=pl.col("usual") & alike).filter(near).select(rows.columns)


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
    usual, near = pl.col("at") + cut.after, pl.col("at") + int(cut.after * _MOST)
    next_one = pl.when(pl.col("next") <= pl.min_horizontal("high", near)).then("next")
    stop = pl.when(pl.col("whole_head") & (usual <= pl.col("high"))).then(usual).otherwise(next_one)
    # an odd one after which nothing else is launched has the rest
    rest = pl.when(pl.col("ends") & (pl.col("high") - pl.col("at") + tail <= _MOST * unit.length)).then("high")
    frame = frame.with_columns(stop=pl.coalesce(stop, rest, pl.min_horizontal(usual, "high")))
    usual, near = pl.col("at") - tail, pl.col("at") - int(tail * _MOST)
    low = pl.max_horizontal("low", pl.col("stop").shift(1, fill_value=0))
    complete = pl.when(pl.col("whole_tail") & (usual >= low)).then(usual)
    last_one = pl.when(pl.col("last") >= pl.max_horizontal(low, near)).then("last")
    # a segment about as long as the unit is one repetition: what is more in it belongs to the one before
    size = pl.col("at") - pl.col("at").shift(1)
    joined = (size >= _FEWEST * unit.length) & (size <= _MOST * unit.length) & (pl.col("low") <= pl.col("at").shift(1))
    joined = joined.fill_null(value=False)
    apart = pl.coalesce(complete, last_one, pl.max_horizontal(usual, low))
    together = pl.coalesce(complete, pl.col("stop").shift(1))
    frame = frame.with_columns(first=pl.when(joined).then(together).otherwise(apart), joined=joined)
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
    gaps = gaps.filter(size >= unit.length * _FEWEST, size <= unit.length * _MOST)
    if gaps.is_empty():
        return gaps
    start = int(unit.at.slice(0, len(unit.at) - 1).filter(unit.alike).item(0))
    own = line.get_column("alike").slice(start, unit.length).unique()
    at = gaps.with_row_index("gap").select("gap", at=pl.int_ranges("first", "stop", dtype=pl.UInt32)).explode("at")
    known = gathered(line.get_column("alike"), at.get_column("at")).is_in(own.implode())
    shared = at.select("gap", known=known).group_by("gap").agg(pl.col("known").mean()).sort("gap")
    return gaps.filter(shared.get_column("known") >= _SIMILAR)
