"""Names host time outside CUDA calls by operator and Python function, where a framework recorded them.

The name of an instant is the innermost host event of the thread: an operator, an annotation (other than a profiler
step), a module, or a library function that program code called. Within a Python function of the program, the innermost
of those is appended: ``aten::to in train.py(31): step``; time in such a function and in no host event within it has the
name of the function alone. Where no function of the program is recorded, any other Python function counts. Time in no
event at all is named by the operators, annotations and CUDA calls before and after it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.host._python_frames import called_by_program, roles
from kanalyze.analyses.host._thread_timeline import shown_calls, threads
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.thread_lanes import THREAD, laned
from kanalyze.analyses.shared.thread_nesting import innermost_lines
from kanalyze.columns.lookup import count_up_to, gathered
from kanalyze.columns.ordering import in_order_of
from kanalyze.named_ranges import STEP_PREFIX

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: Kinds of host events that a framework records, annotations aside.
_KINDS: Final = ("op", "python")

_EVENT_COLUMNS: Final = ("start", "end", "name")
_LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

_UNNAMED: Final = "a call without a name"


def framework_recorded(report: Report) -> bool:
    """Whether the report has operators or Python functions."""
    return not set(_KINDS).isdisjoint(report.kinds)


def named(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` of the host time of a thread by its innermost event; adds the name as `culprit`.

    `pieces` (start, end, and any other columns, which are kept) are sorted and disjoint.
    """
    things = _host_events(report)
    told = things.cut(key, pieces, "what")
    if "python" in report.kinds:
        told = _with_functions(report, key, told)
    else:
        told = told.with_columns(things.at(told.get_column("what")).get_column("name").alias("culprit"))
    told = told.select(*pieces.columns, "culprit")
    alone = told.filter(pl.col("culprit").is_null())
    if alone.is_empty():
        return told
    between = alone.with_columns(neighbours(report, key, alone).alias("culprit"))
    return pl.concat([told.filter(pl.col("culprit").is_not_null()), between])


@once_per_process
def named_events(report: Report) -> pl.DataFrame:
    """Operators, annotations, modules and library functions that program code called, none of them a profiler step.

    Columns: process_id, thread_id, start, end, name; of events with equal times the last one is the innermost.
    """
    # of events with equal start and end the last one is the innermost: the operator
    parts = [_named(report.kind("range"))]
    if "python" in report.kinds:
        python = _python(report)
        inner = python.filter((pl.col("role") == "module") | called_by_program(python))
        parts.append(inner.select(*THREAD, *_EVENT_COLUMNS))
    return pl.concat([*parts, _named(report.kind("op"))]) if "op" in report.kinds else pl.concat(parts)


@once_per_process
def program_functions(report: Report) -> pl.DataFrame:
    """Python functions of the program itself, with the columns of :func:`named_events`."""
    if "python" not in report.kinds:
        return named_events(report).clear()
    return _python(report).filter(pl.col("role") == "program").select(*THREAD, *_EVENT_COLUMNS)


class _HostEvents(NamedTuple):
    """Host events (process_id, thread_id, start, end, name), and the timeline of the innermost one per thread.

    The timelines (start, end, row), by process id and thread id, have the events that overlap idle time of a device.
    """

    table: pl.DataFrame
    lines: dict[ThreadKey, pl.DataFrame]

    def cut(self, key: ThreadKey, pieces: pl.DataFrame, column: str) -> pl.DataFrame:
        """Splits `pieces` of a thread by the innermost event; adds the row of that as `column`."""
        line = self.lines.get(key, pl.DataFrame(schema=_LINE))
        return overlaid(pieces, line.rename({"row": column}), column)

    def at(self, rows: pl.Series) -> pl.DataFrame:
        """Start, end and name of the events in `rows`; nulls for null."""
        return pl.DataFrame([gathered(self.table.get_column(name), rows) for name in _EVENT_COLUMNS])


def _in_program_function(pieces: pl.DataFrame, what: pl.DataFrame, where: pl.DataFrame) -> pl.DataFrame:
    """Adds `culprit`, ``WHAT in WHERE``, to `pieces` in program functions; WHERE alone unless WHAT is inside it."""
    name = what.get_column("name").set(~_within(what, where).fill_null(value=False), None)
    pairs = pl.DataFrame([name.alias("what"), where.get_column("name").alias("where")])
    known = pairs.unique()
    text = (
        pl.when(pl.col("what").is_null())
        .then(pl.col("where").cast(pl.String))
        .otherwise(pl.format("{} in {}", "what", "where"))
    )
    known = known.with_columns(text.cast(pl.Categorical).alias("text"))
    texts = pairs.join(known, on=["what", "where"], how="left", nulls_equal=True, maintain_order="left")
    return pieces.with_columns(texts.get_column("text").alias("culprit"))


def _within(inner: pl.DataFrame, outer: pl.DataFrame) -> pl.Series:
    """Whether, of two events around an instant, `inner` is inside `outer`; null where either is missing."""
    later, sooner = (inner.get_column(side) for side in ("start", "end"))
    start, end = (outer.get_column(side) for side in ("start", "end"))
    return (later > start) | ((later == start) & (sooner < end))


def _with_functions(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` (with `what`, the innermost event) by program function; adds `culprit`, null for none."""
    things, functions = _host_events(report), _functions(report)
    cut = functions.cut(key, pieces, "where")
    lost = cut.filter(pl.col("where").is_null())
    found = cut.filter(pl.col("where").is_not_null())
    what, where = things.at(found.get_column("what")), functions.at(found.get_column("where"))
    return pl.concat([_in_program_function(found, what, where), _in_other_functions(report, key, lost)])


def _in_other_functions(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """Splits `pieces` outside program functions by any other Python function; adds `culprit`."""
    own = _python(report).filter(_of_thread(key)).with_row_index("row")
    others = _HostEvents(own, innermost_lines(_overlapping(own, pieces)))
    cut = others.cut(key, pieces, "function")
    what, function = _host_events(report).at(cut.get_column("what")), others.at(cut.get_column("function"))
    in_function = what.get_column("start").is_null() | _within(function, what).fill_null(value=False)
    name = what.get_column("name").zip_with(~in_function, function.get_column("name"))
    return cut.drop("function").with_columns(name.alias("culprit"))


def _of_thread(key: ThreadKey) -> pl.Expr:
    process, thread = (pl.lit(value, dtype=pl.Int64) for value in key)
    return pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread)


def _overlapping(events: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The `events` (start, end) that overlap any interval of the span set `spans`."""
    begun = spans.get_column("start").search_sorted(events.get_column("end"), side="left")
    over = spans.get_column("end").search_sorted(events.get_column("start"), side="right")
    return events.filter(begun > over)


@once_per_process
def _host_events(report: Report) -> _HostEvents:
    """Operators, annotations, modules, and library functions called by program code."""
    return _with_timelines(report, named_events(report))


@once_per_process
def _functions(report: Report) -> _HostEvents:
    """Python functions of the program itself."""
    return _with_timelines(report, program_functions(report))


@once_per_process
def _python(report: Report) -> pl.DataFrame:
    """All Python functions: event_id, parent_id, process_id, thread_id, start, end, role, name (as shown)."""
    events = report.kind("python")
    known = roles(events.get_column("name").unique())
    told = events.join(known, on="name", how="left", nulls_equal=True, maintain_order="left")
    ids = ("event_id", "parent_id", *THREAD)
    return told.select(*ids, **intervals.OF_EVENTS, role="role", name="shown").sort("event_id")


def _named(events: pl.DataFrame) -> pl.DataFrame:
    """Annotations or operators with a name, profiler steps left out: :data:`THREAD`, start, end, name."""
    names = events.get_column("name").unique()
    texts = names.cast(pl.String)
    others = names.filter(texts.is_null() | texts.str.starts_with(STEP_PREFIX))
    if len(others):
        events = events.filter(~pl.col("name").is_in(others.implode(), nulls_equal=True))
    return events.select(*THREAD, **intervals.OF_EVENTS, name="name")


def _with_timelines(report: Report, table: pl.DataFrame) -> _HostEvents:
    rows = _overlapping(table.with_row_index("row"), _idle(report))
    return _HostEvents(table, innermost_lines(rows))


@once_per_process
def _idle(report: Report) -> pl.DataFrame:
    """The span set in which at least one device was idle, at any time."""
    every = [intervals.gaps(busy, intervals.BEFORE_ALL, intervals.AFTER_ALL) for busy in busy_spans(report).values()]
    return intervals.union(pl.concat([pl.DataFrame(schema=intervals.SPANS), *every]))


class _Neighbours(NamedTuple):
    """Host events and CUDA calls of a thread, sorted by start, the longest first, to look up neighbours in.

    Attributes:
        start: Start of each.
        reached: Running maximum of the ends.
        name: Name of each.
    """

    start: pl.Series
    reached: pl.Series
    name: pl.Series


@once_per_process
def _neighbours(report: Report) -> dict[ThreadKey, _Neighbours]:
    calls = report.kind("api")
    names = shown_calls(report, calls.get_column("name")).alias("name")
    own = calls.select(*THREAD, **intervals.OF_EVENTS).with_columns(names)
    every = pl.concat([named_events(report), own])
    found: dict[ThreadKey, _Neighbours] = {}
    for lanes, part in laned(every):
        line = in_order_of(part.drop(THREAD), ("start",), (-pl.col("end"),)).with_columns(pl.col("end").cum_max())
        found.update((key, _Neighbours(*own.get_columns())) for key, own in lanes.of_each(line))
    return found


def neighbours(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.Series:
    """Names intervals of a thread in no event by the events before and after them.

    Before: of those that started no later than the interval, the one that ended last, then the one that started first.
    After: the first to start once the interval has ended, of several the longest.
    """
    sides = _neighbours(report).get(key)
    if sides is None:
        return pl.Series([None], dtype=pl.Categorical).new_from_index(0, pieces.height)
    return _between(sides, pieces)


def between_calls(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.Series:
    """:func:`neighbours` among the CUDA calls alone."""
    thread, names = threads(report)[key], report.kind("api").get_column("name")
    low, high = pieces.select(pl.col("start").min(), pl.col("end").max()).row(0)
    # from the call that had returned last before the first piece to the first one after the last piece
    first = bisect_right(thread.rows, low, key=thread.starts.item)
    first = bisect_left(thread.reached, thread.reached.item(first - 1)) if first else 0
    stop = bisect_left(thread.rows, high, key=thread.starts.item) + 1
    rows, reached = (of.slice(first, stop - first) for of in (thread.rows, thread.reached))
    near = _Neighbours(gathered(thread.starts, rows), reached, shown_calls(report, gathered(names, rows)))
    return _between(near, pieces)


def _between(sides: _Neighbours, pieces: pl.DataFrame) -> pl.Series:
    begun = count_up_to(sides.start, pieces.get_column("start"), equal=True)
    latest = gathered(sides.reached, (begun - 1).set(begun == 0, None))
    first = count_up_to(sides.reached, latest.fill_null(0), equal=False).set(begun == 0, None)
    after = count_up_to(sides.start, pieces.get_column("end"), equal=False)
    places = {"a": first, "b": after.set(after == len(sides.start), None)}
    pairs = pl.DataFrame({side: _neighbour_names(sides.name, at) for side, at in places.items()})
    return _texts(pairs)


def _neighbour_names(names: pl.Series, at: pl.Series) -> pl.Series:
    told = gathered(names, at)
    unnamed = at.is_not_null() & told.is_null()
    return told.cast(pl.String).set(unnamed, _UNNAMED).cast(pl.Categorical) if unnamed.any() else told


def _texts(pairs: pl.DataFrame) -> pl.Series:
    """The text ``between A and B`` for each row (a, b), or ``after A``, ``before B``; null where both are null."""
    known = pairs.unique(maintain_order=True)
    texts = known.select(
        pl.when(pl.col("a").is_null())
        .then(pl.format("before {}", "b"))
        .when(pl.col("b").is_null())
        .then(pl.format("after {}", "a"))
        .otherwise(pl.format("between {} and {}", "a", "b"))
    )
    told = known.with_columns(texts.to_series().cast(pl.Categorical).alias("text"))
    return pairs.join(told, on=["a", "b"], how="left", nulls_equal=True, maintain_order="left").get_column("text")
