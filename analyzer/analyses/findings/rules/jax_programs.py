"""Programs of JAX: functions that are not jitted, or called in turn, code compiled again, copies and reads."""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings import on_gpu, on_host, say
from kanalyze.analyses.findings.rules import Findings, Rule, literal
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.host._range_lines import ranges_at
from kanalyze.analyses.ranges.instances import while_compiling
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import named_ranges, once_per_process, once_per_report, source_lines
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, nearest
from kanalyze.report import Report
from kanalyze.window import of_module

_TURNS: Final = 32  # of a loop, the fewest
_WORTH: Final = 0.03  # a smaller part of the kernel time is left out

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
