"""Iterations of programs without marks: what repeats in the sequence of launches of each process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.iterations._launch_line import launch_lines, with_begins, without_timed
from kanalyze.analyses.iterations._marks import BY_LAUNCHES, HALF, MANY, REPETITION
from kanalyze.analyses.iterations._repetitions import cut_of, repetitions, together, with_phases
from kanalyze.analyses.iterations._units import (
    COLUMNS,
    FEWEST,
    LEAST_LAUNCHES,
    LONG,
    SHORT,
    chance,
    held,
    holds,
    iteration_unit,
    near_unit,
    only_computes,
    waited_for,
)
from kanalyze.analyses.iterations._updates import between_updates
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.columns.lookup import gathered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kanalyze.analyses.iterations._repetitions import Cut
    from kanalyze.analyses.iterations._units import Unit
    from kanalyze.report import Report

#: Repetitions launched at least half of the device time of a process, or so much if they repeat what another process
#: does that has half.
_LIKE_ANOTHER: Final = 0.25

#: Least share of a line's weight in the repetitions of a loop, and most loops of one process.
_LOOP: Final = 0.1
_LOOPS: Final = 4

#: What all launches of a process weigh by one measure.
_WHOLE: Final = 1 << 40

#: Near repetitions tell more than units of which few are usual, if they cover so much of what these do.
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


class _Repeated(NamedTuple):
    """The repetitions of a process: one of the candidates.

    Attributes:
        rows: A row for each: first and stop (places in the line), loop, phase, usual.
        line: The line.
        share: Their share in the device time of the process, or in its launches and device time, whichever is less.
        unit: What the first loop repeats.
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
    told = {process: _of_process(line, cuts) for process, line in launch_lines(report).items()}
    every = {process: repeated for process, repeated in told.items() if repeated is not None}
    units = {repeated.unit for repeated in every.values() if repeated.share >= HALF}
    kept = [
        _timed(repeated).with_columns(process_id=pl.lit(process, dtype=pl.Int64), found_by=pl.lit(BY_LAUNCHES))
        for process, repeated in every.items()
        if repeated.share >= (_LIKE_ANOTHER if repeated.unit in units else HALF)
    ]
    return pl.concat([none, *(rows.select(list(_PERIODS)) for rows in kept)]).sort("process_id", "start")


def _of_process(launches: pl.DataFrame, cuts: _Cuts) -> _Repeated | None:
    """The repetitions of the first view of the launches in which at least half repeats, or of that with most."""
    best = None
    for line, part, most in _views(launches):
        repeated = _of_line(line, cuts)
        if repeated is None or repeated.rows.height > most:
            continue
        repeated = repeated._replace(share=repeated.share * part)
        if repeated.share >= HALF:
            return repeated
        best = repeated if best is None or repeated.share > best.share else best
    return best


def _views(launches: pl.DataFrame) -> Iterator[tuple[pl.DataFrame, float, int]]:
    """Launches of the device that the process keeps busy longest, and all; of each those of all threads, and of one.

    With the part of the device time, and the most repetitions. The others may do the same each time, so that the
    process turns to the first device for each of them. The thread is that which launched most of the work, since
    threads that do not wait for each other launch in any order. Then the same without what a library launched to time
    kernels.
    """
    main = _of_most_work(launches, "device")
    turns = int((main & ~main.shift(1, fill_value=False)).sum())
    devices = [] if main.all() else [(launches.filter(main), turns)]
    for own, most in [*devices, (launches, launches.height)]:
        rest = without_timed(own)
        for base in (own,) if rest.height == own.height else (own, rest):
            yield base, 1.0, most
            thread = _of_most_work(base, "thread_id")
            if not thread.all():
                yield base.filter(thread), int(base.filter(thread)["ns"].sum()) / max(int(base["ns"].sum()), 1), most


def _of_most_work(launches: pl.DataFrame, column: str) -> pl.Series:
    """Whether each launch is of the device, or thread, whose operations took longest."""
    sums = launches.group_by(column).agg(pl.col("ns").sum(), pl.len())
    most = sums.sort("ns", "len", column, descending=[True, True, False]).get_column(column).head(1)
    return launches.get_column(column).eq_missing(most)


def _of_line(launches: pl.DataFrame, cuts: _Cuts) -> _Repeated | None:
    """The candidate that tells most of one line; None where nothing repeats."""
    if launches.height < LEAST_LAUNCHES:
        return None
    line = with_begins(launches).with_columns(weight=_weight(launches), barrier=pl.lit(value=False))
    exact = _exactly(line, cuts)
    if exact is None:
        return _nearly(line)
    usual = int(exact.rows.get_column("usual").sum()) >= MANY * exact.rows.height
    # what has less than half of the updates, and lies among them, is a part of steps
    parts = int(held(line, exact.rows, "optimizer").sum()) < HALF * int(line.get_column("optimizer").sum())
    if usual and not parts and exact.share >= MANY:
        return exact  # nothing covers so much more
    near = _nearly(line)
    worth = exact.share / MANY if usual else exact.share * _AS_MUCH
    if near is not None and near.share >= (HALF if parts else worth):
        return near
    around = exact.rows.select(pl.col("first").min(), pl.col("stop").max())
    return None if parts and held(line, around, "optimizer").item() >= FEWEST else exact


def _exactly(line: pl.DataFrame, cuts: _Cuts) -> _Repeated | None:
    """The repetitions of units, of one loop after the other; None where they are few."""
    rest, loops, key = line.with_row_index("place"), list[pl.DataFrame](), None
    total, covered = float(line.get_column("weight").sum()), 0.0
    while len(loops) < _LOOPS and 1 - covered >= _LOOP:
        unit = iteration_unit(rest)
        rows = None if unit is None else _loop(rest, unit, total, cuts)
        share = 0.0 if rows is None else float(rows.get_column("weight").sum()) / total
        if unit is None or rows is None or share < _LOOP:
            break
        covered, key = covered + share, key or unit.key
        place, number = rest.get_column("place"), pl.lit(len(loops), dtype=pl.UInt32)
        first, last = gathered(place, rows.get_column("first")), gathered(place, rows.get_column("stop") - 1)
        loops.append(rows.select("usual", "phase", first=first, stop=last + 1, loop=number))
        rest = _without(rest, rows)
    if key is None or covered < _LIKE_ANOTHER:
        return None
    return _repeated(line, pl.concat(loops).sort("first"), covered, key)


def _nearly(line: pl.DataFrame) -> _Repeated | None:
    """Repetitions that launch nearly the same, or reach from update to update; None where there are none."""
    key: tuple[object, ...] = ()
    rows = None
    if line.get_column("optimizer").any():
        updates = between_updates(line)
        if updates is not None:
            key, rows = ("updates", updates[0]), updates[1]
    else:
        unit = near_unit(line)
        if unit is not None:
            key, rows = unit.key, repetitions(line, unit, cut_of(line, unit))
    if rows is None or rows.height < FEWEST:
        return None
    rows = with_phases(line, rows).with_columns(loop=pl.lit(0, dtype=pl.UInt32))
    return _repeated(line, rows, int(held(line, rows, "weight").sum()) / int(line.get_column("weight").sum()), key)


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


def _loop(line: pl.DataFrame, unit: Unit, total: float, cuts: _Cuts) -> pl.DataFrame | None:
    """The repetitions of a unit with their weight; None if they are too few, or may be due to chance."""
    if unit.length > 1 and chance(line, unit) > _CHANCE:
        return None
    key = (*unit.key, unit.anchor)
    if key not in cuts:
        cuts[key] = cut_of(line, unit)
    rows = with_phases(line, repetitions(line, unit, cuts[key]))
    rows = rows.with_columns(held(line, rows, "weight"))
    if unit.length == 1:
        # many programs launch a kernel several times in a row: only one long loop counts, or one that the host waits in
        waited = only_computes(line, unit) and waited_for(line, unit)
        least = FEWEST if waited or holds(line, unit, "graph") else LONG
        rows = rows.filter(pl.col("weight").sum().over("stretch") >= HALF * total, pl.len().over("stretch") >= least)
    alone = rows.height and not rows.get_column("phase").count()
    if alone and unit.length <= SHORT and not holds(line, unit, "optimizer"):
        rows = together(line, rows, paused=only_computes(line, unit))
    return rows if rows.height >= FEWEST else None


def _without(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The line with each stretch of repetitions as one launch that is like no other and has no weight: a barrier."""
    spans = rows.group_by("stretch").agg(pl.col("first").min(), pl.col("stop").max())
    steps = pl.zeros(line.height + 1, dtype=pl.Int32, eager=True).scatter(spans["first"], 1)
    ends = pl.zeros(line.height + 1, dtype=pl.Int32, eager=True).scatter(spans["stop"], 1)
    inside, first = ((steps - ends).cum_sum() > 0).head(line.height), (steps == 1).head(line.height)
    own = [pl.when(first).then(pl.col("place").hash()).otherwise(name).alias(name) for name in COLUMNS]
    nothing = pl.when(first).then(0).otherwise("weight").alias("weight")
    return line.with_columns(*own, nothing, barrier=pl.col("barrier") | first).filter(~inside | first)
