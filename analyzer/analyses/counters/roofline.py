"""Rooflines: each kernel's work and bytes, against what the GPU can reach with them.

Work is counted as in ncu's roofline charts: threads that executed an addition or product count 1, a fused product 2, a
packed one twice that; tensor cores by ncu's metrics of their operations, dense work at the dense peak of its path.
Compilers write register moves as fused half-precision products (``HFMA2 R1, -RZ, RZ, …``), and no counter distinguishes
them from real ones: if a kernel executed no other half-precision instruction, these count as moves.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from kanalyze.analyses.counters._metrics import measured_kernels, ratio, require_counters, whole
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.report import Report
from kanalyze.schema import Column, Table

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
    told = {path: sum(part is not None for part in (path.op, path.target, path.sparsity)) for path in found.values()}
    return sorted(told, key=lambda path: (-told[path], path.metric))


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
    capability = pl.col("compute_capability").cast(pl.Float64, strict=False)
    own = kernels.join(_counted(report), on="event_id", how="left", maintain_order="left").join(
        report.devices.select("device", capability=capability), on="device", how="left", maintain_order="left"
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


#: Per cycle, over all SMs: `smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed` and the like.
_CORE_DONE: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
_CORE_PEAK: Final = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
_SM_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"

#: Operations of the cores, by precision, each with the work of one; and the work of the widest in a thread.
_CORES: Final = {
    "fp64": ({"dadd": 1, "dmul": 1, "dfma": 2}, 2),
    "fp32": ({"fadd": 1, "fmul": 1, "ffma": 2}, 2),
    "fp16": ({"hadd": 2, "hmul": 2, "hfma": 4}, 4),
}

_KINDS: Final = (*_CORES, "tensor")

#: Packed pairs, which only GPUs of compute capability 10.0 or later execute.
_PACKED: Final = {"fadd2": 2, "fmul2": 2, "ffma2": 4}

#: Pipes that every half-precision instruction uses, in newer and older versions.
_HALF_PIPES: Final = (
    "sm__inst_executed_pipe_fma_type_fp16.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_active",
)

_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_BYTES_PER_CYCLE, _DRAM_CLOCK = "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"

_METRICS: Final = (
    *(_CORE_DONE.format(op) for ops, _ in _CORES.values() for op in ops),
    *(_CORE_PEAK.format(f"{letter}fma") for letter in "dfh"),
    *(_CORE_DONE.format(op) for op in _PACKED),
    *_HALF_PIPES,
    *(_SMSP_CYCLES, _SM_CLOCK, _READ, _WRITTEN, _BYTES_PER_CYCLE, _DRAM_CLOCK),
)

TABLE: Final = Table(
    "roofline",
    "One kernel that ncu measured, under the roof of its GPU; what was not collected is null.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("name", pl.String, "Its name.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`.", nullable=True),
        Column("dur_ns", pl.Int64, "Duration, alone and under replay.", nullable=True),
        *(
            Column(f"{name}_flop", pl.Float64, f"Work in {name} outside of tensor cores.", nullable=True)
            for name in _CORES
        ),
        Column("tensor_flop", pl.Float64, "Floating-point work of tensor cores.", nullable=True),
        Column("tensor_int_op", pl.Float64, "Work of tensor cores on integers, which is no FLOP.", nullable=True),
        Column("flop", pl.Float64, "All floating-point work.", nullable=True),
        Column("dram_bytes", pl.Int64, "Bytes read from DRAM and written to it.", nullable=True),
        Column(
            "intensity_flop_per_byte",
            pl.Float64,
            "Work for each byte of DRAM traffic; here and below, operations of tensor cores on integers are work, too.",
            nullable=True,
        ),
        Column(
            "precision",
            pl.String,
            f"What is nearest its peak: {', '.join(_CORES)}, or tensor with the type of its inputs (tensor bf16), and "
            "sparse where these were 2:4 sparse instructions.",
            nullable=True,
        ),
        Column(
            "instruction",
            pl.String,
            "The instruction that tensor cores did most of it with, where ncu tells them apart: hmma, hgmma, imma…",
            nullable=True,
        ),
        Column("achieved_flop_per_s", pl.Float64, "Work by the duration.", nullable=True),
        Column(
            "attainable_flop_per_s",
            pl.Float64,
            "The same work by the least time that the GPU needs for it and for the bytes, at the clocks of the run.",
            nullable=True,
        ),
        Column(
            "peak_flop_per_s",
            pl.Float64,
            "The peak of `precision` with that instruction, at the clock of the run: of dense work the dense one.",
            nullable=True,
        ),
        Column("dram_bytes_per_s", pl.Float64, "Achieved bandwidth.", nullable=True),
        Column("peak_dram_bytes_per_s", pl.Float64, "Peak bandwidth, at the clock of the run.", nullable=True),
        Column("ridge_flop_per_byte", pl.Float64, "The intensity where both take equally long.", nullable=True),
        Column("bound", pl.String, "What takes longer at its peak: memory or compute.", nullable=True),
        Column(
            "roof_share",
            pl.Float64,
            "The least time by the duration: 1 is on the roof, the rest is the distance to it.",
            nullable=True,
        ),
    ),
    purpose="work, bytes, and distance to the roof",
    telling=("dur_ns", "bound", "roof_share", "flop", "dram_bytes"),
    counted=True,

)  # fmt: skip


@analysis
def roofline(report: Report) -> pl.DataFrame:
    """Work, bytes and distance to the roof of each kernel, in the order of the report.

    Returns:
        :data:`TABLE`; null if the metrics were not collected (``--set full``, or the sections
        SpeedOfLight_RooflineChart and MemoryWorkloadAnalysis).

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, TABLE)
    kernels = measured_kernels(report, TABLE, (*_METRICS, *tensor_metrics(report)))
    letters = {"fp64": "d", "fp32": "f", "fp16": "h"}
    peaks = {name: pl.col(_CORE_PEAK.format(f"{letters[name]}fma")) * most for name, (_, most) in _CORES.items()}
    found = kernels.with_columns(
        **{f"{name}_flop": _cores(ops) for name, (ops, _) in _CORES.items()},
        **{f"{name}_peak": peak * pl.col(_SM_CLOCK) for name, peak in peaks.items()},
        dram_bytes=whole(pl.col(_READ) + pl.col(_WRITTEN)),
        peak_dram_bytes_per_s=pl.col(_BYTES_PER_CYCLE) * pl.col(_DRAM_CLOCK),
        seconds=pl.col("dur_ns") / 1e9,
    )
    worked = found.with_columns(
        fp32_flop=pl.col("fp32_flop") + _packed(),
        fp16_flop=pl.when(_only_moves()).then(0.0).otherwise("fp16_flop"),
    )
    return TABLE.select(_bounds(_times(with_tensor_work(report, worked))))


def _cores(ops: dict[str, int]) -> pl.Expr:
    per_cycle = [pl.col(_CORE_DONE.format(op)) * work for op, work in ops.items()]
    return pl.sum_horizontal(per_cycle, ignore_nulls=False) * pl.col(_SMSP_CYCLES)


def _packed() -> pl.Expr:
    """The work of packed pairs; 0 on GPUs without such instructions."""
    per_cycle = [pl.col(_CORE_DONE.format(op)).fill_null(0.0) * work for op, work in _PACKED.items()]
    return pl.sum_horizontal(per_cycle) * pl.col(_SMSP_CYCLES)


def _only_moves() -> pl.Expr:
    """Whether fused products were the only half-precision instructions, which are then register moves.

    ncu before 2025.2 counts only these; whether there were others shows in the utilisation of their pipe.
    """
    others = pl.sum_horizontal(_CORE_DONE.format("hadd"), _CORE_DONE.format("hmul"), ignore_nulls=False)
    return (pl.coalesce(others, *_HALF_PIPES) == 0).fill_null(value=False)


def _times(found: pl.DataFrame) -> pl.DataFrame:
    """The minimum time for each kind of work, and for the bytes, in seconds."""
    return found.with_columns(
        **{f"{name}_s": _time(f"{name}_flop", f"{name}_peak") for name in _CORES},
        memory_s=ratio("dram_bytes", "peak_dram_bytes_per_s"),
    ).with_columns(
        flop=pl.sum_horizontal(*(f"{name}_flop" for name in _CORES), "tensor_flop", ignore_nulls=False),
        compute_s=pl.max_horizontal(f"{name}_s" for name in _KINDS),
    )


def _time(work: str, peak: str) -> pl.Expr:
    """The minimum time for some work; 0 without work, whatever the peak."""
    return pl.when(pl.col(work) == 0).then(0.0).otherwise(ratio(work, peak))


def _bounds(found: pl.DataFrame) -> pl.DataFrame:
    most, memory, worked = pl.col("compute_s"), pl.col("memory_s"), pl.col("flop") + pl.col("tensor_int_op")
    nearest = {name: (pl.col(f"{name}_s") == most) & (most > 0) for name in _KINDS}
    named = [pl.when(nearest[name]).then(pl.lit(name)) for name in _CORES]
    tensor = pl.when(nearest["tensor"])
    least = pl.max_horizontal("memory_s", "compute_s")
    known = pl.all_horizontal(pl.col(f"{name}_s").is_not_null() for name in (*_KINDS, "memory"))
    bound = pl.when(known).then(pl.when(most > memory).then(pl.lit("compute")).otherwise(pl.lit("memory")))
    return found.with_columns(
        precision=pl.coalesce(*named, tensor.then(pl.coalesce("tensor_precision", pl.lit("tensor")))),
        instruction=tensor.then("tensor_instruction"),
        peak_flop_per_s=pl.coalesce(pl.when(nearest[name]).then(f"{name}_peak") for name in _KINDS),
        intensity_flop_per_byte=ratio(worked, "dram_bytes"),
        achieved_flop_per_s=ratio(worked, "seconds"),
        attainable_flop_per_s=pl.when(known).then(ratio(worked, least)),
        dram_bytes_per_s=ratio("dram_bytes", "seconds"),
        bound=bound,
        roof_share=pl.when(known).then(ratio(least, "seconds")),
    ).with_columns(ridge_flop_per_byte=ratio("peak_flop_per_s", "peak_dram_bytes_per_s"))
