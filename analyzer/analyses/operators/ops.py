"""Operators and annotations of a framework: their time on the host and on devices, and the kernels they launched."""

from collections.abc import Callable
from functools import partial
from typing import Final, Unpack

import polars as pl

from kanalyze import errors, intervals, model, tools
from kanalyze.analyses.device._operations import in_device_scope
from kanalyze.analyses.host._captures import capture_source
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.shared.analysis import analysis, named_ranges, require
from kanalyze.analyses.shared.statistics import duration_statistics, share_of_total
from kanalyze.columns import beside, gathered, having, rows_at
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns
from kanalyze.window import operator_of

#: The columns that tables of operators sum.
_TIMES: Final = ("self_cpu_ns", "cpu_ns", "self_device_ns", "device_ns")
_CAPTURED: Final = ("captured_device_ns", "captured_operations")
_SUMMED: Final = ("count", *_TIMES, *_work.MEMORY, "exclusive_device_ns", "operations", *_CAPTURED)


def _by_operator(report: Report, further: Callable[[Report], pl.DataFrame] | None = None) -> pl.DataFrame:
    """Sums by name and kind of operators and annotations, and by columns of the host tree's rows that `further` gives.

    Operations launched by no operator have a null name.
    """
    one, trees = pl.lit(1, dtype=pl.Int64), [_host_tree.host_tree(of) for of in (report, capture_source(report))]
    work = _work.operator_work(report).filter(pl.col("kind").is_in(_work.OPERATOR_KINDS))
    host = work.with_columns(one.alias("count"), self_cpu_ns="self_ns", cpu_ns="dur_ns")
    ran, replayed = _work.launched_work(report), _work.captured_work(report).drop_nulls("operator")
    of_ran, of_replayed = (
        [pl.col("exclusive_ns").alias(f"{side}_device_ns"), one.alias(number)]
        for side, number in (("exclusive", "operations"), ("captured", "captured_operations"))
    )
    sides = [(host, trees[0].row_of(work.get_column("event_id")))]
    for device, tree, counted in ((ran, trees[0], of_ran), (replayed, trees[1], of_replayed)):
        # of what a compiler's own operator launched, kernels tell the operators
        operators = _work.said_by_kernels(report, device.get_column("name")).cast(pl.Categorical).alias("name")
        shells = gathered(having(tree.rows.get_column("name"), _work.SHELL), device.get_column("operator"))
        inside, part = shells.fill_null(value=False) & operators.is_not_null(), device.select("operator", *counted)
        hidden = part.filter(inside).with_columns(operators.filter(inside), kind=pl.lit("op", tree.rows.schema["kind"]))
        sides += [(one_part, one_part.get_column("operator")) for one_part in (part.filter(~inside), hidden)]
    own, of_captures = (
        _host_tree.host_tree(of).rows.select("name", "kind").hstack([] if further is None else further(of))
        for of in (report, capture_source(report))
    )
    parts = [
        # asynchronous events have names of their own, and no row
        part.with_columns(rows_at(names.drop(part.columns, strict=False), rows.cast(pl.UInt32)))
        .group_by(names.columns)
        .agg(pl.col(name).sum() for name in _SUMMED if name in part.columns)
        for (part, rows), names in zip(sides, (own, own, own, of_captures, of_captures), strict=True)
    ]
    sums = pl.concat(parts, how="diagonal").group_by(own.columns).agg(pl.col(_SUMMED).sum())
    return sums.with_columns(pl.col("kind").cast(pl.String))


def _shapes(report: Report) -> pl.DataFrame:
    """The input_shapes and input_types of each row of the host tree."""
    shapes = ("input_shapes", "input_types")
    rows = _host_tree.host_tree(report).rows.select("event_id")
    return beside(rows, report.table("op_detail"), *shapes).select(shapes)


def _stacks(report: Report) -> pl.DataFrame:
    """The Python stack of each row of the host tree, outermost function first, separated by semicolons."""
    tree = _host_tree.host_tree(report)
    names = _host_tree.plain_names(tree.rows)
    numbers, texts = _host_tree.labelled_paths(tree.rows, tree.of_kinds("python"), names, ";")
    stacks = texts.select("path", stack=pl.col("text").cast(pl.Categorical))
    return numbers.to_frame().join(stacks, on="path", how="left", maintain_order="left").select("stack")


def _by_phase(report: Report) -> pl.DataFrame:
    """Sums by phase: the number of operators, and the time of all host events and operations."""
    tree, phase, ran = _host_tree.host_tree(report), _host_tree.phases(report), _work.launched_work(report)
    outermost = gathered(phase, tree.rows.get_column("parent")).ne_missing(phase)
    launched = _host_tree.sums_by(ran.get_column("maker"), ran.get_column("dur_ns"), tree.rows.height)
    device = _host_tree.in_subtrees(tree.rows, launched)
    rows = pl.DataFrame([phase, tree.of_kinds("op").alias("counts"), outermost.alias("whole"), device.alias("all")])
    maker = gathered(phase, ran.get_column("maker")).fill_null("other").cast(_host_tree.PHASE)
    device_ns = pl.col("all").filter("whole").sum().alias("device_ns")
    return _joined(report, rows, ran.with_columns(maker.alias("phase")), [device_ns], [])


def _by_module(report: Report) -> pl.DataFrame:
    """Sums by nn.Module and enclosing modules, with module, path, and backward_device_ns.

    An event belongs to the innermost enclosing module. Operations launched by a backward operator count for the module
    of its forward operator; its host time does not, since it is on another thread.
    """
    rows, ran = _host_tree.host_tree(report).rows, _work.launched_work(report)
    module, label = _host_tree.modules(rows)
    numbers, maker = _host_tree.path_numbers(rows, module, label), ran.get_column("maker")
    forward = _host_tree.inherited(rows, _host_tree.forward_rows(report))
    of_forward = gathered(numbers, gathered(forward, maker)).alias("path")
    own = gathered(numbers, maker).fill_null(0)
    ran = ran.with_columns(
        of_forward.zip_with(of_forward.is_not_null() & (own == 0), own),
        backward=pl.when(of_forward.is_not_null()).then("exclusive_ns").otherwise(0),
    )
    calls = pl.DataFrame([numbers, module.alias("counts"), module.alias("whole")])
    sums = _joined(report, calls, ran, [], [pl.col("backward").sum().alias("backward_device_ns")])
    nodes = _host_tree.path_nodes(rows, numbers, module, label)
    level, parts = sums.select("path", "self_device_ns"), [sums.select("path", "self_device_ns").clear()]
    while level.height:  # launches count for all enclosing modules, too
        parts.append(level)
        level = nodes.select("path", "outer").join(level, on="path").filter(pl.col("outer") != 0)
        level = level.select("self_device_ns", path="outer").select("path", "self_device_ns")
    inside = pl.concat(parts).group_by("path").agg(device_ns=pl.col("self_device_ns").sum())
    names = nodes.select("path", module="label").join(_host_tree.path_texts(nodes), on="path")
    named = sums.join(inside, on="path", how="left").join(names, on="path", how="left")
    return named.drop("path").rename({"text": "path"})


def _joined(
    report: Report, rows: pl.DataFrame, ran: pl.DataFrame, of_host: list[pl.Expr], of_device: list[pl.Expr]
) -> pl.DataFrame:
    """Sums by the first column of `rows` and `ran`, of all host events and of operations; missing ones are 0.

    `rows` says of those of the host tree what counts as a call, and whose time is not in that of another one.
    """
    every, key = _host_tree.host_tree(report).rows.hstack(rows.get_columns()), rows.columns[0]
    host = intervals.overlapping(every, report.scope.sides).group_by(key)
    calls = host.agg(
        pl.col("counts").sum().cast(pl.Int64).alias("count"),
        pl.col("self_ns").sum().alias("self_cpu_ns"),
        (pl.col("end") - pl.col("start")).filter("whole").sum().alias("cpu_ns"),
        *of_host,
    )
    device = ran.group_by(key).agg(
        pl.col("dur_ns").sum().alias("self_device_ns"),
        pl.col("exclusive_ns").sum().alias("exclusive_device_ns"),
        pl.len().cast(pl.Int64).alias("operations"),
        *of_device,
    )
    return calls.join(device, on=key, how="full", coalesce=True).with_columns(pl.exclude(key).fill_null(0))


SIDES: Final = ("host", "device")

#: Directions of copies, which torch calls HtoD and so on; and torch's names for waits that nsys names differently.
_DIRECTION: Final = r"^(\w)\w+-to-(\w)\w+$"
_WAITS: Final = {
    **{f"{what} sync": f"{what} Sync" for what in ("Context", "Stream", "Event")},
    "Stream wait sync": "Stream Wait Event",
}


def _torch_rows(report: Report) -> pl.DataFrame:
    """One row for each row of torch's table, without shares and means.

    Columns: name, side, annotation, count, the four times, and the memory taken.
    """
    name = pl.col("name").cast(pl.String)
    host = _work.operator_work(report).with_columns(name, annotation=pl.col("kind") == "range")
    host = host.with_columns(self_cpu_ns="self_ns", cpu_ns="dur_ns")
    spans = intervals.overlapping(in_device_scope(report, _work.device_annotations(report)), report.scope.sides)
    spans = spans.select(name, dur_ns=pl.col("end") - pl.col("start"), annotation=pl.lit(value=True))
    device = pl.concat([_operations(report), spans])
    device = device.with_columns(side=pl.lit("device"), self_device_ns="dur_ns", device_ns="dur_ns")
    every = pl.concat([host, device.drop("dur_ns"), _memory(report)], how="diagonal")
    keys = (pl.col("side").fill_null("host"), "name", "annotation")
    sums = [pl.col(name).sum() for name in (*_TIMES, *_work.MEMORY)]
    return every.group_by(*keys).agg(pl.len().cast(pl.Int64).alias("count"), *sums)


def _operations(report: Report) -> pl.DataFrame:
    """Kernels, copies and memsets, and waits on the device, where recorded: name, dur_ns and annotation."""
    details, name = ("direction", "source_memory", "target_memory"), pl.col("name").cast(pl.String).replace(_WAITS)
    events = pl.concat(
        in_device_scope(report, report.seen(kind)).select("event_id", name, "dur_ns", kind=pl.lit(kind))
        for kind in (*model.DEVICE_KINDS, "sync")
    )
    direction, *memory = (pl.col(detail).cast(pl.String) for detail in details)
    direction = direction.str.replace(_DIRECTION, "${1}to${2}")
    # null if the trace lacks a part
    copy = pl.when(kind="memcpy").then(pl.format("Memcpy {} ({} -> {})", direction, *memory))
    told = copy.when(kind="memset").then(pl.format("Memset ({})", memory[1]))
    named = beside(events, report.copy_detail, *details).with_columns(name=pl.coalesce(told, "name"))
    return named.select("name", "dur_ns", annotation=pl.lit(value=False))


def _memory(report: Report) -> pl.DataFrame:
    """Allocations without an enclosing host event on any thread, and failed ones."""
    events = intervals.overlapping(_work.allocations(report), report.scope.sides, "at", "at")
    host = intervals.union(_host_tree.operator_tree(report).rows.select("start", end=pl.col("end") + 1))
    at, failed = events.get_column("at"), events.get_column("failed")
    device_bytes = pl.when("device").then("bytes").otherwise(0)
    return events.filter(failed | (intervals.overlap(at, at + 1, host) == 0)).select(
        pl.when("failed").then(pl.lit("[OutOfMemory]")).otherwise(pl.lit("[memory]")).alias("name"),
        annotation=pl.lit(value=False),
        self_device_bytes=device_bytes,
        device_bytes=device_bytes,
        self_cpu_bytes=pl.col("bytes") - device_bytes,
        cpu_bytes=pl.col("bytes") - device_bytes,
    )


_NAME, _EXCLUSIVE = columns("""
    name text?: Its name; null for device work that no operator or annotation launched.
    exclusive_device_ns int: Device time of the operations that it launched itself, each instant counted once: additive,
        all rows sum to the ledger's busy time.
""")
_TORCH: Final = columns("""
    count int: Calls.
    self_cpu_ns int: Host time without what it called; below 0 where that overlaps, as torch has it.
    cpu_ns int: Host time with all that it called.
    self_device_ns int: Sum of the device operations that it launched itself.
    device_ns int: The same with all that it called, as torch counts it: twice where the profiler had overhead in an
        operator, or a CUDA call's number is an operator's by chance.
""")
_KIND: Final = Column(
    "kind",
    pl.Enum(_work.OPERATOR_KINDS),
    "op (an operator) or range (an annotation: record_function, ProfilerStep*); null where the name is.",
    nullable=True,
)
_MORE: Final = columns("""
    exclusive_share float: Part of the sum of exclusive_device_ns.
    self_cpu_share float: Part of the host time of all events of all threads, as torch has it.
    avg_cpu_ns float?: Mean of cpu_ns; null for no call.
    avg_device_ns float?: Mean of device_ns; null for no call.
    operations int: Device operations that it launched itself.
    captured_device_ns int: Device time of the operations that it captured into CUDA graphs, each instant counted once;
        it belongs to what launched the graphs: add it to no other column.
    captured_operations int: How many operations these are.
""")
_MEMORY: Final = columns("""
    self_cpu_bytes int?: Host memory taken less given back while it ran, less that of what it called.
    cpu_bytes int?: The same with what it called; of all threads, as torch has it.
    self_device_bytes int?: As self_cpu_bytes, device memory; null: not recorded.
    device_bytes int?: As cpu_bytes, device memory; null: not recorded.
""")
_KEY_AVERAGES: Final = "torch.profiler's key_averages()"

_TELLING: Final = ("exclusive_device_ns", "exclusive_share", "captured_device_ns", "count", "self_cpu_ns")

TABLE: Final = Table(
    "ops",
    "One operator of the framework, or one annotation, by name.",
    (_NAME, *_TORCH, _EXCLUSIVE, _KIND, *_MORE, *_MEMORY),
    purpose="operators by host and GPU time, as in torch",
    telling=_TELLING,
    tools=tools.recorders("op"),
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
    telling=("input_shapes", *_TELLING),
)

BY_STACK: Final = Table(
    TABLE.name,
    "One operator called from the same place in the program.",
    (
        _NAME,
        *columns("stack text?: The Python functions around it, outermost first, semicolons between."),
        *TABLE.columns[1:],
    ),
    when="--by stack",
    telling=("stack", *_TELLING),
)

_OF_ALL: Final = columns("""
    self_cpu_ns int: Host time in it: of operators, Python functions and CUDA calls; additive.
    cpu_ns int: Host time with what is nested in it and belongs to others.
    self_device_ns int: Sum of the device operations launched in it; additive.
    device_ns int: The same with what is nested in it and belongs to others.
    exclusive_device_ns int: Device time launched in it, each instant counted once: additive.
    exclusive_share float: Part of the sum of exclusive_device_ns.
    self_cpu_share float: Part of the host time of all events of all threads.
    operations int: Device operations launched in it.
""")

BY_PHASE: Final = Table(
    TABLE.name,
    "One phase of training; docs/definitions.md says what tells them.",
    (
        Column("phase", _host_tree.PHASE, ", ".join(_host_tree.PHASES) + "."),
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

_FORMS: Final[dict[str | None, tuple[Table, Callable[[Report], pl.DataFrame]]]] = {
    None: (TABLE, _by_operator),
    "shape": (BY_SHAPE, partial(_by_operator, further=_shapes)),
    "stack": (BY_STACK, partial(_by_operator, further=_stacks)),
    "module": (BY_MODULE, _by_module),
    "phase": (BY_PHASE, _by_phase),
}


def _require_operators(report: Report, table: Table, *others: str) -> None:
    """Raises CannotTellError without operators and `others`; of operators that are ranges it says what knows them."""
    lacking = "range" in report.kinds and not {"op", *others}.intersection(report.kinds)
    if lacking and any(map(operator_of, named_ranges(report).get_column("range").drop_nulls().unique())):
        raise errors.CannotTellError.without_ops(table.name, report.meta.path)
    require(report, table.name, "op", *others)


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
    _require_operators(report, TABLE, *(("api", *model.DEVICE_KINDS) if as_torch else ()))
    if by not in _FORMS or (by is not None and as_torch):
        raise errors.UnknownNameError.of("grouping of ops", by, () if as_torch else TABLE.groupings)
    if by in ("stack", "module"):
        require(report, f"{TABLE.name} by {by}", "python")
    form, compute = (AS_TORCH, _torch_rows) if as_torch else _FORMS[by]
    rows = compute(report)
    if "memory" not in report.kinds:
        unknown = [name for name in _work.MEMORY if name in rows.columns]
        rows = rows.with_columns(pl.lit(None, dtype=pl.Int64).alias(name) for name in unknown)
    host_ns = pl.lit(_work.operator_work(report).get_column("self_ns").sum())
    wholes = {"self_cpu_share": ("self_cpu_ns", host_ns)}
    if as_torch:
        device_ns = pl.col("self_device_ns").filter((pl.col("side") == "device") & ~pl.col("annotation")).sum()
        wholes |= {"cpu_share": ("cpu_ns", host_ns), "self_device_share": ("self_device_ns", device_ns)}
    else:
        wholes["exclusive_share"] = ("exclusive_device_ns", pl.col("exclusive_device_ns").sum())
    shares = {
        name: pl.when(whole != 0).then(pl.col(part) / whole).otherwise(0.0) for name, (part, whole) in wholes.items()
    }
    calls = pl.when(pl.col("count") > 0)
    means = {f"avg_{name}": calls.then(pl.col(name) / pl.col("count")) for name in ("cpu_ns", "device_ns")}
    order = ["self_device_ns" if as_torch else "exclusive_device_ns", "self_cpu_ns"]
    order[1:1] = ["captured_device_ns"] if "captured_device_ns" in form.schema else []
    keys = [column.name for column in form.columns if column.dtype in (pl.String, pl.Enum, pl.Boolean)]
    descending = [*(True for _ in order), *(False for _ in keys)]
    return form.select(rows.with_columns(**shares, **means)).sort(*order, *keys, descending=descending)


OP_KERNELS: Final = Table(
    "op_kernels",
    "One kernel, copy or memset by name, as one operator launched it when it was called by the same others.",
    (
        *columns("""
            name text?: The operator that launched it, by what the trace names for it, or else the innermost one around
                the call (that of a CUDA graph's kernels launched the graph), but what kernels tell where that is a
                compiler's own, as in `ops`; an annotation where there was no operator; null: neither.
            path text?: The operators around that one, outermost first, and itself, such as aten::square → aten::pow.
            captured_name text?: Of a CUDA graph's operation the operator around the call that captured it.
            captured_path text?: The operators around that one, and itself.
            kernel text?: The kernel, copy or memset.
        """),
        Column("kind", pl.Enum(model.DEVICE_KINDS), "What it is: " + ", ".join(model.DEVICE_KINDS) + "."),
        *columns("""
            count int: How many.
            total_ns int: Sum of their durations, overlaps counted as often as they occur.
            avg_ns float: Mean duration.
            exclusive_ns int: Device time, each instant counted once; all rows sum to the busy time.
            share float: Part of the sum of exclusive_ns.
            forward text?: For a backward operator the forward one that caused it, by torch's link or autograd's number.
            forward_path text?: The operators around the forward one, and itself.
        """),
    ),
    purpose="which operator launched which kernel",
    telling=("name", "captured_name", "total_ns", "share", "count"),
    tools=tools.recorders("op"),
)

_OF_KERNELS: Final = ("name", "path", "captured_name", "captured_path", "kernel", "kind", "forward", "forward_path")


@analysis
def op_kernels(report: Report) -> pl.DataFrame:
    """The device operations in scope by launching operator, the longest total time first: :data:`OP_KERNELS`.

    Operations that overlap the window count in full, whenever they were launched.

    Raises:
        CannotTellError: The report lacks operators, or all device operations.
    """
    _require_operators(report, OP_KERNELS)
    require(report, OP_KERNELS, *model.DEVICE_KINDS)
    rows, captures = (_host_tree.host_tree(of).rows for of in (report, capture_source(report)))
    ran = _work.launched_work(report)
    (numbers, texts), (of_captures, more) = _host_tree.operator_paths(rows), _host_tree.operator_paths(captures)
    texts = pl.concat([texts, more]).unique("path")
    operator = ran.get_column("operator")
    made_by = _work.captured_work(report).select("row", "operator")
    captured = ran.select("row").join(made_by, on="row", how="left", maintain_order="left").get_column("operator")
    work = ran.select("kind", "dur_ns", "exclusive_ns", kernel="name")
    names, own = captures.get_column("name"), rows.get_column("name")
    sides = {
        "": (operator, own, numbers),
        "captured_": (captured, names, of_captures),
        "forward_": (gathered(_host_tree.inherited(rows, _host_tree.forward_rows(report)), operator), own, numbers),
    }
    for side, (at, called, paths) in sides.items():
        work = work.with_columns(gathered(called, at).alias(f"{side}name"), gathered(paths, at).alias(f"{side}number"))
    keys = [f"{side}{key}" for side in sides for key in ("name", "number")]
    sums = work.group_by("kernel", "kind", *keys).agg(*duration_statistics(), pl.col("exclusive_ns").sum())
    for side in sides:
        sums = sums.join(texts.rename({"path": f"{side}number", "text": f"{side}path"}), on=f"{side}number", how="left")
    said, operators = _work.said_by_kernels(report, sums.get_column("kernel")), pl.col("name", "captured_name")
    inside = operators.cast(pl.String).str.contains(_work.SHELL) & said.is_not_null()
    sums = sums.with_columns(pl.when(inside).then(said).otherwise(operators.cast(pl.String)).name.keep())
    sums = sums.rename({"forward_name": "forward"})
    table = OP_KERNELS.select(sums.with_columns(share_of_total("exclusive_ns")))
    return table.sort("exclusive_ns", "total_ns", *_OF_KERNELS, descending=[True, True, *(False for _ in _OF_KERNELS)])
