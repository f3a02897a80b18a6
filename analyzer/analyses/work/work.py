"""The work of each call of an operator, what its GPU needs for it at least, and where a step's time goes by that."""

import math
import re
from collections.abc import Iterator
from typing import Final

import polars as pl
from polars._typing import PolarsDataType

from kanalyze import device_limits, errors, schema
from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.device._operations import SHAPE, facts_of, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.host import _captures, _range_lines
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.operators._host_names import operators_beside, operators_beside_in_part
from kanalyze.analyses.operators._kernel_groups import grouped_kernels, kernel_groups, same_kernels, same_launches
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.work._models import BOUND, MODEL, Product, executed_flop, tiles_of, work_of
from kanalyze.columns import beside, gathered, mixed, product
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import ELEMENT_BYTES
from kanalyze.report import Report

#: Types of arithmetic, and those of tensors and of kernels' names that are done with it.
TYPES: Final = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")


def gpu_called(name: str) -> str:
    """The driver's name of a GPU that is called by it, or by a part such as ``H200`` or ``A100``; the first of several.

    Raises:
        UnknownNameError: No GPU whose peaks are known is called so.
    """
    gpus = device_limits.gpus_with_peaks()
    part = re.compile(rf"(?i)\b{re.escape(name)}\b")
    matches = [one for one in gpus if re.search(r"\d", name) and part.search(one)]
    if not matches:
        raise errors.UnknownNameError.of("GPU with known peaks", name, gpus)
    return min(matches, key=lambda one: one.casefold() != name.casefold())


def peaks(devices: pl.DataFrame) -> pl.DataFrame:
    """Peaks of the `devices` of a report (:data:`kanalyze.model.DEVICES`), one row per device and type.

    Columns: device; type, of :data:`TYPES`; flop_per_s, null where unknown or 0 on this device; flop_per_cycle, of all
    SMs: one does a power of two in a cycle, which tells them whatever clock the datasheet's peak is for.
    """
    rows = [
        (device, kind, (getattr(one, kind) * 1e12 or None) if one else None)
        for device, name in devices.select("device", "name").iter_rows()
        for one in [device_limits.peaks_of(name)]
        for kind in TYPES
    ]
    rates = pl.DataFrame(rows, {"device": pl.Int64, "type": pl.String, "flop_per_s": pl.Float64}, orient="row")
    of_each = pl.col("flop_per_s") / pl.col("sm_count") / pl.col("clock_hz")
    in_cycle = pl.lit(2.0).pow((of_each.log(2) + 1 / 2).floor()) * pl.col("sm_count")
    rates = rates.join(devices.select("device", "sm_count", "clock_hz"), on="device", maintain_order="left")
    return rates.select("device", "type", "flop_per_s", flop_per_cycle=in_cycle)


def memory_roofs(devices: pl.DataFrame) -> pl.DataFrame:
    """The device, bytes_per_s of the memory, cache_bytes (0 where unknown) and cache_bytes_per_s of each device."""
    every = [device_limits.peaks_of(name) for name in devices.get_column("name")]
    sizes = pl.Series([one.cache << 20 if one else 0 for one in every], dtype=pl.Int64)
    rates = pl.Series([(one and one.cache_tb_per_s * 1e12) or None for one in every], dtype=pl.Float64)
    memory = pl.col("memory_bandwidth_bytes_per_s")
    # caches of unknown rate serve about five times what memory does, known ones 1.5 to 9 times
    rate, size = pl.coalesce(rates, 5 * memory), pl.coalesce("l2_bytes", sizes)
    return devices.select("device", bytes_per_s=memory, cache_bytes=size, cache_bytes_per_s=rate)


def memory_ns() -> pl.Expr:
    """The least time for `bytes` by :func:`memory_roofs`: what a cache may hold comes from it."""
    cached = pl.min_horizontal("bytes", "cache_bytes")
    return (pl.col("bytes") - cached) * 1e9 / pl.col("bytes_per_s") + cached * 1e9 / pl.col("cache_bytes_per_s")


#: How work is measured: counted by ncu of the same work, or of the same kernel and launch shape; sampled.
EXACT, ALIKE, SAMPLED = "exact", "alike", "sampled"

#: Groups of operators by what bounds them, in the order of a page.
GROUPS: Final = ("products", "convolutions", "attention", "memory")

#: The columns on types and groups.
TYPE: Final = schema.Column("type", pl.Enum(TYPES), "Type of the arithmetic: " + ", ".join(TYPES) + ".", nullable=True)
_SAID: Final = "; of kernels without a model, what their names say; null: neither."
GROUP: Final = schema.Column("group", pl.Enum(GROUPS), "What it is: " + ", ".join(GROUPS) + _SAID, nullable=True)

TABLE: Final = schema.Table(
    "work",
    "One call of an operator, with the kernels that it launched itself.",
    (
        *schema.columns("""
            event_id int: The first of its kernels in `events`.
            name text?: The operator; null for kernels that none launched.
            input_shapes text?: Dimensions of its inputs, a JSON list; null: not recorded.
            kernel text?: The longest of its kernels.
            device int: The GPU, as in `devices`.
            start_ns int: Start of the first kernel.
            kernels int: Kernels and copies on the device.
            dur_ns int: Sum of their durations.
            exclusive_ns int: Device time of them, each instant counted once; all rows sum to the ledger's kernels.
        """),
        *(TYPE, GROUP),
        *schema.columns(f"""
            flop int?: FLOPs of products, convolutions and attention by their shapes (a fused product is two; of a
                causal mask those that it keeps); 0 for operators that bytes bound.
            executed_flop int?: Those that ran: as ncu counted, else of a product with its tiles filled up, else of
                tensor cores by GPU metrics; null where none of these tells.
            result_elements int?: Of a product whose shape was not recorded, how many its result has at most, by tile
                and grid of its kernel; null where that may be persistent, as those from sm90 on.
            bytes int?: The least that is read and written.
            dram_bytes int?: What was, of the GPU's memory; null where it was not measured.
            measured text?: How: {EXACT} (ncu counted this call, or the same kernel and launch shape for the same
                inputs), {ALIKE} (the same kernel and launch shape, for inputs that were not recorded), {SAMPLED} (GPU
                metrics over kernels that run alone for five samples and more).
            roof_ns int?: The least time for both at the dense peak (at the clock of the SMs where that was sampled) and
                the bandwidth of the GPU; what its cache may hold is read at the rate of that.
            bound text?: What takes longer at its peak: compute or memory.
            at_roof_ns int?: roof_ns within exclusive_ns.
            distance_ns int?: exclusive_ns without at_roof_ns.
            known text?: How flop and bytes are known: model (by formula), {BOUND} (at least so much: rows that an index
                chooses); of operators without a model, and of bytes of a bound, as `measured`; null: not.
        """),
    ),
    purpose="FLOPs, bytes and roof of each operator's call",
    telling=("name", "exclusive_ns", "flop", "bytes", "at_roof_ns"),
)  # fmt: skip

#: What nsys' ranges by emit_nvtx(record_shapes=True) add to an operator's name.
_SIZED: Final = r"^(?P<name>[^,]+),.*\bsizes = (?P<shapes>\[[\d\[\], -]*\])"

#: What these ranges say of themselves and of what made their inputs: (0,-1) is unknown.
_FIRST_INPUT: Final = r"\bsizes = \[(?P<result>\[[\d, ]+\]).*\binput_op_ids = \[\((?P<op_id>[1-9]\d*),0\)"
_LEVELS: Final = 4  # the operators around a convolution's innermost one, which is what users of the result name

#: cuDNN's attention of 16-bit types.
_CUDNN_HALF: Final = re.compile(r"^cudnn_.*_f16_")

#: Types in kernels' names that tell the arithmetic; of f32 tensors tell more.
_ARITHMETIC: Final = {
    "tf32": "tf32",
    "f16": "fp16",
    "bf16": "bf16",
    "f64": "fp64",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "i8": "int8",
    "u8": "int8",
}
_BY_TENSOR: Final = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "signed char": "int8",
    "char": "int8",
    "c10::Float8": "fp8",
}
_OF_FAMILY: Final = {"gemm": "products", "conv": "convolutions", "attention": "attention"}
_GROUP_WORDS: Final = {"conv": "convolutions", **dict.fromkeys(("attention", "flash_attn", "fwd"), "attention")}


@analysis
def work(report: Report) -> pl.DataFrame:
    """Work and roof of each call of an operator whose kernels are in scope, by start.

    Source: the roofline model (Williams, Waterman, Patterson, 2009), of work and bytes that an operator's definition
    requires. Kernels of CUDA graphs have the work of the operators that captured them.

    Returns:
        :data:`TABLE`.

    Raises:
        CannotTellError: The report has no operators and no ranges, or no kernels.
    """
    calls = required_calls(report, TABLE)
    bounds = most_elements(report, calls.filter((pl.col("group") == "products") & pl.col("flop").is_null()))
    calls = calls.join(bounds, on="event_id", how="left", maintain_order="left", validate="1:1")
    return TABLE.select(calls).sort("start_ns", "event_id")


def most_elements(report: Report, products: pl.DataFrame) -> pl.DataFrame:
    """The most elements of the result of products with one kernel: event_id, result_elements (null: unknown)."""
    alone = products.filter(pl.col("kernels") == 1).select("event_id", "block_elements")
    launches = operations(report, *SHAPE[:3]).select("event_id", blocks=product(*map(pl.col, SHAPE[:3])))
    most = product(pl.col("blocks"), pl.col("block_elements"))
    return alone.join(launches, on="event_id").select("event_id", result_elements=most)


def required_calls(report: Report, table: schema.Table) -> pl.DataFrame:
    """:func:`calls_with_work` for a `table` of them.

    Raises:
        CannotTellError: The report has no operators and no ranges, or no kernels.
    """
    require(report, table, "kernel")
    if _range_lines.shapes_beside(report) is None and not _is_measured(report):
        require(report, table.name, "op", "range")
    return calls_with_work(report)


@once_per_report
def calls_with_work(report: Report) -> pl.DataFrame:
    """The rows of :data:`TABLE`, unordered, with others.

    The operations of a device that are one row share their call; inside_ns is the part of dur_ns that is in the window;
    compute_ns and dram_ns are the least times of the arithmetic, and of the bytes without a cache; again tells what
    runs forward again within backward.
    """
    timed = with_roofs(_as_measured(report, with_models(_calls(report))), report.devices, clocked=True)
    part = pl.col("exclusive_ns") / pl.col("dur_ns").clip(lower_bound=1)
    at_roof = pl.min_horizontal(pl.col("roof_ns") * part, "exclusive_ns").cast(pl.Int64)
    return timed.with_columns(at_roof_ns=pl.when(pl.col("roof_ns").is_not_null()).then(at_roof)).with_columns(
        distance_ns=pl.col("exclusive_ns") - pl.col("at_roof_ns")
    )


def _as_measured(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Calls with what was measured of them, in the place of work that no model tells."""
    calls = _with_measured(report, calls)
    counted = pl.col("measured").is_in([EXACT, ALIKE])
    whole = pl.col("dram_bytes", "counted_flop").cast(pl.Int64, strict=False)
    calls = calls.with_columns(whole, pl.col("measured").cast(pl.String))
    memory = (pl.col("group") == "memory").fill_null(value=True)  # that no name says is more
    alone = pl.col("known").is_null() & pl.col("dram_bytes").is_not_null()
    chosen = (pl.col("known") == BOUND) & memory & counted
    flop = pl.coalesce("counted_flop", pl.when(memory & ~counted).then(0))
    return calls.with_columns(
        flop=pl.when(alone).then(flop).otherwise("flop"),
        executed_flop=pl.coalesce(pl.when(~memory & counted).then("counted_flop"), "executed_flop",
                                  pl.when(~memory).then("counted_flop")),
        bytes=pl.when(alone | chosen).then(pl.max_horizontal("bytes", "dram_bytes")).otherwise("bytes"),
        type=pl.when(alone).then(pl.coalesce("counted_type", "type")).otherwise("type"),
        known=pl.when(alone | chosen).then("measured").otherwise("known"),
    )  # fmt: skip


def with_roofs(calls: pl.DataFrame, devices: pl.DataFrame, *, clocked: bool = False) -> pl.DataFrame:
    """Adds roof_ns, bound, compute_ns and dram_ns to calls (device, type, flop, bytes), as if they ran on `devices`.

    With `clocked` at the recorded clock of the SMs (clock_hz), where there is one.
    """
    of_type = calls.join(peaks(devices), on=["device", "type"], how="left", maintain_order="left")
    limited = of_type.join(memory_roofs(devices), on="device", how="left", maintain_order="left")
    peak = pl.col("flop_per_s")
    peak = pl.coalesce(pl.col("flop_per_cycle") * pl.col("clock_hz"), peak) if clocked else peak
    compute = pl.when(pl.col("flop") == 0).then(0.0).otherwise(pl.col("flop") * 1e9 / peak)
    timed = limited.with_columns(compute_ns=compute, memory_ns=memory_ns())
    both = pl.col("compute_ns").is_not_null() & pl.col("memory_ns").is_not_null()
    roof = pl.when(both).then(pl.max_horizontal("compute_ns", "memory_ns").ceil()).cast(pl.Int64, strict=False)
    longer = pl.when(pl.col("compute_ns") > pl.col("memory_ns")).then(pl.lit("compute")).otherwise(pl.lit("memory"))
    dram_ns = pl.col("bytes") * 1e9 / pl.col("bytes_per_s")
    bounded = timed.with_columns(roof_ns=roof, bound=pl.when(both).then(longer), dram_ns=dram_ns)
    return bounded.drop("flop_per_s", "flop_per_cycle", "bytes_per_s", "^cache_bytes.*$", "memory_ns")


def names_inputs(report: Report) -> bool:
    """Whether inputs of operators are recorded: here, in the trace beside, or where CUDA graphs were captured."""
    return _range_lines.has_shapes(report) or _captures.has_captures(report)


@once_per_report
def operations_with_roofs(report: Report) -> pl.DataFrame:
    """The kernels in scope: the columns of :func:`operations_by_call`, and those of their calls, these with took_ns."""
    of_calls = calls_with_work(report).select(
        *("device", "call", "input_shapes", "input_strides", "input_values", "known", "group", "type", "bound"),
        *("roof_ns", "compute_ns", "dram_ns", "flop", "executed_flop", "bytes", "sides", "tiles"),
        took_ns="dur_ns",
        op="name",
    )
    kernels = operations_by_call(report).filter(pl.col("bucket") == "kernel")
    return kernels.join(of_calls, on=["device", "call"], how="left", maintain_order="left")


def least_times(report: Report, kind: str = "") -> pl.DataFrame:
    """The kernels with the least time for what they need (least_ns; null: unknown), in another type if told."""
    kernels = operations_with_roofs(report)
    if kind:
        other = pl.when(pl.col("flop") > 0).then(pl.lit(kind)).otherwise("type")
        kernels = with_roofs(kernels.with_columns(type=other), report.devices)
    needed = pl.when(pl.col("known").is_in([MODEL, BOUND])).then("roof_ns") / pl.col("took_ns").clip(lower_bound=1)
    return kernels.with_columns(least_ns=(pl.col("dur_ns") * needed).floor().cast(pl.Int64))


#: Where the operator of an operation stands: the report itself, the capture of its CUDA graph, the trace beside.
_SELF, _CAPTURE, _BESIDE = range(3)


def operations_by_call(report: Report) -> pl.DataFrame:
    """The launched operations with call, which those of one call of an operator share, and told (where: a number).

    What operations of CUDA graphs do whose capture is recorded was told there, by the operator that captured them,
    whose row is then that of the capture; each launch of the graph is a call of its own. In a report without operators
    the trace beside it tells them, of calls of which both have all launches. Operations that no operator launched are
    calls of their own.
    """
    alone, own = -1 - pl.col("row").cast(pl.Int64), pl.col("operator").cast(pl.Int64)
    ran = _work.launched_work(report).with_columns(operator=own, call=pl.coalesce(own, alone), told=pl.lit(_SELF))
    if (trace := _range_lines.shapes_beside(report)) is not None:
        launches = facts_of(report, ran.get_column("row"), *THREAD, "call_start").rename({"call_start": "at"})
        there = ran.select("row", operators_beside(report, trace, launches).cast(pl.Int64).alias("operator"))
        number = own + _host_tree.host_tree(report).rows.height
        whole = there.drop_nulls().filter(~own.is_in(operators_beside_in_part(report, trace).implode()))
        ran = ran.update(whole.with_columns(call=number, told=pl.lit(_BESIDE)), on="row")
    if _captures.has_captures(report):
        inside = _work.captured_work(report).drop_nulls("operator").select("row", own)
        launch = facts_of(report, inside.get_column("row"), "call_id").get_column("call_id")
        number = -1 - operations(report).height - pl.struct("operator", launch).rank("dense").cast(pl.Int64)
        ran = ran.update(inside.with_columns(call=number, told=pl.lit(_CAPTURE)), on="row")
    return ran


def _calls(report: Report) -> pl.DataFrame:
    """One row per call of an operator that launched kernels, and per kernel that none launched, with its inputs."""
    first = pl.col("dur_ns").arg_max()
    sides = windows(report).select("device", low="start", high="end")
    work = operations_by_call(report).filter(pl.col("bucket") == "kernel").join(sides, on="device", how="left")
    inside = pl.min_horizontal("end", "high") - pl.max_horizontal("start", "low")
    work = work.sort("row").with_columns(inside_ns=inside.clip(lower_bound=0))
    calls = work.group_by("device", "call", "told", maintain_order=True).agg(
        pl.col("event_id", "operator").first(),
        pl.col("name").cast(pl.String).get(first).alias("kernel"),
        pl.col("start").min().alias("start_ns"),
        pl.len().cast(pl.Int64).alias("kernels"),
        pl.col("dur_ns", "exclusive_ns", "inside_ns").sum(),
    )
    sources = {_SELF: report, _CAPTURE: _captures.capture_source(report), _BESIDE: _range_lines.shapes_beside(report)}
    parts = [(source, calls.filter(told=where)) for where, source in sources.items() if source is not None]
    return pl.concat([_described(part, source) for source, part in parts if len(part) or source is report])


def _described(calls: pl.DataFrame, source: Report) -> pl.DataFrame:
    """Adds the name of each call's operator and its inputs, as `source` recorded them."""
    rows, by = _host_tree.host_tree(source).rows, calls.get_column("operator")
    named = calls.rename({"event_id": "kernel_id"}).with_columns(
        gathered(rows.get_column("name"), by).cast(pl.String).alias("name"),
        gathered(rows.get_column("last_id"), by).alias("event_id"),  # of two of one name inputs are those of the inner
        gathered(_host_tree.recomputed(source), by).fill_null(value=False).alias("again"),
    )
    inputs = ("input_shapes", "input_types", "input_strides", "input_values")
    described = beside(named, source.table("op_detail"), *inputs).with_columns(pl.col(*inputs).cast(pl.String))
    sized, makers = pl.col("name").str.extract_groups(_SIZED), pl.col("name").str.extract_all(r"\((?:[1-9]\d*),\d+\)")
    again = makers.list.n_unique() < makers.list.len()  # one tensor as two inputs
    by_range = described.with_columns(
        name=pl.coalesce(sized.struct.field("name"), "name"),
        input_shapes=pl.coalesce("input_shapes", sized.struct.field("shapes")),
        event_id="kernel_id",
        made_by=pl.when(again).then(pl.col("name").str.extract(r"input_op_ids = (\[.*\])$")),
        op_id=pl.col("name").str.extract(r"\bop_id = (\d+)").cast(pl.Int64, strict=False),
    )
    convolves = pl.col("name").str.contains("convolution") & pl.col("input_values").is_null()
    op_ids = by_range.select(pl.when(convolves).then("op_id").alias("op_id")).to_series()
    return by_range.with_columns(result=_results(source, op_ids)).drop("op_id")


def _results(source: Report, made_by: pl.Series) -> pl.Series:
    """The shapes of results, as ranges have them that take these as their first input; null for those of no range."""
    if made_by.is_null().all():
        return pl.Series(dtype=pl.String).extend_constant(None, len(made_by))
    names = source.kind("range").get_column("name").cast(pl.String).alias("name").to_frame()
    users = names.select(pl.col("name").str.extract_groups(_FIRST_INPUT)).unnest("name").drop_nulls()
    users = users.with_columns(pl.col("op_id").cast(pl.Int64, strict=False)).unique("op_id", maintain_order=True)
    levels = [made_by.to_frame("op_id").select(pl.col("op_id") - level) for level in range(_LEVELS)]
    results = [level.join(users, on="op_id", how="left", maintain_order="left")["result"] for level in levels]
    return pl.select(pl.coalesce(results)).to_series()


WORK: Final[dict[str, pl.DataType | type[pl.DataType]]] = {
    "type": pl.String,
    "group": pl.String,
    "flop": pl.Int64,
    "executed_flop": pl.Int64,
    "bytes": pl.Int64,
    "known": pl.String,
    "sides": pl.List(pl.Int64),  # m, n, k and batch of a product, as its kernel has them
    "tiles": pl.Int64,  # of its result
    "block_elements": pl.Int64,  # of a result, of a block of a kernel that is not persistent
    "token_bytes": pl.Int64,  # of a token in the cache of an engine
}

#: GPUs before those whose kernels of products may be persistent, and kernels that are on any.
_BLOCK_FOR_A_TILE: Final = re.compile("sm_?[5-8][0-9]|maxwell|pascal|volta|turing|ampere")


def with_models(calls: pl.DataFrame) -> pl.DataFrame:
    """Adds the columns :data:`WORK`, computed once for calls that have operator, kernel and inputs in common."""
    inputs = ("input_shapes", "input_types", "input_strides", "input_values", "made_by", "result")
    keys = ["name", "kernel", *inputs]
    calls = calls.with_columns(alike=mixed(keys))
    distinct = calls.select("alike", *keys).unique("alike", keep="first", maintain_order=True)
    entries = distinct.drop("alike").iter_rows()
    rows = [_modelled(name or "", kernel or "", tuple(inputs)) for name, kernel, *inputs in entries]
    modelled = distinct.select("alike").hstack(pl.DataFrame(rows, schema=WORK, orient="row"))
    return calls.join(modelled, on="alike", how="left", maintain_order="left").drop("alike")


def _modelled(name: str, kernel: str, inputs: tuple[str | None, ...]) -> tuple[object, ...]:
    """The columns :data:`WORK` of one kind of call."""
    kernel_name = decode(kernel)
    # kernels that move elements whatever they are name their bytes alone
    opaque = re.search(r"OpaqueType<(?:\([a-z ]+\))?(\d+)u?>", kernel)
    in_name = (*kernel_name.input_types, kernel_name.output_type or ("f16" if _CUDNN_HALF.search(kernel) else ""))[0]
    work = work_of(name, inputs, kernel_name, int(opaque[1]) if opaque else ELEMENT_BYTES.get(in_name))
    # a complex product is four real ones, of a type that no peak is of
    kind = _type_of(in_name, inputs[1], tensor_core=bool(kernel_name.tensor_core))
    sparse = kernel_name.library == "cusparse"  # the shapes are of the whole matrices
    tile, one_each = kernel_name.tile[:2], _BLOCK_FOR_A_TILE.fullmatch(kernel_name.arch or "")
    block = math.prod(tile) if one_each and len(tile) > 1 and not re.search("(?i)stream_?k", kernel) else None
    if work is None or sparse or (work.flop and "complex" in (inputs[1] or "")):
        return (kind, _OF_FAMILY.get(kernel_name.family), *(None,) * (len(WORK) - 4), block, None)
    executed = work.tiled and executed_flop(work.tiled, kernel_name)
    product = work.tiled if isinstance(work.tiled, Product) else None
    tiles = tiles_of(product, kernel_name) if product and work.flop else None
    group = next((group for word, group in _GROUP_WORDS.items() if word in name), "products") if work.flop else "memory"
    sides = product and [*product]
    return (kind, group, work.flop, executed, work.bytes, work.known, sides, tiles, block, work.token_bytes)


def _type_of(in_name: str, types: str | None, *, tensor_core: bool) -> str | None:
    """The type of the arithmetic: as the kernel's name says, which alone tells TF32 from FP32, or as the inputs."""
    kinds = (_BY_TENSOR.get(one.split("_")[0], None) for one in re.findall(r'"([^"]+)"', types or ""))
    by_input = next(filter(None, kinds), None)
    if in_name in _ARITHMETIC:  # which has one word for both types of 16 bits, of cuDNN
        return "bf16" if (in_name, by_input) == ("f16", "bf16") else _ARITHMETIC[in_name]
    if by_input is None:
        return "fp32" if in_name == "f32" else None
    return "tf32" if by_input == "fp32" and tensor_core else by_input


# What tools measured of the work of calls: ncu by its counters, nsys by GPU metrics over long kernels.

_CALL: Final = ("device", "call")
#: By call: FLOPs that ran, bytes, the type where ncu tells it, the clock where it was sampled; the surest way first.
_FIGURES: Final[dict[str, PolarsDataType]] = {
    **dict.fromkeys(("counted_flop", "dram_bytes", "clock_hz"), pl.Float64),
    "counted_type": pl.String,
    "measured": pl.Enum([EXACT, ALIKE, SAMPLED]),
}
_LAUNCHES: Final = pl.DataFrame(schema={"event_id": pl.Int64, **_FIGURES})

#: Launches that ncu counted are of one kind where their FLOPs, their bytes, and their times without it are as near.
_SAME_FLOP, _SAME_BYTES, _SAME_NS = 1.01, 1.1, 1.2
#: A sampled kernel has this many samples; a share that is told in whole percents is told from this one on.
_SAMPLES, _TOLD = 5, 0.05


def _is_measured(report: Report) -> bool:
    """Whether ncu counted some of the program's kernels, or GPU metrics were sampled."""
    return report.whole.counted() is not None or bool(grids(report))


def _with_measured(report: Report, calls: pl.DataFrame) -> pl.DataFrame:
    """Adds :data:`_FIGURES` to calls, null where not all of a call's kernels were measured."""
    if not _is_measured(report):
        return calls.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in _FIGURES.items())
    kinds = calls.select(*_CALL, "type", op="name", shapes="input_shapes")
    kernels = operations_by_call(report).filter(pl.col("bucket") == "kernel")
    launched = kernels.join(kinds, on=_CALL, maintain_order="left")
    every = pl.concat([_LAUNCHES, *_counted(report, launched), *_sampled(report, launched)], how="diagonal_relaxed")
    figures = every.cast(_LAUNCHES.schema).unique("event_id", keep="first", maintain_order=True)

    def of_all(name: str, value: pl.Expr) -> pl.Expr:
        return pl.when(pl.col(name).count() == pl.len()).then(value)

    of_each = launched.join(figures, on="event_id", how="left", maintain_order="left").group_by(_CALL)
    sums = of_each.agg(
        *(of_all(name, pl.col(name).sum()) for name in ("counted_flop", "dram_bytes")),
        pl.col("counted_type", "clock_hz").get(pl.col("dur_ns").arg_max()),
        of_all("measured", pl.col("measured").max()),
    ).filter(pl.any_horizontal(pl.col("counted_flop", "dram_bytes").is_not_null()))
    return calls.join(sums, on=_CALL, how="left", maintain_order="left")


def _counted(report: Report, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What ncu counted of launches: of themselves by their numbers, or of others of the same kernel and launch shape.

    Others are as good where the operator's inputs have the same shapes. Where these are not known, the launches must
    take equally long without ncu.
    """
    base = report.whole
    if (ncu := base.counted()) is None:
        return
    try:
        counts = roofline(ncu)
        numbered, pairs, groups = same_launches(base, ncu), same_kernels(base, ncu), grouped_kernels(ncu)
    except errors.KanalyzeError as error:
        base.go_without(ncu.meta.path.name, error)
        return
    kind = pl.col("precision").str.extract(r"^(?:tensor )?(\w+)(?:/\w+)?$")  # of sparse work the roof is another
    facts = counts.select(
        *("event_id", "dram_bytes"),
        counted_flop=pl.col("flop") + pl.col("tensor_int_op").fill_null(0),
        counted_type=pl.when(kind.is_in(TYPES)).then(kind),
    ).drop_nulls("dram_bytes")
    itself = numbered.drop_nulls("left").join(facts, left_on="right", right_on="event_id")
    yield itself.select("dram_bytes", "counted_flop", "counted_type", event_id="left", measured=pl.lit(EXACT))
    near = (pl.col("counted_flop").max() <= _SAME_FLOP * pl.col("counted_flop").min()).fill_null(value=True)
    near &= pl.col("dram_bytes").max() <= _SAME_BYTES * pl.col("dram_bytes").min()
    of_group = facts.join(groups.select("event_id", "group"), on="event_id").group_by("group")
    alike = of_group.agg(
        pl.col("counted_flop", "dram_bytes").mean(), pl.col("counted_type").first(), one=near, seen=pl.len()
    ).filter("one")
    sure = pairs.filter(pl.col("match").is_in(["exact", "shape"])).join(alike, left_on="right", right_on="group")
    times = kernel_groups(base).select("group", "count", steady=pl.col("high") <= _SAME_NS * pl.col("low"))
    own = grouped_kernels(base).select("event_id", left="group").join(launched, on="event_id")
    launches = own.join(sure, on="left").join(times, left_on="left", right_on="group")
    known = pl.col("shapes").is_not_null().all() & (pl.struct("op", "shapes").n_unique() == 1)
    same = known.over("left") | (pl.col("seen") == pl.col("count"))
    how = pl.when(same).then(pl.lit(EXACT)).when("steady").then(pl.lit(ALIKE))
    yield launches.select("event_id", "counted_flop", "dram_bytes", "counted_type", measured=how).drop_nulls("measured")


def _sampled(report: Report, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What GPU metrics tell of kernels that run alone and for several samples: the mean of those of a kind.

    FLOPs are those of tensor cores: the share of time in which they were active, by their rate at the recorded clock;
    older instructions than the GPU's own keep them active longer.
    """
    kinds = launched.with_columns(key=pl.struct("name", "op", "shapes").rank("dense").cast(pl.Int64))
    for device, grid in grids(report).items():
        long = pl.col("dur_ns") >= _SAMPLES * grid.period_ns
        own = kinds.filter(long & (pl.col("exclusive_ns") == pl.col("dur_ns")), device=device)
        rates = means(grid, own.select("key", "start", "end")).filter(pl.col("samples") >= _SAMPLES)
        timed = own.join(rates, on="key").join(peaks(report.devices), on=["device", "type"], how="left")
        bandwidth = report.devices.filter(device=device).get_column("memory_bandwidth_bytes_per_s").first()
        seconds, moved = pl.col("dur_ns") / 1e9, pl.col("dram_read_share") + pl.col("dram_write_share")
        active, rate = pl.col("tensor_active_share"), pl.col("flop_per_cycle") * pl.col("sm_clock_hz")
        yield timed.select(
            "event_id",
            counted_flop=pl.when(active >= _TOLD).then(active * rate * seconds),
            dram_bytes=pl.when(moved >= _TOLD).then(moved * seconds * pl.lit(bandwidth, dtype=pl.Float64)),
            clock_hz="sm_clock_hz",
            measured=pl.lit(SAMPLED),
        )
