"""Kernels that leave parts of the GPU idle: by launch shapes, by sampled counters, by what all data there would take.

Of samples a kernel counts only where they tell of at least half of its time; the counters are of the whole GPU,
whatever ran.
"""

import re
from itertools import chain
from typing import Any, Final

import polars as pl

from kanalyze import columns, intervals, tools
from kanalyze.analyses.counters._sampled_means import COUNTERS, cells_within, grids, means
from kanalyze.analyses.counters.counters import SECTOR_BYTES
from kanalyze.analyses.device._operations import (
    SHAPE,
    device_operations,
    exclusive_operations,
    operations,
    other_shapes,
    with_facts,
)
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.device.occupancy import launch_occupancy, registers_for_one_more, shared_for_one_more
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Finding, Findings, Rule, phrases
from kanalyze.analyses.host._call_kinds import CUPY, spoken, world
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.report import Report
from kanalyze.units import percent, plural, size

_THIN: Final = 0.5  # so many of a warp's threads are there in blocks that leave much of it idle
_FLAG_NS: Final = 10_000  # a warp that is done sooner reads and writes some numbers alone


def _told(report: Report, name: str, kernels: pl.DataFrame, stake: str, **others: Any) -> Finding:  # noqa: ANN401
    """The finding on kernels of a device, the costliest first; each shape takes less by `stake`, or `usual_ns`."""
    device, top = int(kernels.item(0, "device")), kernels.row(0, named=True)
    shape = SHAPE if "grid_x" in kernels.columns else ()
    work = exclusive_operations(report).filter(kind="kernel", device=device)
    work = with_facts(report, work.select("row", "name", "start", "end", "dur_ns"), *shape)
    usual = "usual_ns" if "usual_ns" in kernels.columns else stake
    stakes = kernels.group_by(pl.col("name").cast(pl.Categorical), *shape).agg(stake_ns=pl.col(usual).sum())
    ran = work.join(stakes, on=["name", *shape], nulls_equal=True, maintain_order="left")
    share = (pl.col("stake_ns") / pl.col("dur_ns").sum().over("name", *shape)).clip(upper_bound=1.0)
    most = (pl.col("dur_ns") - on_gpu.LEAST_NS).clip(lower_bound=0)
    saved = ran.select("row", saved_ns=pl.min_horizontal(on_gpu.part("dur_ns", share), most))
    where = say.place_of(report, work.filter(pl.col("name") == str(top["name"])).get_column("row"))
    own = {"names": (str(top["name"]),), "where": where, "shortens": True, "top": top, **others}
    own |= {"shapes": other_shapes(kernels)} if shape else {}
    change = Mending(saved) if shape else None
    return say.told(report, name, device, ran.select("start", "end"), total(kernels, stake), mending=change, **own)


def _costliest(kernels: pl.DataFrame, stake: str, *shape: str) -> list[pl.DataFrame]:
    """The kernels of each device, the costliest first."""
    order = ("device", stake, "name", *shape)
    return kernels.sort(order, descending=[name == stake for name in order]).partition_by("device", maintain_order=True)


_SAMPLES: Final = 20  # the fewest that a claim is made from
_COVERED: Final = 0.5  # the part of the time that they have to tell of

#: Means from or up to which a unit counts as hardly used, or at its limit.
_FEW: Final = 0.5
_IDLE_TENSOR: Final = 0.3
_DRAM_BUSY: Final = 0.6
_DRAM_LIMIT: Final = 0.75
_PCIE_BUSY: Final = 0.2

_WORTH_SAMPLED: Final = 0.1  # parts of the time of kernels that are worth a finding
_WORTH_TAIL: Final = 0.1  # smaller tail effects are below the variation between blocks


@once_per_report
def _kernels(report: Report) -> pl.DataFrame:
    """Kernels of which enough samples tell, but communication: with the counters, and dram, what is read or written."""
    grid_of_device = grids(report)
    shape = {"device": pl.Int64, "name": pl.String, "launches": pl.Int64, "exclusive_ns": pl.Int64, "samples": pl.Int64}
    parts = [pl.DataFrame(schema={**shape, **dict.fromkeys(COUNTERS, pl.Float64)})]
    work = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("bucket") == "kernel"))
    for (device,), kernels in work.drop_nulls("name").partition_by("device", as_dict=True).items():
        if device not in grid_of_device:
            continue
        named = kernels.with_columns(pl.col("name").cast(pl.String))
        sums = named.group_by("name").agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("exclusive_ns").sum())
        sampled = means(grid_of_device[int(device)], named.select("start", "end", key="name"))
        enough = (pl.col("samples") >= _SAMPLES) & (pl.col("sampled_ns") >= _COVERED * pl.col("total_ns"))
        rows = sampled.filter(enough).join(sums, left_on="key", right_on="name", how="inner").rename({"key": "name"})
        parts.append(rows.with_columns(device=pl.lit(device, dtype=pl.Int64)).select(parts[0].columns))
    dram = pl.sum_horizontal("dram_read_share", "dram_write_share", ignore_nulls=False)
    return pl.concat(parts).with_columns(dram=dram)


def _idle_units(report: Report, kernels: pl.DataFrame, unit: str, name: str) -> Findings:
    """One finding per device: the kernel whose idle units cost most, and the sum over all."""
    idle = pl.col("exclusive_ns") * (1 - pl.col(unit))
    for rows in _costliest(kernels.with_columns(stake_ns=idle.cast(pl.Int64)), "stake_ns"):
        yield _told(report, name, rows, "stake_ns", share=percent(rows.item(0, unit)), more=rows.height - 1)


def _few_sms(report: Report) -> pl.DataFrame:
    """Kernels that keep few SMs active, though not DRAM busy: rows of :func:`_kernels`."""
    return _kernels(report).filter((pl.col("sms_active_share") <= _FEW) & (pl.col("dram").fill_null(0) < _DRAM_BUSY))


@Rule
def few_sms(report: Report) -> Findings:
    """One finding per device with kernels that keep few SMs active."""
    return _idle_units(report, _few_sms(report), "sms_active_share", "few-sms")


@Rule
def idle_tensor_cores(report: Report) -> Findings:
    """One finding per device with products made for tensor cores that hardly use them, nor wait for DRAM or SMs."""
    busy = (pl.col("dram").fill_null(0) < _DRAM_BUSY) & (pl.col("sms_active_share").fill_null(1) > _FEW)
    slow = _kernels(report).filter((pl.col("tensor_active_share") <= _IDLE_TENSOR) & busy)
    for_tensor_cores = on_gpu.FAMILY.is_in(["gemm", "conv"]) & pl.col("tensor_core") & on_gpu.TENSOR_TYPED
    products = slow.filter(on_gpu.decoded_as(slow, for_tensor_cores))
    return _idle_units(report, products, "tensor_active_share", "idle-tensor-cores")


@Rule
def dram_bound(report: Report) -> Findings:
    """One finding per device whose kernels at the limit of its memory take a good part of kernel time."""
    work = exclusive_operations(report).filter(pl.col("kind") == "kernel")
    for rows in _costliest(_kernels(report).filter(pl.col("dram") >= _DRAM_LIMIT), "exclusive_ns"):
        whole_ns = total(work.filter(device=rows.item(0, "device")), "exclusive_ns")
        share = total(rows, "exclusive_ns") / max(whole_ns, 1)
        if share < _WORTH_SAMPLED:
            continue
        others = {"at_most": True, "vague": True, "shortens": False, "part": share}
        yield _told(report, "dram-bound", rows, "exclusive_ns", launches=total(rows, "launches"), **others)


@Rule
def busy_pcie(report: Report) -> Findings:
    """One finding per device whose link to the host is busy while no operation is recorded on it."""
    if report.scope.process is not None:  # what others do is not looked at then
        return
    for device, low, high in windows(report).iter_rows():
        grid = grids(report).get(device)
        names = [name for name in ("pcie_read_share", "pcie_write_share") if grid and name in grid.cells.columns]
        if not grid or not names:
            continue
        work = device_operations(report).filter(pl.col("device") == device).select("start", "end")
        idle = intervals.gaps(intervals.union(work), low, high)
        cells = cells_within(grid, idle).with_columns(link=pl.max_horizontal(names)).drop_nulls("link")
        busy = cells.filter(pl.col("link") >= _PCIE_BUSY)
        known_ns, ns, samples = total(cells, "ns"), total(busy, "ns"), total(busy, "samples")
        if samples < _SAMPLES or known_ns < _COVERED * intervals.length(idle) or ns < _WORTH_SAMPLED * known_ns:
            continue
        share = busy.select((pl.col("link") * pl.col("ns")).sum() / pl.col("ns").sum()).item()
        yield say.told(report, "busy-pcie", device, None, ns, part=share, samples=samples)


@Rule
def clock_drop(report: Report) -> Findings:
    """One finding per device whose clock fell under load from what it had been under load before."""
    clock = pl.col("sm_clock_hz")
    for device, grid in grids(report).items():
        if not {"sm_clock_hz", "sms_active_share"} <= {*grid.cells.columns}:
            continue
        loaded = grid.cells.filter((pl.col("sms_active_share") > _FEW) & clock.is_not_null())
        if loaded.is_empty():
            continue
        highest = float(loaded.select(clock.quantile(0.99)).item())
        since = loaded.filter(clock >= 0.97 * highest).get_column("start").min()
        work = exclusive_operations(report).filter(kind="kernel", device=device)
        cells = cells_within(grid, intervals.union(work.select("start", "end"))).drop_nulls("sm_clock_hz")
        cells = cells.filter(pl.col("start") >= since).with_columns(clock.clip(None, highest))
        lost = int(cells.select((pl.col("ns") * (1 - clock / highest)).sum()).item())
        ns, samples = total(cells, "ns"), total(cells, "samples")
        if samples < _SAMPLES or ns < _COVERED * total(work, "exclusive_ns") or lost < 0.05 * ns:
            continue
        mean, least = cells.select((clock * pl.col("ns")).sum() / ns, least=clock.min()).row(0)
        figures = {"highest": highest, "mean": mean, "least": least, "part": mean / highest, "samples": samples}
        yield say.told(report, "clock-drop", device, None, lost, at_most=True, ran=ns, **figures)


SAMPLED: Final = (few_sms, idle_tensor_cores, dram_bound, busy_pcie, clock_drop)


#: Library kernels for matrix products and attention, which keep tiles in registers and shared memory by design.
_FEW_BY_DESIGN: Final = "(?i)cutlass|cute::|nvjet|xmma|cublas|cudnn|gem[mv]|flash_?(?:fwd|bwd|att)|fmha|wgmma|tensorop"


@Rule
def low_occupancy(report: Report) -> Findings:
    """One finding per device: the launch shape with most at stake, and the sum over all."""
    # idle SMs in the last wave are not counted here, but by `tail`; usually no more warps are gained than are enough
    share = pl.col("occupancy_share")
    # half suffice for most, as far as a report without counters tells; of many registers a thread loads much at once
    enough = pl.when(limiter="registers").then(0.25).otherwise(0.5)
    low = (share < enough) & (pl.col("low_occupancy_ns") > 0)
    designed = pl.col("name").str.contains(_FEW_BY_DESIGN).fill_null(value=False)
    shapes = _changeable(report, launch_occupancy(report).filter((pl.col("bucket") == "kernel") & low & ~designed))
    triton = [say.written_with(report, str(name)) == say.TRITON for name in shapes.get_column("name")]
    # others of Triton use less, for sums
    tiled = pl.Series(triton, dtype=pl.Boolean) & (pl.col("dynamic_shared_bytes").fill_null(0) >= 1 << 15)
    shapes = shapes.filter(~tiled)
    usual_ns = on_gpu.part("low_occupancy_ns", (1 - share / enough) / (1 - share))
    shapes = shapes.with_columns(registers=registers_for_one_more(), shared=shared_for_one_more(), usual_ns=usual_ns)
    for rows in _costliest(shapes, "low_occupancy_ns", *SHAPE):
        top = rows.row(0, named=True)
        way = say.TRITON if say.written_with(report, str(top["name"])) == say.TRITON else world(report)
        remedy = (phrases("limiters") | phrases(f"limiters in {way}"))[top["limiter"].split(", ")[0]]
        used = (top["static_shared_bytes"] or 0) + (top["dynamic_shared_bytes"] or 0)
        sizes = {name: size(top[name] or 0) for name in ("shared", "shared_config_bytes", "shared_per_sm_bytes")}
        blocks = {"blocks": plural(top["blocks_per_sm"], "block"), "threads": plural(top["threads"], "thread")}
        # the limiting resource, and from which amount on one more block would fit
        limit = phrases("limits").get(top["limiter"], " and ".join(top["limiter"].rsplit(", ", 1)))
        limit = limit.format(**{**top, **sizes, **blocks, "used": size(used)})
        yield _told(report, "low-occupancy", rows, "low_occupancy_ns", at_most=True, limit=limit, helps=remedy)


def _changeable(report: Report, launches: pl.DataFrame) -> pl.DataFrame:
    """The launch shapes of kernels that the program's user wrote, and that are not seen at the limit of DRAM."""
    names = launches.get_column("name").unique().drop_nulls().cast(pl.String)
    own = [name for name in names if say.written_with(report, name) in (say.TRITON, say.CUDA)]
    at_limit = _kernels(report).filter(pl.col("dram") >= _DRAM_LIMIT)
    at_limit = at_limit.select("device", pl.col("name").cast(launches.schema["name"]))
    written = launches.filter(pl.col("name").cast(pl.String).is_in(own))
    return written.join(at_limit, on=["device", "name"], how="anti", maintain_order="left")


@Rule
def small_grid(report: Report) -> Findings:
    """Per device, and remedy: the launch shape with fewer blocks than SMs that wastes most, and the sum over all."""
    launches = launch_occupancy(report).filter((pl.col("bucket") == "kernel") & (pl.col("idle_sm_ns") > 0))
    # a warp that is done so soon sets a flag: it has nothing to divide
    one_warp = pl.col("blocks") * pl.col("threads") <= pl.col("threads_per_warp")
    launches = launches.filter(~(one_warp & (pl.col("alone_ns") < _FLAG_NS * pl.col("count"))).fill_null(value=False))
    fit = pl.col("max_warps_per_sm") * pl.col("threads_per_warp")
    shape = ("device", "name", *SHAPE, "blocks", "threads", "sm_count")
    # one shape may have run with several shared-memory configurations of the SM
    small = launches.group_by(*shape, fit.alias("max_threads_per_sm")).agg(pl.sum("alone_ns", "idle_sm_ns", "count"))
    measured = _few_sms(report).select("device", pl.col("name").cast(small.schema["name"]))  # few-sms has these
    small = small.join(measured, on=["device", "name"], how="anti")
    kernels = small.get_column("name").unique().drop_nulls().cast(pl.String)
    channels = pl.col("name").cast(pl.String).is_in([name for name in kernels if _runs_per_channel(report, name)])
    # shorter ones take less than the launches that would take their place
    long = pl.col("alone_ns") >= 20_000 * pl.col("count")
    variances = long & pl.col("name").cast(pl.String).str.contains(_VARIANCES)
    parts = (small.filter(channels), small.filter(variances), _changeable(report, small))
    for shapes in chain.from_iterable(_costliest(one, "idle_sm_ns", *SHAPE) for one in parts):
        top = shapes.row(0, named=True)
        name, words = str(top["name"]), {}
        if re.search(_VARIANCES, name):
            words = dict(zip(("action", "remedy"), phrases("blocks")["variances of CuPy"], strict=True))
        elif not _runs_per_channel(report, name):
            own, blocks = say.written_with(report, name) == say.CUDA, phrases("blocks")
            others = blocks | (phrases("one block") if top["blocks"] == 1 else {}) if own else {}
            words = dict(zip(("action", "remedy"), spoken(report, others, blocks["others"]), strict=True))
        # launches of the same kernel with a block for each SM that took less, anywhere in the report
        every = exclusive_operations(report.whole, *SHAPE).filter(kind="kernel", device=top["device"], name=name)
        means = every.group_by(blocks=columns.product(*map(pl.col, SHAPE[:3]))).agg(pl.col("dur_ns").mean())
        here_ns = means.filter(blocks=top["blocks"]).get_column("dur_ns").min()
        quicker = means.filter((pl.col("blocks") >= top["sm_count"]) & (pl.col("dur_ns") < here_ns))
        many, ns = quicker.sort("dur_ns", "blocks").row(0) if quicker.height else (0, 0)
        fit, threads = top["sm_count"] * (top["max_threads_per_sm"] or 0), top["blocks"] * top["threads"]
        figures = {"fit": fit, "threads": threads, "quicker": many, "then": ns, "now": here_ns or 0}
        yield _told(report, "small-grid", shapes, "idle_sm_ns", **figures, **words)


#: Variances of CuPy, up to 32 of which are a block's: no library of sums computes them.
_VARIANCES: Final = r"^cupy_var_core"

#: Normalizations of images over each channel, which run a block per channel unless the layout is channels_last.
_PER_CHANNEL: Final = re.compile(r"(?i)(?:batch_?norm_|\bbn_(?:fw|bw))(?!.*(?:channels_?last|nhwc))")


def _runs_per_channel(report: Report, name: str) -> bool:
    """Whether the kernel `name` of PyTorch runs a block for each channel of images in NCHW."""
    library = say.in_pytorch(report) and say.written_with(report, name) == say.LIBRARY
    return library and bool(_PER_CHANNEL.search(name)) and not on_host.wants_planes(report)


@Rule
def tail(report: Report) -> Findings:
    """One finding per device: the launch shape that an even last wave would save most of, and the sum over all."""
    long = (pl.col("tail_share") >= _WORTH_TAIL) & (pl.col("tail_ns") > 0)
    shapes = _changeable(report, launch_occupancy(report).filter((pl.col("bucket") == "kernel") & long))
    for rows in _costliest(shapes, "tail_ns", *SHAPE):
        top = rows.row(0, named=True)
        room = top["blocks_per_sm"] * top["sm_count"]
        yield _told(report, "tail", rows, "tail_ns", room=room, left=top["blocks"] % room)


@Rule
def thin_blocks(report: Report) -> Findings:
    """One finding per device: the launch shape whose blocks are smaller than a warp, and the sum over all."""
    part = pl.col("threads") / pl.col("threads_per_warp")
    # where there are SMs without a block, that is told
    full = (part <= _THIN) & (pl.col("blocks") >= pl.col("sm_count")) & (pl.col("bucket") == "kernel")
    # whole warps are fewer, and where as many blocks as an SM holds are there, larger ones are more warps of it
    room = pl.col("blocks_per_sm") * pl.col("sm_count")
    crowded = pl.col("limiter").str.contains("blocks") & (pl.col("blocks") > room)
    left = part * pl.when(crowded).then("occupancy_share").otherwise(1.0)
    launches = launch_occupancy(report).filter(full).with_columns(thin_ns=on_gpu.part("alone_ns", 1 - left))
    long = pl.col("alone_ns") >= _FLAG_NS * pl.col("count")
    for rows in _costliest(_changeable(report, launches.filter(long)), "thin_ns", *SHAPE):
        yield _told(report, "thin-blocks", rows, "thin_ns", at_most=True)


#: Bytes of the largest value that a kernel's name has among its parameters; of 4, where it names none.
_VALUE_BYTES: Final = (
    pl.when(pl.col("name").cast(pl.String).str.contains(r"\b(?:double2|float4|u?int4|complex<double>)"))
    .then(16)
    .when(pl.col("name").cast(pl.String).str.contains(r"\b(?:double|long|float2|u?int2|complex)\b"))
    .then(8)
    .otherwise(4)
)


@Rule.of(tools.CUDA, CUPY)  # of other worlds the first axis may be the last one of arrays
def narrow_blocks(report: Report) -> Findings:
    """One finding per device: the launch shape over a plane whose warps run down columns, and the sum over all."""
    if report.whole.counted() is not None:  # counters tell what kernels access
        return
    width, threads = pl.col("block_x"), pl.col("threads")
    plane = (pl.col("grid_x") > 1) & (pl.col("grid_y") > 1) & (pl.col("grid_x") * width >= threads)
    used = width * _VALUE_BYTES / SECTOR_BYTES
    down = (used < 1) & (threads >= pl.col("threads_per_warp")) & (pl.col("block_y") * width == threads)
    launches = launch_occupancy(report).filter(plane & down & (pl.col("bucket") == "kernel"))
    launches = launches.with_columns(narrow_ns=on_gpu.part("alone_ns", 1 - used))
    for rows in _costliest(_changeable(report, launches), "narrow_ns", *SHAPE):
        yield _told(report, "uncoalesced: blocks", rows, "narrow_ns")


# Kernels that take far longer than reading and writing all that is there, with a long piece of it for each thread.

_LEAST_NS: Final = 20_000  # shorter kernels are launched rather than run


@Rule
def far_apart(report: Report) -> Findings:
    """One finding per device on the kernels that alone worked on what was copied or set before."""
    every = columns.in_order(operations(report).select("row", "kind", "device", "name", "start"), "start")
    kernels = every.filter(pl.col("kind").is_in(["kernel", "graph"]))
    first = kernels.unique("device", keep="first", maintain_order=True).select("device", name="name", first="start")
    own = [say.written_with(report, str(name)) == say.CUDA for name in first.get_column("name")]
    alone = first.filter(pl.Series(own, dtype=pl.Boolean))
    before = every.filter(pl.col("kind").is_in(["memcpy", "memset"])).join(alone, on="device")
    before = with_facts(report, before.filter(pl.col("start") < pl.col("first")), "size_bytes")
    fast = report.devices.select("device", bandwidth="memory_bandwidth_bytes_per_s", sms="sm_count").drop_nulls()
    firsts = alone.join(before.group_by("device").agg(pl.col("size_bytes").sum()), on="device").join(fast, on="device")
    blocks, threads = (columns.product(*axes) for axes in (map(pl.col, SHAPE[:3]), map(pl.col, SHAPE[3:])))
    work = exclusive_operations(report).join(firsts, on=["device", "name"]).filter(pl.col("kind") == "kernel")
    work = with_facts(report, work, *SHAPE)
    sums = work.group_by("device", pl.col("name").cast(pl.String)).agg(
        launches=pl.len(),
        ns=pl.col("dur_ns").sum(),
        threads=(blocks * threads).first(),
        bytes_there=pl.col("size_bytes").first(),
        least_ns=(pl.col("size_bytes") / pl.col("bandwidth") * 1e9).first(),
        many=(blocks.first() >= pl.col("sms").first()),
    )
    each = pl.col("ns") / pl.col("launches")
    # no access costs more than a sector for a byte, and what takes longer computes
    far = each.is_between(3 * pl.col("least_ns"), 32 * pl.col("least_ns")) & (each >= _LEAST_NS)
    # neighbouring threads begin so far apart (bytes), or read the same
    apart = pl.col("many") & (pl.col("bytes_there") >= 512 * pl.col("threads"))
    slow = sums.filter(far & apart).drop("many").sort("device")
    for device, name, launches, ns, threads, bytes_there, least_ns in slow.iter_rows():
        # at the memory's limit a kernel takes so many times what its bytes do at the peak bandwidth
        stake = ns - int(launches * least_ns * 1.3)
        work = exclusive_operations(report).filter(kind="kernel", device=device, name=name)
        yield say.told(
            report,
            "uncoalesced",
            device,
            work.select("start", "end"),
            stake,
            launch=ns / launches,
            there=bytes_there,
            least=least_ns,
            threads=threads,
            each=bytes_there / threads,
            names=(name,),
            where=say.place_of(report, work.get_column("row")),
            mending=Mending(work.select("row", saved_ns=on_gpu.part("dur_ns", stake / ns))),
            shortens=True,
            at_most=True,
        )
