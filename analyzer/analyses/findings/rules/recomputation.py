"""Forward passes that run again within backward: activation checkpointing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import kernel_sums, stream_lines, without
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration, place_of
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent, size

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import DeviceKernels
    from kanalyze.report import Report

#: Less of the kernel time is left out.
_WORTH: Final = 0.05

#: Operators that layers call forward, and that no node of autograd calls by itself; several of them are a layer.
_FORWARD: Final = (
    *("linear", "conv1d", "conv2d", "conv3d", "layer_norm", "rms_norm", "batch_norm", "group_norm", "embedding"),
    *("gelu", "relu", "silu", "dropout", "softmax", "scaled_dot_product_attention", "max_pool2d", "lstm", "gru"),
    *("relu_", "silu_", "leaky_relu", "conv_transpose2d", "instance_norm"),
)
_FEWEST: Final = 2


def recomputation(report: Report) -> list[Finding]:
    """One finding per device that runs layers again within backward, by the operators there."""
    if not in_pytorch(report):
        return []
    found = []
    names = launching_operators(report).filter(_again()).get_column("outer").n_unique()
    for device in kernel_sums(report) if names >= _FEWEST else ():
        again = _recomputed(report, stream_lines(report, [device.device]))
        if total(again, "exclusive_ns") >= _WORTH * device.kernel_ns:
            found.append(_checkpointed(report, device, again))
    return found


def _again() -> pl.Expr:
    forward = pl.col("outer").is_in([f"aten::{name}" for name in _FORWARD])
    return (forward & pl.col("node").is_not_null()).fill_null(value=False)


def _recomputed(report: Report, lines: pl.DataFrame) -> pl.DataFrame:
    """The operations from the first to the last forward operator in each node of autograd."""
    known = lines.join(launching_operators(report), on="row", how="left", maintain_order="left")
    known = known.with_columns(
        again=known.select(_again()).to_series(),
        run=pl.struct("device", "process_id", "stream", "node").rle_id(),
        place=pl.int_range(pl.len()),
    )
    forward = pl.col("place").filter("again")
    return known.filter(pl.col("place").is_between(forward.min().over("run"), forward.max().over("run")))


def _checkpointed(report: Report, device: DeviceKernels, again: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(again, "exclusive_ns")
    share = percent(ns / max(device.kernel_ns, 1))
    memory = report.devices.filter(pl.col("device") == device.device).get_column("memory_bytes").drop_nulls()
    holds = f" The GPU has {size(int(memory.item(0)))}." if len(memory) else ""
    text = (
        f"Layers run forward again within backward: {told.plural(again.height, 'operation')}, {told.time(ns)}, {share} "
        f"of kernel time, as under activation checkpointing, which saves memory.{holds} Where that is not short, they "
        "run for nothing."
    )
    return Finding(
        "recomputation",
        device.device,
        ns,
        text,
        "Leave torch.utils.checkpoint out where memory suffices (torch.cuda.max_memory_allocated tells), or use it for "
        "some of the layers, or for cheap operators alone.",
        "kernels --by family",
        headline=f"Layers are computed again in backward: {share}",
        action="no torch.utils.checkpoint, or only in some layers",
        where=place_of(report, pl.col("row").is_in(again.get_column("row").implode())),
        mending=lambda _: without(again),
        claims=again.select("start", "end"),
    )


RULES: Final = (recomputation,)
