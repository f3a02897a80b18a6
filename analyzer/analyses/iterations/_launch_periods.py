"""Iterations of programs without marks: what repeats in the sequence of launches of each process."""

from __future__ import annotations

from math import inf, lgamma, log, log1p
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._call_kinds import bucket_of, names_that
from kanalyze.analyses.iterations._launch_line import launch_lines
from kanalyze.analyses.iterations._phases import with_phases
from kanalyze.analyses.iterations._repetitions import cut_of, repetitions
from kanalyze.analyses.iterations._units import COLUMNS, between, sums_of, units
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import count_up_to, gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._units import Sums, Unit
    from kanalyze.report import Report

#: How these iterations were found.
FOUND_BY: Final = "launches"

#: What one is called; those of a process' further loops have the loop's number.
REPETITION: Final = "repetition"
_NUMBERED: Final = pl.format(REPETITION + " {}", pl.col("sequence") + 1)

#: Fewest repetitions, and least share of the device time of a process that they launched.
_FEWEST: Final = 4
_LEAST_SHARE: Final = 0.5

#: Least share of device time in which a unit recurs exactly, for it to be one of several loops.
_LOOP: Final = 0.1
_FIRST_LOOP: Final = 0.3

#: Most loops of one process.
_LOOPS: Final = 4

#: What all launches of a process weigh by one measure.
_WHOLE: Final = 1 << 40

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

#: Fewest launches of a single kernel that are a loop.
_LONG_LOOP: Final = 64

#: Share of repetitions that wait for the device, for waiting to be part of a repetition.
_WAITING: Final = 0.9

#: Share of what lies between two runs of a unit that the unit has, too, for it to be more of the same: with shapes; by
#: names alone; and as what part of the unit's launches it counts then.
_SAME: Final = 0.8
_SAME_NAMES: Final = 0.9
_NAMED: Final = 0.3

#: Greatest chance that launches drawn at random repeat as often as what was found.
_CHANCE: Final = 1e-6

_PERIODS: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "found_by": pl.String,
    "sequence": pl.UInt32,
    "phase": pl.String,
    "launches": pl.UInt32,
    "usual": pl.Boolean,
}


@once_per_process
def launch_periods(report: Report) -> pl.DataFrame:
    """Repetitions in the sequence of launches of each process, disjoint, sorted by process and start.

    Columns: process_id, start and end (a repetition lasts from its first launch call to the first one of the next),
    name, found_by, sequence (number of the unit that is repeated), phase (``prefill`` or ``decode``; null for others),
    launches (their number), usual (whether they are those of the unit).

    Definition: docs/definitions.md, section 4, "Iterations without marks".
    """
    found = [pl.DataFrame(schema=_PERIODS)]
    sequences = 0
    for process, line in launch_lines(report).items():
        own = _of_process(report, process, line)
        if own is not None:
            found.append(own.with_columns(pl.col("sequence") + sequences))
            sequences += own.get_column("sequence").n_unique()
    return pl.concat(found).sort("process_id", "start")


def _of_process(report: Report, process: int | None, line: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions of one process, of one loop after the other; None where nothing repeats."""
    line = line.with_columns(weight=_weight(line), barrier=pl.lit(value=False)).with_row_index("place")
    total, covered, rest = float(line.get_column("weight").sum()), 0.0, line
    found: list[pl.DataFrame] = []
    while len(found) < _LOOPS and 1 - covered >= _LOOP:
        rows, share = _loop(report, process, rest, total)
        if rows.is_empty() or share < (_LOOP if found else _FIRST_LOOP):
            break
        covered += share
        places, number = rest.get_column("place"), pl.lit(len(found), dtype=pl.UInt32)
        first, last = gathered(places, rows.get_column("first")), gathered(places, rows.get_column("stop") - 1)
        found.append(rows.select("usual", "phase", first=first, stop=last + 1, sequence=number))
        rest = _without(rest, rows)
    if covered < _LEAST_SHARE or _time_share(line, pl.concat(found)) < _LEAST_SHARE:
        return None
    timed = _timed(line, pl.concat(found).sort("first"))
    # prefills and decodes are sequences of their own
    timed = timed.with_columns(sequence=pl.struct("sequence", "phase").rank("dense") - 1)
    return timed.select(
        process_id=pl.lit(process, dtype=pl.Int64),
        start="start",
        end="end",
        name=pl.coalesce("phase", pl.when(pl.col("sequence") == 0).then(pl.lit(REPETITION)).otherwise(_NUMBERED)),
        found_by=pl.lit(FOUND_BY),
        sequence="sequence",
        phase="phase",
        launches=pl.col("stop") - pl.col("first"),
        usual="usual",
    )


def _weight(line: pl.DataFrame) -> pl.Series:
    """What each launch counts: half of it by its time on the device, half of it as one of all launches.

    One long copy of a checkpoint is not most of a program, nor are its many short kernels.
    """
    ns = pl.col("ns") / pl.col("ns").sum().clip(lower_bound=1)
    return line.select(((ns + 1 / pl.len()) * _WHOLE).ceil().cast(pl.Int64)).to_series()


def _time_share(line: pl.DataFrame, rows: pl.DataFrame) -> float:
    """The share of repetitions in the time of all operations, or in that of kernels and graphs, whichever is more."""
    running = line.select(pl.col("ns", "work_ns").cum_sum())
    running = pl.concat([running.clear(1).fill_null(0), running])
    first, last = (running[rows.get_column(side)] for side in ("first", "stop"))
    whole = running.tail(1).row(0)
    own = last.sum().row(0), first.sum().row(0)
    return max(
        (float(end - start) / every for end, start, every in zip(*own, whole, strict=True) if every), default=1.0
    )


def _loop(report: Report, process: int | None, line: pl.DataFrame, total: float) -> tuple[pl.DataFrame, float]:
    """The repetitions of the best unit of a line, and their share of the weight of the process; 0 for none."""
    sums = sums_of(line)
    unit = _iteration(report, process, line, sums)
    if unit is None:
        return line.clear(), 0.0
    if unit.length > 1 and _chance(line, unit) > _CHANCE:
        return line.clear(), 0.0
    rows = with_phases(line, sums, repetitions(line, sums, unit, cut_of(line, sums, unit)))
    rows = rows.with_columns(weight=between(sums.weight, rows.get_column("first"), rows.get_column("stop")))
    if unit.length == 1:
        # many programs launch a kernel several times in a row: only one long loop counts, and that as most of the work
        rows = rows.filter(
            pl.col("weight").sum().over("stretch") >= _LEAST_SHARE * total, pl.len().over("stretch") >= _LONG_LOOP
        )
    enough = rows.height >= _FEWEST
    return (rows if enough else rows.clear()), float(rows.get_column("weight").sum()) / total


def _without(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The line with each stretch of repetitions as one launch that is like no other and has no weight: a barrier."""
    begins = pl.Series([0], dtype=pl.Int32).new_from_index(0, line.height + 1)
    spans = rows.group_by("stretch").agg(pl.col("first").min(), pl.col("stop").max())
    steps = begins.scatter(spans["first"], 1)
    depth = (steps + begins.scatter(spans["stop"], -1)).cum_sum().slice(0, line.height)
    first = steps.slice(0, line.height) == 1
    own = [pl.when("_first").then(pl.col("place").hash()).otherwise(name).alias(name) for name in COLUMNS]
    marked = line.with_columns(_first=first, _kept=(depth == 0) | first).filter("_kept")
    nothing = pl.when("_first").then(0).otherwise("weight").alias("weight")
    return marked.with_columns(*own, nothing, barrier=pl.col("barrier") | pl.col("_first")).drop("_first", "_kept")


def _timed(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds start and end to repetitions.

    Each lasts until the next one begins. After the last one of a stretch comes as much time as usually lies between
    two, but not the next launch.
    """
    since, until = line.get_column("since"), line.get_column("until").cum_max()
    rows = rows.with_columns(
        start=gathered(since, rows.get_column("first")),
        done=gathered(until, rows.get_column("stop") - 1),
        then=pl.concat([since, pl.Series([None], dtype=pl.Int64)])[rows.get_column("stop")],
        adjoins=(pl.col("stop") == pl.col("first").shift(-1)).fill_null(value=False),
    )
    pause = rows.filter("adjoins").select((pl.col("then") - pl.col("done")).clip(lower_bound=0).median()).item() or 0
    last = pl.min_horizontal(pl.col("done") + int(pause), pl.col("then"))
    return rows.with_columns(end=pl.when("adjoins").then("then").otherwise(last))


def _iteration(report: Report, process: int | None, line: pl.DataFrame, sums: Sums) -> Unit | None:
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
    if line.get_column("copies").slice(_example(unit), unit.length).any():
        return True
    calls = report.kind("api").select("process_id", "name", "start_ns")
    waits = names_that(report, lambda name: bucket_of(name) == "sync")
    own = pl.col("process_id").eq_missing(process) & pl.col("name").is_in(waits)
    starts = calls.filter(own).get_column("start_ns").sort()
    if len(starts) < unit.alike.sum():
        return False
    before = count_up_to(starts, gathered(line.get_column("since"), unit.at), equal=False).cast(pl.Int64)
    waited = (before.slice(1) > before.slice(0, len(before) - 1)).filter(unit.alike)
    return int(waited.sum()) >= _WAITING * len(waited)


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


def _chance(line: pl.DataFrame, unit: Unit) -> float:
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
