"""What ncu measured by kernel: its metrics as columns, what warps wait for, and the lines of source they were at."""

import re
from collections.abc import Iterable
from typing import Final

import polars as pl

from kanalyze import errors, schema
from kanalyze.analyses.device._operations import SHAPE_COLUMNS
from kanalyze.analyses.shared.analysis import analysis
from kanalyze.analyses.shared.statistics import known_sum
from kanalyze.report import Report


def require_counters(report: Report, table: schema.Table) -> None:
    """Raises :class:`CannotTellError` unless the report has counters and no window is set."""
    if not report.meta.timeless:
        raise errors.CannotTellError.without_counters(table.name, report.meta.path)
    if report.scope.window is not None:
        raise errors.CannotTellError.timeless(f"{table.name} of a window", report.meta.path)


def measured_kernels(report: Report, table: schema.Table, metrics: Iterable[str]) -> pl.DataFrame:
    """All kernels in scope with `metrics`, in the order of measurement.

    Returns:
        Columns event_id, name, dur_ns, process_id, device, those of kernel_config, and a Float64 column for each of
        `metrics`, null if not collected.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, table)
    kernels = report.seen("kernel").select("event_id", pl.col("name").cast(pl.String), "dur_ns", "process_id", "device")
    placed = kernels.join(report.kernel_config, on="event_id", how="left", maintain_order="left")
    return placed.join(metric_columns(report, metrics), on="event_id", how="left", maintain_order="left")


def metric_columns(report: Report, metrics: Iterable[str]) -> pl.DataFrame:
    """One column per metric, a row per kernel that has any; with event_id."""
    names = list(dict.fromkeys(metrics))
    rows = report.table("metrics").filter(pl.col("metric").is_in(names)).select("event_id", "metric", "value")
    wide = rows.pivot(on="metric", on_columns=names, index="event_id", values="value", aggregate_function="first")
    return wide.select("event_id", *names)


def ratio(part: str | pl.Expr, whole: str | pl.Expr) -> pl.Expr:
    """The ratio of two columns, null if the divisor is zero."""
    divisor = pl.col(whole) if isinstance(whole, str) else whole
    return pl.when(divisor > 0).then(part) / divisor


def counted(metric: pl.Expr) -> pl.Expr:
    """Rounds a count, which ncu stores as a floating-point number."""
    return (metric + 0.5).floor().cast(pl.Int64, strict=False)


#: Each reason for which warps wait with its meaning, and whether it is a wait (`selected` is the issue itself).
REASONS: Final = {
    "long_scoreboard": ("data from global, local or texture memory", True),
    "short_scoreboard": ("data from shared memory, or a special function", True),
    "math_pipe_throttle": ("an execution pipe that is busy", True),
    "mio_throttle": ("the queue for shared memory and special functions", True),
    "lg_throttle": ("the queue for global and local memory", True),
    "tex_throttle": ("the queue for textures", True),
    "barrier": ("other warps at a barrier of the block", True),
    "membar": ("a memory barrier", True),
    "wait": ("the result of an instruction before it, of fixed latency", True),
    "no_instruction": ("instructions to be fetched", True),
    "imc_miss": ("constants to be fetched", True),
    "drain": ("stores to complete before it exits", True),
    "branch_resolving": ("a branch to be resolved", True),
    "dispatch_stall": ("the dispatcher", True),
    "gmma": ("other warps of a warpgroup, or its matrix products", True),
    "sleeping": ("the end of a sleep", True),
    "misc": ("something else in the hardware", True),
    "not_selected": ("its turn: another warp was issued instead", False),
    "selected": ("nothing: it was issued", False),
}

#: Cycles between two instructions of a warp, which the stall reasons divide among themselves.
LATENCY: Final = "smsp__average_warp_latency_per_inst_issued.ratio"


def stall_metric(reason: str) -> str:
    """The metric of ncu for the cycles that warps spend with `reason` per instruction issued."""
    return f"smsp__average_warps_issue_stalled_{reason}_per_issue_active.ratio"


#: Bytes of a sector, the smallest transfer of a cache.
SECTOR_BYTES: Final = 32

#: The maximum error of a number printed with two decimals.
_PRINTED: Final = 0.006

#: The limiters of resident blocks, as in the column `limiter`, with ncu's metric.
LIMITS: Final = {
    "registers": "launch__occupancy_limit_registers",
    "shared memory": "launch__occupancy_limit_shared_mem",
    "warps": "launch__occupancy_limit_warps",
    "blocks": "launch__occupancy_limit_blocks",
    "barriers": "launch__occupancy_limit_barriers",
}

#: Metrics from which columns are computed.
_OPS: Final = {"load": "ld", "store": "st"}
_SECTORS, _REQUESTS = (f"l1tex__t_{of}_pipe_lsu_mem_global_op_{{}}.sum" for of in ("sectors", "requests"))
_BYTES: Final = "smsp__sass_average_data_bytes_per_sector_mem_global_op_{}.ratio"
_CONFLICTS: Final = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum"
_WAVEFRONTS: Final = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"
_ACTIVE, _CYCLES = "sm__cycles_active.avg", "gpc__cycles_elapsed.max"
_EXCESSIVE: Final = "derived__memory_l2_theoretical_sectors_global_excessive"
_THEORETICAL: Final = "memory_l2_theoretical_sectors_global"
_WAVES: Final = "launch__waves_per_multiprocessor"
_SMS: Final = "launch__sm_count"

#: Columns whose meaning ends with the metric of ncu that they are; shares are percentages there.
_COLUMNS: Final = (
    *schema.columns("""
        event_id int: The kernel in `events`, in the order of the report.
        name text?: Its name.
        device int?: The GPU, as in `devices`.
        dur_ns int?: Duration, alone and under replay: not that in the program.
        cycles int?: Elapsed Cycles. gpc__cycles_elapsed.max.
        sm_clock_hz int?: SM Frequency. gpc__cycles_elapsed.avg.per_second.
        compute_share float?: Compute (SM) Throughput of its peak. sm__throughput.avg.pct_of_peak_sustained_elapsed.
        memory_share float?: Memory Throughput of its peak.
            gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed.
        dram_share float?: DRAM Throughput of its peak. gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed.
        dram_bytes_per_s int?: DRAM bandwidth, reads and writes. dram__bytes.sum.per_second.
        dram_read_bytes int?: Bytes read from DRAM. dram__bytes_read.sum.
        dram_write_bytes int?: Bytes written to DRAM. dram__bytes_write.sum.
        l2_share float?: L2 Cache Throughput of its peak. lts__throughput.avg.pct_of_peak_sustained_elapsed.
        l2_hit_share float?: L2 Hit Rate. lts__t_sector_hit_rate.pct.
        l1_share float?: L1/TEX Cache Throughput of its peak. l1tex__throughput.avg.pct_of_peak_sustained_active.
        l1_hit_share float?: L1/TEX Hit Rate. l1tex__t_sector_hit_rate.pct.
        constant_share float?: How busy the caches of constant memory are, of their peak.
            idc__request_cycles_active.avg.pct_of_peak_sustained_elapsed.
    """),
    *SHAPE_COLUMNS,
    *schema.columns(f"""
        registers_per_thread int32?: Registers that a thread uses.
        static_shared_bytes int?: Static shared memory of a block.
        dynamic_shared_bytes int?: Dynamic shared memory of a block.
        occupancy_share float?: Theoretical Occupancy. sm__maximum_warps_per_active_cycle_pct.
        achieved_occupancy_share float?: Achieved Occupancy. sm__warps_active.avg.pct_of_peak_sustained_active.
        limiter text?: What allows no further block on an SM: {", ".join(LIMITS)}.
        blocks_per_sm int?: Blocks that an SM can hold: ncu's least Block Limit.
        sms int?: SMs of the GPU. {_SMS}.
        waves float?: Waves Per SM: the grid by the blocks that run at once. {_WAVES}.
        tail_share float?: The part of the blocks' room that the last wave leaves empty; 0 where there is but one wave.
        instructions int?: Executed Instructions, of warps. smsp__inst_executed.sum.
        ipc float?: Instructions that an SM executes per active cycle. sm__inst_executed.avg.per_cycle_active.
        issue_share float?: Cycles in which a scheduler issues. smsp__issue_active.avg.pct_of_peak_sustained_active.
        active_warps float?: Active Warps Per Scheduler. smsp__warps_active.avg.per_cycle_active.
        eligible_warps float?: Eligible Warps Per Scheduler. smsp__warps_eligible.avg.per_cycle_active.
        cycles_per_instruction float?: Warp Cycles Per Issue. {LATENCY}.
        top_stall text?: What warps wait for longest, as `stalls` names it; not counting `selected` and `not_selected`.
        top_stall_share float?: Its part of cycles_per_instruction.
        threads_per_instruction float?: Avg. Active Threads Per Warp.
            smsp__thread_inst_executed_per_inst_executed.ratio.
        load_sectors_per_request float?: Sectors of 32 bytes that a global load of a warp touches; 4 where 32 threads
            use 4 bytes each, side by side.
        store_sectors_per_request float?: Sectors of 32 bytes that a global store of a warp touches; 4 where 32 threads
            use 4 bytes each, side by side.
        load_used_share float?: Bytes of them that a global load uses.
        store_used_share float?: Bytes of them that a global store uses.
        sm_active_share float?: SMs with warps on them, in the mean over the kernel: {_ACTIVE} by cycles.
        uncoalesced_share float?: Sectors of global accesses that ideal ones would not need. {_EXCESSIVE} by
            {_THEORETICAL}.
        bank_conflicts int?: Bank conflicts of shared memory. {_CONFLICTS}.
        bank_conflict_share float?: Bank conflicts by all wavefronts of shared memory, of which each conflict adds one.
        local_loads int?: Loads from local memory: spilled registers and arrays.
            smsp__sass_inst_executed_op_local_ld.sum.
        local_stores int?: Stores to local memory. smsp__sass_inst_executed_op_local_st.sum.
        spill_requests int?: Requests of local memory for spilled registers. derived__local_spilling_requests.
        spill_share float?: Requests of local memory that are register spills. derived__local_spilling_requests_pct.
        tensor_share float?: Use of the tensor pipe, which executes register moves, too.
            sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active.
    """),
)

_PLAIN: Final = {
    one.name: (match[1], one.dtype) for one in _COLUMNS if (match := re.search(r" (\w+__[\w.]+)\.$", one.doc))
}

_METRICS: Final = (
    *(metric for metric, _ in _PLAIN.values()),
    *LIMITS.values(),
    *(metric.format(op) for metric in (_SECTORS, _REQUESTS, _BYTES) for op in _OPS.values()),
    *(_ACTIVE, _WAVEFRONTS, _EXCESSIVE, _THEORETICAL),
    *map(stall_metric, REASONS),
)

TABLE: Final = schema.Table(
    "counters",
    "One kernel that ncu measured, as its details page prints it; what was not collected is null.",
    _COLUMNS,
    purpose="speed of light, memory, occupancy per kernel",
    telling=("dur_ns", "compute_share", "memory_share", "achieved_occupancy_share", "limiter", "top_stall"),
    counted=True,
)


@analysis
def counters(report: Report) -> pl.DataFrame:
    """The metrics of each kernel that ncu measured, in the order of the report: :data:`TABLE`.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    least = pl.min_horizontal(LIMITS.values())
    limiting = [pl.when(pl.col(metric) == least).then(pl.lit(name)) for name, metric in LIMITS.items()]
    # waves as printed (two decimals), or exactly from blocks and capacity unless in clusters
    exact = pl.col("grid_x").cast(pl.Float64) * pl.col("grid_y") * pl.col("grid_z") / (least * pl.col(_SMS))
    waves = pl.when((exact - pl.col(_WAVES)).abs() < _PRINTED).then(exact).otherwise(pl.col(_WAVES))
    waiting = [reason for reason, (_, waits) in REASONS.items() if waits]
    longest = pl.max_horizontal(map(stall_metric, waiting))
    stalls_of = [pl.when((pl.col(stall_metric(one)) == longest) & (longest > 0)).then(pl.lit(one)) for one in waiting]
    figures = {}
    for name, (metric, dtype) in _PLAIN.items():
        figure = counted(pl.col(metric)) if dtype == pl.Int64 else pl.col(metric)
        figures[name] = pl.col(metric) / 100 if name.endswith("_share") else figure
    for what, op in _OPS.items():
        figures[f"{what}_sectors_per_request"] = ratio(_SECTORS.format(op), _REQUESTS.format(op))
        used = pl.col(_BYTES.format(op))  # 0 in some sectors are copies to shared memory, which it does not count
        figures[f"{what}_used_share"] = pl.when(used > 0).then(used / SECTOR_BYTES)
    kernels = measured_kernels(report, TABLE, _METRICS).with_columns(
        **figures,
        sm_active_share=ratio(_ACTIVE, _CYCLES),
        uncoalesced_share=ratio(_EXCESSIVE, _THEORETICAL),
        bank_conflict_share=ratio(_CONFLICTS, _WAVEFRONTS),
        blocks_per_sm=least.cast(pl.Int64),
        limiter=pl.when(least.is_not_null()).then(pl.concat_str(limiting, separator=", ", ignore_nulls=True)),
        tail_share=pl.when(waves > 1).then((waves.ceil() - waves) / waves.ceil()).when(waves.is_not_null()).then(0.0),
        top_stall=pl.coalesce(stalls_of),
        top_stall_share=ratio(longest, LATENCY),
    )
    return TABLE.select(kernels)


STALLS: Final = schema.Table(
    "stalls",
    "One reason for which warps of one kernel wait, as ncu measured it.",
    schema.columns(f"""
        event_id int: The kernel in `events`.
        name text?: Its name.
        reason text: What is waited for, in ncu's words: {", ".join(REASONS)}.
        cycles_per_instruction float: Cycles that a warp spends so, for each instruction issued.
        share float?: Their part of the cycles between two instructions of a warp, as ncu counts it: reasons are counted
            in passes of their own, and can add up to more than 1.
        meaning text: What a warp waits for then.
    """),
    purpose="what the warps of each kernel wait for",
    telling=("reason", "share", "cycles_per_instruction"),
    counted=True,
)


@analysis
def stalls(report: Report) -> pl.DataFrame:
    """The stall reasons of each kernel, the longest first; reasons that do not occur are omitted.

    Returns:
        :data:`STALLS`; empty if the section WarpStateStats was not collected, or only its summary is known.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    metrics = {stall_metric(reason): reason for reason in REASONS}
    wide = measured_kernels(report, STALLS, [*metrics, LATENCY])
    long = wide.unpivot(list(metrics), index=["event_id", "name", LATENCY], variable_name="metric", value_name="cycles")
    long = long.filter(pl.col("cycles") > 0)
    why = pl.col("metric").replace_strict(metrics, return_dtype=pl.String)
    means = why.replace_strict({name: text for name, (text, _) in REASONS.items()}, return_dtype=pl.String)
    rows = long.with_columns(reason=why, meaning=means, share=ratio("cycles", LATENCY), cycles_per_instruction="cycles")
    order = ["event_id", "cycles_per_instruction", "reason"]
    return STALLS.select(rows.sort(order, descending=[False, True, False]))


#: The columns summed over the instructions of a line.
_SUMS: Final = ("samples", "stalled_samples", "instructions", "thread_instructions", "sectors", "ideal_sectors")

HOT_LINES: Final = schema.Table(
    "hot_lines",
    "One line of source of one kernel that ncu measured, with the instructions made of it.",
    schema.columns("""
        event_id int: The kernel in `events`.
        name text?: Its name.
        file text?: The source file; null for all instructions of which no line is known.
        line int?: The line there.
        samples int?: Samples of warps that were at it.
        share float?: Their part of the kernel's samples.
        stalled_samples int?: Those of them in which the scheduler issued nothing.
        sass_count int: Instructions that it was made into.
        instructions int?: How often warps executed them.
        thread_instructions int?: How often threads did.
        threads_per_instruction float?: Threads that took part, of 32.
        sectors int?: Sectors that its global accesses touch in L2.
        ideal_sectors int?: Sectors that they would touch side by side.
        ideal_share float?: ideal_sectors by sectors: 1 is coalesced.
        live_registers int?: Most registers that are live at one of its instructions.
        text text?: The line, where the source was imported.
    """),
    purpose="the lines of source that warps were at",
    telling=("samples", "share", "file", "line", "text"),
    counted=True,
)


@analysis
def hot_lines(report: Report) -> pl.DataFrame:
    """The source lines of all kernels, most samples first.

    Returns:
        :data:`HOT_LINES`; a kernel compiled without -lineinfo, or known only from CSV pages, has one row without a
        line; empty if the section SourceCounters was not collected.

    Raises:
        CannotTellError: The report has no counters, or a window is set: ncu's kernels have no timestamps.
    """
    require_counters(report, HOT_LINES)
    rows, known = report.table("instructions"), (known_sum(name) for name in _SUMS)
    count = pl.len().cast(pl.Int64)
    sums = rows.group_by("event_id", "file", "line").agg(*known, pl.col("live_registers").max(), sass_count=count)
    names = report.kind("kernel").select("event_id", pl.col("name").cast(pl.String))
    every = rows.group_by("event_id").agg(all_samples=pl.col("samples").sum())
    files = report.table("source_files").with_columns(pl.col("text").str.split("\n")).explode("text")
    texts = files.with_columns(line=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("file"))
    known_lines = sums.join(names, on="event_id", how="left").join(every, on="event_id", how="left")
    lines = known_lines.join(texts, on=["file", "line"], how="left").with_columns(
        share=ratio("samples", "all_samples"),
        threads_per_instruction=ratio("thread_instructions", "instructions"),
        ideal_share=ratio("ideal_sectors", "sectors"),
    )
    order = ["event_id", "samples", "file", "line"]
    return HOT_LINES.select(lines.sort(order, descending=[False, True, False, False], nulls_last=True))
