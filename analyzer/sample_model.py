"""Tables of what a tool sampled: stacks of host threads, the scheduler, units of the GPU, network adapters.

Definitions: docs/definitions.md, sections 2 and 8.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

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
    (
        Column("stack_id", pl.Int64, "The stack; the same for equal stacks of one kind of sample."),
        Column("depth", pl.Int32, "0 for the innermost function, 1 for its caller…"),
        Column("function", pl.Categorical, "The function; null where it has no symbol.", nullable=True),
        Column("module", pl.Categorical, "Program or library; of Python the source file.", nullable=True),
        Column("line", pl.Int64, "Line of the source file, of Python.", nullable=True),
    ),
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
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("metric", pl.Categorical, "The tool's name without the unit, such as SMs Active."),
        Column("unit", pl.Categorical, "The tool's name of the unit: Throughput %, MHz, Avg…", nullable=True),
        Column("start_ns", pl.Int64, "Time of the sample before the first of them, from which on it counts."),
        Column("dur_ns", pl.Int64, "Until the last of them."),
        Column("samples", pl.Int64, "How many."),
        Column("value", pl.Float64, "The value, in its unit; a clock in Hz."),
    ),
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
SAMPLE_TABLES: Final = (
    CPU_SAMPLES,
    PYTHON_SAMPLES,
    CALL_STACKS,
    STACK_FRAMES,
    SCHEDULING,
    GPU_METRICS,
    NETWORK_METRICS,
)
