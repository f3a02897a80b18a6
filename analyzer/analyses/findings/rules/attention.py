"""Attention that runs as matrix product, softmax and matrix product, with the scores in memory in between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernel_sums import decoded_as, kernel_sums, stream_lines
from kanalyze.analyses.findings.rules._places import place_of
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.columns.lookup import gathered, positions
from kanalyze.units import mean, percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernel_sums import DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: One such softmax may be something else.
_FEWEST: Final = 2

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
    chains = attention_chains(report)
    return [_attention(report, one, chains[one.device]) for one in kernel_sums(report) if one.device in chains]


@once_per_report
def attention_chains(report: Report) -> dict[int, pl.DataFrame]:
    """The operations that unfused attention takes, by device, where there is a finding: see :func:`_chains`."""
    found = {}
    for device in kernel_sums(report):
        if device.chosen(_is_softmax).launches >= _FEWEST and device.chosen(_is_product).launches:
            lines = _chains(report, stream_lines(report, [device.device]))
            if total(lines, "softmax") >= _FEWEST:
                found[device.device] = lines
    return found


def _is_softmax(said: KernelName) -> bool:
    return said.family == "softmax" and said.operation == "softmax"


def _is_product(said: KernelName) -> bool:
    return said.family == "gemm"


def _is_copy(said: KernelName) -> bool:
    return said.family == "copy"


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
        copies=decoded_as(lines, _is_copy) | moves,
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
    steps = pl.zeros(known.height + 1, dtype=pl.Int64, eager=True)
    for places, step in ((begin, 1), (stop, -1)):
        counts = places.value_counts().select(at=pl.first(), many=pl.col("count").cast(pl.Int64) * step)
        at = counts.get_column("at")
        steps = steps.scatter(at, steps.gather(at) + counts.get_column("many"))
    return steps.cum_sum().head(known.height) > 0


def _batched(report: Report, lines: pl.DataFrame) -> pl.Series:
    """Whether each operation is of a batched product's operator; null where operators are not recorded."""
    if "op" not in report.kinds:
        return pl.Series("batched", [None], dtype=pl.Boolean).new_from_index(0, lines.height)
    work = launched_work(report).sort("row")
    names = gathered(host_tree(report).rows.get_column("name"), work.get_column("operator")).cast(pl.String)
    at = positions(work.get_column("row"), lines.get_column("row"))
    return gathered(names.is_in(_BATCHED).fill_null(value=False), at)


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
        mending=lambda _: Mending(gone=chain.filter(~decoded_as(chain, _is_product)).get_column("row")),
    )


RULES: Final = (unfused_attention,)
