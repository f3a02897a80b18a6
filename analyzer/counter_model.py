"""Tables of ncu reports: kernel counters, results of ncu's rules, launch numbers.

Definitions: docs/definitions.md, sections 2 and 8.
"""

from collections.abc import Collection
from typing import Final

import polars as pl

from kanalyze.schema import Column, Table, columns
from kanalyze.tools import recorders

METRICS = Table(
    "metrics",
    "One counter of one kernel that ncu collected, in the base unit of ncu.",
    columns("""
        event_id int: The kernel in `events`.
        section text?: Section of ncu whose details page prints it, as `ncu --section` takes it; null where none does.
        metric text: Its name in ncu.
        value float?: Its value; null where that is no number.
        text text?: Its value where that is no number, such as CachePreferNone.
        unit text?: Unit in ncu's own words: ns, byte/s, %, cycle…; null for none.
    """),
    purpose="every counter, by ncu's own name",
    counted=True,
)

#: Kinds of rule results; OPT, INF, WRN and ERR on ncu's pages.
RULE_KINDS: Final = ("optimization", "information", "warning", "error")

RULE_RESULTS = Table(
    "rule_results",
    "One thing that a rule of ncu says of one kernel.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column("section", pl.String, "Section of ncu that the rule belongs to.", nullable=True),
        Column("rule", pl.String, "Its name in ncu, such as SOLBottleneck."),
        Column("kind", pl.Enum(RULE_KINDS), "What it is: " + ", ".join(RULE_KINDS) + "."),
        *columns("""
            message text: What it says.
            scope text?: What the estimate is of: global (the kernel's duration) or local (one part of the hardware).
            speedup_share float?: The part that ncu estimates can be saved, 0..1.
        """),
    ),
)

INSTRUCTIONS = Table(
    "instructions",
    "One instruction of one kernel, with what ncu counted there.",
    columns("""
        event_id int: The kernel in `events`.
        number int: Its place in the kernel, from 0 on.
        sass text: The instruction, in the GPU's assembly.
        ptx text?: The PTX that it was made of.
        file text?: The source file, where the kernel was compiled with -lineinfo.
        line int?: The line there.
        samples int?: Samples of warps that were at it.
        stalled_samples int?: Those of them in which its scheduler issued nothing.
        instructions int?: How often a warp executed it.
        thread_instructions int?: How often a thread did, where its predicate let it.
        sectors int?: Sectors that its global accesses touch in L2.
        ideal_sectors int?: Sectors that they would touch side by side.
        live_registers int?: Registers whose values are still needed there, where ncu's page of sources has a column of
            them.
    """),
    purpose="every SASS instruction with its counts",
    telling=("number", "sass", "samples", "stalled_samples", "file", "line"),
    counted=True,
)

SOURCE_FILES = Table(
    "source_files",
    "One source file that was imported into the report (`ncu --import-source yes`).",
    (Column("file", pl.String, "Its path, as in `instructions`."), Column("text", pl.String, "What is in it.")),
)

LAUNCH_NUMBERS = Table(
    "launch_numbers",
    "Which launch of the program one kernel that ncu measured is, where the command of ncu is known and says so.",
    (
        Column("event_id", pl.Int64, "The kernel in `events`."),
        Column(
            "number", pl.Int64, "Its launch, counted from 1 among those of its function in the capture's nsys report."
        ),
        Column("symbols", pl.List(pl.String), "Functions that it can be, mangled; empty where ncu was told none."),
    ),
)

#: The only column that nsys fills, since ncu commands name functions by symbol.
SYMBOLS = Table(
    "symbols",
    "One function that ran on a device: two of different symbols may have the same name.",
    (
        Column("name", pl.String, "The name in `events`."),
        Column("symbol", pl.String, "Its name in the program's binary, mangled."),
    ),
)


def measured_some(runs: Collection[bool | None]) -> bool | None:
    """Whether several ncu runs together measured only a subset of the launches, given what is known of each.

    False if any run measured all launches; None if no run is known to, and some run is unknown.
    """
    if False in runs:
        return False
    return None if None in runs else True


_THREAD: Final = (
    Column("process_id", pl.Int64, "Process; null where the tool does not say.", nullable=True),
    Column("thread_id", pl.Int64, "Host thread.", nullable=True),
)

_STACK: Final = Column("stack_id", pl.Int64, "Its stack in `stack_frames`; null where none was taken.", nullable=True)

CPU_SAMPLES: Final = Table(
    "cpu_samples",
    "One sample of a thread that was on a processor.",
    (
        Column("time_ns", pl.Int64, "When, in the trace's own origin."),
        *_THREAD,
        Column("cpu", pl.Int32, "Processor.", nullable=True),
        _STACK,
    ),
    purpose="what threads on processors ran, sampled",
    tools=recorders("cpu_samples"),
)

PYTHON_SAMPLES: Final = Table(
    "python_samples",
    "One Python stack of a thread, taken at regular intervals or in a CUDA call.",
    (
        Column("time_ns", pl.Int64, "When, in the trace's own origin."),
        *_THREAD,
        Column("periodic", pl.Boolean, "Whether it was taken at regular intervals; else in a CUDA call."),
        Column("state", pl.Categorical, "What nsys says of the thread: Running, Blocking Wait…", nullable=True),
        _STACK,
    ),
    purpose="Python stacks, sampled",
    tools=recorders("python_samples"),
)

CALL_STACKS: Final = Table(
    "call_stacks",
    "The stack of one call of the operating system's library or of CUDA; keyed by its event_id.",
    (
        Column("event_id", pl.Int64, "The call in `events`: of kind osrt or api."),
        Column("stack_id", pl.Int64, "Its stack in `stack_frames`."),
    ),
    purpose="from where calls were made",
    tools=recorders("call_stacks"),
)

STACK_FRAMES: Final = Table(
    "stack_frames",
    "One function of a stack.",
    columns("""
        stack_id int: The stack; the same for equal stacks of one kind of sample.
        depth int32: 0 for the innermost function, 1 for its caller…
        function category?: The function; null where it has no symbol.
        module category?: Program or library; of Python the source file.
        line int?: Line of the source file, of Python.
    """),
    purpose="functions of each stack",
    tools=recorders("stack_frames"),
)

SCHEDULING: Final = Table(
    "scheduling",
    "One moment at which a thread came onto a processor or left it.",
    (
        Column("time_ns", pl.Int64, "When, in the trace's own origin."),
        *_THREAD,
        Column("cpu", pl.Int32, "Processor."),
        Column("runs", pl.Boolean, "Whether it came onto the processor; else it left."),
        Column("state", pl.Categorical, "nsys' word for its state, such as Terminated; null: unknown.", nullable=True),
        Column("blocked_by", pl.Categorical, "nsys' word for what blocks it; null: unknown.", nullable=True),
    ),
    purpose="when threads were on processors",
    tools=recorders("scheduling"),
)

GPU_METRICS: Final = Table(
    "gpu_metrics",
    "One counter of a GPU over some samples in a row that had the same value.",
    columns("""
        device int: The GPU, as in `devices`.
        metric category: The tool's name without the unit, such as SMs Active.
        unit category?: The tool's name of the unit: Throughput %, MHz, Avg…
        start_ns int: Time of the sample before the first of them, from which on it counts.
        dur_ns int: Until the last of them.
        samples int: How many.
        value float: The value, in its unit; a clock in Hz.
    """),
    purpose="units of the GPU, sampled",
)

NETWORK_METRICS: Final = Table(
    "network_metrics",
    "One counter of a network adapter or InfiniBand switch over one interval.",
    (
        Column("source", pl.Enum(("nic", "switch")), "Adapter (NIC) or InfiniBand switch."),
        Column("adapter", pl.String, "Its name; where the report has none, its id there."),
        Column("port", pl.Int64, "Its port.", nullable=True),
        Column("metric", pl.Categorical, "nsys' name of the counter.", nullable=True),
        Column("unit", pl.Categorical, "Its unit, as nsys writes it, such as B/ms.", nullable=True),
        Column("start_ns", pl.Int64, "Start, in the trace's own origin."),
        Column("dur_ns", pl.Int64, "Duration.", nullable=True),
        Column("value", pl.Float64, "The value, in that unit."),
    ),
    purpose="network adapters, sampled",
    tools=recorders("network_metrics"),
)

#: All of them, in the order in which they are listed.
SAMPLED: Final = (CPU_SAMPLES, PYTHON_SAMPLES, CALL_STACKS, STACK_FRAMES, SCHEDULING, GPU_METRICS, NETWORK_METRICS)
