"""Elementwise kernels that run one after the other, and could be one: the chains behind `fusion`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._launch_shapes import SHAPE
from kanalyze.analyses.device._operations import recorded
from kanalyze.analyses.fusion._tensor_sizes import sizes
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.lookup import beside, gathered
from kanalyze.decoder.decode import decode
from kanalyze.frames import first_rows

if TYPE_CHECKING:
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Operations of elementwise kernels in families that have others, too.
_OPERATIONS: Final = {"copy": ("copy",), "random": ("dropout", "masked_scale")}

#: So often one operator in a row is a loop over it.
_LOOP: Final = 5

#: Operators that only copy: two in a row are of two tensors, since nothing needs the copy of a copy.
_COPIES: Final = ("aten::copy_", "aten::_foreach_copy_")

#: Operators whose result depends on nothing that was computed before.
_READS_NOTHING: Final = ("aten::fill_", "aten::zero_", "aten::_foreach_zero_", "aten::arange", "aten::linspace")

#: Bytes of an element by its name in a kernel's name.
_BYTES: Final = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "bf16": 2, "f16": 2, "i16": 2, "i8": 1, "u8": 1, "bool": 1}

#: What an operator reads and writes, as far as shapes were recorded.
_SIZES: Final = ("elements", "read_bytes", "written_bytes")


@once_per_report
def chains(report: Report) -> pl.DataFrame:
    """The kernels of every chain: of two operators or more, that follow each other on one stream, nothing between them.

    What one operator launched is one piece of work in several kernels, and copies alone are no chain. All are
    elementwise, were launched from one thread, and have results of the same number of elements (where shapes were not
    recorded: the same grid and block). What reads nothing begins a chain. A chain that is the same operators
    again and again is a loop, and each turn a chain; the same operator again and again is none, unless one operator is
    around all of it: what follows is as likely to work on something else. The same one five times in a row is a loop
    in any case, which no compiler fuses.

    Columns: chain (a number), device, stream, row (of `operations`), start, end, dur_ns, exclusive_ns, operator (its
    row of the host tree), outermost (that of the operator around it all), name (the operator's), elements,
    read_bytes, written_bytes (this kernel's part of what its operator reads and writes; null where shapes are not
    known).
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
    """Operations in the order of their streams, with the number of the chain that each would be in."""
    same = [pl.col(name).eq_missing(pl.col(name).shift(1)) for name in ("device", "stream", "process_id", "thread_id")]
    alike = pl.when(pl.col("elements").is_not_null()).then(pl.col("elements").eq_missing(pl.col("elements").shift(1)))
    # where shapes were not recorded, the same grid and block show that kernels work on as many elements: those of the
    # first kernel of each operator, which may need several
    again = pl.col("operator").eq_missing(pl.col("operator").shift(1))
    leads = [pl.when(~again).then(pl.col(name)).forward_fill() for name in SHAPE]
    one = pl.all_horizontal(lead.eq_missing(lead.shift(1)) for lead in leads)
    grid = (again | one) & pl.col("elements").eq_missing(pl.col("elements").shift(1))
    reads = ~pl.col("name").cast(pl.String).is_in(_READS_NOTHING)
    follows = pl.all_horizontal(*same, reads, pl.col("fusible"), pl.col("fusible").shift(1, fill_value=False))
    follows = follows & alike.otherwise(grid)
    return work.with_columns(chain=(~follows.fill_null(value=False)).cum_sum())


def _turns(kernels: pl.DataFrame) -> pl.DataFrame:
    """The kernels of chains, those of loops with a chain for each turn."""
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
    """The number of operators after which a sequence begins again; its length where it does not."""
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
    """Every device operation in scope in the order of its stream, with what :func:`chains` looks at."""
    tree, work = host_tree(report), launched_work(report)
    known = beside(work, recorded(report, "stream"), "stream")
    made = {"thread_id": "thread_id", "op_name": "name", "op_id": "last_id"}
    operator = known.get_column("operator")
    known = known.with_columns(
        gathered(tree.rows.get_column(column), operator).alias(name) for name, column in made.items()
    )
    known = known.with_columns(_fusible(known).get_columns())
    known = beside(known, report.kernel_config, *SHAPE)
    known = known.with_columns(_sizes(report, known).get_columns())
    told = ("dur_ns", "exclusive_ns", "operator", "process_id", "thread_id", "fusible", *_SIZES, *SHAPE)
    order = ("device", "stream", "start", "row")
    return known.select(*order, "end", *told, name="op_name").sort(order)


def _fusible(work: pl.DataFrame) -> pl.DataFrame:
    """Which operations are elementwise kernels of an operator, and the size of their elements by their names."""
    names = work.filter(pl.col("kind") == "kernel").get_column("name").unique().drop_nulls()
    said = [decode(name) for name in names.cast(pl.String)]
    elementwise = pl.Series([_is_elementwise(one) for one in said], dtype=pl.Boolean)
    size = pl.Series([_BYTES.get(one.dtype or "") for one in said], dtype=pl.Int64)
    at = first_rows(names.to_physical(), work.get_column("name").to_physical())
    chosen = (pl.col("kind") == "kernel") & pl.col("operator").is_not_null() & gathered(elementwise, at)
    return work.select(chosen.fill_null(value=False).alias("fusible"), gathered(size, at).alias("element_bytes"))


def _is_elementwise(said: KernelName) -> bool:
    """Whether a kernel computes each element of its result from those at the same place, and one at a time."""
    if said.library != "aten":
        return False
    if said.family == "optimizer":
        return said.functor is not None and "Fused" not in said.functor and said.operation != "norm"
    wanted = _OPERATIONS.get(said.family)
    return said.family in {"elementwise", "fill"} if wanted is None else said.operation in wanted


def _sizes(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Elements and bytes of each operation's operator, the bytes in equal parts for all that it launched."""
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
    """The rows of the outermost operators around those in `row`, or of these themselves."""
    tree = host_tree(report)
    operators, parents = tree.of_kinds("op"), tree.rows.get_column("parent")
    best = row
    while row.is_not_null().any():
        best = best.zip_with(~gathered(operators, row).fill_null(value=False), row)
        row = gathered(parents, row)
    return best
