"""Arrays that are worked on piece by piece: loops around small kernels, chains of operations, copies that grow."""

from __future__ import annotations

import re
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.findings.rules._copies import TO_DEVICE
from kanalyze.analyses.findings.rules._kernels import (
    Told as OfKernels,
)
from kanalyze.analyses.findings.rules._kernels import (
    decoded_as,
    kernel_sums,
    kernels_that,
    launching_operators,
    merged,
    on_kernels,
    without,
)
from kanalyze.analyses.findings.rules._operators import Told
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    LIBRARY,
    changes,
    in_pytorch,
    per_iteration,
    place_of,
    written_with,
)
from kanalyze.analyses.host._call_kinds import CUPY, JAX, NUMBA, OPENACC, OPENMP, PYTHON, PYTORCH, spoken, world
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls
from kanalyze.analyses.memory.memory import allocating_calls
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.decoder.decode import decode
from kanalyze.report import Report
from kanalyze.tools import CUDA
from kanalyze.units import count, percent, plural, time

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.decoder.fields import KernelName

#: Copies within a device, such as ``x[i] = y`` of arrays.
_WITHIN: Final = pl.col("detail") == "Device-to-Device"

#: What follows each other in a stream.
_STREAM: Final = ("device", "process_id", "stream")


def _by_device(rows: pl.DataFrame) -> list[tuple[int, pl.DataFrame]]:
    """The rows of each device."""
    return [(int(own.item(0, "device")), own) for own in rows.partition_by("device", maintain_order=True)]


def _place(report: Report, work: pl.DataFrame) -> str:
    return place_of(report, pl.col("row").is_in(work.get_column("row").implode()))


# Loops of the host around small kernels: a launch for each row where one could have a grid over all, or one array.

#: The fewest turns in a row; the most kernels of a turn, and the most blocks of each, of the program's own kernels and
#: of array libraries, whose operations are kernels. A time step of a simulation has more of both, and cannot be one.
_TURNS: Final = 32
_OWN: Final = (2, 4)
_OF_ARRAYS: Final = 16

#: An SM has room for so many threads of such kernels at least.
_THREADS: Final = 1024

#: What waits or allocates in so many of the turns is told by other findings: of directives each region waits.
_OFTEN: Final = 0.5
_WAITS: Final = (OPENMP, OPENACC)

#: Worlds in which operations on arrays are kernels.
_ARRAYS: Final = (CUPY, PYTHON)

_GRID: Final = Told(
    "host-grid-loop",
    "{launches} of {blocks} each, in a loop",
    "one batched call, such as cublasSgemmStridedBatched, in place of the loop",
    "One launch whose grid covers what the loop does one by one. Where a turn needs the result of the one before, "
    "let the loop run inside the kernel, or replay it as a CUDA graph.",
    "kernels",
)
_PARTS: Final = Told(
    "repeated-work",
    "The same {kernels} run for one slice after the other",
    "whole arrays in place of slices in a loop: x.sum(axis=1, keepdims=True)",
    ("Let the loop's index be a dimension of the arrays: axis= and keepdims=True of reductions, broadcasting, einsum."),
    "kernels",
)

#: Action by world, of the program's own kernels.
_ACTIONS: Final = {
    CUDA: "one launch over all turns: dim3 grid(blocks, turns), blockIdx.y for i",
    PYTORCH: "one launch with a grid over the loop: kernel[(turns, blocks)](…)",
    NUMBA: "one launch over all turns: kernel[(blocks, turns), threads](…)",
    PYTHON: "one launch, or one operation on the whole array, in place of the loop",
    OPENMP: "the loop inside the region: target teams distribute over it, collapse(2)",
    OPENACC: "the loop inside the region: parallel loop gang over it, collapse(2)",
}


def host_grid_loop(report: Report) -> list[Finding]:
    """At most one finding per device, on all loops together: of array libraries ``repeated-work``."""
    every = [_looped(report, device, own) for device, own in _by_device(_loops(report))]
    return [one for one in every if one.at_stake_ns > 0]


def _looped(report: Report, device: int, own: pl.DataFrame) -> Finding:
    merged_ns = total(_joined(own).unique("group"), "merged_ns")
    turns = own.group_by("run", "period").agg(pl.len() // pl.col("period").first()).get_column("len")
    most = own.group_by("name").agg(pl.col("dur_ns").sum(), pl.col("blocks").max()).sort("dur_ns", "name").row(-1)
    name, blocks = str(most[0]), plural(int(most[2]), "block")
    usual = int(own.group_by("period").len().sort("len", "period").item(-1, "period"))
    what = "One kernel is" if usual == 1 else f"{count(usual)} kernels are"
    launches = per_iteration(report).plural(own.height, "launch")
    text = (
        f"{what} launched over and over with nothing else between: {launches} in {plural(len(turns), 'loop')} of up to "
        f"{count(int(str(turns.max())))} turns, most {{0}} with {blocks}. GPU {device} works in them for "
        f"{time(intervals.length(intervals.union(own)))} and idles between for the rest; in one launch each they would "
        f"take about {time(merged_ns)}."
    )
    library = _of_library(report, name)
    told = _PARTS if library and world(report) in _ARRAYS else _GRID
    if told == _GRID and not (library and world(report) == CUDA):
        told = told._replace(action=spoken(report, _ACTIONS, _ACTIONS[PYTHON]))
    headline = told.headline.format(launches=launches, blocks=blocks, kernels=plural(usual, "kernel"))
    spans = own.group_by("run").agg(pl.col("start").min(), pl.col("end").max()).select("start", "end")
    stake = intervals.length(intervals.union(spans)) - merged_ns
    one = told._replace(headline=headline).finding(device, text, spans, stake)
    return one._replace(names=(name,), where=_place(report, own), mending=partial(_in_one, own=own))


def _of_library(report: Report, name: str) -> bool:
    return written_with(report, name) in (LIBRARY, COMPILED)


def _in_one(_: Report, own: pl.DataFrame) -> Mending:
    """Each kernel of a loop is launched once, and the host does nothing else in it."""
    sides = {"start": pl.col("call_start").min(), "end": pl.col("call_start").max()}
    return merged(_joined(own))._replace(host=own.group_by("process_id", "run").agg(**sides))


def _joined(own: pl.DataFrame) -> pl.DataFrame:
    """Rows for :func:`merged`: of each loop the launches of one kernel, as many side by side as SMs have room for."""
    on_each = (_THREADS // pl.col("threads")).clip(lower_bound=1)
    beside = (pl.col("sms") * on_each // pl.col("blocks")).clip(lower_bound=1)
    merged_ns = (pl.col("dur_ns").median() * (pl.len() / beside.first()).ceil()).cast(pl.Int64)
    sums = own.group_by("run", "place").agg(merged_ns=merged_ns, kept=pl.lit(1)).with_row_index("group")
    return own.join(sums, on=["run", "place"]).sort("group", "start")


_OF_LOOPS: Final = (*_STREAM, "row", "name", "start", "end", "dur_ns", "call_start", "shape", "kind")


@once_per_report
def _loops(report: Report) -> pl.DataFrame:
    """Kernels in such loops, with the copies between arrays in them, and device, run, place (in the turn) and period.

    Columns besides: row, kind, name, start, end, dur_ns, blocks, threads (of a block), sms (of the device).
    """
    arrays = world(report) in _ARRAYS
    work = exclusive_operations(report, "stream", "call_row", "call_start", "shape", *SHAPE)
    alone = pl.col("call_row").is_not_null() & (pl.len().over("call_row") == 1)  # not those of a graph
    blocks, threads = (
        (pl.col(f"{of}_x") * pl.col(f"{of}_y") * pl.col(f"{of}_z")).cast(pl.Int64).fill_null(1)
        for of in ("grid", "block")
    )
    kernel = ((pl.col("kind") == "kernel") & alone) | (_WITHIN.fill_null(value=False) & arrays)
    line = work.select(*_OF_LOOPS, blocks=blocks, threads=threads, kernel=kernel)
    devices = report.devices.select("device", sms="sm_count").drop_nulls()
    line = line.join(devices, on="device").sort(*_STREAM, "start")
    found, runs = [_of_period(line.clear(), 1)], 0
    for period in range(1, (_OF_ARRAYS if arrays else _OWN[0]) + 1):
        known = _of_period(line, period)
        line = line.join(known.select("row"), on="row", how="anti", maintain_order="left")
        for _, own in known.group_by("run", maintain_order=True):
            if _is_loop(report, own):
                runs += 1
                found.append(own.with_columns(run=pl.lit(runs, pl.UInt32)))
    return pl.concat(found)


def _of_period(line: pl.DataFrame, period: int) -> pl.DataFrame:
    """Kernels in a row of which each is the same as `period` before: with run, place (in a turn) and period."""
    alike = [pl.col(key).eq_missing(pl.col(key).shift(period).over(_STREAM)) for key in ("name", "shape")]
    told = line.with_columns(same=pl.all_horizontal("kernel", *alike).fill_null(value=False))
    runs = told.with_columns(run=changes(("same", *_STREAM)).cum_sum().cast(pl.UInt32)).filter("same")
    long = runs.with_columns(place=pl.int_range(pl.len()).over("run") % period, period=pl.lit(period))
    return long.filter(pl.len().over("run") >= (_TURNS - 1) * period)


def _is_loop(report: Report, own: pl.DataFrame) -> bool:
    """Whether launches in a row are small kernels that could be one, and nothing else takes part in the turns."""
    names = own.filter(pl.col("kind") == "kernel").get_column("name").unique().cast(pl.String)
    others = [_of_library(report, name) for name in names]
    arrays = all(others) and world(report) in _ARRAYS
    most = pl.col("sms") - 1 if arrays else pl.min_horizontal(_OWN[1], pl.col("sms") - 1)
    small = own.select((pl.col("blocks") <= most).all()).item() and others
    long = int(own.item(0, "period")) > _OWN[0] and not arrays
    if not small or long or world(report) == JAX or (in_pytorch(report) and all(others)):
        return False
    inside = pl.col("start").is_between(own.get_column("call_start").min(), own.get_column("call_start").max())
    waits = blocking_calls(report).filter(pl.col("scope").is_in(WAITING) & inside)
    waited = waits.height if world(report) not in _WAITS else 0
    allocations = allocating_calls(report).filter(inside)
    return max(waited, allocations.height) < _OFTEN * own.height / int(own.item(0, "period"))


# Operations of CuPy, each a kernel of its own: chains that one kernel could do, and arrays of float64.

#: What one kernel takes for each operation of a chain after the first, as a part of the longest one: other arrays that
#: it reads or writes. Of the fifth operation on half as much: most of their arrays have been read by then.
_EACH_MORE: Final = 0.25
_FIRST: Final = 4

#: A smaller part of the kernel time is left out.
_WORTH: Final = 0.03

_CHAINS: Final = Told(
    "fusion",
    "{0} could be one kernel each chain",
    "@cupy.fuse() on the function, or one cupy.ElementwiseKernel",
    "Fuse them: @cupy.fuse() on the function, or one cupy.ElementwiseKernel for its arithmetic.",
    "kernels",
)


def array_chains(report: Report) -> list[Finding]:
    """One finding per device on elementwise operations of CuPy that follow each other on arrays of one size."""
    if world(report) != CUPY:
        return []
    found, per = [], per_iteration(report)
    for device, chains in _by_device(_chains(report)):
        groups, took = chains.unique("group"), total(chains, "dur_ns")
        merged_ns, kernels = total(groups, "merged_ns"), per.plural(chains.height, "elementwise kernel")
        if took - merged_ns < _WORTH * total(exclusive_operations(report), "exclusive_ns"):
            continue
        text = (
            f"{kernels} of CuPy pass their results through memory, in {per.plural(groups.height, 'chain')} of up to "
            f"{longest(groups, 'many')} on arrays of one size: {per.time(took)}. One kernel each would take "
            f"about {per.time(merged_ns)}."
        )
        told = _CHAINS._replace(headline=_CHAINS.headline.format(kernels))
        one = told.finding(device, text, chains.select("start", "end"), took - merged_ns)
        change = partial(_fused, chains=chains)
        found.append(one._replace(where=_place(report, chains), mending=change, general=True, shortens=True))
    return found


def _fused(_: Report, chains: pl.DataFrame) -> Mending:
    return merged(chains)


def _chains(report: Report) -> pl.DataFrame:
    """Kernels of such chains: device, group, row, start, end, dur_ns, kept, merged_ns and many (of the chain)."""
    work = exclusive_operations(report, "stream", *SHAPE).sort(*_STREAM, "start")
    line = work.with_columns(chains=decoded_as(work, _is_elementwise))
    line = line.with_columns(group=changes((*_STREAM, *SHAPE, "chains")).cum_sum()).filter("chains")
    many, most = pl.len().over("group"), pl.col("dur_ns").max().over("group")
    others = many.cast(pl.Int64) - 1
    more = others.clip(upper_bound=_FIRST) + (others - _FIRST).clip(lower_bound=0) / 2
    fused = (most * (1 + _EACH_MORE * more)).cast(pl.Int64)
    told = line.with_columns(many=many, kept=pl.lit(1), merged_ns=fused)
    return told.filter((pl.col("many") > 1) & (pl.col("dur_ns").sum().over("group") > pl.col("merged_ns")))


def _is_elementwise(said: KernelName) -> bool:
    return said.library == "cupy" and said.family in {"elementwise", "copy"}


#: Types in the names of CuPy's kernels: ``cupy_add__float64_float64_float64``.
_DOUBLE: Final = re.compile(r"cupy_\w*?__(?:\w*_)?float64")

#: Names of kernels that reduce arrays of float64, and the elements of an array that counts.
_REDUCES_DOUBLES: Final = r"(?:reduce|Reduce).*\bdouble\b"
_LARGE: Final = 1 << 16

_DOUBLES: Final = OfKernels(
    "float64",
    "kernel",
    "of CuPy compute in float64 (most {0})",
    ". NumPy's arrays and Python's numbers are float64 unless told otherwise; float32 moves half of the bytes.",
    "Make arrays float32 where that is exact enough: dtype=cp.float32, x.astype(np.float32) before cp.asarray.",
    "kernels",
    "Arrays are float64: {0} of kernel time",
    "dtype=cp.float32; x.astype(np.float32) before cp.asarray(x)",
    left=0.5,
)


def double_arrays(report: Report) -> list[Finding]:
    """One finding per device on operations of CuPy on arrays of float64."""
    if world(report) != CUPY:
        return []
    wide, found = _on_wide_arrays(report), []

    def is_double(said: KernelName, _: object) -> bool:
        return said.function in wide or bool(_DOUBLE.match(said.function))

    for device, chosen in kernels_that(report, is_double, _WORTH):
        told = _DOUBLES._replace(headline=_DOUBLES.headline.format(percent(chosen.share)))
        found.append(on_kernels(report, device, chosen, told))
    return found


@once_per_process
def _on_wide_arrays(report: Report) -> set[str]:
    """Kernels with a thread for each element of arrays that were copied to the GPU with 8 bytes for each.

    Only where another kernel says that it reduces doubles: other types have 8 bytes, too.
    """
    work = operations(report, "size_bytes", *SHAPE)
    kernels = work.filter(pl.col("kind") == "kernel")
    if not kernels.get_column("name").unique().cast(pl.String).str.contains(_REDUCES_DOUBLES).any():
        return set()
    copied = work.filter(pl.col("detail").cast(pl.String) == TO_DEVICE).select(bytes=pl.col("size_bytes") // 8)
    block = pl.col("block_x").cast(pl.Int64)
    sizes = kernels.select("name", block=block, elements=block * pl.col("grid_x")).unique()
    pairs = sizes.join(copied.unique().filter(pl.col("bytes") >= _LARGE), how="cross")
    filled = pl.col("bytes").is_between(pl.col("elements") - pl.col("block"), "elements")
    return {decode(name).function for name in pairs.filter(filled).get_column("name").cast(pl.String).unique()}


# Tensors that are copied to grow by a piece, and tensors that are repeated in memory.

#: Less of the kernel time is left out.
_MUCH: Final = 0.08

#: Concatenations grow where the later ones of the window take longer: so many, with such a correlation of time and
#: place, and the last quarter so much longer than the first one.
_FEWEST: Final = 16
_CORRELATED: Final = 0.3
_GROWS: Final = 1.005

#: The same within iterations: from eighth to eighth, none far longer than the one before, but for the first: layers
#: that join images of other sizes are.
_EIGHTHS: Final = 8
_GROWS_WITHIN: Final = 1.3
_JUMPS: Final = 2.0

#: What is left of a copy: one of the new piece alone (ns).
_LEFT_NS: Final = 2000

#: What users write that repeats a tensor in memory, by the operators.
_REPEATS: Final = {"aten::repeat": ".repeat()", "aten::repeat_interleave": "repeat_interleave", "aten::tile": "tile"}

_GROWN: Final = Told(
    "growing-copies",
    "torch.cat copies a growing tensor for each piece: {share}",
    "cache[:, :, at:at + 1] = new, in a tensor made once",
    "Make the tensor once, as large as it gets, and write each piece into it: cache[:, :, at] = key, with a view "
    "of what is filled for attention (transformers: StaticCache); or collect pieces in a list, and join them once.",
    "kernels --by operation",
    "{concatenation} (most {{0}}) take {ns}, {share} of kernel time, and longer and longer: the tensor that grows "
    "is copied whole for each piece.",
)
_REPEATED: Final = Told(
    "growing-copies",
    "Tensors are repeated in memory ({written}): {share}",
    ".expand() or broadcasting; enable_gqa=True in attention",
    "Use .expand() or a dimension of 1, which operators broadcast; of keys and values of grouped queries, "
    "scaled_dot_product_attention(…, enable_gqa=True).",
    "kernels --by operation",
    "{kernel} (most {{0}}) repeat tensors in memory ({written}): {ns}, {share} of kernel time. Operators broadcast "
    "what is expanded without a copy.",
)
_COPIED: Final = _GROWN._replace(
    headline="A growing array is copied whole for each piece: {share}",
    table="copies",
    what=(
        "{copy} within GPU {device} take {ns}, {share} of its work: each is as large as the one before and the piece "
        "that came after it, so that all of a growing array is copied for each piece."
    ),
)
_ANY_ARRAY: Final = "write each piece into an array made once, as large as it gets"


def growing_concatenations(report: Report) -> list[Finding]:
    """At most two findings per device: concatenations that grow, and repeated tensors."""
    found = []
    for device in kernel_sums(report) if in_pytorch(report) else ():
        cats = device.chosen(lambda said: said.library == "aten" and said.operation == "cat")
        work = exclusive_operations(report).filter(cats.operations(device.device)).sort("start")
        if cats.share >= _MUCH and _grow(work.get_column("dur_ns"), per_iteration(report).iterations or 1):
            found.append(_copied(report, device.device, work, device.kernel_ns, _GROWN))
        copies = device.chosen(_is_copy)
        if copies.share >= _MUCH:
            work = exclusive_operations(report).filter(copies.operations(device.device))
            work = work.join(launching_operators(report), on="row").filter(pl.col("outer").is_in(_REPEATS.keys()))
            if total(work, "exclusive_ns") >= _MUCH * device.kernel_ns:
                found.append(_copied(report, device.device, work, device.kernel_ns, _REPEATED))
    return found


def growing_copies(report: Report) -> list[Finding]:
    """One finding per device on copies within it of what was there, each followed by one of the piece that is new."""
    every = exclusive_operations(report, "size_bytes", "stream")
    size, beside = pl.col("size_bytes"), ["device", "stream"]
    grows = (size.shift(-2) == size + size.shift(-1)).over(beside) & (size > size.shift(-1)).over(beside)
    again = grows.shift(2).over(beside) & (size > size.shift(-1).over(beside))
    found = []
    for device, own in _by_device(every.filter(_WITHIN).sort("start").filter(grows | again)):
        whole_ns = total(every.filter(pl.col("device") == device), "exclusive_ns")
        if own.height >= _FEWEST and total(own, "exclusive_ns") >= _MUCH * whole_ns:
            told = _COPIED if in_pytorch(report) else _COPIED._replace(action=_ANY_ARRAY)
            one = _copied(report, device, own, whole_ns, told)
            found.append(one._replace(names=(), mending=partial(_without, rows=own)))
    return found


def _without(_: Report, rows: pl.DataFrame) -> Mending:
    return without(rows)


def _copied(report: Report, device: int, work: pl.DataFrame, whole_ns: int, told: Told) -> Finding:
    """The finding on operations that copy, of which only the new piece would have to be."""
    per, ns = per_iteration(report), total(work, "exclusive_ns")
    words = {noun: per.plural(work.height, noun) for noun in ("concatenation", "kernel", "copy")}
    words |= {"ns": per.time(ns), "share": percent(ns / max(whole_ns, 1))}
    if told == _REPEATED:
        top = work.group_by("outer").agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "outer").item(-1, "outer")
        words["written"] = _REPEATS[top]
    told = told._replace(headline=told.headline.format(**words))
    one = told.finding(device, told.what.format(**words, device=device), work.select("start", "end"), ns)
    saved = (pl.col("dur_ns") - _LEFT_NS).clip(lower_bound=0)
    return one._replace(
        names=(str(work.sort("exclusive_ns").item(-1, "name")),),
        where=_place(report, work),
        mending=lambda _: Mending(shorter=work.select("row", saved_ns=saved)),
        shortens=True,
    )


def _is_copy(said: KernelName) -> bool:
    return said.library == "aten" and (said.operation == "copy" or said.family == "index")


def _grow(took: pl.Series, iterations: int) -> bool:
    """Whether durations grow along the window, or along each of so many iterations of equally many."""
    each = len(took) // iterations
    whole = took.head(each * iterations).to_frame("ns").with_row_index("at")
    within = whole.group_by(pl.col("at") % max(each, 1)).agg(pl.col("ns").mean()).sort("at").get_column("ns")
    quarter = len(took) // 4
    along, longer = whole.select(
        pl.corr("at", "ns"), longer=pl.col("ns").tail(quarter).mean() >= _GROWS * pl.col("ns").head(quarter).mean()
    ).row(0)
    grows = bool(longer and along is not None and along >= _CORRELATED)
    return bool(len(took) >= _FEWEST and (grows or _rises(within)))


def _rises(took: pl.Series) -> bool:
    """Whether durations grow steadily from eighth to eighth."""
    if len(took) < _FEWEST:
        return False
    parts = took.to_frame("ns").with_columns(part=pl.int_range(pl.len()) * _EIGHTHS // pl.len())
    means = parts.group_by("part").agg(pl.col("ns").mean()).sort("part").get_column("ns").to_list()
    steps = [after / before for before, after in pairwise(means)]
    return bool(min(steps) > 1 and means[-1] >= _GROWS_WITHIN * means[0] and max(steps[1:]) <= _JUMPS)


RULES: Final = (host_grid_loop, array_chains, double_arrays, growing_concatenations, growing_copies)
