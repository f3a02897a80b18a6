"""Products of which a program needs less: with one-hot and diagonal matrices, and of rows that were gathered before."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import FAMILY, OPERATION, REACHED, RESULT_ELEMENTS, Work
from kanalyze.analyses.findings.on_host import SPAN, elements, side, sides
from kanalyze.analyses.findings.rules import Finding, Findings, Rule
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.analyses.work.work import operations_with_roofs
from kanalyze.report import Report

_PRODUCTS: Final = ("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::einsum")
_ROW_BYTES: Final = 8  # to read and to write an element of float32
_SHORTEST_NS: Final = 2000  # what no kernel falls below


def _spared(products: Work, own: pl.DataFrame, times: float) -> Mending:
    """What products save by kernels that move the elements of the largest result of some, their `own` ones.

    They take so many `times` as long as reading and writing these at the memory's bandwidth, and no longer than now;
    where shapes or bandwidth are not known, as long as now.
    """
    shapes = operations_with_roofs(products.report).select("row", "sides")
    values = own.select("row").join(shapes, on="row").select(RESULT_ELEMENTS.max()).item()
    device = products.report.devices.filter(device=products.device.device)
    rate = device.get_column("memory_bandwidth_bytes_per_s").item() if device.height else None
    if not values or not rate:
        return Mending()
    left = max(times * _ROW_BYTES * values / rate * 1e9, _SHORTEST_NS)
    saved = (pl.col("exclusive_ns") - left).clip(lower_bound=0).cast(pl.Int64)
    return Mending(products.rows.select("row", saved_ns=saved))


def _forward(report: Report) -> pl.DataFrame:
    """The operators that launch something, by thread and time, but those that autograd runs."""
    return on_host.working(report).filter(pl.col("row").is_in(on_host.forward(report).get_column("row").implode()))


# Matrices of zeros and ones, which only take rows of the other matrix.

_LARGE_NS: Final = 100_000  # fills and casts of too many elements for indices of 32 bits are kernels so long, in turn
_SCATTERS: Final = ("aten::scatter", "aten::scatter_")
_SORTED: Final = 8  # so many times as long as reading and writing values takes summing them by an index


@on_gpu.choosing(OPERATION == "scatter_fill", 0)
def one_hot_products(own: Work) -> Finding | None:
    """One finding per device on zeros into which ones are scattered, cast or not, for a product right after."""
    line = on_gpu.stream_lines(own.report, own.device.device)
    kinds = {"fills": FAMILY == "fill", "casts": FAMILY == "copy", "multiplies": FAMILY == "gemm"}
    marked = on_gpu.with_decoded(line, marks=OPERATION == "scatter_fill", **kinds)
    if (taking := _taking_scattered(own.report)) is not None:
        forward = _rows_within(own, taking).get_column("row").implode()
        marked = marked.with_columns(multiplies=pl.col("multiplies") & pl.col("row").is_in(forward))
    same = pl.all_horizontal((pl.col(key) == pl.col(key).shift(1)).fill_null(value=False) for key in ("line", "name"))
    large = pl.min_horizontal("exclusive_ns", pl.col("exclusive_ns").shift(1)) >= _LARGE_NS
    again = same & (pl.col("marks") | (large & ~pl.col("multiplies")))
    marked = marked.with_columns(part=(~again).cum_sum())
    parts = marked.unique("part", keep="first", maintain_order=True)

    def beside(what: str, by: int) -> pl.Expr:
        return pl.col(what).shift(-by).over("line").fill_null(value=False)

    length = pl.when(beside("multiplies", 1)).then(1).when(beside("casts", 1) & beside("multiplies", 2)).then(2)
    parts = parts.with_columns(hot=pl.when(pl.col("marks") & beside("fills", -1)).then(length).fill_null(0))
    inside = (pl.col("hot").shift(by).over("line") >= least for by, least in ((-1, 1), (0, 1), (1, 1), (2, 2)))
    rows = marked.join(parts.filter(pl.any_horizontal(inside)), on="part", how="semi")
    makers, first = rows.filter(~pl.col("multiplies")), rows.filter("multiplies")
    if first.is_empty():
        return None
    columns = ["row", "name", "start", "end", "exclusive_ns"]
    later = _rows_within(own, on_host.gradients(own.report, taking)) if taking is not None else first.clear()
    products = own._replace(rows=pl.concat([first.select(columns), later.select(columns)]).unique("row"))
    return own._replace(rows=pl.concat([makers.select(columns), products.rows])).finding(
        "gathers: one-hot",
        own._replace(rows=first).longest,
        many=products.rows.height,
        mending=on_gpu.without(makers).with_all_of(_spared(products, first, _SORTED)),
    )


def _taking_scattered(report: Report) -> pl.DataFrame | None:
    """The operators of products that take, by their shapes, what was scattered right before, cast or not.

    None where no product has shapes.
    """
    name, every = pl.col("name"), on_host.working(report)
    products = name.is_in(_PRODUCTS) & (sides(pl.col("input_shapes")).list.len() > 0)
    if every.filter(products).is_empty():
        return None
    cast = (name == "aten::to") & name.shift(1).over(THREAD).is_in([*_SCATTERS, "aten::one_hot"])
    matrix = {"size": elements(), "wide": side(0, -1)}
    every = every.with_columns(pl.when(name.is_in(_SCATTERS) | cast).then(of).alias(key) for key, of in matrix.items())
    size, wide = (pl.col(key).shift(1).over(THREAD) for key in matrix)
    takes = ((elements(at) == size) & ((side(at, -1) == wide) | (side(at, -2) == wide)) for at in range(3))
    return every.filter(products & pl.any_horizontal(*takes))


def _rows_within(own: Work, spans: pl.DataFrame) -> pl.DataFrame:
    """The products on the device of `own` that are launched within spans of operators."""
    works = on_host.works_within(own.report, spans)
    rows = [one.rows for one in works if one.device.device == own.device.device]
    every = pl.concat(rows) if rows else own.rows.clear()
    return every.filter(on_gpu.decoded_as(every, FAMILY == "gemm"))


# Diagonals that are written into matrices of zeros to be multiplied.

_DIAGONALS: Final = ("aten::diag", "aten::diag_embed")
_LEAST: Final = 64  # the least side of a matrix


@Rule
def diagonal_products(report: Report) -> Findings:
    """One finding per device on matrices with a vector as diagonal, made for a product right after."""
    name, length = pl.col("name"), side(0, -1)
    if _forward(report).filter(name.is_in(_DIAGONALS)).is_empty():
        return
    # the sides of square matrices among the inputs, in lists of these, too
    last = pl.col("input_shapes").cast(pl.String).str.extract_all(r"\d+, \d+\]")
    height, width = (pl.element().str.extract_all(r"\d+").list.get(at).cast(pl.Float64) for at in range(2))
    squares = last.list.eval(pl.when(height == width).then(width))
    every = _forward(report).with_columns(length=length, squares=squares)
    vector = (name == "aten::diag_embed") | (sides(pl.col("input_shapes")).list.len() == 1)
    follows = name.is_in(_PRODUCTS) & pl.col("squares").list.contains(pl.col("length").shift(1).over(THREAD))
    made = (name.is_in(_DIAGONALS) & vector & (length >= _LEAST) & follows.shift(-1).over(THREAD)).fill_null(
        value=False
    )
    every = every.with_columns(made=made, multiplied=made.shift(1).over(THREAD).fill_null(value=False))
    # what takes another matrix of its sides may take it
    others = every.filter(~pl.col("made") & ~pl.col("multiplied")).get_column("squares").explode().drop_nulls()
    chosen = every.filter(pl.col("made") | pl.col("multiplied"))
    if not chosen.height or chosen.filter("made", pl.col("length").is_in(others.implode())).height:
        return
    spans = pl.concat([chosen.select(SPAN), on_host.gradients(report, chosen)])
    forward = {work.device.device: work.rows for work in on_host.works_within(report, chosen.filter("multiplied"))}
    for work in on_host.works_within(report, outermost(spans)):
        products = on_gpu.decoded_as(work.rows, FAMILY == "gemm")
        own = forward.get(work.device.device, work.rows.clear())
        change = _spared(work._replace(rows=work.rows.filter(products)), own, 1 / REACHED["memory"])
        yield work.finding(
            "product-order: diagonal",
            work.most,
            height=chosen.filter("made").item(0, "length"),
            mending=on_gpu.without(work.rows.filter(~products)).with_all_of(change),
        )


# Layers of rows that were gathered before, of each row several times.

_GATHERS: Final = ("aten::index_select", "aten::embedding")  # whose index has a shape in the trace
_LAYERS: Final = ("aten::linear", "aten::matmul", "aten::mm")
#: Operators of activations, that treat each element by itself.
_BY_ROW: Final = (
    *("aten::relu", "aten::relu_", "aten::gelu", "aten::silu", "aten::silu_", "aten::leaky_relu", "aten::elu"),
    *("aten::tanh", "aten::sigmoid", "aten::softplus", "aten::mish", "aten::hardswish"),
)
_FEWER: Final = 4  # so many times as many rows are gathered as there are, or more


@Rule
def gathered_layers(report: Report) -> Findings:
    """One finding per device on layers right after a gather of far more rows than there are to gather from."""
    layers = _of_gathered(report)
    if layers.is_empty():
        return
    spans = pl.concat([layers.select(SPAN), on_host.gradients(report, layers)])
    for work in on_host.works_within(report, outermost(spans)):
        most = layers.select((pl.col("there") / pl.col("rows")).max()).item()
        there, rows = layers.filter(pl.col("there") / pl.col("rows") == most).select("there", "rows").row(0)
        yield work.finding("gathers: layers", work.most, left=most, there=there, rows=rows, times=rows / there)


def _of_gathered(report: Report) -> pl.DataFrame:
    """Operators of layers on rows gathered right before: with rows, there (how many are before the gather)."""
    name, shape = pl.col("name"), sides(pl.col("input_shapes"))
    index = pl.when(name == "aten::index_select").then(elements(2)).otherwise(elements(1))
    plain = name.is_in(_GATHERS) & (shape.list.len() == len(("rows", "width"))) & (shape.list.first() > 0)
    far = (plain & (index >= _FEWER * shape.list.first())).fill_null(value=False)
    every = _forward(report)
    if every.filter(name.is_in(_GATHERS)).filter(far).is_empty():
        return every.clear()
    every = every.with_columns(far=far, there=shape.list.first(), index=index, width=shape.list.last())
    after = [*THREAD, "after"]
    every = every.with_columns(after=pl.col("far").cum_sum().over(THREAD), rows=elements() / pl.col("width"))
    gathers = every.filter("far").select(*after, "index", "there", wide="width")
    line = every.filter(~pl.col("far")).drop("index", "there").join(gathers, on=after, maintain_order="left")
    same = _by_row() & (pl.col("rows") == pl.col("index"))
    line = line.with_columns(inside=same.fill_null(value=False).cast(pl.Int8).cum_min().over(after) > 0)
    made = pl.when(name == "aten::linear").then(side(1, 0)).otherwise(side(1, -1))
    last = pl.when(pl.col("inside") & name.is_in(_LAYERS)).then(made).drop_nulls().last().over(after)
    right = (pl.col("width").first().over(after) == pl.col("wide")) & (last <= pl.col("wide"))
    own = line.with_columns(last=last, size=pl.col("index") * pl.col("wide")).filter(right & pl.col("inside"))
    own = own.join(_taken(every.join(own, on="row", how="anti")), on=[*THREAD, "size"], how="left")
    return own.filter(pl.col("taken").fill_null(0) <= (pl.col("last") == pl.col("wide")).cast(pl.UInt32))


def _by_row() -> pl.Expr:
    """Whether operators treat each row by itself."""
    name = pl.col("name")
    normalizes = (name == "aten::layer_norm") & (sides(pl.col("input_shapes"), 2).list.len() == 1)
    multiplies = name.is_in(_LAYERS) & (sides(pl.col("input_shapes"), 1).list.len() == len(("inputs", "outputs")))
    return name.is_in(_BY_ROW) | normalizes | multiplies


def _taken(others: pl.DataFrame) -> pl.DataFrame:
    """Of what size how many inputs at most one of some operators has, by thread: size, taken.

    What takes tensors of the size of gathered rows, in whatever shape, may take these.
    """
    texts = pl.col("input_shapes").cast(pl.String).str.extract_all(r"\[[\d, ]*\]")
    inputs = others.select("row", *THREAD, text=texts).explode("text")
    length = pl.col("text").str.extract_all(r"\d+").cast(pl.List(pl.Float64)).list.eval(pl.element().product())
    counts = inputs.with_columns(size=length.list.first()).group_by("row", *THREAD, "size").agg(taken=pl.len())
    return counts.group_by(*THREAD, "size").agg(pl.col("taken").max())
