"""The steady part of a program, the longest run of steady iterations, one directly after the other; and other phases.

Beside it the windows that iterations name (``steady``, ``step#2..step#5``, ``step#-1``), what sampling cost them, their
parts by the program's own ranges, and what came before, between and after. Definitions: docs/definitions.md, section 4,
"Iterations".
"""

import re
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

import polars as pl

from kanalyze import errors, intervals, model, units, window
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, operations
from kanalyze.analyses.host import _call_kinds, engine_marks
from kanalyze.analyses.idle._attribution import window_ledgers
from kanalyze.analyses.iterations import _launch_periods, _units
from kanalyze.analyses.iterations._marks import BY_ENGINE, SOME, STEP, called, of_process
from kanalyze.analyses.iterations.iterations import CUT, ODD, STEADY, WARM_UP, iterations_by_launches, judged_iterations
from kanalyze.analyses.ranges.instances import compile_spans
from kanalyze.analyses.shared.analysis import analysis, named_ranges, once_per_report, require, source_lines
from kanalyze.analyses.shared.statistics import BUCKETS, median_of
from kanalyze.analyses.shared.threads import THREAD, outermost, touched
from kanalyze.report import Report
from kanalyze.schema import Table, columns
from kanalyze.window import Window, plain

_STEP: Final = re.compile(r"step:\d{1,18}", re.ASCII)

#: Fewest iterations of a run that adjoin each other, for a run to be one of these.
_FEWEST: Final = 3

#: So many such runs, one after the other, are the steady part with the time between them if that is this share of it.
_FEWEST_ROWS: Final = 3
_APART: Final = 0.5

#: So many times as long as usual between two steps of an engine, it waits to be asked.
_PAUSE: Final = 10.0


class SteadyPart(NamedTuple):
    """The steady part of a report, and the iterations that it is one of.

    Its `window` has the number of iterations and what one is called; `host` is the same as the host saw it, from the
    start of its first iteration on. The `device` is the GPU on which the process was busy longest, `run` are its
    iterations, `rows` all iterations of this process as :func:`judged_iterations` gives them, and `adjoining` says
    whether each of the steady part begins where the one before ended.
    """

    window: Window
    host: Window
    process_id: int | None
    device: int | None
    found_by: str
    run: pl.DataFrame
    rows: pl.DataFrame
    adjoining: bool

    @property
    def number(self) -> int:
        """The number of iterations in the steady part."""
        return self.window.count or 1

    @property
    def each(self) -> str:
        """Name of one iteration."""
        return self.window.each or "iteration"

    @property
    def ns(self) -> int:
        """The length of the steady part."""
        return self.span[1] - self.span[0]

    @property
    def span(self) -> tuple[int, int]:
        """Start and end of the steady part."""
        return self.window.start_ns or 0, self.window.end_ns or 0

    @property
    def lengths(self) -> pl.Series:
        """How long each iteration of the steady part takes, ns: where they adjoin, as long as that in all."""
        return lengths_ns(self.run)

    @property
    def usual(self) -> pl.DataFrame:
        """All steady iterations of this name, in the steady part and elsewhere."""
        return self.rows.filter((pl.col("kind") == STEADY) & (pl.col("name") == self.each))

    def ledgers(self, report: Report, spans: pl.DataFrame) -> pl.DataFrame:
        """The ledgers of `spans` (start, end) on the GPU that the process kept busy longest: window, `<bucket>_ns`."""
        return window_ledgers(report.whole.narrow(device=self.device), spans).filter(pl.col("device") == self.device)


@once_per_report
def steady_part(report: Report) -> SteadyPart | None:
    """The steady part of the process in scope that kept the devices in scope busy longest; None if nothing repeats.

    Of several names the one whose steady iterations launched most kernel time, and of several runs of these the one
    with most of them, of equal ones the last: what is before may warm up. Of an engine all steps, whatever their kind.
    """
    return _steady_part_of(report, judged_iterations(report))


def steady_part_by_launches(report: Report) -> SteadyPart | None:
    """The :func:`steady_part` of the iterations that launches tell, where the program has marks, too."""
    return _steady_part_of(report, iterations_by_launches(report))


def _steady_part_of(report: Report, rows: pl.DataFrame) -> SteadyPart | None:
    ran = device_operations(report).group_by("process_id").agg((pl.col("end") - pl.col("start")).sum().alias("ns"))
    # of an engine steps of all kinds in turn are what repeats
    kinds = (pl.col("found_by") == BY_ENGINE) & (pl.col("name").n_unique().over("process_id") > 1)
    rows = rows.with_columns(name=pl.when(kinds).then(pl.lit(STEP)).otherwise("name"))
    usual = rows.filter(pl.col("kind") == STEADY).join(ran, on="process_id", how="inner", nulls_equal=True)
    if usual.is_empty():
        return None
    sums = usual.group_by("process_id", "name", "ns", maintain_order=True).agg(pl.col("kernels_ns", "device_ns").sum())
    down, by = [True, False, True, True], ("ns", "process_id", "kernels_ns", "device_ns")
    process, name = sums.sort(by, descending=down, maintain_order=True).select("process_id", "name").row(0)
    every = rows.filter(of_process(process))
    run = _longest_run(every, name, adjoining=True)
    served = _served(every.filter(found_by=BY_ENGINE, kind=STEADY))
    if served.height >= _FEWEST:
        run = served
    elif run.height < _FEWEST:
        run = _longest_run(every, name, adjoining=False)
    elif (rows_apart := _rows_apart(every, name)) is not None and _trains(report, process):
        run = rows_apart  # of a program that does not train: it may wait to be asked
    last = run.row(-1, named=True)
    until, host_until = last["until_ns"], last["end"]
    adjoining = run.get_column("dur_ns").sum() == host_until - run.item(0, "start_ns")
    if not adjoining:  # as many pauses as iterations
        until, host_until, run = last["since_ns"], last["start_ns"], run.head(-1)
    first = run.row(0, named=True)
    window = Window(first["since_ns"], until, name=STEADY, process=process, count=run.height, each=first["name"])
    host = replace(window, start_ns=first["start_ns"], end_ns=host_until)
    return SteadyPart(window, host, process, first["device"], first["found_by"], run, every, adjoining)


def spread_of(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """Least and most of each bucket over the iterations of the steady part: columns bucket, min_ns and max_ns.

    Each begins and ends where the steady part would. Empty where there is time between them, since their average holds
    that.
    """
    every = steady.run.select(start="since_ns", end="until_ns").filter(steady.adjoining)
    ledgers = steady.ledgers(report, every.filter(pl.col("end") > pl.col("start")))
    long = ledgers.select(*_TIMES).rename(_TIMES).unpivot(variable_name="bucket", value_name="ns")
    least, most = pl.col("ns").min().alias("min_ns"), pl.col("ns").max().alias("max_ns")
    sums = long.group_by("bucket", maintain_order=True).agg(least, most).filter(pl.col("max_ns") > 0)
    # of an iteration that takes nothing each bucket takes nothing
    return sums if ledgers.height == every.height else sums.with_columns(min_ns=pl.lit(0, dtype=pl.Int64))


def own_ranges(report: Report, process: int | None) -> pl.DataFrame:
    """The ranges of a process with a name: :data:`THREAD`, start, end, open, and name without ids.

    Without those that are labels of an engine's steps.
    """
    labels = engine_marks.engine_labels(report).get_column("range")
    wanted = of_process(process) & (pl.col("range") != window.UNNAMED) & ~pl.col("range").is_in(labels.implode())
    own = named_ranges(report).filter(wanted)
    return own.select(*THREAD, "start", "end", "open", name=window.without_ids(pl.col("range")))


def lengths_ns(rows: pl.DataFrame) -> pl.Series:
    """How long iterations take; where the host runs ahead, from when the device had done the work of the one before."""
    return (rows.get_column("until_ns") - rows.get_column("since_ns")).alias("dur_ns")


def _longest_run(rows: pl.DataFrame, name: str, *, adjoining: bool) -> pl.DataFrame:
    """Of the runs of steady iterations of one name the one with most of them, of equal ones the last.

    With `adjoining` each begins where the one before ended; else there may be time between, but no other iteration.
    """
    own = rows.with_columns(end=intervals.END, usual=(pl.col("kind") == STEADY) & (pl.col("name") == name))
    near = pl.col("start_ns") == pl.col("end").shift(1) if adjoining else pl.lit(value=True)
    goes_on = (near & pl.col("usual") & pl.col("usual").shift(1)).fill_null(value=False)
    runs = own.with_columns(run=(~goes_on).cum_sum()).filter("usual")
    best = runs.group_by("run").len().sort("len", "run").item(-1, "run")
    return runs.filter(pl.col("run") == best)


def _served(steps: pl.DataFrame) -> pl.DataFrame:
    """The longest stretch of an engine's steps without a pause, in which it waits to be asked.

    That is :data:`_PAUSE` times as long as usual between two steps, and longer than :data:`_FEWEST` usual steps.
    """
    gap_ns = pl.col("start_ns") - intervals.END.shift(1)
    pauses = (gap_ns > _PAUSE * gap_ns.median()) & (gap_ns > _FEWEST * pl.col("dur_ns").median())
    stretches = steps.with_columns(run=pauses.fill_null(value=False).cum_sum(), end=intervals.END)
    return stretches.filter(pl.col("run") == pl.col("run").mode().max())


def _trains(report: Report, process: int | None) -> bool:
    """Whether a process ran a kernel that updates parameters."""
    names = device_operations(report).filter(of_process(process)).select(pl.col("name").unique().cast(pl.String))
    return bool(names.select(_units.updates_parameters(pl.col("name")).any()).item())


def _rows_apart(every: pl.DataFrame, name: str) -> pl.DataFrame | None:
    """The iterations of rows between which most of the time passes, up to the first one of the last row.

    A row are iterations of one name of which each begins where the one before ended, as those of an epoch; None where
    rows are few, most iterations are in none of them, or what usually lies between them takes less time than they do.
    """
    pause = (pl.col("start_ns") - intervals.END.shift(1)).fill_null(0)
    own = every.with_columns(end=intervals.END, pause=pause).filter(name=name)
    own = own.with_columns(row=(pl.col("start_ns") != pl.col("end").shift(1)).fill_null(value=True).cum_sum())
    usual = own.filter(kind=STEADY).with_columns(many=pl.len().over("row"))
    sides = usual.filter(pl.col("many") >= _FEWEST).group_by("row", maintain_order=True).first()
    if sides.height < _FEWEST_ROWS:
        return None
    run = own.filter(pl.col("start_ns").is_between(sides.item(0, "start_ns"), sides.item(-1, "start_ns")))
    pauses = run.get_column("pause").tail(-1)
    pauses = pauses.filter(pauses > 0)
    between_ns = len(pauses) * (pauses.quantile(0.5, interpolation="lower") or 0)
    whole_ns = run.item(-1, "start_ns") - run.item(0, "start_ns")
    return run if between_ns >= _APART * whole_ns and 2 * run.height > usual.height else None


def windows_named(report: Report, text: str) -> list[Window] | None:
    """The windows that `text` names by iterations; None if it names none.

    Raises:
        BadWindowError: It names the steady part, and nothing repeats, or the end is before the start.
        UnknownNameError: There are iterations of that name, but not so many.
    """
    if text == STEADY:
        steady = steady_part(report)
        if steady is None:
            raise errors.BadWindowError.of(text, "nothing in this report repeats, so it has no steady part")
        return [steady.window]
    first, dots, last = text.partition("..")
    if not dots:
        return _iterations(report, text) or None
    begin, until = (_side(report, side.strip()) for side in (first, last))
    if begin is None or until is None:
        return None
    start, end = begin.start_ns or 0, until.end_ns or 0
    if end <= start:
        raise errors.BadWindowError.of(text, "the end is not after the start")
    if begin.each is None or begin.each != until.each:
        return [Window(start, end, text, process=begin.process)]
    rows = judged_iterations(report).filter(of_process(begin.process))
    own = rows.filter((pl.col("name") == begin.each) & pl.col("start_ns").is_between(start, end, closed="left"))
    return [Window(start, end, text, process=begin.process, count=max(own.height, 1), each=begin.each)]


def _iterations(report: Report, text: str) -> list[Window]:
    """The iterations that `text` names: one (``NAME#3``, ``NAME#-1``, ``step:5``), or all of ``NAME`` or a pattern."""
    if not {*model.DEVICE_KINDS}.intersection(report.kinds):
        return []
    rows, (name, which) = judged_iterations(report), window.parsed(text)
    names = rows.get_column("name").unique()
    alike = [one for one in names if window.EVERY in name and fnmatchcase(one, name)]
    if name == STEP:  # of an engine steps of any kind
        alike = rows.filter(found_by=BY_ENGINE).get_column("name").unique().to_list()
    alike = alike if name not in names else []
    step = pl.col("window") == text if _STEP.fullmatch(text) else pl.lit(value=False)
    own = rows.filter(pl.col("name").is_in([name, *alike]) | step).sort("start_ns")
    sides = own.select(**intervals.OF_EVENTS, name="window", process="process_id", each="name").iter_rows()
    group = text if alike else None
    windows = [Window(start, end, one, group, process, 1, each) for start, end, one, process, each in sides]
    some = window.chosen(windows, which, f"iteration of {name!r}") if windows else []
    return some if which in ("", window.EVERY) else [replace(one, name=text) for one in some]


def _side(report: Report, text: str) -> Window | None:
    """The one iteration, or else the range, that `text` names; None if it names none."""
    if len(windows := _iterations(report, text)) == 1:
        return windows[0]
    if not text or text.startswith(window.STEPS):
        return None
    try:
        return report.window(text)
    except (errors.BadWindowError, errors.UnknownNameError):
        return None


def sampling_cost(plain: Report, sampled: Report) -> str:
    """How long an iteration took in the run with samples, against the one without, as a sentence.

    Without iterations that are the same work (of one name, and as many operations), the time from the first operation
    to the last, if both have as many; else that it cannot be told.
    """
    one, other = steady_part(plain), steady_part(sampled)
    if one and other and one.each == other.each:
        counts = [float(median_of(part.usual, "operations")) for part in (one, other)]
        # with hardly another number of operations they are the same work
        if abs(counts[0] - counts[1]) <= 0.01 * max(counts):
            here, there = (median_of(part.lengths.to_frame(), "dur_ns") for part in (one, other))
            what = window.with_article(one.each) if one.each in window.WORDS else f"each {one.each!r}"
            times = f"{units.time(there)} against {units.time(here)}"
            medians = f"{times}, medians of {len(other.lengths):,} and {len(one.lengths):,}"
            return f"With samples {what} took {units.times(there / max(here, 1))} as long ({medians})."
    works = device_operations(plain), device_operations(sampled)
    if works[0].is_empty() or works[0].height != works[1].height:
        return "What sampling cost cannot be told: the two runs did not do the same."
    spans = [work.select(pl.col("end").max() - pl.col("start").min()).item() for work in works]
    long = f"{units.time(spans[1])} against {units.time(spans[0])}, of {works[0].height:,} operations"
    ratio = units.times(spans[1] / max(spans[0], 1))
    return f"With samples the time from the first operation to the last was {ratio} as long ({long})."


#: The name of time in no range of the iteration.
NO_RANGE: Final = "(between them)"

#: A part of an iteration, summed over the steady ones: its host time, and the ledger of that time on the main device.
_TIMES: Final = {f"{bucket}_ns": bucket for bucket in BUCKETS}
PART: Final = {"range": pl.String, **dict.fromkeys(("count", "ns", "busy_ns", *_TIMES), pl.Int64)}

#: The innermost range that holds more than half of what a bucket has in a part of an iteration; maybe that itself.
INNER: Final = {"range": pl.String, "bucket": pl.String, "inner": pl.String, "ns": pl.Int64}

#: Most different ranges that are told apart; the others are one row.
_MOST: Final = 64

_NS: Final = (pl.col("end") - pl.col("start")).sum()


def parts_of_step(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """Host time of the steady part by the outermost ranges inside the iterations: :data:`PART`, in order of time.

    The rows sum to the steady part. Empty where no range lies inside of an iteration.
    """
    children = _children(_within(report, steady)).select("name", "start", "end")
    if children.is_empty():
        return pl.DataFrame(schema=PART)
    low, high = steady.span
    whole = pl.DataFrame({"name": [NO_RANGE], "start": [low], "end": [high]}, schema=children.schema)
    spans = pl.concat([children, whole])
    own = steady.ledgers(report, spans.select("start", "end"))
    names = spans.get_column("name").gather(own.get_column("window"))
    count = pl.len().cast(pl.Int64).alias("count")
    by_range = own.with_columns(range=names, ns=pl.sum_horizontal(*_TIMES)).group_by("range", maintain_order=True)
    sums = by_range.agg(count, pl.col("ns", *_TIMES).sum())
    rest, inside = (sums.filter(side) for side in (pl.col("range") == NO_RANGE, pl.col("range") != NO_RANGE))
    left = [(pl.col(column) - inside.get_column(column).sum()).alias(column) for column in sums.columns[2:]]
    rows = pl.concat([inside.sort("ns", descending=True, maintain_order=True), rest.with_columns(left)])
    busy = pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS).alias("busy_ns")
    return rows.with_columns(busy).filter(pl.col("ns") > 0).select(list(PART))


def inner_parts(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """The innermost range that holds most of each bucket in each of :func:`parts_of_step`: :data:`INNER`."""
    every = _within(report, steady)
    outer = _children(every)
    own = every.join(outer, on=THREAD, how="semi", nulls_equal=True).sort("start", "end", descending=[False, True])
    around = outer.sort("start").select("start", range="name", until="end")
    held = own.join_asof(around, on="start").filter(pl.col("end") <= pl.col("until"))
    again = pl.col("start") < pl.col("end").cum_max().shift(1).over("range", "name")  # within one of its own name
    spans = held.filter(~again.fill_null(value=False)).with_row_index("window")
    spans = spans.with_columns(length=_NS.over("range", "name"))
    named = spans.join(steady.ledgers(report, spans.select("start", "end")), on="window", maintain_order="left")
    keys = ["range", "name", "length"]
    sums = named.group_by(keys, maintain_order=True).agg(pl.col(*_TIMES).sum()).rename(_TIMES)
    parts = sums.unpivot(index=keys, variable_name="bucket", value_name="ns")
    whole = pl.col("ns").filter(pl.col("name") == pl.col("range")).sum().over("range", "bucket")
    most = parts.filter(2 * pl.col("ns") > whole).sort("length", descending=True, maintain_order=True)
    return most.rename({"name": "inner"}).group_by("range", "bucket").last().select(list(INNER))


def _within(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """The ranges inside the steady iterations, none of which holds a whole one: :data:`THREAD`, start, end, name."""
    low, high = steady.span
    own = own_ranges(report, steady.process_id).drop("open").filter(pl.col("start") >= low, pl.col("end") <= high)
    usual = steady.usual.sort("start_ns")
    ends = usual.select(intervals.END.append(intervals.AFTER_ALL)).to_series()
    begun = usual.get_column("start_ns").search_sorted(own.get_column("start"), side="left")
    own = own.filter(ends.gather(begun) > own.get_column("end"))  # no epoch
    names = {name: plain(name) or name for name in own.get_column("name").unique()}
    masked = {name: [called(re.sub(some, "#", name)) for some in (window.NUMBER.pattern, SOME)] for name in names}
    steps = [
        one for one, name in names.items() if steady.each in (name, *masked[one]) or name.startswith(window.STEP_PREFIX)
    ]
    return own.filter(~pl.col("name").is_in(steps)).with_columns(pl.col("name").replace_strict(names, default=None))


def _children(ranges: pl.DataFrame) -> pl.DataFrame:
    """The outermost of `ranges`, on the thread that has most of them; of the names with most time."""
    outer = outermost(ranges)
    main = outer.group_by(THREAD).agg(ns=_NS).sort("ns", *THREAD, descending=[True, False, False]).head(1)
    mine = outer.join(main, on=THREAD, how="semi", nulls_equal=True)
    often = mine.group_by("name").agg(ns=_NS).sort("ns", descending=True).head(_MOST)
    return mine.filter(pl.col("name").is_in(often.get_column("name").implode()))


# Phases of a recording: what came before, between and after the steady part.


BEFORE: Final = "before"
BETWEEN: Final = "between"
AFTER: Final = "after"

#: Kinds of events that show when a process was at work.
_EVENTS: Final = (*model.DEVICE_KINDS, "api", "range", "op", "overhead")

TABLE: Final = Table(
    "phases",
    "One part of the recording of the process whose iterations are steady; the parts add up to the recording.",
    columns("""
        process_id int?: The process.
        phase text: steady, or before, between or after the steady iterations.
        part text: What the process did.
        ns int: Time of it; at each instant the first part that applies, in the order of definitions.md.
        share float: Part of the recording.
        count int: Number of stretches of time that it was; of iterations, their number.
        start_ns int: Start of the first of them.
    """),
    purpose="what came before and after the steady part",
)

#: Parts that are told by more than their names.
CONTEXT: Final = "context"
MODULES: Final = "modules"
COMPILING: Final = "compiling"
TIMING: Final = "timing of kernels"
AHEAD: Final = "host ahead of the GPU"
IMPORTS: Final = "before the first CUDA call"
PROGRAM: Final = "program"

#: How iterations outside of the steady part are told, by kind.
OTHERS: Final = "other"
_TOLD: Final = {WARM_UP: "first", STEADY: OTHERS, ODD: "odd", CUT: "cut"}

#: Most ranges, and most lines, that are parts of their own in a phase.
_RANGES: Final = 4
_LINES: Final = 3


@analysis
def phases(report: Report) -> pl.DataFrame:
    """The recording of one process, split by what it did, with its steady part as one of the parts.

    Definition: docs/definitions.md, section 4, "Iterations".

    Returns:
        :data:`TABLE`, in the order of the phases, the longest part first; empty if nothing repeats.

    Raises:
        CannotTellError: The report records no device operations.
    """
    require(report, TABLE, *model.DEVICE_KINDS)
    steady = steady_part(report)
    if steady is None:
        return TABLE.empty()
    (low, high), (since, until) = _edges(steady.rows), _edges(steady.usual)
    start, end = recorded_of(report, steady.process_id)
    start, end = min(start, low), max(min(end, intervals.AFTER_ALL - 1), high, steady.span[1])
    own = _span(*steady.span)
    parts = [(STEADY, steady.each, steady.ns, steady.number, steady.span[0])]
    # the program's own ranges, without those that are the iterations; and when it first called CUDA or ran anything
    ranges = own_ranges(report, steady.process_id).filter(~pl.col("open"))
    names = ranges.get_column("name").unique().drop_nulls()
    steps = [name for name in names if window.STEP_PREFIX in name or plain(name) == steady.each]
    events = report.kind("api").select("process_id", at="start_ns"), operations(report).select("process_id", at="start")
    first = pl.concat([frame.filter(of_process(steady.process_id)).select(pl.col("at").min()) for frame in events])
    begun: int | None = first.select(pl.col("at").min()).item()
    sources = [*_causes(report, steady)], ranges.filter(~pl.col("name").is_in(steps)), begun, _lines(report, steady)
    # before the first steady iteration, after the last, and between them outside of the steady part
    spans = {BEFORE: _span(start, since), BETWEEN: _span(since, until), AFTER: _span(until, end)}
    left = {phase: intervals.subtract(span, own) for phase, span in spans.items()}
    parts += [(phase, *part) for phase, span in left.items() for part in _parts(*sources, span)]
    columns = {**dict.fromkeys(("phase", "part"), pl.String), **dict.fromkeys(("ns", "count", "start_ns"), pl.Int64)}
    rows = pl.DataFrame(parts, schema=columns, orient="row").filter(pl.col("ns") > 0)
    total = int(rows.get_column("ns").sum())
    if total != end - start:
        raise AssertionError(f"phases add up to {total} ns of {end - start}")
    order = pl.col("phase").replace_strict({BEFORE: 0, STEADY: 1, BETWEEN: 2, AFTER: 3}, return_dtype=pl.Int64)
    table = rows.with_columns(process_id=pl.lit(steady.process_id, dtype=pl.Int64), share=pl.col("ns") / total)
    return TABLE.select(table.sort(order, "ns", descending=[False, True], maintain_order=True))


def _edges(iterations: pl.DataFrame) -> tuple[int, int]:
    """When the first iteration begins and the last one ends."""
    return iterations.select(pl.col("start_ns").min(), end=intervals.END.max()).row(0)


def recorded_of(report: Report, process: int | None) -> tuple[int, int]:
    """Start and end of what the report shows of a process: its own events, where it ran before the first of them.

    Such a report holds a slice of a session that is far longer than the events.
    """
    start, end = report.whole.recorded
    if _call_kinds.begun_before(report).filter(of_process(process)).is_empty():
        return start, end
    kinds = [report.kind(kind).filter(of_process(process)) for kind in _EVENTS if kind in report.kinds]
    spans = pl.concat([events.select(first=pl.col("start_ns").min(), last=intervals.END.max()) for events in kinds])
    first, last = spans.select(pl.col("first").min(), pl.col("last").max()).row(0)
    # far longer than the events of a process that ran before them, it is not what the report shows
    return (max(start, first), min(end, last)) if 2 * (last - first) < end - start else (start, end)


def part_of_session(report: Report, steady: SteadyPart) -> str:
    """How much the report shows of a session that is longer; empty where it is all."""
    (begin, end), (start, stop) = report.whole.recorded, recorded_of(report, steady.process_id)
    if stop - start == end - begin:
        return ""
    return f"The report shows {units.time(stop - start)} of the {units.time(end - begin)} of the session."


def _span(start: int, end: int) -> pl.DataFrame:
    span = pl.DataFrame({"start": [start], "end": [end]}, schema=intervals.SPANS)
    return span.filter(pl.col("end") > pl.col("start"))


def _parts(
    causes: Sequence[tuple[str, pl.DataFrame]],
    ranges: pl.DataFrame,
    first: int | None,
    lines: pl.DataFrame,
    left: pl.DataFrame,
) -> Iterator[tuple[str, int, int, int]]:
    """The parts of a phase: what, ns, how many, start of the first. At each instant the first that applies has it.

    The `causes` take precedence over the outermost of the program's own `ranges`, these over the time before its
    `first` call, and that over the program's `lines`.
    """
    imports = [] if first is None else [(IMPORTS, _span(intervals.BEFORE_ALL, first))]
    left = yield from _taken(causes, left)
    outer = _most(outermost(ranges.filter(touched(ranges, left))), left, _RANGES)
    left = yield from _taken(((f"in {plain(name) or name}", spans) for name, spans in outer), left)
    left = yield from _taken(imports, left)
    left = yield from _taken(_most(lines, left, _LINES), left)
    if left.height:
        yield PROGRAM, intervals.length(left), left.height, int(left.item(0, "start"))


def _taken(
    parts: Iterable[tuple[str, pl.DataFrame]], left: pl.DataFrame
) -> Generator[tuple[str, int, int, int], None, pl.DataFrame]:
    """What each of some parts, spans by name, takes of `left`, in turn; returns what none of them takes."""
    for part, spans in parts:
        own = spans.filter(touched(spans, left) & (spans.get_column("end") > spans.get_column("start")))
        if own.height and left.height:
            taken = intervals.intersect(left, intervals.union(own))
            yield part, intervals.length(taken), own.height, int(taken.item(0, "start"))
            left = intervals.subtract(left, taken)
    return left


def _causes(report: Report, steady: SteadyPart) -> Iterator[tuple[str, pl.DataFrame]]:
    """Named times of the process other than its ranges, by precedence."""
    process = of_process(steady.process_id)
    contexts = _call_kinds.context_calls(report).filter(process).select(start="start_ns", end="made_ns")
    yield CONTEXT, pl.concat([contexts, _call_kinds.unrecorded_contexts(report).filter(process).select("start", "end")])
    yield COMPILING, compile_spans(report)
    yield TIMING, _launch_periods.timed_runs(report).filter(process).select("start", "end")
    yield MODULES, _call_kinds.loading_seen(report).filter(process).select("start", "end")
    # whose work the steady part is
    yield AHEAD, steady.run.select(**intervals.OF_EVENTS)
    others = steady.rows.join(steady.run, on=["start_ns", "name"], how="anti")
    spans = others.select("name", "kind", **intervals.OF_EVENTS)
    by_kind = spans.partition_by("name", "kind", as_dict=True)
    for name in spans.get_column("name").unique(maintain_order=True):
        for kind, word in _TOLD.items():
            if (name, kind) in by_kind:
                yield f"{word} {name}", by_kind[name, kind].select("start", "end")


def _most(spans: pl.DataFrame, free: pl.DataFrame, most: int) -> Iterator[tuple[str, pl.DataFrame]]:
    """Those `spans` (name, start, end) that overlap `free`, by name, at most so many names of most time first."""
    inside = spans.with_columns(ns=intervals.covered(spans, free)).filter(pl.col("ns") > 0)
    sums = inside.group_by("name").agg(pl.col("ns").sum()).sort("ns", "name", descending=[True, False])
    for name in sums.head(most).get_column("name"):
        yield name, inside.filter(inside.get_column("name") == name)


def _lines(report: Report, steady: SteadyPart) -> pl.DataFrame:
    """When the thread of most calls, or else of most time, was in each line of the program: name, start, end."""
    rows = source_lines(report).filter(of_process(steady.process_id))
    calls = report.kind("api").filter(of_process(steady.process_id)).group_by("thread_id").agg(calls=pl.len())
    sums = rows.group_by("thread_id").agg(pl.col("dur_ns").sum()).join(calls, on="thread_id", how="left")
    thread = sums.sort("calls", "dur_ns", "thread_id", nulls_last=False).tail(1)
    own = rows.join(thread.select("thread_id"), on="thread_id", nulls_equal=True)
    return own.select(name=pl.format("at {}:{}", "file", "line"), **intervals.OF_EVENTS)
