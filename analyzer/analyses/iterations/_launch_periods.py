"""Iterations of programs without marks: what repeats in the sequence of launches of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.iterations._launch_line import launch_lines, without_timed
from kanalyze.analyses.iterations._marks import BY_LAUNCHES, REPETITION
from kanalyze.analyses.iterations._near_repetitions import between_updates, near_repetitions
from kanalyze.analyses.iterations._repetitions import cut_of, repetitions, together, with_phases
from kanalyze.analyses.iterations._units import (
    COLUMNS,
    FEWEST,
    HALF,
    LEAST_LAUNCHES,
    chance,
    held,
    holds,
    iteration_unit,
    only_computes,
    sums_of,
    waited_for,
    waits_of,
)
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kanalyze.analyses.iterations._repetitions import Cut
    from kanalyze.analyses.iterations._units import Sums, Unit
    from kanalyze.report import Report

#: Repetitions launched at least half of the device time of a process, or so much if they repeat what another process
#: does that has half.
_LIKE_ANOTHER: Final = 0.25

#: Least share of a line's weight in the repetitions of a loop, and most loops of one process.
_LOOP: Final = 0.1
_LOOPS: Final = 4

#: What all launches of a process weigh by one measure.
_WHOLE: Final = 1 << 40

#: Fewest launches of a single kernel that are a loop, if the host does not wait for it each time.
_LONG_LOOP: Final = 64

#: Most launches of a repetition that may be a part of what lies between two waits for the device.
_SHORT: Final = 8

#: Units are usual if so many of their repetitions launch the same: then others tell more if these cover less than so
#: much of what they do; else others tell more if they cover nearly as much.
_USUAL: Final = 0.8
_AS_MUCH: Final = 0.95

#: Greatest chance that launches drawn at random repeat as often as what was found.
_CHANCE: Final = 1e-6

_PERIODS: Final = {
    "process_id": pl.Int64,
    "start": pl.Int64,
    "end": pl.Int64,
    "name": pl.String,
    "found_by": pl.String,
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


class _Repeated(NamedTuple):
    """The repetitions of a process.

    Attributes:
        rows: A row for each: first and stop (places in the line), loop, phase, usual.
        line: The line.
        share: Their share in the device time of the process, or in its launches and device time, whichever is less.
        unit: The unit of the first loop.
    """

    rows: pl.DataFrame
    line: pl.DataFrame
    share: float
    unit: tuple[object, ...]


@once_per_process
def launch_periods(report: Report) -> pl.DataFrame:
    """Repetitions in the sequence of launches of each process, disjoint, sorted by process and start.

    Columns: process_id, start and end (of the first launch call, and of the last one), name, found_by, phase
    (``prefill`` or ``decode``; null for others), launches (their number), usual (whether they are those of the unit).

    Definition: docs/definitions.md, section 4, "Iterations without marks".
    """
    none = pl.DataFrame(schema=_PERIODS)
    if operations(report).height < LEAST_LAUNCHES:
        return none
    cuts: _Cuts = {}
    lines = launch_lines(report).items()
    told = {process: _of_process(_Line(report, process, line, cuts)) for process, line in lines}
    every = {process: repeated for process, repeated in told.items() if repeated is not None}
    units = {repeated.unit for repeated in every.values() if repeated.share >= HALF}
    kept = [
        _timed(repeated).with_columns(process_id=pl.lit(process, dtype=pl.Int64), found_by=pl.lit(BY_LAUNCHES))
        for process, repeated in every.items()
        if repeated.share >= HALF or (repeated.unit in units and repeated.share >= _LIKE_ANOTHER)
    ]
    return pl.concat([none, *(rows.select(list(_PERIODS)) for rows in kept)]).sort("process_id", "start")


def _of_process(line: _Line) -> _Repeated | None:
    """The repetitions of one process; of the device that it keeps busy longest, if it turns to that for each of them.

    The others may do the same each time.
    """
    main = _of_most_work(line.launches, "device")
    if not main.all():
        repeated = _of_views(line._replace(launches=line.launches.filter(main)))
        turns = int((main & ~main.shift(1, fill_value=False)).sum())
        if repeated is not None and repeated.share >= HALF and turns >= repeated.rows.height:
            return repeated
    return _of_views(line)


def _of_views(line: _Line) -> _Repeated | None:
    """The repetitions of the first view of the launches in which at least half repeats, or of that with most."""
    best = None
    for launches, part in _views(line.launches):
        repeated = _of_line(line._replace(launches=launches))
        if repeated is None:
            continue
        repeated = repeated._replace(share=repeated.share * part)
        if repeated.share >= HALF:
            return repeated
        best = repeated if best is None or repeated.share > best.share else best
    return best


def _views(launches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, float]]:
    """All launches, and those of the thread which launched most of the work, with their part of the device time.

    Threads that do not wait for each other launch in any order. Then the same without what a library launched to time
    kernels.
    """
    for number in range(2):
        base = without_timed(launches) if number else launches
        if number and base.height == launches.height:
            return
        yield base, 1.0
        main = _of_most_work(base, "thread_id")
        if not main.all():
            own = base.filter(main)
            yield own, int(own.get_column("ns").sum()) / max(int(base.get_column("ns").sum()), 1)


def _of_most_work(launches: pl.DataFrame, column: str) -> pl.Series:
    """Whether each launch is of the device, or thread, whose operations took longest."""
    sums = launches.group_by(column).agg(pl.col("ns").sum(), pl.len())
    most = sums.sort("ns", "len", column, descending=[True, True, False]).get_column(column).head(1)
    return launches.get_column(column).eq_missing(most)


def _of_line(line: _Line) -> _Repeated | None:
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
        if unit is None or rows is None or share < _LOOP:
            break
        covered += share
        first_unit = first_unit or unit.key
        places, number = rest.get_column("place"), pl.lit(len(loops), dtype=pl.UInt32)
        first, last = gathered(places, rows.get_column("first")), gathered(places, rows.get_column("stop") - 1)
        loops.append(rows.select("usual", "phase", first=first, stop=last + 1, loop=number))
        rest = _without(rest, rows)
    if first_unit is None or covered < _LIKE_ANOTHER:
        return _nearly(line, whole)
    exact = _repeated(whole, pl.concat(loops).sort("first"), covered, first_unit)
    # what has less than half of the updates, and lies among them, is a part of steps
    parts = int(held(whole, exact.rows, "optimizer").sum()) < HALF * int(whole.get_column("optimizer").sum())
    usual = not parts and int(exact.rows.get_column("usual").sum()) >= _USUAL * exact.rows.height
    if usual and exact.share >= _USUAL:
        return exact  # nothing covers so much more
    near = _nearly(line, whole)
    least = HALF if parts else _AS_MUCH * exact.share
    if near is not None and near.share >= least and not (usual and exact.share >= _USUAL * near.share):
        return near
    around = exact.rows.select(first=pl.col("first").min(), stop=pl.col("stop").max())
    return None if parts and held(whole, around, "optimizer").item() >= FEWEST else exact


def _nearly(line: _Line, whole: pl.DataFrame) -> _Repeated | None:
    """Repetitions that launch nearly the same; None where there are none."""
    trains = whole.get_column("optimizer").any()
    nearly = between_updates(whole) if trains else near_repetitions(line.report, line.process, whole)
    if nearly is None or nearly[1].height < FEWEST:
        return None
    unit, rows = nearly
    rows = with_phases(whole, rows).with_columns(loop=pl.lit(0, dtype=pl.UInt32))
    return _repeated(whole, rows, int(held(whole, rows, "weight").sum()) / int(whole.get_column("weight").sum()), unit)


def _repeated(line: pl.DataFrame, rows: pl.DataFrame, covered: float, unit: tuple[object, ...]) -> _Repeated:
    """Repetitions with the share that is theirs, be it of the time of all operations or of kernels and graphs."""
    times = [(int(held(line, rows, name).sum()), int(line.get_column(name).sum())) for name in ("ns", "work_ns")]
    share = max((part / every for part, every in times if every), default=1.0)
    return _Repeated(rows, line, min(covered, share), unit)


def _timed(repeated: _Repeated) -> pl.DataFrame:
    """The repetitions with start, end (of the last launch call), launches and name; the heaviest loop has no number."""
    line, rows = repeated.line, repeated.rows
    since, until = line.get_column("since"), line.get_column("until").cum_max()
    start, last = (gathered(since, place) for place in (rows.get_column("first"), rows.get_column("stop") - 1))
    end = gathered(until, rows.get_column("stop") - 1)
    rows = rows.with_columns(
        start=start, end=end.zip_with(end > last, last + 1), launches=pl.col("stop") - pl.col("first")
    )
    rows = rows.with_columns(held(line, rows, name) for name in ("work_ns", "ns"))
    loops = rows.filter(pl.col("phase").is_null()).group_by("loop").agg(pl.col("work_ns", "ns").sum())
    loops = loops.sort("work_ns", "ns", "loop", descending=[True, True, False]).with_row_index("place", offset=1)
    numbered = pl.when(pl.col("place") > 1).then(pl.format(REPETITION + " {}", "place")).otherwise(pl.lit(REPETITION))
    named = rows.join(loops.select("loop", name=numbered), on="loop", how="left", maintain_order="left")
    # prefills and decodes are sequences of their own
    return named.with_columns(name=pl.coalesce("phase", "name"))


def _weight(line: pl.DataFrame) -> pl.Series:
    """Weight of each launch: half of it by its time on the device, half of it as one of all launches.

    One long copy of a checkpoint is not most of a program, nor are its many short kernels.
    """
    ns = pl.col("ns") / pl.col("ns").sum().clip(lower_bound=1)
    return line.select(((ns + 1 / pl.len()) * _WHOLE).ceil().cast(pl.Int64)).to_series()


def _loop(line: _Line, launches: pl.DataFrame, sums: Sums, unit: Unit, total: float) -> pl.DataFrame | None:
    """The repetitions of a unit with their weight; None if they are too few, or may be due to chance."""
    if unit.length > 1 and chance(launches, unit) > _CHANCE:
        return None
    key = (*unit.key, unit.anchor)
    if key not in line.cuts:
        line.cuts[key] = cut_of(launches, sums, unit)
    rows = with_phases(launches, repetitions(launches, sums, unit, line.cuts[key]))
    rows = rows.with_columns(held(launches, rows, "weight"))
    if unit.length == 1:
        # many programs launch a kernel several times in a row: only one long loop counts, or one that the host waits in
        waited = only_computes(launches, unit) and waited_for(line.report, line.process, launches, unit)
        least = FEWEST if waited or holds(launches, unit, "graph") else _LONG_LOOP
        rows = rows.filter(pl.col("weight").sum().over("stretch") >= HALF * total, pl.len().over("stretch") >= least)
    alone = rows.height and not rows.get_column("phase").count()
    if alone and unit.length <= _SHORT and not holds(launches, unit, "optimizer"):
        waits = waits_of(line.report, line.process, copying=True)
        rows = together(launches, rows, waits, paused=only_computes(launches, unit))
    return rows if rows.height >= FEWEST else None


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
