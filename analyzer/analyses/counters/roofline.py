"""Rooflines: each kernel's work and bytes, against what the GPU can reach with them.

Work is counted as in ncu's roofline charts: threads that executed an addition or product count 1, a fused product 2, a
packed one twice that; tensor cores by ncu's metrics of their operations, dense work at the dense peak of its path.
Compilers write register moves as fused half-precision products (``HFMA2 R1, -RZ, RZ, …``), and no counter distinguishes
them from real ones: if a kernel executed no other half-precision instruction, these count as moves.
"""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import polars as pl

from kanalyze.analyses.counters.counters import counted, measured_kernels, ratio
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.report import Report
from kanalyze.schema import Table, columns

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
_SM_CLOCK: Final = "sm__cycles_elapsed.avg.per_second"
_SMSP_CYCLES: Final = "smsp__cycles_elapsed.avg"


class _Path(NamedTuple):
    """A path of tensor cores, or a group of paths with common properties; None stands for any."""

    metric: str  # the prefix of its metrics' names
    op: str | None  # the instruction: hmma, hgmma, imma…
    source: str  # type of the inputs
    target: str | None  # type of the accumulator
    sparsity: str | None  # on or off

    @property
    def integer(self) -> bool:
        """True for integer arithmetic."""
        return self.source.startswith("int")

    @property
    def mixed(self) -> bool:
        """Whether its peak is that of sparse work, on GPUs that have it."""
        return self.sparsity is None and self.source not in _NEVER_SPARSE

    def refines(self, other: "_Path") -> bool:
        """Whether its work is also counted by the less specific `other`."""
        return self != other and all(theirs in (None, ours) for ours, theirs in zip(self[1:], other[1:], strict=True))

    def column(self, what: str) -> pl.Expr:
        """Its column that :func:`_with_path` adds."""
        return pl.col(f"{self.metric} {what}")


def _with_tensor_work(report: Report, kernels: pl.DataFrame, paths: Sequence[_Path]) -> pl.DataFrame:
    """Adds the work of tensor cores on `paths` to `kernels`.

    Columns tensor_flop and tensor_int_op (the work; null if unknown), tensor_s (the minimum time for it, in seconds, at
    least the busy time of the pipe), and for the path with most of that time tensor_precision, tensor_instruction and
    tensor_peak (per second).
    """
    metric = pl.col("metric")
    works = metric.str.starts_with(_BEGINNING) & (metric.str.ends_with(_DONE) | metric.str.ends_with(_RATE))
    collected = report.table("metrics").filter(works, pl.col("value").is_not_null()).get_column("event_id")
    capability = pl.col("compute_capability").cast(pl.Float64, strict=False)
    devices = report.devices.select("device", capability=capability)
    own = kernels.with_columns(counted=pl.col("event_id").is_in(collected.implode()))
    own = own.join(devices, on="device", how="left", maintain_order="left")
    for path in paths:
        own = _with_path(own, path, paths)
    busy = pl.col("seconds") * pl.col(BUSY) / 100
    spent = pl.sum_horizontal(pl.lit(0.0), *(path.column("s") for path in paths), ignore_nulls=False)
    work, integers = (
        pl.sum_horizontal(pl.lit(0.0), *(path.column("own") for path in paths if path.integer == integer))
        for integer in (False, True)
    )
    # register moves also keep the pipe busy, and are not work
    needed = pl.when(work + integers > 0).then(pl.max_horizontal(spent, busy)).otherwise(0.0)
    unused = pl.when(pl.col(BUSY) == 0).then(0.0)
    return own.with_columns(
        tensor_flop=pl.when("counted").then(work).otherwise(unused),
        tensor_int_op=pl.when("counted").then(integers).otherwise(unused),
        tensor_s=pl.when("counted").then(needed).otherwise(busy),
        **_longest(paths),
    )


def _with_path(kernels: pl.DataFrame, path: _Path, paths: Sequence[_Path]) -> pl.DataFrame:
    """Adds of a path own, the work that no more specific one counts, peak (per second), and s, the time for its work.

    Where the peak is that of sparse work, but this work may have been dense, since it took long enough, so is dense.
    """
    rate = pl.col(path.metric + _RATE) * pl.col(_SMSP_CYCLES)
    work = pl.coalesce(pl.col(path.metric + _DONE), rate).fill_null(0.0)
    own = work - pl.sum_horizontal(pl.lit(0.0), *(other.column("own") for other in paths if other.refines(path)))
    fastest, counted = pl.col(path.metric + _PEAK) * pl.col(_SM_CLOCK), path.column("own")
    halved = (pl.col("capability") >= _SPARSE_SINCE) & (_FASTER * counted / fastest <= _IMPOSSIBLE * pl.col("seconds"))
    dense = halved.fill_null(value=False) if path.mixed else pl.lit(value=False)
    peak, time = path.column("peak"), pl.when(counted == 0).then(0.0)
    values = {
        "own": pl.when(own > _ROUNDING * work).then(own).otherwise(0.0),
        "dense": dense,
        "peak": pl.when(path.column("dense")).then(fastest / _FASTER).otherwise(fastest),
        "s": time.when(peak > 0).then(counted / peak),
    }
    for what, value in values.items():
        kernels = kernels.with_columns(value.alias(f"{path.metric} {what}"))
    return kernels


def _longest(paths: Sequence[_Path]) -> dict[str, pl.Expr]:
    """Name, instruction and peak of the path with most time."""
    most = pl.max_horizontal(pl.lit(0.0), *(path.column("s") for path in paths))
    names, ops, peaks = ([pl.lit(None, dtype=dtype)] for dtype in (pl.String, pl.String, pl.Float64))
    for path in paths:
        longest = pl.when((path.column("s") == most) & (most > 0))
        sparse = pl.lit(path.sparsity == "on")
        if path.mixed:
            sparse = ~path.column("dense") & (pl.col("capability") >= _SPARSE_SINCE)
        name = pl.lit(f"tensor {path.source.replace('_', '/')}")
        names.append(longest.then(name + pl.when(sparse).then(pl.lit(" sparse")).otherwise(pl.lit(""))))
        ops.append(longest.then(pl.lit(path.op, dtype=pl.String)))
        peaks.append(longest.then(path.column("peak")))
    choices = {"tensor_precision": names, "tensor_instruction": ops, "tensor_peak": peaks}
    return {name: pl.coalesce(values) for name, values in choices.items()}


#: Per cycle, over all SMs: `smsp__sass_thread_inst_executed_op_fadd_pred_on.sum.per_cycle_elapsed` and the like.
_CORE_DONE: Final = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum.per_cycle_elapsed"
_CORE_PEAK: Final = "sm__sass_thread_inst_executed_op_{}_pred_on.sum.peak_sustained"

#: Operations of the cores, by precision, each with the work of one; and the one that tells the peak.
_CORES: Final = {
    "fp64": ({"dadd": 1, "dmul": 1, "dfma": 2}, "dfma"),
    "fp32": ({"fadd": 1, "fmul": 1, "ffma": 2}, "ffma"),
    "fp16": ({"hadd": 2, "hmul": 2, "hfma": 4}, "hfma"),
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
    *(_CORE_PEAK.format(widest) for _, widest in _CORES.values()),
    *(_CORE_DONE.format(op) for op in _PACKED),
    *_HALF_PIPES,
    *(_SMSP_CYCLES, _SM_CLOCK, _READ, _WRITTEN, _BYTES_PER_CYCLE, _DRAM_CLOCK),
)

TABLE: Final = Table(
    "roofline",
    "One kernel that ncu measured, under the roof of its GPU; what was not collected is null.",
    columns(f"""
        event_id int: The kernel in `events`.
        name text?: Its name.
        device int?: The GPU, as in `devices`.
        dur_ns int?: Duration, alone and under replay.
        fp64_flop float?: Work in fp64 outside of tensor cores.
        fp32_flop float?: Work in fp32 outside of tensor cores.
        fp16_flop float?: Work in fp16 outside of tensor cores.
        tensor_flop float?: Floating-point work of tensor cores.
        tensor_int_op float?: Work of tensor cores on integers, which is no FLOP.
        flop float?: All floating-point work.
        dram_bytes int?: Bytes read from DRAM and written to it.
        intensity_flop_per_byte float?: Work for each byte of DRAM traffic; here and below, operations of tensor
            cores on integers are work, too.
        precision text?: What is nearest its peak: {", ".join(_CORES)}, or tensor with the type of its inputs
            (tensor bf16), and sparse where these were 2:4 sparse instructions.
        instruction text?: The instruction that tensor cores did most of it with, where ncu tells them apart: hmma,
            hgmma, imma…
        achieved_flop_per_s float?: Work by the duration.
        attainable_flop_per_s float?: The same work by the least time that the GPU needs for it and for the bytes,
            at the clocks of the run.
        peak_flop_per_s float?: The peak of `precision` with that instruction, at the clock of the run: of dense
            work the dense one.
        dram_bytes_per_s float?: Achieved bandwidth.
        peak_dram_bytes_per_s float?: Peak bandwidth, at the clock of the run.
        ridge_flop_per_byte float?: The intensity where both take equally long.
        bound text?: What takes longer at its peak: memory or compute.
        roof_share float?: The least time by the duration: 1 is on the roof, the rest is the distance to it.
    """),
    purpose="work, bytes, and distance to the roof",
    telling=("dur_ns", "bound", "roof_share", "flop", "dram_bytes"),
    counted=True,
)


@analysis
def roofline(report: Report) -> pl.DataFrame:
    """Work, bytes and distance to the roof of each kernel, in the order of the report.

    Returns:
        :data:`TABLE`; null if the metrics were not collected (``--set full``, or the sections
        SpeedOfLight_RooflineChart and MemoryWorkloadAnalysis).

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    rows = report.table("metrics").filter(pl.col("metric").str.starts_with(_BEGINNING), pl.col("value") > 0)
    matches = map(_WORK.fullmatch, rows.get_column("metric").unique())
    # the paths with work; more specific ones come first
    with_work = {_Path(**match.groupdict()) for match in matches if match is not None}
    paths = sorted(with_work, key=lambda path: (path.count(None), path.metric))
    of_paths = [path.metric + ending for path in paths for ending in (_DONE, _RATE, _PEAK)]
    kernels = measured_kernels(report, TABLE, (*_METRICS, *of_paths, BUSY))
    cycles, clock = pl.col(_SMSP_CYCLES), pl.col(_SM_CLOCK)
    figures = {}
    for name, (ops, widest) in _CORES.items():
        done = [pl.col(_CORE_DONE.format(op)) * work for op, work in ops.items()]
        figures[f"{name}_flop"] = cycles * pl.sum_horizontal(done, ignore_nulls=False)
        figures[f"{name}_peak"] = pl.col(_CORE_PEAK.format(widest)) * ops[widest] * clock
    computed = kernels.with_columns(
        **figures,
        dram_bytes=counted(pl.col(_READ) + pl.col(_WRITTEN)),
        peak_dram_bytes_per_s=pl.col(_BYTES_PER_CYCLE) * pl.col(_DRAM_CLOCK),
        seconds=pl.col("dur_ns") / 1e9,
    )
    packed = pl.sum_horizontal(pl.col(_CORE_DONE.format(op)).fill_null(0.0) * work for op, work in _PACKED.items())
    # where no other half-precision instruction ran, in which ncu before 2025.2 counts their pipe alone
    others = pl.sum_horizontal(_CORE_DONE.format("hadd"), _CORE_DONE.format("hmul"), ignore_nulls=False)
    only_moves = (pl.coalesce(others, *_HALF_PIPES) == 0).fill_null(value=False)
    fp16_flop = pl.when(only_moves).then(0.0).otherwise("fp16_flop")
    worked = computed.with_columns(fp32_flop=pl.col("fp32_flop") + packed * cycles, fp16_flop=fp16_flop)
    return TABLE.select(_bounds(_with_tensor_work(report, worked, paths)))


def _bounds(worked: pl.DataFrame) -> pl.DataFrame:
    """Adds the minimum time for each kind of work, and for the bytes, in seconds, and what of them bounds a kernel."""
    times = {  # 0 without work, whatever the peak
        f"{name}_s": pl.when(pl.col(f"{name}_flop") == 0).then(0.0).otherwise(ratio(f"{name}_flop", f"{name}_peak"))
        for name in _CORES
    }
    timed = worked.with_columns(**times, memory_s=ratio("dram_bytes", "peak_dram_bytes_per_s")).with_columns(
        flop=pl.sum_horizontal((f"{name}_flop" for name in _KINDS), ignore_nulls=False),
        compute_s=pl.max_horizontal(f"{name}_s" for name in _KINDS),
    )
    most, memory, work = pl.col("compute_s"), pl.col("memory_s"), pl.col("flop") + pl.col("tensor_int_op")
    nearest = {name: pl.when((pl.col(f"{name}_s") == most) & (most > 0)) for name in _KINDS}
    named = [nearest[name].then(pl.lit(name)) for name in _CORES]
    least = pl.max_horizontal("memory_s", "compute_s")
    known = pl.when(pl.all_horizontal(pl.col(f"{name}_s").is_not_null() for name in (*_KINDS, "memory")))
    return timed.with_columns(
        precision=pl.coalesce(*named, nearest["tensor"].then(pl.coalesce("tensor_precision", pl.lit("tensor")))),
        instruction=nearest["tensor"].then("tensor_instruction"),
        peak_flop_per_s=pl.coalesce(nearest[name].then(f"{name}_peak") for name in _KINDS),
        intensity_flop_per_byte=ratio(work, "dram_bytes"),
        achieved_flop_per_s=ratio(work, "seconds"),
        attainable_flop_per_s=known.then(ratio(work, least)),
        dram_bytes_per_s=ratio("dram_bytes", "seconds"),
        bound=known.then(pl.when(most > memory).then(pl.lit("compute")).otherwise(pl.lit("memory"))),
        roof_share=known.then(ratio(least, "seconds")),
    ).with_columns(ridge_flop_per_byte=ratio("peak_flop_per_s", "peak_dram_bytes_per_s"))
