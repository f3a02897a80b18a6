"""Matrix products and convolutions by the wrong kernels: unaligned, older ones, full float32, without tensor cores."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import CHANNELS_LAST, literal
from kanalyze.analyses.findings.rules._kernels import Told, fills, is_layout, kernels_that, on_kernels
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.operators._events import host_tree
from kanalyze.analyses.operators._work import launched_work
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.columns.lookup import beside, gathered
from kanalyze.decoder.decode import decode
from kanalyze.decoder.spelling import TENSOR_TYPES
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.findings.rules._kernels import Chosen, DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Bytes of an element, by its type in a kernel's name.
_BYTES: Final = {"f64": 8, "f32": 4, "tf32": 4, "bf16": 2, "f16": 2, "e4m3": 1, "e5m2": 1, "i8": 1, "u8": 1}

#: What a thread loads at once of aligned data, in bytes.
_VECTOR_BYTES: Final = 16

#: What is left of products for unaligned data by kernels for aligned data, where their shapes are not known, by compute
#: capability: on Hopper they run Ampere's kernels at a fifth of the rate (GPT-2's odd vocabulary in bfloat16: 94 to 145
#: TFLOP/s in place of some 600); of many small matrices (bmm) the bytes of the result are most.
_ALIGNED_LEFT: Final = {(9, 0): 0.25}
_ALIGNED_LEFT_ELSEWHERE: Final = 0.6
_BATCHED: Final = ("aten::bmm", "aten::baddbmm")

#: Dimensions are best padded to a multiple of this, whatever the type.
_PAD: Final = 64

#: Products with a smaller part of the kernel time are left out: a few of them are in well-made programs, too.
_WORTH: Final = 0.01

#: Operators of matrix products; of their inputs the last two with two dimensions or more are the matrices.
_PRODUCTS: Final = ("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::_addmm_activation")

#: The largest dimension that is believed, so that products of three stay exact in a float's exponent.
_LARGEST: Final = 1 << 40
_S: Final = 1_000_000_000
_SCHEMA: Final = {"device": pl.Int64, "kernel": pl.String, "shapes": pl.String, "count": pl.Int64, "ns": pl.Int64}


def unaligned_gemm(report: Report) -> list[Finding]:
    """One finding per device with matrix products on tensor cores by kernels for unaligned data."""
    found = kernels_that(report, lambda said, _: _is_unaligned(said), _WORTH)
    return [_unaligned(report, device, chosen) for device, chosen in found]


def _is_unaligned(said: KernelName) -> bool:
    if said.family != "gemm" or not said.tensor_core or said.alignment is None or not said.input_types:
        return False
    return said.alignment * _BYTES.get(said.input_types[0], _VECTOR_BYTES) < _VECTOR_BYTES


def _unaligned(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    odd, aligned_ns, shapes = _shapes(report, device, chosen)
    least = min(alignment for name in chosen.rows.get_column("name") if (alignment := decode(name).alignment))
    sides = " and ".join(map(str, odd))
    pad = f"Pad {sides} to a multiple of {_PAD}" if sides else f"Pad dimensions to multiples of {_PAD}"
    left = min(aligned_ns / chosen.ns, 1.0) if aligned_ns else _left(report, device, chosen)
    images = not odd and device.chosen(is_layout).launches > 0
    remedy = f"{pad} (such as a vocabulary or the width of a layer), and let rows begin at multiples of 16 bytes."
    told = Told(
        "unaligned-gemm",
        "matrix product",
        f"by kernels for unaligned data (align{least}, most {{0}})",
        f".{shapes} What works on the same rows may gain, too.",
        _IMAGES if images else remedy,
        "kernels",
        f"Unaligned matrix products are {percent(chosen.share)} of kernel time",
        CHANNELS_LAST if images else pad,
        max(chosen.ns - aligned_ns, 0),
        left=left,
    )
    return on_kernels(report, device, chosen, told)


def _left(report: Report, device: DeviceKernels, chosen: Chosen) -> float:
    """What is left of the chosen products, where their shapes are not known."""
    work = exclusive_operations(report).filter(chosen.operations(device.device)).select("row", "exclusive_ns")
    work = work.join(launching_operators(report), on="row", how="left")
    single = total(work.filter(~pl.col("inner").is_in(_BATCHED)), "exclusive_ns") / max(chosen.ns, 1)
    left = _ALIGNED_LEFT.get(device.capability, _ALIGNED_LEFT_ELSEWHERE)
    return single * left + (1 - single) * _ALIGNED_LEFT_ELSEWHERE


#: What to do where convolutions run as products, which they do on images in NCHW, whose rows are their pixels.
_IMAGES: Final = "Keep images in channels_last: on others cuDNN runs convolutions as products of rows of pixels."


#: The number of dimensions that are named.
_NAMED: Final = 2


def _shapes(report: Report, device: DeviceKernels, chosen: Chosen) -> tuple[list[int], int, str]:
    """The shapes of the chosen products, where operators with shapes were recorded.

    Dimensions that no aligned kernel takes, those with most time first; what the same products would take at the best
    rate of the report's aligned ones (ns; 0 if not known); and both in sentences, after a space.
    """
    names = set(chosen.rows.get_column("name"))
    every = products(report, device.device)
    own = [product for product in every if product.kernel in names]
    if not own:
        return [], 0, ""
    sides = [product.odd(_multiple(product)) for product in own]
    odd = list(dict.fromkeys(side for side in sides if side))[:_NAMED]
    text = f" Most for {own[0]}" + (f": {sides[0]} is no multiple of {_multiple(own[0])}." if sides[0] else ".")
    rate = max((product.flop / product.ns for product in every if _is_aligned(product) and product.ns), default=0.0)
    if not rate or sum(product.ns for product in own) < chosen.ns // 2:
        return odd, 0, text
    known = report.devices.filter(pl.col("device") == device.device).get_column("memory_bandwidth_bytes_per_s")
    bandwidth = known.drop_nulls().to_list()  # a product takes no less than its bytes do
    moves = [product.moved_bytes * _S // bandwidth[0] if bandwidth else 0 for product in own]
    aligned = sum(min(one.ns, max(int(one.flop / rate), moved)) for one, moved in zip(own, moves, strict=True))
    text += f" At the best rate of the aligned products here they would take {per_iteration(report).time(aligned)}."
    return odd, aligned, text


def _multiple(product: Product) -> int:
    """The number of elements that a thread loads at once of aligned data."""
    return _VECTOR_BYTES // _BYTES[decode(product.kernel).input_types[0]]


def _is_aligned(product: Product) -> bool:
    said = decode(product.kernel)
    return bool(said.tensor_core) and not _is_unaligned(said) and said.family == "gemm"


#: Older kernels with a smaller part of the kernel time are left out: cuBLAS picks some where they are as fast.
_SIZABLE: Final = 0.25

#: How much longer products take by older tensor-core instructions: on Hopper those of Ampere reach about 60 % of the
#: peak, on Ampere those of Turing half of it.
_OLDER: Final = 2

#: Generations of tensor-core instructions by compute capability: consumer GPUs after Ampere keep its instructions.
_GENERATIONS: Final = {70: 1, 72: 1, 75: 2, 80: 3, 86: 3, 87: 3, 89: 3, 90: 4, 100: 5, 101: 5, 103: 5, 110: 5}
_ARCHITECTURES: Final = {"volta": 70, "turing": 75, "ampere": 80, "ada": 89, "hopper": 90, "blackwell": 100}
_NAMES: Final = {1: "Volta", 2: "Turing", 3: "Ampere", 4: "Hopper"}


def old_architecture_gemm(report: Report) -> list[Finding]:
    """One finding per device whose products and convolutions are made for tensor cores older than its own.

    Small ones, which leave most SMs without a block, would be no faster by newer kernels.
    """
    found = kernels_that(report, _is_older, _SIZABLE)
    return [_older(report, device, chosen) for device, chosen in found if fills(report, device, chosen)]


def _generation(said: KernelName) -> int:
    """The generation of tensor-core instructions of a kernel; 0 if its name does not tell."""
    arch = (said.arch or "").removeprefix("sm").rstrip("abcdefghijklmnopqrstuvwxyz")
    number = int(arch) if arch.isdecimal() else _ARCHITECTURES.get(said.arch or "", 0)
    return _GENERATIONS.get(number, 0)


def _is_older(said: KernelName, device: DeviceKernels) -> bool:
    own = _GENERATIONS.get(10 * device.capability[0] + device.capability[1], 0)
    typed = bool(set(said.input_types) & set(TENSOR_TYPES))
    wanted = said.family in {"gemm", "conv"} and said.tensor_core and typed and not _is_unaligned(said)
    return bool(wanted) and 0 < _generation(said) < own


def _older(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    said = decode(chosen.longest)
    made_for, types = _NAMES[_generation(said)], "/".join(dict.fromkeys(said.input_types))
    what = "convolution" if said.family == "conv" else "matrix product"
    gpu = literal(device.name) or f"compute capability {'.'.join(map(str, device.capability))}"
    layout = ", and convolutions in channels_last" if what == "convolution" else ""
    libraries = "PyTorch for a newer CUDA" if in_pytorch(report) else "newer cuBLAS and cuDNN"
    told = Told(
        "old-architecture-gemm",
        what,
        f"by kernels made for {made_for}'s tensor cores ({said.arch}, {types}; most {{0}}) on {gpu}",
        ". Small ones may be right so; large ones may take half as long by kernels made for this GPU.",
        f"Use {libraries}, dimensions that are multiples of {_PAD}{layout}.",
        "kernels --by arch",
        f"Kernels made for {made_for} are {percent(chosen.share)} of kernel time",
        f"{libraries}; dimensions in multiples of {_PAD}",
        chosen.ns // _OLDER,
        left=1 / _OLDER,
    )
    return on_kernels(report, device, chosen, told)


#: The first compute capabilities whose tensor cores take these types.
_TF32: Final = (8, 0)
_SINCE: Final = {"f16": (7, 0), "bf16": (8, 0)}

#: Peak rates of float32 over TF32, and of 16-bit types without over with tensor cores, dense, by compute capability:
#: what is left of products at their roof. Source: NVIDIA's datasheets of A100 (19.5, 156, 78, 312 TFLOP/s) and H100 SXM
#: (66.9, 494.7, 133.8, 989.4).
_TF32_LEFT: Final = {(8, 0): 19.5 / 156, (9, 0): 66.9 / 494.7}
_TENSOR_LEFT: Final = {(8, 0): 78 / 312, (9, 0): 133.8 / 989.4}


def no_tf32(report: Report) -> list[Finding]:
    """At most two findings per device that could use TF32: products, and convolutions, in full float32."""
    found = [_float32(report, *one) for one in kernels_that(report, partial(_is_float32, family="gemm"), _WORTH)]
    # cuDNN takes TF32 unless told otherwise: where any convolution runs so, it was not told, and has no kernel for the
    # others
    for device, images in kernels_that(report, partial(_is_float32, family="conv"), _WORTH):
        if not device.chosen(lambda said: said.family == "conv" and "tf32" in said.input_types).launches:
            found.append(_float32_images(report, device, images))
    return found


def _is_float32(said: KernelName, device: DeviceKernels, family: str) -> bool:
    return (
        device.capability >= _TF32
        and said.family == family
        and said.tensor_core is False
        and set(said.input_types) == {"f32"}
    )


def _float32(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    remedy = (
        'Allow TF32 where its precision suffices, torch.set_float32_matmul_precision("high"), or use autocast.'
        if in_pytorch(report)
        else "Allow TF32 where its precision suffices: cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH)."
    )
    told = Told(
        "no-tf32",
        "matrix product",
        "in full float32, not on tensor cores, most {0}",
        ". TF32 (10 bits of mantissa; up to 8 times the rate on A100 and H100, less on others) saves at most that; "
        "bfloat16 may save more.",
        remedy,
        "kernels --by dtype",
        f"float32 products without TF32: {percent(chosen.share)} of kernel time",
        'torch.set_float32_matmul_precision("high")' if in_pytorch(report) else "CUBLAS_TF32_TENSOR_OP_MATH",
        left=_TF32_LEFT.get(device.capability),
    )
    return on_kernels(report, device, chosen, told)


def _float32_images(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    told = Told(
        "no-tf32",
        "convolution kernel",
        "in full float32, not on tensor cores, most {0}",
        ", and no convolution in TF32. PyTorch allows it by default: it was turned off, or cuDNN has no such kernel "
        "for these (depthwise ones, few channels).",
        "Set torch.backends.cudnn.allow_tf32 = True where TF32's precision suffices, or use bfloat16 (autocast).",
        "kernels --by dtype",
        f"float32 convolutions without TF32: {percent(chosen.share)} of kernels",
        "torch.backends.cudnn.allow_tf32 = True",
        left=_TF32_LEFT.get(device.capability),
    )
    return on_kernels(report, device, chosen, told)


def no_tensor_cores(report: Report) -> list[Finding]:
    """One finding per device with 16-bit products on kernels that do not use its tensor cores."""
    return [_plain(report, device, chosen) for device, chosen in kernels_that(report, _is_plain, _WORTH)]


def _is_plain(said: KernelName, device: DeviceKernels) -> bool:
    if said.family not in {"gemm", "conv"} or said.tensor_core is not False or not said.input_types:
        return False
    since = [_SINCE.get(one) for one in said.input_types]
    return all(one is not None and device.capability >= one for one in since)


def _plain(report: Report, device: DeviceKernels, chosen: Chosen) -> Finding:
    types = "/".join(dict.fromkeys(decode(chosen.longest).input_types))
    told = Told(
        "no-tensor-cores",
        "product",
        f"of {types} by kernels that do not use tensor cores, most {{0}}",
        ", which is the most that such as do can save.",
        "Make dimensions multiples of 8 and rows begin at multiples of 16 bytes, and allow tensor cores (no pedantic "
        "math mode).",
        "kernels --by tensor-core",
        f"{types} products without tensor cores: {percent(chosen.share)} of kernels",
        "make dimensions multiples of 8, and rows begin at multiples of 16 bytes",
        at_most=True,
        left=_TENSOR_LEFT.get(device.capability),
    )
    return on_kernels(report, device, chosen, told)


RULES: Final = (unaligned_gemm, old_architecture_gemm, no_tf32, no_tensor_cores)


class Product(NamedTuple):
    """A matrix product of one shape by one kernel, all its occurrences.

    Attributes:
        kernel: The name of the kernel, of several the one that took most.
        batch: How many products one occurrence is.
        m: Rows of the first matrix.
        k: Columns of the first, and rows of the second matrix.
        n: Columns of the second matrix.
        occurrences: How often.
        ns: Exclusive time of all their kernels.
    """

    kernel: str
    batch: int
    m: int
    k: int
    n: int
    occurrences: int
    ns: int

    @property
    def flop(self) -> float:
        """Floating-point operations of all occurrences."""
        return 2.0 * self.occurrences * self.batch * self.m * self.k * self.n

    @property
    def moved_bytes(self) -> int:
        """Bytes of the three matrices of all occurrences."""
        elements = self.m * self.k + self.k * self.n + self.m * self.n
        return self.occurrences * self.batch * elements * _BYTES.get(decode(self.kernel).input_types[0], 1)

    def odd(self, multiple: int) -> int | None:
        """The dimension by which it is unaligned: one that is no multiple of `multiple`; None if all are.

        Rows of the result begin at multiples of n elements, those of the first matrix at multiples of k, or of m if it
        is transposed: that is the order in which they are asked.
        """
        return next((side for side in (self.n, self.k, self.m) if side % multiple), None)

    def __str__(self) -> str:
        """The two matrices: ``[8192, 768] × [768, 50257]``."""
        batch = f"{self.batch}, " if self.batch > 1 else ""
        return f"[{batch}{self.m}, {self.k}] × [{batch}{self.k}, {self.n}]"


def products(report: Report, device: int) -> list[Product]:
    """The products on a device whose shapes were recorded, most time first; empty where no shapes were."""
    found = []
    for kernel, shapes, count, ns in _sums(report).filter(pl.col("device") == device).drop("device").iter_rows():
        if sides := _sides(shapes):
            found.append(Product(kernel, *sides, count, ns))
    return found


@once_per_report
def _sums(report: Report) -> pl.DataFrame:
    """Time of the operators of products by device, kernel and shapes, most time first."""
    if not {"op", "kernel"}.issubset(report.kinds):
        return pl.DataFrame(schema=_SCHEMA)
    rows = host_tree(report).rows
    wanted = rows.select((pl.col("kind") == "op") & pl.col("name").cast(pl.String).is_in(_PRODUCTS)).to_series()
    work = launched_work(report).filter(pl.col("kind") == "kernel")
    work = work.filter(gathered(wanted, work.get_column("operator")).fill_null(value=False))
    longest = pl.col("name").sort_by("exclusive_ns").last().cast(pl.String).alias("kernel")
    each = work.group_by("device", "operator").agg(longest, pl.col("exclusive_ns").sum().alias("ns"))
    each = each.with_columns(event_id=gathered(rows.get_column("last_id"), each.get_column("operator")))
    known = beside(each, report.table("op_detail"), "input_shapes").drop_nulls(["input_shapes", "kernel"])
    keys = ["device", "kernel", "shapes"]
    named = known.with_columns(shapes=pl.col("input_shapes").cast(pl.String))
    sums = named.group_by(keys).agg(pl.len().cast(pl.Int64).alias("count"), pl.col("ns").sum())
    return sums.select(*_SCHEMA).sort("ns", *keys, descending=[True, False, False, False])


def _sides(text: str) -> tuple[int, int, int, int] | None:
    """Batch, m, k and n of the last two matrices in the shapes of an operator's inputs; None if they do not fit."""
    try:
        shapes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    matrices = [shape for shape in shapes if _is_matrix(shape)] if isinstance(shapes, list) else []
    if len(matrices) < len("AB"):
        return None
    first, second = matrices[-2:]
    (m, k), (inner, n) = first[-2:], second[-2:]
    batch = first[0] if len(first) > len("mk") else 1
    return (batch, m, k, n) if k == inner else None


def _is_matrix(shape: object) -> bool:
    """True for the shape of a matrix, or of a batch of them."""
    sides = shape if isinstance(shape, list) else []
    known = all(isinstance(side, int) and not isinstance(side, bool) and 0 < side < _LARGEST for side in sides)
    return known and len(sides) in {len("mk"), len("bmk")}
