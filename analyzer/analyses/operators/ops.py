"""Operators and annotations of a framework: their time on the host and on the devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.operators._events import host_tree, in_subtrees, operator_tree, sums_by
from kanalyze.analyses.operators._paths import (
    MODULE,
    PHASE,
    PHASES,
    forward_rows,
    inherited,
    path_nodes,
    path_numbers,
    path_texts,
    phases,
    plain_names,
)
from kanalyze.analyses.operators._work import (
    MEMORY,
    OPERATOR_KINDS,
    allocations,
    device_annotations,
    host_work,
    launched_work,
    operator_work,
)
from kanalyze.analyses.shared.analysis import require
from kanalyze.columns import beside, gathered
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

#: The columns that tables of operators sum.
_OF_HOST: Final = ("count", "self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns", *MEMORY)
_OF_DEVICE: Final = ("exclusive_device_ns", "operations")


def by_operator(report: Report, further: pl.DataFrame | None = None) -> pl.DataFrame:
    """Sums by name and kind of operators and annotations, and by the columns `further` of the host tree's rows.

    Operations launched by no operator have a null name.
    """
    tree, keys = host_tree(report), [] if further is None else further.columns
    work, ran = operator_work(report).filter(pl.col("kind").is_in(OPERATOR_KINDS)), launched_work(report)
    one = pl.lit(1, dtype=pl.Int64)
    host = work.with_columns(one.alias("count"), self_cpu_ns="self_ns", cpu_ns="dur_ns")
    host = host.select("name", "kind", *_OF_HOST, *_zero(_OF_DEVICE))
    device = ran.select(*_zero(_OF_HOST), exclusive_device_ns="exclusive_ns", operations=one)
    by = ran.get_column("operator")
    device = device.with_columns(gathered(tree.rows.get_column(name), by) for name in ("name", "kind")).select(
        host.columns
    )
    if further is not None:
        at = tree.row_of(work.get_column("event_id"))
        host = host.hstack([gathered(column, at) for column in further.get_columns()])
        device = device.hstack([gathered(column, by) for column in further.get_columns()])
    sums, named = pl.col(*_OF_HOST, *_OF_DEVICE).sum(), ["name", "kind", *keys]
    parts = [part.group_by(named).agg(sums) for part in (host, device)]
    return pl.concat(parts).group_by(named).agg(sums).with_columns(pl.col("kind").cast(pl.String))


def _zero(names: Sequence[str]) -> list[pl.Expr]:
    return [pl.lit(0, dtype=pl.Int64).alias(name) for name in names]


def by_shape(report: Report) -> pl.DataFrame:
    """Sums by name, kind, input_shapes and input_types."""
    rows = host_tree(report).rows.select("event_id")
    shapes = ("input_shapes", "input_types")
    return by_operator(report, beside(rows, report.table("op_detail"), *shapes).select(shapes))


def by_stack(report: Report) -> pl.DataFrame:
    """Sums by name, kind and Python stack, outermost function first, separated by semicolons."""
    tree = host_tree(report)
    python, names = tree.of_kinds("python"), plain_names(tree.rows)
    numbers = path_numbers(tree.rows, python, names)
    texts = path_texts(path_nodes(tree.rows, numbers, python, names), ";")
    sums = by_operator(report, numbers.to_frame())
    return sums.join(texts, on="path", how="left").rename({"text": "stack"})


def by_phase(report: Report) -> pl.DataFrame:
    """Sums by phase: the number of operators, and the time of all host events and operations."""
    tree, phase = host_tree(report), phases(report)
    ran = launched_work(report)
    around = gathered(phase, tree.rows.get_column("parent"))
    outermost = around.ne_missing(phase)
    own = sums_by(ran.get_column("maker"), ran.get_column("dur_ns"), tree.rows.height)
    device = in_subtrees(tree.rows, own)
    work = host_work(report)
    row = work.get_column("row")
    found = work.with_columns(
        phase.gather(row), outermost.gather(row).alias("outermost"), device.gather(row).alias("all")
    )
    host = found.group_by("phase").agg(
        (pl.col("kind") == "op").sum().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum().alias("self_cpu_ns"),
        pl.col("dur_ns").filter("outermost").sum().alias("cpu_ns"),
        pl.col("all").filter("outermost").sum().alias("device_ns"),
    )
    maker = gathered(phase, ran.get_column("maker")).fill_null("other").cast(PHASE)
    return _joined(host, _device_sums(ran.with_columns(maker.alias("phase")), "phase"), "phase")


def by_module(report: Report) -> pl.DataFrame:
    """Sums by nn.Module and enclosing modules, with module, path, and backward_device_ns.

    An event belongs to the innermost enclosing module. Operations launched by a backward operator count for the module
    of its forward operator; its host time does not, since it is on another thread.
    """
    rows = host_tree(report).rows
    module, label = modules(rows)
    numbers = path_numbers(rows, module, label)
    work, ran = host_work(report), launched_work(report)
    at = work.get_column("row")
    host = work.with_columns(numbers.gather(at), module.gather(at).alias("call")).group_by("path")
    calls = host.agg(
        pl.col("call").sum().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum().alias("self_cpu_ns"),
        pl.col("dur_ns").filter("call").sum().alias("cpu_ns"),
    )
    back = inherited(rows, forward_rows(report))
    of_forward = gathered(numbers, gathered(back, ran.get_column("maker"))).alias("path")
    own = gathered(numbers, ran.get_column("maker")).fill_null(0)
    ran = ran.with_columns(of_forward.zip_with(of_forward.is_not_null() & (own == 0), own))
    ran = ran.with_columns(backward=pl.when(of_forward.is_not_null()).then("exclusive_ns").otherwise(0))
    device = _device_sums(ran, "path", pl.col("backward").sum().alias("backward_device_ns"))
    return _named(_joined(calls, device, "path"), path_nodes(rows, numbers, module, label))


def modules(rows: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """A mask of the rows that are calls of an nn.Module, and the module's name."""
    name = rows.get_column("name").cast(pl.String)
    python = rows.select(pl.col("kind") == "python").to_series()
    return python & name.str.starts_with(MODULE).fill_null(value=False), name.str.strip_prefix(MODULE)


def _named(sums: pl.DataFrame, nodes: pl.DataFrame) -> pl.DataFrame:
    """Adds name and path to the sums by module path, and device_ns including nested modules."""
    texts = path_texts(nodes)
    outer = nodes.select("path", "outer")
    level, parts = sums.select("path", "self_device_ns"), []
    while level.height:  # launches count for all enclosing modules, too
        parts.append(level)
        level = (
            level.join(outer, on="path")
            .filter(pl.col("outer") != 0)
            .select("outer", "self_device_ns")
            .rename({"outer": "path"})
        )
    inside = pl.concat(parts or [level]).group_by("path").agg(device_ns=pl.col("self_device_ns").sum())
    names = nodes.select("path", module="label").join(texts, on="path")
    found = sums.join(inside, on="path", how="left").join(names, on="path", how="left")
    return found.drop("path").rename({"text": "path"})


def _device_sums(ran: pl.DataFrame, key: str, *further: pl.Expr) -> pl.DataFrame:
    return ran.group_by(key).agg(
        pl.col("dur_ns").sum().alias("self_device_ns"),
        pl.col("exclusive_ns").sum().alias("exclusive_device_ns"),
        pl.len().cast(pl.Int64).alias("operations"),
        *further,
    )


def _joined(host: pl.DataFrame, device: pl.DataFrame, key: str) -> pl.DataFrame:
    """Joins both sums by `key`; missing ones are 0."""
    both = host.join(device, on=key, how="full", coalesce=True)
    return both.with_columns(pl.exclude(key).fill_null(0))


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
    parts, memset = [], pl.format("Memset ({})", pl.col("target_memory").cast(pl.String))
    for kind in (*DEVICE_KINDS, "sync"):
        events = report.seen(kind)
        if report.scope.device is not None:
            events = events.filter(pl.col("device") == report.scope.device)
        name = pl.col("name").cast(pl.String).replace(_WAITS)
        if kind in ("memcpy", "memset"):
            events = beside(events, report.copy_detail, "direction", "source_memory", "target_memory")
            name = pl.coalesce(_copy() if kind == "memcpy" else memset, name)
        parts.append(events.select(name.alias("name"), "dur_ns"))
    return _on_device(pl.concat(parts), annotation=False)


def _copy() -> pl.Expr:
    """Names such as ``Memcpy HtoD (Pageable -> Device)``; null if the trace lacks a part."""
    direction = pl.col("direction").cast(pl.String).replace(_DIRECTIONS)
    memory = (pl.col(name).cast(pl.String) for name in ("source_memory", "target_memory"))
    return pl.format("Memcpy {} ({} -> {})", direction, *memory)


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
