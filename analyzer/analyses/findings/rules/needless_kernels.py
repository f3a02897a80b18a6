"""Kernels that others spare: unfused attention, conversions of layouts and types, biases that are taken away again."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.findings.rules._kernels import (
    Told,
    decoded_as,
    is_compiled,
    is_layout,
    kernel_sums,
    kernels_that,
    on_kernels,
    stream_lines,
    times_of,
    without,
)
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import in_pytorch, launch_before, operator_of, per_iteration, place_of
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._paths import forward_rows, inherited
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cut import touched
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import beside, gathered
from kanalyze.decoder.decode import decode
from kanalyze.units import mean, percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: One such softmax may be something else.
_FEWEST_SOFTMAXES: Final = 2

#: Maximum distance of a softmax from either product, in operations: scale, mask, casts, dropout.
_FARTHEST: Final = 9

#: Dropout, among the kernels that draw random numbers.
_DROPOUT: Final = ("dropout", "masked_scale")

#: Memsets, and copies within the device.
_MOVES: Final = (pl.col("kind") == "memset") | (pl.col("name") == "[CUDA memcpy Device-to-Device]")

#: Operators of the products of attention, of all heads at once.
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")

#: The operator that PyTorch's attention falls back to.
_FALLBACK: Final = "aten::_scaled_dot_product_attention_math"


def unfused_attention(report: Report) -> list[Finding]:
    """One finding per device on which softmaxes of scores stand between two products again and again."""
    found = []
    for device in kernel_sums(report):
        if device.chosen(_is_softmax).launches >= _FEWEST_SOFTMAXES and device.chosen(_is_product).launches:
            chains = _chains(report, stream_lines(report, [device.device]))
            if total(chains, "softmax") >= _FEWEST_SOFTMAXES:
                found.append(_attention(report, device, chains))
    return found


def _is_softmax(said: KernelName) -> bool:
    return said.family == "softmax" and said.operation == "softmax"


def _is_product(said: KernelName) -> bool:
    return said.family == "gemm"


def _passes(said: KernelName) -> bool:
    """Whether a kernel may stand between a softmax and a product: scale, mask, cast, dropout."""
    drops = said.family == "random" and said.operation in _DROPOUT
    return said.family in {"elementwise", "copy", "fill"} or drops


def _chains(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The operations of `lines` that attention takes, with `softmax` (whether it is one).

    A chain is a softmax between two products with nothing but elementwise work in between; backward, the neighbouring
    product on either side belongs to it. Copies right before and after bring its inputs and outputs into place.
    """
    place, moves = pl.int_range(pl.len()), lines.select(_MOVES).to_series()
    known = lines.with_columns(
        place=place,
        softmax=decoded_as(lines, _is_softmax),
        product=decoded_as(lines, _is_product),
        passes=decoded_as(lines, _passes) | moves,
        copies=decoded_as(lines, lambda said: said.family == "copy") | moves,
        changes=decoded_as(lines, lambda said: said.family == "elementwise").cast(pl.Int64).cum_sum(),
        line=pl.struct("device", "process_id", "stream").rle_id(),
        batched=_batched(report, lines),
    )
    wall, of_product = pl.when(~pl.col("passes") & ~pl.col("product")).then("place"), pl.when("product").then("place")
    works = pl.when(~pl.col("copies")).then("place")
    known = known.with_columns(
        first=of_product.forward_fill().over("line"),
        last=of_product.backward_fill().over("line"),
        before=wall.forward_fill().shift(1).over("line").fill_null(-1),
        after=wall.backward_fill().shift(-1).over("line").fill_null(lines.height),
        # where copies right before and after a row begin and end
        since=pl.coalesce(works.forward_fill().shift(1).over("line") + 1, pl.col("place").min().over("line")),
        until=pl.coalesce(works.backward_fill().shift(-1).over("line"), pl.col("place").max().over("line") + 1),
    )
    return known.filter(_inside(known, _ends(known.filter(_between()), known)))


def _between() -> pl.Expr:
    """Whether a row is a softmax between two products."""
    near = (pl.col("first") > pl.col("before")) & (pl.col("last") < pl.col("after"))
    close = (pl.col("place") - pl.col("first") <= _FARTHEST) & (pl.col("last") - pl.col("place") <= _FARTHEST)
    return pl.col("softmax") & (near & close).fill_null(value=False)


def _ends(found: pl.DataFrame, known: pl.DataFrame) -> pl.DataFrame:
    """The places from which to which each chain goes: first, last."""
    product, line, changes, batched = (known.get_column(name) for name in ("product", "line", "changes", "batched"))
    first, last = found.get_column("first"), found.get_column("last")
    backward = decoded_as(found, lambda said: said.direction == "backward")
    # a network may end with a softmax, after which the next call of it begins with a product: attention is known by the
    # operators of its products, or else by the scale or mask before its softmax
    scaled = (changes.gather(found.get_column("place")) > changes.gather(first)) | backward
    told = batched.gather(first) & batched.gather(last)
    certain = told.fill_null(scaled) if batched.has_nulls() else told
    near = pl.DataFrame({"first": first, "last": last, "backward": backward}).filter(certain)
    for column, step in (("first", -1), ("last", 1)):
        at = near.get_column(column)
        beside = (at + step).clip(0, known.height - 1)
        joins = near.get_column("backward") & product.gather(beside) & (line.gather(beside) == line.gather(at))
        near = near.with_columns(at.zip_with(~joins, beside).alias(column))
    return near


def _inside(known: pl.DataFrame, ends: pl.DataFrame) -> pl.Series:
    """Whether each place lies in a chain, or is one of the copies right before or after it."""
    begin = known.get_column("since").gather(ends.get_column("first"))
    stop = known.get_column("until").gather(ends.get_column("last"))
    spans = intervals.union(pl.DataFrame([begin.alias("start"), stop.alias("end")]))
    return touched(known.select(start="place", end=pl.col("place") + 1), spans)


def _batched(report: Report, lines: pl.DataFrame) -> pl.Series:
    """Whether each operation is of a batched product's operator; null where no operator is known."""
    known = lines.select("row").join(launching_operators(report), on="row", how="left", maintain_order="left")
    return known.select(batched=pl.col("inner").is_in(_BATCHED)).to_series()


def _attention(report: Report, device: DeviceKernels, chain: pl.DataFrame) -> Finding:
    told, many, ns = per_iteration(report), total(chain, "softmax"), total(chain, "exclusive_ns")
    most = chain.filter("softmax").sort("exclusive_ns", "name").item(-1, "name")
    share = percent(ns / max(device.kernel_ns, 1))
    falls_back = "op" in report.kinds and (report.kind("op").get_column("name").cast(pl.String) == _FALLBACK).any()
    why = " PyTorch's attention fell back to it: type, mask or head size do not suit its kernels." if falls_back else ""
    text = (
        f"Attention runs as product, softmax and product: {told.plural(many, 'softmax pass')} over scores (most {{0}}) "
        f"in chains of {mean(chain.height, many)} kernels, {told.time(ns)}, {share} of kernel time. A fused kernel "
        f"keeps the scores on the chip, and takes a small part of that.{why}"
    )
    call = "F.scaled_dot_product_attention(q, k, v)"
    remedy = (
        f"Let one kernel do it: {call} in bfloat16 or float16, with is_causal=True in place of a mask where that is "
        f"meant."
        if in_pytorch(report)
        else "Let one kernel do it: cuDNN's attention, or FlashAttention."
    )
    return Finding(
        "unfused-attention",
        device.device,
        ns,
        text,
        remedy,
        "kernels --by family",
        (str(most),),
        headline=f"Attention is not fused: {share} of kernel time",
        action=call if in_pytorch(report) else "attention of cuDNN, or FlashAttention",
        where=place_of(report, pl.col("row").is_in(chain.get_column("row").implode())),
        mending=lambda _: _fused_attention(chain),
        claims=times_of(report, chain.get_column("row")),
    )


#: What is left of the products of attention in a fused kernel, which neither writes the scores nor reads them again: on
#: an H100, of heads of 64 in bfloat16, 40 % forward and 55 % backward.
_PRODUCTS_LEFT: Final = 0.6


def _fused_attention(chain: pl.DataFrame) -> Mending:
    products = decoded_as(chain, _is_product)
    saved = (pl.col("exclusive_ns") * (1 - _PRODUCTS_LEFT)).floor().cast(pl.Int64)
    return Mending(
        shorter=chain.filter(products).select("row", saved_ns=saved), gone=chain.filter(~products).get_column("row")
    )


#: Conversions with a smaller part of the kernel time are left out: some are in well-made programs, too.
_WORTH: Final = 0.01

#: Normalizations of images in NCHW, channel by channel, and what is left of them in channels_last: less than half of a
#: ResNet's on an H100.
_BY_CHANNEL: Final = r"batch_norm_(?:collect_statistics|backward)_kernel\b|\bbn_(?:fw|bw)_\w*NCHW"
_NORMS_LEFT: Final = 0.5


def layout_conversions(report: Report) -> list[Finding]:
    """One finding per device on which cuDNN converts images to the layout of its kernels and back."""
    return [_layouts(report, *one) for one in kernels_that(report, lambda said, _: is_layout(said), _WORTH)]


def _layouts(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    remedy = (
        "Keep model and images in channels_last: model.to(memory_format=torch.channels_last), and the same for images "
        "(of videos and volumes: channels_last_3d)."
        if in_pytorch(report)
        else "Give cuDNN tensors in NHWC, the layout of its fastest kernels."
    )
    told = Told(
        "layout-conversions",
        "conversion",
        "of images between NCHW and NHWC by cuDNN (most {0})",
        ". More may be gained without: convolutions, normalizations and what is between them run other kernels on "
        "images in NHWC.",
        remedy,
        "kernels --by operation",
        f"Images change their layout: {percent(chosen.share)} of kernel time",
        CHANNELS_LAST if in_pytorch(report) else "tensors in NHWC",
        left=0.0,
    )
    norms = pl.Series([re.search(_BY_CHANNEL, name) is not None for name in device.rows.get_column("name")])
    slow = chosen._replace(rows=device.rows.filter(norms))
    work = exclusive_operations(report)
    conversions, images = (work.filter(one.operations(device.device)) for one in (chosen, slow))
    saved = (pl.col("dur_ns") * (1 - _NORMS_LEFT)).floor().cast(pl.Int64)
    return on_kernels(report, device, chosen, told)._replace(
        mending=lambda _: Mending(images.select("row", saved_ns=saved), conversions.get_column("row")),
        claims=pl.concat([conversions, images]).select("start", "end"),
    )


#: Casts with a smaller part of the kernel time are left out: losses and norms in float32 need some.
_WORTH_CASTING: Final = 0.03

#: Fewer casts than these do not recur.
_FEWEST_CASTS: Final = 32

#: Types of weights and what is computed with them.
_FLOATS: Final = {"f64": "float64", "f32": "float32", "bf16": "bfloat16", "f16": "float16"}


def recurring_casts(report: Report) -> list[Finding]:
    """One finding per device whose kernels convert values between types again and again."""
    casting = [(device, device.chosen(_is_cast)) for device in kernel_sums(report)]
    return [_casts(report, device, chosen) for device, chosen in casting if _recur(report, chosen)]


def _recur(report: Report, chosen: Chosen) -> bool:
    return chosen.share >= _WORTH_CASTING and chosen.launches >= max(
        _FEWEST_CASTS, per_iteration(report).iterations or 1
    )


def _is_cast(said: KernelName) -> bool:
    """Whether a kernel of PyTorch copies to another type: one whose input's type only the call tells casts, too."""
    given, made = said.input_types, said.output_type
    return said.library == "aten" and said.operation == "copy" and made in _FLOATS and given != (made,)


def _types_of(chosen: Chosen) -> set[str]:
    """The types from and to which kernels cast, as far as their names say so."""
    said = [decode(name) for name in chosen.rows.get_column("name")]
    return {one.output_type or "" for one in said} | {one for each in said for one in each.input_types}


def _types(chosen: Chosen) -> str:
    """The types between which the kernels cast: ``between bfloat16 and float32``; of more or fewer it names none."""
    types = _types_of(chosen)
    names = sorted(_FLOATS.get(one, one) for one in types)
    return f"between {names[0]} and {names[1]}" if len(names) == len(("from", "to")) else "from type to type"


def _waited(report: Report, device: DeviceKernels, chosen: Chosen) -> int:
    """Idle time of the device right before casts that begin after it, in ns.

    Of each it counts from the end of the process's launch before, and is no more than in the median: what else the
    host did now and then, such as loading data, is not the cast's.
    """
    if "api" not in report.kinds:
        return 0
    work = exclusive_operations(report, "call_start").filter(chosen.operations(device.device))
    work = work.select("process_id", "start", at="call_start")
    before = launch_before(report, work)
    gaps = idle_spans(report)[device.device].select(since="start", start="end")
    known = work.with_columns(before=before).drop_nulls("before").join(gaps, on="start")
    idle = known.select(ns=pl.col("start") - pl.max_horizontal("since", "before")).filter(pl.col("ns") > 0).to_series()
    median = idle.sort().item(len(idle) // 2) if len(idle) else 0
    return int(idle.clip(upper_bound=median).sum())


#: Which casts autocast makes.
_AUTOCAST: Final = (
    "autocast casts weights of float32 in each forward pass and their gradients back, in any program that uses it: the "
    "larger the batch, the smaller their share."
)


#: Another way, by whether torch.compile made some of the kernels.
_COMPILE: Final = "; torch.compile fuses casts into the kernels around them"
_RUNS_COMPILED: Final = "; these are outside of what torch.compile has fused"


def _casts(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    per, most = per_iteration(report), decode(chosen.longest)
    source, made = (_FLOATS.get(one, one) for one in ((*most.input_types, "")[0], most.output_type or ""))
    to = f"to {made}" + (f" from {source}" if source else "")
    waited, compiled = _waited(report, device, chosen), device.chosen(is_compiled).launches > 0
    types = _types_of(chosen)  # with float16, as under autocast, and without an optimizer, which would be of a training
    half = "f16" in types and "bf16" not in types
    half = half and not device.chosen(lambda said: said.family == "optimizer").launches
    weights = "model.half(), or bfloat16 for training" if half else "model.to(torch.bfloat16), for training"
    otherwise = "cast them once" if compiled else "torch.compile(model)"
    around = operator_of(report, chosen.operations(device.device))
    told = Told(
        "recurring-casts",
        "cast",
        f"between types, most {to} ({{0}})",
        f"{f', most in {around}' if around else ''}; the GPU idled {per.time(waited)} until they were launched. "
        f"{_AUTOCAST}",
        f"Keep weights in the type that they are used in ({weights} with an optimizer that keeps float32 copies), or "
        f"cast once and reuse{_RUNS_COMPILED if compiled else _COMPILE}.",
        "kernels --by operation",
        per.plural(chosen.launches, "cast", _types(chosen)),
        f"keep weights in {'half precision' if half else 'bfloat16'}, or {otherwise}",
        chosen.ns + waited,
        left=0.0,
    )
    return on_kernels(report, device, chosen, told)


_CONVOLUTIONS: Final = ("aten::conv1d", "aten::conv2d", "aten::conv3d")
_NORMALIZATION: Final = "aten::batch_norm"

#: The place of the bias among a convolution's inputs: image, weight, bias.
_BIAS: Final = 2

#: Operators that add the bias, forward, and that sum its gradient, backward, within those of a convolution.
_FORWARD: Final = "aten::add_"
_BACKWARD: Final = "aten::sum"


def bias_before_batchnorm(report: Report) -> list[Finding]:
    """One finding per device that adds such biases."""
    operators = report.kind("op").get_column("name").unique().cast(pl.String)
    if not {"op", "kernel"}.issubset(report.kinds) or _NORMALIZATION not in operators:
        return []
    useless = _useless(report)
    if useless.is_empty():
        return []
    work = _of_bias(report, useless)
    found = []
    for device in kernel_sums(report):
        own = work.filter(pl.col("device") == device.device)
        if ns := total(own, "exclusive_ns"):
            found.append(_biased(report, device.device, own, percent(ns / max(device.kernel_ns, 1))))
    return found


def _useless(report: Report) -> pl.DataFrame:
    """The convolutions with a bias before a batch normalization: row (of the host tree), stop, in order of rows."""
    tree = host_tree(report)
    rows = tree.rows.select(*THREAD, "name", "parent", "stop", event_id="last_id").with_row_index("row")
    rows = rows.with_columns(pl.col("row").cast(pl.Int64), operator=tree.of_kinds("op"))
    around = tree.nearest(rows.get_column("parent"), rows.get_column("operator"))
    outermost = rows.filter(rows.get_column("operator") & around.is_null())
    named = outermost.with_columns(pl.col("name").cast(pl.String))
    # the normalization counts its batches before it begins
    counts = (pl.col("name") == _FORWARD) & (pl.col("name").shift(-1) == _NORMALIZATION)
    named = named.filter(~counts.fill_null(value=False))
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(key).shift(-1)) for key in THREAD)
    follows = pl.col("name").is_in(_CONVOLUTIONS) & (pl.col("name").shift(-1) == _NORMALIZATION) & same
    found = named.filter(follows.fill_null(value=False)).select("row", "stop", "event_id")
    types = beside(found, report.table("op_detail"), "input_types").get_column("input_types").cast(pl.String)
    biased = [text for text in types.unique().drop_nulls() if _has_bias(text)]
    return found.filter(types.is_in(biased).fill_null(value=False)).select("row", "stop")


def _has_bias(text: str) -> bool:
    """Whether types of a convolution's inputs, as recorded, have one for the bias."""
    try:
        types = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(types, list) and len(types) > _BIAS and isinstance(types[_BIAS], str) and bool(types[_BIAS])


def _of_bias(report: Report, convolutions: pl.DataFrame) -> pl.DataFrame:
    """The kernels that add these convolutions' biases, and that sum their gradients."""
    rows = host_tree(report).rows
    work = launched_work(report).filter(pl.col("kind") == "kernel")
    operator = work.get_column("operator")
    cause = gathered(inherited(rows, forward_rows(report)), operator)
    names = gathered(rows.get_column("name"), operator).cast(pl.String)
    forward = (names == _FORWARD) & _within(operator, convolutions)
    backward = (names == _BACKWARD) & _within(cause, convolutions)
    return work.filter((forward | backward).fill_null(value=False))


def _within(rows: pl.Series, spans: pl.DataFrame) -> pl.Series:
    """Whether each of some rows of the host tree lies in one of the subtrees `spans` (row, stop)."""
    last = spans.get_column("row").search_sorted(rows.cast(pl.Int64), side="right").cast(pl.Int64) - 1
    stop = gathered(spans.get_column("stop"), last.set((last < 0) | rows.is_null(), None))
    return (rows < stop).fill_null(value=False)


def _biased(report: Report, device: int, own: pl.DataFrame, share: str) -> Finding:
    told, ns = per_iteration(report), total(own, "exclusive_ns")
    text = (
        f"{told.plural(own.height, 'kernel')} add biases of convolutions, or sum their gradients, before a batch "
        f"normalization, which takes off the mean and the bias with it: {told.time(ns)}, {share} of kernel time."
    )
    return Finding(
        "bias-before-batchnorm",
        device,
        ns,
        text,
        "Leave the bias out: Conv2d(…, bias=False) where a BatchNorm follows, which has one of its own.",
        "op_kernels",
        headline=f"Biases before BatchNorm are {share} of kernel time",
        action="Conv2d(…, bias=False) before BatchNorm2d",
        where=place_of(report, pl.col("row").is_in(own.get_column("row").implode())),
        mending=lambda _: without(own),
        claims=times_of(report, own.get_column("row")),
    )


RULES: Final = (unfused_attention, layout_conversions, recurring_casts, bias_before_batchnorm)
