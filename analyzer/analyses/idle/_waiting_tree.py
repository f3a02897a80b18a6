"""Host time while a device waited, as a tree of calls: by the stack of the thread that the device waited for.

From samples and stacks of calls, with the thread's state as the leaf; of a trace from its operators and Python
functions. Definitions: docs/definitions.md, section 5, "Host time by state".
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.host._thread_names import framework_recorded
from kanalyze.analyses.idle._waiting_host import host_spans, named_parts
from kanalyze.analyses.operators._events import FRAMEWORK_KINDS, host_tree, in_subtrees, sums_by
from kanalyze.analyses.operators._paths import path_numbers, plain_names
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.thread_nesting import innermost_lines
from kanalyze.columns.grouping import mixed, parts_by

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.report import Report

#: Schema of a node: its row is its number; the node around it or null, how many samples tell of it, its time with that
#: of all nodes in it, and how many nodes it stands for.
NODES: Final[dict[str, DataType | DataTypeClass]] = {
    "parent": pl.Int64,
    "kind": pl.String,
    "name": pl.String,
    "count": pl.Int64,
    "ns": pl.Int64,
    "nodes": pl.Int64,
}

#: What is told of time without a stack: of samples, and of a trace.
NOT_SAMPLED: Final = "not sampled"
NOT_RECORDED: Final = "in no operator or function"

_WITHOUT_FRAMES: Final = "sampled without a stack"

#: A row of a stack: the part of the time that it is of, the row around it, its kind and name.
_ROWS: Final = {"part": pl.UInt32, "parent": pl.Int64, "kind": pl.String, "name": pl.String}


def waiting_trees(report: Report, min_share: float) -> dict[int, pl.DataFrame]:
    """The tree of each device in scope whose host time some stack tells of: :data:`NODES`, the largest first.

    The nodes without a parent sum to the device's bucket `host`; of a parent's nodes those below `min_share` of that
    are one of kind ``rest``, without a name.
    """
    if framework_recorded(report):
        nodes = _of_trace(report)
    elif report.table("stack_frames").is_empty():
        return {}
    else:
        nodes = _of_stacks(report)
    told = nodes.filter(~pl.col("kind").is_in(["none", "state"])).get_column("device").unique()
    kept = nodes.filter(pl.col("device").is_in(told.implode())).sort("device")
    return {key[0]: _pruned(own, min_share) for key, own in parts_by(kept, ["device"]).items()}


def _of_stacks(report: Report) -> pl.DataFrame:
    """Nodes from samples and stacks of calls: device, path, outer, kind, name, count, ns."""
    parts = named_parts(report).with_row_index("part")
    rows = pl.concat([_frames(report, parts), _leaves(parts)]).sort("part", "level")
    first = pl.col("part") != pl.col("part").shift(1).fill_null(parts.height)
    parent = pl.when(~first).then(pl.int_range(pl.len(), dtype=pl.Int64) - 1)
    rows = rows.with_columns(parent=parent).select(*_ROWS)
    told = rows.join(parts.select("part", "device", "ns", count="samples"), on="part", maintain_order="left")
    return _merged(told)


def _frames(report: Report, parts: pl.DataFrame) -> pl.DataFrame:
    """The functions of the stack of each part, the outermost with the least level: part, level, kind, name.

    Functions without a symbol that call each other in one module are one. A part without a stack has a row of its own.
    """
    used = parts.select("part", "stack_id").drop_nulls()
    frames = report.table("stack_frames").filter(pl.col("stack_id").is_in(used.get_column("stack_id").implode()))
    module = pl.col("module").cast(pl.String).str.extract(r"([^/\\]+)[/\\]*$")
    function = pl.col("function").cast(pl.String)
    named = pl.concat_str([function.fill_null("?"), module], separator=" in ", ignore_nulls=True)
    known = frames.sort("stack_id", "depth", descending=[False, True]).select(
        "stack_id",
        level=-pl.col("depth").cast(pl.Int64),
        kind=pl.when(pl.col("line").is_not_null()).then(pl.lit("python")).otherwise(pl.lit("native")),
        name=named,
        unknown=function.is_null(),
    )
    same = [pl.col(name) == pl.col(name).shift(1) for name in ("stack_id", "name", "unknown")]
    known = known.filter(~(pl.all_horizontal(same) & pl.col("unknown")).fill_null(value=False))
    found = used.join(known, on="stack_id").select("part", "level", "kind", "name")
    missing = parts.filter(~pl.col("part").is_in(found.get_column("part").unique().implode()))
    word = pl.when(pl.col("evidence") == "none").then(pl.lit(NOT_SAMPLED)).otherwise(pl.lit(_WITHOUT_FRAMES))
    alone = missing.select("part", level=pl.lit(0, dtype=pl.Int64), kind=pl.lit("none"), name=word)
    return pl.concat([found, alone])


def _leaves(parts: pl.DataFrame) -> pl.DataFrame:
    """State, system call and what that waits for, as the innermost row of each part: part, level, kind, name."""
    state, call, waits = (pl.col(name).cast(pl.String) for name in ("state", "call", "waits_on"))
    blocked = pl.when(state == "blocked").then(pl.format("{} in {}", state, call))
    doing = pl.when(call.is_null()).then(state).otherwise(blocked.otherwise(pl.format("{} {}", state, call)))
    on = pl.when(waits.is_not_null() & state.is_in(["blocked", "off processor"])).then(pl.format(" ({})", waits))
    name = pl.concat_str([doing, on], ignore_nulls=True)
    return parts.select("part", level=pl.lit(1, dtype=pl.Int64), kind=pl.lit("state"), name=name)


def _of_trace(report: Report) -> pl.DataFrame:
    """Nodes from the operators, annotations and Python functions of a trace: as :func:`_of_stacks`."""
    tree = host_tree(report)
    rows = tree.rows.with_columns(plain_names(tree.rows))
    events = rows.with_row_index("row").filter(pl.col("kind").is_in(FRAMEWORK_KINDS))
    lines = innermost_lines(events.select(*THREAD, "start", "end", "row"))
    pieces: dict[int, list[pl.DataFrame]] = {}
    for device, key, spans in host_spans(report):
        line = lines.get(key, pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}))
        cut = overlaid(spans, line, "row").select(pl.col("row").cast(pl.Int64), ns=pl.col("end") - pl.col("start"))
        pieces.setdefault(device, []).append(cut)
    found = [_merged(pl.DataFrame(schema=_ROWS | {"device": pl.Int64, "ns": pl.Int64, "count": pl.Int64}))]
    for device, cuts in pieces.items():
        every = pl.concat(cuts)
        own = sums_by(every.get_column("row"), every.get_column("ns"), rows.height)
        columns = {"device": pl.lit(device, dtype=pl.Int64), "count": pl.lit(0, dtype=pl.Int64)}
        told = rows.select("parent", pl.col("kind").cast(pl.String), pl.col("name").cast(pl.String), **columns)
        found.append(_merged(told.with_columns(in_subtrees(rows, own).alias("ns"))))
        lost = every.filter(pl.col("row").is_null()).get_column("ns").sum()
        none = {"device": device, "path": 1, "outer": 0, "kind": "none", "name": NOT_RECORDED, "count": 0, "ns": lost}
        found.append(pl.DataFrame([none], schema=found[0].schema))
    return pl.concat([part.select(found[0].columns) for part in found]).filter(pl.col("ns") > 0)


def _merged(rows: pl.DataFrame) -> pl.DataFrame:
    """Rows of a tree (parent, device, kind, name, count, ns) merged by their path: device, path, outer and others."""
    included = pl.Series([True], dtype=pl.Boolean).new_from_index(0, rows.height)
    paths = path_numbers(rows, included, rows.select(mixed(["kind", "name"])).to_series())
    outer = paths.gather(rows.get_column("parent")).fill_null(0)
    placed = rows.with_columns(paths.alias("path"), outer.alias("outer")).filter(pl.col("ns") > 0)
    first = [pl.col(name).first() for name in ("outer", "kind", "name")]
    return placed.group_by("device", "path", maintain_order=True).agg(*first, pl.col("count", "ns").sum())


def _pruned(nodes: pl.DataFrame, min_share: float) -> pl.DataFrame:
    """The nodes of one device without the small ones: :data:`NODES`."""
    whole = int(nodes.filter(pl.col("outer") == 0).get_column("ns").sum())
    large = (pl.col("ns") >= min_share * whole) | (pl.col("kind") == "none")
    kept = nodes.filter(large).with_columns(nodes=pl.lit(1, dtype=pl.Int64))
    inside = (pl.col("outer") == 0) | pl.col("outer").is_in(kept.get_column("path").implode())
    small = nodes.filter(~large & inside).group_by("outer", maintain_order=True)
    sums = small.agg(pl.col("count", "ns").sum(), nodes=pl.len().cast(pl.Int64))
    none = {name: pl.lit(None, dtype=kept.schema[name]) for name in ("device", "path", "name")}
    rests = sums.with_columns(**none, kind=pl.lit("rest"))
    ordered = pl.concat([kept, rests.select(kept.columns)]).sort("ns", "name", descending=[True, False])
    numbers = ordered.select(outer="path", parent=pl.int_range(pl.len(), dtype=pl.Int64)).drop_nulls()
    found = ordered.join(numbers, on="outer", how="left", maintain_order="left")
    return found.select(pl.col(name).cast(kind) for name, kind in NODES.items())
