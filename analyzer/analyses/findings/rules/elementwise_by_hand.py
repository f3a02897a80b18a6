"""Norms, activations and formulas written out in elementwise kernels, in reports that record no operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernel_sums, merged, stream_lines
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration, place_of
from kanalyze.analyses.shared.statistics import total
from kanalyze.decoder.decode import decode
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Less of the kernel time is left out.
_WORTH: Final = 0.06

#: Kernels of one formula: so many large ones, of so many operations, and no more kernels than these of an operation, as
#: a loop over tensors has.
_FEWEST: Final = 3
_REPEATED: Final = 8

#: Operations of optimizers, which are no formula's, and what any layer has around it, such as sums of gradients.
_OF_OPTIMIZERS: Final = ("addcdiv", "addcmul", "lerp")
_OF_ANY: Final = ("add", "threshold", "copy", "sum", None)

#: So many operations besides those are a formula's.
_OWN: Final = 2

#: A kernel that takes this part of the longest works on tensors of its size.
_LARGE: Final = 0.3

#: Shorter ones wait for their launches rather than for the memory (ns).
_LONGEST_NS: Final = 5000

#: How many of the shortest large kernel, which reads one tensor and writes one, a fused kernel takes.
_FUSED: Final = 2

#: Operations that are named.
_NAMED: Final = 3


def by_hand(report: Report) -> list[Finding]:
    """One finding per device with formulas in kernels that one would do, where the report has no operators."""
    if report.kind("op").height or not in_pytorch(report):
        return []
    every = [(device, _runs(stream_lines(report, [device.device]))) for device in kernel_sums(report)]
    found = [_formulas(report, device, runs) for device, runs in every]
    return [one for one in found if one is not None]


def _passes(said: KernelName) -> bool:
    """Whether a kernel of PyTorch goes over its tensors element by element, or sums them along a dimension."""
    plain = said.family in {"elementwise", "reduce"} or (said.family == "copy" and said.operation == "copy")
    return said.library == "aten" and plain and said.operation not in _OF_OPTIMIZERS


def _computes(said: KernelName) -> bool:
    return said.operation not in _OF_ANY


def _runs(lines: pl.DataFrame) -> pl.DataFrame:
    """Kernels of formulas: rows of `lines` with group, kept and merged_ns (of the fused kernel)."""
    known = lines.with_columns(passes=decoded_as(lines, _passes), computes=decoded_as(lines, _computes))
    known = known.with_columns(group=pl.struct("device", "process_id", "stream", "passes").rle_id()).filter("passes")
    longest = pl.col("exclusive_ns").max()
    large = pl.col("exclusive_ns") >= _LARGE * longest
    groups = known.group_by("group").agg(
        merged_ns=_FUSED * pl.col("exclusive_ns").filter(large).min(),
        large=large.sum(),
        different=pl.col("name").n_unique(),
        many=pl.len(),
        longest=longest,
        own=pl.col("name").filter("computes").n_unique(),
        ns=pl.col("exclusive_ns").sum(),
    )
    moves = pl.col("longest") >= _LONGEST_NS
    formulas = moves & (pl.col("large") >= _FEWEST) & (pl.col("different") >= _FEWEST) & (pl.col("own") >= _OWN)
    once = pl.col("many") <= _REPEATED * pl.col("different")
    kept = groups.filter(formulas & once & (pl.col("merged_ns") < pl.col("ns")))
    told = kept.select("group", "merged_ns", kept=pl.lit(1))
    return known.join(told, on="group", maintain_order="left").with_columns(dur_ns="exclusive_ns")


def _formulas(report: Report, device: DeviceKernels, runs: pl.DataFrame) -> Finding | None:
    saved = total(runs, "exclusive_ns") - int(runs.unique("group").get_column("merged_ns").sum())
    if saved < _WORTH * device.kernel_ns:
        return None

    def of_left(left: pl.DataFrame) -> Finding | None:
        """The finding on the runs of which nothing is told by others."""
        told_of = intervals.overlap(runs.get_column("start"), runs.get_column("end"), left)
        whole = (pl.col("left_ns") == pl.col("end") - pl.col("start")).all().over("group")
        return _formulas(report, device, runs.with_columns(left_ns=told_of).filter(whole))

    told, share = per_iteration(report), percent(total(runs, "exclusive_ns") / max(device.kernel_ns, 1))
    sums = runs.group_by(pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
    names = sums.sort("exclusive_ns", "name", descending=[True, False]).get_column("name")
    operations = [*dict.fromkeys(one for one in (decode(name).operation for name in names) if one)][:_NAMED]
    many, what = runs.get_column("group").n_unique(), literal(", ".join(operations))
    text = (
        f"Formulas are written out in {told.plural(runs.height, 'elementwise kernel')} and sums ({what}), in "
        f"{told.plural(many, 'run')} without anything else between: {told.time(total(runs, 'exclusive_ns'))}, {share} "
        f"of kernel time. Each passes its result through memory; fused they would take {told.time(saved)} less."
    )
    place = place_of(report, pl.col("row").is_in(runs.get_column("row").implode()))
    return Finding(
        "fusion",
        device.device,
        saved,
        text,
        "Use the layer that has a kernel (nn.LayerNorm, nn.RMSNorm, nn.GELU, F.cross_entropy), or let torch.compile "
        "fuse the formula.",
        "kernels --by operation",
        headline=f"Formulas kernel by kernel ({what}): {share}",
        action="torch.compile, or the layer with a kernel (nn.RMSNorm, nn.GELU…)",
        where=place,
        mending=lambda _: merged(runs.select("row", "dur_ns", "group", "kept", "merged_ns")),
        claims=runs.select("start", "end"),
        retold=of_left,
    )


RULES: Final = (by_hand,)
