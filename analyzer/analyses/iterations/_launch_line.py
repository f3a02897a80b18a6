"""Launches of each process in the order of their calls, with codes that are equal for equal work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import launch_shapes, operations, with_facts
from kanalyze.columns.grouping import mixed, parts_by
from kanalyze.columns.lookup import gathered, positions, rows_at
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Names of copies between host and device, and of those to the device.
_HOST_COPY: Final = r"Host-to-Device|Device-to-Host"
_INPUT: Final = r"Host-to-Device"

#: Names of copies that unified memory makes by itself.
_UNIFIED: Final = r"Unified"

#: Least share of a process' operations that have a launch call, for their calls to give the order.
_MOST: Final = 0.5

#: Kinds of operations that are a program's work: how long a copy takes says little about what it is for.
_WORK: Final = ("kernel", "graph")

#: Numbers in names: tiles, vector widths and variants, which libraries choose by the shapes of the data.
_NUMBER: Final = r"\d+"

#: How many values a thread of a PyTorch kernel loads at once, which the address of the data decides; and what runs the
#: same function where it allows none but one.
_WIDTH: Final = r"(vectorized\w*kernel\w*<)(?:\(int\))?\d+"
_ARRAY: Final = r", (?:std::array|at::detail::Array)<"
_ALIGNED: Final = rf"(vectorized_elementwise_kernel<)#, (.*?){_ARRAY}.*"
_UNALIGNED: Final = rf"unrolled_elementwise_kernel<(.*?){_ARRAY}.*LoadWithoutCast.*"

#: Columns that a launch takes from the first of its operations, and sums over all of them.
_FIRST: Final = ("thread_id", "device", "since", "until", "copies", "input", "optimizer", "fill")
_SUMMED: Final = ("ns", "work_ns", "exact", "alike", "loose", "blocks")

#: Names of kernels with which a training step ends, and those of others among them: of lists of tensors that are
#: copied, cleared, scaled or measured.
_OPTIMIZER: Final = r"(?i)adam|sgd|lamb_|adagrad|rmsprop|optimizer|multi_tensor_apply"
_NO_OPTIMIZER: Final = r"(?i)hadamard|multi_tensor_apply.*(?:copy|zero|norm|unscale|non_?finite)"

#: Names of kernels and memsets that fill memory.
_FILL: Final = r"(?i)fill|memset"


def launch_lines(report: Report) -> dict[int | None, pl.DataFrame]:
    """Launches by process, in the order of their calls, with everything that one call launched as one launch.

    Columns: thread_id, device, since and until (its call; the operation itself in a process whose calls are unknown),
    ns (summed durations of its operations), work_ns (of its kernels and graphs), exact (number for names and shapes),
    alike (for names alone), loose (for names without the numbers in them), blocks (of its kernels), copies (between
    host and device), input (a copy to the device), optimizer (a kernel that updates parameters), fill (of memory),
    graph (or several operations at once).
    """
    coded = _coded(report)
    return {process: _line(part) for (process,), part in parts_by(coded, ["process_id"]).items()}


def _coded(report: Report) -> pl.DataFrame:
    """Every operation with its call, its codes and its size: without what unified memory moved by itself."""
    work = operations(report)
    told = _told(work.get_column("name"))
    if told.get_column("unified").any():
        work, told = (frame.filter(~told.get_column("unified")) for frame in (work, told))
    work = with_facts(report, work, "call_row", "thread_id", "call_start", "call_end", "shape", "size_bytes")
    shaped = work.select(pl.col("kind").to_physical(), "shape", "size_bytes", *told.select("named", "masked"))
    grid = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    known = shaped.select(
        exact=mixed(("kind", "named", "shape", "size_bytes")),
        alike=mixed(("kind", "named")),
        loose=mixed(("kind", "masked")),
    )
    blocks = gathered(launch_shapes(report).select(blocks=grid).to_series(), shaped.get_column("shape"))
    kind = pl.col("kind")
    ran, copied, graph = work.select(ran=kind.is_in(_WORK), copied=kind == "memcpy", graph=kind == "graph")
    ns = work.get_column("dur_ns").clip(lower_bound=0).fill_null(0).alias("ns")
    own = work.select(
        *("row", "start", "end", "process_id", "device", "call_row", "thread_id"),
        *known.get_columns(),
        blocks.fill_null(0),
        ns,
        since="call_start",
        until="call_end",
    )
    return own.with_columns(
        work_ns=pl.when(ran).then("ns").otherwise(0),
        copies=told.get_column("copies") & copied,
        input=told.get_column("input") & copied,
        optimizer=told.get_column("optimizer") & ran,
        fill=told.get_column("fill"),
        graph=graph,
    )


def _told(names: pl.Series) -> pl.DataFrame:
    """Attributes of each name: its number, that of the name without the numbers in it, and whether it is of a kind.

    Each different name is looked at once. Columns: named, masked, unified, copies, input, optimizer, fill.
    """
    different = names.unique().drop_nulls().alias("name").to_frame().sort(pl.col("name").to_physical())
    name = pl.col("name").cast(pl.String)
    named = name.str.replace(_WIDTH, "${1}#").str.replace(_ALIGNED, "${1}${2}")
    named = named.str.replace(_UNALIGNED, "vectorized_elementwise_kernel<${1}")
    patterns = {"unified": _UNIFIED, "copies": _HOST_COPY, "input": _INPUT, "fill": _FILL}
    known = different.select(
        named.rank("dense").cast(pl.UInt32).alias("named"),
        named.str.replace_all(_NUMBER, "#").rank("dense").cast(pl.UInt32).alias("masked"),
        (name.str.contains(_OPTIMIZER) & ~name.str.contains(_NO_OPTIMIZER)).alias("optimizer"),
        *(name.str.contains(like).alias(key) for key, like in patterns.items()),
    )
    at = positions(different.get_column("name").to_physical(), names.to_physical())
    return rows_at(known, at).with_columns(
        pl.col("named", "masked").fill_null(0), pl.col("optimizer", *patterns).fill_null(value=False)
    )


def _line(part: pl.DataFrame) -> pl.DataFrame:
    """The launches of one process."""
    called = part.get_column("since").is_not_null()
    if called.sum() < _MOST * part.height:
        part = part.with_columns(since="start", until="end", call_row="row")
    elif not called.all():
        part = part.filter(called)
    part = part.with_columns(pl.max_horizontal("since", "until").alias("until"))
    part = in_order(part.drop("start", "end", "row", "process_id"), "since")
    call = part.get_column("call_row")
    if (call == call.shift(1)).any():
        # nodes of one graph may run in any order: sums do not depend on it
        together = part.group_by("call_row", maintain_order=True)
        part = together.agg(pl.col(*_FIRST).first(), pl.col(*_SUMMED).sum(), pl.col("graph").first() | (pl.len() > 1))
    return part.drop("call_row")
