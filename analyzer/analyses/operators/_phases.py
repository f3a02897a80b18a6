"""Classifies host events by phase of training.

The innermost event that indicates a phase, of an event and its ancestors on its thread, decides:

- ``backward``: an operator of autograd's engine (``autograd::engine::evaluate_function: …``), or one recorded by
  autograd as the backward of a forward operator (it has the number of the forward thread).
- ``optimizer``: ``Optimizer.step#…`` and ``Optimizer.zero_grad#…``, which torch's optimizers record themselves.
- ``data loading``: ``enumerate(DataLoader)#…``, which torch's DataLoader records itself.
- Any of the four: a user annotation with one of the words below in its name, such as ``forward`` or ``## backward ##``.

Otherwise an event is ``forward`` if it or an ancestor is an ``nn.Module`` recorded by Python's tracer, or an operator
that caused a backward one or called such an operator. All others are ``other``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.operators._events import host_tree, in_subtrees
from kanalyze.analyses.operators._paths import inherited
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import telling

if TYPE_CHECKING:
    from kanalyze.report import Report

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
