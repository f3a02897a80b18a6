"""The host events of a framework's trace, on the threads that torch's own profiler assigns them to.

Operators, annotations and Python functions are on the thread that ran them. Events recorded by CUDA's profiler are not
always on the thread that the trace names: a call made inside an operator is on the operator's thread; a call made
outside of operators, and profiler overhead, are on the thread that ended the profiling
(torch/csrc/profiler/collection.cpp, setKinetoTID; torch/autograd/profiler.py, _parse_kineto_results).

torch's profiler looks up the operator of a call by a number: the operator's external id, or, for a call outside of
operators, the call's own correlation id. If the two collide, it mistakes the call for the operator: it counts the
operator's device operations as the call's, too, and assigns the operator's calls to the thread of the later of the two.
Its table contains these times, so ours does (:func:`mistaken`); no other column of ours does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD, laned, nested
from kanalyze.columns import beside, gathered, positions, telling
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report

# The call tree of host events, as torch's own profiler builds it.
#
# Events of one thread nest by :mod:`kanalyze.analyses.shared.threads`. An only child with its parent's name is
# removed; its children and launches become the parent's
# (torch.autograd.profiler_util, EventList._remove_dup_nodes).

_FIRST: Final = pl.Series([0], dtype=pl.Int64)


class HostTree(NamedTuple):
    """The host events that torch counts, and the event that each removed one is counted as.

    Attributes:
        rows: The counted events, by thread and start. Columns: event_id, kind, name, start, end, process_id, thread_id,
            parent (its row; null for none), stop (the first later row that is not inside it), self_ns (its time without
            its children's; negative if these overlap), last_id (the innermost of the events counted as it).
        threads: The first row and the number of rows of each thread: columns process_id, thread_id, begin, count.
        ids: The ids of all events.
        places: The row that each of them is counted as.
    """

    rows: pl.DataFrame
    threads: pl.DataFrame
    ids: pl.Series
    places: pl.Series

    def row_of(self, event_ids: pl.Series) -> pl.Series:
        """The rows that events are counted as; null for ids of no host event."""
        return gathered(self.places, positions(self.ids, event_ids))

    def of_kinds(self, *kinds: str) -> pl.Series:
        """A mask of the rows of these `kinds`."""
        return self.rows.select(pl.col("kind").is_in(kinds)).to_series()

    def nearest(self, rows: pl.Series, wanted: pl.Series) -> pl.Series:
        """The nearest enclosing row, or the row itself, that is `wanted` (a mask of all rows); null for none."""
        parents = self.rows.get_column("parent")
        while (further := ~gathered(wanted, rows).fill_null(value=True)).any():
            rows = rows.zip_with(~further, gathered(parents, rows))
        return rows

    def innermost(self, points: pl.DataFrame, wanted: pl.Series) -> pl.Series:
        """The innermost row that is `wanted` around each of `points` (process_id, thread_id, at); null for none."""
        numbered = points.select(*THREAD, "at").with_row_index("point")
        found = pl.Series([None], dtype=pl.Int64).new_from_index(0, points.height)
        starts, ends, parents = (self.rows.get_column(name) for name in ("start", "end", "parent"))
        known = numbered.join(self.threads, on=list(THREAD), nulls_equal=True)
        for part in known.partition_by("begin"):
            begin, count = part.select("begin", "count").row(0)
            at = part.get_column("at")
            row = starts.slice(begin, count).search_sorted(at, side="right").cast(pl.Int64) + (begin - 1)
            row = row.set(row < begin, None)
            while (over := (ends.gather(row) <= at).fill_null(value=False)).any():
                row = row.zip_with(~over, parents.gather(row))
            found = found.scatter(part.get_column("point"), self.nearest(row, wanted))
        return found


def in_order(events: pl.DataFrame) -> pl.DataFrame:
    """Sorts events by thread, start, and descending duration; stable."""
    order = [False, False, False, True]
    return events.sort(*THREAD, "start", "end", descending=order, maintain_order=True)


def tree_of(events: pl.DataFrame) -> HostTree:
    """The call tree of `events`, sorted by :func:`in_order`.

    They have the columns of `rows` except parent, stop, self_ns and last_id; further columns are kept.
    """
    threads = _threads(events)
    events = events.hstack(_nested(events).get_columns())
    parent = pl.col("parent") == pl.int_range(pl.len(), dtype=pl.Int64) - 1
    alone = parent & (pl.col("stop") == pl.col("stop").shift(1))
    kept = ~events.select((alone & (pl.col("name") == pl.col("name").shift(1))).fill_null(value=False)).to_series()
    ranks = kept.cast(pl.Int64).cum_sum() - 1
    ids = events.get_column("event_id")
    rows = events.with_columns(pl.col("event_id").alias("last_id"))
    if not kept.all():
        rows, threads = _without_doubles(rows, kept, ranks), _renumbered(threads, ranks)
    own = pl.col("end") - pl.col("start") - pl.col("inner_ns")
    return HostTree(rows.with_columns(own.alias("self_ns")).drop("inner_ns"), threads, ids, ranks)


def _threads(events: pl.DataFrame) -> pl.DataFrame:
    another = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in THREAD)
    begin = events.select(another | (pl.int_range(pl.len()) == 0)).to_series().arg_true().cast(pl.Int64)
    count = begin.shift(-1, fill_value=events.height) - begin
    return events.select(pl.col(THREAD).gather(begin)).with_columns(count.alias("count"), begin.alias("begin"))


def _nested(events: pl.DataFrame) -> pl.DataFrame:
    begin, found = 0, [nested(*events.clear().select("start", "end"))]
    for _, own in laned(events.select(*THREAD, "start", "end")):
        tree = nested(own.get_column("start"), own.get_column("end"))
        found.append(tree.with_columns(pl.col("parent", "stop") + begin))
        begin += own.height
    return pl.concat(found)


def _without_doubles(rows: pl.DataFrame, kept: pl.Series, ranks: pl.Series) -> pl.DataFrame:
    """The kept rows; each dropped row follows the one that it is counted as."""
    last = kept.arg_true().cast(pl.Int64).shift(-1, fill_value=len(kept)) - 1
    told = rows.select(pl.col("last_id", "inner_ns").gather(last))
    found = rows.filter(kept)
    before = pl.concat([_FIRST, ranks + 1])
    return found.with_columns(
        gathered(ranks, found.get_column("parent")).alias("parent"),
        before.gather(found.get_column("stop")).alias("stop"),
        *told.get_columns(),
    )


def _renumbered(threads: pl.DataFrame, ranks: pl.Series) -> pl.DataFrame:
    begin = ranks.gather(threads.get_column("begin"))
    count = begin.shift(-1, fill_value=int(ranks[-1]) + 1) - begin
    return threads.with_columns(begin.alias("begin"), count.alias("count"))


def sums_by(rows: pl.Series, values: pl.Series, count: int) -> pl.Series:
    """The sum of `values` per row, for `count` rows; null rows are ignored."""
    sums = pl.DataFrame({"row": rows, "value": values}).drop_nulls("row").group_by("row").agg(pl.col("value").sum())
    return pl.zeros(count, dtype=pl.Int64, eager=True).scatter(sums.get_column("row"), sums.get_column("value"))


def in_subtrees(rows: pl.DataFrame, own: pl.Series) -> pl.Series:
    """The sum of `own` over the subtree of each row."""
    before = pl.concat([_FIRST, own.cum_sum()])
    return before.gather(rows.get_column("stop")) - before.head(rows.height)


#: The kinds of host events that nest in each other. Of events with the same start and end, the first kind encloses the
#: others.
FRAMEWORK_KINDS: Final = ("range", "op", "python")
CALL_KINDS: Final = ("api", "overhead")
HOST_KINDS: Final = (*FRAMEWORK_KINDS, *CALL_KINDS)

#: Operators that torch's profiler omits (torch.autograd.profiler_util, _filter_name).
_LEFT_OUT: Final = (
    "profiler::_record_function_enter",
    "profiler::_record_function_enter_new",
    "profiler::_record_function_exit",
    "aten::is_leaf",
    "aten::output_nr",
    "aten::_version",
)

#: Names of collectives of process groups, such as nccl:all_reduce (torch/csrc/distributed/c10d/Work.cpp).
_COLLECTIVE: Final = r"^(?:nccl|gloo|mpi|ucc|xccl|hccl|fake):\w"

#: An operator's name with its overload, where that was recorded; torch counts by the name without it.
_OVERLOAD: Final = r"^(\w+::\w+)\.\w+$"

#: The name of Python's garbage collection, where its pauses were recorded.
_COLLECTOR: Final = "Python GC"

#: torch merges all steps of its profiler under one name.
_STEP: Final = "ProfilerStep#"
_STEPS: Final = "ProfilerStep*"


@once_per_process
def host_tree(report: Report) -> HostTree:
    """The call tree of all host events of the processes in scope, at any time, with the additional column `linked`.

    `linked` marks calls made inside an operator. Asynchronous events are in no tree.
    """
    return tree_of(_sorted([framework_events(report), _calls(report)]))


@once_per_process
def operator_tree(report: Report) -> HostTree:
    """The call tree without Python functions, from which torch computes its table, with or without stacks.

    torch 2.13 includes Python functions in that table if stacks were recorded, and subtracts their time from the events
    around them; earlier versions do not.
    """
    if report.kind("python").is_empty():
        return host_tree(report)
    return tree_of(_sorted([_framework(report, ("range", "op")), _calls(report)]))


@once_per_process
def annotation_events(report: Report) -> pl.DataFrame:
    """All annotations: columns event_id, kind, name, start, end, process_id, thread_id."""
    return _part(report, "range")


def asynchronous(report: Report) -> pl.DataFrame:
    """Annotations that may end on another thread than they began on, such as collectives.

    torch counts them, but subtracts their time from no event, and assigns them no children.
    """
    return annotation_events(report).filter(_is_asynchronous(annotation_events(report)))


@once_per_process
def call_makers(report: Report) -> pl.DataFrame:
    """The operator around each CUDA call: columns event_id (of the call), maker_id or null.

    By External id; in traces without any, as some versions of torch write them, the innermost enclosing operator.
    """
    calls = report.kind("api")
    makers = calls.select("event_id", maker_id="parent_id")
    told = (report.kind(kind).get_column("parent_id") for kind in ("api", *DEVICE_KINDS))
    if calls.is_empty() or any(ids.is_not_null().any() for ids in told):
        return makers
    tree = tree_of(_sorted([_framework(report, ("range", "op"))]))
    around = tree.innermost(calls.select(*THREAD, at="start_ns"), tree.of_kinds("op"))
    if around.is_null().all():
        return makers
    return makers.with_columns(tree.rows.get_column("event_id").gather(around).alias("maker_id"))


@once_per_process
def mistaken(report: Report) -> pl.DataFrame:
    """Calls outside of operators that torch's profiler mistakes for an operator: event_id, op_id (the operator's).

    Also with call_start and op_start, and their threads, home and op_thread.
    """
    free = call_makers(report).get_column("maker_id").is_null()
    calls = report.kind("api").filter(free)
    calls = calls.select("event_id", "process_id", "correlation_id", call_start="start_ns")
    ids = report.table("op_detail").select("external_id", op_id="event_id").filter(pl.col("external_id") > 0)
    ids = ids.filter(positions(calls.get_column("correlation_id"), ids.get_column("external_id")).is_not_null())
    ids = telling(ids, ["external_id"])
    pairs = calls.join(ids, left_on="correlation_id", right_on="external_id")
    ops = pl.concat([report.kind(kind) for kind in ("range", "op")])
    ops = ops.select("process_id", op_id="event_id", op_start="start_ns", op_thread="thread_id")
    found = pairs.join(ops, on=["op_id", "process_id"], nulls_equal=True)
    return found.join(_homes(report), on="process_id", how="left", nulls_equal=True)


def _calls_on_other_threads(report: Report) -> pl.DataFrame:
    """Calls of operators that torch assigns to the thread of a call mistaken for the operator."""
    away = (pl.col("op_thread") != pl.col("home")) & (pl.col("call_start") >= pl.col("op_start"))
    ops = mistaken(report).filter(away).unique("op_id").select(maker_id="op_id", moved_to="home")
    return call_makers(report).join(ops, on="maker_id").select("event_id", "moved_to")


def _sorted(parts: list[pl.DataFrame]) -> pl.DataFrame:
    columns = ("event_id", "kind", "name", "start", "end", *THREAD, "linked")
    return in_order(pl.concat([part.select(columns) for part in parts]))


def _framework(report: Report, kinds: Sequence[str]) -> pl.DataFrame:
    """Annotations, operators and Python functions of these `kinds`, as recorded."""
    parts = {kind: _part(report, kind) for kind in (*kinds, "python")}
    if "range" in parts:
        parts["range"] = parts["range"].filter(~_is_asynchronous(parts["range"]))
    if "python" not in kinds:  # torch counts garbage collection, which is recorded among the Python functions
        parts["python"] = parts["python"].filter(pl.col("name").cast(pl.String) == _COLLECTOR)
    return pl.concat(list(parts.values())).with_columns(linked=pl.lit(value=False))


def _is_asynchronous(ranges: pl.DataFrame) -> pl.Series:
    names = ranges.get_column("name").unique().drop_nulls()
    found = names.filter(names.cast(pl.String).str.contains(_COLLECTIVE))
    return ranges.select(pl.col("name").is_in(found.implode()).fill_null(value=False)).to_series()


def _calls(report: Report) -> pl.DataFrame:
    """CUDA calls and overhead: calls in an operator on its thread, all others on the home thread of their process."""
    threads = pl.concat([report.kind(kind).select("event_id", "thread_id") for kind in ("range", "op")])
    makers = call_makers(report).get_column("maker_id")
    at = positions(threads.get_column("event_id"), makers)
    made_on = gathered(threads.get_column("thread_id"), at).alias("made_on")
    made = _part(report, "api").with_columns(made_on).filter(makers.is_not_null())
    made = beside(made, _calls_on_other_threads(report), "moved_to")
    thread = pl.coalesce("moved_to", "made_on", "thread_id").alias("thread_id")
    made = made.with_columns(thread, linked=pl.lit(value=True))
    free = home_calls(report)
    return pl.concat([made.select(free.columns), free])


def home_calls(report: Report) -> pl.DataFrame:
    """CUDA calls outside of operators, and overhead, on the home thread of their process."""
    free = call_makers(report).get_column("maker_id").is_null()
    calls = pl.concat([_part(report, "api").filter(free), _part(report, "overhead")])
    homes = _homes(report)
    if homes.height == 1:  # overhead may lack a process
        calls = calls.with_columns(process_id=pl.lit(homes.item(0, "process_id"), dtype=pl.Int64))
    known = calls.join(homes, on="process_id", how="left", maintain_order="left", nulls_equal=True)
    known = known.with_columns(pl.coalesce("home", "thread_id").alias("thread_id"), linked=pl.lit(value=False))
    return known.drop("home")


def framework_events(report: Report) -> pl.DataFrame:
    """Annotations, operators and Python functions, as recorded, without asynchronous ones."""
    return _framework(report, FRAMEWORK_KINDS)


def _part(report: Report, kind: str) -> pl.DataFrame:
    events, name = report.kind(kind), pl.col("name")
    if kind in FRAMEWORK_KINDS:
        names = events.get_column("name").unique().cast(pl.String)
        if names.has_nulls():
            name = name.cast(pl.String).fill_null("").cast(pl.Categorical)
        if names.is_in(_LEFT_OUT).any():
            events = events.filter(~pl.col("name").cast(pl.String).is_in(_LEFT_OUT).fill_null(value=False))
        if names.str.starts_with(_STEP).any():
            text = name.cast(pl.String)
            name = pl.when(text.str.starts_with(_STEP)).then(pl.lit(_STEPS)).otherwise(text).cast(pl.Categorical)
        if kind == "op" and names.str.contains(_OVERLOAD).any():
            name = name.cast(pl.String).str.replace(_OVERLOAD, "$1").cast(pl.Categorical)
    return events.select(
        "event_id",
        pl.lit(kind, dtype=pl.Enum(HOST_KINDS)).alias("kind"),
        name.alias("name"),
        pl.col("start_ns").alias("start"),
        (pl.col("start_ns") + pl.col("dur_ns").fill_null(0)).alias("end"),
        *THREAD,
    )


@once_per_process
def _homes(report: Report) -> pl.DataFrame:
    """The thread that ended the profiling, for each process with operators: columns process_id, home.

    That is the thread of the profiler's steps, else the process' first thread, else the one that began first; if there
    are no operators at all, of the threads that made CUDA calls.
    """
    parts = []
    for kind in FRAMEWORK_KINDS:
        events = report.kind(kind).filter(pl.col("thread_id").is_not_null())
        names = events.get_column("name").unique().cast(pl.String)
        step = names.filter(names.str.starts_with(_STEP).fill_null(value=False)).cast(pl.Categorical)
        steps = pl.col("name").is_in(step.implode()).sum() if len(step) else pl.lit(0)
        parts.append(events.group_by(THREAD).agg(start=pl.col("start_ns").min(), steps=steps.cast(pl.Int64)))
    framework = pl.concat(parts)
    if framework.is_empty():
        calls = report.kind("api").filter(pl.col("thread_id").is_not_null())
        framework = calls.group_by(THREAD).agg(start=pl.col("start_ns").min(), steps=pl.lit(0, dtype=pl.Int64))
    threads = framework.group_by(THREAD).agg(pl.col("start").min(), pl.col("steps").sum() > 0)
    rank = pl.when("steps").then(0).when(pl.col("thread_id") == pl.col("process_id")).then(1).otherwise(2)
    first = threads.with_columns(rank.alias("rank")).sort("process_id", "rank", "start", "thread_id")
    return first.group_by("process_id", maintain_order=True).agg(pl.col("thread_id").first().alias("home"))
