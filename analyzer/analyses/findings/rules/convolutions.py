"""Convolutions and recurrent layers in whose place others are quicker: those of cuDNN, and transforms."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from kanalyze.analyses.findings import on_gpu, on_host
from kanalyze.analyses.findings.on_gpu import Work
from kanalyze.analyses.findings.rules import Findings, Rule
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.work.work import operations_with_roofs
from kanalyze.columns import nearest
from kanalyze.report import Report

#: What PyTorch runs in place of cuDNN: products of copied rows of pixels, image by image, and networks step by step.
_IN_ITS_PLACE: Final = r"^aten::(?:_slow_conv2d_forward|lstm|gru|rnn_tanh|rnn_relu)$"
_TYPES: Final = r'^\["(?:float|c10::Half)"'  # that cuDNN takes, and is quick with, on any GPU
_OF_CUDNN: Final = r"^aten::(?:_?cudnn_(?:convolution|batch_norm|rnn)|_?miopen_)"
_STEPS: Final = 8  # operations of a layer that cuDNN does in a few

#: What is left of the kernels: no rows are copied, products are of all images or steps, float32 ones are in TF32.
_LEFT: Final = 0.25


@Rule
def cudnn_off(report: Report) -> Findings:
    """At most one finding per device, where nothing runs by cuDNN, and layers do that it has kernels for."""
    every, name = on_host.operators(report), pl.col("name")
    if every.filter(name.str.contains(_OF_CUDNN)).height:
        return
    typed = pl.col("input_types").cast(pl.String).str.contains(_TYPES).fill_null(value=False)
    own = every.filter(name.str.contains(_IN_ITS_PLACE) & typed).select(at="row", inner="name")
    layers = on_host.working(report).filter((pl.col("launches") >= _STEPS) & ~name.str.ends_with("_backward"))
    layers = nearest(own, layers.sort("row"), ("at", "row")).filter(pl.col("at") < pl.col("stop")).unique("row")
    if layers.is_empty():
        return
    which = " and ".join(sorted(layers.get_column("name").str.strip_prefix("aten::").unique()))
    inside = on_host.within(report, pl.concat([layers.select(on_host.SPAN), on_host.gradients(report, layers)]))
    figures = {"which": which, "launches": len(inside.mending.gone)}
    yield from on_host.on_time(report, "cudnn-off", inside, partial(_by_cudnn, inside=inside), **figures)


def _by_cudnn(report: Report, inside: on_host.Within) -> Mending:
    """Each layer is one launch, forward and backward, which takes a part of the time of its kernels."""
    line = on_host.by_span(report, inside)
    left = on_gpu.part("dur_ns", _LEFT).sum().over("span")
    groups = line.select("row", "dur_ns", group="span", kept=pl.lit(1), merged_ns=left)
    return on_gpu.merged(groups.sort("group"))._replace(calls=inside.mending.calls, host=inside.mending.host)


# Convolutions of so many taps that transforms (FFT) do the same with far less arithmetic.

_TAPS: Final = 512  # the least number of taps that is told of

#: Three transforms, and a product of these, read or write so many times what they are given, padded, and take so long
#: at least (ns), in a dozen kernels. Half of the time is to be won.
_PASSES: Final = 16
_LEAST_NS: Final = 60_000
_WORTH: Final = 0.5
_BYTES: Final = 4  # of a value


@Rule
def long_convolution(report: Report) -> Findings:
    """At most one finding per device on convolutions by channel whose kernels have very many taps in one dimension."""
    group = (pl.col("group") == "convolutions").fill_null(value=False)
    every = operations_with_roofs(report).filter(group, ~pl.col("op").str.contains("transpose"))
    later, shapes = pl.col("op").str.ends_with("_backward"), pl.col("input_shapes")  # which is given the gradient first
    images, weights = (
        pl.when(later).then(on_host.sides(shapes, at + 1)).otherwise(on_host.sides(shapes, at)).list for at in (0, 1)
    )
    sides = [(images.get(at, null_on_oob=True) + weights.get(at, null_on_oob=True) - 1).fill_null(1) for at in (2, 3)]
    batch, channels, results = (of.get(at, null_on_oob=True) for of, at in ((images, 0), (images, 1), (weights, 0)))
    rows = batch * channels + results + batch * results
    own = every.with_columns(
        taps=weights.slice(2).list.max(),
        line=weights.slice(2).list.eval(pl.element().product()).list.first() == weights.slice(2).list.max(),
        single=weights.get(1, null_on_oob=True) == 1,
        padded=_BYTES * rows * sides[0] * sides[1],
    )
    # by a stride they are not fewer; backward they are twice as many
    left = _PASSES * (1 + later.cast(pl.Int64)) * pl.col("padded") * pl.col("dram_ns") / pl.col("bytes") + _LEAST_NS
    own = own.with_columns(left=left / pl.col("took_ns"))
    own = own.filter(pl.col("single") & pl.col("line") & (pl.col("taps") >= _TAPS) & (pl.col("left") <= _WORTH))
    for device in on_gpu.kernel_sums(report) if own.height else ():
        work = Work(report, device, own.filter(device=device.device))
        if work.rows.height:
            saved = work.rows.select("row", saved_ns=on_gpu.part("dur_ns", 1 - pl.col("left")))
            taps = work.rows.get_column("taps").max()
            yield work.finding("long-convolution", work.most, taps=taps, left=None, mending=Mending(shorter=saved))
