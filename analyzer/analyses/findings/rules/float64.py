"""Arithmetic in float64, which tensors made of NumPy's arrays and Python's floats bring in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernels_that, stream_lines
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration, place_of
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Less of the kernel time in float64 is left out: sums for accuracy are in well-made programs, too.
_WORTH: Final = 0.03

#: Peak rate of products in TF32 over that in float64, by compute capability; the least of other GPUs, whose float64
#: runs at a thirty-second of float32 or less. Source: NVIDIA's datasheets of V100 (7.8 TFLOP/s, and 15.7 in float32),
#: A100 (19.5, 156), H100 SXM (66.9, 494.7) and B200 (37, 1100).
_FASTER: Final = {(7, 0): 15.7 / 7.8, (8, 0): 156 / 19.5, (9, 0): 494.7 / 66.9, (10, 0): 1100 / 37}
_LEAST_FASTER: Final = 32.0

#: Types of float64, and of complex numbers of two.
_DOUBLE: Final = {"f64", "c128"}

#: The part of the peak in TF32 that products reach where those in float64 reach theirs.
_REACHED: Final = 2 / 3

#: What is left of kernels that read and write half of the bytes, and what no kernel falls below (ns).
_HALF: Final = 0.5
_SHORTEST_NS: Final = 2000


def float64(report: Report) -> list[Finding]:
    """One finding per device whose kernels compute on float64 tensors in a program of PyTorch."""
    if not in_pytorch(report):
        return []
    return [_doubles(report, *one) for one in kernels_that(report, lambda said, _: _is_double(said), _WORTH)]


def _is_double(said: KernelName) -> bool:
    """Whether the tensors of a kernel are of float64: types of scalars and of sums are others.

    An elementwise kernel that casts its operands computes in the widest of their types.
    """
    computes = said.family in {"elementwise", "fft"} and said.accumulator_type in _DOUBLE
    unknown = not said.input_types and (said.output_type in _DOUBLE or computes)
    return bool(_DOUBLE.intersection(said.input_types)) or unknown


def _is_cast(said: KernelName) -> bool:
    """Whether a kernel casts to another type from one that only its call knows."""
    copies = said.library == "aten" and said.operation == "copy" and not said.input_types
    return copies and said.output_type not in _DOUBLE


def _doubles(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    lines = stream_lines(report, [device.device]).rename({"exclusive_ns": "dur_ns"})
    doubles = decoded_as(lines, _is_double) & (lines.get_column("kind").cast(pl.String) == "kernel")
    # a cast right after is from float64, and none is left
    casts = lines.filter(decoded_as(lines, _is_cast) & doubles.shift(1, fill_value=False))
    work = lines.filter(doubles)
    products = decoded_as(work, lambda said: said.family in {"gemm", "conv"})
    left = 1 / max(_FASTER.get(device.capability, _LEAST_FASTER) * _REACHED, 1.0)
    after = pl.max_horizontal(pl.col("dur_ns") * pl.when(products).then(left).otherwise(_HALF), _SHORTEST_NS)
    saved = (pl.col("dur_ns") - after).floor().cast(pl.Int64).clip(lower_bound=0)
    change = Mending(work.select("row", saved_ns=saved), casts.get_column("row"))
    told, share = per_iteration(report), percent(chosen.share)
    in_products = told.time(total(work.filter(products), "dur_ns"))
    text = (
        f"{told.plural(chosen.launches, 'kernel')} (most {{0}}) compute on tensors of float64: {told.time(chosen.ns)}, "
        f"{share} of kernel time, {in_products} of it in matrix products. "
        "NumPy's arrays are of float64 unless told otherwise, and what meets such a tensor becomes one. In float32 "
        "every tensor is half as large, and products run on tensor cores (TF32)."
    )
    return Finding(
        "float64",
        device.device,
        chosen.ns,
        text,
        "Make tensors of float32 where they are made, torch.from_numpy(a).float() or dtype=torch.float32, and allow "
        'TF32 for products, torch.set_float32_matmul_precision("high").',
        "kernels --by dtype",
        (chosen.longest,),
        headline=f"Tensors are of float64: {share} of kernel time",
        action='x.float(), and torch.set_float32_matmul_precision("high")',
        where=place_of(report, chosen.operations(device.device)),
        mending=lambda _: change,
        shortens=True,
        claims=pl.concat([work, casts]).select("start", "end"),
    )


RULES: Final = (float64,)
