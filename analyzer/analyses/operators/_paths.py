"""Lookups along the ancestors of a host tree's rows: nearest value, and path from the root.

Pointer doubling: all rows look up at once, first one level, then two, four…, in log2(depth) passes.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.operators._events import host_tree, in_subtrees
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, telling
from kanalyze.report import Report

#: Multiplier of a hash that spreads numbers over 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: The address of an object in its Python repr.
_ADDRESS: Final = r" at 0x[0-9a-fA-F]+"

#: Separator of the names in a path.
ARROW: Final = " → "


def inherited(rows: pl.DataFrame, own: pl.Series) -> pl.Series:
    """The value of each row, or of its nearest ancestor with one; null if none has one."""
    found, up = own, rows.get_column("parent")
    while (found.is_null() & up.is_not_null()).any():
        found = found.zip_with(found.is_not_null(), gathered(found, up))
        up = gathered(up, up)
    return found


def plain_names(rows: pl.DataFrame) -> pl.Series:
    """The names of rows, without object addresses in the names of Python's built-in functions."""
    names = rows.get_column("name")
    different = names.unique().drop_nulls()
    texts = different.cast(pl.String)
    addressed = texts.str.contains(_ADDRESS)
    if not addressed.any():
        return names
    plain = texts.filter(addressed).str.replace(_ADDRESS, "").cast(pl.Categorical)
    known = pl.DataFrame({"name": different.filter(addressed), "plain": plain})
    found = rows.select("name").join(known, on="name", how="left", maintain_order="left")
    return found.select(pl.coalesce("plain", "name").alias("name")).to_series()


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
    found = [nodes.select("path", text=pl.col("label").cast(pl.String)).clear()]
    known = nodes.join(nodes.select(outer="path"), on="outer", how="semi").get_column("path")
    level = nodes.filter(~pl.col("path").is_in(known.implode())).select("path", text=pl.col("label").cast(pl.String))
    while level.height:
        found.append(level)
        inner = nodes.join(level.rename({"path": "outer", "text": "above"}), on="outer")
        level = inner.select("path", text=pl.col("above") + pl.lit(separator) + pl.col("label").cast(pl.String))
    return pl.concat(found)


def path_nodes(rows: pl.DataFrame, numbers: pl.Series, included: pl.Series, labels: pl.Series) -> pl.DataFrame:
    """The distinct paths of `included` rows: columns path, outer (the parent path; 0 for none), label, row.

    `row` is the first row with this path.
    """
    outer = gathered(numbers, rows.get_column("parent")).fill_null(0)
    frame = pl.DataFrame({"path": numbers, "outer": outer, "label": labels})
    frame = frame.with_row_index("row").filter(included)
    return frame.unique("path", keep="first", maintain_order=True).select("path", "outer", "label", "row")


def labelled_paths(rows: pl.DataFrame, included: pl.Series, labels: pl.Series) -> tuple[pl.Series, pl.DataFrame]:
    """The paths of `labels` to all rows: the number of each row's, and their texts by number (path, text)."""
    numbers = path_numbers(rows, included, labels)
    return numbers, path_texts(path_nodes(rows, numbers, included, labels))


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
def forward_rows(report: Report) -> pl.Series:
    """Row of the forward operator for each row of the host tree that is a backward operator; else null."""
    tree = host_tree(report)
    found = pl.Series([None], dtype=pl.Int64).new_from_index(0, tree.rows.height)
    numbered = _numbered(report)
    back = numbered.filter(pl.col("forward_thread_id") > 0)
    if back.is_empty():
        return found
    linked = tree.row_of(back.get_column("forward_id"))
    forward = numbered.filter(pl.col("forward_thread_id").fill_null(0) == 0)
    by_number = _by_number(back, forward)
    return found.scatter(back.get_column("row"), linked.zip_with(linked.is_not_null(), by_number))


def _numbered(report: Report) -> pl.DataFrame:
    """The rows with a sequence number: row, start, process_id, thread_id, and the columns of op_detail."""
    tree = host_tree(report)
    known = report.table("op_detail").filter(pl.col("sequence_number") >= 0)
    known = known.select("event_id", "sequence_number", "forward_thread_id", "forward_id")
    known = known.with_columns(tree.row_of(known.get_column("event_id")).alias("row")).drop_nulls("row")
    where = tree.rows.select("start", *THREAD).select(pl.all().gather(known.get_column("row")))
    return known.hstack(where.get_columns())


def _by_number(back: pl.DataFrame, forward: pl.DataFrame) -> pl.Series:
    """Row of the forward operator of each backward operator, by number and thread; null without one."""
    keys = ["sequence_number", "process_id", "thread_id"]
    last = forward.sort("start", "event_id").group_by(keys, maintain_order=True).agg(pl.col("row").last())
    threads = _threads(back, last)
    known = back.select("sequence_number", "process_id", "forward_thread_id")
    known = known.join(threads, on=["process_id", "forward_thread_id"], how="left", maintain_order="left")
    return known.join(last, on=keys, how="left", maintain_order="left").get_column("row")


def _threads(back: pl.DataFrame, last: pl.DataFrame) -> pl.DataFrame:
    """Maps the framework's own thread numbers to threads: process_id, forward_thread_id, thread_id.

    A trace does not contain this map: the thread with most of the wanted operators is taken.
    """
    wanted = back.select("sequence_number", "process_id", "forward_thread_id").unique()
    votes = wanted.join(telling(last, ["sequence_number", "process_id"]), on=["sequence_number", "process_id"])
    votes = votes.group_by("process_id", "forward_thread_id", "thread_id").len()
    order = votes.sort("len", "thread_id", descending=[True, False])
    return order.group_by("process_id", "forward_thread_id", maintain_order=True).agg(pl.col("thread_id").first())


PHASES: Final = ("forward", "backward", "optimizer", "data loading", "other")
PHASE: Final = pl.Enum(PHASES)

#: Names of torch's own events, by phase.
_OWN_NAMES: Final = {
    "backward": r"^autograd::engine::evaluate_function",
    "optimizer": r"^Optimizer\.(?:step|zero_grad)#",
    "data loading": r"^enumerate\(DataLoader\)",
}

#: Words in user annotations, by phase; the first match counts.
_WORDS: Final = {
    "backward": r"(?i)(?:^|[^a-z])(?:backward|bwd)(?:$|[^a-z])",
    "forward": r"(?i)(?:^|[^a-z])(?:forward|fwd)(?:$|[^a-z])",
    "optimizer": r"(?i)(?:^|[^a-z])(?:optimi[sz]er|optim|zero_grad)(?:$|[^a-z])",
    "data loading": r"(?i)(?:^|[^a-z])(?:data|dataloader|data_?load(?:ing|er)?|h2d)(?:$|[^a-z])",
}

#: The prefix of module calls in Python's tracer.
MODULE: Final = "nn.Module: "


@once_per_process
def phases(report: Report) -> pl.Series:
    """The phase (:data:`PHASE`) of each row of the host tree."""
    rows, forward = host_tree(report).rows, forward_rows(report)
    names = rows.select("name", "kind").unique().with_columns(text=pl.col("name").cast(pl.String))
    told = names.select("name", "kind", phase=_phase_by_name(pl.col("kind")), module=_is_module())
    known = rows.select("name", "kind").join(
        told, on=["name", "kind"], how="left", maintain_order="left", nulls_equal=True
    )
    phase = known.get_column("phase")
    strong = inherited(rows, phase.set(forward.is_not_null() & phase.is_null(), "backward"))
    causes = pl.zeros(rows.height, dtype=pl.Int64, eager=True).scatter(forward.drop_nulls().unique(), 1)
    calls_cause = (in_subtrees(rows, causes) > 0) & rows.select(pl.col("kind") == "op").to_series()
    none = pl.Series([None], dtype=PHASE).new_from_index(0, rows.height)
    weak = inherited(rows, none.set(calls_cause | known.get_column("module"), "forward"))
    return strong.zip_with(strong.is_not_null(), weak).fill_null("other").alias("phase")


def _is_module() -> pl.Expr:
    return ((pl.col("kind") == "python") & pl.col("text").str.starts_with(MODULE)).fill_null(value=False)


def _phase_by_name(kind: pl.Expr) -> pl.Expr:
    """The phase indicated by a name; null for none."""
    text, annotation = pl.col("text"), kind == "range"
    own = [
        _phase(phase, text.str.contains(pattern) & kind.is_in(["op", "range"])) for phase, pattern in _OWN_NAMES.items()
    ]
    words = [_phase(phase, text.str.contains(pattern) & annotation) for phase, pattern in _WORDS.items()]
    return pl.coalesce(*own, *words)


def _phase(phase: str, where: pl.Expr) -> pl.Expr:
    return pl.when(where).then(pl.lit(phase, dtype=PHASE))
