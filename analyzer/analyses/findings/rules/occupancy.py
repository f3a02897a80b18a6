"""Kernels that leave parts of the GPU idle: few warps per SM, fewer blocks than SMs, a last wave half full."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze.analyses.device._launch_shapes import other_shapes
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import by_shape
from kanalyze.analyses.findings.rules._places import place_of_kernel
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    LIBRARY,
    TRITON,
    in_pytorch,
    per_iteration,
    written_with,
)
from kanalyze.analyses.findings.rules.sampled_units import few_sms_active
from kanalyze.analyses.occupancy.occupancy import (
    SHARED_SETTING,
    launch_occupancy,
    registers_for_one_more,
    shared_for_one_more,
)
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import count, percent, plural, size

if TYPE_CHECKING:
    from kanalyze.report import Report

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
_COMPILED: Final = 'torch.compile(…, mode="max-autotune"), which tries other sizes of blocks'
_OF_LIBRARY: Final = (
    "another type, layout or call of that library runs another kernel",
    "torch.compile generates its own; or another type, layout or call",
)


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
            )
        )
    return found


def _more_warps(report: Report, name: str, limiter: str) -> str:
    """Remedy for low occupancy of the kernel `name`, by what it is written with."""
    written = written_with(report, name)
    if written == LIBRARY:
        return _OF_LIBRARY[in_pytorch(report)]
    return _COMPILED if written == COMPILED else (_IN_TRITON if written == TRITON else _REMEDIES)[limiter]


def _place(report: Report, one: Finding) -> str:
    """Launch place of the kernel of a finding."""
    return place_of_kernel(report, one.device, one.names[0], one.at_stake_ns)


def _low(report: Report) -> pl.DataFrame:
    """Launch shapes with low occupancy and more than one wave of blocks, by device, the costliest first."""
    launches = launch_occupancy(report).filter(
        (pl.col("bucket") == "kernel") & (pl.col("occupancy_share") <= _LOW) & (pl.col("low_occupancy_ns") > 0)
    )
    if launches.is_empty():
        return launches
    designed = pl.col("name").str.contains(_FEW_BY_DESIGN).fill_null(value=False)
    descending = [False, True, *(False for _ in ("name", *SHAPE))]
    enough = launches.filter(~designed).with_columns(registers=registers_for_one_more(), shared=shared_for_one_more())
    return enough.sort("device", "low_occupancy_ns", "name", *SHAPE, descending=descending)


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
    """One finding per device: the launch shape that wastes most, and the sum over all.

    A launch either leaves SMs without a block, or has more blocks than fit at once; `tail` and `low-occupancy` look at
    the latter.
    """
    found, per = [], per_iteration(report)
    small = small_grids(report).join(_measured(report), on=["device", "name"], how="anti")
    for (device,), shapes in small.partition_by("device", as_dict=True, maintain_order=True).items():
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
        )
        stake, names = total(shapes, "idle_sm_ns"), (str(top["name"]),)
        action, remedy = _more_blocks(report, names[0])
        one = Finding("small-grid", device, stake, text, remedy, "occupancy", names, shortens=True)
        headline = f"{plural(top['blocks'], 'block')} for {count(top['sm_count'])} SMs: {{0}}"
        mending = partial(by_shape, device=int(device), shapes=shapes, stake="idle_sm_ns")
        found.append(one._replace(headline=headline, action=action, where=_place(report, one), mending=mending))
    return found


def _measured(report: Report) -> pl.DataFrame:
    """Kernels of which samples say the same, in the types of launches; the finding few-sms has them."""
    names = few_sms_active(report).select("device", "name")
    return names.with_columns(pl.col("name").cast(launch_occupancy(report).schema["name"]))


#: The remedy for small grids, in CUDA and in PyTorch, whose kernels choose their grids by the shapes; and in a line.
_BLOCKS: Final = (
    "Give it at least one block per SM, better several: more parallelism, or kernels side by side.",
    "Give it more to do: its grid follows the shapes, so larger batches; or torch.compile, which fuses small kernels.",
)
_LARGER: Final = (
    "more blocks: smaller tiles, a larger batch, or kernels side by side",
    "larger batches or layers; torch.compile fuses small kernels",
)

#: Normalizations of images over each channel, which run a block per channel unless the layout is channels_last.
_PER_CHANNEL: Final = re.compile(r"(?i)(?:batch_?norm_|\bbn_(?:fw|bw))(?!.*(?:channels_?last|nhwc))")


def _of_pytorch(report: Report, name: str) -> bool:
    """Whether PyTorch, or a library below it, chooses the grid of the kernel `name`."""
    return in_pytorch(report) and written_with(report, name) in (LIBRARY, COMPILED)


def _more_blocks(report: Report, name: str) -> tuple[str, str]:
    """Remedy for a small grid of the kernel `name`: in a line, and as a sentence."""
    torch = _of_pytorch(report, name)
    if torch and _PER_CHANNEL.search(name):
        remedy = (
            "It runs a block for each channel. Of images in channels_last other kernels normalize, with more blocks: "
            "model.to(memory_format=torch.channels_last), and the same for images."
        )
        return "of images: channels_last; it runs a block per channel here", remedy
    return _LARGER[torch], _BLOCKS[torch]


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
_WORTH: Final = 0.1


def tail(report: Report) -> list[Finding]:
    """One finding per device: the launch shape with the largest loss, and the sum over all.

    The loss is what an even last wave would save if all blocks took equally long, however full their SM.
    """
    found, per = [], per_iteration(report)
    launches = launch_occupancy(report).filter(
        (pl.col("bucket") == "kernel") & (pl.col("tail_share") >= _WORTH) & (pl.col("tail_ns") > 0)
    )
    ordered = launches.sort(
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
        torch = _of_pytorch(report, str(top["name"]))
        if torch:
            remedy = "Its grid follows the shapes: try other batch sizes or widths; or run other kernels beside it."
        stake, names = total(shapes, "tail_ns"), (str(top["name"]),)
        one = Finding("tail", device, stake, text, remedy, "occupancy", names, shortens=True)
        headline = f"A last wave leaves {percent(top['tail_share'])} idle: {{0}}"
        action = _EVEN[torch].format(room=count(room))
        mending = partial(by_shape, device=int(device), shapes=shapes, stake="tail_ns")
        found.append(one._replace(headline=headline, action=action, where=_place(report, one), mending=mending))
    return found


#: How to even out the last wave, in CUDA and in PyTorch.
_EVEN: Final = (
    "a multiple of {room} blocks, or a loop over tiles in each",
    "another batch size or width, or other kernels beside it",
)


RULES: Final = (low_occupancy, small_grid, tail)
