"""Losses by hand over large logits, where one fused operator would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernel_sums, stream_lines
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration, place_of
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Less of the kernel time is left out.
_WORTH: Final = 0.08

#: A kernel that takes this part of the softmax's time, or more, works on tensors of its size.
_FULL: Final = 0.15

#: So many passes over the logits besides softmax, copies, casts and fills are a loss by hand.
_FEWEST: Final = 2

#: What may stand between two products in a loss.
_FAMILIES: Final = ("elementwise", "copy", "fill", "reduce", "softmax", "loss", "index")

#: Operators of products of many matrices, between which softmax is attention's.
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")

#: Types of half the size of float32, in which logits are computed.
_SHORT: Final = ("bf16", "f16")

#: Part of the name of softmax kernels for rows of up to 1024 or 2048 values, as of attention's scores.
_SHORT_ROWS: Final = "softmax_warp"

#: How many of these kernels a fused loss has, forward and backward.
_LEFT: Final = {"softmax": 2, "fill": 1}

#: What is left of a pass over float32 in such a type.
_HALF: Final = 0.5


def large_logits(report: Report) -> list[Finding]:
    """One finding per device with losses of several passes over tensors as large as a softmax's."""
    found = []
    for device in kernel_sums(report) if in_pytorch(report) else ():
        if device.chosen(_is_softmax).share >= _WORTH * _FULL:
            passes = _losses(report, stream_lines(report, [device.device]))
            if total(passes, "exclusive_ns") >= _WORTH * device.kernel_ns:
                found.append(_by_hand(report, device, passes))
    return found


def _is_softmax(said: KernelName) -> bool:
    """Whether a kernel is a softmax of long rows, or its exponential by hand."""
    by_hand = said.library == "aten" and said.family == "elementwise" and said.operation == "exp"
    return by_hand or (said.family == "softmax" and _SHORT_ROWS not in said.function)


def _is_cast(said: KernelName) -> bool:
    return said.operation == "copy" and said.library == "aten" and said.input_types != (said.output_type,)


def _losses(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The passes of losses by hand: rows of `lines` with run, softmax, cast, fill and short.

    A loss is a run of kernels between two products with a large softmax in it; passes are those about as long.
    """
    moves = (pl.col("kind") == "memset") | (pl.col("name") == "[CUDA memcpy Device-to-Device]")
    known = lines.join(launching_operators(report), on="row", how="left", maintain_order="left")
    known = known.with_columns(
        passes=decoded_as(known, lambda said: said.family in _FAMILIES) | known.select(moves).to_series(),
        softmax=decoded_as(known, _is_softmax),
        cast=decoded_as(known, _is_cast),
        fill=decoded_as(known, lambda said: said.family == "fill"),
        moved=decoded_as(known, lambda said: said.family == "copy") | known.select(moves).to_series(),
        short=decoded_as(known, lambda said: said.output_type in _SHORT or bool({*_SHORT} & {*said.input_types})),
        line=pl.struct("device", "process_id", "stream").rle_id(),
    )
    wall = pl.when(~pl.col("passes")).then(pl.col("inner").is_in(_BATCHED))
    known = known.with_columns(
        attends=wall.forward_fill().over("line").fill_null(value=False)
        & wall.backward_fill().over("line").fill_null(value=False),
        run=pl.struct("line", "passes").rle_id(),
    )
    # of scores in 16 bits only operators tell whose they are
    told = pl.lit(value=known.get_column("inner").is_not_null().any()) | ~pl.col("short").all().over("run")
    runs = known.filter(pl.col("passes") & ~pl.col("attends") & told)
    longest = pl.col("exclusive_ns").filter("softmax").max().over("run")
    large = runs.filter(pl.col("exclusive_ns") >= _FULL * longest)
    other = (~pl.col("softmax") & ~pl.col("moved") & ~pl.col("fill")).sum().over("run")
    # those into a short type are of the backward pass: of autocast, too, which casts within the loss
    asked = pl.col("cast") & ~pl.col("short") & (pl.col("outer") == "aten::to").fill_null(value=False)
    return large.filter((other >= _FEWEST) | asked.any().over("run"))


def _by_hand(report: Report, device: DeviceKernels, passes: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(passes, "exclusive_ns")
    share, most = percent(ns / max(device.kernel_ns, 1)), passes.sort("exclusive_ns").item(-1, "name")
    wide = "" if passes.get_column("short").all() else " in float32"
    text = (
        f"A loss by hand works on large tensors of logits: {told.plural(passes.height, 'pass', 'over them')} around a "
        f"softmax{wide} (most {{0}}), {told.time(ns)}, {share} of kernel time. One fused cross entropy takes the "
        "logits as they are, and reads them once forward and once backward."
    )
    return Finding(
        "large-logits",
        device.device,
        ns,
        text,
        "Give logits and targets to F.cross_entropy as they are, without .float(), softmax and one_hot; of very large "
        "vocabularies by chunks of rows, or by a kernel fused with the last layer (Liger, cut cross entropy).",
        "kernels --by operation",
        (str(most),),
        headline=f"Large logits{wide}, the loss by hand: {share}",
        action="F.cross_entropy(logits, targets), without .float() and one_hot",
        where=place_of(report, pl.col("row").is_in(passes.get_column("row").implode())),
        mending=lambda _: _fused(passes),
        claims=passes.select("start", "end"),
    )


def _fused(passes: pl.DataFrame) -> Mending:
    """Two softmaxes, as forward and backward, and one fill of each loss are left, in the type of the logits."""
    softmax, fill = (pl.col(name) & (pl.col(name).cum_sum().over("run") <= kept) for name, kept in _LEFT.items())
    left = passes.with_columns(
        stays=softmax | fill,
        saved_ns=(pl.col("exclusive_ns") * (1 - _HALF)).floor().cast(pl.Int64),
        halves=pl.col("short").any().over("run"),
    )
    return Mending(
        shorter=left.filter(pl.col("stays") & pl.col("halves")).select("row", "saved_ns"),
        gone=left.filter(~pl.col("stays")).get_column("row"),
    )


RULES: Final = (large_logits,)
