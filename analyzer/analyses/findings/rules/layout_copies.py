"""Copies that change the order of a tensor's elements: transposed tensors that are made contiguous."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import kernels_that, without
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import per_iteration, place_of
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: The least part of the kernel time: of what the program's own operators copy, and of all where none are recorded.
_WORTH: Final = 0.05
_WORTH_UNNAMED: Final = 0.1

#: What users write that copies a tensor into another order, by the outermost operator around the copy.
_COPIES: Final = "aten::copy_"
_WRITTEN: Final = {
    "aten::contiguous": ".contiguous()",
    "aten::reshape": ".reshape() of a transposed tensor",
    "aten::flatten": ".flatten() of a transposed tensor",
    "aten::clone": ".clone() of a transposed tensor",
    "aten::to": ".to(memory_format=…)",
    "aten::linear": "a linear layer on a transposed tensor",
    "aten::layer_norm": "layer_norm on a transposed tensor",
    "aten::group_norm": "group_norm on a transposed tensor",
    "aten::conv1d": "a convolution of a transposed tensor",
    "aten::conv2d": "a convolution of a transposed tensor",
    "aten::matmul": "matmul of transposed tensors",
    "aten::einsum": "einsum, which permutes",
}


def layout_copies(report: Report) -> list[Finding]:
    """One finding per device on which the program copies tensors of one type into another order."""
    found = []
    for device, chosen in kernels_that(report, lambda said, _: _is_strided(said), _WORTH):
        work = exclusive_operations(report).filter(chosen.operations(device.device))
        work = work.join(launching_operators(report), on="row", how="left", maintain_order="left")
        known = work.get_column("outer").is_not_null().any()
        copied = (pl.col("outer").is_in(_WRITTEN.keys()) & (pl.col("inner") == _COPIES)).fill_null(value=not known)
        # backward copies what autograd's views need, in any program: it counts where the program's own copies do
        own = work.filter(copied & pl.col("node").is_null())
        if total(own, "exclusive_ns") >= (_WORTH if known else _WORTH_UNNAMED) * device.kernel_ns:
            found.append(_copies(report, device, chosen, work.filter(copied)))
    return found


def _is_strided(said: KernelName) -> bool:
    """Whether a kernel of PyTorch copies values of one type element by element: in order, it would be vectorized."""
    plain = said.library == "aten" and said.function.rpartition("::")[2] == "elementwise_kernel"
    return plain and said.operation == "copy" and said.input_types == (said.output_type,)


def _copies(report: Report, device: DeviceKernels, chosen: Chosen, work: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(work, "exclusive_ns")
    share = percent(ns / max(device.kernel_ns, 1))
    sums = work.group_by("outer").agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "outer")
    by = f", most by {_WRITTEN[top]}" if (top := sums.item(-1, "outer")) in _WRITTEN else ""
    text = (
        f"{told.plural(work.height, 'kernel')} (most {{0}}) copy tensors into another order{by}: {told.time(ns)}, "
        f"{share} of kernel time. Layers, matrix products and attention take transposed tensors as they are, and "
        "elementwise operators keep their order."
    )
    return Finding(
        "layout-copies",
        device.device,
        ns,
        text,
        "Keep one order from layer to layer: leave .contiguous() out, or choose it so that no layer transposes.",
        "kernels --by operation",
        (chosen.longest,),
        headline=f"Copies of transposed tensors: {share} of kernel time",
        action="leave .transpose(…).contiguous() out: keep one layout",
        where=place_of(report, pl.col("row").is_in(work.get_column("row").implode())),
        mending=lambda _: without(work),
        claims=work.select("start", "end"),
    )


RULES: Final = (layout_copies,)
