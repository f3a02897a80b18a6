"""Operators and annotations of a framework: their time on the host and on the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.operators._groups import by_module, by_operator, by_phase, by_shape, by_stack
from kanalyze.analyses.operators._paths import PHASE, PHASES
from kanalyze.analyses.operators._work import MEMORY, OPERATOR_KINDS, allocations, device_annotations, operator_work
from kanalyze.analyses.shared.requirements import require
from kanalyze.columns.lookup import beside
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

SIDES: Final = ("host", "device")

_SUMS: Final = ("self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", *MEMORY)

#: torch's names for the directions of copies.
_DIRECTIONS: Final = {
    "Host-to-Device": "HtoD",
    "Device-to-Host": "DtoH",
    "Device-to-Device": "DtoD",
    "Host-to-Host": "HtoH",
    "Peer-to-Peer": "PtoP",
}


#: torch's names for waits that nsys names differently.
_WAITS: Final = {
    "Context sync": "Context Sync",
    "Stream sync": "Stream Sync",
    "Event sync": "Event Sync",
    "Stream wait sync": "Stream Wait Event",
}


def torch_rows(report: Report) -> pl.DataFrame:
    """One row for each row of torch's table, without shares and means.

    Columns: name, side, annotation, count, the four times, and the memory taken.
    """
    host = operator_work(report).with_columns(
        pl.col("name").cast(pl.String),
        side=pl.lit("host"),
        annotation=pl.col("kind") == "range",
        self_cpu_ns="self_ns",
        cpu_ns="dur_ns",
    )
    found = [_typed(part) for part in (host, _operations(report), _annotations(report), _memory(report))]
    count = pl.len().cast(pl.Int64).alias("count")
    return pl.concat(found).group_by("name", "side", "annotation").agg(count, pl.col(_SUMS).sum())


def _typed(part: pl.DataFrame) -> pl.DataFrame:
    """Rows with all sum columns; missing ones are 0."""
    missing = [pl.lit(0, dtype=pl.Int64).alias(name) for name in _SUMS if name not in part.columns]
    return part.with_columns(missing).select("name", "side", "annotation", *_SUMS)


def _on_device(frame: pl.DataFrame, *, annotation: bool) -> pl.DataFrame:
    """Device rows from a frame with name and dur_ns."""
    side = pl.lit("device")
    return frame.select("name", side=side, annotation=pl.lit(annotation), self_device_ns="dur_ns", device_ns="dur_ns")


def _operations(report: Report) -> pl.DataFrame:
    """Kernels, copies and memsets, and waits on the device, where recorded."""
    parts = []
    for kind in (*DEVICE_KINDS, "sync"):
        events = report.seen(kind)
        if report.scope.device is not None:
            events = events.filter(pl.col("device") == report.scope.device)
        name = pl.col("name").cast(pl.String).replace(_WAITS)
        if kind in ("memcpy", "memset"):
            events = beside(events, report.copy_detail, "direction", "source_memory", "target_memory")
            name = pl.coalesce(_copy() if kind == "memcpy" else _set(), name)
        parts.append(events.select(name.alias("name"), "dur_ns"))
    return _on_device(pl.concat(parts), annotation=False)


def _copy() -> pl.Expr:
    """Names such as ``Memcpy HtoD (Pageable -> Device)``; null if the trace lacks a part."""
    direction = pl.col("direction").cast(pl.String).replace(_DIRECTIONS)
    memory = (pl.col(name).cast(pl.String) for name in ("source_memory", "target_memory"))
    return pl.format("Memcpy {} ({} -> {})", direction, *memory)


def _set() -> pl.Expr:
    return pl.format("Memset ({})", pl.col("target_memory").cast(pl.String))


def _annotations(report: Report) -> pl.DataFrame:
    """The annotations on each stream."""
    spans = device_annotations(report)
    if report.scope.device is not None:
        spans = spans.filter(pl.col("device") == report.scope.device)
    named = intervals.overlapping(spans, report.scope.sides)
    named = named.with_columns(pl.col("name").cast(pl.String), dur_ns=pl.col("end") - pl.col("start"))
    return _on_device(named, annotation=True)


def _memory(report: Report) -> pl.DataFrame:
    """Allocations without an enclosing host event on any thread, and failed ones."""
    every = intervals.overlapping(allocations(report), report.scope.sides, "at", "at")
    host = intervals.union(operator_tree(report).rows.select("start", end=pl.col("end") + 1))
    at = every.get_column("at")
    outside = (intervals.overlap(at, at + 1, host) == 0) & ~every.get_column("failed")
    taken = pl.when("device").then("bytes").otherwise(0)
    return every.filter(outside | every.get_column("failed")).select(
        pl.when("failed").then(pl.lit("[OutOfMemory]")).otherwise(pl.lit("[memory]")).alias("name"),
        side=pl.lit("host"),
        annotation=pl.lit(value=False),
        self_device_bytes=taken,
        device_bytes=taken,
        self_cpu_bytes=pl.col("bytes") - taken,
        cpu_bytes=pl.col("bytes") - taken,
    )


_NAME: Final = Column(
    "name", pl.String, "Its name; null for device work that no operator or annotation launched.", nullable=True
)
_TORCH: Final = (
    Column("count", pl.Int64, "Calls."),
    Column("self_cpu_ns", pl.Int64, "Host time without what it called; below 0 where that overlaps, as torch has it."),
    Column("cpu_ns", pl.Int64, "Host time with all that it called."),
    Column("self_device_ns", pl.Int64, "Sum of the device operations that it launched itself."),
    Column(
        "device_ns",
        pl.Int64,
        "The same with all that it called, as torch counts it: twice where the profiler had overhead in an operator, "
        "or a CUDA call's number is an operator's by chance.",
    ),
)
_EXCLUSIVE: Final = Column(
    "exclusive_device_ns",
    pl.Int64,
    "Device time of the operations that it launched itself, each instant counted once: additive, all rows sum to the "
    "ledger's busy time.",
)
_KIND: Final = Column(
    "kind",
    pl.Enum(OPERATOR_KINDS),
    "op (an operator) or range (an annotation: record_function, ProfilerStep*); null where the name is.",
    nullable=True,
)
_MORE: Final = (
    Column("exclusive_share", pl.Float64, "Part of the sum of exclusive_device_ns."),
    Column("self_cpu_share", pl.Float64, "Part of the host time of all events of all threads, as torch has it."),
    Column("avg_cpu_ns", pl.Float64, "Mean of cpu_ns; null for no call.", nullable=True),
    Column("avg_device_ns", pl.Float64, "Mean of device_ns; null for no call.", nullable=True),
    Column("operations", pl.Int64, "Device operations that it launched itself."),
)
_MEMORY: Final = (
    Column(
        "self_cpu_bytes",
        pl.Int64,
        "Host memory taken less given back while it ran, less that of what it called.",
        nullable=True,
    ),
    Column("cpu_bytes", pl.Int64, "The same with what it called; of all threads, as torch has it.", nullable=True),
    Column("self_device_bytes", pl.Int64, "As self_cpu_bytes, device memory; null: not recorded.", nullable=True),
    Column("device_bytes", pl.Int64, "As cpu_bytes, device memory; null: not recorded.", nullable=True),
)
_KEY_AVERAGES: Final = "torch.profiler's key_averages()"

TABLE: Final = Table(
    "ops",
    "One operator of the framework, or one annotation, by name.",
    (_NAME, *_TORCH, _EXCLUSIVE, _KIND, *_MORE, *_MEMORY),
    purpose="operators by host and GPU time, as in torch",
    telling=("count", "self_cpu_ns", "self_device_ns", "device_ns"),
    tools=recorders("op"),
    equals=f"{_KEY_AVERAGES}, for operators and annotations; with --as-torch all its rows",
    groupings=("shape", "module", "phase", "stack"),
    options=("as_torch",),
)

BY_SHAPE: Final = Table(
    TABLE.name,
    "One operator with inputs of the same shapes and types.",
    (
        _NAME,
        Column("input_shapes", pl.String, "Dimensions of its inputs, a JSON list; null: not recorded.", nullable=True),
        Column("input_types", pl.String, "Types of its inputs, a JSON list; null: not recorded.", nullable=True),
        *TABLE.columns[1:],
    ),
    equals=f"{_KEY_AVERAGES} with group_by_input_shape=True",
    when="--by shape",
    telling=("input_shapes", "count", "self_cpu_ns", "self_device_ns", "device_ns"),
)

BY_STACK: Final = Table(
    TABLE.name,
    "One operator called from the same place in the program.",
    (
        _NAME,
        Column(
            "stack", pl.String, "The Python functions around it, outermost first, semicolons between.", nullable=True
        ),
        *TABLE.columns[1:],
    ),
    when="--by stack",
    telling=("stack", "count", "self_cpu_ns", "self_device_ns", "device_ns"),
)

_OF_ALL: Final = (
    Column("self_cpu_ns", pl.Int64, "Host time in it: of operators, Python functions and CUDA calls; additive."),
    Column("cpu_ns", pl.Int64, "Host time with what is nested in it and belongs to others."),
    Column("self_device_ns", pl.Int64, "Sum of the device operations launched in it; additive."),
    Column("device_ns", pl.Int64, "The same with what is nested in it and belongs to others."),
    Column("exclusive_device_ns", pl.Int64, "Device time launched in it, each instant counted once: additive."),
    Column("exclusive_share", pl.Float64, "Part of the sum of exclusive_device_ns."),
    Column("self_cpu_share", pl.Float64, "Part of the host time of all events of all threads."),
    Column("operations", pl.Int64, "Device operations launched in it."),
)

BY_PHASE: Final = Table(
    TABLE.name,
    "One phase of training; docs/definitions.md says what tells them.",
    (
        Column("phase", PHASE, ", ".join(PHASES) + "."),
        Column("count", pl.Int64, "Operators called in it."),
        *_OF_ALL,
    ),
    when="--by phase",
)

BY_MODULE: Final = Table(
    TABLE.name,
    "One nn.Module, as it was called from others; backward operators count for the module of the forward ones.",
    (
        Column("module", pl.String, "Class and number, as torch names it; null: in no module.", nullable=True),
        Column("path", pl.String, "The modules that it was called from, outermost first, and itself.", nullable=True),
        Column("count", pl.Int64, "Calls of the module."),
        *_OF_ALL,
        Column("backward_device_ns", pl.Int64, "Part of exclusive_device_ns that backward operators launched."),
    ),
    when="--by module",
)

AS_TORCH: Final = Table(
    TABLE.name,
    "One row of torch's own table, under torch's own name: CUDA calls, overhead, kernels and copies have rows, too.",
    (
        Column("name", pl.String, "Its name in torch's table.", nullable=True),
        *_TORCH,
        Column("self_cpu_share", pl.Float64, "torch's Self CPU %, as a fraction."),
        Column("cpu_share", pl.Float64, "torch's CPU total %, as a fraction."),
        Column("avg_cpu_ns", pl.Float64, "torch's CPU time avg."),
        Column(
            "self_device_share", pl.Float64, "torch's Self CUDA %, as a fraction of what kernels and copies sum to."
        ),
        Column("avg_device_ns", pl.Float64, "torch's CUDA time avg."),
        Column("side", pl.Enum(SIDES), "host, or device: a kernel, a copy, or an annotation as it looks on a stream."),
        Column("annotation", pl.Boolean, "Whether it is an annotation of the user, or a step of the profiler."),
        *_MEMORY,
    ),
    equals=f"{_KEY_AVERAGES}, every row",
    when="--as-torch",
)

_FORMS: Final = {
    None: (TABLE, by_operator),
    "shape": (BY_SHAPE, by_shape),
    "stack": (BY_STACK, by_stack),
    "module": (BY_MODULE, by_module),
    "phase": (BY_PHASE, by_phase),
}


def ops(report: Report, by: str | None = None, *, as_torch: bool = False, **where: Unpack[Where]) -> pl.DataFrame:
    """The operators and annotations in scope, the longest device time first.

    Args:
        report: Where to look. Operators that overlap its window count in full; exclusive_device_ns is clipped to it.
        by: ``shape`` separates operators by input shapes, ``stack`` by Python stack; ``module`` and ``phase`` sum
            everything that happened in each.
        as_torch: Return all rows of torch's own table instead; not together with `by`.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, or the requested form of it.

    Raises:
        CannotTellError: The report records no operators, or, by stack or module, no Python functions.
        UnknownNameError: There is no such grouping.

    Columns:
        name, count, self_cpu_ns, cpu_ns, self_device_ns, device_ns, exclusive_device_ns, kind, exclusive_share,
        self_cpu_share, avg_cpu_ns, avg_device_ns, operations, self_cpu_bytes, cpu_bytes, self_device_bytes,
        device_bytes.
    """
    report = report.narrow(**where)
    require(report, TABLE.name, "op", *(("api", *DEVICE_KINDS) if as_torch else ()))
    if by not in _FORMS or (by is not None and as_torch):
        raise UnknownNameError.of("grouping of ops", by, () if as_torch else TABLE.groupings)
    if by in ("stack", "module"):
        require(report, f"{TABLE.name} by {by}", "python")
    host_ns = operator_work(report).get_column("self_ns").sum()
    if as_torch:
        return _as_torch(_without_memory(report, torch_rows(report)))
    form, compute = _FORMS[by]
    found = _without_memory(report, compute(report))
    shares = found.with_columns(
        _part("exclusive_device_ns", pl.col("exclusive_device_ns").sum()).alias("exclusive_share"),
        _part("self_cpu_ns", pl.lit(host_ns)).alias("self_cpu_share"),
        *(_mean(column).alias(f"avg_{column}") for column in ("cpu_ns", "device_ns")),
    )
    keys = [column.name for column in form.columns if column.dtype in (pl.String, pl.Enum)]
    return form.select(shares).sort(
        "exclusive_device_ns", "self_cpu_ns", *keys, descending=[True, True, *(False for _ in keys)]
    )


def _without_memory(report: Report, found: pl.DataFrame) -> pl.DataFrame:
    """Replaces the sums of memory by null if none was recorded."""
    if "memory" in report.kinds:
        return found
    return found.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in MEMORY if name in found.columns)


def _as_torch(rows: pl.DataFrame) -> pl.DataFrame:
    ran = ((pl.col("side") == "device") & ~pl.col("annotation")).cast(pl.Int64)
    host, device = pl.col("self_cpu_ns").sum(), (pl.col("self_device_ns") * ran).sum()
    found = rows.with_columns(
        _part("self_cpu_ns", host).alias("self_cpu_share"),
        _part("cpu_ns", host).alias("cpu_share"),
        _part("self_device_ns", device).alias("self_device_share"),
        *(_mean(column).alias(f"avg_{column}") for column in ("cpu_ns", "device_ns")),
    )
    order = ["self_device_ns", "self_cpu_ns", "name", "side", "annotation"]
    return AS_TORCH.select(found).sort(order, descending=[True, True, False, False, False])


def _part(column: str, whole: pl.Expr) -> pl.Expr:
    return pl.when(whole != 0).then(pl.col(column) / whole).otherwise(0.0)


def _mean(column: str) -> pl.Expr:
    """The mean per call; null without calls."""
    return pl.when(pl.col("count") > 0).then(pl.col(column) / pl.col("count"))
