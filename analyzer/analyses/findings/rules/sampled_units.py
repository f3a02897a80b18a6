"""Findings on sampled counters of a GPU: few SMs active, idle tensor cores, DRAM or PCIe at work, a falling clock.

A kernel counts only where samples tell of at least half of its time; the counters are of the whole GPU, whatever ran.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters._sampled_means import COUNTERS, cells_within, grids, means
from kanalyze.analyses.device._operations import device_operations, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._places import place_of_kernel
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.decoder.decode import decode
from kanalyze.decoder.elements import TENSOR_TYPES
from kanalyze.units import frequency, percent, plural

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Fewest samples that a claim is made from, and the part of the time that they have to tell of.
_SAMPLES: Final = 20
_COVERED: Final = 0.5

#: Means from or up to which a unit counts as hardly used, or at its limit.
_FEW: Final = 0.5
_IDLE_TENSOR: Final = 0.3
_DRAM_BUSY: Final = 0.6
_DRAM_LIMIT: Final = 0.75
_PCIE_BUSY: Final = 0.2

#: Parts of the time of kernels that are worth a finding.
_WORTH: Final = 0.1
_WORTH_CLOCK: Final = 0.05

#: The highest clock under load is this quantile, and it was reached from this part of it on.
_HIGHEST: Final = 0.99
_REACHED: Final = 0.97

_TABLE: Final = "gpu_units"


@once_per_report
def _kernels(report: Report) -> pl.DataFrame:
    """Kernels of which enough samples tell: device, name, launches, exclusive_ns, samples, dram, and the counters.

    dram is the sum of what was read and written, as a share of the bandwidth; communication is left out.
    """
    known = grids(report)
    shape = {"device": pl.Int64, "name": pl.String, "launches": pl.Int64, "exclusive_ns": pl.Int64, "samples": pl.Int64}
    found = [pl.DataFrame(schema={**shape, **dict.fromkeys(COUNTERS, pl.Float64)})]
    work = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("bucket") == "kernel"))
    for (device,), own in work.drop_nulls("name").partition_by("device", as_dict=True).items():
        if device not in known:
            continue
        named = own.with_columns(pl.col("name").cast(pl.String))
        sums = named.group_by("name").agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("exclusive_ns").sum())
        told = means(known[int(device)], named.select("start", "end", key="name"))
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        rows = told.filter(enough).join(sums, left_on="key", right_on="name", how="inner").rename({"key": "name"})
        found.append(rows.with_columns(device=pl.lit(device, dtype=pl.Int64)).select(found[0].columns))
    dram = pl.sum_horizontal("dram_read_share", "dram_write_share", ignore_nulls=False)
    return pl.concat(found).with_columns(dram=dram)


def few_sms_active(report: Report) -> pl.DataFrame:
    """Kernels that keep few SMs active, though not DRAM busy: :func:`_kernels` with stake_ns, the costliest first."""
    few = (pl.col("sms_active_share") <= _FEW) & (pl.col("dram").fill_null(0) < _DRAM_BUSY)
    return _staked(_kernels(report).filter(few), 1 - pl.col("sms_active_share"))


def _staked(rows: pl.DataFrame, part: pl.Expr) -> pl.DataFrame:
    """Adds stake_ns, a part of the kernels' time; by device, the costliest first."""
    staked = rows.with_columns(stake_ns=(pl.col("exclusive_ns") * part).cast(pl.Int64))
    return staked.sort("device", "stake_ns", "name", descending=[False, True, False])


def few_sms(report: Report) -> list[Finding]:
    """One finding per device: the kernel whose idle SMs cost most, and the sum over all."""
    found, per = [], per_iteration(report)
    for (device,), rows in few_sms_active(report).partition_by("device", as_dict=True, maintain_order=True).items():
        top, more = rows.row(0, named=True), rows.height - 1
        others = f" Also: {plural(more, 'other kernel')} with few SMs active." if more else ""
        text = (
            f"While {{0}} ran, {percent(top['sms_active_share'])} of the SMs were active ({_mean(top)}), for "
            f"{per.time(top['exclusive_ns'])}.{others}"
        )
        remedy = "Give each SM a block, better several that take equally long; or run other kernels beside it."
        one = Finding(
            "few-sms", int(device), total(rows, "stake_ns"), text, remedy, _TABLE, (top["name"],), shortens=True
        )
        headline = f"{percent(top['sms_active_share'])} of the SMs are active: {{0}}"
        action = "more and even blocks: smaller tiles, a larger batch, kernels side by side"
        found.append(one._replace(headline=headline, action=action, where=_place(report, one)))
    return found


def _place(report: Report, one: Finding) -> str:
    return place_of_kernel(report, one.device, one.names[0], one.at_stake_ns)


def _mean(top: dict[str, Any]) -> str:
    return f"mean of {plural(top['samples'], 'sample')}"


def idle_tensor_cores(report: Report) -> list[Finding]:
    """One finding per device with matrix products that are made for tensor cores and hardly use them.

    Those that wait for DRAM or for SMs are left out: other findings have these.
    """
    found, per = [], per_iteration(report)
    busy = (pl.col("dram").fill_null(0) < _DRAM_BUSY) & (pl.col("sms_active_share").fill_null(1) > _FEW)
    rows = _kernels(report).filter((pl.col("tensor_active_share") <= _IDLE_TENSOR) & busy)
    made_for = pl.Series([_for_tensor_cores(name) for name in rows.get_column("name")], dtype=pl.Boolean)
    staked = _staked(rows.filter(made_for), 1 - pl.col("tensor_active_share"))
    for (device,), own in staked.partition_by("device", as_dict=True, maintain_order=True).items():
        top, more = own.row(0, named=True), own.height - 1
        share = percent(top["tensor_active_share"])
        others = f" Also: {plural(more, 'other kernel')} of the kind." if more else ""
        text = (
            f"While the matrix product {{0}} ran, the tensor cores were active in {share} of the time ({_mean(top)}), "
            f"for {per.time(top['exclusive_ns'])}.{others}"
        )
        remedy = (
            "Larger products (batch, width) and dimensions that are multiples of 64; ncu tells what its warps wait for "
            "(`kanalyze collect --with nsys,ncu`)."
        )
        one = Finding(
            "idle-tensor-cores",
            int(device),
            total(own, "stake_ns"),
            text,
            remedy,
            _TABLE,
            (top["name"],),
            shortens=True,
        )
        headline = f"Tensor cores are active in {share} of a product: {{0}}"
        action = "larger products, dimensions in multiples of 64"
        found.append(one._replace(headline=headline, action=action, where=_place(report, one)))
    return found


def _for_tensor_cores(name: str) -> bool:
    """Whether a kernel is a matrix product or convolution of types that tensor cores take, by such a kernel."""
    said = decode(name)
    return (
        said.family in {"gemm", "conv"} and said.tensor_core is True and bool(set(said.input_types) & {*TENSOR_TYPES})
    )


def dram_bound(report: Report) -> list[Finding]:
    """One finding per device whose kernels at the limit of its memory take a good part of kernel time."""
    found, per = [], per_iteration(report)
    rows = _staked(_kernels(report).filter(pl.col("dram") >= _DRAM_LIMIT), pl.lit(1))
    work = exclusive_operations(report).filter(pl.col("kind") == "kernel")
    every = dict(work.group_by("device").agg(pl.col("exclusive_ns").sum()).iter_rows())
    for (device,), own in rows.partition_by("device", as_dict=True, maintain_order=True).items():
        top, ns = own.row(0, named=True), total(own, "exclusive_ns")
        share = ns / max(every[device], 1)
        if share < _WORTH:
            continue
        parts = f"{percent(top['dram_read_share'])} read, {percent(top['dram_write_share'])} written"
        text = (
            f"{per.plural(total(own, 'launches'), 'kernel')} at the limit of the GPU's memory: {per.time(ns)}, "
            f"{percent(share)} of kernel time; most {{0}} ({parts} of the bandwidth, {_mean(top)})."
        )
        remedy = "They gain by moving fewer bytes only: fuse them with their neighbours, or use smaller types."
        one = Finding("dram-bound", int(device), ns, text, remedy, _TABLE, (top["name"],), at_most=True)
        headline = f"Kernels at DRAM's limit are {percent(share)} of kernel time"
        action = "torch.compile or fused kernels, smaller types: fewer bytes to move"
        found.append(one._replace(headline=headline, action=action, where=_place(report, one), vague=True))
    return found


def busy_pcie(report: Report) -> list[Finding]:
    """One finding per device whose link to the host is busy while no operation is recorded on it."""
    if report.scope.process is not None:  # what others do is not looked at then
        return []
    found, per = [], per_iteration(report)
    for device, grid in grids(report).items():
        spans = windows(report).filter(pl.col("device") == device).select("start", "end")
        names = [name for name in ("pcie_read_share", "pcie_write_share") if name in grid.cells.columns]
        if spans.is_empty() or not names:
            continue
        work = device_operations(report).filter(pl.col("device") == device).select("start", "end")
        idle = intervals.subtract(spans, intervals.union(work))
        told = cells_within(grid, idle).with_columns(link=pl.max_horizontal(names)).drop_nulls("link")
        busy = told.filter(pl.col("link") >= _PCIE_BUSY)
        known, ns = total(told, "ns"), total(busy, "ns")
        enough = total(busy, "samples") >= _SAMPLES and known >= _COVERED * intervals.length(idle)
        if not enough or ns < _WORTH * known:
            continue
        share = busy.select((pl.col("link") * pl.col("ns")).sum() / pl.col("ns").sum()).item()
        text = (
            f"While no operation of this report ran on the GPU, PCIe was busy for {per.time(ns)}, at {percent(share)} "
            f"of its bandwidth (mean of {plural(total(busy, 'samples'), 'sample')})."
        )
        remedy = (
            "Look for who moves data then: another process on the GPU, a network adapter or a disk that reaches its "
            "memory, managed memory that the host reads, or copies that were not recorded."
        )
        one = Finding("busy-pcie", device, ns, text, remedy, "gpu_units --by gap")
        headline = f"PCIe is busy at {percent(share)} while the GPU is idle"
        found.append(one._replace(headline=headline, action="nvidia-smi shows other processes on the GPU"))
    return found


def clock_drop(report: Report) -> list[Finding]:
    """One finding per device whose clock fell under load from what it had been under load before."""
    found, per = [], per_iteration(report)
    for device, grid in grids(report).items():
        cells = grid.cells
        if not {"sm_clock_hz", "sms_active_share"} <= {*cells.columns}:
            continue
        loaded = cells.filter((pl.col("sms_active_share") > _FEW) & pl.col("sm_clock_hz").is_not_null())
        if loaded.is_empty():
            continue
        highest = float(loaded.select(pl.col("sm_clock_hz").quantile(_HIGHEST)).item())
        since = loaded.filter(pl.col("sm_clock_hz") >= _REACHED * highest).get_column("start").min()
        work = exclusive_operations(report).filter((pl.col("device") == device) & (pl.col("kind") == "kernel"))
        told = cells_within(grid, intervals.union(work.select("start", "end"))).drop_nulls("sm_clock_hz")
        told = told.filter(pl.col("start") >= since).with_columns(pl.col("sm_clock_hz").clip(None, highest))
        lost = int(told.select((pl.col("ns") * (1 - pl.col("sm_clock_hz") / highest)).sum()).item())
        ns, samples = total(told, "ns"), total(told, "samples")
        if samples < _SAMPLES or ns < _COVERED * total(work, "exclusive_ns") or lost < _WORTH_CLOCK * ns:
            continue
        mean, least = told.select(
            (pl.col("sm_clock_hz") * pl.col("ns")).sum() / ns, least=pl.col("sm_clock_hz").min()
        ).row(0)
        text = (
            f"While kernels ran, the clock of the SMs fell from {frequency(highest)} to {frequency(mean)} on average, "
            f"{frequency(least)} at least ({plural(samples, 'sample')}). A clock that stays saves at most "
            f"{per.time(lost)} of {per.time(ns)}."
        )
        remedy = (
            "`nvidia-smi -q -d PERFORMANCE` tells what limits it, power or temperature; for figures that can be "
            "compared lock a clock that it keeps (`nvidia-smi -lgc`)."
        )
        one = Finding("clock-drop", device, lost, text, remedy, _TABLE, at_most=True)
        headline = f"The SM clock falls to {percent(mean / highest)} of {frequency(highest)}"
        found.append(one._replace(headline=headline, action="nvidia-smi -q -d PERFORMANCE tells what limits the clock"))
    return found


RULES: Final = (few_sms, idle_tensor_cores, dram_bound, busy_pcie, clock_drop)
