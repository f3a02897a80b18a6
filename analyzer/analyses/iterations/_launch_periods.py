"""Iterations of programs without marks: what repeats in the sequence of launches of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.iterations._iteration_unit import chance, iteration_unit, only_computes, waited_for, waits_of
from kanalyze.analyses.iterations._launch_line import launch_lines
from kanalyze.analyses.iterations._marks import BY_LAUNCHES, REPETITION
from kanalyze.analyses.iterations._near_repetitions import near_repetitions
from kanalyze.analyses.iterations._phases import with_phases
from kanalyze.analyses.iterations._repetitions import between_waits, cut_of, repetitions
from kanalyze.analyses.iterations._timed_launches import without_timed
from kanalyze.analyses.iterations._units import COLUMNS, LEAST_LAUNCHES, between, running, sums_of
from kanalyze.analyses.iterations._updates import between_updates
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from kanalyze.analyses.iterations._repetitions import Cut
    from kanalyze.analyses.iterations._units import Sums, Unit
    from kanalyze.report import Report

#: Names of the iterations of a process' further loops.
_NUMBERED: Final = pl.format(REPETITION + " {}", pl.col("loop") + 1)

#: Fewest repetitions, and least share of the device time of a process that they launched; of one that repeats what
#: another process does that has so much.
_FEWEST: Final = 4
_LEAST_SHARE: Final = 0.5
_LIKE_ANOTHER: Final = 0.25

#: Least share of a line's weight in the repetitions of the first loop, and of further ones.
_FIRST_LOOP: Final = 0.3
_LOOP: Final = 0.1

#: Most loops of one process.
_LOOPS: Final = 4

#: What all launches of a process weigh by one measure.
_WHOLE: Final = 1 << 40

#: Fewest launches of a single kernel that are a loop; of one that the host waits for each time.
_LONG_LOOP: Final = 64
_WAITED: Final = 8

#: Most launches of a repetition that may be a part of what lies between two waits for the device.
_SHORT: Final = 8

#: Repetitions that are nearly alike take the place of others if these have so many times as many launches each, or if
#: they have so many times the launches in all; with so much of the share at least. Of others that have so much of
#: theirs, not so many may be usual.
_SHORTER: Final = 1.5
_MORE: Final = 1.25
_AS_MUCH: Final = 0.95
_USUAL: Final = 0.8

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

#: Where repetitions of units begin that were found before, by what they and their anchors are: the same in all ranks.
_Cuts = dict[tuple[object, ...], "Cut"]


class _Line(NamedTuple):
    """The launches of a process, or of one of its threads."""

    report: Report
    process: int | None
    launches: pl.DataFrame
    cuts: _Cuts


class _Found(NamedTuple):
    """The repetitions of a process.

    Attributes:
        rows: A row for each: start, end, loop, phase, launches, usual.
        share: Their share in the device time of the process, or in its launches and device time, whichever is less.
        unit: The unit of the first loop.
    """

    rows: pl.DataFrame
    share: float
    unit: tuple[object, ...]


@once_per_process
def launch_periods(report: Report) -> pl.DataFrame:
    """Repetitions in the sequence of launches of each process, disjoint, sorted by process and start.

    Columns: process_id, start and end (of the first launch call, and of the last one), name, found_by, sequence (number
    of the unit that is repeated), phase (``prefill`` or ``decode``; null for others), launches (their number),
    usual (whether they are those of the unit).

    Definition: docs/definitions.md, section 4, "Iterations without marks".
    """
    none = pl.DataFrame(schema=_PERIODS)
    if operations(report).height < LEAST_LAUNCHES:
        return none
    cuts: _Cuts = {}
    every = {
        process: found
        for process, line in launch_lines(report).items()
        if (found := _of_devices(_Line(report, process, line, cuts))) is not None
    }
    repeated = {found.unit for found in every.values() if found.share >= _LEAST_SHARE}
    kept = [
        found.rows.with_columns(process_id=pl.lit(process, dtype=pl.Int64))
        for process, found in every.items()
        if found.share >= _LEAST_SHARE or (found.unit in repeated and found.share >= _LIKE_ANOTHER)
    ]
    if not kept:
        return none
    # prefills and decodes are sequences of their own
    rows = pl.concat(kept).with_columns(
        name=pl.coalesce("phase", pl.when(pl.col("loop") == 0).then(pl.lit(REPETITION)).otherwise(_NUMBERED)),
        found_by=pl.lit(BY_LAUNCHES),
        sequence=(pl.struct("process_id", "loop", "phase").rank("dense") - 1).cast(pl.UInt32),
    )
    return rows.select(list(_PERIODS)).sort("process_id", "start")


def _of_devices(line: _Line) -> _Found | None:
    """The repetitions of one process; of the device that it keeps busy longest, if it turns to that for each of them.

    The others may do the same each time.
    """
    sums = line.launches.group_by("device").agg(pl.col("ns").sum()).sort("ns", "device", descending=[True, False])
    if sums.height > 1:
        main = line.launches.get_column("device").eq_missing(sums.get_column("device").head(1))
        found = _of_process(line._replace(launches=line.launches.filter(main)))
        turns = int((main & ~main.shift(1, fill_value=False)).sum())
        if found is not None and found.share >= _LEAST_SHARE and turns >= found.rows.height:
            return found
    return _of_process(line)


def _of_process(line: _Line) -> _Found | None:
    """The repetitions of one process; None where nothing repeats.

    Where little repeats in the order of all calls, that of the thread which launched most of the work is looked at:
    threads that do not wait for each other launch in any order. Where that is little, too, what a library launched to
    time kernels is left out.
    """
    found = _of_threads(line)
    if found is not None and found.share >= _LEAST_SHARE:
        return found
    rest = without_timed(line.launches)
    if rest.height == line.launches.height:
        return found
    other = _of_threads(line._replace(launches=rest))
    return found if other is None or other.share < _LEAST_SHARE else other


def _of_threads(line: _Line) -> _Found | None:
    """The repetitions of the launches of all threads, or of those of the thread that launched most of the work."""
    found = _of_line(line)
    if found is not None and found.share >= _LEAST_SHARE:
        return found
    threads = line.launches.group_by("thread_id").agg(pl.col("ns").sum(), pl.len())
    if threads.height < 2:  # noqa: PLR2004 - one thread is all of them
        return found
    thread, ns = threads.sort("ns", "len", "thread_id", descending=True).select("thread_id", "ns").row(0)
    own = line.launches.filter(pl.col("thread_id").eq_missing(pl.lit(thread, pl.Int64)))
    alone = _of_line(line._replace(launches=own))
    if alone is None:
        return found
    share = alone.share * ns / max(int(threads.get_column("ns").sum()), 1)
    return alone._replace(share=share) if found is None or share > found.share else found


def _of_line(line: _Line) -> _Found | None:
    """The repetitions of one line, of one loop after the other; None where nothing repeats."""
    if line.launches.height < LEAST_LAUNCHES:
        return None
    whole = line.launches.with_columns(weight=_weight(line.launches), barrier=pl.lit(value=False))
    whole = rest = whole.with_row_index("place")
    total, covered, first_unit = float(whole.get_column("weight").sum()), 0.0, None
    loops: list[pl.DataFrame] = []
    while len(loops) < _LOOPS and 1 - covered >= _LOOP:
        sums = sums_of(rest)
        unit = iteration_unit(line.report, line.process, rest, sums)
        rows = None if unit is None else _loop(line, rest, sums, unit, total)
        share = 0.0 if rows is None else float(rows.get_column("weight").sum()) / total
        if unit is None or rows is None or share < (_LOOP if loops else _FIRST_LOOP):
            break
        covered += share
        first_unit = first_unit or unit.key
        places, number = rest.get_column("place"), pl.lit(len(loops), dtype=pl.UInt32)
        first, last = gathered(places, rows.get_column("first")), gathered(places, rows.get_column("stop") - 1)
        loops.append(rows.select("usual", "phase", first=first, stop=last + 1, loop=number))
        rest = _without(rest, rows)
    if first_unit is None or covered < _LIKE_ANOTHER:
        return _nearly(line, whole, None, updated=False)
    rows = pl.concat(loops)
    found, updated = _told(whole, rows, covered, first_unit), _updated(whole, rows)
    near = _nearly(line, whole, found, updated=updated)
    return near if near is not None or (not updated and _among_updates(whole, rows)) else found


def _told(line: pl.DataFrame, rows: pl.DataFrame, covered: float, unit: tuple[object, ...]) -> _Found:
    """Repetitions with their times, and the share that is theirs."""
    timed = _timed(line, rows.sort("first"))
    told = timed.select("start", "end", "loop", "phase", "usual", launches=pl.col("stop") - pl.col("first"))
    return _Found(told, min(covered, _time_share(line, timed)), unit)


def _updated(line: pl.DataFrame, rows: pl.DataFrame) -> bool:
    """Whether repetitions have the launches of an optimizer, as far as there are any."""
    updates = running(line.get_column("optimizer").cast(pl.UInt32))
    held = int(between(updates, rows.get_column("first"), rows.get_column("stop")).sum())
    return held >= _LEAST_SHARE * int(updates.item(-1))


def _among_updates(line: pl.DataFrame, rows: pl.DataFrame) -> bool:
    """Whether repetitions lie among updates: what has none itself is a part of steps there, whatever these are."""
    low, high = rows.select(pl.col("first").min(), pl.col("stop").max()).row(0)
    return int(line.get_column("optimizer").slice(low, high - low).sum()) >= _FEWEST


def _nearly(line: _Line, whole: pl.DataFrame, found: _Found | None, *, updated: bool) -> _Found | None:
    """Repetitions that launch nearly the same, where they tell more than what was `found`.

    That is so if those are mostly odd or cover less, and these are shorter or more; or if they are not `updated`.
    """
    usual = found is not None and int(found.rows.get_column("usual").sum()) >= _USUAL * found.rows.height
    if found is not None and updated and usual and found.share >= _AS_MUCH:
        return None  # nothing covers so much more
    sums, trains = sums_of(whole), whole.get_column("optimizer").any()
    nearly = between_updates(whole) if trains else near_repetitions(line.report, line.process, whole, sums)
    if nearly is None or nearly[1].height < _FEWEST:
        return None
    unit, rows = nearly
    rows = with_phases(whole, sums, rows).with_columns(loop=pl.lit(0, dtype=pl.UInt32))
    weight = int(between(sums.weight, rows.get_column("first"), rows.get_column("stop")).sum())
    near = _told(whole, rows, weight / int(sums.weight.item(-1)), unit)
    if found is None or (not updated and near.share >= _LEAST_SHARE):
        return near
    if (usual and found.share >= _AS_MUCH * near.share) or near.share < _AS_MUCH * found.share:
        return None
    own, every = found.rows.get_column("launches"), near.rows.get_column("launches")
    shorter = not trains and own.sort()[len(own) // 2] >= _SHORTER * every.sort()[len(every) // 2]
    return near if shorter or int(every.sum()) >= _MORE * int(own.sum()) else None


def _weight(line: pl.DataFrame) -> pl.Series:
    """Weight of each launch: half of it by its time on the device, half of it as one of all launches.

    One long copy of a checkpoint is not most of a program, nor are its many short kernels.
    """
    ns = pl.col("ns") / pl.col("ns").sum().clip(lower_bound=1)
    return line.select(((ns + 1 / pl.len()) * _WHOLE).ceil().cast(pl.Int64)).to_series()


def _time_share(line: pl.DataFrame, rows: pl.DataFrame) -> float:
    """The share of repetitions in the time of all operations, or in that of kernels and graphs, whichever is more."""
    running = line.select(pl.col("ns", "work_ns").cum_sum())
    running = pl.concat([running.clear(1).fill_null(0), running])
    own = running[rows.get_column("stop")] - running[rows.get_column("first")]
    shares = zip(own.sum().row(0), running.tail(1).row(0), strict=True)
    return max((part / every for part, every in shares if every), default=1.0)


def _loop(line: _Line, launches: pl.DataFrame, sums: Sums, unit: Unit, total: float) -> pl.DataFrame | None:
    """The repetitions of a unit with their weight; None if they are too few, or may be due to chance."""
    if unit.length > 1 and chance(launches, unit) > _CHANCE:
        return None
    key = (*unit.key, unit.anchor)
    if key not in line.cuts:
        line.cuts[key] = cut_of(launches, sums, unit)
    rows = with_phases(launches, sums, repetitions(launches, sums, unit, line.cuts[key]))
    rows = rows.with_columns(weight=between(sums.weight, rows.get_column("first"), rows.get_column("stop")))
    if unit.length == 1:
        # many programs launch a kernel several times in a row: only one long loop counts, or one that the host waits in
        waited = only_computes(launches, unit) and waited_for(line.report, line.process, launches, unit)
        least = _WAITED if waited else _LONG_LOOP
        rows = rows.filter(
            pl.col("weight").sum().over("stretch") >= _LEAST_SHARE * total, pl.len().over("stretch") >= least
        )
    if unit.length <= _SHORT and only_computes(launches, unit) and not rows.get_column("phase").count():
        grouped = between_waits(launches, rows, waits_of(line.report, line.process))
        rows = grouped if grouped.height >= _FEWEST else rows
    return rows if rows.height >= _FEWEST else None


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
    """Adds start and end to repetitions: of the first launch call, and of the last one."""
    since, until = line.get_column("since"), line.get_column("until").cum_max()
    start, last = (gathered(since, place) for place in (rows.get_column("first"), rows.get_column("stop") - 1))
    end = gathered(until, rows.get_column("stop") - 1)
    return rows.with_columns(start=start, end=end.zip_with(end > last, last + 1))
