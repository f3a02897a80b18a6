"""Orders of the elements of tensors: conversions of images, and copies of transposed tensors."""

from typing import Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.on_gpu import INPUTS, OUTPUT, Work
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.work.work import operations_with_roofs

#: What brings channels last by the dimensions of most convolutions: nn.Module.to changes no weights of one.
_LAYOUTS_LAST: Final = {
    "1": "nn.Conv2d of height 1, in channels_last",
    "3": CHANNELS_LAST.replace("channels_last", "channels_last_3d"),
}

#: Normalizations of images in NCHW, channel by channel, and what is left of them in channels_last: less than half of a
#: ResNet's on an H100.
_BY_CHANNEL: Final = (
    r"batch_norm_(?:collect_statistics|backward)_kernel\b|\bbn_(?:fw|bw)_\w*(?:NCHW|1C11_(?:kernel_new|singleread))"
)


@on_gpu.choosing(on_gpu.LAYOUTS, 0.01)  # some are in well-made programs, too
def layout_conversions(work: Work) -> Finding | None:
    """One finding per device on which cuDNN converts images to the layout of its kernels and back."""
    if on_host.wants_planes(work.report):
        return None  # in channels_last those would convert all that they read
    norms = exclusive_operations(work.report).filter(work.device.are(pl.col("name").str.contains(_BY_CHANNEL)))
    one = work.finding(
        "layout-conversions",
        mending=Mending(norms.select("row", saved_ns=on_gpu.part("dur_ns", 0.5)), work.rows.get_column("row")),
        claims=pl.concat([work.rows, norms]),
    )
    sides = on_host.outermost(work.report).get_column("name").str.extract(r"^aten::conv(?:_transpose)?(\d)d$")
    most = str(sides.drop_nulls().mode().sort().last())
    if one.action != CHANNELS_LAST or most not in _LAYOUTS_LAST:
        return one
    return one._replace(action=_LAYOUTS_LAST[most], general=most == "1")


# Copies that change the order of a tensor's elements.

#: The least part of the kernel time that the program's own operators copy; of all a tenth, where none are recorded.
_WORTH_COPIES: Final = 0.05

#: What users write that copies a tensor into another order, by the outermost operator around the copy.
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

#: Kernels that work element by element, where in order they would be vectorized.
_ACROSS: Final = pl.col("function").str.contains("(?:^|::)elementwise_kernel$")


@on_gpu.choosing(on_gpu.COPIES & _ACROSS & (INPUTS == OUTPUT) & (OUTPUT != ""), _WORTH_COPIES)
def layout_copies(strided: Work) -> Finding | None:
    """One finding per device on which the program copies tensors of one type into another order."""
    rows = on_gpu.with_operators(strided.report, strided.rows)
    known = rows.get_column("outer").is_not_null().any()
    copied = (pl.col("outer").is_in(_WRITTEN.keys()) & (pl.col("inner") == "aten::copy_")).fill_null(value=not known)
    work = strided._replace(rows=rows.filter(copied))
    # backward copies what autograd's views need, in any program: it counts where the program's own copies do
    own_ns = total(work.rows.filter(pl.col("node").is_null()), "exclusive_ns")
    if not work.rows.height or own_ns < (_WORTH_COPIES if known else 0.1) * work.device.kernel_ns:
        return None
    if (kept := _kept_layout(work)) is not None:
        return kept
    top = say.most(work.rows, "outer", "exclusive_ns")
    return work.finding("layout-copies", strided.most, by=f", most by {_WRITTEN[top]}" if top in _WRITTEN else "")


#: Operators that keep the order of their first tensor, and read the other one across.
_SUMS: Final = ("aten::add", "aten::add_", "aten::sub", "aten::mul")


def _kept_layout(copies: Work) -> Finding | None:
    """The finding, where most copies put one tensor in order for norms of layers, which sums hand on from each."""
    report, forward = copies.report, pl.col("node").is_null()
    own = copies.rows.filter(pl.col("outer").is_in(["aten::layer_norm", "aten::rms_norm"]), forward)
    copied_ns, iterations = total(own, "exclusive_ns"), say.per_iteration(report).iterations or 1
    if copied_ns < copies.ns / 2 or own.height < 4 * iterations:
        return None
    every = exclusive_operations(report).filter(device=copies.device.device, kind="kernel")
    across = on_gpu.with_operators(report, every.filter(on_gpu.decoded_as(every, _ACROSS)))
    least = operations_with_roofs(report).select("row", left=pl.col("dram_ns") / on_gpu.REACHED["memory"])
    sums = across.filter(pl.col("inner").is_in(_SUMS), forward).join(least, on="row", how="left", maintain_order="left")
    convolutions = on_host.outermost(report).get_column("name").str.contains("^aten::conv").sum()
    # layers of which each transposes anew are no such ones
    if 2 * sums.height < own.height or 2 * convolutions > own.height:
        return None
    spared = (pl.col("exclusive_ns") - pl.col("left")).clip(lower_bound=0).fill_null(0).cast(pl.Int64)
    shorter = sums.select("row", saved_ns=spared)
    return copies._replace(rows=pl.concat([own, sums.select(own.columns)])).finding(
        "layout-copies: kept",
        say.most(own, "name", "exclusive_ns"),
        copied=own.height,
        sums=sums.height,
        at_stake_ns=copied_ns + total(shorter, "saved_ns"),
        mending=on_gpu.without(own)._replace(shorter=shorter),
    )
