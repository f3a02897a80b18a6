"""Work of which a program needs less: decompositions, gradients of parts, types, padding, copies of growing tensors."""

import re
from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, compiled_kernels, exclusive_operations, with_facts
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import FAMILY, LIBRARY, OPERATION, RESULT_ELEMENTS, Work
from kanalyze.analyses.findings.on_host import elements, sides
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.host._call_kinds import JAX, PYTORCH
from kanalyze.analyses.idle.code import line_that_reads, place_at, placed_with_text
from kanalyze.analyses.operators.fusion import broadcast
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.analyses.work.work import memory_ns, memory_roofs, operations_with_roofs
from kanalyze.columns import having, nearest, told_of
from kanalyze.errors import KanalyzeError
from kanalyze.report import Batches, Report

# Decompositions of matrices of which a program needs less: inverses that are multiplied at once, long SVDs.

_INVERTS: Final = r"^aten::(?:linalg_pinv|linalg_inv|linalg_inv_ex|inverse|pinverse)$"
_FACTORS: Final = r"^aten::(?:matmul|mm|mv|bmm|addmm|addmv|einsum|linear|dot)$"
_COPIES: Final = r"^aten::(?:clone|contiguous|conj_physical|resolve_conj)$"  # may stand before the product
_LEAST: Final = 64  # the least side of a matrix: an LU solves small ones in no less time than it inverts them
_MATRIX: Final = (-2, -1)  # the sides of a matrix; others are of a batch
_ELEMENT_BYTES: Final = (4, 8)  # of an element, at the least, and of float64


@Rule
def decompositions(report: Report) -> Findings:
    """At most one finding per device on inverses whose product follows, or of JAX, and one on SVDs of long matrices."""
    height, width = (on_host.side(0, at) for at in _MATRIX)
    shorter, longer = pl.min_horizontal(height, width), pl.max_horizontal(height, width)
    every = on_host.working(report).filter(~pl.col("name").str.contains(_COPIES))
    every = every.with_columns(after=pl.col("name").shift(-1).over(THREAD), shorter=shorter, longer=longer)
    large = pl.col("shorter") >= _LEAST
    square = (pl.col("shorter") == pl.col("longer")) & (pl.col("longer") > 1)
    factors = [
        pl.all_horizontal(on_host.side(which, at).shift(-1).over(THREAD) == pl.col("longer") for at in _MATRIX)
        for which in range(3)
    ]
    follows = pl.col("after").str.contains(_FACTORS) & pl.any_horizontal(factors)
    # a tolerance that leaves out singular values, as a program may need
    cuts = pl.col("input_values").cast(pl.String).str.contains(r'"0\.\d+"|e-0\d"').fill_null(value=False)
    multiplied = every.filter(square & follows & ~cuts & pl.col("name").str.contains(_INVERTS))
    # by an SVD, or eigenvalues, of each matrix
    small = multiplied.filter(~large & pl.col("name").str.contains(r"^aten::(?:linalg_pinv|pinverse)$"))
    long = large & (pl.col("longer") >= 8 * pl.col("shorter"))
    split = every.filter(long & pl.col("name").str.contains(r"^aten::(?:linalg_svd|svd)$"))
    for words, which, left in (
        ("decompositions", multiplied.filter(large), None),
        ("decompositions: small", small, 0.1),  # what is left by an LU
        ("decompositions: long", split, None),
    ):
        for work in on_host.works_within(report, which):
            name, height, width = which.select("name", "longer", "shorter").row(0)
            sides = {"operator": name.removeprefix("aten::"), "height": height, "width": width}
            # an LU is a few launches, where singular values are many
            rest = (pl.col("dur_ns") - on_gpu.LEAST_NS).clip(lower_bound=0)
            change = left and Mending(
                shorter=work.rows.select("row", saved_ns=pl.min_horizontal(on_gpu.part("dur_ns", 1 - left), rest)),
                host=on_host.within(report, which).mending.host,
            )
            yield work.finding(words, left=None, at_most=not left, mending=change, **sides)


@Rule.of(JAX)
def inverses_of_jax(report: Report) -> Findings:
    """One finding per device on kernels that inverses launched, by a host that may be some steps ahead of the GPU.

    Determinants beside them, with which XLA shares factors, are of these where inverses take a good part of both.
    """
    # what of jax.numpy.linalg a range of XLA names its thunk after, also one of gradients: ``transpose(jvp(jit(inv)))``
    name = pl.col("range").cast(pl.String).str.extract(r"[=/(]jit\((inv|pinv|det|slogdet)\)[/),]")
    ranges = named_ranges(report).filter(~pl.col("open")).select(*THREAD, "start", "end", of=name).drop_nulls("of")
    inverses = ranges.filter(pl.col("of").str.ends_with("inv"))
    if inverses.is_empty():
        return
    every = exclusive_operations(report, "call_row").filter(kind="kernel")
    both, own = (
        every.filter(pl.col("call_row").is_in(on_gpu.calls_within(report, intervals.union_by(some, THREAD)).implode()))
        for some in (ranges, inverses)
    )
    for work in on_gpu.works(report, both):
        inverted = work._replace(rows=own.filter(device=work.device.device))
        together = inverted.ns >= 0.25 * work.ns
        besides = " and determinants" * (together and work.ns > inverted.ns)
        chosen = work if together else inverted
        yield chosen.finding("decompositions: JAX", left=None, at_most=True, besides=besides)


@Rule
def different_rows(report: Report) -> Findings:
    """One finding per device on rows of few integers that are compared to find those that differ."""
    shape, columns = sides(pl.col("input_shapes")), on_host.side(0, 1)
    # so many rows take longer than launching what makes numbers of them
    calls = on_host.working(report).filter(name="aten::unique_dim")
    calls = calls.filter(
        (shape.list.len() == len(_MATRIX)) & columns.is_between(2, 4),
        pl.col("input_types").cast(pl.String).str.contains(r'^\["(?:long|int)'),
        pl.col("input_values").cast(pl.String).str.contains(r'^\["", *"0"'),
        elements() >= (1 << 16) * columns,
    )
    for work in on_host.works_within(report, calls):
        number = int(calls.sort(elements()).select(columns).item(-1, 0))
        # so few integers go into one number, and sorting such takes a fifth of the time of comparing rows
        yield work.finding("full-sort: different", left=0.2, columns=number)


@Rule
def factored_again(report: Report) -> Findings:
    """At most one finding per device on solves of matrices that what is between two of them cannot have written."""
    solves = on_host.working(report).filter(name="aten::linalg_solve").filter(elements() >= _LEAST**2)
    if solves.height <= 1 or solves.select(elements().n_unique()).item() > 1:
        return
    # what may have changed an eighth of a matrix, by its time or result, may have changed it
    part = solves.select(elements()).item(0, 0) / 8
    wide = solves.get_column("input_types").cast(pl.String).str.contains("double|complex").fill_null(value=False).all()
    least = memory_roofs(report.devices).with_columns(bytes=pl.lit(_ELEMENT_BYTES[wide] * part))
    others = _between(report, on_host.within(report, solves), _ELEMENT_BYTES[wide])
    for work in on_host.works_within(report, solves):
        device = pl.col("device") == work.device.device
        writes_ns = least.filter(device).select(memory_ns()).item()
        if not writes_ns:
            continue
        # what makes tensors of its own, each too small, writes no pieces of a matrix, as others do together
        share = pl.min_horizontal(pl.col("written") / part, pl.col("dur_ns") / writes_ns)
        pieces = share.filter(~pl.col("apart")).sum()
        sums = others.filter(device).group_by("after").agg(share=pl.max_horizontal(share.max(), pieces))
        if sums.filter(pl.col("share") >= 1).is_empty():
            height = solves.select(on_host.side(0, -1)).item(0, 0)
            # what solves by the factors stays
            factors = on_gpu.with_operators(report, work.rows).filter(inner="aten::linalg_lu_factor_ex")
            own = work._replace(rows=factors) if factors.height else work
            change = {"mending": on_gpu.without(factors)} if factors.height else {"at_most": True}
            yield own.finding("decompositions: again", left=None, height=height, **change)


def _between(report: Report, solving: on_host.Within, each_bytes: int) -> pl.DataFrame:
    """Operations launched between two solves: with the place of the one before (after), and elements written at most.

    These are null where nothing tells them. `apart` are those of which it is told, and that make tensors of their own.
    """
    others = exclusive_operations(report).filter(~pl.col("row").is_in(solving.mending.gone.implode()))
    others = with_facts(report, others, "size_bytes", "call_start")
    begun = solving.spans.get_column("start").sort()
    others = others.with_columns(after=begun.search_sorted(others.get_column("call_start").fill_null(0), "right"))
    others = others.filter(pl.col("after").is_between(1, len(begun) - 1) | pl.col("call_start").is_null())
    shapes = operations_with_roofs(report).select("row", "sides", "input_shapes", "op")
    others = others.join(shapes, on="row", how="left", maintain_order="left")
    whole = told_of(others.get_column("input_shapes").cast(pl.String), _together, pl.Float64)
    by_element = FAMILY.is_in(["elementwise", "reduce"]) | OPERATION.is_in(["copy", "fill"])
    others = on_gpu.with_decoded(others, by_element=(LIBRARY == "aten") & by_element)
    moved = pl.when(pl.col("kind") != "kernel").then(pl.col("size_bytes") / each_bytes)
    others = others.with_columns(written=pl.coalesce(moved, RESULT_ELEMENTS, pl.when("by_element").then(whole)))
    apart = pl.col("op").str.contains(r"^aten::\w*[^_\W]$") & pl.col("written").is_not_null()
    return others.with_columns(apart=apart.fill_null(value=False))


def _together(shapes: str) -> str | None:
    """How many elements the tensors among an operator's inputs have, expanded to one shape; None without shapes."""
    return None if shapes == "[]" else str(broadcast(on_host.inputs(shapes)))


# Attention with a mask of all pairs, which no kernel that skips what is masked takes.

#: Which input of an operator is the mask.
_MASKS: Final = {
    "aten::scaled_dot_product_attention": 3,
    "aten::_scaled_dot_product_efficient_attention": 3,
    "aten::_scaled_dot_product_efficient_attention_backward": 4,
    "aten::_scaled_dot_product_cudnn_attention": 3,
    "aten::_scaled_dot_product_cudnn_attention_backward": 8,
}
_PAIRS: Final = 1024  # the least side of such a mask


@Rule
def attention_masks(report: Report) -> Findings:
    """At most two findings per device on attention with a mask, or a bias, of as many rows as columns."""
    every = on_host.working(report).filter(pl.col("name").is_in([*_MASKS]))
    masked = [
        (pl.col("name") == name) & (on_host.side(at, -1) >= _PAIRS) & (on_host.side(at, -1) == on_host.side(at, -2))
        for name, at in _MASKS.items()
    ]
    calls = every.filter(pl.any_horizontal(masked).fill_null(value=False))
    hides = pl.col("input_types").cast(pl.String).str.contains("bool").fill_null(value=False)
    for words, own in (("attention-mask", calls.filter(hides)), ("attention-mask: bias", calls.filter(~hides))):
        for work in on_host.works_within(report, own):
            wide = work.names.select(on_gpu.INPUTS.str.contains("f32").any()).item()
            # what is left of kernels that read a causal mask by those that skip it, of 16 bits and of float32
            left = None if words.endswith("bias") else (0.35, 0.6)[wide]
            yield work.finding(words, left=left, at_most=True, height=own.select(on_host.side(0, -2)).item(0, 0))


# Gradients of whole tensors that backward makes for each part that forward took, and adds up.

_OF_PARTS: Final = r"^aten::(?:select|slice)_backward$"
_FEWEST_PARTS: Final = 8


@Rule
def slice_gradients(report: Report) -> Findings:
    """One finding per device on gradients of whole tensors for many parts each, by a trace with inputs of operators."""
    every = on_host.operators(report)
    adds = every.filter(pl.col("name").is_in(["aten::add_", "aten::add"])).get_column("parent").drop_nulls()
    nodes = every.filter(pl.col("name").str.contains(r": (?:Select|Slice)Backward0$")).drop_nulls("sequence_number")
    rises = (pl.col("sequence_number").diff() > 0).fill_null(value=False)
    nodes = nodes.sort(*THREAD, "start").with_columns(added=pl.col("row").is_in(adds.implode()), rises=rises)
    # in one pass of backward numbers of nodes fall; parts of one tensor differ in their place
    told = every.filter(pl.col("name").str.contains(_OF_PARTS)).drop_nulls(("input_shapes", "input_values"))
    values = pl.col("input_values").cast(pl.String)
    parts = nearest(
        told.select("row", values.alias("part"), whole=values.str.extract(r"(\[\d[\d, ]*\])")),
        nodes.select(node="row", until="stop", begins=pl.col("rises").cum_sum()).sort("node"),
        ("row", "node"),
    ).filter(pl.col("row") < pl.col("until"), pl.col("whole").is_not_null())
    run = pl.struct("begins", "whole").rle_id()
    several = parts.filter(pl.col("part").n_unique().over(run) >= _FEWEST_PARTS).get_column("node")
    nodes = nodes.filter(pl.col("row").is_in(several.implode()))
    if 2 * int(nodes.get_column("added").sum()) < nodes.height:  # parts of different tensors are not added up
        return
    taken = every.filter(pl.col("name").is_in(["aten::select", "aten::slice"]))
    taken = taken.join(nodes, on=["process_id", "sequence_number"], how="semi")
    inside = on_host.within(report, nodes)
    for work in on_host.works_within(report, nodes):
        # one kernel puts all parts together, as the copies of them do
        copies = on_gpu.decoded_as(work.rows, (FAMILY == "copy") & (OPERATION == "copy"))
        yield work.finding(
            "slice-gradients",
            where=on_host.site_of(report, taken),
            left=None,
            mending=on_gpu.without(work.rows.filter(~copies))._replace(host=inside.host),
        )


# Kernels that Triton compiled whose code tells why they are slow: their arithmetic, and their atomics.


def _in_code(
    report: Report, tells: pl.Expr, least: float, sources: tuple[str, ...] = ("triton",)
) -> Iterator[tuple[Work, dict[str, Any]]]:
    """The compiled kernel of most time of each device, if all code of its name `tells`; and the row of its code."""
    try:
        compiled = compiled_kernels(report)
    except KanalyzeError as damage:
        report.go_without("of the code of compiled kernels", damage)
        return
    telling = compiled.filter(pl.col("source").is_in(sources), tells.fill_null(value=False).all().over("name"))
    telling = telling.unique("name", keep="first")
    named = pl.col("name").is_in(telling.get_column("name").implode())
    for every in on_gpu.kernels_that(report, named, least) if telling.height else ():
        work = every._replace(rows=every.rows.filter(pl.col("name") == every.most))
        if work.share >= least:
            yield work, telling.row(by_predicate=pl.col("name") == work.most, named=True)


@Rule
def products_in_code(report: Report) -> Findings:
    """Findings per device on Triton kernels that multiply blocks without tensor cores, and those of 16 bits in TF32."""
    for name, column in (
        ("no-tf32: code", "float32_products"),
        ("no-tensor-cores: sums", "summed_products"),
        ("widened-products", "widened_products"),
    ):
        for work, code in _in_code(report, pl.col(column).is_not_null(), on_gpu.WORTH_PRODUCTS):
            place, in_tf32 = code[column], on_gpu.TF32_LEFT.get(work.device.capability)
            left = in_tf32 and min(in_tf32 / on_gpu.OF_PEAK, 1.0)
            left = on_gpu.HALF_LEFT if column == "widened_products" else left
            if left is not None:
                yield work.finding(name, left=left, where=literal(place), place=place)


@Rule
def float64_in_code(report: Report) -> Findings:
    """One finding per device on kernels of Triton or torch.compile whose code computes in float64."""
    doubles = pl.col("float64_share") >= 0.5  # noqa: PLR2004 - of the lines of a kernel that is in float64
    # of the kernel time; sums for accuracy are in well-made programs, too
    for work, code in _in_code(report, doubles, 0.03, ("triton", "inductor")):
        yield work.finding("float64: code", left=on_gpu.HALF_LEFT, doubles=code["float64_share"])


@Rule
def atomics_in_code(report: Report) -> Findings:
    """One finding per device on Triton kernels of the program whose code adds by atomics, slower than the memory."""
    for work, code in _in_code(report, pl.col("atomics").is_not_null(), on_gpu.WORTH_SUMS):
        rows = with_facts(report, work.rows, *SHAPE).join(report.devices, on="device", how="left")
        threads = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z") * pl.col("block_x")
        rate = threads * 2 * code["atomic_bytes"] / pl.col("dur_ns") * 1e9
        # additions that do not wait for each other read and write values at so large a part of the memory's bandwidth
        slow = (rate < 0.4 * pl.col("memory_bandwidth_bytes_per_s")) & (pl.col("dur_ns") >= on_gpu.SHORTEST_NS)
        if not rows.select(slow.all()).item():
            continue
        places = str(code["atomics"])
        where = literal(places.partition(", ")[0])
        yield work.finding("scatter-atomics: code", left=None, at_most=True, where=where, places=places)


# Tensors that are copied to grow by a piece, and tensors that are repeated in memory.

_MUCH: Final = 0.08  # less of the kernel time is left out

#: Concatenations grow where the later ones of the window take longer: so many, with such a correlation of time and
#: place, and the last quarter so much longer than the first one.
_FEWEST: Final = 16
_CORRELATED: Final = 0.3
_GROWS: Final = 1.005

#: The same within iterations: from eighth to eighth, none far longer than the one before, but for the first: layers
#: that join images of other sizes are.
_EIGHTHS: Final = 8
_GROWS_WITHIN: Final = 1.3
_JUMPS: Final = 2.0

#: A tensor that nothing takes before all pieces are joined grows through so many sizes.
_STAGES: Final = 4

#: A line that joins what an object or a list holds, and puts the result there: ``self.k = torch.cat([self.k, k])``.
_JOINS: Final = re.compile(
    r"(?<![\w.\]])(\w+(?:\.\w+|\[[^\[\]]*\])+)\s*=\s*(?:torch\.)?(?:cat|concat)\(\s*[\[(]\s*\1\s*,"
)

#: What users write that repeats a tensor in memory, by the operators.
_REPEATS: Final = {"aten::repeat": ".repeat()", "aten::repeat_interleave": "repeat_interleave", "aten::tile": "tile"}


@Rule.of(PYTORCH)
def growing_concatenations(report: Report) -> Findings:
    """At most two findings per device: concatenations that grow, and repeated tensors."""
    aten = LIBRARY == "aten"
    for device in on_gpu.kernel_sums(report):
        every = on_gpu.with_operators(report, exclusive_operations(report, "thread_id", "call_start"))
        # what has more than 2³¹ elements is joined by copies
        copied = on_gpu.COPIES_WITHIN & (pl.col("outer") == "aten::cat").fill_null(value=False)
        copied &= pl.col("device") == device.device
        cats = every.filter(device.are(aten & (OPERATION == "cat")) | copied).sort("start")
        whole_ns = device.kernel_ns + total(cats.filter(pl.col("kind") == "memcpy"), "exclusive_ns")
        if total(cats, "exclusive_ns") >= _MUCH * whole_ns and cats.height >= _FEWEST:
            if _grow(cats.get_column("dur_ns"), say.per_iteration(report).iterations or 1):
                yield _copied(report, device.device, cats, whole_ns, "growing-copies")
            elif 2 * _takes_place_ns(report, cats) > total(cats, "exclusive_ns"):
                yield _copied(report, device.device, cats, whole_ns, "growing-copies: kept")
            else:
                cats = cats.join(_joined(report, cats), on="row", how="left", maintain_order="left")
                parts = {"joined": _extending(report, cats), "pieces": cats.filter("appends")}
                worth = pl.col("exclusive_ns").sum() >= _MUCH * whole_ns
                for name, pieces in parts.items():
                    if pieces.height >= _FEWEST and pieces.select(worth).item():
                        yield _copied(report, device.device, pieces, whole_ns, f"growing-copies: {name}")
                        break
        copies = every.filter(device.are(aten & ((OPERATION == "copy") | (FAMILY == "index"))))
        work = copies.filter(pl.col("outer").is_in(_REPEATS.keys()))
        if total(work, "exclusive_ns") >= max(_MUCH * device.kernel_ns, 1):
            yield _copied(report, device.device, work, device.kernel_ns, "growing-copies: repeated")


def _takes_place_ns(report: Report, cats: pl.DataFrame) -> int:
    """Device time of concatenations whose result takes the place of one of what they join."""
    places = place_at(report, cats.select(*THREAD, at="call_start")).alias("place").to_frame()
    lines = placed_with_text(report, places.with_columns(cats["exclusive_ns"]).drop_nulls("place"))
    texts = lines.get_column("text").cast(pl.String)
    joins = pl.Series([bool(_JOINS.search(text or "")) for text in texts], dtype=pl.Boolean)
    return total(lines.filter(joins), "exclusive_ns")


def _joined(report: Report, cats: pl.DataFrame) -> pl.DataFrame:
    """What concatenations join: row, spared (the part of the first tensor), appends (small pieces, as wide as that)."""
    shapes = operations_with_roofs(report).select("row", "input_shapes")
    given = on_host.each_input(cats.join(shapes, on="row", maintain_order="left"))
    size, wide = pl.col("size"), pl.col("sides").list.last()
    sums = given.group_by("row").agg(pl.len(), spared=size.first() / size.sum(), alike=(wide == wide.first()).all())
    small = pl.col("spared") * (1 + 1 / 64) >= 1  # layers join what is more
    return sums.select("row", "spared", appends=pl.col("alike") & small & (pl.col("len") > 1))


def _extending(report: Report, cats: pl.DataFrame) -> pl.DataFrame:
    """The concatenations of what an earlier one made with a piece, which nothing takes in between: with spared."""
    spans = on_host.extended(report)
    if spans["size"].n_unique() < _STAGES or not on_host.names_most(report):
        return cats.clear()
    own = on_host.within(report, spans).mending.gone
    return cats.filter(pl.col("row").is_in(own.implode())).drop_nulls("spared")


@Rule
def growing_copies(report: Report) -> Findings:
    """One finding per device on copies within it of what was there, each followed by one of the piece that is new."""
    every = exclusive_operations(report, "size_bytes", "stream")
    size, beside = pl.col("size_bytes"), ["device", "stream"]
    grows = (size.shift(-2) == size + size.shift(-1)).over(beside) & (size > size.shift(-1)).over(beside)
    again = grows.shift(2).over(beside) & (size > size.shift(-1).over(beside))
    within = every.filter(pl.col("detail") == "Device-to-Device").sort("start")
    for device, copies in say.by_device(within.filter(grows | again)):
        whole_ns = total(every.filter(pl.col("device") == device), "exclusive_ns")
        if copies.height >= _FEWEST and total(copies, "exclusive_ns") >= _MUCH * whole_ns:
            one = _copied(report, device, copies, whole_ns, "growing-copies: arrays")
            yield one._replace(names=(), mending=on_gpu.without(copies))


#: A list grows through so many lengths; what takes all of it is of layers, which need it in each step, by these.
_LENGTHS: Final = 4
_OF_LAYERS: Final = rf"{on_host.MULTIPLIES}|^aten::\w*(?:conv|norm|embedding|attention|lstm|gru|cdist)"


@Rule
def history_again(report: Report) -> Findings:
    """At most one finding per device on work on all tensors of a list, done again whenever it has become longer."""
    if not on_host.names_most(report):
        return
    every = on_host.working(report)
    given, first = on_host.each_input(every), pl.col("sides").list.first()
    joins = every.filter(pl.col("input_values").cast(pl.String) == '["", "0"]', name="aten::cat")
    lists = given.join(joins, on="row", how="semi").sort("row").group_by("row", *THREAD, maintain_order=True)
    cats = lists.agg(pl.len(), piece=pl.col("sides").first(), length=first.sum())
    breaks = (~pl.col("len").diff().is_in([0, 1])).fill_null(value=True)
    cats, run = cats.with_columns(run=breaks.cum_sum().over(*THREAD, "piece")), (*THREAD, "piece", "run")
    # of one piece any batch has the length
    cats = cats.filter(pl.col("len") > 1, pl.col("len").n_unique().over(run) >= _LENGTHS)
    takers = nearest(given.join(cats, on="row", how="anti"), cats.rename({"row": "cat"}), ("row", "cat"), THREAD)
    takers = takers.filter(pl.col("sides").list.contains(pl.col("length")))
    named = on_host.with_nodes(report, every.filter(pl.col("row").is_in(takers["row"].implode())))
    name = pl.col("name")  # of what is not PyTorch's nobody knows
    needed = named.filter(name.str.contains(_OF_LAYERS) | ~name.str.starts_with("aten::") | pl.col("makes_node"))
    cats = cats.join(takers.join(needed, on="row", how="semi"), on=run, how="anti", nulls_equal=True)
    again = cats.filter(pl.col("len") < pl.col("len").max().over(run))  # the last of them stay
    own = pl.concat([again["row"], takers.join(again, left_on="cat", right_on="row", how="semi")["row"]])
    spans = every.filter(pl.col("row").is_in(own.implode()))
    change = on_host.within(report, spans).mending
    for work in on_host.works_within(report, spans):
        yield work.finding("growing-copies: history", mending=change, pieces=cats["len"].max())


@Rule.of(PYTORCH)
def no_kv_cache(report: Report) -> Findings:
    """One finding per device on passes of a model over rows that the pass before went through, and some more."""
    more, rows = pl.col("rows").diff(), pl.col("rows")
    # a pass of as many rows as the one before and a few more, at most a sixteenth of all, may go through them again,
    # where a word is chosen after each, and nothing is trained
    again = (more > 0) & (more <= rows / 16) & ((more == more.shift(1)) | (more == more.shift(-1)))
    for device in on_gpu.kernel_sums(report):
        names = device.rows.get_column("name").str
        if names.contains(on_host.UPDATES).any() or not names.contains(on_host.CHOOSES).any():
            continue
        every = exclusive_operations(report, *SHAPE).filter(device=device.device, kind="kernel").sort("start")
        # with a block for each row of a text
        norms = every.filter(on_host.kernels_named(every, "layer_norm|rms_norm"))
        norms = norms.select("start", rows="grid_x").cast(pl.Int64)
        alike = norms.group_by(run=rows.rle_id(), maintain_order=True)
        runs = alike.agg(pl.col("start", "rows").first(), many=pl.len())
        # the last norm of a pass may be of the last words alone
        before, after = rows < rows.shift(1), (rows < rows.shift(-1)).fill_null(value=True)
        dips = before & after & (pl.col("many") < pl.col("many").shift(1))
        passes = runs.filter(~dips.fill_null(value=False))
        passes = passes.select(begun="start", more=more, rows="rows", again=again.fill_null(value=False))
        work = nearest(every, passes, ("start", "begun"), ())
        chosen = work.filter(having(work.get_column("name"), on_host.CHOOSES)).get_column("begun")
        work = work.filter("again", pl.col("begun").is_in(chosen.implode()))
        many, per = work["begun"].n_unique(), say.per_iteration(report)
        if many < max(4, (per.iterations or 1) / 2):
            continue
        # products of fewer rows take as long as of 300: their weights are read
        least = pl.when(on_gpu.decoded_as(work, FAMILY == "gemm")).then(300).otherwise(0)
        left = (pl.max_horizontal("more", least) / rows).clip(upper_bound=1.0) * pl.col("dur_ns")
        saved = (pl.col("dur_ns") - pl.max_horizontal(left, on_gpu.LEAST_NS).cast(pl.Int64)).clip(lower_bound=0)
        yield on_gpu.Work(report, device, work).finding(
            "no-kv-cache",
            "",
            passes=many,
            rows=longest(work, "rows"),
            saved=saved,
        )


def _copied(report: Report, device: int, work: pl.DataFrame, whole_ns: int, name: str) -> Finding:
    """The finding on operations that copy, of which only the new piece would have to be."""
    ns, outer = total(work, "exclusive_ns"), "outer" if "outer" in work.columns else "name"
    rest = pl.col("dur_ns") - on_gpu.LEAST_NS
    spared = on_gpu.part("dur_ns", pl.col("spared")) if "spared" in work.columns else rest
    return say.told(
        report,
        name,
        device,
        work.select("start", "end"),
        ns,
        many=work.height,
        share=ns / max(whole_ns, 1),
        written=_REPEATS.get(say.most(work, outer, "exclusive_ns"), ""),
        names=(str(work.sort("exclusive_ns").item(-1, "name")),),
        where=say.place_of(report, work.get_column("row")),
        mending=Mending(shorter=work.select("row", saved_ns=spared.clip(lower_bound=0))),
        shortens=True,
    )


def _grow(took: pl.Series, iterations: int) -> bool:
    """Whether durations grow along the window, or from eighth to eighth of each of so many iterations."""
    each = len(took) // iterations
    whole = took.head(each * iterations).to_frame("ns").with_row_index("at")
    within = whole.group_by(pl.col("at") % max(each, 1)).agg(pl.col("ns").mean()).sort("at").get_column("ns")
    quarter = len(took) // 4
    first, last = pl.col("ns").head(quarter).mean(), pl.col("ns").tail(quarter).mean()
    along, longer = whole.select(pl.corr("at", "ns"), longer=last >= _GROWS * first).row(0)
    if longer and along is not None and along >= _CORRELATED:
        return True
    if len(within) < _FEWEST:
        return False
    parts = within.to_frame("ns").with_columns(part=pl.int_range(pl.len()) * _EIGHTHS // pl.len())
    means = parts.group_by("part").agg(pl.col("ns").mean()).sort("part").get_column("ns").to_list()
    steps = [after / before for before, after in pairwise(means)]
    return bool(min(steps) > 1 and means[-1] >= _GROWS_WITHIN * means[0] and max(steps[1:]) <= _JUMPS)


# Batches of which a part is padding, as a run without a profiler saw them.

_WORTH_SORTING: Final = 0.9  # rows of like lengths in a batch leave so much of it at most


@Rule
def padded_batches(report: Report) -> Findings:
    """One finding per device on operators of batches of tokens whose rows are filled up to a width, as it was given."""
    seen = next((run.batches for run in report.bare().marked if run.batches.filled), Batches())
    batches = seen if seen.filled else _put_together(report)
    # positions as given, as wide as the longest row, with rows of like lengths in each batch, and filled
    numbers = [len(rows) for _, rows in batches.filled]
    lengths = sorted((length for _, rows in batches.filled for length in rows), reverse=True)
    given = sum(width * len(rows) for width, rows in batches.filled)
    longest_each = sum(max(rows) * len(rows) for _, rows in batches.filled)
    starts = accumulate(numbers, initial=0)
    alike = sum(lengths[start] * number for start, number in zip(starts, numbers, strict=False))
    # rows that all end at one place may end with what belongs to them, such as a border
    if len({length for _, rows in batches.filled for length in rows}) < 2 or alike > _WORTH_SORTING * given:  # noqa: PLR2004
        return
    # a tokenizer that fills up to a fixed length is mended first
    fixed, varied = longest_each <= _WORTH_SORTING * given, alike <= _WORTH_SORTING * longest_each
    left = (longest_each if fixed else alike) / given
    own = _of_batches(on_host.working(report), batches, tokens=bool(seen.filled))
    for work in on_host.works_within(report, own):
        yield work.finding(
            "padding" if seen.filled else "padding: put together",
            left=left,
            at_stake_ns=int(work.ns * (1 - left)),
            where=literal(batches.line),
            fixed=fixed,
            varied=varied,
            both=fixed and varied,
            padded=1 - sum(lengths) / given,
            longest=longest_each / given,
            alike=alike / given,
        )


def _put_together(report: Report) -> Batches:
    """The batches that pad_sequence makes of tensors of several lengths."""
    joins = on_host.each_input(on_host.outermost(report).filter(name="aten::pad_sequence")).drop_nulls("sides")
    lengths = joins.group_by("row", maintain_order=True).agg(pl.col("sides").list.first().cast(pl.Int64))["sides"]
    filled = ((max(each), tuple(each)) for each in lengths.to_list())
    return Batches(line_that_reads(report, r"\bpad_sequence\(", 1), tuple(filled))


def _of_batches(every: pl.DataFrame, batches: Batches, *, tokens: bool) -> pl.DataFrame:
    """The operators that take rows and positions of batches, of `tokens` where embeddings look these up: SPAN."""
    sizes = {(len(rows), width) for width, rows in batches.filled}
    sizes |= set() if tokens else {(width, rows) for rows, width in sizes}  # pad_sequence has positions first as well

    def takes(shapes: str) -> str | None:
        """Which sizes of batches inputs have: as they are, by heads, or as one side."""
        inputs = on_host.inputs(shapes)
        by_heads = [(shape[0], shape[2]) for shape in inputs if len(shape) == len("BHTD")]
        whole = any(pair in sizes for pair in (*by_heads, *(tuple(shape[:2]) for shape in inputs)))
        joined = any(shape[0] == rows * width for shape in inputs if shape for rows, width in sizes)
        return "whole" if whole else "joined" if joined else None

    name = pl.col("name")
    kinds = told_of(every.get_column("input_shapes").cast(pl.String), takes)
    whole = pl.col("kind") == "whole"
    own = every.with_columns(kind=kinds).filter(whole | name.str.contains(on_host.MULTIPLIES), ~pl.col("aside"))
    # whose first two sides may be images and channels
    of_images = name.str.contains("conv|batch_norm|instance_norm|group_norm|pool|upsample|interpolate")
    own = own.drop_nulls("kind").filter(~of_images)
    return own.filter((whole & (name == "aten::embedding")).any() | (not tokens)).select(on_host.SPAN)
