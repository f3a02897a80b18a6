"""The host events of a framework's trace, on the threads that torch's own profiler assigns them to, and their tree.

Operators, annotations and Python functions are on the thread that ran them. Events recorded by CUDA's profiler are not
always on the thread that the trace names: a call made inside an operator is on the operator's thread; a call made
outside of operators, and profiler overhead, are on the thread that ended the profiling
(torch/csrc/profiler/collection.cpp, setKinetoTID; torch/autograd/profiler.py, _parse_kineto_results).

torch's profiler looks up the operator of a call by a number: the operator's external id, or, for a call outside of
operators, the call's own correlation id. If the two collide, it mistakes the call for the operator: it counts the
operator's device operations as the call's, too, and assigns the operator's calls to the thread of the later of the two.
Its table contains these times, so ours does (:func:`mistaken`); no other column of ours does.
"""

import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD, by_thread, nested
from kanalyze.columns import beside, gathered, having, nearest_place, of_parts, positions, rows_by, telling, told_of
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report

# The call tree of host events, as torch's own profiler builds it.
#
# Events of one thread nest by :mod:`kanalyze.analyses.shared.threads`. An only child with its parent's name is removed;
# its children and launches become the parent's (torch.autograd.profiler_util, EventList._remove_dup_nodes).

_FIRST: Final = pl.Series([0], dtype=pl.Int64)


class HostTree(NamedTuple):
    """The host events that torch counts, and the event that each removed one is counted as."""

    #: The counted events, by thread and start: event_id, kind, name, start, end, process_id, thread_id, linked, parent
    #: (its row; null for none), stop (the first later row that is not inside it), self_ns (its time without its
    #: children's; negative if these overlap), last_id (the innermost of the events counted as it).
    rows: pl.DataFrame
    ids: pl.Series  # of all events
    places: pl.Series  # the row that each of them is counted as

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

    def outermost(self, rows: pl.Series, wanted: pl.Series) -> pl.Series:
        """The outermost row that is `wanted` around each of `rows`; the row itself where none is."""
        parents = self.rows.get_column("parent")
        while (above := self.nearest(gathered(parents, rows), wanted)).is_not_null().any():
            rows = rows.zip_with(above.is_null(), above)
        return rows

    def innermost(self, points: pl.DataFrame, wanted: pl.Series) -> pl.Series:
        """The innermost row that is `wanted` around each of `points` (process_id, thread_id, at); null for none."""
        starts, ends, parents = (self.rows.get_column(name) for name in ("start", "end", "parent"))
        threads = rows_by(self.rows, THREAD)

        def around(thread: tuple[Any, ...], part: pl.DataFrame) -> pl.Series:
            own, at = threads.get(thread, pl.Series(dtype=pl.UInt32)), part.get_column("at")
            row = gathered(own, nearest_place(gathered(starts, own), at)).cast(pl.Int64)
            while (over := (gathered(ends, row) <= at).fill_null(value=False)).any():
                row = row.zip_with(~over, gathered(parents, row))
            return self.nearest(row, wanted)

        return of_parts(points.select(*THREAD, "at"), THREAD, pl.Int64, around)


def tree_of(*parts: pl.DataFrame) -> HostTree:
    """The call tree of events, frames with the columns of `rows` except parent, stop, self_ns and last_id."""
    columns = ("event_id", "kind", "name", "start", "end", *THREAD, "linked")
    events = pl.concat([part.select(columns) for part in parts])
    events = events.sort(*THREAD, "start", "end", descending=[False, False, False, True], maintain_order=True)
    begin, trees = 0, [nested(*events.clear().select("start", "end"))]
    for own in by_thread(events.select(*THREAD, "start", "end")).values():
        tree = nested(own.get_column("start"), own.get_column("end"))
        trees.append(tree.with_columns(pl.col("parent", "stop") + begin))
        begin += own.height
    events = events.hstack(pl.concat(trees).get_columns())
    before = pl.int_range(pl.len(), dtype=pl.Int64) - 1
    same = [pl.col(name) == pl.col(name).shift(1) for name in ("name", "stop")]
    doubled = pl.all_horizontal(pl.col("parent") == before, *same)
    kept = ~events.select(doubled.fill_null(value=False)).to_series()
    # each removed row follows the one that it is counted as
    places, ids = kept.cast(pl.Int64).cum_sum() - 1, events.get_column("event_id")
    last = kept.arg_true().cast(pl.Int64).shift(-1, fill_value=events.height) - 1
    rows, stops = events.filter(kept), pl.concat([_FIRST, places + 1])
    rows = rows.with_columns(
        gathered(places, rows.get_column("parent")).alias("parent"),
        stops.gather(rows.get_column("stop")).alias("stop"),
        ids.gather(last).alias("last_id"),
        self_ns=pl.col("end") - pl.col("start") - events.get_column("inner_ns").gather(last),
    )
    return HostTree(rows.drop("inner_ns"), ids, places)


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

#: torch merges all steps of its profiler under one name, ``ProfilerStep*``.
_STEP: Final = "ProfilerStep#"


@once_per_process
def host_tree(report: Report) -> HostTree:
    """The call tree of all host events of the processes in scope, at any time.

    `linked` marks calls made inside an operator. Asynchronous events are in no tree.
    """
    return tree_of(framework_events(report), _calls(report))


@once_per_process
def operator_tree(report: Report) -> HostTree:
    """The call tree without Python functions, from which torch computes its table, with or without stacks.

    torch 2.13 includes Python functions in that table if stacks were recorded, and subtracts their time from the events
    around them; earlier versions do not.
    """
    if report.kind("python").is_empty():
        return host_tree(report)
    return tree_of(framework_events(report, ("op",)), _calls(report))


def framework_events(report: Report, kinds: Sequence[str] = ("op", "python")) -> pl.DataFrame:
    """Annotations and events of these `kinds`, as recorded, without asynchronous ones."""
    parts = [annotation_events(report).filter(~pl.col("asynchronous")).drop("asynchronous")]
    parts += [_part(report, kind) for kind in kinds]
    if "python" not in kinds:  # torch counts garbage collection, which is recorded among the Python functions
        parts.append(_part(report, "python").filter(pl.col("name").cast(pl.String) == "Python GC"))
    return pl.concat(parts).with_columns(linked=pl.lit(value=False))


@once_per_process
def annotation_events(report: Report) -> pl.DataFrame:
    """All annotations: columns event_id, kind, name, start, end, process_id, thread_id, asynchronous.

    Asynchronous ones may end on another thread than they began on, such as collectives: torch counts them, but
    subtracts their time from no event, and assigns them no children.
    """
    ranges = _part(report, "range")
    return ranges.with_columns(asynchronous=having(ranges.get_column("name"), _COLLECTIVE))


@once_per_process
def call_makers(report: Report) -> pl.DataFrame:
    """The operator around each CUDA call: columns event_id (of the call), maker_id or null.

    By External id; in traces without any, as some versions of torch write them, the innermost enclosing operator.
    """
    calls = report.kind("api")
    makers = calls.select("event_id", maker_id="parent_id")
    parent_ids = (report.kind(kind).get_column("parent_id") for kind in ("api", *DEVICE_KINDS))
    if calls.is_empty() or any(ids.is_not_null().any() for ids in parent_ids):
        return makers
    tree = tree_of(framework_events(report, ("op",)))
    around = tree.innermost(calls.select(*THREAD, at="start_ns"), tree.of_kinds("op"))
    return makers.with_columns(gathered(tree.rows.get_column("event_id"), around).alias("maker_id"))


@once_per_process
def mistaken(report: Report) -> pl.DataFrame:
    """Calls outside of operators that torch's profiler mistakes for an operator: event_id, op_id (the operator's).

    Also with call_start and op_start, and their threads, home and op_thread.
    """
    calls = report.kind("api").filter(call_makers(report).get_column("maker_id").is_null())
    calls = calls.select("event_id", "process_id", "correlation_id", call_start="start_ns")
    ids = report.table("op_detail").select("external_id", op_id="event_id").filter(pl.col("external_id") > 0)
    ids = ids.filter(positions(calls.get_column("correlation_id"), ids.get_column("external_id")).is_not_null())
    pairs = calls.join(telling(ids, ["external_id"]), left_on="correlation_id", right_on="external_id")
    ops = pl.concat([report.kind(kind) for kind in ("range", "op")])
    ops = ops.select("process_id", op_id="event_id", op_start="start_ns", op_thread="thread_id")
    both = pairs.join(ops, on=["op_id", "process_id"], nulls_equal=True)
    return both.join(_homes(report), on="process_id", how="left", nulls_equal=True)


def _calls(report: Report) -> pl.DataFrame:
    """CUDA calls and overhead: calls in an operator on its thread, all others on the home thread of their process.

    torch assigns the calls of an operator to the thread of a call that it mistakes for it and that began later.
    """
    away = (pl.col("op_thread") != pl.col("home")) & (pl.col("call_start") >= pl.col("op_start"))
    ops = mistaken(report).filter(away).unique("op_id").select(maker_id="op_id", moved_to="home")
    moved = call_makers(report).join(ops, on="maker_id").select("event_id", "moved_to")
    threads = pl.concat([report.kind(kind).select("event_id", "thread_id") for kind in ("range", "op")])
    makers = call_makers(report).get_column("maker_id")
    at = positions(threads.get_column("event_id"), makers)
    made_on = gathered(threads.get_column("thread_id"), at).alias("made_on")
    in_operators = beside(_part(report, "api").with_columns(made_on).filter(makers.is_not_null()), moved, "moved_to")
    thread = pl.coalesce("moved_to", "made_on", "thread_id").alias("thread_id")
    free = home_calls(report)
    return pl.concat([in_operators.with_columns(thread, linked=pl.lit(value=True)).select(free.columns), free])


def home_calls(report: Report) -> pl.DataFrame:
    """CUDA calls outside of operators, and overhead, on the home thread of their process."""
    free = call_makers(report).get_column("maker_id").is_null()
    calls = pl.concat([_part(report, "api").filter(free), _part(report, "overhead")])
    homes = _homes(report)
    if homes.height == 1:  # overhead may lack a process
        calls = calls.with_columns(process_id=pl.lit(homes.item(0, "process_id"), dtype=pl.Int64))
    homed = calls.join(homes, on="process_id", how="left", maintain_order="left", nulls_equal=True)
    homed = homed.with_columns(pl.coalesce("home", "thread_id").alias("thread_id"), linked=pl.lit(value=False))
    return homed.drop("home")


def _part(report: Report, kind: str) -> pl.DataFrame:
    """The events of a kind by the names that torch counts them by: event_id, kind, name, start, end, and the thread."""
    events, name = report.kind(kind), pl.col("name")
    if kind in FRAMEWORK_KINDS:
        names = events.get_column("name").unique()
        texts = names.cast(pl.String).fill_null("")
        # torch counts by the name without the overload
        counted = texts.str.replace(r"^(\w+::\w+)\.\w+$", "$1") if kind == "op" else texts
        counted = counted.set(texts.str.starts_with(_STEP), f"{_STEP[:-1]}*")
        if names.has_nulls() or not counted.equals(texts):
            name = name.replace_strict(names, counted.cast(pl.Categorical), return_dtype=pl.Categorical)
        if (omitted := names.filter(texts.is_in(_LEFT_OUT))).len():
            events = events.filter(~pl.col("name").is_in(omitted.implode()).fill_null(value=False))
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
    parts = [report.kind(kind).select(*THREAD, "name", "start_ns") for kind in FRAMEWORK_KINDS]
    begun = pl.concat(parts).drop_nulls("thread_id")
    if begun.is_empty():
        begun = report.kind("api").select(*THREAD, "name", "start_ns").drop_nulls("thread_id")
    steps = having(begun.get_column("name"), f"^{_STEP}")
    threads = begun.with_columns(steps=steps).group_by(THREAD).agg(pl.col("start_ns").min(), pl.col("steps").any())
    rank = pl.when("steps").then(0).when(pl.col("thread_id") == pl.col("process_id")).then(1).otherwise(2)
    first = threads.sort("process_id", rank, "start_ns", "thread_id")
    return first.group_by("process_id", maintain_order=True).agg(pl.col("thread_id").first().alias("home"))


# Lookups along the ancestors of a host tree's rows: nearest value, and path from the root.
#
# Pointer doubling: all rows look up at once, first one level, then two, four…, in log2(depth) passes.

#: Multiplier of a hash that spreads numbers over 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: The address of an object in its Python repr.
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")

#: Separator of the names in a path.
ARROW: Final = " → "


def inherited(rows: pl.DataFrame, values: pl.Series) -> pl.Series:
    """The value of each row, or of its nearest ancestor with one; null if none has one."""
    nearest, up = values, rows.get_column("parent")
    while (nearest.is_null() & up.is_not_null()).any():
        nearest = nearest.zip_with(nearest.is_not_null(), gathered(nearest, up))
        up = gathered(up, up)
    return nearest


def plain_names(rows: pl.DataFrame) -> pl.Series:
    """The names of rows, without object addresses in the names of Python's built-in functions."""
    return told_of(rows.get_column("name"), lambda name: _ADDRESS.sub("", name, count=1), pl.Categorical)


def path_numbers(rows: pl.DataFrame, included: pl.Series, labels: pl.Series) -> pl.Series:
    """A hash (UInt64) of the `labels` along the path to each row, outermost first, of `included` rows only.

    Equal paths have equal hashes, different ones collide once in 10¹⁹ pairs; 0 stands for the empty path.
    """
    # a path's hash is its parent path's hash times the multiplier, plus the hash of the label: a linear map, and the
    # maps of consecutive parts of a path can be composed
    own = pl.when(included).then
    frame = pl.select(
        times=own(pl.lit(_MULTIPLIER, dtype=pl.UInt64)).otherwise(pl.lit(1, dtype=pl.UInt64)),
        plus=own(labels.hash()).otherwise(pl.lit(0, dtype=pl.UInt64)),
    )
    times, plus, up = frame.get_column("times"), frame.get_column("plus"), rows.get_column("parent")
    while up.is_not_null().any():
        plus = plus + times * gathered(plus, up).fill_null(0)
        times = times * gathered(times, up).fill_null(1)
        up = gathered(up, up)
    return plus.alias("path")


def path_texts(nodes: pl.DataFrame, separator: str = ARROW) -> pl.DataFrame:
    """The text of each path in `nodes` (path, outer, label): columns path, text.

    `outer` is the number of the parent path; a number that is not among the paths ends the way to the root.
    """
    text, up = nodes.get_column("label").cast(pl.String), positions(nodes.get_column("path"), nodes.get_column("outer"))
    while up.is_not_null().any():
        above = gathered(text, up)
        text = (above + separator + text).zip_with(above.is_not_null(), text)
        up = gathered(up, up)
    return nodes.select("path").with_columns(text.alias("text"))


def path_nodes(rows: pl.DataFrame, numbers: pl.Series, included: pl.Series, labels: pl.Series) -> pl.DataFrame:
    """The distinct paths of `included` rows: columns path, outer (the parent path; 0 for none), label, row.

    `row` is the first row with this path.
    """
    outer = gathered(numbers, rows.get_column("parent")).fill_null(0)
    frame = pl.DataFrame({"path": numbers, "outer": outer, "label": labels}).with_row_index("row").filter(included)
    return frame.unique("path", keep="first", maintain_order=True).select("path", "outer", "label", "row")


def labelled_paths(
    rows: pl.DataFrame, included: pl.Series, labels: pl.Series, separator: str = ARROW
) -> tuple[pl.Series, pl.DataFrame]:
    """The paths of `labels` to all rows: the number of each row's, and their texts by number (path, text)."""
    numbers = path_numbers(rows, included, labels)
    return numbers, path_texts(path_nodes(rows, numbers, included, labels), separator)


def operator_paths(rows: pl.DataFrame) -> tuple[pl.Series, pl.DataFrame]:
    """The :func:`labelled_paths` of operators."""
    operators = rows.select(pl.col("kind") == "op").to_series()
    return labelled_paths(rows, operators, rows.get_column("name").cast(pl.String))


# Links backward operators to the forward operators that caused them.
#
# Autograd numbers the operators that it records on a thread; a backward operator has number and thread of its forward
# operator. Of several operators with a number, the one that started last is meant: those around it, and unrecorded ones
# before it, share the number (torch/csrc/autograd/profiler_kineto.cpp, generateForwardBackwardLinks). If the trace has
# torch's own link (fwdbwd), that is used.


@once_per_process
def _numbered(report: Report) -> pl.DataFrame:
    """Operators that autograd numbers: row, event_id, sequence_number, forward_id, forward_thread_id (0: forward)."""
    ops = report.table("op_detail").filter(pl.col("sequence_number") >= 0)
    ops = ops.select(
        *("event_id", "sequence_number", "forward_id"),
        forward_thread_id=pl.col("forward_thread_id").fill_null(0).clip(lower_bound=0),
    )
    return ops.with_columns(host_tree(report).row_of(ops.get_column("event_id")).alias("row")).drop_nulls("row")


def forward_rows(report: Report) -> pl.Series:
    """Row of the forward operator for each row of the host tree that is a backward operator; else null."""
    tree = host_tree(report)
    forwards = pl.Series([None], dtype=pl.Int64).new_from_index(0, tree.rows.height)
    ops, of_forward = _numbered(report), pl.col("forward_thread_id") == 0
    numbered = ops.hstack(tree.rows.select("start", *THREAD)[ops.get_column("row")])
    back, forward = numbered.filter(~of_forward), numbered.filter(of_forward)
    if back.is_empty():
        return forwards
    # the framework numbers threads itself: of those, the one with most of the wanted operators is taken
    keys, numbers = ["sequence_number", *THREAD], ["sequence_number", "process_id"]
    last = forward.sort("start", "event_id").group_by(keys, maintain_order=True).agg(pl.col("row").last())
    wanted, of_number = back.select(*numbers, "forward_thread_id"), ["process_id", "forward_thread_id"]
    votes = wanted.unique().join(telling(last, numbers), on=numbers).group_by(*of_number, "thread_id").len()
    order = votes.sort("len", "thread_id", descending=[True, False]).group_by(of_number, maintain_order=True)
    voted = wanted.join(order.agg(pl.col("thread_id").first()), on=of_number, how="left", maintain_order="left")
    by_number = voted.join(last, on=keys, how="left", maintain_order="left").get_column("row")
    linked = tree.row_of(back.get_column("forward_id"))
    return forwards.scatter(back.get_column("row"), linked.zip_with(linked.is_not_null(), by_number))


PHASES: Final = ("forward", "backward", "optimizer", "data loading", "other")
PHASE: Final = pl.Enum(PHASES)

NODE: Final = "autograd::engine::evaluate_function"  # what autograd's engine calls the run of a node

#: What tells the phase of an event, the first match: patterns of names, and the kinds of events that have them. First
#: torch's own events, then words in annotations of users.
_TELLING: Final = (
    ("backward", f"^{NODE}", ("op", "range")),
    ("optimizer", r"^Optimizer\.(?:step|zero_grad)#", ("op", "range")),
    ("data loading", r"^enumerate\(DataLoader\)", ("op", "range")),
    ("backward", r"(?i)(?:^|[^a-z])(?:backward|bwd)(?:$|[^a-z])", ("range",)),
    ("forward", r"(?i)(?:^|[^a-z])(?:forward|fwd)(?:$|[^a-z])", ("range",)),
    ("optimizer", r"(?i)(?:^|[^a-z])(?:optimi[sz]er|optim|zero_grad)(?:$|[^a-z])", ("range",)),
    ("data loading", r"(?i)(?:^|[^a-z])(?:data|dataloader|data_?load(?:ing|er)?|h2d)(?:$|[^a-z])", ("range",)),
)

#: The prefix of module calls in Python's tracer.
MODULE: Final = "nn.Module: "


@once_per_process
def phases(report: Report) -> pl.Series:
    """The phase (:data:`PHASE`) of each row of the host tree."""
    rows, forward, keys = host_tree(report).rows, forward_rows(report), ["name", "kind"]
    text, kind = pl.col("name").cast(pl.String), pl.col("kind")
    by_pattern = [
        pl.when(text.str.contains(pattern) & kind.is_in(kinds)).then(pl.lit(phase, dtype=PHASE))
        for phase, pattern, kinds in _TELLING
    ]
    names = rows.select(keys).unique().with_columns(phase=pl.coalesce(by_pattern))
    phase = rows.select(keys).join(names, on=keys, how="left", maintain_order="left", nulls_equal=True)["phase"]
    strong = inherited(rows, phase.set(forward.is_not_null() & phase.is_null(), "backward"))
    causes = pl.zeros(rows.height, dtype=pl.Int64, eager=True).scatter(forward.drop_nulls().unique(), 1)
    calls_cause = (in_subtrees(rows, causes) > 0) & rows.select(kind == "op").to_series()
    none = pl.Series([None], dtype=PHASE).new_from_index(0, rows.height)
    weak = inherited(rows, none.set(calls_cause | modules(rows)[0], "forward"))
    return strong.zip_with(strong.is_not_null(), weak).fill_null("other").alias("phase")


def modules(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """A mask of the rows that are calls of an nn.Module, and the module's name."""
    name = rows.get_column("name").cast(pl.String)
    python = rows.select(pl.col("kind") == "python").to_series()
    return python & name.str.starts_with(MODULE).fill_null(value=False), name.str.strip_prefix(MODULE)


#: Operators that layers call forward, and that no node of autograd calls by itself; several of them are a layer.
_OF_LAYERS: Final = tuple(
    f"aten::{name}"
    for name in (
        *("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "batch_norm", "group_norm", "embedding"),
        *("gelu", "relu", "silu", "dropout", "softmax", "scaled_dot_product_attention", "max_pool2d", "lstm", "gru"),
        *("relu_", "silu_", "leaky_relu", "conv_transpose2d", "instance_norm"),
    )
)
_FEWEST_OF_LAYERS: Final = 2


@once_per_process
def recomputed(report: Report) -> pl.Series:
    """Whether each row of the host tree runs forward again, within a node of autograd that calls a layer.

    From the first to the last operator there that is a layer, or that autograd records for another pass backward.
    """
    tree = host_tree(report)
    names = tree.rows.get_column("name")
    nowhere = pl.repeat(value=False, n=tree.rows.height, eager=True)
    if not (nodes := having(names, f"^{NODE}")).any():  # as in inference
        return nowhere
    every = pl.int_range(tree.rows.height, dtype=pl.Int64, eager=True)
    rows = tree.rows.select("start", "end").with_columns(
        node=tree.nearest(every, nodes),
        layer=having(names, rf"^(?:{'|'.join(_OF_LAYERS)})(?:,|$)"),  # without what ranges of nsys add
        recorded=every.is_in(_numbered(report).filter(forward_thread_id=0).get_column("row").implode()),
    )
    rows = rows.with_columns(pl.col("layer", "recorded") & pl.col("node").is_not_null())
    # formulas of gradients call products, too, which are recorded where gradients of gradients are asked for
    recording, layered = (rows.filter(name).get_column("node") for name in ("recorded", "layer"))
    if recording.is_in(layered.implode()).all():
        rows = rows.with_columns(layer=pl.col("layer") | (pl.col("recorded") & having(names, r"^aten::matmul(?:,|$)")))
    kinds = names.filter(rows.get_column("layer")).cast(pl.String).str.extract(r"^([^,]*)").n_unique()
    if kinds < _FEWEST_OF_LAYERS:
        return nowhere
    first, last = (pl.col(side).filter(pl.col("layer") | pl.col("recorded")) for side in ("start", "end"))
    within = (pl.col("start") >= first.min().over("node")) & (pl.col("start") < last.max().over("node"))
    again = within & pl.col("layer").any().over("node") & pl.col("node").is_not_null()
    return rows.select(again.fill_null(value=False)).to_series()
