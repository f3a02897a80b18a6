"""Links backward operators to the forward operators that caused them.

Autograd numbers the operators that it records on a thread; a backward operator has number and thread of its forward
operator. Of several operators with a number, the one that started last is meant: those around it, and unrecorded ones
before it, share the number (torch/csrc/autograd/profiler_kineto.cpp, generateForwardBackwardLinks). If the trace has
torch's own link (fwdbwd), that is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import telling

if TYPE_CHECKING:
    from kanalyze.report import Report


@once_per_process
def forward_rows(report: Report) -> pl.Series:
    """For each row of the host tree that is a backward operator, the row of its forward operator; else null."""
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
    """For each backward operator, the row of the forward operator by number and thread; null without one."""
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
