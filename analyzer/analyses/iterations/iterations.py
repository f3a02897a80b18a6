"""Iterations of a program, each steady, warm-up, odd or cut."""

from typing import Any, Final

import polars as pl

from kanalyze import columns, intervals, model, schema, units
from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.host._call_kinds import begun_before
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.iterations import _marks
from kanalyze.analyses.ranges import instances
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.report import Report

STEADY: Final = "steady"
WARM_UP: Final = "warm-up"
ODD: Final = "odd"
CUT: Final = "cut"

TABLE: Final = schema.Table(
    "iterations",
    "One repetition of what the program repeats: a step of a profiler, a range, or a period of its launches.",
    schema.columns("""
        process_id int?: The process.
        device int?: The GPU on which the process was busy longest.
        name text: What one of them is called: step, the range's name, or what the launches begin with.
        index int: Its number among those of its process and name, from 1 on.
        start_ns int: Start.
        dur_ns int: Its length: up to the next one where that follows at the usual distance.
        kind text: steady, warm-up, odd or cut.
        reason text?: Why it is not steady.
        window text: What gives it alone as a window; of launches, together with --process where several processes have
            some.
        found_by text: How it was found: profiler steps, ranges, passes of a loop, or launches.
        operations int: Kernels, copies and memsets that were launched in it.
        device_ns int: Sum of their durations.
        kernels_ns int: The same of kernels and whole graphs.
    """),
    purpose="what the program repeats, how regularly",
)

#: Where more than a tenth of the iterations, and more than one, take another time, those are odd that differ in more
#: than time; of another magnitude is what takes so many times the median, or so small a part of it. More than two,
#: and than a quarter, belong to what repeats.
_MAGNITUDE: Final = 3
_LARGE_PART: Final = 0.25

#: Of fewer iterations than these, whose median distance from the median says little, an odd one is off by a quarter. Of
#: three, which have no spread, one is odd that takes twice as long as each of the others.
_MANY: Final = 10
_THREE: Final = 3
_TWICE: Final = 2

_KEYS: Final = ("process_id", "name")

#: What tells that an iteration is none of the usual ones.
_OTHERS: Final = ("warm_up", "odd", "first")


@analysis.analysis
def iterations(report: Report) -> pl.DataFrame:
    """The iterations that overlap the window, in full, and how they were found.

    Definition: docs/definitions.md, section 4, "Iterations".

    Returns:
        :data:`TABLE`, by process and start; empty if nothing repeats.

    Raises:
        CannotTellError: The report records no device operations.
    """
    analysis.require(report, TABLE, *model.DEVICE_KINDS)
    rows = intervals.overlapping(iteration_ledgers(report), report.scope.sides, "start_ns", intervals.END)
    if report.scope.device is not None:
        used = device_operations(report).select(pl.col("process_id").unique()).to_series()
        rows = rows.filter(pl.col("process_id").is_in(used.implode(), nulls_equal=True))
    return TABLE.select(rows)


@analysis.once_per_process
def judged_iterations(report: Report) -> pl.DataFrame:
    """The iterations of all processes, at any time, with the kind of each: :data:`TABLE` but for the reason.

    Sorted by process and start. With the columns that the reason is made of, but for the ledgers of odd ones: most of
    what a page tells can do without, and to attribute the time of all takes a tenth as long as a page of 20 MB.
    """
    marked = _marks.marked_iterations(report)
    spans, work = marked.filter("alike").drop("alike"), device_operations(report.whole).select("process_id").unique()
    silent = work.join(marked.select("process_id"), on="process_id", how="anti", nulls_equal=True)
    if silent.height:
        runs = _by_launches(report).join(silent, on="process_id", how="semi", nulls_equal=True, maintain_order="left")
        spans = pl.concat([spans, runs])
    return _judged(report, spans)


@analysis.once_per_process
def iteration_spans(report: Report) -> pl.DataFrame:
    """The iterations of all processes, at any time: process_id, start, end, name."""
    return judged_iterations(report).select("process_id", "name", **intervals.OF_EVENTS)


def iterations_at(report: Report, points: pl.DataFrame) -> pl.DataFrame:
    """The iteration around each of `points` (process_id, at): its place and each (name); else nulls."""
    spans = iteration_spans(report)
    rows = columns.as_of(points.select("process_id", "at"), spans.select("process_id", at="start"))
    around = columns.rows_at(spans.select("end", each="name").with_row_index("iteration"), rows)
    return around.select(pl.when(points.get_column("at") < pl.col("end")).then(pl.col("iteration", "each")))


@analysis.once_per_process
def iterations_by_launches(report: Report) -> pl.DataFrame:
    """The iterations of all processes as their launches tell them, whatever marks they have.

    Columns of :func:`judged_iterations`.
    """
    return _judged(report, _by_launches(report))


@analysis.once_per_process
def iteration_ledgers(report: Report) -> pl.DataFrame:
    """The iterations with the ledger of each on its device: the columns of :data:`TABLE`, and ``<bucket>_ns``."""
    rows = judged_iterations(report)
    if rows.is_empty():
        return rows
    ledgers = instances.with_changes(_with_ledgers(report, _on_device(rows)), keys=_KEYS)
    reasons = [None if row["kind"] == STEADY else _reason(row) for row in ledgers.iter_rows(named=True)]
    return ledgers.with_columns(pl.Series("reason", reasons, dtype=pl.String), *rows.select("start_ns", "dur_ns"))


def _on_device(rows: pl.DataFrame) -> pl.DataFrame:
    """The iterations, each from since_ns to until_ns."""
    return rows.with_columns(start_ns="since_ns", dur_ns=pl.col("until_ns") - pl.col("since_ns"))


def _judged(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The iterations judged: columns of :func:`judged_iterations`."""
    spans = spans.filter(pl.col("end") > pl.col("start")).sort("process_id", "start")
    if spans.is_empty() or not {*model.DEVICE_KINDS}.intersection(report.kinds):
        return TABLE.empty()
    work = _marks.launched_work(report)
    rows = _with_work(report, spans, work).with_columns(
        index=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(_KEYS),
        place=pl.col("start").rank("ordinal").over("name").cast(pl.Int64),
    )
    rows = rows.with_columns(window=pl.coalesce("window", pl.format("{}#{}", "name", "place")), start_ns="start")
    parts = []
    for part in rows.drop("start").partition_by(_KEYS, maintain_order=True):
        own = _marks.work_of(work, part.item(0, "process_id"))
        parts.append(_classified(report, _with_device_spans(part, own), own))
    return pl.concat(parts).sort("process_id", "start_ns")


def _with_device_spans(rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Adds since_ns and until_ns to the iterations of one process and name: start and end.

    Where the host runs ahead, so that usually the device ends its work a tenth of an iteration or more later: when the
    device had done what was launched before the start, and before the end. One that none follows ends with its work.
    Not where other work hides when more than a quarter of them were done.
    """
    spans = rows.select(since_ns="start_ns", until_ns="end")
    done = rows.select("follows", *(done_before(work, side) for side in spans))
    own_end = pl.max_horizontal("since_ns", spans.get_column("until_ns"))
    done = done.with_columns(until_ns=pl.when("follows").then("until_ns").otherwise(own_end))
    late = done.get_column("until_ns") - spans.get_column("until_ns")
    usual = rows.with_columns(*done.drop("follows"), late=late).filter("follows")
    hidden = ((pl.col("until_ns") == pl.col("since_ns")) & (pl.col("operations") > 0)).sum() > _LARGE_PART * pl.len()
    ahead = usual.height and statistics.median_of(usual, "late") >= _marks.NEAR * statistics.median_of(usual, "dur_ns")
    return rows.with_columns((done if ahead and not usual.select(hidden).item() else spans).get_columns())


def _with_ledgers(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Adds the ledger of each iteration on its device: ``<bucket>_ns``, null where it has none."""
    ledgers = window_ledgers(report, rows.select(**intervals.OF_EVENTS)).rename({"window": "row"})
    numbered = rows.with_row_index("row")
    return numbered.join(ledgers, on=["row", "device"], how="left", maintain_order="left").drop("row")


def _by_launches(report: Report) -> pl.DataFrame:
    """Repetitions of launches, as marks are."""
    from kanalyze.analyses.iterations._launch_periods import launch_periods  # noqa: PLC0415 - where marks do not tell

    rows = launch_periods(report).with_columns(window=pl.lit(None, dtype=pl.String), open=pl.lit(value=False))
    parts = rows.rename({"end": "own_end"}).partition_by("process_id", as_dict=True, maintain_order=True)
    work = _marks.launched_work(report)
    spans = [_marks.adjoined(key, part, _marks.work_of(work, key)) for (key,), part in parts.items()]
    return pl.concat([pl.DataFrame(schema=_marks.SPANS), *spans])


def _with_work(report: Report, spans: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Adds operations, own_operations (launched in the mark), device_ns, kernels_ns, work_ns and the main device.

    That is the one on which the process was busy longest.
    """
    parts = []
    for (process,), part in spans.partition_by("process_id", as_dict=True, maintain_order=True).items():
        own = _marks.work_of(work, process)
        inside = _marks.work_in(part.select("start", end="own_end"), own).get_column("operations")
        until = pl.when("follows").then("end").otherwise("own_end")
        work_inside = _marks.work_in(part.select("start", end=until), own)
        parts.append(part.with_columns(*work_inside, own_operations=inside))
    took = (pl.col("end") - pl.col("start")).sum().alias("ns")
    sums = device_operations(report.whole).group_by("process_id", "device").agg(took)
    main = sums.sort("ns", "device", descending=[True, False]).unique("process_id", keep="first", maintain_order=True)
    rows = pl.concat(parts).join(main.drop("ns"), on="process_id", how="left", nulls_equal=True, maintain_order="left")
    return rows.with_columns(dur_ns=pl.col("end") - pl.col("start"))


def _classified(report: Report, rows: pl.DataFrame, work: pl.DataFrame) -> pl.DataFrame:
    """Adds the kind of the iterations of one process and name, sorted by start, and what it is told by."""
    few = rows.get_column("operations") < _marks.NEARLY_ALL * statistics.median_of(rows, "operations")
    cut = _cut(rows, work, few)
    # one may be its mark alone: none begins soon after, where others launch most after theirs
    whole = rows.filter("follows")
    small = statistics.median_of(whole, "own_operations") < _marks.HALF * statistics.median_of(whole, "operations")
    alone = ~rows.get_column("follows") & (small and whole.height >= rows.height / 2) & few & ~cut
    classified = _on_device(rows)
    # with the ledgers that tell whether the first ones warm up; null for others
    parts = [classified.slice(*place) for place in instances.looked_at(classified)] or [classified.clear()]
    ledgers = pl.concat(_with_ledgers(report, part) for part in parts)
    ledgers = ledgers.select("index", pl.col("^.*_ns$").exclude(classified.columns))
    attributed = classified.join(ledgers, on="index", how="left", maintain_order="left")
    classified = classified.with_columns(instances.warmed_up(report, attributed))
    # of those that become shorter step by step, as those of an elimination do, longer ones are no start-up
    shorter = (classified.get_column("dur_ns").diff() < 0).sum()
    grows = classified.height < _MANY or shorter < _marks.NEARLY_ALL * (classified.height - 1)
    # none of them is part of medians
    classified = classified.with_columns(cut=cut, alone=alone, warm_up=(pl.col("warm_up") & grows) | cut | alone)
    classified = instances.with_odd(classified, keys=_KEYS)
    middle = pl.col("dur_ns").filter(~pl.col("warm_up")).median()
    far = (pl.col("dur_ns") - middle).abs() > _LARGE_PART * middle
    classified = classified.with_columns(pl.col("odd") & grows & (far if classified.height < _MANY else True))
    # of three the one that takes twice as long as each of the others, if these differ by less
    lengths = classified.filter(~pl.col("warm_up")).get_column("dur_ns").sort(descending=True)
    if len(lengths) == _THREE and lengths[0] >= _TWICE * lengths[1] and lengths[1] < _TWICE * lengths[2]:
        classified = classified.with_columns(odd=~pl.col("warm_up") & (pl.col("dur_ns") == lengths[0]))
    classified = classified.with_columns(first=_first_ones(report, classified))
    classified = classified.with_columns(pl.col("odd") & ~pl.col("first"))
    classified = _with_other_work(_without_unexplained(report, classified))
    median = statistics.median_of(classified.filter(~pl.any_horizontal(_OTHERS)), "dur_ns")
    warm_up = pl.col("warm_up") | (pl.col("first") & pl.col("work").is_null())
    served = (pl.col("found_by") == _marks.BY_ENGINE) & ~pl.col("open")  # as long as its batch makes it
    kinds = pl.when(served).then(pl.lit(STEADY)).when("cut").then(pl.lit(CUT)).when("alone").then(pl.lit(ODD))
    kinds = kinds.when(warm_up).then(pl.lit(WARM_UP)).when("odd").then(pl.lit(ODD))
    kind = kinds.otherwise(pl.lit(STEADY))
    return classified.with_columns(*rows.select("start_ns", "dur_ns"), kind=kind, usual_ns=pl.lit(median))


def _with_other_work(rows: pl.DataFrame) -> pl.DataFrame:
    """Marks as odd the few whose work takes the device another time than that of the others, as an evaluation does.

    Adds `work`: of these, how many times the median it takes; else null. Communication is no work: it waits for others.
    """
    usual, work = ~pl.any_horizontal(_OTHERS), pl.col("work_ns")
    middle = work.filter(usual).median()
    ratio = pl.when(usual & (middle > 0) & instances.far_from_others(work, usual, _marks.HALF)).then(work / middle)
    compared = rows.with_columns(work=ratio)
    # what is done more often is a part of what the program repeats, as an update after several passes is
    if rows.height < _MANY or compared.get_column("work").count() > max(1, 0.02 * rows.height):
        return rows.with_columns(work=pl.lit(None, dtype=pl.Float64))
    return compared.with_columns(pl.col("odd") | pl.col("work").is_not_null())


def _reason(row: dict[str, Any]) -> str:
    """Why one iteration is not steady."""
    if row["cut"]:
        return "the recording holds a part of it only"
    if row["alone"]:
        return "it ends with its mark, as no other begins soon after"
    if row["warm_up"]:
        return str(row["evidence"])
    if row["work"] is not None:
        return f"its work takes the GPU {units.times(row['work'])} the median"
    reason = f"{units.times((row['until_ns'] - row['since_ns']) / max(row['usual_ns'], 1))} the median"
    reason += f", most in {row['most']}" if row["most"] else ""
    return f"among the first, {reason}" if row["first"] else reason


def _without_unexplained(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Takes from the odd ones, where they are many, those that differ in time alone; and all where they recur.

    None is odd that mostly compiles, if another one does: a run goes on compiling. What takes another magnitude of
    time, launches more or fewer operations than any usual one, as a checkpoint or an evaluation does, or compiles for a
    while, differs in more. What recurs comes at a regular distance, or makes up a large part.
    """
    length, usual = pl.col("dur_ns"), ~pl.any_horizontal(_OTHERS)
    middle, launched = length.filter(usual).median(), pl.col("operations")
    since, until = rows.get_column("since_ns"), rows.get_column("until_ns")
    compiled = pl.lit(intervals.overlap(since, until, instances.compile_spans(report)))
    anew = rows.select(pl.col("odd") & (compiled > pl.max_horizontal(_marks.HALF * (length - middle), 0))).to_series()
    few = rows.get_column("odd").sum() <= max(1.0, _marks.NEAR * rows.height)
    if anew.sum() > 1:
        rows = rows.with_columns(odd=pl.col("odd") & ~anew)
    if few:
        return rows
    differs = (length > _MAGNITUDE * middle) | (length * _MAGNITUDE < middle)
    differs |= (launched < launched.filter(usual).min()) | (launched > launched.filter(usual).max())
    odd = rows.select(pl.col("odd") & (differs | (compiled > _marks.NEAR * middle))).to_series()
    apart = odd.arg_true().cast(pl.Int64).diff().drop_nulls().sort()
    regular = odd.sum() >= _THREE and apart.item(-1) - apart.item(0) <= 1
    recurs = regular or odd.sum() > max(2, _LARGE_PART * rows.height)
    return rows.with_columns(odd=odd & (not recurs))


def _first_ones(report: Report, rows: pl.DataFrame) -> pl.Series:
    """Whether each iteration is longer than usual and among the first of a process or of a profiler's schedule."""
    began_before = rows.head(1).join(begun_before(report), on="process_id", how="semi", nulls_equal=True).height
    begins = not began_before or rows.item(0, "found_by") == _marks.BY_STEPS
    leading = (pl.col("odd") | pl.col("warm_up")).cast(pl.Int64).cum_prod() == 1
    longer = pl.col("dur_ns") > pl.col("dur_ns").filter(~pl.col("warm_up")).median()
    return rows.select(leading & longer.fill_null(value=False) & pl.col("odd") & begins).to_series()


def done_before(work: pl.DataFrame, points: pl.Series) -> pl.Series:
    """When the device had done what was launched before each of `points`, and at least the point itself."""
    ended = pl.concat([pl.Series("end", [intervals.BEFORE_ALL], dtype=pl.Int64), work.get_column("end").cum_max()])
    reached = ended.gather(work.get_column("at").search_sorted(points, side="left"))
    return reached.zip_with(reached > points, points).alias(points.name)


def _cut(rows: pl.DataFrame, work: pl.DataFrame, few: pl.Series) -> pl.Series:
    """Whether each iteration is cut: it was never closed, or lies at an edge of the recording and launched less."""
    low, high = work.select(pl.col("at").min(), last=pl.col("at").max()).row(0)
    if low is None:
        return rows.get_column("open")
    place = pl.int_range(pl.len())
    edge = ((place == 0) & (pl.col("start_ns") <= low)) | ((place == pl.len() - 1) & (pl.col("own_end") >= high))
    return rows.select(pl.col("open") | (edge & pl.lit(few))).to_series()
