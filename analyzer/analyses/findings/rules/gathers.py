"""Rows that are gathered again and again, and weights that are gathered for each token, copied to be read once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernel_sums, stream_lines, without
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
_WORTH: Final = 0.2

#: So many gathers of an iteration, or of a window without any, are a loop's.
_FEWEST: Final = 8

#: What is left of a gather that writes nothing: less than half, which also waits for the index.
_READS: Final = 0.4

#: Operators of products of many matrices, whose second ones are gathered where each token has its own.
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")


def gathers(report: Report) -> list[Finding]:
    """One finding per device that gathers matrices for products of many, or rows in a loop, each read by a kernel."""
    found = []
    for device in kernel_sums(report) if in_pytorch(report) else ():
        chosen = device.chosen(_is_gather)
        if chosen.share >= _WORTH:
            pairs = _pairs(report, stream_lines(report, [device.device]))
            weights = pairs.filter(pl.col("gathers") & pl.col("of_products"))
            if total(weights, "exclusive_ns") >= _WORTH * device.kernel_ns:
                found.append(_weights(report, device, weights))
            elif chosen.launches >= _FEWEST * (per_iteration(report).iterations or 1):
                found.append(_rows(report, device, pairs))
    return found


def _is_gather(said: KernelName) -> bool:
    """Whether a kernel of PyTorch reads rows by an index: what writes them has another functor."""
    reads = said.operation in {"index_select", "index", "gather"} or "index_kernel" in (said.functor or "")
    return said.library == "aten" and said.family == "index" and (reads or said.operation is None)


def _pairs(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The gathers of `lines` (gathers; of_products where one of many matrices follows), and elementwise ones after."""
    known = lines.join(launching_operators(report), on="row", how="left", maintain_order="left")
    known = known.with_columns(
        gathers=decoded_as(lines, _is_gather),
        elementwise=decoded_as(lines, lambda said: said.family == "elementwise"),
        line=pl.struct("device", "process_id", "stream").rle_id(),
    )
    # both matrices of a product may be gathered
    following = pl.when(~pl.col("gathers")).then("inner").backward_fill().over("line")
    known = known.with_columns(of_products=following.is_in(_BATCHED).fill_null(value=False))
    after = pl.col("gathers").shift(1).over("line").fill_null(value=False) & pl.col("elementwise")
    return known.filter(pl.col("gathers") | after)


def _weights(report: Report, device: DeviceKernels, work: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(work, "exclusive_ns")
    share = percent(ns / max(device.kernel_ns, 1))
    text = (
        f"{told.plural(work.height, 'gather')} (most {{0}}) copy matrices by an index for products of many matrices "
        f"(bmm), as weights of experts for each token: {told.time(ns)}, {share} of kernel time. A product for each "
        "expert, with its tokens, reads its weights where they are."
    )
    return _finding(report, device, work, text)._replace(
        remedy="Sort tokens by expert, and multiply each group by its weights: grouped_mm, or a loop over experts.",
        headline=f"Weights are gathered for each token: {share}",
        action="sort tokens by expert; one product for each group (grouped_mm)",
        mending=lambda _: without(work),
    )


def _rows(report: Report, device: DeviceKernels, pairs: pl.DataFrame) -> Finding:
    told, own = per_iteration(report), pairs.filter("gathers")
    share = percent(total(own, "exclusive_ns") / max(device.kernel_ns, 1))
    text = (
        f"{told.plural(own.height, 'gather')} (most {{0}}) copy rows by an index, {share} of kernel time; with the "
        f"kernels that read each copy, {told.time(total(pairs, 'exclusive_ns'))}. One kernel that gathers and sums "
        "reads the rows and writes the result."
    )
    return _finding(report, device, pairs, text)._replace(
        remedy='Gather and sum at once: F.embedding_bag(index, table, mode="sum"), or one index for all; torch.compile '
        "fuses a gather into what reads it.",
        headline=f"{told.plural(own.height, 'gather')} of rows, one by one: {share}",
        action='F.embedding_bag(index, table, mode="sum"), or one gather for all',
        mending=lambda _: _once(pairs),
    )


def _finding(report: Report, device: DeviceKernels, work: pl.DataFrame, text: str) -> Finding:
    return Finding(
        "gathers",
        device.device,
        total(work, "exclusive_ns"),
        text,
        "",
        "kernels --by family",
        (str(work.filter("gathers").sort("exclusive_ns").item(-1, "name")),),
        where=place_of(report, pl.col("row").is_in(work.get_column("row").implode())),
        claims=work.select("start", "end"),
    )


def _once(pairs: pl.DataFrame) -> Mending:
    """The first of the gathers in a row stays, as long as reading all takes; others are gone, with what read them."""
    another = (pl.col("name") != pl.col("name").shift(2)).fill_null(value=True)
    known = pairs.with_columns(
        group=(pl.col("gathers") & another).cum_sum(),
        read_ns=(pl.col("exclusive_ns") * _READS).cast(pl.Int64) * pl.col("gathers"),
    ).with_columns(pl.col("read_ns").sum().over("group"))
    first = pl.col("gathers") & pl.struct("group", "gathers").is_first_distinct()
    return Mending(
        shorter=known.filter(first).select("row", saved_ns=pl.col("exclusive_ns") - pl.col("read_ns")),
        gone=known.filter(~first).get_column("row"),
    )


RULES: Final = (gathers,)
