"""Kernels of libraries in whose place others are quicker: products, types, gathers, sums by atomics."""

import math
import re
from functools import partial
from typing import Final

import polars as pl

from kanalyze import columns, units
from kanalyze.analyses.device._operations import exclusive_operations, launch_rows
from kanalyze.analyses.device.occupancy import launch_occupancy
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import FAMILY, INPUTS, LIBRARY, OPERATION, OUTPUT, REACHED, Work
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, literal
from kanalyze.analyses.host._call_kinds import JAX, PYTORCH
from kanalyze.analyses.operators.fusion import parsed
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared import analysis, threads
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.work.work import calls_with_work, operations_with_roofs
from kanalyze.decoder.fields import ELEMENT_BYTES
from kanalyze.report import Report

#: What a thread loads at once of aligned data.
_VECTOR_BYTES: Final = 16

#: What is left of products for unaligned data by kernels for aligned data, where their shapes are not known, by compute
#: capability: on Hopper they run Ampere's kernels at a fifth of the rate (GPT-2's odd vocabulary in bfloat16: 94 to 145
#: TFLOP/s in place of some 600); of many small matrices (bmm) the bytes of the result are most.
_ALIGNED_LEFT: Final = {(9, 0): 0.25}
_ALIGNED_LEFT_ELSEWHERE: Final = 0.6

_PAD: Final = 64  # dimensions are best padded to a multiple of this, whatever the type


_FIRST_INPUT: Final = INPUTS.str.extract("^([^/]+)")
_ON_TENSOR_CORES: Final = pl.col("tensor_core").fill_null(value=False)
_UNALIGNED: Final = (
    (FAMILY == "gemm")
    & _ON_TENSOR_CORES
    & (pl.col("alignment") * _FIRST_INPUT.replace_strict(ELEMENT_BYTES, default=_VECTOR_BYTES) < _VECTOR_BYTES)
    & (INPUTS != "")
).fill_null(value=False)


@on_gpu.choosing(_UNALIGNED, on_gpu.WORTH_PRODUCTS)
def unaligned_gemm(work: Work) -> Finding:
    """One finding per device with matrix products on tensor cores by kernels for unaligned data."""
    odd, aligned_ns, shapes = _shapes(work)
    sides = " and ".join(map(str, odd))
    pad = f"Pad {sides} to a multiple of {_PAD}" if sides else f"Pad dimensions to multiples of {_PAD}"
    images = not odd and work.device.launches(on_gpu.LAYOUTS) > 0
    left = aligned_ns / work.ns
    if not aligned_ns:
        # what has no operator may be one of these in PyTorch alone
        batched = pl.col("inner").is_in(on_gpu.BATCHED).fill_null(value=images or say.in_pytorch(work.report))
        single = total(on_gpu.with_operators(work.report, work.rows).filter(~batched), "exclusive_ns") / max(work.ns, 1)
        left = _ALIGNED_LEFT.get(work.device.capability, _ALIGNED_LEFT_ELSEWHERE)
        left = single * left + (1 - single) * _ALIGNED_LEFT_ELSEWHERE
    return work.finding(
        "unaligned-gemm",
        aligned=int(work.names.select(pl.col("alignment").min()).item()),
        shapes=shapes,
        images=images,
        pad="" if images else pad,
        at_stake_ns=max(work.ns - aligned_ns, 0),
        left=min(left, 1.0),
    )


def _shapes(work: Work) -> tuple[list[int], int, str]:
    """The shapes of the products, where operators with shapes were recorded.

    Dimensions that no aligned kernel takes, those with most time first; what the same products would take at the best
    rate of the report's aligned ones, without any as near to their roof as others come (ns; 0 if not known); and both
    in sentences, after a space.
    """
    report = work.report
    every = _products(report).filter(device=work.device.device)
    own = every.filter(pl.col("name").is_in(work.names.get_column("name").implode()))
    if own.is_empty():
        return [], 0, ""
    odd = own.get_column("odd").drop_nulls().unique(maintain_order=True).head(2).to_list()
    product, side, multiple = own.select("text", "odd", "multiple").row(0)
    text = f" Most for {product}" + (f": {side} is no multiple of {multiple}." if side else ".")
    # of products with fewer than half of the operations a byte memory limits the rate
    intensity = total(own, "flop") / max(total(own, "dram_ns"), 1)
    alike = pl.col("aligned") & (pl.col("ns") > 0) & (2 * pl.col("flop") >= pl.col("dram_ns") * intensity)
    rate = every.filter(alike).select((pl.col("flop") / pl.col("ns")).max()).item()
    if total(own, "ns") < work.ns // 2 or not (rate or own.get_column("least_ns").is_not_null().all()):
        return odd, 0, text
    # no less than their bytes do
    least = pl.max_horizontal(pl.col("flop") / rate, "dram_ns") if rate else pl.col("least_ns") / REACHED["products"]
    aligned = int(own.select(pl.min_horizontal("ns", least.floor()).sum()).item())
    rates = (
        "At the best rate of the aligned products here" if rate else "As near to their roof as aligned products come,"
    )
    return odd, aligned, f"{text} {rates} they would take {say.per_iteration(report).time(aligned)}."


@analysis.once_per_report
def _products(report: Report) -> pl.DataFrame:
    """Products whose shapes were recorded, by device, kernel (name, the one that took most) and shapes.

    Those with most time first: ns and flop of all occurrences, dram_ns (their bytes at the bandwidth), least_ns (that
    or the arithmetic at its peak; null where that is unknown), aligned
    (whether the kernel is for aligned data on tensor cores), multiple (elements that a thread loads at once of aligned
    data), odd (the dimension that is none of these), and text.
    """
    calls = calls_with_work(report).filter(pl.col("sides").is_not_null() & (pl.col("group") == "products"))
    keys = ["device", "name", "sides"]
    least = pl.when(pl.col("compute_ns").is_not_null()).then(pl.max_horizontal("compute_ns", "dram_ns"))
    each = calls.select("device", "sides", "flop", "dram_ns", name="kernel", ns="exclusive_ns", least_ns=least)
    least_sum_ns = pl.when(pl.col("least_ns").count() == pl.len()).then(pl.col("least_ns").sum())
    sums = each.group_by(keys).agg(pl.col("flop").cast(pl.Float64).sum(), pl.col("ns", "dram_ns").sum(), least_sum_ns)
    sums = sums.sort("ns", *keys, descending=[True, False, False, False])
    sums = sums.with_columns(on_gpu.decoded_names(sums.get_column("name")))
    multiple = _VECTOR_BYTES // _FIRST_INPUT.replace_strict(ELEMENT_BYTES, default=1, return_dtype=pl.Int64)
    # rows of the result begin at multiples of N elements, those of the first matrix at multiples of K, or of M if it is
    # transposed
    return sums.select(
        *("device", "name", "ns", "flop", "dram_ns", "least_ns"),
        aligned=_ON_TENSOR_CORES & (FAMILY == "gemm") & ~_UNALIGNED,
        multiple=multiple,
        odd=pl.coalesce(pl.when(side % multiple != 0).then(side) for side in (on_gpu.N, on_gpu.K, on_gpu.M)),
        text=on_gpu.PRODUCT,
    )


#: How much longer products take by older tensor-core instructions: on Hopper those of Ampere reach about 60 % of the
#: peak, on Ampere those of Turing half of it.
_OLDER: Final = 2

#: Generations of tensor-core instructions by compute capability: consumer GPUs after Ampere keep its instructions.
_GENERATIONS: Final = {
    name: number
    for number, names in enumerate(
        ("70 72 volta", "75 turing", "80 86 87 89 ampere ada", "90 hopper", "100 101 103 110 blackwell"), 1
    )
    for name in names.split()
}

#: The generation of tensor-core instructions of a kernel; 0 if its name does not tell.
_GENERATION: Final = pl.coalesce(pl.col("arch").str.extract(r"^(?:sm)?(\d+)[a-z]*$"), "arch").replace_strict(
    _GENERATIONS, default=0
)


def _older(device: on_gpu.DeviceKernels) -> pl.Expr:
    own = _GENERATIONS.get("".join(map(str, device.capability)), 0)
    typed = FAMILY.is_in(["gemm", "conv"]) & _ON_TENSOR_CORES & on_gpu.TENSOR_TYPED & ~_UNALIGNED
    return typed & (_GENERATION > 0) & (own > _GENERATION)


@on_gpu.choosing(_older, 0.25)  # cuBLAS picks some where they are as fast
def old_architecture_gemm(work: Work) -> Finding | None:
    """One finding per device whose products and convolutions are made for tensor cores older than its own."""
    device, names = work.device, work.names
    if 2 * device.launches(on_gpu.LAYOUTS) >= total(names, "count") and names.item(0, "family") == "conv":
        return None  # for images in another layout cuDNN has other kernels
    shapes = launch_occupancy(work.report).filter(pl.col("device") == device.device)
    own = shapes.filter(pl.col("name").cast(pl.String).is_in(names.get_column("name").implode()))
    full = own.filter((pl.col("blocks") >= pl.col("sm_count")).fill_null(value=True))
    if 2 * total(full, "exclusive_ns") < total(own, "exclusive_ns"):  # small ones would be no faster by newer kernels
        return None
    generation, inputs, family, arch = names.select(_GENERATION.alias("generation"), INPUTS, FAMILY, "arch").row(0)
    made_for, types = (
        ("Volta", "Turing", "Ampere", "Hopper")[generation - 1],
        "/".join(dict.fromkeys(inputs.split("/"))),
    )
    return work.finding(
        "old-architecture-gemm",
        convolves=family == "conv",
        multiplies=family != "conv",
        made_for=made_for,
        made_of=f"{arch}, {types}",
        gpu=literal(device.name) or f"compute capability {'.'.join(map(str, device.capability))}",
        libraries="PyTorch for a newer CUDA" if say.in_pytorch(work.report) else "newer cuBLAS and cuDNN",
        pad=_PAD,
        at_stake_ns=work.ns // _OLDER,
        left=1 / _OLDER,
    )


#: The first compute capabilities whose tensor cores take these types.
_TF32: Final = (8, 0)
_SINCE: Final = {"f16": (7, 0), "bf16": (8, 0)}

#: Kernels of products and convolutions in full float32.
_FLOAT32: Final = ~pl.col("tensor_core") & INPUTS.str.contains(r"^f32(?:/f32)*$")

#: What convolutions by transforms have besides: transforms, products of complex numbers, and cuDNN's between these.
_TRANSFORMS: Final = (
    (FAMILY == "fft")
    | ((FAMILY == "gemm") & INPUTS.str.contains(r"^c64(?:/c64)*$"))
    | ((LIBRARY == "cudnn") & pl.col("tensor_core").is_null() & INPUTS.is_in(["", "f32"]) & (OPERATION != "layout"))
)


@Rule
def no_tf32(report: Report) -> Findings:
    """At most two findings per device that could use TF32: products, and convolutions, in full float32."""
    if not any(device.launches(_FLOAT32) for device in on_gpu.kernel_sums(report)):
        return
    # kernels most of whose launches are those of convolutions, by the operators around them
    every = exclusive_operations(report, "context_id", "stream").filter(kind="kernel")
    kernels = on_gpu.with_operators(report, every)
    convolves = pl.col("outer").str.contains(r"^aten::(?:\w+_)?conv(?:\dd|olution)?").fill_null(value=False)
    most = kernels.group_by(pl.col("name").cast(pl.String)).agg(convolves.mean()).filter(pl.col("outer") > 1 / 2)
    inside = pl.col("name").is_in(most.get_column("name").implode())
    of_solvers = pl.col("row").is_in(_of_solvers(kernels).implode())
    for family, name in (("gemm", "no-tf32"), ("conv", "no-tf32: convolutions")):
        for work in on_gpu.kernels_that(report, partial(_in_full, family=family, inside=inside), on_gpu.WORTH_PRODUCTS):
            # cuDNN takes TF32 unless told otherwise: where any convolution runs so, it has no such kernel for others
            allowed = family == "conv" and work.device.launches((family == FAMILY) & INPUTS.str.contains("tf32"))
            own = work._replace(rows=work.rows.filter(~of_solvers))
            if work.device.capability < _TF32 or allowed or own.share < on_gpu.WORTH_PRODUCTS:
                continue
            left = on_gpu.TF32_LEFT.get(work.device.capability)
            one = own.finding(name, left=left)
            if left is not None and own.names.select(_TRANSFORMS.any()).item():
                one = one._replace(mending=_as_one(own, left))
            yield one


def _of_solvers(kernels: pl.DataFrame) -> pl.Series:
    """Rows of products of a solver, whose type no option sets: by their operator, or between other kernels of it."""
    stream = ["process_id", "device", "context_id", "stream"]
    kernels = on_gpu.with_decoded(kernels.sort(*stream, "start"), solves=FAMILY == "linalg", product=FAMILY == "gemm")
    others = pl.when(~pl.col("product")).then("solves")
    between = others.forward_fill().over(stream) & others.backward_fill().over(stream)
    of_solver = pl.col("outer").str.contains(r"^aten::_?(?:linalg_|lu_|cholesky|triangular_solve|inverse)")
    return kernels.filter(pl.col("product") & of_solver.fill_null(between)).get_column("row")


def _in_full(device: on_gpu.DeviceKernels, family: str, inside: pl.Expr) -> pl.Expr:
    """Those of a family in full float32: all that is `inside` of such convolutions is of these, and no product."""
    own = _FLOAT32 & (family == FAMILY)
    if not device.launches(_FLOAT32 & (FAMILY == "conv")):
        return own
    return own & ~inside if family == "gemm" else own | ((_FLOAT32 | _TRANSFORMS) & inside)


def _as_one(work: Work, left: float) -> Mending:
    """Each run of kernels is one, with what is `left` of their time, and no calls between their launches.

    Convolutions by transforms have fewer products than such as TF32 has, which reach a part of their peak.
    """
    report, left = work.report, min(left / on_gpu.OF_PEAK, 1.0)
    line = exclusive_operations(report, "call_start", "thread_id").filter(device=work.device.device).sort("start")
    chosen = pl.col("row").is_in(work.rows.get_column("row").implode())
    runs = line.with_columns(own=chosen).with_columns(group=pl.col("own").rle_id())
    merged_ns = on_gpu.part("exclusive_ns", left).sum().over("group")
    own = runs.filter("own").with_columns(kept=pl.lit(1), merged_ns=merged_ns)
    spans = on_gpu.host_of(own.drop_nulls("call_start"), "thread_id", "group")
    calls = on_gpu.calls_within(report, spans)
    others = calls.filter(~calls.is_in(launch_rows(report).drop_nulls().implode()))
    return on_gpu.merged(own.sort("group", "dur_ns", descending=[False, True]))._replace(
        calls=others, host=spans.select("process_id", "start", "end")
    )


def _plain(device: on_gpu.DeviceKernels) -> pl.Expr:
    """Products and convolutions without tensor cores of types that the device's take."""
    types = "|".join(one for one, since in _SINCE.items() if device.capability >= since) or "none"
    typed = INPUTS.str.contains(rf"^(?:{types})(?:/(?:{types}))*$")
    return ~pl.col("tensor_core") & FAMILY.is_in(["gemm", "conv"]) & typed


@on_gpu.choosing(_plain, on_gpu.WORTH_PRODUCTS)
def no_tensor_cores(work: Work) -> Finding:
    """One finding per device with 16-bit products on kernels that do not use its tensor cores."""
    return work.finding(
        "no-tensor-cores",
        types="/".join(dict.fromkeys(work.names.item(0, "inputs").split("/"))),
        at_most=True,
        # peak rates of 16-bit types without over with tensor cores, dense: what is left of products at their roof;
        # source: NVIDIA's datasheets of A100 and H100 SXM (TFLOP/s)
        left={(8, 0): 78 / 312, (9, 0): 133.8 / 989.4}.get(work.device.capability),
    )


# Models that compute in float32, for whose attention PyTorch has far slower kernels than for that of 16 bits.

_ATTENTION: Final = (FAMILY == "attention") & INPUTS.str.contains(r"^f32(?:/f32)*$")
_PRODUCTS: Final = FAMILY.is_in(["gemm", "conv"]) & INPUTS.str.contains(r"^tf32(?:/tf32)*$")

#: The least part of the kernel time that such attention takes, and what kernels of bfloat16 leave of it: forward and
#: backward on an H200 0.08 to 0.2, of rows of 128 to 512 0.3 to 0.4.
_MUCH_ATTENTION: Final = 0.1
_ATTENTION_LEFT: Final = 0.2


@on_gpu.choosing(_ATTENTION | _PRODUCTS, _MUCH_ATTENTION, PYTORCH)
def half_precision(work: Work) -> Finding | None:
    """One finding per device whose fused attention is of float32, with its products in TF32."""
    rows = on_gpu.with_decoded(work.rows, attends=_ATTENTION)
    attention_ns = total(rows.filter("attends"), "exclusive_ns")
    if attention_ns < _MUCH_ATTENTION * work.device.kernel_ns or work.device.capability < _SINCE["bf16"]:
        return None
    left = pl.when("attends").then(_ATTENTION_LEFT).otherwise(on_gpu.HALF_LEFT)
    return work._replace(rows=rows).finding(
        "half-precision", saved=on_gpu.part("dur_ns", 1 - left), multiplies=attention_ns < work.ns
    )


# Arithmetic in float64, which tensors made of NumPy's arrays and Python's floats bring in.

#: Peak rate of products in TF32 over that in float64, by compute capability; the least of other GPUs, whose float64
#: runs at a thirty-second of float32 or less. Source: NVIDIA's datasheets of V100 (7.8 TFLOP/s, and 15.7 in float32),
#: A100 (19.5, 156), H100 SXM (66.9, 494.7) and B200 (37, 1100).
_FASTER: Final = {(7, 0): 15.7 / 7.8, (8, 0): 156 / 19.5, (9, 0): 494.7 / 66.9, (10, 0): 1100 / 37}

#: Kernels whose tensors are of float64: types of scalars and of sums are others. An elementwise kernel that casts its
#: operands computes in the widest of their types.
_DOUBLE: Final = ["f64", "c128"]
_DOUBLES: Final = INPUTS.str.contains(r"\b(?:f64|c128)\b") | (
    (INPUTS == "")
    & (OUTPUT.is_in(_DOUBLE) | (FAMILY.is_in(["elementwise", "fft"]) & pl.col("accumulator_type").is_in(_DOUBLE)))
)

#: Casts to another type from one that only the call knows.
_CASTS: Final = (LIBRARY == "aten") & (OPERATION == "copy") & (INPUTS == "") & ~OUTPUT.is_in(_DOUBLE)


@on_gpu.choosing(_DOUBLES, 0.03, PYTORCH, JAX)  # sums for accuracy are in well-made programs, too
def float64(work: Work) -> Finding:
    """One finding per device whose kernels compute on float64 tensors."""
    lines = on_gpu.stream_lines(work.report, work.device.device)
    doubles = lines.get_column("row").is_in(work.rows.get_column("row").implode())
    # a cast right after is from float64, and none is left
    casts = lines.filter(on_gpu.decoded_as(lines, _CASTS) & doubles.shift(1, fill_value=False))
    products = on_gpu.decoded_as(work.rows, FAMILY.is_in(["gemm", "conv"]))
    left = 1 / max(_FASTER.get(work.device.capability, 32.0) * on_gpu.OF_PEAK, 1.0)
    kept = pl.when(products).then(left).otherwise(on_gpu.HALF_LEFT)
    after = pl.max_horizontal(pl.col("exclusive_ns") * kept, on_gpu.LEAST_NS)
    saved = (pl.col("exclusive_ns") - after).floor().cast(pl.Int64).clip(lower_bound=0)
    return work.finding(
        "float64",
        in_products=total(work.rows.filter(products), "exclusive_ns"),
        left=None,
        mending=Mending(work.rows.select("row", saved_ns=saved), casts.get_column("row")),
        claims=pl.concat([work.rows.select("start", "end"), casts.select("start", "end")]),
    )


# Rows that are gathered again and again, and weights that are gathered for each token, copied to be read once.

_WORTH_GATHERS: Final = 0.2  # less of the kernel time is left out
_SORTS: Final = ("aten::sort", "aten::argsort", "aten::msort")

#: Gathers of single values are kernels of one name with scatters: their operator tells them.
_BY_VALUE: Final = OPERATION == "scatter_gather"


@on_gpu.choosing(on_gpu.GATHERS | _BY_VALUE, _WORTH_GATHERS / 2, PYTORCH)  # their operators launch others, too
def gathers(own: Work) -> Finding | None:
    """One finding per device that gathers matrices for products of many, or rows in a loop, each read by a kernel."""
    report, device = own.report, own.device
    lines = on_gpu.with_operators(report, on_gpu.stream_lines(report, device.device))
    lines = lines.with_columns(gathers=on_gpu.decoded_as(lines, on_gpu.GATHERS))
    # both matrices of a product may be gathered
    following = pl.when(~pl.col("gathers")).then("inner").backward_fill().over("line")
    after = pl.col("gathers").shift(1).over("line").fill_null(value=False)
    lines = lines.with_columns(read_by=after & on_gpu.decoded_as(lines, (FAMILY == "elementwise") | on_gpu.SUMS))
    embeds = (pl.col("outer") == "aten::embedding").fill_null(value=False)
    weights = lines.filter(pl.col("gathers") & ~embeds & following.is_in(on_gpu.BATCHED).fill_null(value=False))
    if total(weights, "exclusive_ns") >= _WORTH_GATHERS * device.kernel_ns:
        work = own._replace(rows=weights)
        return work.finding("gathers: of weights", work.longest)
    by_value = (pl.col("inner") == "aten::gather").fill_null(value=False) & on_gpu.decoded_as(lines, _BY_VALUE)
    own, every = (own._replace(rows=lines.filter(which)) for which in ("gathers", pl.col("gathers") | by_value))
    if not on_gpu.in_a_loop(every):
        return None
    pairs = own._replace(rows=lines.filter(pl.col("gathers") | pl.col("read_by")))
    summed = lines.filter(pl.col("gathers") & pl.col("read_by").shift(-1).over("line").fill_null(value=False))
    # a smaller part of them is read by an elementwise kernel right after: they are not for sums
    if total(summed, "exclusive_ns") < 0.5 * every.ns:
        return _whole(every, lines)
    if not on_gpu.in_a_loop(own):
        return None
    # the first of the gathers in a row stays, as long as reading all takes; others are gone, with what read them
    another = (pl.col("name") != pl.col("name").shift(2)).fill_null(value=True)
    read_ns = (pl.col("exclusive_ns") * on_gpu.READS).cast(pl.Int64) * pl.col("gathers")
    grouped = pairs.rows.with_columns(group=(pl.col("gathers") & another).cum_sum(), read_ns=read_ns)
    stays = grouped.select(pl.col("gathers") & pl.struct("group", "gathers").is_first_distinct()).to_series()
    saved = grouped.select("row", saved_ns=pl.col("exclusive_ns") - pl.col("read_ns").sum().over("group"))
    return pairs.finding(
        "gathers",
        own.longest,
        many=own.rows.height,
        share=units.percent(own.share),
        pairs=pairs.ns,
        mending=Mending(saved.filter(stays), grouped.filter(~stays).get_column("row")),
        at_stake_ns=pairs.ns if own.share >= _WORTH_GATHERS else 0,
    )


def _whole(own: Work, lines: pl.DataFrame) -> Finding:
    """Gathers whose results are not summed right after, as those of a cache that follows its beams.

    Or of rows that are sorted again and again: where their order stays, one sort, and one gather there and back, do.
    """
    outer, chosen = pl.col("outer").fill_null(""), pl.col("row").is_in(own.rows.get_column("row").implode())
    sorts, wraps = outer.is_in(_SORTS), outer == "aten::take_along_dim"  # makes an index positive, value by value
    followed = sorts & chosen.shift(-1, fill_value=False).over("line")
    per, rounds = say.per_iteration(own.report), lines.filter(chosen | ~wraps).select(followed.sum()).item()
    # so many gathers, there and back, of queries, keys and values, or fewer, are of rows that a sort orders
    again = rounds * 4 >= own.rows.height
    work = own._replace(rows=lines.filter(chosen | wraps | (sorts & again)))
    left = (per.iterations or 1) / rounds if again else on_gpu.READS
    return work.finding(
        "gathers: sorted" if again else "gathers: read later",
        own.longest,
        many=own.rows.height,
        sorts=rounds,
        mending=Mending(work.rows.select("row", saved_ns=on_gpu.part("exclusive_ns", 1 - left))),
    )


# Sums into few rows by atomics: index_add, scatter_add, and what indexing and embeddings do backward.

_LONGER: Final = 3.0  # so many times as long as what works on the same tensors is too long for the bytes of a sum
_NEAR: Final = 4  # kernels so near on their stream work on the same tensors

#: Operators that write by an index, and those that sum with them where deterministic algorithms are asked for.
_BY_INDEX: Final = ("aten::_index_put_impl_", "aten::index_put_")
_DETERMINISTIC: Final = re.compile(r"^aten::(?:index_add|index_select_backward|scatter_add|gather_backward)")

#: Operators that sum into rows by an index, by what users write.
_WRITTEN: Final = {
    **{f"aten::{name}": name.rstrip("_") for name in ("index_add", "index_add_", "scatter_add", "scatter_add_")},
    **{f"aten::{name}": name for name in ("scatter_reduce", "bincount", "histc")},
    "aten::put_": "put_, or take backward",
    **dict.fromkeys(_BY_INDEX, "indexing with a tensor, backward"),
    "aten::embedding_dense_backward": "an embedding, backward",
    "aten::_embedding_bag_dense_backward": "an embedding bag, backward",
}

#: Names of kernels that do so: those of PyTorch with a sum for what is scattered, those of gradients, and CuPy's.
_SCATTERS: Final = (
    "indexFunc\\w*Index.*ReduceAdd|_scatter_gather_elementwise_kernel.*Reduce(?:Add|Mean)|indexing_backward_kernel"
    "|compute_grad_weight|embedding_backward|sum_and_scatter|kernelHistogram1D"
    "|^cupyx?_(?:scatter_add|bincount|(?:weighted_)?histogram)"
    # put_ with accumulate, as of take backward; its second function writes without
    r"|\bput_kernel\(.*lambda\([^()]+&, \w+\)(?:#1\b| \(instance 1\))"
)

#: What reads and writes tensors at the bandwidth of the memory.
_STREAMING: Final = ("elementwise", "copy", "reduce", "gemm", "normalization", "softmax", "attention")


@on_gpu.choosing(pl.col("name").str.contains(_SCATTERS), on_gpu.WORTH_SUMS / 2)
def scatter_atomics(sums: Work) -> Finding | None:
    """One finding per device on which sums into rows take far longer than what works on the same tensors."""
    slow = sums._replace(rows=_slow_sums(sums))
    if not slow.rows.height or slow.ns < on_gpu.WORTH_SUMS * sums.device.kernel_ns:
        return None
    inner, outer = slow.rows.sort("exclusive_ns").select("inner", pl.col("outer").fill_null("")).row(-1)
    written = _WRITTEN.get(inner or "", "sums")
    # each run of kernels takes as long as one that reads and writes the same tensors
    share = pl.col("exclusive_ns") / pl.col("exclusive_ns").sum().over("run")
    sorts = inner in _BY_INDEX and _DETERMINISTIC.search(outer) is not None
    left = (share * pl.col("usual_ns").fill_null(0)).ceil().cast(pl.Int64)
    # so many times as long take atomics into many rows (a graph's messages on an H200), half at most
    left = pl.min_horizontal(left * 8, pl.col("exclusive_ns") // 2) if sorts else left
    return slow.finding(
        f"scatter-atomics{': sorted' * sorts}",
        slow.longest,
        written=written,
        first=written.partition(",")[0],
        longer=_LONGER,
        sums=outer.removeprefix("aten::"),
        mending=Mending(slow.rows.select("row", saved_ns=pl.col("exclusive_ns") - left)),
    )


# a gradient of an embedding takes less than half; what XLA's kernels sum, and where, no report tells
@on_gpu.choosing(pl.col("name").str.contains("^input_scatter_fusion"), 0.5, JAX)
def scatters_of_jax(sums: Work) -> Finding:
    """One finding per device on sums into rows by an index that are so much of a program of JAX."""
    return sums.finding("scatter-atomics: JAX", left=None)


def _with_table(shapes: str) -> str:
    """How many times the bytes of its values a sum into rows moves at most: of its table, read and written, as many."""
    sides = [one for one in parsed(shapes) if isinstance(one, list) and all(isinstance(side, int) for side in one)]
    table, *others = [math.prod(one) for one in sides if one] or [1]
    return str(1 + 2 * min(1.0, table / max([*others, 1])))


def _slow_sums(work: Work) -> pl.DataFrame:
    """Sums that take too long, with what else their operator runs, inner and usual_ns (of a kernel near them)."""
    lines = on_gpu.stream_lines(work.report, work.device.device)
    sums = pl.col("row").is_in(work.rows.get_column("row").implode())
    kernels = pl.col("kind") == "kernel"
    own = ((sums | pl.col("inner").is_in(_WRITTEN.keys())) & kernels).fill_null(value=False)
    # what scatter_reduce does backward, which counts the values of each row, of means, or those that are the largest
    along = (own | pl.col("node").str.starts_with("ScatterReduceBackward")).fill_null(value=False)
    streams = on_gpu.decoded_as(lines, FAMILY.is_in(_STREAMING))
    marked = on_gpu.with_operators(work.report, lines).with_columns(own=own, along=along, sums=sums, streams=streams)
    marked = marked.with_columns(run=pl.struct("line", "along").rle_id())
    others = pl.when(pl.col("streams") & ~pl.col("along")).then("exclusive_ns")
    near = pl.max_horizontal(others.shift(step).over("line") for step in range(-_NEAR, _NEAR + 1) if step)
    shapes = operations_with_roofs(work.report).select("row", "dram_ns", "input_shapes")
    usual = marked.with_columns(near=near).filter(kernels & pl.col("along"))
    usual = usual.join(shapes, on="row", how="left", maintain_order="left")
    tables = columns.told_of(usual.get_column("input_shapes"), _with_table, pl.Float64)
    # sums that do not wait take so many times what their bytes take at the memory's bandwidth
    free_ns = (2 * tables * pl.col("dram_ns")).cast(pl.Int64).clip(lower_bound=on_gpu.SHORTEST_NS)
    usual = usual.with_columns(free_ns=free_ns)
    by_bytes = pl.when(pl.col("free_ns").is_not_null().all()).then(pl.col("free_ns").sum())
    usual = usual.with_columns(usual_ns=pl.min_horizontal(pl.col("near").max().over("run"), by_bytes.over("run")))
    took = pl.when("own").then("exclusive_ns").sum().over("run")  # slow by the sums alone
    return usual.filter(pl.col("sums").any().over("run") & (took >= _LONGER * pl.col("usual_ns").fill_null(0)))


@Rule
def deterministic_sums(report: Report) -> Findings:
    """At most one finding per device on operators that sort an index to sum by it, and what the host does there."""
    sums = on_host.outermost(report).filter(pl.col("name").str.contains(_DETERMINISTIC.pattern))
    puts = on_host.operators(report).filter(pl.col("name").is_in(_BY_INDEX)).select(*threads.THREAD, at="start")
    sums = sums[on_gpu.span_of(puts, sums.select(on_host.SPAN)).drop_nulls().unique().sort()]
    if sums.is_empty():
        return
    inside = on_host.within(report, sums)
    # one launch takes their place, of a kernel that adds as this one does
    left = on_host.within(report, sums.with_columns(pl.min_horizontal(pl.col("start") + say.LAUNCH_NS, "end")))
    work = exclusive_operations(report)
    adds = work.get_column("row").filter(on_host.kernels_named(work, _SCATTERS))
    change = inside.mending.keeping(adds)._replace(host=left.host)
    operator = say.most(sums, "name").removeprefix("aten::")
    yield from on_host.on_time(report, "scatter-atomics: deterministic", inside, change, sums=operator)


# Transforms (FFT) of lengths with large prime factors.

_FFT: Final = FAMILY == "fft"
_BLUESTEIN: Final = pl.col("function").str.contains("bluestein")


@on_gpu.choosing(_FFT, 0.1)
def transform_length(work: Work) -> Finding | None:
    """One finding per device on transforms by Bluestein's algorithm, of which other kernels may be the most."""
    lines = on_gpu.with_decoded(on_gpu.stream_lines(work.report, work.device.device), transforms=_FFT, odd=_BLUESTEIN)
    near = pl.any_horizontal(pl.col("odd").shift(places).over("line") for places in (-1, 0, 1))
    rows = work.rows.join(lines.filter(pl.col("transforms") & near), on="row", how="semi")
    # what is left of such a transform, which is two of a length at least twice as long, and passes between them: of 30
    # on an H200 8 to 33 %, 17 in the median
    return work._replace(rows=rows).finding("transform-length", work.most, left=0.2) if rows.height else None


_WEIGHTS: Final = 4  # a layer of a recurrent network has so many; other copies in a call are fewer


@Rule
def scattered_weights(report: Report) -> Findings:
    """At most one finding per device on recurrent networks of cuDNN whose calls copy their weights into one buffer."""
    every = on_host.operators(report)
    # autocast's, which has another in it, copies its weights as it casts them
    calls = every.filter(name="aten::_cudnn_rnn").select(*threads.THREAD, "start", "parent", "row")
    calls = calls.join(calls.select(row="parent"), on="row", how="anti").drop("parent").rename({"row": "parent"})
    copies = every.filter(name="aten::copy_").group_by("parent").agg(pl.col("end").max(), many=pl.len())
    copying = calls.join(copies.filter(pl.col("many") >= _WEIGHTS), on="parent").drop("parent", "many")
    yield from on_host.on_time(report, "scattered-rnn-weights", on_host.within(report, copying))
