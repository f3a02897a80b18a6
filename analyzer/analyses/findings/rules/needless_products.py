"""Products of matrices of which a program needs less, or that it does sooner in another order.

Sparse matrices that each product converts; products with one-hot and diagonal matrices, of rows that were gathered
before, of three matrices, of narrow ones, of such as are copied for each sample; sums over neighbours before a layer.
"""

import math
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import FAMILY, OPERATION, REACHED, RESULT_ELEMENTS, Work
from kanalyze.analyses.findings.on_host import SPAN, elements, side, sides
from kanalyze.analyses.findings.rules import Finding, Findings, Rule
from kanalyze.analyses.host._call_kinds import CUPY
from kanalyze.analyses.idle.code import place_at, placed_with_text
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import source_lines
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD, outermost
from kanalyze.analyses.work.work import operations_with_roofs
from kanalyze.columns import nearest, told_of
from kanalyze.report import Report

_PRODUCTS: Final = ("aten::linear", "aten::matmul", "aten::mm", "aten::bmm", "aten::einsum")


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
    # to read and to write an element of float32
    left = max(times * 8 * values / rate * 1e9, on_gpu.LEAST_NS)
    saved = (pl.col("exclusive_ns") - left).clip(lower_bound=0).cast(pl.Int64)
    return Mending(products.rows.select("row", saved_ns=saved))


# Sparse matrices of CuPy in COO: each product puts the entries in order, sums those of one place, and makes CSR of it.

_SORTS: Final = "[Ss]ort"
_ENTERS: Final = rf"^cupy_(?:copy__|take)|for_each|{_SORTS}"  # what a conversion runs before it looks for such entries
_SEVERAL: Final = 20  # launches between looking for such entries and making CSR
#: What makes a matrix or changes it, in a line of the program.
_MAKES: Final = (
    r"sparse\.|_(?:matrix|array)\(|\.to(?:coo|csr|csc)\b|asformat|sum_duplicates|\.(?:data|row|col)\b|setdiag"
)
#: The first factor of a product in such a line, and what is assigned there.
_MULTIPLIES: Final = r"([A-Za-z_][\w.]*?)(?:\.T)?\s*(?:@|\.dot\()"
_ASSIGNS: Final = r"^\s*([\w.]+(?:\s*,\s*[\w.]+)*)\s*[-+*/@]?=[^=]"


@Rule
def converted_products(report: Report) -> Findings:
    """One finding per device on conversions from COO to CSR in passes none of whose lines makes a matrix."""
    own = intervals.overlapping(source_lines(report).with_columns(**intervals.OF_EVENTS), report.scope.sides)
    texts = own.get_column("text").cast(pl.String).unique()
    multiplied = set(texts.str.extract_all(_MULTIPLIES).explode().str.extract(_MULTIPLIES).drop_nulls())
    assigned = set(texts.str.extract(_ASSIGNS).str.split(",").explode().str.strip_chars().drop_nulls())
    made = texts.str.contains(_MAKES).any() or not assigned.isdisjoint(multiplied)
    if say.per_iteration(report).iterations and multiplied and not made:
        inside = on_host.own_within(report, _conversions(report))
        yield from on_host.on_time(report, "repeated-coalescing: CuPy", inside)


def _conversions(report: Report) -> pl.DataFrame:
    """The host time from the first launch of each conversion to its last: SPAN."""
    line = on_host.launched(report)
    kinds = {"sorts": _SORTS, "enters": _ENTERS, "seeks": "coo_sum_duplicates_diff", "converts": "CooToCsr"}
    line = line.with_columns(on_host.kernels_named(line, pattern).alias(kind) for kind, pattern in kinds.items())
    line = line.with_columns(part=pl.col("converts").cum_sum().shift(1, fill_value=0).over(THREAD))
    part, place, since = [*THREAD, "part"], pl.int_range(pl.len()), pl.col("since")
    line = line.with_columns(place=place.over(part), sought=place.filter("seeks").last().over(part))
    other = ~pl.col("enters") & (pl.col("kind") != "memset") & (pl.col("place") < pl.col("sought"))
    line = line.with_columns(since=pl.col("place").filter(other).last().over(part).fill_null(-1) + 1)
    sorts = pl.col("place").filter("sorts", pl.col("place") > since).first().over(part)
    # after at most six copies: of the entries and the keys to sort by, with what numbers them
    line = line.filter(pl.col("place") >= pl.max_horizontal(since, sorts - 6))
    each = line.group_by(part, maintain_order=True).agg(
        pl.col("converts").last(),
        start=pl.col("call_start").first(),
        end=pl.col("call_end").last(),
        after=pl.col("place").last() - pl.col("sought").last(),
    )
    return each.filter("converts", pl.col("after") <= _SEVERAL).select(SPAN)


# Matrices of zeros and ones, which only take rows of the other matrix.

_LARGE_NS: Final = 100_000  # fills and casts of too many elements for indices of 32 bits are kernels so long, in turn
_SCATTERS: Final = ("aten::scatter", "aten::scatter_")


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
        # so many times as long as reading and writing values takes summing them by an index
        mending=on_gpu.without(makers).with_all_of(_spared(products, first, 8)),
    )


def _taking_scattered(report: Report) -> pl.DataFrame | None:
    """Products that take, by their shapes, what was scattered right before, cast or not; None without shapes."""
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
    if on_host.working_forward(report).filter(name.is_in(_DIAGONALS)).is_empty():
        return
    # the sides of square matrices among the inputs, in lists of these, too
    last = pl.col("input_shapes").cast(pl.String).str.extract_all(r"\d+, \d+\]")
    height, width = (pl.element().str.extract_all(r"\d+").list.get(at).cast(pl.Float64) for at in range(2))
    squares = last.list.eval(pl.when(height == width).then(width))
    every = on_host.working_forward(report).with_columns(length=length, squares=squares)
    vector = (name == "aten::diag_embed") | (sides(pl.col("input_shapes")).list.len() == 1)
    follows = name.is_in(_PRODUCTS) & pl.col("squares").list.contains(pl.col("length").shift(1).over(THREAD))
    made = name.is_in(_DIAGONALS) & vector & (length >= _LEAST) & follows.shift(-1).over(THREAD)
    every = every.with_columns(made=made.fill_null(value=False))
    every = every.with_columns(multiplied=pl.col("made").shift(1, fill_value=False).over(THREAD))
    # what takes another matrix of its sides may take it
    others = every.filter(~pl.col("made") & ~pl.col("multiplied")).get_column("squares").explode().drop_nulls()
    chosen = every.filter(pl.col("made") | pl.col("multiplied"))
    if not chosen.height or chosen.filter("made", pl.col("length").is_in(others.implode())).height:
        return
    forward = {work.device.device: work.rows for work in on_host.works_within(report, chosen.filter("multiplied"))}
    for work in on_host.works_within(report, outermost(on_host.with_gradients(report, chosen))):
        products = on_gpu.decoded_as(work.rows, FAMILY == "gemm")
        own = forward.get(work.device.device, work.rows.clear())
        change = _spared(work._replace(rows=work.rows.filter(products)), own, 1 / REACHED["memory"])
        yield work.finding(
            "product-order: diagonal",
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


@Rule
def gathered_layers(report: Report) -> Findings:
    """One finding per device on layers right after a gather of far more rows than there are to gather from."""
    layers = _of_gathered(report)
    if layers.is_empty():
        return
    # of a layer that makes rows narrower the gradients of these are summed, in place of the wide ones
    gathers = layers.filter(pl.col("last") < pl.col("wide")).select(*THREAD, start="begun", end="done").unique()
    sums, own = on_host.gradients(report, gathers), on_host.with_gradients(report, layers)
    summed = on_host.within(report, sums).mending.gone
    for work in on_host.works_within(report, outermost(pl.concat([own, sums]))):
        fewer, narrower = pl.col("there") / pl.col("rows"), pl.col("last") / pl.col("wide")
        most, width = layers.select(fewer.max(), narrower.max()).row(0)
        there, rows = layers.filter(fewer == most).select("there", "rows").row(0)
        left = pl.when(pl.col("row").is_in(summed.implode())).then(width).otherwise(most)
        saved = on_gpu.part("dur_ns", 1 - left)
        yield work.finding("gathers: layers", saved=saved, there=there, rows=rows, times=rows / there)


def _of_gathered(report: Report) -> pl.DataFrame:
    """Operators of layers on rows gathered right before: with rows, there (how many are before the gather).

    And begun and done (of the gather), wide and last (columns of what is gathered, and of what the last layer makes).
    """
    name, shape = pl.col("name"), sides(pl.col("input_shapes"))
    index = pl.when(name == "aten::index_select").then(elements(2)).otherwise(elements(1))
    plain = name.is_in(_GATHERS) & (shape.list.len() == len(("rows", "width"))) & (shape.list.first() > 0)
    far = (plain & (index >= 4 * shape.list.first())).fill_null(value=False)
    every = on_host.working_forward(report)
    if every.filter(name.is_in(_GATHERS)).filter(far).is_empty():
        return every.clear()
    every = every.with_columns(far=far, there=shape.list.first(), index=index, width=shape.list.last())
    after = [*THREAD, "after"]
    every = every.with_columns(after=pl.col("far").cum_sum().over(THREAD), rows=elements() / pl.col("width"))
    gathers = every.filter("far").select(*after, "index", "there", wide="width", begun="start", done="end")
    line = every.filter(~pl.col("far")).drop("index", "there").join(gathers, on=after, maintain_order="left")
    # what treats each row by itself
    normalizes = (name == "aten::layer_norm") & (sides(pl.col("input_shapes"), 2).list.len() == 1)
    multiplies = name.is_in(_LAYERS) & (sides(pl.col("input_shapes"), 1).list.len() == len(("inputs", "outputs")))
    same = (name.is_in(_BY_ROW) | normalizes | multiplies) & (pl.col("rows") == pl.col("index"))
    line = line.with_columns(inside=same.fill_null(value=False).cast(pl.Int8).cum_min().over(after) > 0)
    made = pl.when(name == "aten::linear").then(side(1, 0)).otherwise(side(1, -1))
    last = pl.when(pl.col("inside") & name.is_in(_LAYERS)).then(made).drop_nulls().last().over(after)
    right = (pl.col("width").first().over(after) == pl.col("wide")) & (last <= pl.col("wide"))
    own = line.with_columns(last=last, size=pl.col("index") * pl.col("wide")).filter(right & pl.col("inside"))
    # what takes tensors of the size of gathered rows, in whatever shape, may take these: how many inputs at most
    others = every.join(own, on="row", how="anti")
    counts = on_host.each_input(others).group_by("row", *THREAD, "size").agg(taken=pl.len())
    taken = counts.group_by(*THREAD, "size").agg(pl.col("taken").max())
    own = own.join(taken, on=[*THREAD, "size"], how="left")
    return own.filter(pl.col("taken").fill_null(0) <= (pl.col("last") == pl.col("wide")).cast(pl.UInt32))


# Products of three matrices in the order that costs more: a large matrix between two long and narrow ones.

#: Operators that give each row or column of a matrix another factor or order, or only look at it.
_LINEAR: Final = (
    r"^aten::(?:einsum|linear|matmul|sum|copy_|clone|contiguous|to|_to_copy|t|transpose|permute|view|_unsafe_view|reshape"
    r"|expand|as_strided|unsqueeze|squeeze|detach|alias|empty\w*|slice|select|resolve_conj|_reshape_alias)$"
)
_SCALES: Final = r"^aten::(?:mul|div)_?$"  # may give each row or column of a matrix another factor, or all one
_CHEAPER: Final = 4  # so many times the arithmetic of the other order
_LEAST_BETWEEN: Final = 256  # the least side of the matrix in the middle


@Rule
def product_order(report: Report) -> Findings:
    """At most one finding per device on pairs of products whose other order takes a quarter of the arithmetic."""
    pairs = _pairs(on_host.forward(report))
    m, n, times = pairs.select("m", "n", "times").sort("times").head(1).row(0) if pairs.height else (0, 0, 1)
    for work in on_host.works_within(report, outermost(on_host.with_gradients(report, pairs))):
        inner = on_gpu.with_operators(report, work.rows).get_column("inner")
        others = work.rows.filter(~inner.str.starts_with("aten::").fill_null(value=False))
        if total(others, "exclusive_ns") <= 0.05 * work.ns:  # a kernel that no operator tells of may do anything
            yield work.finding("product-order", left=1 / times, at_most=True, m=m, n=n, times=times)


def _pairs(every: pl.DataFrame) -> pl.DataFrame:
    """Products with that after them: :data:`SPAN`, m and n (sides of the matrix between), times."""
    shapes, name, added = pl.col("input_shapes"), pl.col("name"), pl.col("name") == "aten::addmm"
    left, right = (pl.when(added).then(sides(shapes, at + 1)).otherwise(sides(shapes, at)) for at in (0, 1))
    m, k = (pl.col("left").list.get(at, null_on_oob=True) for at in (-2, -1))
    n = pl.when(name == "aten::mv").then(1.0).otherwise(pl.col("right").list.get(-1, null_on_oob=True))
    batch = pl.when(name == "aten::bmm").then(pl.col("left").list.first()).otherwise(1.0)
    every = every.with_columns(product=name.is_in(("aten::mm", "aten::bmm", "aten::addmm", "aten::mv")))
    products = every.filter("product").with_columns(left=left, right=right).with_columns(m=m, k=k, n=n, batch=batch)
    # what a matrix is added to has no other order
    plain = ~added | (elements() < pl.col("m") * pl.col("n"))
    products = _unbroken(every, products).with_columns(linear=pl.col("linear") & plain)
    after = {f"next_{one}": pl.col(one).shift(-1).over(THREAD) for one in ("m", "k", "n", "batch", "end")}
    products = products.with_columns(**after)
    between = (pl.min_horizontal("m", "n"), pl.max_horizontal("m", "n"))
    by_left, by_right = (
        (pl.min_horizontal(*of) == between[0]) & (pl.max_horizontal(*of) == between[1])
        for of in (("next_m", "next_k"), ("next_k", "next_n"))
    )
    pairs = products.with_columns(other=pl.when(by_left).then("next_n").when(by_right).then("next_m"))
    pairs = pairs.drop_nulls("other").filter(pl.col("batch") == pl.col("next_batch"), between[0] >= _LEAST_BETWEEN)
    now = pl.col("m") * pl.col("n") * (pl.col("k") + pl.col("other"))
    then = (pl.col("m") + pl.col("n")) * pl.col("k") * pl.col("other")
    pairs = pairs.with_columns(times=now / then).filter(pl.col("times") >= _CHEAPER, "linear")
    # whose matrices no further product of the thread takes: as many take such ones as there are pairs
    sizes = [
        {"short": pl.min_horizontal(*of), "long": pl.max_horizontal(*of)} for of in (("m", "k"), ("k", "n"), ("m", "n"))
    ]
    keys = [*THREAD, *sizes[0]]
    taken = pl.concat(products.select("row", *THREAD, **of) for of in sizes[:2]).unique()
    counts = taken.group_by(keys).agg(taking=pl.len())
    pairs = pairs.with_columns(**sizes[2]).join(counts, on=keys, how="left", maintain_order="left")
    pairs = pairs.filter(pl.len().over(keys) == pl.col("taking"))
    return pairs.select(*THREAD, "start", "m", "n", "times", end="next_end")


def _unbroken(every: pl.DataFrame, products: pl.DataFrame) -> pl.DataFrame:
    """Adds `linear` to products: whether all that is done before the next one may as well be done after it.

    What has inputs smaller than one matrix of the result does nothing to it; of what has no shapes that is not known.
    """
    line = every.with_columns(which=pl.col("product").cum_sum().over(THREAD))
    line = line.filter(~pl.col("product") & ~pl.col("name").str.contains(_LINEAR))
    products = products.with_columns(which=pl.int_range(1, pl.len() + 1).over(THREAD))
    line = line.join(products.select(*THREAD, "which", made=pl.col("m") * pl.col("n")), on=[*THREAD, "which"])
    shapes = line.get_column("input_shapes").cast(pl.String)
    line = line.with_columns(largest=told_of(shapes, _largest, pl.Float64), factor=told_of(shapes, _factor))
    may = pl.col("name").str.contains(_SCALES) & (pl.col("factor") == "yes")
    breaks = ~may.fill_null(value=False) & (pl.col("largest").is_null() | (pl.col("largest") >= pl.col("made")))
    broken = line.filter(breaks.fill_null(value=True)).select(*THREAD, "which").unique()
    products = products.join(broken.with_columns(linear=False), on=[*THREAD, "which"], how="left")
    return products.with_columns(pl.col("linear").fill_null(value=True))


def _largest(shapes: str) -> str | None:
    """How many elements the largest input has; None where no shape was recorded."""
    return None if shapes == "[]" else str(max(map(math.prod, on_host.inputs(shapes)), default=1))


def _factor(shapes: str) -> str:
    """``yes`` where the smaller of two inputs has one value for all of a row, or of a column, or of all."""
    factor = min(on_host.inputs(shapes)[:2], key=math.prod, default=[2, 2])
    return "yes" if len(factor) <= 1 or 1 in factor[-2:] else "no"


# Matrices that are changed by a product of narrow ones before each layer that takes them, rather than what it gives.

_LEAST_SIDE: Final = 256
_LEFT_AT_MOST: Final = 0.5  # what is left at most: for many rows it costs no less
_NARROW: Final = 8  # so many times as long as between the narrow ones is each side of their product


@Rule
def low_rank_updates(report: Report) -> Findings:
    """One finding per device on products of narrow matrices that are added to one of their sides for a layer."""
    # products with what scales them and adds them to a matrix that the next operator takes
    parts = _scaled(on_host.working_forward(report))
    name, first, second = pl.col("name"), elements(), elements(1)
    in_turn = name.is_in(_LAYERS) & (name.shift(-1) == "aten::add") & name.shift(-2).is_in(_LAYERS)
    at = parts.select(in_turn.over(THREAD).arg_true()).to_series()
    products = parts[at].with_columns(m=side(0, -2), k=side(0, -1), n=side(1, -1)).drop("end")
    sums = parts[at + 1].select(added=first, other=second, added_end="end")
    layers = parts[at + 2].select(given=first, taken=second, rows=first / side(0, -1))
    size, m, n, rows = pl.col("m") * pl.col("n"), pl.col("m"), pl.col("n"), pl.col("rows")
    narrow = (pl.min_horizontal("m", "n") >= _NARROW * pl.col("k")) & (pl.min_horizontal("m", "n") >= _LEAST_SIDE)
    adds = (pl.col("added") == size) & (pl.col("other") == size)
    # what a layer is given may be the sum, too
    takes = (pl.col("taken") == size) & (pl.col("given") != size)
    updates = pl.concat([products, sums, layers], how="horizontal").filter(narrow & adds & takes)
    # what is read and written: two products of rows, and a sum, in place of the matrix: made, scaled, and added
    left = rows * (n + 4 * m) / (6 * size)
    updates = updates.select(*THREAD, "start", "m", "n", "k", end="added_end", left=left)
    updates = updates.filter(pl.col("left") <= _LEFT_AT_MOST)
    for work in on_host.works_within(report, updates):
        m, n, k, left = updates.select("m", "n", "k", "left").sort("left").row(-1)
        yield work.finding("product-order: low-rank", left=left, at_most=True, m=m, n=n, k=k)


def _scaled(every: pl.DataFrame) -> pl.DataFrame:
    """Operators, each with those after it that multiply by a number: :data:`SPAN`, name, input_shapes."""
    scales = every.filter(pl.col("name").str.contains(_SCALES)).filter(elements(1).fill_null(1) == 1).get_column("row")
    line = every.with_columns(part=(~pl.col("row").is_in(scales.implode())).cum_sum().over(THREAD))
    return line.group_by(*THREAD, "part", maintain_order=True).agg(
        pl.col("name", "input_shapes", "start").first(), pl.col("end").last()
    )


# Low-rank adapters beside the weights of layers, which are not merged into these though nothing trains them.

_RANK: Final = 64  # the most columns of the matrix in between, and so many times as wide as that is the layer
_WIDER: Final = 4
_LEAST_LAYERS: Final = 2  # of a pass


@Rule
def unmerged_adapters(report: Report) -> Findings:
    """One finding per device on products of narrow weights that are added to what a layer gives, if nothing trains."""
    if on_host.runs_backward(report):
        return
    line = _adapters(_scaled(on_host.working_forward(report).filter(pl.col("name") != "aten::to")))
    if line.is_empty():
        return
    inside = on_host.within(report, intervals.union_by(line.select(SPAN), THREAD))
    layers = inside.host.height * line.filter("adds").height // line.height
    if layers >= _LEAST_LAYERS * (say.per_iteration(report).iterations or 1):
        yield from on_host.on_time(report, "unmerged-adapters", inside, times=layers, rank=line["rank"].max())


def _adapters(line: pl.DataFrame) -> pl.DataFrame:
    """When narrow products are computed and added, of operators as :func:`_scaled`: :data:`SPAN`, rank, adds."""
    name, shapes, biased = pl.col("name"), pl.col("input_shapes"), pl.col("name") == "aten::addmm"
    weight = pl.when(biased).then(sides(shapes, 2)).otherwise(sides(shapes, 1))
    weight = pl.when(name == "aten::linear").then(weight.list.reverse()).otherwise(weight)
    multiplies = name.is_in([*_LAYERS, "aten::addmm"]) & (weight.list.len() == len(("inputs", "outputs")))
    k, n = (pl.when(multiplies).then(weight.list.get(at, null_on_oob=True)) for at in range(2))
    line = line.with_columns(
        k=k,
        n=n,
        rows=pl.when(biased).then(elements(1)).otherwise(elements()) / k,
        made=pl.when(name.str.contains("^aten::add_?$") & (elements() == elements(1))).then(elements()),
    )
    facts = pl.struct("start", "end", "k", "n", "rows", "made")
    line = line.with_columns(facts.shift(-by).over(THREAD).alias(f"{by}") for by in range(4))
    spans = []
    # of four operators in turn the layer is the first or the third one; the last one adds
    for order in ((0, 1, 2, 3), (2, 0, 1, 3)):
        layer, down, up, sums = (pl.col(f"{at}").struct.field for at in order)
        rank, wide = down("n"), layer("n")
        narrow = rank <= pl.min_horizontal(pl.lit(_RANK), wide / _WIDER, layer("k") / _WIDER)
        alike = ((layer("k"), down("k")), (layer("rows"), down("rows")), (down("rows"), up("rows")))
        fits = ((up("k"), rank), (up("n"), wide), (sums("made"), layer("rows") * wide))
        own = line.filter(narrow, *(one == other for one, other in (*alike, *fits)))
        spans.append(own.select(*THREAD, start=layer("end"), end=sums("end"), rank=rank, adds=True))
        if order[0]:
            spans.append(own.select(*THREAD, start=down("start"), end=up("end"), rank=rank, adds=False))
    return pl.concat(spans)


# Products of batches in which a matrix is copied for each sample.


@Rule
def expanded_products(report: Report) -> Findings:
    """One finding per device on products that copy one of the inputs for each sample of the other."""
    products = on_host.working_forward(report).filter(name="aten::matmul")
    inner = on_host.operators(report).filter(pl.col("name").is_in(("aten::copy_", "aten::bmm"))).sort("row")
    inner = nearest(inner, products.select(*THREAD, "stop", outer="row").sort("outer"), ("row", "outer"), THREAD)
    copies, made = pl.col("name") == "aten::copy_", elements() / side(0, -1) * side(1, -1)
    inside = inner.filter(pl.col("row") < pl.col("stop_right")).group_by("outer")
    sizes = inside.agg(copied=elements().filter(copies).max(), made=made.filter(~copies).max())
    given = elements() + elements(1)
    # so many times as many elements as the inputs have
    expanded = products.join(sizes, left_on="row", right_on="outer").filter(pl.col("copied") >= 8 * given)
    for work in on_host.works_within(report, outermost(on_host.with_gradients(report, expanded))):
        # what is copied is written and read; what is given, and made, stays
        moved = given + pl.col("made")
        left, times = expanded.select((moved / (moved + 2 * pl.col("copied"))).max(), (pl.col("copied") / given).min())
        yield work.finding("expanded-products", left=left.item(), at_most=True, times=times.item())


# Logits of each position of a prompt, of which the last ones are read.


@Rule
def unread_rows(report: Report) -> Findings:
    """One finding per device on logits of whose rows few are read by what follows, where nothing trains."""
    if on_host.runs_backward(report) or not on_host.names_most(report):
        return
    every = on_host.working_forward(report).sort(*THREAD, "row")
    wide, rows = side(1, 0), elements() / side(0, -1)
    follows = pl.col("row").shift(-1).over(THREAD).alias("follows")
    layers = every.with_columns(follows).filter(wide >= 1 << 12, name="aten::linear")  # words
    layers = layers.select("row", *THREAD, "start", "end", "follows", rows=rows, wide=wide)
    # what takes rows as wide, up to the next such layer
    given = on_host.each_input(every).with_columns(wide=pl.col("sides").list.last()).sort("row")
    keys = [*THREAD, "wide"]
    reads = nearest(given, layers.select(*keys, "rows", layer="row").sort("layer"), ("row", "layer"), keys)
    part = pl.col("size") / pl.col("wide") / pl.col("rows")
    by_layer = reads.filter(pl.col("row") > pl.col("layer")).group_by(row="layer")
    sums = by_layer.agg(read=part.sum(), follows=pl.col("row").min())
    unread = layers.join(sums.filter(pl.col("read") <= 1 / 4), on=["row", "follows"])
    for work in on_host.works_within(report, unread):
        read = max(unread.get_column("read").to_list())
        yield work.finding("large-logits: unread", left=max(read, 0.05), read=read)  # weights are read as before


# Distances of all pairs, one pair at a time.


@on_gpu.choosing(pl.col("name").str.contains("cdist_kernel_cuda_impl<.*::two"), 0.1)
def pairwise_distances(distances: Work) -> Finding:
    """One finding per device on Euclidean distances (torch.cdist) by a kernel with a block for each pair."""
    # by a product and what is around it, which is several launches, on an H200: of 4,096 sets of 16 and of 8,192 points
    left = (pl.col("dur_ns") // 10 + 100_000).clip(upper_bound=pl.col("dur_ns"))
    return distances.finding("pairwise-distances", saved=pl.col("dur_ns") - left)


# Sums over neighbours, by a sparse matrix, of what the next layer makes narrower.


@Rule
def sparse_order(report: Report) -> Findings:
    """One finding per device on products with a sparse matrix right before a layer that makes the result narrow."""
    every = on_host.operators(report)
    asks = every.filter(name="aten::_nnz").get_column("parent").implode()  # which products ask sparse matrices
    sparse = every.filter(pl.col("row").is_in(asks) & (pl.col("name") == "aten::addmm"))
    if sparse.is_empty():
        return
    sparse = sparse.select(*THREAD, at="start", size=elements(), wide=side(0, -1)).sort("at")
    line = nearest(on_host.working_forward(report), sparse, ("start", "at"), THREAD, "after")
    line = line.with_columns(sums=(pl.col("at") < pl.col("end")).fill_null(value=False))
    sizes = [pl.when("sums").then(name).forward_fill().over(THREAD) for name in ("size", "wide")]
    line = line.with_columns(*sizes, group=pl.col("sums").cum_sum().over(THREAD))
    made = pl.when(pl.col("name") == "aten::linear").then(side(1, 0)).otherwise(side(1, -1))
    narrows = pl.col("name").is_in(_LAYERS) & (elements() == pl.col("size")) & (4 * made <= pl.col("wide"))
    # what takes tensors of the size of the sums, up to the next ones, may take these
    takes = pl.any_horizontal((elements(at) == pl.col("size")) & (side(at, -1) == pl.col("wide")) for at in range(2))
    group = [*THREAD, "group"]
    line = line.with_columns(
        narrow=pl.when(narrows).then(made).shift(-1).over(group),
        readers=(takes & ~pl.col("sums")).fill_null(value=False).sum().over(group),
        layer=pl.struct("start", "end").shift(-1).over(group),
    )
    pairs = line.filter("sums", readers=1).drop_nulls("narrow")
    for work in on_host.works_within(report, pairs):
        wide, narrow = pairs.select("wide", "narrow").sort(pl.col("wide") / pl.col("narrow")).row(0)
        yield work.finding(
            "product-order: sparse",
            left=2 * narrow / wide,  # gradients are summed over neighbours as well then
            at_most=True,
            where=on_host.site_of(report, pairs.select(*THREAD, "layer").unnest("layer")),
            wide=wide,
            narrow=narrow,
        )


# Inverses of CuPy that are multiplied at once, by the text of the program's lines.

_INVERSE: Final = r"\b(?:cp|cupy)\.linalg\.inv\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)(?:\.T\b)?"
_SOLVES: Final = rf"^[^#]*(?:{_INVERSE}\s*(?:@|\.dot\()|@\s*{_INVERSE}|\b(?:dot|matmul)\({_INVERSE},)"
_FEW_COLUMNS: Final = 0.1  # a product with a few columns takes so much of the time of an inverse's columns, or less


@Rule.of(CUPY)
def inverses_of_cupy(report: Report) -> Findings:
    """One finding per device on inverses that their lines multiply by few columns."""
    text = pl.col("text").cast(pl.String).str.replace_all(r"'[^']*'|\"[^\"]*\"", "")
    solves = text.str.contains(_SOLVES) & (text.str.count_matches(r"\binv\(") == 1)
    if not source_lines(report).select(solves.any()).item():
        return
    work = exclusive_operations(report, "call_start", *THREAD).filter(kind="kernel").drop_nulls("call_start")
    work = work.sort(*THREAD, "call_start")
    work = work.with_columns(place=place_at(report, work.select(*THREAD, at="call_start")))
    work = work.with_columns(run=say.changes([*THREAD, "place"]).cum_sum())
    work = placed_with_text(report, work).filter(solves)
    # of the kernels of a line one after the other: those after the last of the factors, and after the last solve
    started, name = pl.col("call_start"), pl.col("name").cast(pl.String)
    after, last = (started > started.filter(name.str.contains(of)).max().over("run") for of in ("getrf", "trsm|getrs"))
    for one in on_gpu.works(report, work.with_columns(after=after, last=last).drop_nulls(["after", "last"])):
        solved, multiplied = (total(one.rows.filter(which), "exclusive_ns") for which in ("after", "last"))
        if multiplied <= _FEW_COLUMNS * solved:
            # a solve of few columns launches as many kernels
            saved = pl.when("after").then((pl.col("dur_ns") - on_gpu.LEAST_NS).clip(lower_bound=0)).otherwise(0)
            yield one.finding("decompositions: CuPy", saved=saved)
