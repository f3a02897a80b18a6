"""Iterations of programs without marks: what repeats in the sequence of launches of each process.

Beside units (:mod:`kanalyze.analyses.iterations._units`) where each repetition begins and ends, odd ones and cut ones
included. Repetitions in runs, each of which begins with the same kernels in larger shapes, are prefills and decodes.
"""

import re
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations, with_facts
from kanalyze.analyses.host._call_kinds import names_that
from kanalyze.analyses.iterations import _marks, _units
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.columns import count_up_to, gathered, having, nearest_place
from kanalyze.intervals import AFTER_ALL
from kanalyze.report import Report

#: Repetitions launched at least half of the device time of a process, or so much if they repeat what another process
#: does that has half.
_LIKE_ANOTHER: Final = 0.25

#: Least share of a line's weight in the repetitions of a loop.
_LOOP: Final = 0.1

#: What all launches of a process weigh by one measure.
_WHOLE: Final = 1 << 40

#: What the share of a candidate is of: the line's weight, and the time of all operations, or of kernels and graphs.
_MEASURES: Final = ("weight", "ns", "work_ns")

#: What speaks for a repetition that begins with a launch, beside the gap before it.
_SPEAK: Final = ("fresh", "updated", "returned")

PREFILL: Final = "prefill"
DECODE: Final = "decode"

#: Least blocks and kernel time of a prefill as multiples of the usual.
LARGE: Final = 1.3

#: Fewest prefills, with twice as many decodes.
_FEWEST_PREFILLS: Final = 3

_PERIODS: Final = {
    **dict.fromkeys(("process_id", "start", "end"), pl.Int64),
    **dict.fromkeys(("name", "found_by", "phase"), pl.String),
    "launches": pl.UInt32,
    "usual": pl.Boolean,
}


#: Where repetitions of units begin that were found before, by what they and their anchors are: the same in all ranks.
_Cuts = dict[tuple[object, ...], tuple[str, int | None, int]]


class _Candidate(NamedTuple):
    """Repetitions that a line may have, however they were found; the candidate of most `worth` is what repeats.

    Of the rows (first and stop, places in the `line`; loop, phase, usual) `share` is the part in the device time of the
    process, or in its launches and device time, whichever is less; `unit` is what the first loop repeats.
    """

    rows: pl.DataFrame
    line: pl.DataFrame
    share: float
    unit: tuple[object, ...]
    worth: float


@analysis.once_per_process
def launch_periods(report: Report) -> pl.DataFrame:
    """Repetitions in the sequence of launches of each process, disjoint, sorted by process and start.

    Columns: process_id, start and end (of the first launch call, and of the last one), name, found_by, phase
    (``prefill`` or ``decode``; null for others), launches (their number), usual (whether they are those of the unit).

    Definition: docs/definitions.md, section 4, "Iterations without marks".
    """
    periods, cuts = [pl.DataFrame(schema=_PERIODS)], _Cuts()
    lines = {}
    for key, line in _units.launch_lines(report).items():
        if line.get_column("loose").unique_counts().max() in (None, 1, 2):  # nothing repeats
            continue
        placed = line.with_columns(process_id=pl.lit(key, dtype=pl.Int64), at="since")
        lines[key] = _marks.without_trials(report, placed).drop("process_id", "at")
    timed = timed_runs(report)  # a program may do so in each iteration
    best = {key: _of_process((_untimed(line, timed, key), line), cuts) for key, line in lines.items()}
    units = {candidate.unit for candidate in best.values() if candidate and candidate.share >= _marks.HALF}
    for process, candidate in best.items():
        if candidate and candidate.share >= (_LIKE_ANOTHER if candidate.unit in units else _marks.HALF):
            constants = {"process_id": pl.lit(process, pl.Int64), "found_by": pl.lit(_marks.BY_LAUNCHES)}
            periods.append(_timed(candidate).with_columns(**constants).select([*_PERIODS]))
    return pl.concat(periods).sort("process_id", "start")


def _untimed(launches: pl.DataFrame, runs: pl.DataFrame, process: int | None) -> pl.DataFrame:
    """The launches of a process without the fills that clear caches in :func:`timed_runs`, and the few after each."""
    begun = launches.get_column("since").is_in(runs.filter(_marks.of_process(process)).get_column("start").implode())
    clears = pl.col("exact").is_in(launches.filter(begun).get_column("exact").implode())
    timed = (pl.len().over(clears.cum_sum()) <= MOST_TIMED + 1) & (clears.cum_sum() > 0)
    return launches.filter(~(clears | timed)) if begun.any() else launches


def _of_process(lines: tuple[pl.DataFrame, pl.DataFrame], cuts: _Cuts) -> _Candidate | None:
    """The repetitions of the first view of the first of the `lines` of launches in which at least half repeats.

    Views are the device that is kept busy longest (the others may do the same each time, so that the process turns to
    it for each of them), all launches, and the thread that launched most work: threads may not wait for each other.
    """
    for launches in lines if lines[0] is not lines[1] else lines[:1]:
        device, thread = (_of_most_work(launches, column) for column in ("device", "thread_id"))
        turns = int((device & ~device.shift(1, fill_value=False)).sum())
        for chosen, most in ((device, turns), (None, launches.height), (thread, launches.height)):
            line = launches if chosen is None else launches.filter(chosen)
            if chosen is None or not chosen.all():
                candidate = _of_line(line, cuts)
                part = int(line["ns"].sum()) / max(int(launches["ns"].sum()), 1) if chosen is thread else 1.0
                if candidate and candidate.rows.height <= most and candidate.share * part >= _LIKE_ANOTHER:
                    return candidate._replace(share=candidate.share * part)
    return None


def _of_most_work(launches: pl.DataFrame, column: str) -> pl.Series:
    """Whether each launch is of the device, or thread, whose operations took longest."""
    sums = launches.group_by(column).agg(pl.col("ns").sum(), pl.len())
    most = sums.sort("ns", "len", column, descending=[True, True, False]).get_column(column).head(1)
    return launches.get_column(column).eq_missing(most)


def _of_line(launches: pl.DataFrame, cuts: _Cuts) -> _Candidate | None:
    """The candidate of most worth of one line; None where nothing repeats."""
    # half by its time on the device, half as one of all launches: one long copy of a checkpoint is not most of a
    # program, nor are its many short kernels; a graph is one launch of many kernels
    weight = pl.col("ns") / pl.col("ns").sum().clip(lower_bound=1) + 1 / pl.len()
    ran_ns = pl.col("work_ns").sum()
    in_graphs = pl.col("work_ns").filter("graph").sum() > _marks.HALF * ran_ns
    weight = pl.when(in_graphs).then(pl.col("work_ns") / ran_ns).otherwise(weight)
    weight = (weight * _WHOLE).ceil().cast(pl.Int64)
    line = _units.with_begins(launches).with_columns(weight=weight, barrier=pl.lit(value=False))
    candidates, trains = list[_Candidate](), line.get_column("optimizer").any()
    if trains and (updates := _units.between_updates(line)) is not None:
        candidates.append(_candidate(line, updates[1], ("updates", updates[0])))
    if not trains and (near := _units.near_unit(line)) is not None:
        candidates.append(_candidate(line, repetitions(line, near, _edges(line, near, near.at, 0)), near.key))
    if (repeated := _of_units(line, cuts)) is not None:
        candidates.append(repeated)
    return max(candidates, key=lambda one: one.worth, default=None)


def _of_units(line: pl.DataFrame, cuts: _Cuts) -> _Candidate | None:
    """The repetitions of units, of one loop after the other; None where they are few.

    Worth more than others that cover as much if nearly all are usual, and hardly less if not.
    """
    rest, loops, key = line.with_row_index("place"), list[pl.DataFrame](), None
    total, covered = float(line.get_column("weight").sum()), 0.0
    while 1 - covered >= _LOOP:
        unit = _units.iteration_unit(rest)
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
    candidate = _candidate(line, pl.concat(loops).sort("first"), key)
    usual = int(candidate.rows.get_column("usual").sum()) >= _marks.MANY * candidate.rows.height
    # near repetitions tell more than units of which few are usual, if they cover nearly as much
    return candidate._replace(worth=candidate.share / _marks.MANY if usual else candidate.share * 0.95)


def _candidate(line: pl.DataFrame, rows: pl.DataFrame, unit: tuple[object, ...]) -> _Candidate:
    """Repetitions with the share that is theirs, be it of the time of all operations or of kernels and graphs."""
    if "loop" not in rows.columns:
        rows = with_phases(line, rows).with_columns(loop=pl.lit(0, dtype=pl.UInt32))
    parts, wholes = rows.select(_units.held(line, name).sum() for name in _MEASURES), line.select(_MEASURES).sum()
    covered, *times = [part / every for part, every in zip(parts.row(0), wholes.row(0), strict=True) if every]
    share = min(covered, max(times, default=1.0))
    return _Candidate(rows, line, share, unit, worth=share)


def _timed(candidate: _Candidate) -> pl.DataFrame:
    """The repetitions with start, end (of the last launch call), launches and name; the heaviest loop has no number."""
    line, rows = candidate.line, candidate.rows
    since, until = line.get_column("since"), line.get_column("until").cum_max()
    start, last = (gathered(since, place) for place in (rows.get_column("first"), rows.get_column("stop") - 1))
    end = gathered(until, rows.get_column("stop") - 1)
    rows = rows.with_columns(
        _units.held(line, "work_ns"),
        start=start,
        end=end.zip_with(end > last, last + 1),
        launches=pl.col("stop") - pl.col("first"),
    )
    loops = rows.filter(pl.col("phase").is_null()).group_by("loop").agg(pl.col("work_ns").sum())
    loops = loops.sort("work_ns", "loop", descending=[True, False]).with_row_index("place", offset=1)
    heaviest = pl.when(pl.col("place") == 1).then(pl.lit(_marks.REPETITION))
    numbered = heaviest.otherwise(pl.format(_marks.REPETITION + " {}", "place"))
    named = rows.join(loops.select("loop", name=numbered), on="loop", how="left", maintain_order="left")
    # prefills and decodes are sequences of their own
    return named.with_columns(name=pl.coalesce("phase", "name"))


def _loop(line: pl.DataFrame, unit: _units.Unit, total: float, cuts: _Cuts) -> pl.DataFrame | None:
    """The repetitions of a unit with their weight; None if they are too few."""
    key = (*unit.key, unit.anchor)
    if key not in cuts:
        cuts[key] = _cut_of(line, unit)
    column, code, before = cuts[key]
    at = unit.at if code is None else (line.get_column(column) == code).arg_true()
    rows = with_phases(line, repetitions(line, unit, _edges(line, unit, at, before)))
    rows = rows.with_columns(_units.held(line, "weight"))
    if unit.length == 1:
        # many programs launch a kernel several times in a row: only one long loop counts, or one that the host waits in
        waited = _units.only_computes(line, unit) and _units.waited_for(line, unit)
        least = _units.FEWEST if waited or _units.holds(line, unit, "graph") else _units.LONG
        heavy = pl.col("weight").sum().over("stretch") >= _marks.HALF * total
        rows = rows.filter(heavy, pl.len().over("stretch") >= least)
    alone = rows.height and not rows.get_column("phase").count()
    if alone and unit.length <= _units.SHORT and not _units.holds(line, unit, "optimizer"):
        rows = together(line, rows, unit)
    return rows if rows.height >= _units.FEWEST else None


def _without(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """The line with each stretch of repetitions as one launch that is like no other: a barrier."""
    spans = rows.group_by("stretch").agg(pl.col("first").min(), pl.col("stop").max())
    zeros = (pl.zeros(line.height + 1, dtype=pl.Int32, eager=True) for _ in range(2))
    steps, ends = (zero.scatter(spans[side], 1) for zero, side in zip(zeros, ("first", "stop"), strict=True))
    inside, first = ((steps - ends).cum_sum() > 0).head(line.height), (steps == 1).head(line.height)
    own = [pl.when(first).then(pl.col("place").hash()).otherwise(name).alias(name) for name in _units.COLUMNS]
    return line.with_columns(*own, barrier=pl.col("barrier") | first).filter(~inside | first)


def _cut_of(line: pl.DataFrame, unit: _units.Unit) -> tuple[str, int | None, int]:
    """Chooses where repetitions begin: column and code of a launch that each has once, and how many lie before it.

    The code is None where each has all twice: then so many lie before the anchor. For a place in the unit speak the
    usual gap before it (as a part of the longest one), a copy to the device that begins there, a copy to the host and
    an optimizer that end there, and that no stretch of the unit has launches to spare if it is cut there.
    """
    spans = line.with_row_index("first").select("first", "gap", *_SPEAK, stop=pl.col("first") + unit.length)
    places = spans.head(line.height - unit.length + 1).filter(_units.held(line, unit.column) == unit.word)
    following = gathered(unit.at, nearest_place(unit.at, places.get_column("first"), later=True))
    places = places.with_columns(before=following.cast(pl.Int64) - pl.col("first"))
    usual = (pl.col("gap").median(), *((pl.col(name).mean() > _marks.HALF).cast(pl.Int64) for name in _SPEAK))
    by_place = places.filter(pl.col("before") < unit.length).group_by("before")
    each = by_place.agg(pl.len().alias("whole"), pl.col("first").first(), *usual)
    number = (unit.alike & ~unit.alike.shift(1, fill_value=False)).sum()
    gap = pl.col("gap") / pl.col("gap").max().clip(lower_bound=1)
    spare = ((pl.col("whole").cast(pl.Int64) - pl.col("whole").median()) / number).clip(0, 1)
    best = each.sort(pl.sum_horizontal(gap, spare, *_SPEAK), "before", descending=True)
    before, first = best.select("before", "first").row(0)
    codes = line.get_column(unit.column)
    own = codes.slice(first, unit.length).alias("code").to_frame().with_row_index("place")
    often = codes.alias("code").value_counts(name="often")
    once = own.filter(pl.col("code").is_unique()).join(often, on="code", maintain_order="left")
    once = once.filter(pl.col("often") <= len(unit.at))
    return (unit.column, *(once.select("code", "place").rows() or [(None, before)])[0])


def repetitions(line: pl.DataFrame, unit: _units.Unit, edges: pl.DataFrame) -> pl.DataFrame:
    """The repetitions of `unit`, sorted and disjoint: first and stop (places in `line`), usual, stretch.

    They are those of the `edges` (first and stop), and of what lies between these, that launch what the unit does
    (`usual`), or have a like size and mostly launches of the unit. In a stretch each one adjoins the next.
    """
    rows = pl.concat([edges, _units.apart(edges)]).sort("first")
    known = line.select(known=pl.col("alike").is_in(unit.codes(line, "alike").unique().implode()))
    mostly = _units.held(known, "known") >= _marks.MOSTLY * _units.sizes()
    usual = _units.held(line, unit.column) == unit.word
    if unit.near:
        usual = (_units.sizes() - unit.length).abs() <= _marks.NEAR * unit.length
    near = _units.sizes().is_between(unit.length * _units.SMALLEST, unit.length * _units.LARGEST)
    fits = ((near & mostly) | pl.col("usual")) & (_units.held(line, "barrier") == 0)
    rows = rows.with_columns(usual.alias("usual")).filter(fits)
    return rows.with_columns(_units.stretches()).filter(pl.col("usual").any().over("stretch"))


def _edges(line: pl.DataFrame, unit: _units.Unit, at: pl.Series, before: int) -> pl.DataFrame:
    """First and stop of the repetition around each of the launches `at`, so many launches after its first one.

    One that has the unit's launches has them all. Each ends where the next one begins, or, where that is far, with the
    unit's number of launches; the last one has what is left if it launched anything else and nothing follows.
    """
    height, length = line.height, unit.length
    rows = at.cast(pl.Int64).alias("at").to_frame().with_columns(first=pl.col("at") - before)
    alone = rows.select(pl.col("first").clip(0), stop=pl.min_horizontal(pl.col("first") + length, height))
    whole = alone.select(_units.held(line, unit.column) == unit.word).to_series()
    rows = rows.with_columns(whole=pl.lit(whole) & (pl.col("first") >= 0), first=pl.col("first").clip(0))
    after = pl.when(pl.col("whole").shift(1)).then(pl.min_horizontal(pl.col("first").shift(1) + length, "at"))
    rows = rows.with_columns(first=pl.max_horizontal("first", after))
    rows = rows.with_columns(stop=pl.col("first").shift(-1, fill_value=height))
    goes_on = (pl.col("stop") < height) | ~pl.col("whole") | pl.lit(unit.near)
    fits = goes_on & (_units.sizes() <= _units.LARGEST * length)
    ends = pl.when(fits).then("stop").otherwise(pl.min_horizontal(pl.col("first") + length, "stop"))
    return rows.select("first", stop=ends).filter(pl.col("stop") > pl.col("first")).cast(pl.UInt32)


def together(line: pl.DataFrame, rows: pl.DataFrame, unit: _units.Unit) -> pl.DataFrame:
    """The repetitions with those that the host launches in one go as one, if these are nearly always as many.

    Up to its next wait or copy that blocks: several where those between two waits are a multiple of the usual number,
    as where a host that runs ahead waits after several iterations. Or else, if they only compute, up to
    where it pauses longer each time, as a loop of like layers does from one step to the next. `rows` where it does
    neither.
    """
    rows = rows.with_columns(gathered(line.get_column("waited"), rows.get_column("first")))
    key = ("stretch", "waited")
    many, place = pl.len().over(key), pl.int_range(pl.len()).over(key)
    counts = rows.group_by(key).len().get_column("len")
    usual = counts.mode().sort().item(0)
    several = rows.with_columns(group=pl.when(many % usual == 0).then(place // usual).otherwise(0))
    # a number that is seen once may be that of a program's warming up, but for many
    again = (counts == usual).sum() >= max(_marks.HALF * len(counts), 1 if usual >= _units.LONG else 2)
    groups = _grouped(several) if again else None
    if groups is None and _units.only_computes(line, unit):
        groups = _grouped(_between_pauses(line, rows, unit.length // 2))
    return rows.drop("waited") if groups is None else groups


def _between_pauses(line: pl.DataFrame, rows: pl.DataFrame, half: int) -> pl.DataFrame:
    """Adds `group`: several where the host pauses longer before every so many of them.

    All that tells where like layers begin are such pauses: it may be up to `half` of a layer before or after its first
    launch.
    """
    longest = rows.filter(stretch=rows.get_column("stretch").mode().sort().item(0)).head(_units.LONG * _units.SHORT)
    rows, gap = rows.with_columns(waited=0, group=0), line.get_column("gap")
    for shift in sorted(range(-half, half + 1), key=abs):
        first = (pl.col("first").cast(pl.Int64) + shift).clip(0, line.height - 1).cast(pl.UInt32)
        number = _regular(gathered(gap, longest.select(first).to_series()).fill_null(0))
        if number is not None:
            stop = (pl.col("stop").cast(pl.Int64) + shift).clip(1, line.height).cast(pl.UInt32)
            return rows.with_columns(first, stop, group=pl.int_range(pl.len()).over("stretch") // number)
    return rows


def _regular(gaps: pl.Series) -> int | None:
    """After how many repetitions the host pauses longer: nearly always longer than nearly always before the others."""
    place = pl.int_range(len(gaps), eager=True)
    for number in range(2, min(len(gaps) // _units.SHORT, _units.LONG) + 1):
        first = place % number == 0
        longer = gaps.filter(first).quantile(1 - _marks.NEARLY_ALL, "nearest") or 0
        if longer > (gaps.filter(~first).quantile(_marks.NEARLY_ALL, "nearest") or 0):
            return number
    return None


def _grouped(rows: pl.DataFrame) -> pl.DataFrame | None:
    """The repetitions of each `group` as one; None where these are few, or do not nearly always have equally many."""
    sums = rows.group_by("stretch", "waited", "group", maintain_order=True).agg(
        pl.col("first", "phase").first(),
        pl.col("stop").last(),
        pl.col("usual").all(),
        pl.col("weight").sum(),
        many=pl.len().cast(pl.Int64),
    )
    usual, many = int(statistics.median_of(sums, "many")), pl.col("many")
    if usual <= 1 or sums.select((many == usual).mean()).item() < _marks.NEARLY_ALL:
        return None
    groups = sums.filter(many.is_between(_units.SMALLEST * usual, _units.LARGEST * usual))
    groups = groups.with_columns(usual=pl.col("usual") & (many == usual)).drop("waited", "group", "many")
    return groups if groups.height >= _units.FEWEST else None


def with_phases(line: pl.DataFrame, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds phase to repetitions, and the prefills that lie between them; null if there are no such phases.

    A prefill launches mostly what decodes do, but in larger shapes. Columns: first, stop, usual, stretch and phase.
    """
    none = rows.with_columns(phase=pl.lit(None, dtype=pl.String))
    if line.get_column("optimizer").any():
        return none
    gaps = _units.apart(rows).filter(_units.held(line, "barrier") == 0)
    spans = pl.concat([rows.with_columns(gap=False), gaps.with_columns(gap=True, usual=False)]).sort("first")
    spans = spans.with_columns(_units.held(line, name) for name in ("blocks", "work_ns"))
    usual = [LARGE * statistics.median_of(spans.filter("usual"), name) for name in ("blocks", "work_ns")]
    spans = spans.with_columns(large=(pl.col("blocks") > usual[0]) & (pl.col("work_ns") >= usual[1]))
    some = spans.filter(~pl.col("large") & ~pl.col("gap"))
    some = some.gather_every(max(-(-some.height // _units.LONG), 1))
    at = some.select(pl.int_ranges("first", "stop", dtype=pl.UInt32).alias("at").explode()).to_series()
    codes = {name: gathered(line.get_column(name), at).unique() for name in ("loose", "exact")}
    known = line.select(pl.col(name).is_in(own.implode()) for name, own in codes.items())
    spans = spans.with_columns(_units.held(known, name) for name in codes)
    shared = (pl.col("loose") >= _marks.HALF * _units.sizes()) & (pl.col("exact") <= _marks.HALF * _units.sizes())
    many = spans.select(pl.col("large").sum()).item()
    kept = spans.with_columns(pl.col("large") & shared).filter(pl.col("large") | ~pl.col("gap"))
    follows = (~pl.col("large")).shift(-1, fill_value=True) & pl.col("large")
    prefills, begun = kept.select(pl.col("large").sum(), begun=follows.sum()).row(0)
    enough = _FEWEST_PREFILLS <= prefills <= kept.height - 2 * prefills
    if not (enough and begun >= _marks.MANY * prefills >= _marks.MANY**2 * many):
        return none
    phase = pl.when("large").then(pl.lit(PREFILL)).otherwise(pl.lit(DECODE))
    kept = kept.with_columns(_units.stretches(), phase=phase, usual=pl.col("usual") | pl.col("large"))
    return kept.select(*rows.columns, "phase")


# Kernels that a library times to choose among them, as torch.compile and Triton do: what no iteration has.

#: Fewest launches that are timed after fills of one size, and most launches between two fills.
FEWEST_TIMED: Final = 50
MOST_TIMED: Final = 16

#: Of a fill by PyTorch a block writes so many values at least; the least values in one that may clear a cache.
_BLOCK: Final = 512
_VALUES: Final = 1 << 20

#: A run that is followed by the next one after more than so many times the usual distance ends with its last event.
_PAUSE: Final = 3

_RECORDS: Final = re.compile(r"(?:cuda|cu)EventRecord")
#: Calls that no such run has: waits, copies, and graphs, which hold many kernels.
_OTHERS: Final = re.compile(r"(?:cuda|cu)(?:StreamWaitEvent|(?:Event|Stream|Device|Ctx)Synchronize|Memcpy|GraphLaunch)")

_RUNS: Final = {"process_id": pl.Int64, "start": pl.Int64, "end": pl.Int64}


@analysis.once_per_process
def timed_runs(report: Report) -> pl.DataFrame:
    """The runs of kernels that were timed, by the calls of the host: process_id, start and end, sorted.

    A run begins with a fill by PyTorch of at least :data:`_VALUES` values, and ends where the next one begins, or, if
    that is far, with its last event. After the fill come up to :data:`MOST_TIMED` launches, with CUDA events recorded
    before and after them, as `triton.testing.do_bench` and autotuners do, and none of the calls :data:`_OTHERS`. There
    are at least :data:`FEWEST_TIMED` runs of a process with the same fill.
    """
    timed, recording, work = [pl.DataFrame(schema=_RUNS)], names_that(report, _RECORDS.match), operations(report)
    fills = work.select("row", "process_id").filter(having(work.get_column("name"), "FillFunctor"))
    fills = with_facts(report, fills, "call_start").drop_nulls("call_start")
    calls = report.kind("api").select("process_id", "name", at="start_ns")
    records, others = (calls.filter(pl.col("name").is_in(of)) for of in (recording, names_that(report, _OTHERS.match)))
    if min(fills.height, records.height) < FEWEST_TIMED:  # each run has an event of its own before it
        return timed[0]
    for process, launches in _units.launch_lines(report).items():
        own = fills.filter(_marks.of_process(process)).get_column("call_start")
        clears = pl.col("since").is_in(own.implode()) & (pl.col("blocks") * _BLOCK >= _VALUES)
        line = launches.with_columns(clears=clears)
        times = [some.filter(_marks.of_process(process)).get_column("at").sort() for some in (records, others)]
        many = line.filter("clears").group_by("exact").len().filter(pl.col("len") >= FEWEST_TIMED)
        for code in many.get_column("exact").sort():
            runs = _runs(line, (line.get_column("exact") == code) & line.get_column("clears"), *times)
            if runs.height >= FEWEST_TIMED:
                timed.append(runs.select(process_id=pl.lit(process, dtype=pl.Int64), start="start", end="end"))
    return pl.concat(timed).sort("process_id", "start")


def _next(times: pl.Series, after: pl.Series) -> pl.Series:
    """The first of `times`, which are sorted, after each of `after`; :data:`AFTER_ALL` for none."""
    return pl.concat([times, pl.Series([AFTER_ALL], dtype=pl.Int64)]).gather(count_up_to(times, after, equal=True))


def _runs(line: pl.DataFrame, clears: pl.Series, records: pl.Series, others: pl.Series) -> pl.DataFrame:
    """Start and end of the runs after the fills `clears`; `records` and `others` are times of calls."""
    fills = clears.arg_true()
    stops = fills.shift(-1, fill_value=line.height)
    short = (stops - fills).is_between(2, MOST_TIMED + 1)
    fills, stops = fills.filter(short), stops.filter(short)
    since, until = (line.get_column(side) for side in ("since", "until"))
    then = gathered(since, stops.set(stops == line.height, None)).fill_null(AFTER_ALL)
    ended, first = until.gather(stops - 1), since.gather(fills + 1)
    before, after = _next(records, until.gather(fills) - 1), _next(records, ended - 1)
    runs = pl.DataFrame({"start": since.gather(fills), "then": then, "after": after})
    calm = count_up_to(others, after, equal=False) == count_up_to(others, since.gather(fills), equal=False)
    runs = runs.filter((before < first) & (after < then) & calm)
    distance = pl.col("then") - pl.col("start")
    near = distance <= _PAUSE * distance.median()
    return runs.select("start", end=pl.when(near).then("then").otherwise("after"))
