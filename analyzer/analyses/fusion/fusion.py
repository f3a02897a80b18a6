"""Chains of elementwise kernels that one kernel could replace: their memory traffic, and that of a fused kernel."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import SHAPE, with_facts
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import ARROW
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.analysis import analysis, once_per_report, require
from kanalyze.columns import LARGEST, added, beside, gathered, positions, wide
from kanalyze.decoder.decode import decode
from kanalyze.report import Report
from kanalyze.schema import Column, Table
from kanalyze.tools import recorders

if TYPE_CHECKING:
    from kanalyze.decoder.fields import KernelName

#: The elementwise operations of kernel families that also contain others.
_OPERATIONS: Final = {"copy": ("copy",), "random": ("dropout", "masked_scale")}

#: Minimum number of repetitions of one operator for a loop.
_LOOP: Final = 5

#: Operators that only copy: two in a row copy different tensors, since nobody copies a copy.
_COPIES: Final = ("aten::copy_", "aten::_foreach_copy_")

#: Operators whose result does not depend on earlier results.
_READS_NOTHING: Final = ("aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::arange", "aten::linspace")

#: Bytes per element, by the type's name in a kernel's name.
_BYTES: Final = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "i8": 1, "u8": 1, "bool": 1}

#: Sizes of an operator's inputs and outputs, as far as shapes were recorded.
_SIZES: Final = ("elements", "read_bytes", "written_bytes")


@once_per_report
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
    another = pl.col("operator").ne_missing(pl.col("operator").shift(1))
    looped = another.sum().over(runs) >= _LOOP
    found = _numbered(work.with_columns(fusible=pl.col("fusible") & ~looped))
    found = found.filter("fusible").drop("fusible", *SHAPE, "process_id", "thread_id")
    found = found.filter(pl.len().over("chain") > 1)
    found = found.with_columns(outermost=_outermost(report, found.get_column("operator")))
    copies = pl.col("name").cast(pl.String).is_in(_COPIES).all().over("chain")
    return _turns(found).filter((pl.col("operator").n_unique().over("chain") > 1) & ~copies)


def _numbered(work: pl.DataFrame) -> pl.DataFrame:
    """Operations by stream, each with the number of the chain that it would belong to."""
    same = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in ("device", "stream", "process_id", "thread_id")]
    alike = pl.when(pl.col("elements").is_not_null()).then(pl.col("elements").eq_missing(pl.col("elements").shift(1)))
    # without shapes, equal grid and block stand for equal numbers of elements: those of the first kernel of each
    # operator, which may need several
    again = pl.col("operator").eq_missing(pl.col("operator").shift(1))
    leads = [pl.when(~again).then(pl.col(name)).forward_fill() for name in SHAPE]
    one = pl.all_horizontal(lead.eq_missing(lead.shift(1)) for lead in leads)
    grid = (again | one) & pl.col("elements").eq_missing(pl.col("elements").shift(1))
    reads = ~pl.col("name").cast(pl.String).is_in(_READS_NOTHING)
    follows = pl.all_horizontal(*same, reads, pl.col("fusible"), pl.col("fusible").shift(1, fill_value=False))
    follows = follows & alike.otherwise(grid)
    return work.with_columns(chain=(~follows.fill_null(value=False)).cum_sum())


def _turns(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, with a chain for each iteration of a loop."""
    texts = kernels.group_by("chain").agg(pl.col("name").cast(pl.String), one=pl.col("outermost").n_unique() == 1)
    distinct = texts.select("name", "one").unique()
    turns = [_turn(names, one=one) for names, one in distinct.iter_rows()]
    known = distinct.with_columns(turn=pl.Series(turns, dtype=pl.Int64))
    lengths = texts.join(known, on=["name", "one"]).select("chain", "turn")
    placed = kernels.join(lengths, on="chain", how="left", maintain_order="left")
    turn = pl.int_range(pl.len()).over("chain") // pl.col("turn")
    split = placed.with_columns(turn.alias("turn")).with_columns(chain=pl.struct("chain", "turn").rle_id())
    return split.filter(pl.len().over("chain") > 1).drop("turn")


def _turn(names: list[str], *, one: bool) -> int:
    """The period of a sequence of operators; its length if it has none."""
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
    """All device operations in scope by stream, with the columns that :func:`chains` needs."""
    tree, known = host_tree(report), with_facts(report, launched_work(report), "stream", *SHAPE)
    made = {"thread_id": "thread_id", "op_name": "name", "op_id": "last_id"}
    operator = known.get_column("operator")
    known = known.with_columns(
        gathered(tree.rows.get_column(column), operator).alias(name) for name, column in made.items()
    )
    known = known.with_columns(_fusible(known).get_columns())
    known = known.with_columns(_sizes(report, known).get_columns())
    told = ("dur_ns", "exclusive_ns", "operator", "process_id", "thread_id", "fusible", *_SIZES, *SHAPE)
    order = ("device", "stream", "start", "row")
    return known.select(*order, "end", *told, name="op_name").sort(order)


def _fusible(work: pl.DataFrame) -> pl.DataFrame:
    """Whether each operation is an elementwise kernel of an operator, and its element size by the kernel's name."""
    names = work.filter(pl.col("kind") == "kernel").get_column("name").unique().drop_nulls()
    said = [decode(name) for name in names.cast(pl.String)]
    elementwise = pl.Series([is_elementwise(one) for one in said], dtype=pl.Boolean)
    size = pl.Series([_BYTES.get(one.dtype or "") for one in said], dtype=pl.Int64)
    at = positions(names.to_physical(), work.get_column("name").to_physical())
    chosen = (pl.col("kind") == "kernel") & pl.col("operator").is_not_null() & gathered(elementwise, at)
    return work.select(chosen.fill_null(value=False).alias("fusible"), gathered(size, at).alias("element_bytes"))


def is_elementwise(said: KernelName) -> bool:
    """Whether a kernel computes each element of its result only from the elements at the same place."""
    if said.library != "aten":
        return False
    if said.family == "optimizer":
        return said.functor is not None and "Fused" not in said.functor and said.operation != "norm"
    wanted = _OPERATIONS.get(said.family)
    return said.family in {"elementwise", "fill"} if wanted is None else said.operation in wanted


def _sizes(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Elements and bytes of each operation's operator, the bytes divided equally among its operations."""
    detail = report.table("op_detail").select("event_id", "input_shapes", "input_types", "input_strides")
    chosen = work.with_row_index("place").filter("fusible").select("place", "op_id", "op_name", "element_bytes")
    inputs = beside(chosen.rename({"op_id": "event_id"}), detail, *detail.columns[1:])
    found = sizes(inputs.rename({"op_name": "name"}))
    parts = pl.len().over("op_id").cast(pl.Int64)
    shared = chosen.hstack(found).with_columns(pl.col("read_bytes", "written_bytes") // parts)
    places = work.select(place=pl.int_range(pl.len(), dtype=pl.UInt32))
    joined = places.join(shared, on="place", how="left", maintain_order="left")
    return joined.select(_SIZES)


def _outermost(report: Report, row: pl.Series) -> pl.Series:
    """The rows of the outermost operators around those in `row`; a row itself if none encloses it."""
    tree = host_tree(report)
    operators, parents = tree.of_kinds("op"), tree.rows.get_column("parent")
    best = row
    while row.is_not_null().any():
        best = best.zip_with(~gathered(operators, row).fill_null(value=False), row)
        row = gathered(parents, row)
    return best


# Elements and bytes that an elementwise operator reads and writes, from the shapes and types of its inputs.

#: Bytes per element, by the type's name in a trace (C++ names of c10's scalar types).
_ELEMENT_BYTES: Final = {
    "bool": 1,
    "unsigned char": 1,
    "signed char": 1,
    "char": 1,
    "short": 2,
    "short int": 2,
    "unsigned short": 2,
    "int": 4,
    "unsigned int": 4,
    "long": 8,
    "long int": 8,
    "unsigned long": 8,
    "float": 4,
    "double": 8,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::complex<float>": 8,
    "c10::complex<double>": 16,
    "c10::complex<c10::Half>": 4,
}

#: Operators that only write their first input.
_OVERWRITES: Final = ("aten::copy_", "aten::fill_", "aten::zero_", "aten::_foreach_copy_", "aten::_foreach_zero_")

#: The columns of :func:`sizes`, null for an operator with insufficient inputs.
_SCHEMA: Final = {"elements": pl.Int64, "read_bytes": pl.Int64, "written_bytes": pl.Int64}


class _Tensor(NamedTuple):
    """A tensor: its dimensions, its elements in memory (broadcast ones count once), and bytes per element."""

    shape: tuple[int, ...]
    stored: int
    element_bytes: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)


def sizes(operators: pl.DataFrame) -> pl.DataFrame:
    """The elements and bytes that each of some operators reads and writes.

    Args:
        operators: Columns name, input_shapes, input_types, input_strides (JSON lists as recorded, null for none), and
            element_bytes: bytes per element where the types do not say, as for lists of tensors; null if unknown.

    Returns:
        A row per operator: elements of the result, read_bytes and written_bytes. The result has the inputs' broadcast
        shape and their widest type. Null where shapes were not recorded, or a type is unknown.
    """
    keys = ["name", "input_shapes", "input_types", "input_strides", "element_bytes"]
    distinct = operators.select(keys).unique()
    texts = distinct.with_columns(pl.col(keys[:4]).cast(pl.String))
    found = pl.DataFrame([_shape_sizes(*row) for row in texts.iter_rows()], schema=_SCHEMA, orient="row")
    known = distinct.hstack(found)
    joined = operators.select(keys).join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    return joined.select(*_SCHEMA)


def _shape_sizes(
    name: str, shapes: str | None, types: str | None, strides: str | None, element_bytes: int | None
) -> tuple[int | None, int | None, int | None]:
    inputs = _inputs(shapes, types, strides, element_bytes)
    tensors = [tensor for one in inputs or [] for tensor in one]
    if not tensors:
        return None, None, None
    lists = any(len(one) > 1 for one in inputs or [])
    first = max(inputs or [], key=len) if lists else [_broadcast(tensors)]
    widest = max(
        tensor.element_bytes for tensor in tensors if tensor.shape or not any(other.shape for other in tensors)
    )
    if name in _OVERWRITES:
        first, tensors = (inputs or [[]])[0] or first, [tensor for one in (inputs or [])[1:] for tensor in one]
        widest = first[0].element_bytes
    elements = sum(tensor.elements for tensor in first)
    found = elements, sum(tensor.stored * tensor.element_bytes for tensor in tensors), elements * widest
    return found if max(found) <= LARGEST else (None, None, None)


def _broadcast(tensors: list[_Tensor]) -> _Tensor:
    """The broadcast of these tensors."""
    rank = max(len(tensor.shape) for tensor in tensors)
    padded = [(1,) * (rank - len(tensor.shape)) + tensor.shape for tensor in tensors]
    return _Tensor(tuple(max(sizes) for sizes in zip(*padded, strict=True)), 0, 0)


def _inputs(
    shapes: str | None, types: str | None, strides: str | None, element_bytes: int | None
) -> list[list[_Tensor]] | None:
    """The tensors of each input; empty for inputs that are no tensors. None if unknown."""
    dims, names, steps = _list(shapes), _list(types), _list(strides)
    if dims is None or names is None or len(dims) != len(names):
        return None
    found: list[list[_Tensor]] = []
    for at, (dim, name) in enumerate(zip(dims, names, strict=True)):
        step = steps[at] if steps is not None and at < len(steps) else None
        size = _bytes_of(name) or (element_bytes if name == "TensorList" else None)
        if name == "TensorList":
            if size is None or not isinstance(dim, list):
                return None
            found.append(list(_tensors(dim, step, size)))
        elif size is None:
            found.append([])  # a number, a list of numbers, nothing
        else:
            found += [list(_tensors([dim], [step], size))]
    return found


def _tensors(dims: list[Any], steps: Any, size: int) -> Iterator[_Tensor]:  # noqa: ANN401 - what a file says
    for at, dim in enumerate(dims):
        if not isinstance(dim, list) or not all(isinstance(one, int) and one >= 0 for one in dim):
            continue
        step = steps[at] if isinstance(steps, list) and at < len(steps) else None
        once = dim
        if isinstance(step, list) and len(step) == len(dim):
            once = [1 if jump == 0 else length for length, jump in zip(dim, step, strict=True)]
        yield _Tensor(tuple(dim), math.prod(once), size)


def _bytes_of(name: object) -> int | None:
    if not isinstance(name, str):
        return None
    return 1 if name.startswith("c10::Float8") else _ELEMENT_BYTES.get(name)


def _list(text: str | None) -> list[Any] | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, list) else None


TABLE: Final = Table(
    "fusion",
    "One chain of elementwise kernels that follow each other on a stream, all its occurrences.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("chain", pl.String, "The operators that launched the kernels, in order."),
        Column("within", pl.String, "The operator around all of them; null where they are neighbours.", nullable=True),
        Column("elements", pl.Int64, "Elements of each result; null where shapes were not recorded.", nullable=True),
        Column("count", pl.Int64, "How often the chain occurs."),
        Column("kernels", pl.Int64, "Kernels of one occurrence."),
        Column("launches", pl.Int64, "Kernels of all occurrences; one fused kernel each would be `count`."),
        Column("total_ns", pl.Int64, "Sum of the kernels' durations."),
        Column(
            "gaps_ns",
            pl.Int64,
            "Time between the kernels of the occurrences, in which their stream had nothing to run.",
        ),
        Column("moved_bytes", pl.Int64, "What they read and write, from shapes and types.", nullable=True),
        Column(
            "fused_bytes",
            pl.Int64,
            "The least that fused kernels read and write: the inputs of the first operator and the result of the last; "
            "of an optimizer's step weights, gradients and what it keeps of them.",
            nullable=True,
        ),
        Column(
            "fused_ns",
            pl.Int64,
            "The time that they take: that of fused_bytes at the device's memory bandwidth; where shapes or bandwidth "
            "are not known, by the operator of each occurrence whose kernels took least. No kernel takes less "
            "than 1 µs.",
        ),
        Column("saved_ns", pl.Int64, "So much less kernel time: total_ns without fused_ns."),
    ),
    purpose="chains of kernels that one kernel could do",
    telling=("chain", "count", "launches", "total_ns", "saved_ns"),
    tools=recorders("op"),
)

#: The minimum duration of a kernel, however little it does.
_LEAST_NS: Final = 1_000

#: Operators on lists of tensors that update an optimizer's state: first moments, second moments, weights.
_UPDATES: Final = ("aten::_foreach_lerp_", "aten::_foreach_addcmul_", "aten::_foreach_addcdiv_")
_BOTH_WAYS: Final = 2
_FOREACH: Final = r"^aten::_foreach_"

_KEYS: Final = ("device", "chain", "within", "elements")


@analysis
def fusion(report: Report) -> pl.DataFrame:
    """Chains of elementwise kernels, the largest saving first.

    Source: what a fusing compiler (torch.compile) does with pointwise operators. A trace does not record which result
    is whose input, so a chain is what could be fused if each kernel works on the previous one's result.

    Returns:
        :data:`TABLE`; empty if no two elementwise kernels follow each other.

    Raises:
        CannotTellError: The report has no operators or no kernels.
    """
    require(report, TABLE.name, "op")
    require(report, TABLE, "kernel")
    timed = occurrences(report)
    if timed.is_empty():
        return TABLE.empty()
    sums = timed.group_by(_KEYS).agg(
        pl.len().cast(pl.Int64).alias("count"),
        pl.col("kernels").first(),
        pl.col("kernels").sum().alias("launches"),
        *(pl.col(name).sum() for name in ("total_ns", "gaps_ns", "fused_ns")),
        *(_sum_or_null(name) for name in ("moved_bytes", "fused_bytes")),
    )
    found = sums.with_columns(saved_ns=pl.col("total_ns") - pl.col("fused_ns"))
    return TABLE.select(found).sort("saved_ns", *_KEYS, descending=[True, *(False for _ in _KEYS)], nulls_last=True)


@once_per_report
def occurrences(report: Report) -> pl.DataFrame:
    """One row per occurrence of a chain that fusion could shorten: the keys of the table, and its times and bytes.

    Besides: number (that of its `chain` among the chains), parts (kernels of its largest operator).
    """
    kernels = chains(report)
    names = host_tree(report).rows.get_column("name").cast(pl.String)
    around = gathered(names, kernels.get_column("outermost")).alias("around")
    named = kernels.with_columns(pl.col("name").cast(pl.String), around)
    speeds = report.devices.select("device", speed="memory_bandwidth_bytes_per_s")
    each = _occurrences(named).join(speeds, on="device", how="left")
    each = each.filter((pl.col("fused_bytes") < pl.col("moved_bytes")).fill_null(value=True))
    at_bandwidth = (pl.col("fused_bytes") * 1e9 / pl.col("speed")).ceil().cast(pl.Int64, strict=False)
    least = pl.max_horizontal(pl.coalesce(at_bandwidth, "shortest_ns"), _LEAST_NS * pl.col("parts"))
    # a fused kernel takes no longer than the kernels that it replaces
    return each.with_columns(fused_ns=pl.min_horizontal(least, "total_ns"))


def _occurrences(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per occurrence of a chain."""
    one = pl.col("outermost").n_unique() == 1
    # the operator that launched all of them, directly or through operators that it called
    around = pl.when(one & (pl.col("around").first() != pl.col("name").first())).then(pl.col("around").first())
    known = [pl.col("read_bytes"), pl.col("written_bytes")]
    all_known = pl.all_horizontal(bytes_.is_not_null().all() for bytes_ in known)
    ends = pl.col("read_bytes").first() + pl.col("written_bytes").last()
    kept, written = _kept(), pl.col("written_bytes").filter(pl.col("name") == _UPDATES[-1]).first().fill_null(0)
    return (
        _operators(kernels)
        .group_by("chain", maintain_order=True)
        .agg(
            pl.col("device").first(),
            pl.col("name").str.join(ARROW).alias("text"),
            around.alias("within"),
            pl.col("elements").first(),
            *(pl.col(name).sum() for name in ("kernels", "total_ns", "gaps_ns")),
            pl.col("kernels").max().alias("parts"),
            # the shortest operator reads and writes one list or tensor
            (pl.col("total_ns").min() * kept.clip(lower_bound=_BOTH_WAYS) // _BOTH_WAYS).alias("shortest_ns"),
            pl.when(all_known).then(added(pl.sum_horizontal(map(wide, known)))).alias("moved_bytes"),
            pl.when(all_known).then(pl.max_horizontal(ends, written * kept)).alias("fused_bytes"),
        )
        .rename({"chain": "number", "text": "chain"})
    )


def _operators(kernels: pl.DataFrame) -> pl.DataFrame:
    """One row per operator of an occurrence, in the order of its kernels, of which there may be several."""
    idle = pl.col("start") - pl.col("end").cum_max().shift(1).over("chain")
    return (
        kernels.with_columns(idle=idle.clip(lower_bound=0).fill_null(0))
        .group_by("chain", "operator", maintain_order=True)
        .agg(
            pl.col("device", "name", "around", "outermost", "elements").first(),
            pl.len().cast(pl.Int64).alias("kernels"),
            pl.col("dur_ns").sum().alias("total_ns"),
            pl.col("idle").sum().alias("gaps_ns"),
            *(_sum_or_null(name) for name in ("read_bytes", "written_bytes")),
        )
    )


def _kept() -> pl.Expr:
    """The minimum number of lists that an Adam-like optimizer step reads and writes; 0 for other chains.

    It updates the first moments by lerp, the second moments by addcmul and the weights by addcdiv, each of which it
    reads and writes, and reads the gradients.
    """
    updated = [(pl.col("name") == name).any().cast(pl.Int64) for name in _UPDATES]
    step = pl.col("name").str.contains(_FOREACH).all() & ((pl.col("name") == _UPDATES[-1]).sum() == 1)
    return pl.when(step).then(_BOTH_WAYS * pl.sum_horizontal(updated) + 1).otherwise(0)


def _sum_or_null(name: str) -> pl.Expr:
    return pl.when(pl.col(name).is_not_null().all()).then(added(pl.col(name))).alias(name)
