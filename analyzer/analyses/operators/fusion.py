"""Chains of elementwise kernels that one kernel could replace, with the memory traffic of both; compiled kernels."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import columns, model, schema, tools
from kanalyze.analyses.device._operations import SHAPE, with_facts
from kanalyze.analyses.operators import _host_tree, _work
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.decoder.decode import decode
from kanalyze.decoder.fields import ELEMENT_BYTES, KernelName
from kanalyze.report import Report

#: Minimum number of repetitions of one operator for a loop.
_LOOP: Final = 5


#: Operators whose result does not depend on earlier results.
_READS_NOTHING: Final = ("aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::arange", "aten::linspace")

#: Sizes of an operator's inputs and outputs, as far as shapes were recorded.
_SIZES: Final = ("elements", "read_bytes", "written_bytes")


@analysis.once_per_report
def chains(report: Report) -> pl.DataFrame:
    """The kernels of every chain: two or more operators that follow each other directly on one stream.

    Kernels of one operator are one piece of work, and copies alone are no chain. All kernels are elementwise, were
    launched by one thread, and have results with the same number of elements (if shapes were not recorded: the same
    grid and block). An operator that reads nothing begins a chain. A repeated sequence of operators is a loop, and each
    iteration a chain; a repeated single operator is no chain, unless one operator encloses all of it: the next one may
    as well work on another tensor. The same one five times in a row is a loop in any case, which no compiler fuses.

    Columns: chain (a number), device, stream, row (of `operations`), start, end, dur_ns, exclusive_ns, operator (its
    row of the host tree), outermost (row of the outermost enclosing operator), name (the operator's), elements,
    read_bytes, written_bytes (this kernel's part of what its operator reads and writes; null for unknown shapes).
    """
    work = _in_streams(report)
    runs = _numbered(work).select(run=pl.struct("chain", "name").rle_id()).to_series()
    before = pl.when(runs == runs.shift(1)).then(pl.col("operator").shift(1))
    another = work.select(run=runs, another=pl.col("operator").ne_missing(before))
    fusible = pl.col("fusible") & (another.select(pl.col("another").sum().over("run")).to_series() < _LOOP)
    kernels = _numbered(work.with_columns(fusible=fusible)).filter("fusible")
    kernels = kernels.drop("fusible", *SHAPE, "process_id", "thread_id").filter(pl.len().over("chain") > 1)
    tree = _host_tree.host_tree(report)
    kernels = kernels.with_columns(outermost=tree.outermost(kernels.get_column("operator"), tree.of_kinds("op")))
    copies = pl.col("name").cast(pl.String).is_in(("aten::copy_", "aten::_foreach_copy_")).all().over("chain")
    return _turns(kernels).filter((pl.col("operator").n_unique().over("chain") > 1) & ~copies)


def _numbered(work: pl.DataFrame) -> pl.DataFrame:
    """Operations by stream, each with the number of the chain that it would belong to."""

    def same(*values: pl.Expr) -> pl.Expr:
        return pl.all_horizontal(value.eq_missing(value.shift(1)) for value in values)

    elements, again = pl.col("elements"), same(pl.col("operator"))
    # without shapes, equal grid and block stand for equal numbers of elements: those of the first kernel of each
    # operator, which may need several
    leads = [pl.when(~again).then(pl.col(name)).forward_fill() for name in SHAPE]
    alike = same(elements) & (elements.is_not_null() | again | same(*leads))
    reads = ~pl.col("name").cast(pl.String).is_in(_READS_NOTHING)
    together = same(*(pl.col(name) for name in ("device", "stream", "process_id", "thread_id")))
    both = pl.col("fusible") & pl.col("fusible").shift(1, fill_value=False)
    return work.with_columns(chain=(~(together & reads & both & alike).fill_null(value=False)).cum_sum())


def _turns(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with a chain for each iteration of a loop."""
    one = pl.col("outermost").n_unique() == 1
    texts = kernels.group_by("chain").agg(pl.col("name").cast(pl.String), one=one)
    lengths = texts.select("name", "one").unique()
    turns = [repeated(names, one=one) for names, one in lengths.iter_rows()]
    with_lengths = texts.join(lengths.with_columns(length=pl.Series(turns, dtype=pl.Int64)), on=["name", "one"])
    placed = kernels.join(with_lengths.select("chain", "length"), on="chain", how="left", maintain_order="left")
    placed = placed.with_columns(turn=pl.int_range(pl.len()).over("chain") // pl.col("length"))
    split = placed.with_columns(chain=pl.struct("chain", "turn").rle_id())
    return split.filter(pl.len().over("chain") > 1).drop("turn", "length")


def repeated(names: list[str], *, one: bool) -> int:
    """The period of a sequence of names; its length if it has none, or repeats `one` name."""
    border = [0] * len(names)
    for at in range(1, len(names)):  # the failure function of Knuth, Morris and Pratt
        length = border[at - 1]
        while length and names[at] != names[length]:
            length = border[length - 1]
        border[at] = length + (names[at] == names[length])
    period = len(names) - border[-1]
    if period == 1 and one:
        return len(names)
    return period if 2 * period <= len(names) else len(names)


def _in_streams(report: Report) -> pl.DataFrame:
    """All device operations in scope by stream, with the columns that :func:`chains` needs.

    Among them whether each is an elementwise kernel of an operator, and what its operator reads and writes.
    """
    rows, work = _host_tree.host_tree(report).rows, with_facts(report, _work.launched_work(report), "stream", *SHAPE)
    operator, kernel = work.get_column("operator"), pl.col("kind") == "kernel"
    of_operator = {"thread_id": "thread_id", "op_name": "name", "op_id": "last_id"}
    names = work.filter(kernel).get_column("name").unique().drop_nulls()
    decoded = [decode(name) for name in names.cast(pl.String)]
    elementwise = pl.Series("elementwise", [is_elementwise(one) for one in decoded], dtype=pl.Boolean)
    size = pl.Series("element_bytes", [ELEMENT_BYTES.get(one.dtype or "") for one in decoded], dtype=pl.Int64)
    work = work.join(pl.DataFrame([names, elementwise, size]), on="name", how="left", maintain_order="left")
    fusible = kernel & pl.col("operator").is_not_null() & pl.col("elementwise")
    work = work.with_columns(
        *(columns.gathered(rows.get_column(column), operator).alias(name) for name, column in of_operator.items()),
        fusible=fusible.fill_null(value=False),
    )
    kept = ("dur_ns", "exclusive_ns", "operator", "process_id", "thread_id", "fusible", *_SIZES, *SHAPE)
    order = ("device", "stream", "start", "row")
    # elements and bytes of each operation's operator, the bytes divided equally among its operations
    inputs = ("input_shapes", "input_types", "input_strides")
    chosen = work.filter("fusible").select("row", "element_bytes", event_id="op_id", name="op_name")
    in_bytes = sizes(columns.beside(chosen, report.table("op_detail"), *inputs))
    parts = pl.len().over("event_id").cast(pl.Int64)
    shared = chosen.hstack(in_bytes).with_columns(pl.col("read_bytes", "written_bytes") // parts)
    work = work.join(shared.select("row", *_SIZES), on="row", how="left", maintain_order="left")
    return work.select(*order, "end", *kept, name="op_name").sort(order)


def is_elementwise(kernel: KernelName) -> bool:
    """Whether a kernel computes each element of its result only from the elements at the same place."""
    if kernel.library != "aten":
        return False
    if kernel.family == "optimizer":
        return kernel.functor is not None and "Fused" not in kernel.functor and kernel.operation != "norm"
    # families that contain others, too
    operations = {"copy": ("copy",), "random": ("dropout", "masked_scale")}.get(kernel.family)
    return kernel.family in {"elementwise", "fill"} if operations is None else kernel.operation in operations


# Elements and bytes that an elementwise operator reads and writes, from the shapes and types of its inputs.

#: Bytes per element, by the type's name in a trace (C++ names of c10's scalar types).
_ELEMENT_BYTES: Final = {
    **dict.fromkeys(("bool", "unsigned char", "signed char", "char"), 1),
    **dict.fromkeys(("short", "short int", "unsigned short", "c10::Half", "c10::BFloat16"), 2),
    **dict.fromkeys(("int", "unsigned int", "float", "c10::complex<c10::Half>"), 4),
    **dict.fromkeys(("long", "long int", "unsigned long", "double", "c10::complex<float>"), 8),
    "c10::complex<double>": 16,
}

#: Operators that only write their first input.
OVERWRITES: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_")


#: The type of an input that is a list of tensors.
LISTED: Final = "TensorList"


class Tensor(NamedTuple):
    """A tensor: its dimensions, its elements in memory (broadcast ones count once), and bytes per element."""

    shape: tuple[int, ...]
    stored: int
    element_bytes: int


def sizes(operators: pl.DataFrame) -> pl.DataFrame:
    """Of each operator elements (of its result), read_bytes and written_bytes; null for unknown shapes or types.

    `operators` have name, input_shapes, input_types, input_strides (JSON lists as recorded, null for none), and
    element_bytes: bytes per element where the types do not say, as for lists of tensors; null if unknown. The result
    has the inputs' broadcast shape and their widest type.
    """
    keys = ["name", "input_shapes", "input_types", "input_strides", "element_bytes"]
    distinct = operators.select(keys).unique()
    texts = distinct.with_columns(pl.col(keys[:4]).cast(pl.String))
    rows = [sizes_of(name, inputs_of(*recorded)) or (None, None, None) for name, *recorded in texts.iter_rows()]
    sized = distinct.hstack(pl.DataFrame(rows, schema=dict.fromkeys(_SIZES, pl.Int64), orient="row"))
    joined = operators.select(keys).join(sized, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(_SIZES)


def sizes_of(name: str, inputs: list[list[Tensor]]) -> tuple[int, int, int] | None:
    """Elements, read and written bytes of an elementwise operator; None without tensors."""
    tensors = [tensor for one in inputs for tensor in one]
    if not tensors:
        return None
    shaped = [tensor for tensor in tensors if tensor.shape] or tensors
    widest = max(tensor.element_bytes for tensor in shaped)
    longest = max(inputs, key=len)
    written = (
        [math.prod(one.shape) for one in longest] if len(longest) > 1 else [broadcast(one.shape for one in tensors)]
    )
    if name in OVERWRITES:
        tensors = [tensor for one in inputs[1:] for tensor in one]
        if inputs[0]:
            written, widest = [math.prod(tensor.shape) for tensor in inputs[0]], inputs[0][0].element_bytes
    elements = sum(written)
    totals = elements, sum(tensor.stored * tensor.element_bytes for tensor in tensors), elements * widest
    return totals if max(totals) <= columns.LARGEST else None


def broadcast(shapes: Iterable[Sequence[int]]) -> int:
    """The elements that tensors of these shapes have in common, expanded to one shape."""
    return math.prod(map(max, zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)))


def inputs_of(
    shapes: str | None, types: str | None, strides: str | None, element_bytes: int | None
) -> list[list[Tensor]]:
    """The tensors of each input; empty for inputs that are no tensors. No inputs where they are unknown."""
    dims, steps = parsed(shapes), parsed(strides)
    # ranges of nsys have no types: all of one that the kernel's name tells
    of_lists = [isinstance(dim, list) and bool(dim) and isinstance(dim[0], list) for dim in dims]
    names = parsed(types) if types else [LISTED if several else None for several in of_lists]
    if len(dims) != len(names):
        return []
    inputs: list[list[Tensor]] = []
    for dim, name, step in zip_longest(dims, names, steps[: len(dims)]):
        several = name == LISTED
        size = element_bytes if several or not types else bytes_of(name)
        if several and (size is None or not isinstance(dim, list)):
            return []
        dims_of, steps_of = (dim, step) if several else ([dim], [step])
        # a number, a list of numbers, nothing
        inputs.append([] if size is None else [*_tensors(dims_of, steps_of, size)])
    return inputs


def _tensors(dims: list[Any], steps: Any, size: int) -> Iterator[Tensor]:  # noqa: ANN401 - what a file says
    for at, dim in enumerate(dims):
        if not isinstance(dim, list) or not all(type(one) is int and one >= 0 for one in dim):
            continue
        step = steps[at] if isinstance(steps, list) and at < len(steps) else None
        once = dim
        if isinstance(step, list) and len(step) == len(dim):
            once = [1 if jump == 0 else length for length, jump in zip(dim, step, strict=True)]
        yield Tensor(tuple(dim), math.prod(once), size)


def bytes_of(name: object) -> int | None:
    """Bytes of an element of a type that a trace names; None if that is none."""
    if not isinstance(name, str):
        return None
    return 1 if name.startswith("c10::Float8") else _ELEMENT_BYTES.get(name)


def parsed(text: str | None) -> list[Any]:
    """The list that a text of JSON is; empty for none."""
    try:
        value = json.loads(text) if text else None
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


TABLE: Final = schema.Table(
    "fusion",
    "One chain of elementwise kernels that follow each other on a stream, all its occurrences.",
    schema.columns("""
        device int: The GPU, as in `devices`.
        chain text: The operators that launched the kernels, in order.
        within text?: The operator around all of them; null where they are neighbours.
        elements int?: Elements of each result; null where shapes were not recorded.
        count int: How often the chain occurs.
        kernels int: Kernels of one occurrence.
        launches int: Kernels of all occurrences; one fused kernel each would be `count`.
        total_ns int: Sum of the kernels' durations.
        gaps_ns int: Time between the kernels of the occurrences, in which their stream had nothing to run.
        moved_bytes int?: What they read and write, from shapes and types.
        fused_bytes int?: The least that fused kernels read and write: the inputs of the first operator and the result
            of the last; of an optimizer's step weights, gradients and what it keeps of them.
        fused_ns int: The time that they take: that of fused_bytes at the device's memory bandwidth; where shapes or
            bandwidth are not known, by the operator of each occurrence whose kernels took least. No kernel takes less
            than 1 µs.
        saved_ns int: So much less kernel time: total_ns without fused_ns.
    """),
    purpose="chains of kernels that one kernel could do",
    telling=("chain", "count", "launches", "total_ns", "saved_ns"),
    tools=tools.recorders("op"),
)

#: Operators on lists of tensors that update an optimizer's state: first moments, second moments, weights.
_UPDATES: Final = ("aten::_foreach_lerp_", "aten::_foreach_addcmul_", "aten::_foreach_addcdiv_")
_BOTH_WAYS: Final = 2

_KEYS: Final = ("device", "chain", "within", "elements")


@analysis.analysis
def fusion(report: Report) -> pl.DataFrame:
    """Chains of elementwise kernels, the largest saving first.

    Source: what a fusing compiler (torch.compile) does with pointwise operators. A trace does not record which result
    is whose input, so a chain is what could be fused if each kernel works on the previous one's result.

    Returns:
        :data:`TABLE`; empty if no two elementwise kernels follow each other.

    Raises:
        CannotTellError: The report has no operators or no kernels.
    """
    analysis.require(report, TABLE.name, "op")
    analysis.require(report, TABLE, "kernel")
    timed = occurrences(report)
    sums = timed.group_by(_KEYS).agg(
        pl.col("kernels").first(),
        pl.col("total_ns", "gaps_ns", "fused_ns").sum(),
        *(_sum_or_null(name) for name in ("moved_bytes", "fused_bytes")),
        count=pl.len().cast(pl.Int64),
        launches=pl.col("kernels").sum(),
    )
    rows = sums.with_columns(saved_ns=pl.col("total_ns") - pl.col("fused_ns"))
    return TABLE.select(rows).sort("saved_ns", *_KEYS, descending=[True, *(False for _ in _KEYS)], nulls_last=True)


@analysis.once_per_report
def occurrences(report: Report) -> pl.DataFrame:
    """One row per occurrence of a chain that fusion could shorten: the keys of the table, and its times and bytes.

    Besides: number (that of its `chain` among the chains), parts (kernels of its largest operator).
    """
    kernels = chains(report)
    names = _host_tree.host_tree(report).rows.get_column("name").cast(pl.String)
    around = columns.gathered(names, kernels.get_column("outermost")).alias("around")
    one = pl.col("outermost").n_unique() == 1
    # the operator that launched all of them, directly or through operators that it called
    within = pl.when(one & (pl.col("around").first() != pl.col("name").first())).then(pl.col("around").first())
    traffic = [pl.col("read_bytes"), pl.col("written_bytes")]
    all_known = pl.all_horizontal(bytes_.is_not_null().all() for bytes_ in traffic)
    ends = pl.col("read_bytes").first() + pl.col("written_bytes").last()
    kept, written = _kept(), pl.col("written_bytes").filter(pl.col("name") == _UPDATES[-1]).first().fill_null(0)
    operators = _operators(kernels.with_columns(pl.col("name").cast(pl.String), around))
    each = operators.group_by(number="chain", maintain_order=True).agg(
        pl.col("device", "elements").first(),
        pl.col("kernels", "total_ns", "gaps_ns").sum(),
        chain=pl.col("name").str.join(_host_tree.ARROW),
        within=within,
        parts=pl.col("kernels").max(),
        # the shortest operator reads and writes one list or tensor
        shortest_ns=pl.col("total_ns").min() * kept.clip(lower_bound=_BOTH_WAYS) // _BOTH_WAYS,
        moved_bytes=pl.when(all_known).then(columns.added(pl.sum_horizontal(map(columns.wide, traffic)))),
        fused_bytes=pl.when(all_known).then(pl.max_horizontal(ends, written * kept)),
    )
    speeds = report.devices.select("device", speed="memory_bandwidth_bytes_per_s")
    each = each.join(speeds, on="device", how="left")
    each = each.filter((pl.col("fused_bytes") < pl.col("moved_bytes")).fill_null(value=True))
    at_bandwidth = (pl.col("fused_bytes") * 1e9 / pl.col("speed")).ceil().cast(pl.Int64, strict=False)
    # no kernel takes less than 1 µs, however little it does
    least = pl.max_horizontal(pl.coalesce(at_bandwidth, "shortest_ns"), 1_000 * pl.col("parts"))
    # a fused kernel takes no longer than the kernels that it replaces
    return each.with_columns(fused_ns=pl.min_horizontal(least, "total_ns"))


def _operators(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per operator of an occurrence, in the order of its kernels, of which there may be several."""
    idle = pl.col("start") - pl.col("end").cum_max().shift(1).over("chain")
    gaps = kernels.with_columns(idle=idle.clip(lower_bound=0).fill_null(0))
    return gaps.group_by("chain", "operator", maintain_order=True).agg(
        pl.col("device", "name", "around", "outermost", "elements").first(),
        *(_sum_or_null(name) for name in ("read_bytes", "written_bytes")),
        kernels=pl.len().cast(pl.Int64),
        total_ns=pl.col("dur_ns").sum(),
        gaps_ns=pl.col("idle").sum(),
    )


def _kept() -> pl.Expr:
    """The minimum number of lists that an Adam-like optimizer step reads and writes; 0 for other chains.

    It updates the first moments by lerp, the second moments by addcmul and the weights by addcdiv, each of which it
    reads and writes, and reads the gradients.
    """
    updated = [(pl.col("name") == name).any().cast(pl.Int64) for name in _UPDATES]
    step = pl.col("name").str.contains(r"^aten::_foreach_").all() & ((pl.col("name") == _UPDATES[-1]).sum() == 1)
    return pl.when(step).then(_BOTH_WAYS * pl.sum_horizontal(updated) + 1).otherwise(0)


def _sum_or_null(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().all()).then(columns.added(pl.col(name))).alias(name)


COMPILED: Final = schema.Table(
    "compiled",
    "One kernel that Triton or inductor compiled, and its launches in the nsys report of the same capture.",
    (
        *model.COMPILED_KERNELS.columns,
        *schema.columns("""
            variants int: Compiled kernels of this name; launches of one name are counted for all of them.
            count int: Launches of a kernel of this name.
            total_ns int: Their time on the GPU.
            avg_ns float?: Their mean; null where there are none.
        """),
    ),
    purpose="kernels of Triton and inductor, with launches",
    telling=("count", "total_ns", "registers", "spills", "shared_memory_bytes"),
    tools=("capture",),
)


@analysis.analysis
def compiled(report: Report) -> pl.DataFrame:
    """The compiled kernels of a capture, the longest total time first; last, by name, those that were never launched.

    Returns:
        :data:`COMPILED`.

    Raises:
        CannotTellError: The report is no capture of ``kanalyze collect``, or one without a torch pass.
    """
    kernels = report.table(model.COMPILED_KERNELS.name)
    launched = report.seen("kernel").group_by(pl.col("name").cast(pl.String)).agg(statistics.duration_statistics())
    variants = kernels.with_columns(pl.len().over("name").cast(pl.Int64).alias("variants"))
    filled = variants.join(launched, on="name", how="left").with_columns(pl.col("count", "total_ns").fill_null(0))
    return COMPILED.select(filled.sort("total_ns", "name", "num_warps", "hash", descending=[True, False, False, False]))
