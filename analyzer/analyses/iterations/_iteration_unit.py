"""Choice among repeated units of a line of launches: an iteration, and not a part or a multiple of one."""

from __future__ import annotations

from math import inf, lgamma, log, log1p
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.iterations._units import between, units
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums, Unit
    from kanalyze.report import Report

#: Least share of what the best unit covers, for a shorter one to be an iteration.
_INNER: Final = 0.6

#: What a unit's share counts: one that covers a bit less and is more exact is the better one.
_EXACTNESS: Final = {"exact": 1.1, "alike": 1.0, "loose": 0.9}

#: Units of which one is so many times as long as the other may be nested; of others, the better one counts.
_NESTED: Final = 1.5

#: Lengths of segments that differ by so little from the unit's are those of odd repetitions, and the share of launches
#: in such segments from which on a loop holds nothing else.
_ODD: Final = 0.1
_NOTHING_ELSE: Final = 0.99

#: Share of the weight between the first and the last of them, from which on units in which the host takes no part are
#: iterations.
_MOSTLY: Final = 0.6

#: Share of repetitions that wait for the device, for waiting to be part of a repetition.
_WAITING: Final = 0.9

#: Share of what lies between two runs of a unit that the unit has, too, for it to be more of the same: with shapes; by
#: names alone; and as what part of the unit's launches it counts then.
_SAME: Final = 0.8
_SAME_NAMES: Final = 0.9
_NAMED: Final = 0.3


def iteration_unit(report: Report, process: int | None, line: pl.DataFrame, sums: Sums) -> Unit | None:
    """The unit that is an iteration: the shortest in which the host takes part, or else the longest.

    Layers repeat within an iteration, and iterations within an epoch. The host takes part in an iteration: it copies
    data or waits for results. A unit that repeats without anything in between is one, too, and so is one with which
    only more of the same alternates (evaluation).
    """
    levels = _levels(units(line, sums))
    for number, unit in enumerate(levels):
        longer = levels[number + 1 :]
        if not _updates(line, unit) and any(_updates(line, one) for one in longer):
            continue
        if unit.length == 1 and not _alone(unit):
            continue
        if longer and _more_of_the_same(line, unit, longer[0]):
            return unit
        if _updates(line, unit) or _alone(unit) or _host_takes_part(report, process, line, unit):
            return unit
    others = [unit for unit in levels[-1:] if _updates(line, unit) or not line.get_column("optimizer").any()]
    return next((unit for unit in others if _spans(sums, unit) >= _MOSTLY), None)


def _levels(found: list[Unit]) -> list[Unit]:
    """The best of the units of each length, the shortest first."""
    most = max((unit.share for unit in found), default=0.0)
    worth = {id(unit): unit.share * _EXACTNESS[unit.column] for unit in found}
    levels: list[Unit] = []
    for unit in sorted(found, key=lambda one: (-worth[id(one)], one.length)):
        if unit.share >= most * _INNER and all(_apart(unit, one) for one in levels):
            levels.append(unit)
    return sorted(levels, key=lambda one: one.length)


def _apart(unit: Unit, other: Unit) -> bool:
    short, long = sorted((unit.length, other.length))
    return long >= _NESTED * short


def _updates(line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the unit has kernels of an optimizer."""
    return bool(line.get_column("optimizer").slice(_example(unit), unit.length).any())


def _example(unit: Unit) -> int:
    """Place of an anchor whose segment is the unit, in the middle of the line."""
    places = unit.at.slice(0, len(unit.at) - 1).filter(unit.alike)
    return int(places.item(len(places) // 2))


def _alone(unit: Unit) -> bool:
    """Whether next to nothing but the unit lies between its first and its last anchor."""
    size = (unit.at.slice(1) - unit.at.slice(0, len(unit.at) - 1)).cast(pl.Int64)
    near = (size - unit.length).abs() <= _ODD * unit.length
    return int(size.filter(near).sum()) >= _NOTHING_ELSE * int(size.sum())


def _spans(sums: Sums, unit: Unit) -> float:
    """The share of the weight between the first and the last anchor that lies in segments that are the unit."""
    start, end = unit.at.slice(0, len(unit.at) - 1), unit.at.slice(1)
    weight = between(sums.weight, start, end)
    return float(weight.filter(unit.alike).sum()) / float(weight.sum())


def _host_takes_part(report: Report, process: int | None, line: pl.DataFrame, unit: Unit) -> bool:
    """Whether each repetition copies between host and device, or waits for the device."""
    copies = line.get_column("copies").slice(_example(unit), unit.length).any()
    return bool(copies) or waited_for(report, process, line, unit)


def waited_for(report: Report, process: int | None, line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the host waits for the device in nearly each repetition."""
    starts = waits_of(report, process)
    if len(starts) < unit.alike.sum():
        return False
    before = count_up_to(starts, gathered(line.get_column("since"), unit.at), equal=False).cast(pl.Int64)
    waited = (before.slice(1) > before.slice(0, len(before) - 1)).filter(unit.alike)
    return int(waited.sum()) >= _WAITING * len(waited)


def waits_of(report: Report, process: int | None) -> pl.Series:
    """When the process began to wait for the device, sorted."""
    calls = report.kind("api").select("process_id", "name", "start_ns")
    waits = names_that(report, lambda name: bucket_of(name) == "sync")
    own = pl.col("process_id").eq_missing(process) & pl.col("name").is_in(waits)
    return calls.filter(own).get_column("start_ns").sort()


def only_computes(line: pl.DataFrame, unit: Unit) -> bool:
    """Whether the unit neither copies between host and device nor updates parameters."""
    return not line.slice(_example(unit), unit.length).select(pl.any_horizontal("copies", "optimizer").any()).item()


def _more_of_the_same(line: pl.DataFrame, unit: Unit, longer: Unit) -> bool:
    """Whether what else is in a longer unit consists of what this one has: an evaluation between epochs.

    An evaluation of other shapes has the same names, but so has a little of whatever else a program launches.
    """
    for column, least, same in (("exact", _ODD, _SAME), ("alike", _NAMED, _SAME_NAMES)):
        own, every = (_codes(line, one, column).value_counts(name="count") for one in (unit, longer))
        both = every.join(own.rename({"count": "own"}), on=column, how="left")
        times = both.select((pl.col("count") // pl.col("own")).min()).item() or 0
        rest = both.with_columns(more=pl.col("count") - pl.col("own").fill_null(0) * times)
        more = int(rest.get_column("more").sum())
        if more >= least * unit.length and int(rest.drop_nulls("own").get_column("more").sum()) >= same * more:
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
    against = share * (log(share) - drawn) + ((1 - share) * (log1p(-share) - log1p(-_exp(drawn))) if share < 1 else 0.0)
    return _exp(min(log(max(len(every), 1)) - tried * against, 0.0))


def _exp(power: float) -> float:
    return 0.0 if power == -inf else 2.718281828459045**power
