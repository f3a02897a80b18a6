"""Chains of elementwise kernels that one kernel could replace: their memory traffic, and that of a fused kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.fusion._chains import chains
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import ARROW
from kanalyze.analyses.shared.cached import analysis, once_per_report
from kanalyze.analyses.shared.requirements import require
from kanalyze.columns.lookup import gathered
from kanalyze.exact import added, wide
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

if TYPE_CHECKING:
    from kanalyze.report import Report

TABLE: Final = Table(
    "fusion",
    "One chain of elementwise kernels that follow each other on a stream, all its occurrences.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("chain", pl.String, "The operators that launched the kernels, in order."),
        Column("within", pl.String, "The operator around all of them; null where they are neighbours.", nullable=True),
        Column("elements", pl.Int64, "Elements of each result; null where shapes were not recorded.", nullable=True),
        Column("count", pl.Int64, "How often the chain occurs."),
        Column("kernels", pl.Int64, "Kernels of one occurrence."),
        Column("launches", pl.Int64, "Kernels of all occurrences; one fused kernel each would be `count`."),
        Column("total_ns", pl.Int64, "Sum of the kernels' durations."),
        Column(
            "gaps_ns",
            pl.Int64,
            "Time between the kernels of the occurrences, in which their stream had nothing to run.",
        ),
        Column("moved_bytes", pl.Int64, "What they read and write, from shapes and types.", nullable=True),
        Column(
            "fused_bytes",
            pl.Int64,
            "The least that fused kernels read and write: the inputs of the first operator and the result of the last; "
            "of an optimizer's step weights, gradients and what it keeps of them.",
            nullable=True,
        ),
        Column(
            "fused_ns",
            pl.Int64,
            "The time that they take: that of fused_bytes at the device's memory bandwidth; where shapes or bandwidth "
            "are not known, by the operator of each occurrence whose kernels took least. No kernel takes less "
            "than 1 µs.",
        ),
        Column("saved_ns", pl.Int64, "So much less kernel time: total_ns without fused_ns."),
    ),
    purpose="chains of kernels that one kernel could do",
    telling=("chain", "count", "launches", "total_ns", "saved_ns"),
    tools=recorders("op"),
)

#: The minimum duration of a kernel, however little it does.
_LEAST_NS: Final = 1_000

#: Operators on lists of tensors that update an optimizer's state: first moments, second moments, weights.
_UPDATES: Final = ("aten::_foreach_lerp_", "aten::_foreach_addcmul_", "aten::_foreach_addcdiv_")
_BOTH_WAYS: Final = 2
_FOREACH: Final = r"^aten::_foreach_"

_KEYS: Final = ("device", "chain", "within", "elements")


@analysis
def fusion(report: Report) -> pl.DataFrame:
    """Chains of elementwise kernels, the largest saving first.

    Source: what a fusing compiler (torch.compile) does with pointwise operators. A trace does not record which result
    is whose input, so a chain is what could be fused if each kernel works on the previous one's result.

    Returns:
        :data:`TABLE`; empty if no two elementwise kernels follow each other.

    Raises:
        CannotTellError: The report has no operators or no kernels.

    Columns:
        device, chain, within, elements, count, kernels, launches, total_ns, gaps_ns, moved_bytes, fused_bytes,
        fused_ns, saved_ns.
    """
    require(report, TABLE.name, "op")
    require(report, TABLE, "kernel")
    timed = occurrences(report)
    if timed.is_empty():
        return TABLE.empty()
    sums = timed.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("kernels").first(),
        pl.col("kernels").sum().alias("launches"),
        *(pl.col(name).sum() for name in ("total_ns", "gaps_ns", "fused_ns")),
        *(_sum_or_null(name) for name in ("moved_bytes", "fused_bytes")),
    )
    found = sums.with_columns(saved_ns=pl.col("total_ns") - pl.col("fused_ns"))
    return TABLE.select(found).sort("saved_ns", *_KEYS, descending=[True, *(False for _ in _KEYS)], nulls_last=True)


@once_per_report
def occurrences(report: Report) -> pl.DataFrame:
    """One row per occurrence of a chain that fusion could shorten: the keys of the table, and its times and bytes.

    Besides: number (that of its `chain` among the chains), parts (kernels of its largest operator).
    """
    kernels = chains(report)
    names = host_tree(report).rows.get_column("name").cast(pl.String)
    around = gathered(names, kernels.get_column("outermost")).alias("around")
    named = kernels.with_columns(pl.col("name").cast(pl.String), around)
    speeds = report.devices.select("device", speed="memory_bandwidth_bytes_per_s")
    each = _occurrences(named).join(speeds, on="device", how="left")
    each = each.filter((pl.col("fused_bytes") < pl.col("moved_bytes")).fill_null(value=True))
    at_bandwidth = (pl.col("fused_bytes") * 1e9 / pl.col("speed")).ceil().cast(pl.Int64, strict=False)
    least = pl.max_horizontal(pl.coalesce(at_bandwidth, "shortest_ns"), _LEAST_NS * pl.col("parts"))
    # a fused kernel takes no longer than the kernels that it replaces
    return each.with_columns(fused_ns=pl.min_horizontal(least, "total_ns"))


def _occurrences(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per occurrence of a chain."""
    one = pl.col("outermost").n_unique() == 1
    # the operator that launched all of them, directly or through operators that it called
    around = pl.when(one & (pl.col("around").first() != pl.col("name").first())).then(pl.col("around").first())
    known = [pl.col("read_bytes"), pl.col("written_bytes")]
    all_known = pl.all_horizontal(bytes_.is_not_null().all() for bytes_ in known)
    ends = pl.col("read_bytes").first() + pl.col("written_bytes").last()
    kept, written = _kept(), pl.col("written_bytes").filter(pl.col("name") == _UPDATES[-1]).first().fill_null(0)
    return (
        _operators(kernels)
        .group_by("chain", maintain_order=True)
        .agg(
            pl.col("device").first(),
            pl.col("name").str.join(ARROW).alias("text"),
            around.alias("within"),
            pl.col("elements").first(),
            *(pl.col(name).sum() for name in ("kernels", "total_ns", "gaps_ns")),
            pl.col("kernels").max().alias("parts"),
            # the shortest operator reads and writes one list or tensor
            (pl.col("total_ns").min() * kept.clip(lower_bound=_BOTH_WAYS) // _BOTH_WAYS).alias("shortest_ns"),
            pl.when(all_known).then(added(pl.sum_horizontal(map(wide, known)))).alias("moved_bytes"),
            pl.when(all_known).then(pl.max_horizontal(ends, written * kept)).alias("fused_bytes"),
        )
        .rename({"chain": "number", "text": "chain"})
    )


def _operators(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per operator of an occurrence, in the order of its kernels, of which there may be several."""
    idle = pl.col("start") - pl.col("end").cum_max().shift(1).over("chain")
    return (
        kernels.with_columns(idle=idle.clip(lower_bound=0).fill_null(0))
        .group_by("chain", "operator", maintain_order=True)
        .agg(
            pl.col("device", "name", "around", "outermost", "elements").first(),
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("idle").sum().alias("gaps_ns"),
            *(_sum_or_null(name) for name in ("read_bytes", "written_bytes")),
        )
    )


def _kept() -> pl.Expr:
    """The minimum number of lists that an Adam-like optimizer step reads and writes; 0 for other chains.

    It updates the first moments by lerp, the second moments by addcmul and the weights by addcdiv, each of which it
    reads and writes, and reads the gradients.
    """
    updated = [(pl.col("name") == name).any().cast(pl.Int64) for name in _UPDATES]
    step = pl.col("name").str.contains(_FOREACH).all() & ((pl.col("name") == _UPDATES[-1]).sum() == 1)
    return pl.when(step).then(_BOTH_WAYS * pl.sum_horizontal(updated) + 1).otherwise(0)


def _sum_or_null(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().all()).then(added(pl.col(name))).alias(name)
