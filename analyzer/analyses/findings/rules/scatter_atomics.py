"""Sums into few rows by atomics: index_add, scatter_add, and what indexing and embeddings do backward."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernel_sums, stream_lines
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import per_iteration, place_of
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Less of the kernel time is left out.
_WORTH: Final = 0.08

#: So many times as long as what works on the same tensors is too long for the bytes of a sum.
_LONGER: Final = 3.0

#: Kernels so near on their stream work on the same tensors.
_NEAR: Final = 4

#: Operators that sum into rows by an index, by what users write.
_WRITTEN: Final = {
    "aten::index_add_": "index_add",
    "aten::index_add": "index_add",
    "aten::scatter_add_": "scatter_add",
    "aten::scatter_add": "scatter_add",
    "aten::scatter_reduce": "scatter_reduce",
    "aten::_index_put_impl_": "indexing with a tensor, backward",
    "aten::index_put_": "indexing with a tensor, backward",
    "aten::embedding_dense_backward": "an embedding, backward",
    "aten::_embedding_bag_dense_backward": "an embedding bag, backward",
    "aten::bincount": "bincount",
    "aten::histc": "histc",
}

#: Names of kernels that do so: those of PyTorch with a sum for what is scattered, and those of gradients.
_KERNELS: Final = r"indexFunc\w*Index.*ReduceAdd|_scatter_gather_elementwise_kernel.*ReduceAdd|indexing_backward_kernel"
_EMBEDDING: Final = r"|compute_grad_weight|embedding_backward|sum_and_scatter|kernelHistogram1D"

#: What reads and writes tensors at the bandwidth of the memory.
_STREAMING: Final = ("elementwise", "copy", "reduce", "gemm", "normalization", "softmax", "attention")


def scatter_atomics(report: Report) -> list[Finding]:
    """One finding per device on which sums into rows take far longer than what works on the same tensors."""
    found = []
    for device in kernel_sums(report):
        names = device.rows.filter(pl.col("name").str.contains(_KERNELS + _EMBEDDING))
        if total(names, "exclusive_ns") >= _WORTH / 2 * device.kernel_ns:
            slow = _slow(report, stream_lines(report, [device.device]), names.get_column("name"))
            if slow.height and total(slow, "exclusive_ns") >= _WORTH * device.kernel_ns:
                found.append(_atomics(report, device, slow))
    return found


def _streams(said: KernelName) -> bool:
    return said.family in _STREAMING


def _slow(report: Report, lines: pl.DataFrame, names: pl.Series) -> pl.DataFrame:
    """The kernels of such sums that take too long: rows of `lines` with outer and usual_ns (of a kernel near them).

    With what else their operator runs, such as a sort of the index.
    """
    known = lines.join(launching_operators(report), on="row", how="left", maintain_order="left")
    sums = pl.col("name").cast(pl.String).is_in(names.implode())
    own = (sums | pl.col("inner").is_in(_WRITTEN.keys())) & (pl.col("kind") == "kernel")
    known = known.with_columns(
        own=own.fill_null(value=False),
        sums=sums,
        streams=decoded_as(known, _streams),
        line=pl.struct("device", "process_id", "stream").rle_id(),
    )
    known = known.with_columns(run=pl.struct("line", "own").rle_id())
    beside = pl.when(pl.col("streams") & ~pl.col("own")).then("exclusive_ns")
    near = pl.max_horizontal(beside.shift(step).over("line") for step in range(-_NEAR, _NEAR + 1) if step)
    usual = known.with_columns(near=near).filter("own").with_columns(usual_ns=pl.col("near").max().over("run"))
    took = pl.col("exclusive_ns").sum().over("run")
    return usual.filter(pl.col("sums").any().over("run") & (took >= _LONGER * pl.col("usual_ns").fill_null(0)))


def _atomics(report: Report, device: DeviceKernels, slow: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(slow, "exclusive_ns")
    share, top = percent(ns / max(device.kernel_ns, 1)), slow.sort("exclusive_ns").row(-1, named=True)
    written = _WRITTEN.get(top["inner"] or "", "") or re.sub(r"\W.*", "", "sums by an index")
    text = (
        f"Sums into rows by an index ({written}; most {{0}}) take {told.time(ns)}, {share} of kernel time, {_LONGER:g} "
        "times as long as kernels on tensors beside them, or longer: many values meet in few rows, and atomics on one "
        "address wait for each other."
    )
    return Finding(
        "scatter-atomics",
        device.device,
        ns,
        text,
        "Sum without atomics: where rows are few, a product with a one-hot matrix, F.one_hot(index, rows).T @ values; "
        "or torch.segment_reduce of values sorted by row; look up small tables by such a product, too.",
        "kernels --by family",
        (str(top["name"]),),
        headline=f"Atomics into few rows ({written.partition(',')[0]}): {share} of kernel time",
        action="F.one_hot(index, rows).to(values.dtype).T @ values, or segment_reduce",
        where=place_of(report, pl.col("row").is_in(slow.get_column("row").implode())),
        mending=lambda _: _summed(slow),
        claims=slow.select("start", "end"),
    )


def _summed(slow: pl.DataFrame) -> Mending:
    """Each run of kernels takes as long as one that reads and writes the same tensors."""
    part = pl.col("exclusive_ns") / pl.col("exclusive_ns").sum().over("run")
    left = (part * pl.col("usual_ns").fill_null(0)).ceil().cast(pl.Int64)
    return Mending(shorter=slow.select("row", saved_ns=pl.col("exclusive_ns") - left))


RULES: Final = (scatter_atomics,)
