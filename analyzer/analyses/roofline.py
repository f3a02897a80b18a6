"""Where each kernel stands under the roof: its work, its bytes, and what the GPU could do with both.

Work is counted as ncu's roofline charts count it: threads that executed an addition or product count 1, a fused product
2, a packed half one twice that; tensor cores as ncu's metrics of their operations say. Compilers write register moves
as fused half-precision products (``HFMA2 R1, -RZ, RZ, …``), and no counter tells them from real ones: where a kernel
executed no other half-precision instruction, these count as moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import analysis
from kanalyze.analyses._metrics import measured_kernels, ratio
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Per cycle, over all SMs: `smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed` and the like.
_DONE: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
_PEAK: Final = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"
_SMSP_CYCLES: Final = "smsp__cycles_elapsed.avg"
_SM_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"

#: Operations of the cores, by precision: each with the work of one; and the work of the widest in a thread.
_CORES: Final = {
    "fp64": ({"dadd": 1, "dmul": 1, "dfma": 2}, 2),
    "fp32": ({"fadd": 1, "fmul": 1, "ffma": 2}, 2),
    "fp16": ({"hadd": 2, "hmul": 2, "hfma": 4}, 4),
}

#: Operations of tensor cores, by the type of what they multiply; integers are no FLOP.
_TENSOR: Final = {
    "tensor fp64": "sm__ops_path_tensor_src_fp64",
    "tensor tf32": "sm__ops_path_tensor_src_tf32_dst_fp32",
    "tensor bf16": "sm__ops_path_tensor_src_bf16_dst_fp32",
    "tensor fp16": "sm__ops_path_tensor_src_fp16",
    "tensor fp8": "sm__ops_path_tensor_src_fp8_sparsity_off",
    "tensor fp8 sparse": "sm__ops_path_tensor_src_fp8_sparsity_on",
}

#: How busy the pipe of tensor cores was, in newer and older versions.
_TENSOR_PIPE: Final = (
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_tensor.avg.pct_of_peak_sustained_active",
)

_READ, _WRITTEN = "dram__bytes_read.sum", "dram__bytes_write.sum"
_BYTES_PER_CYCLE, _DRAM_CLOCK = "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"

_METRICS: Final = (
    *(_DONE.format(op) for ops, _ in _CORES.values() for op in ops),
    *(_PEAK.format(f"{letter}fma") for letter in "dfh"),
    *(f"{metric}.sum" for metric in _TENSOR.values()),
    *(f"{metric}.sum.peak_sustained" for metric in _TENSOR.values()),
    *_TENSOR_PIPE,
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
        Column("tensor_flop", pl.Float64, "Work of tensor cores.", nullable=True),
        Column("flop", pl.Float64, "All work.", nullable=True),
        Column("dram_bytes", pl.Int64, "Bytes read from DRAM and written to it.", nullable=True),
        Column("intensity_flop_per_byte", pl.Float64, "Work for each byte of DRAM traffic.", nullable=True),
        Column("precision", pl.String, f"What is nearest its peak: {', '.join((*_CORES, *_TENSOR))}.", nullable=True),
        Column("achieved_flop_per_s", pl.Float64, "Work by the duration.", nullable=True),
        Column(
            "attainable_flop_per_s",
            pl.Float64,
            "The same work by the least time that the GPU needs for it and for the bytes, at the clocks of the run.",
            nullable=True,
        ),
        Column("peak_flop_per_s", pl.Float64, "The peak of `precision`, at the clock of the run.", nullable=True),
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
    counted=True,
)  # fmt: skip


@analysis
def roofline(report: Report) -> pl.DataFrame:
    """Work, bytes and the distance to the roof of each kernel, in the order of the report.

    Returns:
        :data:`TABLE`; null where the metrics were not collected (``--set full``, or the sections
        SpeedOfLight_RooflineChart and MemoryWorkloadAnalysis).

    Raises:
        CannotTellError: The report has no counters, or a window is looked at: ncu's kernels have no place in time.
    """
    kernels = measured_kernels(report, TABLE.name, _METRICS)
    work = {name: _cores(ops) for name, (ops, _) in _CORES.items()}
    peaks = {name: pl.col(_PEAK.format(f"{_letter(name)}fma")) * widest for name, (_, widest) in _CORES.items()}
    found = kernels.with_columns(
        **{f"{name}_flop": flop for name, flop in work.items()},
        moves=pl.sum_horizontal(_DONE.format("hadd"), _DONE.format("hmul"), ignore_nulls=False) == 0,
        **{f"{name}_peak": peak * pl.col(_SM_CLOCK) for name, peak in peaks.items()},
        **{f"{name}_flop": pl.col(f"{metric}.sum") for name, metric in _TENSOR.items()},
        **{
            f"{name}_peak": pl.col(f"{metric}.sum.peak_sustained") * pl.col(_SM_CLOCK)
            for name, metric in _TENSOR.items()
        },
        dram_bytes=(pl.col(_READ) + pl.col(_WRITTEN)).cast(pl.Int64),
        peak_dram_bytes_per_s=pl.col(_BYTES_PER_CYCLE) * pl.col(_DRAM_CLOCK),
        seconds=pl.col("dur_ns") / 1e9,
    )
    half = pl.when("moves").then(pl.lit(0.0)).otherwise("fp16_flop").alias("fp16_flop")
    return TABLE.select(_bounds(_times(found.with_columns(half))))


def _letter(precision: str) -> str:
    return {"fp64": "d", "fp32": "f", "fp16": "h"}[precision]


def _cores(ops: dict[str, int]) -> pl.Expr:
    per_cycle = [pl.col(_DONE.format(op)) * work for op, work in ops.items()]
    return pl.sum_horizontal(per_cycle, ignore_nulls=False) * pl.col(_SMSP_CYCLES)


def _times(found: pl.DataFrame) -> pl.DataFrame:
    """The least time that each kind of work takes, and all bytes; in seconds."""
    kinds = (*_CORES, *_TENSOR)
    return found.with_columns(
        **{f"{name}_s": ratio(f"{name}_flop", f"{name}_peak") for name in kinds},
        memory_s=ratio("dram_bytes", "peak_dram_bytes_per_s"),
        tensor_flop=_tensor(),
    ).with_columns(
        flop=pl.sum_horizontal("fp64_flop", "fp32_flop", "fp16_flop", "tensor_flop", ignore_nulls=False),
        compute_s=pl.max_horizontal(f"{name}_s" for name in kinds),
    )


def _tensor() -> pl.Expr:
    """The work of tensor cores; before Hopper it is only known where their pipe did nothing."""
    counted = pl.any_horizontal(pl.col(f"{name}_flop").is_not_null() for name in _TENSOR)
    work = pl.sum_horizontal(f"{name}_flop" for name in _TENSOR)
    return pl.when(counted).then(work).when(pl.coalesce(_TENSOR_PIPE) == 0).then(0.0)


def _bounds(found: pl.DataFrame) -> pl.DataFrame:
    kinds = (*_CORES, *_TENSOR)
    most = pl.col("compute_s")
    named = [pl.when((pl.col(f"{name}_s") == most) & (most > 0)).then(pl.lit(name)) for name in kinds]
    peaks = [pl.when((pl.col(f"{name}_s") == most) & (most > 0)).then(f"{name}_peak") for name in kinds]
    least = pl.max_horizontal("memory_s", "compute_s")
    known = pl.col("memory_s").is_not_null() & pl.col("flop").is_not_null()
    bound = pl.when(known).then(pl.when(most > pl.col("memory_s")).then(pl.lit("compute")).otherwise(pl.lit("memory")))
    return found.with_columns(
        precision=pl.coalesce(named),
        peak_flop_per_s=pl.coalesce(peaks),
        intensity_flop_per_byte=ratio("flop", "dram_bytes"),
        achieved_flop_per_s=ratio("flop", "seconds"),
        attainable_flop_per_s=pl.when(known).then(ratio("flop", least)),
        dram_bytes_per_s=ratio("dram_bytes", "seconds"),
        bound=bound,
        roof_share=pl.when(known).then(ratio(least, "seconds")),
    ).with_columns(ridge_flop_per_byte=ratio("peak_flop_per_s", "peak_dram_bytes_per_s"))
