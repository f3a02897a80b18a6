"""Programs of arrays like NumPy's: loops around small kernels, operations one by one, types."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from kanalyze import intervals, tools
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations, with_facts
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Findings, Rule, phrases
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls
from kanalyze.analyses.memory.memory import allocating_calls
from kanalyze.analyses.operators.fusion import repeated
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.columns import product
from kanalyze.decoder.decode import decode
from kanalyze.device_limits import starts_share
from kanalyze.report import Report

_WITHIN: Final = pl.col("detail") == "Device-to-Device"  # copies within a device, such as ``x[i] = y`` of arrays
_STREAM: Final = ("device", "process_id", "stream")  # what follows each other in a stream


# Loops of the host around small kernels: a launch for each row where one could have a grid over all, or one array.

#: The fewest turns in a row; the most kernels of a turn, and the most blocks of each, of the program's own kernels and
#: of array libraries, whose operations are kernels. A time step of a simulation has more of both, and cannot be one; of
#: arrays it has no copy to a row of a result, as loops over rows have. Most kernels have the name of such a library.
_TURNS: Final = 32
_OWN: Final = (2, 4)
_OF_ARRAYS: Final = 16
_WITH_COPY: Final = 32
_BY_LIBRARY: Final = 0.8

#: Where the turns are as many as another kernel's grid has blocks along an axis, which no power of two tells, they are
#: items of its data: then a turn may have so many kernels, which fill so much of the GPU at most.
_OF_ITEMS: Final = 4
_FILLED: Final = 0.25

_THREADS: Final = 1024  # an SM has room for so many threads of such kernels at least
_ARRAYS: Final = (_call_kinds.CUPY, _call_kinds.PYTHON)  # worlds in which operations on arrays are kernels


@Rule
def host_grid_loop(report: Report) -> Findings:
    """At most one finding per device, on all loops together: of array libraries ``repeated-work``."""
    for device, own in say.by_device(_loops(report)):
        spans = own.group_by("run").agg(pl.col("start").min(), pl.col("end").max()).select("start", "end")
        merged_ns = total(_joined(own).unique("group"), "merged_ns")
        turns = own.group_by("run", "period").agg(pl.len() // pl.col("period").first()).get_column("len")
        most = own.group_by("name").agg(pl.col("dur_ns").sum(), pl.col("blocks").max()).sort("dur_ns", "name").row(-1)
        name = str(most[0])
        usual = int(own.group_by("period").len().sort("len", "period").item(-1, "period"))
        library = _of_library(report, name)
        arrays, one_launch = library and _call_kinds.world(report) in _ARRAYS, phrases("turns")
        action = {}
        if not arrays and not (library and _call_kinds.world(report) == tools.CUDA):
            action = {"action": _call_kinds.spoken(report, one_launch, one_launch[_call_kinds.PYTHON])}
        # each kernel of a loop is launched once, and the host does nothing else in it
        change = on_gpu.merged(_joined(own))._replace(host=on_gpu.host_of(own, "run"))
        yield say.told(
            report,
            "repeated-work: arrays" if arrays else "host-grid-loop",
            device,
            spans,
            intervals.length(intervals.union(spans)) - merged_ns,
            **action,
            launches=own.height,
            loops=len(turns),
            usual=usual,
            blocks=int(most[2]),
            differ=own.filter(name=name).get_column("blocks").n_unique() > 1,
            what="One kernel is" if usual == 1 else f"{usual:,} kernels are",
            turns=turns.max(),
            worked=intervals.length(intervals.union(own)),
            merged=merged_ns,
            names=(name,),
            where=say.place_of(report, own.get_column("row")),
            mending=change,
            at_most=True,
        )


def _of_library(report: Report, name: str) -> bool:
    return say.written_with(report, name) in (say.LIBRARY, say.COMPILED)


def _joined(own: pl.DataFrame) -> pl.DataFrame:
    """Rows for :func:`merged`: of each loop the launches of one kernel, as many side by side as SMs have room for."""
    on_each = (_THREADS // pl.col("threads")).clip(lower_bound=1)
    beside = (pl.col("sms") * on_each // pl.col("blocks")).clip(lower_bound=1)
    merged_ns = (pl.col("dur_ns").median() * (pl.len() / beside.first()).ceil()).cast(pl.Int64)
    sums = own.group_by("run", "place").agg(merged_ns=merged_ns, kept=pl.lit(1)).with_row_index("group")
    return own.join(sums, on=["run", "place"]).sort("group", "start")


_OF_LOOPS: Final = (*_STREAM, "row", "name", "start", "end", "dur_ns", "shape", "kind")


def _loops(report: Report) -> pl.DataFrame:
    """Kernels in such loops, with the copies between arrays in them, and run, place (in the turn) and period."""
    arrays, loops, alike = _call_kinds.world(report) in _ARRAYS, list[pl.DataFrame](), ("name", "shape")
    work = exclusive_operations(report, "stream", "call_row", "shape", *["size_bytes"] * arrays)
    alone = pl.col("call_row").is_not_null() & pl.col("call_row").is_unique()  # not those of a graph
    # values that an operation on arrays is given with each call, such as weights of a filter
    little = (pl.col("detail") == on_host.TO_DEVICE) & (pl.col("size_bytes") <= 1 << 12)
    copy = (_WITHIN | little).fill_null(value=False) if arrays else pl.lit(value=False)
    kernel = ((pl.col("kind") == "kernel") & alone) | copy
    rest = line = on_gpu.by_stream(work.select(*_OF_LOOPS, kernel=kernel))
    periods = range(1, (_WITH_COPY if arrays else _OF_ITEMS) + 1)
    for period, keys in (*((period, alike) for period in periods), (1, ("name",))):
        in_a_row = _of_period(rest, period, keys)
        if in_a_row.is_empty():
            continue
        rest = rest.join(in_a_row.select("row"), on="row", how="anti", maintain_order="left")
        for _, own in _launched(report, in_a_row).group_by("run", maintain_order=True):
            if (keys == alike and _is_loop(report, line, own)) or (period == 1 and _is_ragged(report, own)):
                loops.append(own.with_columns(run=pl.lit(len(loops), pl.UInt32)))
    return pl.concat([_launched(report, _of_period(line.clear(), 1, alike)), *loops])


def _launched(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Adds to operations of GPUs that are known call_start, grid and block, their numbers, and that of SMs."""
    blocks, threads = (product(*map(pl.col, axes)).fill_null(1) for axes in (SHAPE[:3], SHAPE[3:]))
    work = with_facts(report, work, "call_start", *SHAPE).with_columns(blocks=blocks, threads=threads)
    sms = report.devices.select("device", sms="sm_count").drop_nulls()
    return work.join(sms, on="device", maintain_order="left")


def _of_period(line: pl.DataFrame, period: int, keys: Sequence[str]) -> pl.DataFrame:
    """Kernels in a row of which each is the same as `period` before: with run, place (in a turn) and period."""
    alike = [pl.col(key).eq_missing(pl.col(key).shift(period)) for key in ("line", *keys)]
    marked = line.with_columns(same=pl.all_horizontal("kernel", *alike).fill_null(value=False))
    runs = marked.with_columns(run=say.changes(("same", "line")).cum_sum().cast(pl.UInt32)).filter("same")
    long = runs.filter(pl.len().over("run") >= (_TURNS - 1) * period)
    return long.with_columns(place=pl.int_range(pl.len()).over("run") % period, period=pl.lit(period))


def _is_loop(report: Report, line: pl.DataFrame, own: pl.DataFrame) -> bool:
    """Whether launches in a row of `line` are small kernels that could be one, and nothing else takes part in them."""
    names = own.filter(pl.col("kind") == "kernel").get_column("name").unique().cast(pl.String)
    others = [_of_library(report, name) for name in names]
    if not others or _call_kinds.world(report) == _call_kinds.JAX or (say.in_pytorch(report) and all(others)):
        return False
    arrays = sum(others) >= _BY_LIBRARY * len(others) and _call_kinds.world(report) in _ARRAYS
    most = pl.col("sms") - 1 if arrays else pl.min_horizontal(_OWN[1], pl.col("sms") - 1)
    small = own.select((pl.col("blocks") <= most).all()).item()
    longest = _WITH_COPY if own.select((pl.col("kind") == "memcpy").any()).item() else _OF_ARRAYS
    few = int(own.item(0, "period")) <= (longest if arrays else _OWN[0])
    if small and few:
        return _runs_ahead(report, own)
    # small kernels in as many turns as another kernel's grid has blocks on an axis
    turns = own.height // int(own.item(0, "period")) + 1
    small = own.select((pl.col("blocks") * pl.col("threads") <= _FILLED * _THREADS * pl.col("sms")).all()).item()
    if not small or turns.bit_count() == 1:
        return False
    beside = line.join(own.select(*_STREAM).unique(), on=_STREAM, how="semi", nulls_equal=True)
    beside = with_facts(report, beside.join(own.select("name").unique(), on="name", how="anti"), *SHAPE[:3])
    of_items = bool(beside.select(pl.any_horizontal(pl.col(SHAPE[:3]) == turns).any()).item())
    return of_items and _runs_ahead(report, own)


def _runs_ahead(report: Report, own: pl.DataFrame) -> bool:
    """Whether the host neither waits nor allocates in half of the turns or more."""
    inside = pl.col("start").is_between(own.get_column("call_start").min(), own.get_column("call_start").max())
    waits = blocking_calls(report).filter(pl.col("scope").is_in(WAITING) & inside)
    waited = waits.height if _call_kinds.world(report) not in (_call_kinds.OPENMP, _call_kinds.OPENACC) else 0
    turns = own.height / int(own.item(0, "period"))
    return max(waited, allocating_calls(report).filter(inside).height) < say.OFTEN * turns


def _is_ragged(report: Report, own: pl.DataFrame) -> bool:
    """Whether a kernel of the program's own runs for parts whose sizes go up and down, none of which fills the GPU.

    The grid tells the size, or, where it is one for all, the time. What shrinks or grows turn by turn may need the turn
    before, and what a time step takes is about the same in each.
    """
    names, took = own.get_column("name").unique().cast(pl.String), own.get_column("dur_ns")
    more, usual = own.get_column("blocks").diff().drop_nulls(), took.median()
    if not (more != 0).any() and isinstance(usual, float) and usual >= on_gpu.SHORTEST_NS:
        more = took.diff().drop_nulls()
        # by so much of the usual time a turn differs from the one before where their sizes do
        more = more.set(more.abs() < 0.25 * usual, 0)
    turns = min((more > 0).sum(), (more < 0).sum()) >= len(more) / 4
    fits = own.select((pl.col("blocks") < pl.col("sms")).all()).item()
    own_code = _call_kinds.world(report) != _call_kinds.JAX and not any(_of_library(report, name) for name in names)
    return bool(turns and fits and own_code) and _runs_ahead(report, own)


# Operations on arrays, each a kernel of its own: chains that one kernel could do, and arrays of float64.

#: Kernels that compute each element from those at the same place, by what they are written with; and what to do.
_BY_ELEMENT: Final = {
    "CuPy": (on_gpu.LIBRARY == "cupy") & on_gpu.FAMILY.is_in(["elementwise", "copy"]),
    "Thrust": on_gpu.LIBRARY.is_in(["cub", "thrust"]) & on_gpu.OPERATION.is_in(["transform", "for_each"]),
    "Julia": pl.col("function").str.contains(r"^(?:_Z\d+)?(?:gpu_)?broadcast_kernel"),
}

#: Operations of CuPy on one array, or on one and a number: ``cupy_add__float_float32_float32``.
_OF_ONE: Final = r"^cupy_.*(?:_(?:float|int|complex)_|__[a-z]+\d*_[a-z]+\d*$)"
_WORTH: Final = 0.03  # a smaller part of the kernel time is left out


@Rule.of(_call_kinds.CUPY, tools.CUDA)
def array_chains(report: Report) -> Findings:
    """One finding per device on elementwise operations that follow each other on arrays of one size."""
    line = on_gpu.with_decoded(exclusive_operations(report, "stream", *SHAPE).sort(*_STREAM, "start"), **_BY_ELEMENT)
    names = line.filter(pl.any_horizontal(*_BY_ELEMENT)).get_column("name").unique()
    # iterators of Thrust by which a functor may read other elements than the one at its place
    elsewhere, of_one = (
        pl.col("name").is_in(names.filter(names.cast(pl.String).str.contains(those)).implode())
        for those in ("counting_iterator|permutation_iterator|reverse_iterator", _OF_ONE)
    )
    ways = [pl.when(pl.col(way) & ~elsewhere).then(pl.lit(way)) for way in _BY_ELEMENT]
    line = line.with_columns(way=pl.coalesce(ways))
    line = line.with_columns(group=say.changes((*_STREAM, *SHAPE, "way")).cum_sum()).drop_nulls("way")
    several = pl.col("name").n_unique().over("group") > 1  # one functor may work on one array after the other
    line = line.filter((pl.col("way") == "CuPy") | several)
    # repetitions are looked for in so many operations of a row
    texts = line.group_by("group").agg(pl.col("name").head(1 << 12))
    lengths = [repeated(list(own), one=True) for own in texts.get_column("name")]
    line = line.join(texts.select("group", turn=pl.Series(lengths, dtype=pl.Int64)), on="group", maintain_order="left")
    line = line.with_columns(group=pl.struct("group", pl.int_range(pl.len()).over("group") // pl.col("turn")).rle_id())
    many, most = pl.len().over("group"), pl.col("dur_ns").max().over("group")
    others = ((~of_one).cast(pl.Int64).sum().over("group") - 1).clip(lower_bound=0)
    # one kernel takes a quarter of the longest one for each operation after the first that has another array; of the
    # fifth on half as much: most of their arrays have been read by then
    more = others.clip(upper_bound=4) + (others - 4).clip(lower_bound=0) / 2
    chains = line.with_columns(many=many, kept=pl.lit(1), merged_ns=(most * (1 + 0.25 * more)).cast(pl.Int64))
    every = chains.filter((pl.col("many") > 1) & (pl.col("dur_ns").sum().over("group") > pl.col("merged_ns")))
    for work in on_gpu.works(report, every):
        chains, groups, took = work.rows, work.rows.unique("group"), total(work.rows, "dur_ns")
        merged_ns = total(groups, "merged_ns")
        if took - merged_ns < _WORTH * total(exclusive_operations(report), "exclusive_ns"):
            continue
        way = say.most(chains, "way", "dur_ns")
        yield work.finding(
            "fusion: arrays",
            "",
            at_stake_ns=took - merged_ns,
            left=None,
            kernels=chains.height,
            chains=groups.height,
            merged=merged_ns,
            took=took,
            way=way,
            longest=longest(groups, "many"),
            fused=phrases("fused")[way],
            neighbours=", where functors read no neighbours," * (way == "Thrust"),
            mending=on_gpu.merged(chains),
            general=True,
        )


@Rule.of(_call_kinds.CUPY)
def double_arrays(report: Report) -> Findings:
    """One finding per device on operations of CuPy on arrays of float64."""
    function = pl.col("function")
    # types in the names of CuPy's kernels: ``cupy_add__float64_float64_float64``
    doubles = function.is_in([*_on_wide_arrays(report)]) | function.str.contains(r"^cupy_\w*?__(?:\w*_)?float64")
    transforms = (on_gpu.FAMILY == "fft") & (pl.col("accumulator_type") == "f64")
    # in float32 they take half of the time where they read matrices, all of it where a GPU multiplies both as fast
    products = (on_gpu.FAMILY == "gemm") & on_gpu.INPUTS.str.contains(r"\b(?:f64|c128)\b")
    for work in on_gpu.kernels_that(report, doubles | transforms | products, _WORTH):
        # half of the time is left where they move bytes. One that takes longer than three arrays at the peak
        # bandwidth computes functions, each a series of operations in double: between half and that in float32
        rows = with_facts(report, work.rows, *SHAPE).join(report.devices, on="device", maintain_order="left")
        # an operation on arrays reads two and writes one
        bytes_of = pl.col("grid_x").cast(pl.Int64) * pl.col("block_x") * 3 * 4
        least = bytes_of / pl.col("memory_bandwidth_bytes_per_s") * 1e9 / pl.col("dur_ns")
        least = pl.when(on_gpu.decoded_as(rows, transforms)).then(None).otherwise(least)
        left = (0.5 + least.clip(upper_bound=0.5).fill_null(0.5)) / 2
        # as many blocks are started, one for a few elements
        left = pl.max_horizontal(left, starts_share(pl.col("grid_x"), pl.col("dur_ns")).clip(upper_bound=1))
        saved = rows.select("row", saved_ns=(pl.col("dur_ns") * (1 - left)).cast(pl.Int64))
        multiplies = on_gpu.decoded_as(rows, products)
        known = 2 * total(rows.filter(multiplies), "exclusive_ns") <= work.ns
        change = Mending(saved.filter(~multiplies)) if known else None
        yield work.finding("float64: arrays", left=None, mending=change)


@once_per_process
def _on_wide_arrays(report: Report) -> set[str]:
    """Kernels with a thread for each element of arrays that were copied to the GPU with 8 bytes for each."""
    work = operations(report, "size_bytes", *SHAPE)
    kernels = work.filter(pl.col("kind") == "kernel")
    if not kernels.get_column("name").unique().cast(pl.String).str.contains(r"(?:reduce|Reduce).*\bdouble\b").any():
        return set()  # other types have 8 bytes, too
    copied = work.filter(pl.col("detail") == on_host.TO_DEVICE).select(bytes=pl.col("size_bytes") // 8)
    block = pl.col("block_x").cast(pl.Int64)
    sizes = kernels.select("name", block=block, elements=block * pl.col("grid_x")).unique()
    pairs = sizes.join(copied.unique().filter(pl.col("bytes") >= 1 << 16), how="cross")  # of large arrays
    filled = pl.col("bytes").is_between(pl.col("elements") - pl.col("block"), "elements")
    return {decode(name).function for name in pairs.filter(filled).get_column("name").cast(pl.String).unique()}
