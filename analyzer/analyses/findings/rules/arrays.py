"""Programs of arrays, NumPy's like and of JAX: loops around small kernels, operations one by one, types, compiling."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from kanalyze import intervals, tools
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations, with_facts
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Findings, Rule, literal, phrases
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.idle.syncs import WAITING, blocking_calls
from kanalyze.analyses.memory.memory import allocating_calls
from kanalyze.analyses.operators.fusion import repeated
from kanalyze.analyses.ranges.instances import while_compiling
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process, once_per_report, source_lines
from kanalyze.analyses.shared.statistics import longest, total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, nearest, product
from kanalyze.decoder.decode import decode
from kanalyze.device_limits import starts_share
from kanalyze.report import Report
from kanalyze.window import of_module

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


# Programs of JAX: functions that are not jitted, or called in turn, code compiled again, copies and reads.

#: What XLA calls its ranges about a module that runs.
_RUNS: Final = "XlaModule"

_FEW: Final = 3.0  # maximum number of launches of a module that is one operation, such as a mean or a variance
_DIFFERENT: Final = 3  # so many different operations are more than what is left beside a compiled step
_DISPATCH_NS: Final = 2_000_000  # longer times between two operations are more than their dispatch


@once_per_process
def _modules(report: Report) -> pl.DataFrame:
    """What XLA tells of modules, at any time, in order: process_id, thread_id, start, end, what, module."""
    schema = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "what": pl.String, "module": pl.String}
    ranges = named_ranges(report).filter(~pl.col("open") & pl.col("range").is_not_null())
    rows = [(name, *parts) for name in ranges.get_column("range").unique() if (parts := of_module(name)) is not None]
    names = pl.DataFrame(rows, {"range": pl.String, "what": pl.String, "module": pl.String}, orient="row")
    return ranges.join(names, on="range").select(*schema).sort(*THREAD, "start")


def _idle_in(report: Report, spans: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """The idle time of each device in `spans`, whatever thread launched what ends it."""
    return {device: say.idle_in(report, device, spans) for device in idle_spans(report)}


#: JAX's modules that take a part of an array, or all of them for a loop, and those that put parts together.
_TAKES: Final = r"^jit_(?:dynamic_(?:slice|index_in_dim)|squeeze|gather|_?take|slice|_?getitem|_?unstack)$"
_PUTS: Final = r"^jit_(?:_?stack|concatenate|expand_dims|broadcast_in_dim)$"
_CALLS: Final = 8  # so many calls in a row are a loop's


@once_per_report
def _in_turn(report: Report) -> pl.DataFrame:
    """Calls of a module in a row, for parts that are taken before each, whose results are put together at the end."""
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    takes, at_once = (pl.col("module").str.contains(pattern) for pattern in (_TAKES, r"^jit__?unstack$"))
    line = runs.with_columns(taken=takes.cum_sum().over(THREAD), taken_at_once=at_once.cum_sum().over(THREAD))
    taken = pl.col("taken", "taken_at_once")
    calls = line.filter(~takes).with_columns(
        (taken > taken.shift(1).over(THREAD)).fill_null(value=False),
        run=say.changes((*THREAD, "module")).cum_sum(),
        put=pl.col("module").shift(-1).over(THREAD).str.contains(_PUTS).fill_null(value=False),
        start=pl.coalesce(pl.col("end").shift(1).over(THREAD), "start"),
    )
    fed = (pl.col("taken").mean() > 1 / 2) | pl.col("taken_at_once").any()
    turns = (pl.len() >= _CALLS) & fed & pl.col("put").last()
    own = calls.filter(turns.over("run") & ~pl.col("module").str.contains(_PUTS))
    return own.select(*THREAD, "start", "end", "module", "run")


def _launched_in(report: Report, turns: pl.DataFrame) -> pl.DataFrame:
    """What was launched in `turns` (since, until, THREAD and others), by launch, as of :func:`on_host.filling`."""
    work = exclusive_operations(report, *SHAPE, "call_start", "thread_id").sort("call_start", "start")
    inside = nearest(work, turns, ("call_start", "since"), THREAD)
    return on_host.filling(report, inside.filter(pl.col("call_start") < pl.col("until")))


def _without_launches(report: Report, calls: pl.Series) -> pl.Series:
    """Those of `calls` (rows) that launch nothing."""
    launching = _call_kinds.names_that(report, _call_kinds.is_launch_name)
    return calls.filter(~report.kind("api").get_column("name").gather(calls).is_in(launching))


@Rule.of(_call_kinds.JAX)
def called_in_turn(report: Report) -> Findings:
    """One finding per device on which functions under ``jax.jit`` are called for one part after the other."""
    if (own := _in_turn(report)).height < say.fewest_in(report):
        return
    turns = own.with_row_index("turn").rename({"start": "since", "end": "until"})
    inside = _launched_in(report, turns).with_columns(place=pl.int_range(pl.len()).over("turn"))
    spared = own.filter(~pl.col("run").is_first_distinct())
    change = on_host.at_once(inside, "run", "place", "name", "device")
    calls = _without_launches(report, on_gpu.calls_within(report, spared))
    change = change._replace(calls=calls, host=spared.select("process_id", "start", "end"))
    module = say.most(own, "module")
    for device, idle in _idle_in(report, own).items():
        claims = (idle, inside.filter(device=device))
        yield say.told(report, "repeated-work: JAX", device, claims, mending=change, module=module, many=own.height)


@Rule.of(_call_kinds.JAX)
def called_again(report: Report) -> Findings:
    """One finding per device on functions under ``jax.jit`` that a loop calls, without copies of arrays between."""
    loops, each = say.per_iteration(report).iterations, (*THREAD, "module")
    if not loops:
        return
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    runs = runs.with_columns(since=pl.col("end").shift(1).over(THREAD))
    often = (pl.len().over(each) >= _CALLS * loops) & (pl.len().over(each) > pl.len().over(THREAD) / 3)
    own = runs.filter(often & (pl.col("start") - pl.col("since") <= _DISPATCH_NS))
    own = own.filter(~on_gpu.is_inside(own.select(*THREAD, at="start"), _in_turn(report)))
    from_host = (pl.col("detail") == "Host-to-Device") & (pl.col("size_bytes") > _CONSTANT_BYTES)
    moved = operations(report, "detail", "size_bytes").filter((pl.col("detail") == "Device-to-Host") | from_host)
    if own.height < _CALLS * loops or moved.height >= own.height / 2:
        return
    spans = own.select(*THREAD, start="since", end="end")
    spared = spans.filter(pl.int_range(pl.len()) % (own.height // loops) > 0)  # one call an iteration stays
    calls = _without_launches(report, on_gpu.calls_within(report, spared))
    change = Mending(calls=calls, host=spared.select("process_id", "start", "end"))
    module = say.most(own, "module")
    figures = {"module": module, "many": own.filter(module=module).height}
    for device, idle in _idle_in(report, spans).items():
        yield say.told(report, "repeated-work: calls", device, idle, mending=change, **figures)


@once_per_process
def _loops_of_jax(report: Report) -> pl.DataFrame:
    """Loops that are in no other: THREAD, loop (a number), since, until, turns (the fewest times of what recurs)."""
    ranges = named_ranges(report).filter(~pl.col("open")).with_columns(pl.col("range").cast(pl.String))
    thunks = ranges.filter(pl.col("range").str.contains(r"\bhlo_op=")).select(*THREAD, "start", "end", "range")
    # loops of jax.lax: scan, map, fori_loop, while_loop
    loops = thunks.filter(pl.col("range").str.contains(r"\bhlo_op=while\b")).sort(*THREAD, "start")
    outer = pl.col("end").shift(1).cum_max().over(THREAD)
    loops = loops.filter((pl.col("start") >= outer).fill_null(value=True)).with_row_index("loop")
    loops = loops.select(*THREAD, "loop", since="start", until="end")
    inside = nearest(thunks.sort("start"), loops, ("start", "since"), THREAD).filter(pl.col("end") <= pl.col("until"))
    times = inside.group_by("loop", "range").len("turns").filter(pl.col("turns") >= _TURNS)
    return loops.join(times.group_by("loop").agg(pl.col("turns").min()), on="loop", maintain_order="left")


@Rule.of(_call_kinds.JAX)
def loops_of_jax(report: Report) -> Findings:
    """At most one finding per device on loops of jitted functions whose turns leave most of the GPU empty."""
    if (loops := _loops_of_jax(report)).is_empty():
        return
    dur_ns = pl.col("dur_ns")
    empty = ((dur_ns * pl.col("part")).sum() <= 0.5 * dur_ns.sum()).over("loop", "device")
    turning = _launched_in(report, loops).filter(empty)
    change = on_host.at_once(turning, "loop", "device", "name")
    for (device,), own in turning.partition_by("device", as_dict=True, maintain_order=True).items():
        spans = own.group_by("loop").agg(pl.col("start").min(), pl.col("end").max())
        figures = {"turns": own.get_column("turns").max(), "many": spans.height}
        claims = intervals.union(intervals.clip(spans, *say.sides_of(report, device)))
        yield say.told(report, "repeated-work: scan", device, claims, mending=change, at_most=True, **figures)


@Rule.of(_call_kinds.JAX)
def not_jitted(report: Report) -> Findings:
    """At most one finding per device on all operations that run one by one, but for what takes parts for calls."""
    # modules of one operation, each after another, but while a thread compiles
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    runs = runs.filter(~while_compiling(report, runs))
    work = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    numbered = runs.with_row_index("row")
    inside = nearest(work.select(*THREAD, at="call_start").sort("at"), numbered, ("at", "start"), THREAD)
    counts = inside.filter(pl.col("at") < pl.col("end")).group_by("row").agg(launches=pl.len())
    counted = numbered.join(counts, on="row", how="left", maintain_order="left")
    mean = pl.col("launches").fill_null(0).mean().over("module")
    small = counted.with_columns(single=mean <= _FEW, since=pl.col("end").shift(1).over(THREAD))
    after = pl.col("single").shift(1, fill_value=False).over(THREAD)
    single = small.filter(pl.col("single") & after & (pl.col("start") - pl.col("since") <= _DISPATCH_NS))
    single = single.filter(~on_gpu.is_inside(single.select(*THREAD, at="start"), _in_turn(report)))
    if single.height < say.fewest_in(report) or single.get_column("module").n_unique() < _DIFFERENT:
        return
    spans = single.select(*THREAD, start="since", end="end")
    often = single.group_by("module").len().sort("len", "module", descending=[True, False])
    named = ", ".join(literal(name) for name in often.get_column("module").head(_DIFFERENT))
    for device, idle in _idle_in(report, spans).items():
        change = _jitted(report, spans, device)
        yield say.told(report, "not-jitted", device, idle, mending=change, many=single.height, named=named)


_CONSTANT_BYTES: Final = 64  # numbers of the program, which are part of a compiled module


def _jitted(report: Report, spans: pl.DataFrame, device: int) -> Mending:
    """Host time is gone, kernels from product to product are as few as their reductions, what is left is in graphs."""
    # kernels that XLA could fuse, by the product that they follow
    work = exclusive_operations(report).filter(kind="kernel", device=device)
    line = on_gpu.with_decoded(
        work.sort("start").select("row", "name", "start", "dur_ns"),
        products=on_gpu.FAMILY.is_in(["gemm", "conv", "attention", "sort", "fft"]),
        reduces=on_gpu.FAMILY.is_in(["reduce", "normalization", "softmax"]),
    )
    rest = line.with_columns(group=pl.col("products").cast(pl.UInt32).cum_sum()).filter(~pl.col("products"))
    kept = pl.min_horizontal(pl.col("reduces").sum() + 1, pl.len()).cast(pl.Int64).over("group")
    rest = rest.with_columns(kept=kept, merged_ns=kept * pl.col("dur_ns").max().over("group"))
    fused, calls = on_gpu.merged(rest), on_gpu.calls_within(report, spans)
    numbers = (pl.col("kind") == "memcpy") & (pl.col("size_bytes") <= _CONSTANT_BYTES)
    constants = operations(report, "size_bytes", "call_row").filter(numbers & pl.col("call_row").is_in(calls.implode()))
    return fused._replace(
        gone=pl.concat([fused.gone, on_gpu.without(constants).gone]),
        calls=_without_launches(report, calls),
        host=spans.select("process_id", "start", "end"),
        graph=True,
    )


@Rule.of(_call_kinds.JAX)
def recompilation(report: Report) -> Findings:
    """At most one finding per device on modules that XLA compiles again and again."""
    compiled = _modules(report).filter(pl.col("what") == "XlaCompile")
    order = compiled.sort("start").with_columns(number=pl.int_range(pl.len()).over("process_id", "module"))
    again = intervals.overlapping(order.filter(pl.col("number") > 0), report.scope.sides)
    if again.height < (2 if say.per_iteration(report).iterations else say.FEWEST):
        return  # of iterations those that compile are odd, but for two or more
    figures = {"most": say.most(again, "module"), "times": again.height}
    # from the launch before on any thread to the next one of its own
    launches = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    since = pl.coalesce(say.launch_before(report, again.select("process_id", at="start")), "start")
    sides = again.with_columns(since=since)
    sides = nearest(sides, launches.select(*THREAD, until="call_start"), ("end", "until"), THREAD, "after")
    spans = sides.select(*THREAD, start="since", end=pl.coalesce("until", "end"))
    change = on_gpu.nothing_within(report, spans.unique())
    for device, idle in _idle_in(report, spans).items():
        yield say.told(report, "recompilation: JAX", device, idle, mending=change, **figures)


@Rule.of(_call_kinds.JAX)
def no_donation(report: Report) -> Findings:
    """One finding per device on which modules copy large arrays within its memory before they update them."""
    work = exclusive_operations(report, "size_bytes", "graph_node_id", "call_start", "thread_id")
    # of large arrays, those that a run of a module makes once; a loop in it copies what is its own
    large = (pl.col("detail") == "Device-to-Device") & (pl.col("size_bytes") >= on_host.LARGE_BYTES)
    copying = on_host.kernels_named(work, r"^(?:wrapped|loop|input)_copy(?:_fusion)?(?:_\d+)?$")  # by XLA
    every = work.filter(large | copying).drop_nulls("call_start").sort("call_start", "start")
    runs = _modules(report).filter(pl.col("what") == _RUNS).with_row_index("run")
    runs = runs.select("run", *THREAD, since="start", until="end")
    every = nearest(every, runs, ("call_start", "since"), THREAD).filter(pl.col("call_start") < pl.col("until"))
    inside = ranges_at(report, every.select(*THREAD, at="call_start"))
    thunk = gathered(named_ranges(report).get_column("range"), inside).alias("thunk")  # told apart by nodes in a graph
    every = every.with_columns(thunk).filter(pl.len().over("run", "graph_node_id", "thunk") == 1)
    for device, start, end in windows(report).iter_rows():
        own, copies = (rows.filter(pl.col("device") == device) for rows in (work, every))
        stake, busy, moved = total(copies, "exclusive_ns"), total(own, "exclusive_ns"), total(copies, "size_bytes")
        if copies.height < say.fewest_in(report) or stake < max(_WORTH * busy, 1):
            continue
        figures = {"many": copies.height, "part": stake / max(busy, 1), "moved": moved}
        # a device that works nearly all of the time is spared all of theirs; a replay keeps waits of streams
        change = on_gpu.without(copies) if busy < 0.9 * (end - start) else None
        claims = copies.select("start", "end")
        yield say.told(report, "no-donation", device, claims, stake, shortens=True, mending=change, **figures)


_WORKS_NS: Final = 1_000_000  # to read a short array takes less, and to launch what comes next


@Rule.of(_call_kinds.JAX)
def numbers_read(report: Report) -> Findings:
    """At most one finding per device on numbers of JAX that the host reads: it waits for each in no call of CUDA."""
    work = operations(report, "call_start", "call_row", "size_bytes").drop_nulls("call_start").sort("call_start")
    spans = work.with_columns(start="call_start", end=pl.col("call_start").shift(-1).over("process_id"))
    # larger copies to the host are of more than numbers
    copies = spans.filter((pl.col("detail") == on_host.TO_HOST) & (pl.col("size_bytes") <= 1 << 12)).drop_nulls("end")
    own = intervals.overlapping(copies, report.scope.sides)
    if own.height < say.fewest_in(report):
        return
    change = on_gpu.without(own)._replace(host=own.select("process_id", "start", "end"))
    # short arrays that the host works on for longer, before it launches anything
    took = pl.col("end") - pl.col("start")
    works = (pl.col("size_bytes") > _CONSTANT_BYTES) & (took > _WORKS_NS)
    name = (
        "cpu-operators: JAX" if own.select(2 * took.filter(works).sum() > took.sum()).item() else "blocking-read: JAX"
    )
    for device, idle in _idle_in(report, own).items():
        yield say.told(report, name, device, idle, mending=change, numbers=own.height)


@Rule.of(_call_kinds.JAX)
def staged_arrays(report: Report) -> Findings:
    """At most one finding per device on large arrays of the host that JAX copies by way of pinned memory of its own."""
    large = (pl.col("detail") == on_host.TO_DEVICE) & (pl.col("size_bytes") >= on_host.LARGE_BYTES)
    copies = on_host.device_copies(report).filter(large, source_memory=on_host.PINNED).drop_nulls("call_start")
    # by threads of a pool, which launch nothing else
    launches = on_host.launched(report).filter(pl.col("kind") != "memcpy")
    copies = copies.join(launches.select(THREAD).unique(), on=THREAD, how="anti")
    if copies.height < say.fewest_in(report):
        return
    kernels = exclusive_operations(report).filter(pl.col("kind") == "kernel")
    spans = _filling(report, copies, launches)
    for device, own in say.by_device(copies):
        idle = say.idle_in(report, device, spans.filter(device=device))
        change = on_gpu.without(own)._replace(host=spans.filter(device=device).drop("device"))
        # of copies what no kernel hides
        alone = intervals.subtract(intervals.union(own), intervals.union(kernels.filter(device=device)))
        figures = {"many": own.height, "bytes": total(own, "size_bytes"), "idle": intervals.length(idle)}
        yield say.told(report, "pageable-copy: JAX", device, (idle, alone), mending=change, **figures)


def _filling(report: Report, copies: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """When threads of the host fill pinned memory for `copies`, at most: process_id, device, start, end.

    It is not before the last one of `launches`, nor before the line of then of a thread that launches: in a line that
    does so, it waits for all that is filled in turn.
    """
    launches, own = launches.select(*THREAD, at="call_start", since="call_end"), ["process_id"]
    lines = source_lines(report).select(*THREAD, entered="start_ns", left=pl.col("start_ns") + pl.col("dur_ns"))
    lines = nearest(lines, launches.drop("since"), ("entered", "at"), THREAD, "after")
    lines = lines.join(launches, on=THREAD, how="semi").select(*own, "entered", waits=pl.col("at") < pl.col("left"))
    each = nearest(copies, launches.select(*own, "since"), ("call_start", "since"), own)
    each = nearest(each, lines, ("call_start", "entered"), own)
    # what a thread of the host takes to fill pinned memory (ns); where several do at once, half of that
    alone = pl.col("size_bytes") * 0.1
    in_turn = alone.cum_sum().over(*own, "device", "since")
    filled = pl.when("waits").then(in_turn).otherwise(pl.max_horizontal(alone, in_turn * 0.5)).cast(pl.Int64)
    start = pl.max_horizontal(pl.col("call_start") - filled, "since", "entered")
    return each.select(*own, "device", start=start, end="start")
