"""The call tree: operators, modules, Python functions and annotations, with the launched kernels as leaves."""

from typing import Final, Unpack

import polars as pl
from polars.datatypes import DataType, DataTypeClass

from kanalyze import columns, errors, model, tools
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.shared.analysis import require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table

# The nodes of the call tree: host events and device operations, merged by call path.

#: Kinds of nodes: threads, events, and the remainder of omitted nodes.
KINDS: Final = ("thread", *_host_tree.HOST_KINDS, *model.DEVICE_KINDS, "rest")

#: The summable columns of nodes.
SUMS: Final = ("count", "host_ns", "self_host_ns", "device_ns", "self_device_ns")

_COLUMNS: Final[dict[str, DataType | DataTypeClass]] = {
    "path": pl.UInt64,
    "outer": pl.UInt64,
    "kind": pl.Enum(KINDS),
    "name": pl.String,
    **dict.fromkeys(SUMS, pl.Int64),
}


def nodes(report: Report) -> pl.DataFrame:
    """The nodes of the call tree in scope, unordered.

    Columns: path (the node's number), outer (number of the enclosing node; 0 for none), kind, name, count, host_ns and
    self_host_ns (clipped to the window), device_ns and self_device_ns (exclusive time; an operation launched by a host
    event is a node of its own).
    """
    tree, ran = _host_tree.host_tree(report), _work.launched_work(report)
    root = pl.col("parent").is_null()
    label = pl.when(root).then(columns.mixed(["kind", "name", *THREAD])).otherwise(columns.mixed(["kind", "name"]))
    named = tree.rows.with_columns(_host_tree.plain_names(tree.rows))
    numbers = _host_tree.path_numbers(named, tree.of_kinds(*_host_tree.HOST_KINDS), named.select(label).to_series())
    exclusive = _host_tree.sums_by(ran.get_column("maker"), ran.get_column("exclusive_ns"), named.height)
    low, high = report.scope.sides
    begun = pl.lit(value=True) if high is None else pl.col("start") < high
    going_on = pl.lit(value=True) if low is None else (pl.col("end") > low) | (pl.col("start") == low)
    cut = named.with_columns(
        (begun & going_on).cast(pl.Int64).alias("count"),
        (pl.col("end").clip(low, high) - pl.col("start").clip(low, high)).alias("host_ns"),
    )
    inner = _host_tree.sums_by(named.get_column("parent"), cut.get_column("host_ns"), named.height)
    rows = cut.with_columns(
        (cut.get_column("host_ns") - inner).alias("self_host_ns"),
        numbers.alias("path"),
        columns.gathered(numbers, tree.rows.get_column("parent")).fill_null(0).alias("outer"),
        _host_tree.in_subtrees(tree.rows, exclusive).alias("device_ns"),
    )
    host = rows.filter((pl.col("count") > 0) | (pl.col("device_ns") > 0)).with_columns(pl.col("name").cast(pl.String))
    times = pl.col("count", "host_ns", "self_host_ns", "device_ns").sum()
    merged = host.group_by("path").agg(pl.col("outer", "kind", "name", *THREAD).first(), times)
    maker = columns.gathered(numbers, ran.get_column("maker")).fill_null(0).alias("outer")
    sums = [pl.len().alias("count"), pl.col("exclusive_ns").sum().alias("device_ns")]
    leaves = ran.with_columns(maker).group_by("outer", "kind", "name").agg(sums)
    leaves = leaves.with_columns(columns.mixed(["outer", "kind", "name"]).alias("path"), self_device_ns="device_ns")
    return pl.concat([_typed(part) for part in (*_under_threads(merged), leaves)])


def _typed(frame: pl.DataFrame) -> pl.DataFrame:
    """The columns of nodes, 0 where `frame` has none."""
    return frame.select(
        pl.col(name).cast(dtype) if name in frame.columns else pl.lit(0, dtype=dtype).alias(name)
        for name, dtype in _COLUMNS.items()
    )


def _under_threads(merged: pl.DataFrame) -> list[pl.DataFrame]:
    """The nodes of host events, below a node per thread if there are several threads."""
    number, outermost = columns.mixed([*THREAD]) | 1, pl.col("outer") == 0
    sums = merged.filter(outermost).group_by(number.alias("path"), *THREAD).agg(pl.col("host_ns", "device_ns").sum())
    if sums.height < 2:  # noqa: PLR2004 - one thread needs no name
        return [merged]
    threads = sums.with_columns(kind=pl.lit("thread"), name=pl.format("thread {}", "thread_id"), count=pl.lit(1))
    return [threads, merged.with_columns(pl.when(outermost).then(number).otherwise("outer").alias("outer"))]


TABLE: Final = Table(
    "tree",
    "One node of the call tree: all events that were called in the same way; each stands behind what it was called by.",
    (
        Column("node", pl.Int64, "Its place, from 0."),
        Column("parent", pl.Int64, "The node around it; null: none.", nullable=True),
        Column("depth", pl.Int64, "How many nodes are around it."),
        Column(
            "kind",
            pl.Enum(KINDS),
            "thread, a kind of event, or rest: all further nodes in its parent, none of which is large enough; one "
            "without parent stands for all that is left out elsewhere.",
        ),
        Column("name", pl.String, "Its name; null for a rest.", nullable=True),
        Column("count", pl.Int64, "Events."),
        Column("host_ns", pl.Int64, "Host time, with that of all nodes in it."),
        Column("self_host_ns", pl.Int64, "Host time without; below 0 where these overlap. Of a rest all."),
        Column("device_ns", pl.Int64, "Device time launched by it and all nodes in it, each instant counted once."),
        Column("self_device_ns", pl.Int64, "The part that is a kernel's or copy's own; 0 for host events."),
        Column("host_share", pl.Float64, "Part of the host time of all threads."),
        Column("device_share", pl.Float64, "Part of the device time of all nodes."),
        Column("nodes", pl.Int64, "Nodes that it stands for: 1, of a rest more, those inside them not counted."),
    ),
    purpose="the call tree, from annotations to kernels",
    telling=("node", "parent", "depth", "kind", "count", "device_ns", "host_ns"),
    tools=tools.recorders("op"),
    groupings=("device", "host"),
)

#: Nodes below this share of the time are omitted by default.
MIN_SHARE: Final = 0.01


def tree(
    report: Report,
    by: str | None = None,
    *,
    depth: int | None = None,
    min_share: float = MIN_SHARE,
    **where: Unpack[Where],
) -> pl.DataFrame:
    """The call tree of the part of the report in scope, pruned to the largest nodes.

    Args:
        report: Where to look. Host times are clipped to its window; device times are those of operations that ran in
            it, whenever they were launched.
        by: Sort and prune by ``device`` time or ``host`` time; device time by default, if there is any.
        depth: Omit nodes at this depth or deeper.
        min_share: Omit nodes below this share of the time. Python functions that only call one other node, with a self
            time below this share, are replaced by that node.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE` in preorder, siblings by descending time.

    Raises:
        CannotTellError: The report records neither operators nor Python functions.
        UnknownNameError: There is no such `by`.
    """
    report = report.narrow(**where)
    require(report, TABLE, "op", "python")
    if by not in (None, *TABLE.groupings):
        raise errors.UnknownNameError.of("order of tree", by, TABLE.groupings)
    all_nodes = nodes(report)
    roots = all_nodes.filter(pl.col("outer") == 0)
    whole = {side: int(roots.get_column(f"{side}_ns").sum()) for side in TABLE.groupings}
    by = by or default_order(report)
    limit = min_share * max(whole[by], 1)
    all_nodes = _without_pass_through(all_nodes, f"{by}_ns", limit)
    levels = [all_nodes.clear().with_columns(depth=pl.lit(0, dtype=pl.Int64))]
    level = all_nodes.filter(pl.col("outer") == 0)
    while level.height and (depth is None or len(levels) <= depth):
        levels.append(level.with_columns(depth=pl.lit(len(levels) - 1, dtype=pl.Int64)))
        level = all_nodes.join(level.select(outer="path"), on="outer", how="semi")
    kept = pl.concat(levels)
    shares = [(pl.col(f"{side}_ns") / max(whole[side], 1)).alias(f"{side}_share") for side in TABLE.groupings]
    return TABLE.select(_in_order(_with_rests(kept, f"{by}_ns", limit), f"{by}_ns").with_columns(shares))


def default_order(report: Report) -> str:
    """The default of `by` in :func:`tree`: ``device`` if anything ran in scope, else ``host``."""
    return "device" if _work.launched_work(report).get_column("exclusive_ns").sum() else "host"


def _without_pass_through(rows: pl.DataFrame, time: str, limit: float) -> pl.DataFrame:
    """Removes pass-through Python functions, whose only child becomes a child of their parent.

    Such a function calls one sufficiently large node, and has too little self time, which becomes a small node.
    """
    callees = rows.filter(pl.col(time) >= limit).group_by(path="outer").agg(pl.len().alias("callees"))
    counted = rows.join(callees, on="path", how="left", maintain_order="left")
    function = (pl.col("kind") == "python") & ~pl.col("name").str.starts_with(_host_tree.MODULE)
    only_passes = function & (pl.col("callees") == 1) & (pl.col(f"self_{time}") < limit)
    passing = counted.select(only_passes.fill_null(value=False)).to_series()
    passed, rows = rows.filter(passing), rows.filter(~passing)
    own_times = {"host_ns": "self_host_ns", "device_ns": "self_device_ns"}
    self_nodes = passed.with_columns(outer=pl.lit(0, dtype=pl.UInt64), **own_times)
    up = passed.select("path", above="outer")
    while rows.join(up, left_on="outer", right_on="path", how="semi").height:
        moved = rows.join(up, left_on="outer", right_on="path", how="left", maintain_order="left")
        rows = moved.with_columns(pl.coalesce("above", "outer").alias("outer")).drop("above")
    return pl.concat([rows, self_nodes])


def _with_rests(rows: pl.DataFrame, time: str, limit: float) -> pl.DataFrame:
    """Keeps the nodes above the limit; smaller siblings are merged into one node if together they reach it.

    One node at the top level stands for the remainder.
    """
    counted, enough = rows.with_columns(nodes=pl.lit(1, dtype=pl.Int64)), pl.col(time) >= limit
    large = counted.filter(enough)
    inside = pl.col("outer").is_in(large.get_column("path").implode()) | (pl.col("outer") == 0)
    sums, keys = pl.col(*SUMS, "nodes").sum(), ["outer", "depth"]
    rest = counted.filter(~enough & inside).group_by(keys).agg(sums)
    separate = enough & (pl.col("outer") != 0)
    nowhere = [pl.lit(0, dtype=rows.schema[name]).alias(name) for name in keys]
    last = rest.filter(~separate).with_columns(nowhere).group_by(keys).agg(sums)
    rests = pl.concat([rest.filter(separate), last]).with_columns(
        pl.col("outer").hash(1).alias("path"),
        pl.lit("rest", dtype=pl.Enum(KINDS)).alias("kind"),
        pl.col("host_ns").alias("self_host_ns"),
        pl.col("device_ns").alias("self_device_ns"),
    )
    return pl.concat([large, rests], how="diagonal")


def _in_order(rows: pl.DataFrame, time: str) -> pl.DataFrame:
    """Sorts the nodes in preorder with `node` and `parent`, siblings by descending time, merged ones last."""
    keys = {time: True, "host_ns": True, "device_ns": True, "name": False, "path": False}
    order = rows.sort(pl.col("kind") == "rest", *keys, descending=[False, *keys.values()]).with_row_index("rank")
    rank = pl.col("rank").cast(pl.String).str.zfill(len(str(rows.height)))
    # of a node and of all around it, outermost first
    ranks = _host_tree.path_texts(order.select("path", "outer", label=rank), "")
    placed = order.join(ranks, on="path").sort("text").with_columns(node=pl.int_range(pl.len(), dtype=pl.Int64))
    return placed.join(placed.select(outer="path", parent="node"), on="outer", how="left", maintain_order="left")
