"""Tensor-core work by path: instruction, input type, dense or 2:4 sparse.

Each path has its own peak. ncu counts some work twice: in a metric that names the path
(``…_op_hgmma_src_bf16_dst_fp32_sparsity_off``), and in one for all paths of a type (``…_src_bf16_dst_fp32``), whose
peak is that of its fastest path, the sparse one. Here work counts once, at the peak of its most specific metric.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report

_BEGINNING: Final = "sm__ops_path_tensor_"
_DONE, _RATE, _PEAK = ".sum", ".sum.per_cycle_elapsed", ".sum.peak_sustained"
_WORK: Final = re.compile(
    rf"(?P<metric>{_BEGINNING}(?:op_(?P<op>[a-z]+)_)?src_(?P<source>\w+?)(?:_dst_(?P<target>\w+?))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?)\.sum(?:\.per_cycle_elapsed)?"
)

#: Types without 2:4 sparse paths.
_NEVER_SPARSE: Final = ("fp64", "int1")
#: Compute capability from which GPUs have sparse paths, which are twice as fast as dense ones.
_SPARSE_SINCE: Final = 8.0
_FASTER: Final = 2

#: Tolerance, as a share of the work, between the total and the sum of its paths, which ncu's pages round.
_ROUNDING: Final = 0.01
#: No kernel reaches this share of a peak.
_IMPOSSIBLE: Final = 1.02

#: The share of time in which the tensor pipe was busy.
BUSY: Final = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"
_SMSP_CYCLES: Final = "smsp__cycles_elapsed.avg"


@dataclass(frozen=True)
class Path:
    """A path, or a group of paths with common properties; None stands for any.

    Attributes:
        metric: The prefix of its metrics' names.
        op: The instruction: hmma, hgmma, imma…
        source: Type of the inputs.
        target: Type of the accumulator.
        sparsity: on or off.
    """

    metric: str
    op: str | None
    source: str
    target: str | None
    sparsity: str | None

    @property
    def integer(self) -> bool:
        """True for integer arithmetic."""
        return self.source.startswith("int")

    @property
    def mixed(self) -> bool:
        """Whether its peak is that of sparse work, on GPUs that have it."""
        return self.sparsity is None and self.source not in _NEVER_SPARSE

    def refines(self, other: Path) -> bool:
        """Whether its work is also counted by the less specific `other`."""
        parts = ("op", "source", "target", "sparsity")
        return self != other and all(getattr(other, part) in {None, getattr(self, part)} for part in parts)


def tensor_paths(report: Report) -> list[Path]:
    """The paths with work in a report; more specific ones come first."""
    rows = report.table("metrics").select("metric", "value").filter(pl.col("metric").str.starts_with(_BEGINNING))
    found = {}
    for name in rows.filter(pl.col("value") > 0).get_column("metric").unique():
        match = _WORK.fullmatch(name)
        if match is not None:
            found[match["metric"]] = Path(**match.groupdict())
    return sorted(found.values(), key=lambda path: (-_told(path), path.metric))


def _told(path: Path) -> int:
    return sum(part is not None for part in (path.op, path.target, path.sparsity))


def tensor_metrics(report: Report) -> list[str]:
    """The metrics that :func:`with_tensor_work` reads."""
    of_paths = [path.metric + ending for path in tensor_paths(report) for ending in (_DONE, _RATE, _PEAK)]
    return [*of_paths, BUSY, _CLOCK, _SMSP_CYCLES]


def with_tensor_work(report: Report, kernels: pl.DataFrame) -> pl.DataFrame:
    """Adds tensor-core work to `kernels`.

    Args:
        report: The report of these kernels.
        kernels: With the columns event_id, device, seconds and those of :func:`tensor_metrics`.

    Returns:
        Columns tensor_flop and tensor_int_op (the work; null if unknown), tensor_s (the minimum time for it, in
        seconds, at least the busy time of the pipe), and for the path with most of that time tensor_precision,
        tensor_instruction and tensor_peak (per second).
    """
    paths = tensor_paths(report)
    own = kernels.join(_counted(report), on="event_id", how="left", maintain_order="left").join(
        _capabilities(report), on="device", how="left", maintain_order="left"
    )
    for path in paths:
        own = own.with_columns(_own(path, paths)).with_columns(_dense(path))
    timed = own.with_columns(one for path in paths for one in _spent(path))
    counted, busy = pl.col("counted").is_not_null(), pl.col("seconds") * pl.col(BUSY) / 100
    spent = pl.sum_horizontal(pl.lit(0.0), *(_part(path, "s") for path in paths), ignore_nulls=False)
    # register moves also keep the pipe busy, and are not work
    needed = pl.when(_sum(paths) > 0).then(pl.max_horizontal(spent, busy)).otherwise(0.0)
    unused = pl.when(pl.col(BUSY) == 0).then(0.0)
    return timed.with_columns(
        tensor_flop=pl.when(counted).then(_sum(paths, integer=False)).otherwise(unused),
        tensor_int_op=pl.when(counted).then(_sum(paths, integer=True)).otherwise(unused),
        tensor_s=pl.when(counted).then(needed).otherwise(busy),
        **_longest(paths),
    )


def _counted(report: Report) -> pl.DataFrame:
    """Columns event_id and counted: the kernels whose tensor-core work was collected."""
    metric = pl.col("metric")
    works = metric.str.starts_with(_BEGINNING) & (metric.str.ends_with(_DONE) | metric.str.ends_with(_RATE))
    rows = report.table("metrics").filter(works & pl.col("value").is_not_null())
    return rows.select(pl.col("event_id").unique()).with_columns(counted=pl.lit(value=True))


def _capabilities(report: Report) -> pl.DataFrame:
    return report.devices.select("device", capability=pl.col("compute_capability").cast(pl.Float64, strict=False))


def _part(path: Path, what: str) -> pl.Expr:
    return pl.col(f"{path.metric} {what}")


def _own(path: Path, paths: Sequence[Path]) -> pl.Expr:
    """The work that no more specific path counts."""
    rate = pl.col(path.metric + _RATE) * pl.col(_SMSP_CYCLES)
    work = pl.coalesce(pl.col(path.metric + _DONE), rate).fill_null(0.0)
    told = pl.sum_horizontal(pl.lit(0.0), *(_part(other, "own") for other in paths if other.refines(path)))
    return pl.when(work - told > _ROUNDING * work).then(work - told).otherwise(0.0).alias(f"{path.metric} own")


def _dense(path: Path) -> pl.Expr:
    """Whether the peak is for sparse work, but this work may have been dense: it took long enough."""
    halved = pl.col("capability") >= _SPARSE_SINCE if path.mixed else pl.lit(value=False)
    least = _FASTER * _part(path, "own") / (pl.col(path.metric + _PEAK) * pl.col(_CLOCK))
    return (halved & (least <= _IMPOSSIBLE * pl.col("seconds"))).fill_null(value=False).alias(f"{path.metric} dense")


def _spent(path: Path) -> list[pl.Expr]:
    """The peak of a path, per second, and the time for its work at that peak."""
    fastest = pl.col(path.metric + _PEAK) * pl.col(_CLOCK)
    peak = pl.when(_part(path, "dense")).then(fastest / _FASTER).otherwise(fastest)
    time = pl.when(_part(path, "own") == 0).then(0.0).when(peak > 0).then(_part(path, "own") / peak)
    return [peak.alias(f"{path.metric} peak"), time.alias(f"{path.metric} s")]


def _sum(paths: Sequence[Path], *, integer: bool | None = None) -> pl.Expr:
    chosen = [_part(path, "own") for path in paths if integer is None or path.integer == integer]
    return pl.sum_horizontal(pl.lit(0.0), *chosen)


def _longest(paths: Sequence[Path]) -> dict[str, pl.Expr]:
    """Name, instruction and peak of the path with most time."""
    most = pl.max_horizontal(pl.lit(0.0), *(_part(path, "s") for path in paths))
    unknown = pl.lit(None, dtype=pl.String)
    named, ops, peaks = [unknown], [unknown], [pl.lit(None, dtype=pl.Float64)]
    for path in paths:
        longest = (_part(path, "s") == most) & (most > 0)
        sparse = pl.lit(path.sparsity == "on")
        if path.mixed:
            sparse = ~_part(path, "dense") & (pl.col("capability") >= _SPARSE_SINCE)
        name = pl.lit(f"tensor {path.source.replace('_', '/')}")
        named.append(pl.when(longest).then(name + pl.when(sparse).then(pl.lit(" sparse")).otherwise(pl.lit(""))))
        ops.append(pl.when(longest).then(pl.lit(path.op, dtype=pl.String)))
        peaks.append(pl.when(longest).then(_part(path, "peak")))
    return {
        "tensor_precision": pl.coalesce(named),
        "tensor_instruction": pl.coalesce(ops),
        "tensor_peak": pl.coalesce(peaks),
    }
