"""What the host was in while it was in no CUDA call, by name, where a framework recorded its operators or Python.

An instant goes by the innermost of what the thread was in then: operators, annotations (other than the steps of a
profiler), modules, and what the program's own Python called of libraries. Where that is in a Python function of the
program, the innermost one, it is told with it: ``aten::to in train.py(31): step``. The function alone names what
happens in nothing else in it. Where no function of the program is recorded, any other Python function counts. What
happens in nothing at all goes by the operators, annotations and CUDA calls at its sides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._windows import busy_spans
from kanalyze.analyses.host._python_frames import called_by_program, roles
from kanalyze.analyses.host._thread_timeline import shown_calls
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_line
from kanalyze.named_ranges import STEP_PREFIX

if TYPE_CHECKING:
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
    from kanalyze.report import Report

#: The kinds of events that a framework records of the host beside annotations.
_KINDS: Final = ("op", "python")

_THING: Final = ("start", "end", "name")
_LINE: Final = {"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}

_UNNAMED: Final = "a call without a name"


def framework_recorded(report: Report) -> bool:
    """Whether the report holds operators or Python functions at all."""
    return not set(_KINDS).isdisjoint(report.kinds)


def named(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """`pieces` of a thread's host time cut where what it was in changes, with `culprit`, which names it.

    The pieces (start, end, and what else is to be kept) are sorted and do not overlap.
    """
    things = _things(report)
    told = things.cut(key, pieces, "what")
    if "python" in report.kinds:
        told = _with_functions(report, key, told)
    else:
        told = told.with_columns(things.at(told.get_column("what")).get_column("name").alias("culprit"))
    told = told.select(*pieces.columns, "culprit")
    alone = told.filter(pl.col("culprit").is_null())
    if alone.is_empty():
        return told
    between = alone.with_columns(_between(report, key, alone).alias("culprit"))
    return pl.concat([told.filter(pl.col("culprit").is_not_null()), between])


class _Things(NamedTuple):
    """What threads can be in: process_id, thread_id, start, end and name, by row; and the innermost one at any time.

    The lines (start, end, row) of each thread, by process id and thread id, hold what lasts while a device is idle.
    """

    table: pl.DataFrame
    lines: dict[ThreadKey, pl.DataFrame]

    def cut(self, key: ThreadKey, pieces: pl.DataFrame, column: str) -> pl.DataFrame:
        """`pieces` of a thread cut where the innermost thing changes, with its row as `column`."""
        line = self.lines.get(key, pl.DataFrame(schema=_LINE))
        return overlaid(pieces, line.rename({"row": column}), column)

    def at(self, rows: pl.Series) -> pl.DataFrame:
        """Start, end and name of the things of `rows`; nulls for null."""
        return pl.DataFrame([gathered(self.table.get_column(name), rows) for name in _THING])


def _told(pieces: pl.DataFrame, what: pl.DataFrame, where: pl.DataFrame) -> pl.DataFrame:
    """`pieces` in functions of the program (`where`) with `culprit`: that, and `what` they are in, if that is in it."""
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
    """Whether a thing around an instant is in another one around it: it started later, or ended earlier; else null."""
    later, sooner = (inner.get_column(side) for side in ("start", "end"))
    start, end = (outer.get_column(side) for side in ("start", "end"))
    return (later > start) | ((later == start) & (sooner < end))


def _with_functions(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """`pieces` (with `what`, the innermost thing) cut by Python functions, with `culprit`; null for nothing."""
    things, functions = _things(report), _functions(report)
    cut = functions.cut(key, pieces, "where")
    lost = cut.filter(pl.col("where").is_null())
    found = cut.filter(pl.col("where").is_not_null())
    what, where = things.at(found.get_column("what")), functions.at(found.get_column("where"))
    return pl.concat([_told(found, what, where), _in_other_functions(report, key, lost)])


def _in_other_functions(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """`pieces` that are in no function of the program, cut by any others, with `culprit`."""
    own = _python(report).filter(_of_thread(key)).with_row_index("row")
    others = _Things(own, {key: innermost_line(_touching(own, pieces))})
    cut = others.cut(key, pieces, "function")
    what, function = _things(report).at(cut.get_column("what")), others.at(cut.get_column("function"))
    in_function = what.get_column("start").is_null() | _within(function, what).fill_null(value=False)
    name = what.get_column("name").zip_with(~in_function, function.get_column("name"))
    return cut.drop("function").with_columns(name.alias("culprit"))


def _of_thread(key: ThreadKey) -> pl.Expr:
    process, thread = (pl.lit(value, dtype=pl.Int64) for value in key)
    return pl.col("process_id").eq_missing(process) & pl.col("thread_id").eq_missing(thread)


def _touching(events: pl.DataFrame, spans: pl.DataFrame) -> pl.DataFrame:
    """The `events` (start, end) that overlap any of `spans`, which are sorted and apart."""
    begun = spans.get_column("start").search_sorted(events.get_column("end"), side="left")
    over = spans.get_column("end").search_sorted(events.get_column("start"), side="right")
    return events.filter(begun > over)


@once_per_process
def _things(report: Report) -> _Things:
    """Operators, annotations, modules, and what the program's own Python called of libraries."""
    python = _python(report)
    inner = python.filter((pl.col("role") == "module") | called_by_program(python))
    # of things that start and end together the operator is the innermost
    parts = [_named(report.kind("range")), inner.select(*THREAD, *_THING), _named(report.kind("op"))]
    return _lined(report, pl.concat(parts))


@once_per_process
def _functions(report: Report) -> _Things:
    """The program's own Python functions."""
    python = _python(report)
    return _lined(report, python.filter(pl.col("role") == "program").select(*THREAD, *_THING))


@once_per_process
def _python(report: Report) -> pl.DataFrame:
    """All Python functions: event_id, parent_id, process_id, thread_id, start, end, role, name (as it is shown)."""
    events = report.kind("python")
    known = roles(events.get_column("name").unique())
    told = events.join(known, on="name", how="left", nulls_equal=True, maintain_order="left")
    ids = ("event_id", "parent_id", *THREAD)
    return told.select(*ids, **_times(), role="role", name="shown").sort("event_id")


def _times() -> dict[str, pl.Expr]:
    return {"start": pl.col("start_ns"), "end": pl.col("start_ns") + pl.col("dur_ns").fill_null(0)}


def _named(events: pl.DataFrame) -> pl.DataFrame:
    """Annotations or operators that have a name and are no step of a profiler."""
    names = events.get_column("name").unique()
    texts = names.cast(pl.String)
    others = names.filter(texts.is_null() | texts.str.starts_with(STEP_PREFIX))
    if len(others):
        events = events.filter(~pl.col("name").is_in(others.implode(), nulls_equal=True))
    return events.select(*THREAD, **_times(), name="name")


def _lined(report: Report, table: pl.DataFrame) -> _Things:
    rows = _touching(table.with_row_index("row"), _idle(report))
    parts = rows.partition_by(THREAD, as_dict=True).items()
    return _Things(table, {(key[0], key[1]): innermost_line(part) for key, part in parts})


@once_per_process
def _idle(report: Report) -> pl.DataFrame:
    """The span set in which any device was idle, at any time."""
    every = [intervals.gaps(busy, intervals.BEFORE_ALL, intervals.AFTER_ALL) for busy in busy_spans(report).values()]
    return intervals.union(pl.concat([pl.DataFrame(schema=intervals.SPANS), *every]))


class _Sides(NamedTuple):
    """What stretches of a thread's time lie between: its things and CUDA calls, sorted by start, the longest first.

    Attributes:
        start: When each starts.
        reached: The latest end up to each one.
        name: Its name.
    """

    start: pl.Series
    reached: pl.Series
    name: pl.Series


@once_per_process
def _sides(report: Report) -> dict[ThreadKey, _Sides]:
    calls = report.kind("api")
    names = shown_calls(report, calls.get_column("name")).alias("name")
    own = calls.select(*THREAD, **_times()).with_columns(names)
    every = pl.concat([_things(report).table, own])
    found = {}
    for key, part in every.partition_by(THREAD, as_dict=True).items():
        line = part.sort("start", "end", descending=[False, True], maintain_order=True)
        found[key[0], key[1]] = _Sides(
            line.get_column("start"), line.get_column("end").cum_max(), line.get_column("name")
        )
    return found


def _between(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.Series:
    """For stretches of a thread in nothing: what lies at their sides, as a text.

    Before is, of what started no later than a stretch, what ended last, then started first; after is what starts first
    once it has ended, of several the one that ends last.
    """
    sides = _sides(report).get(key)
    if sides is None:
        return pl.Series([None], dtype=pl.Categorical).new_from_index(0, pieces.height)
    begun = sides.start.search_sorted(pieces.get_column("start"), side="right").cast(pl.Int64) - 1
    latest = gathered(sides.reached, begun.set(begun < 0, None))
    first = sides.reached.search_sorted(latest.fill_null(0), side="left").set(begun < 0, None)
    after = sides.start.search_sorted(pieces.get_column("end"), side="left")
    places = {"a": first, "b": after.set(after == len(sides.start), None)}
    pairs = pl.DataFrame({side: _side(sides.name, at) for side, at in places.items()})
    return between_texts(pairs)


def _side(names: pl.Series, at: pl.Series) -> pl.Series:
    unnamed = at.is_not_null() & gathered(names, at).is_null()
    texts = gathered(names, at).cast(pl.String)
    return texts.set(unnamed, _UNNAMED).cast(pl.Categorical)


def between_texts(pairs: pl.DataFrame) -> pl.Series:
    """What stands between the two things of each row (a, b), as a text; null where there is neither."""
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


def forget_names(report: Report) -> None:
    """Let go of what the names of host time are found by: of a large report as much as its events take."""
    for kept in (_things, _functions, _python, _idle, _sides):
        kept.forget(report)
