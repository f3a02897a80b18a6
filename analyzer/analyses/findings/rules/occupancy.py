"""Kernels that leave parts of the GPU idle: by their launch shapes, and by sampled counters of the GPU.

Of samples a kernel counts only where they tell of at least half of its time; the counters are of the whole GPU,
whatever ran.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.counters._sampled_means import COUNTERS, cells_within, grids, means
from kanalyze.analyses.device._operations import SHAPE, device_operations, exclusive_operations, other_shapes
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import CHANNELS_LAST, Finding
from kanalyze.analyses.findings.rules._kernels import by_shape, of_shapes
from kanalyze.analyses.findings.rules._telling import (
    CUDA,
    LIBRARY,
    TRITON,
    in_pytorch,
    per_iteration,
    place_of_kernel,
    written_with,
)
from kanalyze.analyses.host._worlds import NUMBA, OPENACC, OPENMP, spoken
from kanalyze.analyses.occupancy.occupancy import (
    SHARED_SETTING,
    launch_occupancy,
    registers_for_one_more,
    shared_for_one_more,
)
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.decoder.decode import decode
from kanalyze.decoder.spelling import TENSOR_TYPES
from kanalyze.units import count, frequency, percent, plural, size, time

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
_WORTH_SAMPLED: Final = 0.1
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
        stake, names = total(rows, "stake_ns"), (top["name"],)
        one = Finding("few-sms", int(device), stake, text, remedy, _TABLE, names, shortens=True)
        one = one._replace(claims=_named(report, int(device), rows))
        headline = f"{percent(top['sms_active_share'])} of the SMs are active: {{0}}"
        action = "more and even blocks: smaller tiles, a larger batch, kernels side by side"
        found.append(one._replace(headline=headline, action=action, where=_place(report, one)))
    return found


def _named(report: Report, device: int, rows: pl.DataFrame) -> pl.DataFrame:
    """When the kernels of the names in `rows` ran on a device: start, end."""
    names = rows.get_column("name").cast(pl.Categorical)
    work = exclusive_operations(report).filter((pl.col("device") == device) & pl.col("name").is_in(names.implode()))
    return work.select("start", "end")


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
        stake, names = total(own, "stake_ns"), (top["name"],)
        one = Finding("idle-tensor-cores", int(device), stake, text, remedy, _TABLE, names, shortens=True)
        one = one._replace(claims=_named(report, int(device), own))
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
        if share < _WORTH_SAMPLED:
            continue
        parts = f"{percent(top['dram_read_share'])} read, {percent(top['dram_write_share'])} written"
        text = (
            f"{per.plural(total(own, 'launches'), 'kernel')} at the limit of the GPU's memory: {per.time(ns)}, "
            f"{percent(share)} of kernel time; most {{0}} ({parts} of the bandwidth, {_mean(top)})."
        )
        remedy = "They gain by moving fewer bytes only: fuse them with their neighbours, or use smaller types."
        one = Finding("dram-bound", int(device), ns, text, remedy, _TABLE, (top["name"],), at_most=True)
        one = one._replace(claims=_named(report, int(device), own))
        headline = f"Kernels at DRAM's limit are {percent(share)} of kernel time"
        action = f"{'torch.compile or ' * in_pytorch(report)}fused kernels, smaller types: fewer bytes to move"
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
        if not enough or ns < _WORTH_SAMPLED * known:
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


SAMPLED: Final = (few_sms, idle_tensor_cores, dram_bound, busy_pcie, clock_drop)


#: Half of the warps suffice for most kernels; whether a kernel needs more is not in the report.
_LOW: Final = 0.5

#: Library kernels for matrix products and attention, which keep tiles in registers and shared memory by design.
_FEW_BY_DESIGN: Final = (
    r"(?i)cutlass|cute::|nvjet|xmma|cublas|cudnn|gemm|gemv|flash_?(?:fwd|bwd|attn|attention)|fmha|wgmma|tensorop"
)

_REMEDIES: Final = {
    "registers": "Use fewer registers per thread (__launch_bounds__, -maxrregcount), as long as that spills none",
    "shared memory": "Use less shared memory per block: smaller tiles, or fewer of them in flight",
    SHARED_SETTING: "Let the SM use more of its cache as shared memory (cudaFuncSetAttribute, preferred carve-out)",
    "warps": "Choose a block size of which a multiple fills the SM",
    "blocks": "Use larger blocks: an SM holds only so many, however small they are",
}

#: The same for what is written in Triton, as it seems, or in CUDA.
_IN_TRITON: Final = _REMEDIES | {
    "registers": "Use fewer registers: smaller blocks; in Triton more num_warps",
    "shared memory": "Use less shared memory: smaller tiles; in Triton fewer num_stages",
    "warps": "Choose a block size (in Triton num_warps) of which a multiple fills the SM",
    "blocks": "Use larger blocks (in Triton num_warps): an SM holds only so many",
}

#: The same in worlds with words of their own.
_BY_WORLD: Final = {
    NUMBA: _REMEDIES | {"registers": "Use fewer registers: @cuda.jit(max_registers=…), as long as that spills none"},
    OPENMP: _REMEDIES
    | {
        "registers": "Use fewer registers: shorter loop bodies, or the compiler's limit (-gpu=maxregcount:64)",
        **dict.fromkeys(("warps", "blocks"), "thread_limit(256), of which a multiple fills the SM"),
    },
    OPENACC: _REMEDIES
    | {
        "registers": "Use fewer registers: shorter loop bodies, or -gpu=maxregcount:64",
        **dict.fromkeys(("warps", "blocks"), "vector_length(256), of which a multiple fills the SM"),
    },
}


def low_occupancy(report: Report) -> list[Finding]:
    """One finding per device: the launch shape with most at stake, and the sum over all.

    The idle SMs in the last wave of such a kernel are not counted here, but by `tail`.
    """
    found, per = [], per_iteration(report)
    for (device,), shapes in _low(report).partition_by("device", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        more = other_shapes(shapes)
        others = f" Also: {plural(more, 'other launch shape')} of low occupancy." if more else ""
        warps = f"{count(top['warps_per_sm'])} of {plural(top['max_warps_per_sm'], 'warp')}"
        text = (
            f"{{0}} gets at most {warps} on an SM ({percent(top['occupancy_share'])} occupancy), for "
            f"{per.time(top['alone_ns'])}; the limit is {_limit(top)}.{others}"
        )
        what = _more_warps(report, str(top["name"]), top["limiter"].split(", ")[0])
        remedy = f"{what}. It helps where the kernel waits for latency, not where it waits for bandwidth."
        stake, names = total(shapes, "low_occupancy_ns"), (str(top["name"]),)
        one = Finding("low-occupancy", device, stake, text, remedy, "occupancy", names, shortens=True)
        headline = f"{count(top['warps_per_sm'])} of {count(top['max_warps_per_sm'])} warps fit on an SM: {{0}}"
        found.append(
            one._replace(
                headline=headline,
                action=what,
                where=_place(report, one),
                at_most=True,
                mending=partial(by_shape, device=int(device), shapes=shapes, stake="low_occupancy_ns"),
                claims=_times(report, int(device), shapes),
            )
        )
    return found


def _times(report: Report, device: int, shapes: pl.DataFrame) -> pl.DataFrame:
    """When the kernels of some launch shapes ran: start, end."""
    return of_shapes(report, device, shapes.select("name", *SHAPE).unique()).select("start", "end")


def _more_warps(report: Report, name: str, limiter: str) -> str:
    """Remedy for low occupancy of the kernel `name`, by what it is written with."""
    return (_IN_TRITON if written_with(report, name) == TRITON else spoken(report, _BY_WORLD, _REMEDIES))[limiter]


def _low(report: Report) -> pl.DataFrame:
    """Launch shapes with low occupancy and more than one wave of blocks, by device, the costliest first."""
    launches = launch_occupancy(report).filter(
        (pl.col("bucket") == "kernel") & (pl.col("occupancy_share") <= _LOW) & (pl.col("low_occupancy_ns") > 0)
    )
    if launches.is_empty():
        return launches
    designed = pl.col("name").str.contains(_FEW_BY_DESIGN).fill_null(value=False)
    descending = [False, True, *(False for _ in ("name", *SHAPE))]
    enough = _changeable(report, launches.filter(~designed)).with_columns(
        registers=registers_for_one_more(), shared=shared_for_one_more()
    )
    return enough.sort("device", "low_occupancy_ns", "name", *SHAPE, descending=descending)


def _changeable(report: Report, launches: pl.DataFrame) -> pl.DataFrame:
    """The launch shapes of kernels that the program's user wrote, and that are not seen at the limit of DRAM.

    The grid and the registers of a library's kernel follow shapes and types, and more blocks or warps do not help a
    kernel whose memory is busy.
    """
    names = launches.get_column("name").unique()
    own = [name for name in names.drop_nulls().cast(pl.String) if written_with(report, name) in (TRITON, CUDA)]
    at_limit = _kernels(report).filter(pl.col("dram") >= _DRAM_LIMIT)
    at_limit = at_limit.select("device", pl.col("name").cast(launches.schema["name"]))
    written = launches.filter(pl.col("name").cast(pl.String).is_in(own))
    return written.join(at_limit, on=["device", "name"], how="anti", maintain_order="left")


def _limit(top: dict[str, Any]) -> str:
    """The limiting resource, and from which amount on one more block would fit."""
    if top["limiter"] == "registers":
        now, then = top["registers_per_thread"], top["registers"]
        return f"registers ({now} per thread; with {then} one more block fits)"
    if top["limiter"] == "shared memory":
        now, then = top["static_shared_bytes"] + top["dynamic_shared_bytes"], top["shared"]
        return f"shared memory ({size(now)} per block; with {size(then)} one more fits)"
    if top["limiter"] == SHARED_SETTING:
        now, all_of_it = top["shared_config_bytes"], top["shared_per_sm_bytes"]
        return f"the setting of the shared memory ({size(now)} of the SM's {size(all_of_it)})"
    if top["limiter"] == "blocks":
        return f"the number of blocks ({plural(top['blocks_per_sm'], 'block')} of {plural(top['threads'], 'thread')})"
    return " and ".join(top["limiter"].rsplit(", ", 1))


def small_grid(report: Report) -> list[Finding]:
    """Per device, and remedy: the launch shape that wastes most, and the sum over all.

    A launch either leaves SMs without a block, or has more blocks than fit at once; `tail` and `low-occupancy` look at
    the latter.
    """
    found, per = [], per_iteration(report)
    small = small_grids(report).join(_measured(report), on=["device", "name"], how="anti")
    kernels = small.get_column("name").unique().drop_nulls().cast(pl.String)
    channels = pl.col("name").cast(pl.String).is_in([name for name in kernels if _runs_per_channel(report, name)])
    kept = [small.filter(channels).with_columns(channels=True), _changeable(report, small).with_columns(channels=False)]
    small = pl.concat(kept).sort("idle_sm_ns", descending=True, maintain_order=True).sort("device", maintain_order=True)
    for (device, _), shapes in small.partition_by("device", "channels", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        fit = top["sm_count"] * (top["max_threads_per_sm"] or 0)
        threads = top["blocks"] * top["threads"]
        of_fit = f", {plural(threads, 'thread')} of the {count(fit)} that fit" if fit else ""
        more = other_shapes(shapes)
        others = f" Also: {plural(more, 'other launch shape')} with fewer blocks than SMs." if more else ""
        shape = f"{plural(top['blocks'], 'block')} of {plural(top['threads'], 'thread')}"
        text = (
            f"{{0}} uses {shape} on {count(top['sm_count'])} SMs{of_fit}, for {per.time(top['alone_ns'])}.{others} A "
            f"block for every SM gains at most the time at stake; more may follow with several."
            f"{_with_more_blocks(report, top)}"
        )
        stake, names = total(shapes, "idle_sm_ns"), (str(top["name"]),)
        action, remedy = _more_blocks(report, names[0], alone=top["blocks"] == 1)
        one = Finding("small-grid", device, stake, text, remedy, "occupancy", names, shortens=True)
        headline = f"{plural(top['blocks'], 'block')} for {count(top['sm_count'])} SMs: {{0}}"
        mending = partial(by_shape, device=int(device), shapes=shapes, stake="idle_sm_ns")
        one = one._replace(claims=_times(report, int(device), shapes))
        found.append(one._replace(headline=headline, action=action, where=_place(report, one), mending=mending))
    return found


def _with_more_blocks(report: Report, top: dict[str, Any]) -> str:
    """The sentence on launches of the same kernel with a block for each SM that took less, anywhere in the report."""
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z")
    own = (pl.col("device") == top["device"]) & (pl.col("kind") == "kernel") & (pl.col("name") == top["name"])
    every = exclusive_operations(report.whole, *SHAPE).filter(own)
    sums = every.group_by(blocks=blocks).agg(pl.col("dur_ns").mean()).sort("dur_ns", "blocks")
    here = sums.filter(blocks=top["blocks"])
    quicker = sums.filter((pl.col("blocks") >= top["sm_count"]) & (pl.col("dur_ns") < here.get_column("dur_ns").min()))
    if quicker.is_empty():
        return ""
    many, ns = quicker.row(0)
    return f" With {count(many)} blocks it took {time(ns)} in this report, with these {time(here.item(0, 'dur_ns'))}."


def _measured(report: Report) -> pl.DataFrame:
    """Kernels of which samples say the same, in the types of launches; the finding few-sms has them."""
    names = few_sms_active(report).select("device", "name")
    return names.with_columns(pl.col("name").cast(launch_occupancy(report).schema["name"]))


#: The remedy for small grids, as a sentence and in a line.
_BLOCKS: Final = "Give it at least one block per SM, better several: more parallelism, or kernels side by side."
_LARGER: Final = "more blocks: smaller tiles, a larger batch, or kernels side by side"

#: The same for the program's own kernels, by world; and where one block does all the work.
_OWN_BLOCKS: Final = {
    NUMBA: ("kernel[blocks, threads] with a block for each SM at least", _BLOCKS),
    OPENMP: (
        "teams distribute parallel for, collapse(2) where the loop is short",
        "Distribute the loop over teams, one for each SM at least: without teams distribute, one team runs it all.",
    ),
    OPENACC: (
        "parallel loop gang vector, collapse(2) where the loop is short",
        "Divide the loop among gangs, one for each SM at least: seq, or kernels without independent, leaves one.",
    ),
}
_ALONE: Final = {
    CUDA: (
        "<<<(n + 255) / 256, 256>>>: a thread for each element",
        "One block runs on one SM: launch as many as the data need, with a loop over the grid in each thread.",
    ),
    NUMBA: (
        "kernel[(n + 255) // 256, 256]: a thread for each element",
        "One block runs on one SM: launch as many as the data need; cuda.grid(1) says which element is whose.",
    ),
}

#: Normalizations of images over each channel, which run a block per channel unless the layout is channels_last.
_PER_CHANNEL: Final = re.compile(r"(?i)(?:batch_?norm_|\bbn_(?:fw|bw))(?!.*(?:channels_?last|nhwc))")


def _runs_per_channel(report: Report, name: str) -> bool:
    """Whether the kernel `name` of PyTorch runs a block for each channel of images in NCHW."""
    return bool(_PER_CHANNEL.search(name)) and in_pytorch(report) and written_with(report, name) == LIBRARY


def _more_blocks(report: Report, name: str, *, alone: bool) -> tuple[str, str]:
    """Remedy for a small grid of the kernel `name`: in a line, and as a sentence; `alone` for one block."""
    if _runs_per_channel(report, name):
        remedy = (
            "It runs a block for each channel. Of images in channels_last other kernels normalize, with more blocks: "
            "model.to(memory_format=torch.channels_last), and the same for images."
        )
        return CHANNELS_LAST, remedy
    words = {} if written_with(report, name) != CUDA else _OWN_BLOCKS | _ALONE if alone else _OWN_BLOCKS
    return spoken(report, words, (_LARGER, _BLOCKS))


def small_grids(report: Report) -> pl.DataFrame:
    """Launch shapes with fewer blocks than SMs, by device, the most idle SM time first.

    Returns:
        Columns device, name, those of the shape, blocks, threads (per block), sm_count, max_threads_per_sm, alone_ns
        (time while no other kernel ran), and idle_sm_ns: alone_ns times the share of SMs without a block, the most that
        a full grid can gain.
    """
    launches = launch_occupancy(report).filter((pl.col("bucket") == "kernel") & (pl.col("idle_sm_ns") > 0))
    fit = pl.col("max_warps_per_sm") * pl.col("threads_per_warp")
    shape = ("device", "name", *SHAPE, "blocks", "threads", "sm_count")
    # one shape may have run with several shared-memory configurations of the SM
    sums = launches.group_by(*shape, fit.alias("max_threads_per_sm")).agg(pl.col("alone_ns", "idle_sm_ns").sum())
    order = ("device", "idle_sm_ns", "name", *SHAPE)
    return sums.sort(order, descending=[False, True, *(False for _ in order[2:])])


#: Smaller tail effects, as a share of a kernel's time, are below the variation between blocks.
_WORTH_TAIL: Final = 0.1


def tail(report: Report) -> list[Finding]:
    """One finding per device: the launch shape with the largest loss, and the sum over all.

    The loss is what an even last wave would save if all blocks took equally long, however full their SM.
    """
    found, per = [], per_iteration(report)
    launches = launch_occupancy(report).filter(
        (pl.col("bucket") == "kernel") & (pl.col("tail_share") >= _WORTH_TAIL) & (pl.col("tail_ns") > 0)
    )
    ordered = _changeable(report, launches).sort(
        "device", "tail_ns", "name", *SHAPE, descending=[False, True, *(False for _ in ("", *SHAPE))]
    )
    for (device,), shapes in ordered.partition_by("device", as_dict=True, maintain_order=True).items():
        top = shapes.row(0, named=True)
        room = top["blocks_per_sm"] * top["sm_count"]
        more = other_shapes(shapes)
        others = f" Also: {plural(more, 'other launch shape')} with such a tail." if more else ""
        text = (
            f"{{0}} has {plural(top['blocks'], 'block')} where {count(room)} run at once, for "
            f"{per.time(top['alone_ns'])}: its last wave holds {count(top['blocks'] % room)}, and leaves "
            f"{percent(top['tail_share'])} of that idle if all blocks take as long.{others}"
        )
        remedy = (
            f"Make the grid a multiple of what runs at once ({count(room)} blocks), or let each block take several "
            "parts of the work; or run other kernels beside it."
        )
        stake, names = total(shapes, "tail_ns"), (str(top["name"]),)
        one = Finding("tail", device, stake, text, remedy, "occupancy", names, shortens=True)
        headline = f"A last wave leaves {percent(top['tail_share'])} idle: {{0}}"
        action = f"a multiple of {count(room)} blocks, or a loop over tiles in each"
        mending = partial(by_shape, device=int(device), shapes=shapes, stake="tail_ns")
        one = one._replace(claims=_times(report, int(device), shapes))
        found.append(one._replace(headline=headline, action=action, where=_place(report, one), mending=mending))
    return found


RULES: Final = (low_occupancy, small_grid, tail, *SAMPLED)
