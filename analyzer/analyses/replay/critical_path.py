"""The critical path: what the end of the window waited for, back to its beginning; and the slack beside it.

Slack is how much longer one operation may take, all others as long as they did, before the window's end moves
(docs/whatif.md, "Slack"). An edge that released what it leads to keeps its lag; any other one keeps its own or the
median lag of its kind where that kind releases, whichever is less, and the rest is its room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Unpack

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, facts_of, with_facts
from kanalyze.analyses.device._windows import span
from kanalyze.analyses.replay._graph import dependencies
from kanalyze.analyses.replay._network import LATEST, SLICE
from kanalyze.analyses.replay._path import (
    CAUSES,
    ON_HOST,
    RUNNING,
    by_operator,
    by_range,
    ending,
    named_pieces,
    path,
    with_names,
)
from kanalyze.analyses.shared.analysis import once_per_report, part_of, require
from kanalyze.columns import gathered, slices
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns


@once_per_report
def slack(report: Report) -> pl.Series:
    """How much longer each operation may take before the window's end moves (ns); null where it ends outside of it.

    Nodes are taken from the last to the first: how late what follows may be is known before what it waited for.
    """
    sides, last = span(report), ending(report)
    if sides is None or last is None:
        return pl.Series("slack", [], dtype=pl.Int64)
    net, work = last.network, dependencies(report).operations
    starts, what, ends = net.numbers.starts, pl.col("what"), work.get_column("end")
    row = net.nodes.get_column("row").set(net.nodes.get_column("what") != "start", None)
    until = net.nodes.with_columns(until=gathered(ends, row)).select(pl.coalesce("until", "at"), what, "at")
    ahead = (pl.col("at") > last.at) | ((what == "window") & pl.lit(last.row is not None))
    may = until.select(pl.when(ahead).then(LATEST).otherwise((last.at - pl.col("until")).clip(0))).to_series().to_list()
    if last.row is not None:  # what the path ends with
        may[starts.item(last.row)] = 0
    for part in net.edges.select("source", "target", pl.col("slack") - pl.col("lag")).reverse().iter_slices(SLICE):
        for source, target, room in zip(*(column.to_list() for column in part), strict=True):
            least = may[target] + room
            if least < may[source]:  # noqa: PLR1730 - min() takes twice as long
                may[source] = least
    nodes = net.numbers.finishes.zip_with(net.numbers.finishes.is_not_null(), starts)
    free = gathered(pl.Series("slack", may, dtype=pl.Int64), nodes)
    return free.set(~ends.is_between(*sides, closed="right"), None)


_CAUSE: Final = Column("cause", pl.Enum(CAUSES), "What the time went to: " + ", ".join(CAUSES) + ".")

_SUMS: Final = (
    Column("ns", pl.Int64, "Time on the path."),
    Column("share", pl.Float64, "Part of the window, to which all rows sum."),
    Column("each_ns", pl.Float64, "Time per iteration, where the window is one of iterations.", nullable=True),
    Column("pieces", pl.Int64, "Number of stretches of the path."),
)

#: What the path is computed from.
TABLE: Final = Table(
    "critical_path",
    "One cause of time on the critical path, from the end of the window back to its beginning; rows sum to the window.",
    (
        _CAUSE,
        *_SUMS,
        Column("mostly", pl.String, "The kernel, copy, call or host code with most of it.", nullable=True),
        Column("mostly_ns", pl.Int64, "Its time on the path by this cause."),
    ),
    purpose="what the end of the window waited for",
    telling=("cause", "ns", "share", "each_ns", "mostly"),
    groupings=("cause", "kernel", "operator", "range", "rank"),
    options=("segments",),
)

#: The table that ``segments=True`` gives.
SEGMENTS: Final = Table(
    "critical_path",
    "One stretch of the critical path; each begins where the one before ends.",
    (
        Column("start_ns", pl.Int64, "Start."),
        Column("dur_ns", pl.Int64, "Duration."),
        _CAUSE,
        Column("name", pl.String, "The kernel, copy, call or host code that it is of.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`; null on the host.", nullable=True),
        Column("stream", pl.Int64, "CUDA stream.", nullable=True),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("thread_id", pl.Int64, "Host thread that does it, or asked for it.", nullable=True),
    ),
    when="--segments",
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = Table(
    "critical_path",
    "One kernel, copy or memset by name: its time on the critical path, and in all.",
    (
        Column("name", pl.String, "The tool's own name for it.", nullable=True),
        *_SUMS,
        *columns("""
            total_ns int: Its time in the window, on the path or not: plain sum.
            count int: Number of launches in the window.
            slack_ns int?: How much longer one of its launches may take, all else as it was, before the window's end
                moves: the least of them, 0 on the path; null where none ends in the window, and of tens of millions of
                launches.
            median_slack_ns float?: The median of its launches.
        """),
    ),
    when="--by kernel",
)

_ON_DEVICE: Final = Column("device_ns", pl.Int64, "The part in which a device ran it.")


#: The tables that ``by="operator"`` and ``by="range"`` give.
def _surroundings(by: str, noun: str, doc: str) -> Table:
    """The table of a grouping by what was around."""
    meaning = f"One {noun}: time on the critical path that it ran, launched or waited."
    key = Column(by, pl.String, f"{doc}; null outside of any.", nullable=True)
    return Table("critical_path", meaning, (key, *_SUMS, _ON_DEVICE), when=f"--by {by}")


BY_OPERATOR: Final = _surroundings("operator", "operator of the framework", "Innermost operator")
BY_RANGE: Final = _surroundings("range", "range", "Innermost NVTX range or annotation")

#: The table that ``by="rank"`` gives.
BY_RANK: Final = Table(
    "critical_path",
    "One rank, or one process where the report has no ranks: its part of the critical path.",
    (
        Column("rank", pl.Int64, "Rank of the job; null where the report has none.", nullable=True),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        *_SUMS,
        _ON_DEVICE,
        Column("mostly", pl.String, "The cause with most of it."),
        Column("mostly_ns", pl.Int64, "Its time on the path by this cause."),
    ),
    when="--by rank",
    job=True,
)

_NS: Final = pl.col("end") - pl.col("start")


def critical_path(
    report: Report, by: str | None = None, *, segments: bool = False, **where: Unpack[Where]
) -> pl.DataFrame:
    """Critical path: what the end of the window waited for, back to its beginning; all rows sum to the window.

    Definition: docs/whatif.md, "The critical path".

    Args:
        report: The report.
        by: ``cause`` (also without it), ``kernel``, ``operator``, ``range`` or ``rank``.
        segments: Each stretch by itself, in the order of time.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, :data:`SEGMENTS`, :data:`BY_KERNEL`, :data:`BY_OPERATOR`, :data:`BY_RANGE` or :data:`BY_RANK`,
        by time on the path, the longest first; empty without operations.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, *DEVICE_KINDS)
    return _segments(report) if segments else _GROUPINGS[by or "cause"](report)


def _segments(report: Report) -> pl.DataFrame:
    pieces = with_names(report, path(report))
    row = pieces.get_column("row").set(pieces.get_column("cause").is_in(ON_HOST), None)
    rows = pieces.with_columns(
        pl.col("start").alias("start_ns"),
        _NS.alias("dur_ns"),
        *facts_of(report, row, "device", "stream"),
    )
    return SEGMENTS.select(rows)


def _sums(pieces: pl.DataFrame, count: int | None, *keys: str) -> pl.DataFrame:
    """Sums of pieces by `keys`, the longest first: ns, share, each_ns (of so many iterations), pieces, device_ns."""
    sums = pieces.group_by(keys).agg(ns=_NS.sum(), pieces=pl.len().cast(pl.Int64), device_ns=_NS.filter(RUNNING).sum())
    total = max(int(sums.get_column("ns").sum()), 1)
    each = pl.lit(None, dtype=pl.Float64) if count is None else pl.col("ns") / count
    rows = sums.with_columns(share=pl.col("ns") / total, each_ns=each)
    texts = [pl.col(key).cast(pl.String) if sums.schema[key] == pl.Categorical else pl.col(key) for key in keys]
    return rows.sort("ns", *texts, descending=[True, *[False] * len(keys)])


def _iterations(report: Report) -> int | None:
    return None if report.scope.window is None else report.scope.window.count


def _by_cause(report: Report) -> pl.DataFrame:
    pieces, keys = path(report), ("cause", "name")
    sums = _sums(pieces, _iterations(report), "cause")
    ns = [_NS.sum().alias("mostly_ns")]
    parts = pl.concat([named_pieces(report, part).group_by(keys).agg(ns) for part in slices(pieces)])
    most = parts.group_by(keys).agg(pl.col("mostly_ns").sum())
    most = most.sort("mostly_ns", pl.col("name").cast(pl.String), descending=[True, False])
    most = most.unique("cause", keep="first").rename({"name": "mostly"})
    return TABLE.select(sums.join(most, on="cause", maintain_order="left"))


def _by_kernel(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).select("row", "name", ns=pl.col("end") - pl.col("start"))
    by_name = work.with_columns(gathered(slack(report), work.get_column("row")).alias("free")).group_by("name").agg(
        total_ns=pl.col("ns").sum(),
        count=pl.len().cast(pl.Int64),
        slack_ns=pl.col("free").min(),
        median_slack_ns=pl.col("free").median(),
    )  # fmt: skip
    running = path(report).filter(RUNNING)
    on_path = _sums(with_facts(report, running, "name"), _iterations(report), "name").drop("share")
    rows = by_name.join(on_path, on="name", how="left", nulls_equal=True)
    window = max(int(path(report).select(_NS.sum()).item()), 1)
    rows = rows.with_columns(pl.col("ns", "pieces").fill_null(0)).with_columns(share=pl.col("ns") / window)
    return BY_KERNEL.select(rows.sort("ns", "total_ns", pl.col("name").cast(pl.String), descending=[True, True, False]))


def _by_surroundings(report: Report, by: str) -> pl.DataFrame:
    table, kind, named = (BY_OPERATOR, "op", by_operator) if by == "operator" else (BY_RANGE, "range", by_range)
    require(report, table, kind)
    return table.select(_sums(named(report, path(report)).rename({"name": by}), _iterations(report), by))


def sums_by_rank(pieces: pl.DataFrame, count: int | None) -> pl.DataFrame:
    """:data:`BY_RANK` of pieces of a path with rank and process_id, over so many iterations."""
    keys = ["rank", "process_id"]
    most = pieces.group_by(*keys, "cause").agg(mostly_ns=_NS.sum()).sort("mostly_ns", descending=True)
    most = most.unique(keys, keep="first", maintain_order=True).rename({"cause": "mostly"})
    return BY_RANK.select(_sums(pieces, count, *keys).join(most, on=keys, nulls_equal=True, maintain_order="left"))


_GROUPINGS: Final[dict[str, Callable[[Report], pl.DataFrame]]] = {
    "cause": _by_cause,
    "kernel": _by_kernel,
    "operator": lambda report: _by_surroundings(report, "operator"),
    "range": lambda report: _by_surroundings(report, "range"),
    "rank": lambda report: sums_by_rank(
        path(report).with_columns(rank=pl.lit(report.meta.rank, dtype=pl.Int64)), _iterations(report)
    ),
}
