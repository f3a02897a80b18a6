"""The critical path: what the end of the window waited for, back to its beginning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.critical._path import CAUSES, ON_HOST, by_operator, by_range, named_pieces, path, with_names
from kanalyze.analyses.critical._slack import slack
from kanalyze.analyses.device._operations import BUSY_BUCKETS, exclusive_operations, facts_of, with_facts
from kanalyze.analyses.shared.requirements import check_grouping, require
from kanalyze.columns.grouping import grouped, slices
from kanalyze.columns.lookup import gathered
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Unpack

    from kanalyze.report import Report, Where

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
        Column("total_ns", pl.Int64, "Its time in the window, on the path or not: plain sum."),
        Column("count", pl.Int64, "Number of launches in the window."),
        Column(
            "slack_ns",
            pl.Int64,
            "How much longer one of its launches may take, all else as it was, before the window's end moves: the "
            "least of them, 0 on the path; null where none ends in the window, and of tens of millions of launches.",
            nullable=True,
        ),
        Column("median_slack_ns", pl.Float64, "The median of its launches.", nullable=True),
    ),
    when="--by kernel",
)

_ON_DEVICE: Final = Column("device_ns", pl.Int64, "The part in which a device ran it.")

#: The table that ``by="operator"`` gives.
BY_OPERATOR: Final = Table(
    "critical_path",
    "One operator of the framework: time on the critical path that it ran, launched or waited.",
    (
        Column("operator", pl.String, "Innermost operator; null outside of any.", nullable=True),
        *_SUMS,
        _ON_DEVICE,
    ),
    when="--by operator",
)

#: The table that ``by="range"`` gives.
BY_RANGE: Final = Table(
    "critical_path",
    "One range: time on the critical path that it ran, launched or waited.",
    (
        Column("range", pl.String, "Innermost NVTX range or annotation; null outside of any.", nullable=True),
        *_SUMS,
        _ON_DEVICE,
    ),
    when="--by range",
)

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

#: Causes in which a device runs the operation.
RUNNING: Final = pl.col("cause").is_in([*BUSY_BUCKETS, "transfer"])


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

    Columns:
        cause, ns, share, each_ns, pieces, mostly, mostly_ns.
    """
    report = report.narrow(**where)
    check_grouping(TABLE, by)
    require(report, TABLE, *DEVICE_KINDS)
    if segments:
        return _segments(report)
    return _GROUPINGS[by or "cause"](report)


def _segments(report: Report) -> pl.DataFrame:
    pieces = with_names(report, path(report))
    row = pieces.get_column("row").set(pieces.get_column("cause").is_in(ON_HOST), None)
    told = pieces.with_columns(
        pl.col("start").alias("start_ns"),
        _NS.alias("dur_ns"),
        *facts_of(report, row, "device", "stream"),
    )
    return SEGMENTS.select(told)


def _sums(report: Report, pieces: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Sums of pieces by `keys`, the longest first: ns, share, each_ns, pieces, device_ns."""
    window = report.scope.window
    count = None if window is None else window.count
    agg = {"ns": _NS.sum(), "pieces": pl.len().cast(pl.Int64), "device_ns": _NS.filter(RUNNING).sum()}
    parts = pl.concat([part.group_by(keys).agg(**agg) for part in slices(pieces)])
    sums = parts.group_by(keys).agg(pl.col(*agg).sum())
    total = max(int(sums.get_column("ns").sum()), 1)
    each = pl.lit(None, dtype=pl.Float64) if count is None else pl.col("ns") / count
    told = sums.with_columns(share=pl.col("ns") / total, each_ns=each)
    texts = [pl.col(key).cast(pl.String) if sums.schema[key] == pl.Categorical else pl.col(key) for key in keys]
    return told.sort("ns", *texts, descending=[True, *[False] * len(keys)])


def _by_cause(report: Report) -> pl.DataFrame:
    every, keys = path(report), ("cause", "name")
    sums = _sums(report, every, "cause")
    ns = [_NS.sum().alias("mostly_ns")]
    parts = pl.concat([grouped(named_pieces(report, part), keys, ns) for part in slices(every)])
    most = parts.group_by(keys).agg(pl.col("mostly_ns").sum())
    most = most.sort("mostly_ns", pl.col("name").cast(pl.String), descending=[True, False])
    most = most.unique("cause", keep="first").rename({"name": "mostly"})
    return TABLE.select(sums.join(most, on="cause", maintain_order="left"))


def _by_kernel(report: Report) -> pl.DataFrame:
    work = exclusive_operations(report).select("row", "name", ns=pl.col("end") - pl.col("start"))
    room, unknown = slack(report), pl.Series([None], dtype=pl.Int64).new_from_index(0, work.height)
    free = unknown if room is None else gathered(room, work.get_column("row"))
    every = (
        work.with_columns(free.alias("free"))
        .group_by("name")
        .agg(
            total_ns=pl.col("ns").sum(),
            count=pl.len().cast(pl.Int64),
            slack_ns=pl.col("free").min(),
            median_slack_ns=pl.col("free").median(),
        )
    )
    running = path(report).filter(RUNNING)
    found = _sums(report, with_facts(report, running, "name"), "name").drop("share")
    told = every.join(found, on="name", how="left", nulls_equal=True)
    window = max(int(path(report).select(_NS.sum()).item()), 1)
    told = told.with_columns(pl.col("ns", "pieces").fill_null(0)).with_columns(share=pl.col("ns") / window)
    return BY_KERNEL.select(told.sort("ns", "total_ns", pl.col("name").cast(pl.String), descending=[True, True, False]))


def _by_operator(report: Report) -> pl.DataFrame:
    require(report, BY_OPERATOR, "op")
    return BY_OPERATOR.select(_named(report, by_operator(report, path(report)), "operator"))


def _by_range(report: Report) -> pl.DataFrame:
    require(report, BY_RANGE, "range")
    return BY_RANGE.select(_named(report, by_range(report, path(report)), "range"))


def _named(report: Report, pieces: pl.DataFrame, column: str) -> pl.DataFrame:
    return _sums(report, pieces.rename({"name": column}), column)


def _by_rank(report: Report) -> pl.DataFrame:
    keys = ["rank", "process_id"]
    pieces = path(report).with_columns(rank=pl.lit(report.meta.rank, dtype=pl.Int64))
    most = pieces.group_by(*keys, "cause").agg(mostly_ns=_NS.sum()).sort("mostly_ns", descending=True)
    most = most.unique(keys, keep="first", maintain_order=True).rename({"cause": "mostly"})
    return BY_RANK.select(_sums(report, pieces, *keys).join(most, on=keys, nulls_equal=True, maintain_order="left"))


_GROUPINGS: Final[dict[str, Callable[[Report], pl.DataFrame]]] = {
    "cause": _by_cause,
    "kernel": _by_kernel,
    "operator": _by_operator,
    "range": _by_range,
    "rank": _by_rank,
}
