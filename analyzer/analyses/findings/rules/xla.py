"""Programs of JAX: functions that are not jitted, or called in turn, code compiled again, copies and reads."""

from __future__ import annotations

from functools import partial
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Findings, Rule, literal, words_of
from kanalyze.analyses.findings.rules import _kernels as on_gpu
from kanalyze.analyses.findings.rules import _operators as on_host
from kanalyze.analyses.findings.rules import _telling as say
from kanalyze.analyses.findings.rules._kernels import FAMILY
from kanalyze.analyses.findings.rules._operators import LARGE_BYTES, TO_HOST
from kanalyze.analyses.host._call_kinds import JAX, is_launch_name, names_that, world
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest
from kanalyze.report import Report
from kanalyze.units import percent, size
from kanalyze.window import of_module

#: What XLA calls its ranges about a module that runs, and about one that it compiles.
_RUNS: Final = "XlaModule"
_COMPILES: Final = "XlaCompile"

_FEW: Final = 3.0  # maximum number of launches of a module that is one operation, such as a mean or a variance
_DIFFERENT: Final = 3  # so many different operations are more than what is left beside a compiled step
_DISPATCH_NS: Final = 2_000_000  # longer times between two operations are more than their dispatch


@once_per_process
def _modules(report: Report) -> pl.DataFrame:
    """What XLA tells of modules, at any time, in order: process_id, thread_id, start, end, what, module."""
    schema = {**dict.fromkeys((*THREAD, "start", "end"), pl.Int64), "what": pl.String, "module": pl.String}
    if "range" not in report.kinds or world(report) != JAX:
        return pl.DataFrame(schema=schema)
    ranges = named_ranges(report).filter(~pl.col("open") & pl.col("range").is_not_null())
    told = [(name, *known) for name in ranges.get_column("range").unique() if (known := of_module(name)) is not None]
    names = pl.DataFrame(told, {"range": pl.String, "what": pl.String, "module": pl.String}, orient="row")
    return ranges.join(names, on="range").select(*schema).sort(*THREAD, "start")


def _idle_in(report: Report, spans: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """The idle time of each device in `spans`, whatever thread launched what ends it."""
    return {device: say.idle_in(report, device, spans) for device in idle_spans(report)}


@once_per_report
def _one_by_one(report: Report) -> pl.DataFrame:
    """Modules of one operation, each after another: with since, the end of that one, from which it is prepared."""
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    work = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    numbered = runs.with_row_index("row")
    inside = nearest(work.select(*THREAD, at="call_start").sort("at"), numbered, ("at", "start"), THREAD)
    counts = inside.filter(pl.col("at") < pl.col("end")).group_by("row").agg(launches=pl.len())
    known = numbered.join(counts, on="row", how="left", maintain_order="left")
    mean = pl.col("launches").fill_null(0).mean().over("module")
    small = known.with_columns(single=mean <= _FEW, since=pl.col("end").shift(1).over(THREAD))
    after = pl.col("single").shift(1, fill_value=False).over(THREAD)
    return small.filter(pl.col("single") & after & (pl.col("start") - pl.col("since") <= _DISPATCH_NS))


#: JAX's modules that take a part of an array, or all of them for a loop, and those that put parts together.
_TAKES: Final = r"^jit_(?:dynamic_(?:slice|index_in_dim)|squeeze|gather|_?take|slice|_?getitem|_?unstack)$"
_TAKES_ALL: Final = r"^jit__?unstack$"
_PUTS: Final = r"^jit_(?:_?stack|concatenate|expand_dims|broadcast_in_dim)$"
_CALLS: Final = 8  # so many calls in a row are a loop's


@once_per_report
def _in_turn(report: Report) -> pl.DataFrame:
    """Calls of a module in a row, for parts that are taken before each, whose results are put together at the end."""
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    takes, at_once = (pl.col("module").str.contains(pattern) for pattern in (_TAKES, _TAKES_ALL))
    line = runs.with_columns(taken=takes.cum_sum().over(THREAD), taken_at_once=at_once.cum_sum().over(THREAD))
    more = {name: pl.col(name) > pl.col(name).shift(1).over(THREAD) for name in ("taken", "taken_at_once")}
    calls = line.filter(~takes).with_columns(column.fill_null(value=False).alias(name) for name, column in more.items())
    calls = calls.with_columns(
        run=say.changes((*THREAD, "module")).cum_sum(),
        put=pl.col("module").shift(-1).over(THREAD).str.contains(_PUTS).fill_null(value=False),
        start=pl.coalesce(pl.col("end").shift(1).over(THREAD), "start"),
    )
    fed = (pl.col("taken").mean() > 1 / 2) | pl.col("taken_at_once").any()
    turns = (pl.len() >= _CALLS) & fed & pl.col("put").last()
    own = calls.filter(turns.over("run") & ~pl.col("module").str.contains(_PUTS))
    return own.select(*THREAD, "start", "end", "module", "run")


@Rule
def called_in_turn(report: Report) -> Findings:
    """One finding per device on which functions under ``jax.jit`` are called for one part after the other."""
    if (own := _in_turn(report)).height < say.fewest_in(report):
        return
    turns = own.with_row_index("turn").rename({"start": "since", "end": "until"})
    work = exclusive_operations(report, *SHAPE, "call_start", "thread_id").sort("call_start", "start")
    inside = nearest(work, turns, ("call_start", "since"), THREAD).filter(pl.col("call_start") < pl.col("until"))
    inside = on_host.filling(report, inside.with_columns(place=pl.int_range(pl.len()).over("turn")))
    keys, dur_ns = ("run", "place", "name", "device"), pl.col("dur_ns")
    all_ns = pl.max_horizontal(dur_ns.max().over(keys), (dur_ns * pl.col("part")).sum().over(keys).cast(pl.Int64))
    groups = inside.with_columns(group=pl.struct(keys).hash(), kept=pl.lit(1), merged_ns=all_ns)
    spared = own.filter(~pl.col("run").is_first_distinct())
    calls = on_gpu.calls_within(report, spared)
    launching = report.kind("api").get_column("name").gather(calls).is_in(names_that(report, is_launch_name))
    change = on_gpu.merged(groups)._replace(
        calls=calls.filter(~launching), host=spared.select("process_id", "start", "end")
    )
    many = say.per_iteration(report).plural(own.height, "time")
    module = literal(own.group_by("module").len().sort("len", "module").item(-1, "module"))
    told = words_of("repeated-work: JAX").of(module=module, many=many)
    for device, idle in _idle_in(report, own).items():
        busy = inside.filter(device=device).select("start", "end")
        claims = intervals.union(pl.concat([idle.select("start", "end"), busy]))
        yield told.finding(
            device,
            f"{module} is called {many}, each for a part that is taken right before, and the results are put together: "
            f"GPU {device} idles or works for that for {say.per_iteration(report).time(intervals.length(claims))}. At "
            "once they are one call, whose kernels fill the GPU.",
            claims,
            mending=change,
        )


@Rule
def not_jitted(report: Report) -> Findings:
    """At most one finding per device on all operations that run one by one, but for what takes parts for calls."""
    single = _one_by_one(report)
    single = single.filter(~on_gpu.is_inside(single.select(*THREAD, at="start"), _in_turn(report)))
    if single.height < say.fewest_in(report) or single.get_column("module").n_unique() < _DIFFERENT:
        return
    many = say.per_iteration(report).plural(single.height, "operation")
    spans = single.select(*THREAD, start="since", end="end")
    often = single.group_by("module").len().sort("len", "module", descending=[True, False])
    named = ", ".join(literal(name) for name in often.get_column("module").head(_DIFFERENT))
    told = words_of("not-jitted").of(many=many, named=named)
    yield from say.on_idle(report, _idle_in(report, spans), told, partial(_jitted, report, spans))


_CONSTANT_BYTES: Final = 64  # numbers of the program, which are part of a compiled module


def _jitted(report: Report, spans: pl.DataFrame, device: int) -> Mending:
    """Host time is gone, kernels from product to product are as few as their reductions, what is left is in graphs."""
    fused, calls = on_gpu.merged(_fusible(report, device)), on_gpu.calls_within(report, spans)
    names = report.kind("api").get_column("name").gather(calls)
    numbers = (pl.col("kind") == "memcpy") & (pl.col("size_bytes") <= _CONSTANT_BYTES)
    constants = operations(report, "size_bytes", "call_row")
    constants = constants.filter(numbers & pl.col("call_row").is_in(calls.implode()))
    return fused._replace(
        gone=pl.concat([fused.gone, on_gpu.without(constants).gone]),
        calls=calls.filter(~names.is_in(names_that(report, is_launch_name))),
        host=spans.select("process_id", "start", "end"),
        graph=True,
    )


def _fusible(report: Report, device: int) -> pl.DataFrame:
    """Kernels that XLA could fuse: rows for :func:`merged`, by the product that they follow."""
    work = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    line = on_gpu.with_decoded(
        work.sort("start").select("row", "name", "start", "dur_ns"),
        products=FAMILY.is_in(["gemm", "conv", "attention", "sort", "fft"]),
        reduces=FAMILY.is_in(["reduce", "normalization", "softmax"]),
    )
    rest = line.with_columns(group=pl.col("products").cast(pl.UInt32).cum_sum()).filter(~pl.col("products"))
    kept = pl.min_horizontal(pl.col("reduces").sum() + 1, pl.len()).cast(pl.Int64).over("group")
    rest = rest.with_columns(kept=kept, merged_ns=kept * pl.col("dur_ns").max().over("group"))
    return rest.select("row", "dur_ns", "group", "kept", "merged_ns")


@Rule
def recompilation(report: Report) -> Findings:
    """At most one finding per device on modules that XLA compiles again and again."""
    again = _compiled_again(report)
    if again.height < max(say.fewest_in(report), say.FEWEST):
        return
    most = literal(again.group_by("module").len().sort("len", "module").item(-1, "module"))
    told = words_of("recompilation: JAX").of(most=most, times=say.per_iteration(report).plural(again.height, "time"))
    spans = again.select(*THREAD, start="since", end="until")
    change = on_gpu.nothing_within(report, spans.unique())
    yield from say.on_idle(report, _idle_in(report, spans), told, lambda _: change)


def _compiled_again(report: Report) -> pl.DataFrame:
    """Compilations of modules compiled before, in scope: since and until the launches around on their thread."""
    every = _modules(report).filter(pl.col("what") == _COMPILES)
    order = every.sort("start").with_columns(number=pl.int_range(pl.len()).over("process_id", "module"))
    again = intervals.overlapping(order.filter(pl.col("number") > 0), report.scope.sides)
    if again.is_empty():
        return again
    launches = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    since = pl.coalesce(say.launch_before(report, again.select("process_id", at="start")), "start")
    known = again.with_columns(since=since)
    sides = nearest(known, launches.select(*THREAD, until="call_start"), ("end", "until"), THREAD, "after")
    return sides.with_columns(pl.col("until").fill_null(pl.col("end")))


_FULL: Final = 0.9  # a device that works so much of the time is spared all of theirs; a replay keeps waits of streams
_WORTH: Final = 0.03  # a smaller part of the kernel time is left out
_COPYING: Final = r"^(?:wrapped|loop|input)_copy(?:_fusion)?(?:_\d+)?$"  # kernels of XLA that copy an array


@Rule
def no_donation(report: Report) -> Findings:
    """One finding per device on which modules copy large arrays within its memory before they update them."""
    if world(report) != JAX:
        return
    per = say.per_iteration(report)
    large = (pl.col("detail") == "Device-to-Device") & (pl.col("size_bytes") >= LARGE_BYTES)
    copying = (pl.col("kind") == "kernel") & pl.col("name").cast(pl.String).str.contains(_COPYING)
    work = exclusive_operations(report, "size_bytes").with_columns(copies=(large | copying).fill_null(value=False))
    for device, start, end in windows(report).iter_rows():
        own = work.filter(pl.col("device") == device)
        copies = own.filter("copies")
        stake, busy, moved = total(copies, "exclusive_ns"), total(own, "exclusive_ns"), total(copies, "size_bytes")
        if copies.height < say.fewest_in(report) or stake < max(_WORTH * busy, 1):
            continue
        told = words_of("no-donation").of(
            many=per.plural(copies.height, "copy"),
            moved=f", {size(moved)} in all" if moved else "",
            time=per.time(stake),
            share=percent(stake / max(busy, 1)),
        )
        change = on_gpu.without(copies) if busy < _FULL * (end - start) else None
        claims = copies.select("start", "end")
        yield told.finding(device, told.what, claims, stake, shortens=True, mending=change)


_NUMBERS_BYTES: Final = 1 << 12  # larger copies to the host are of more than numbers


@Rule
def numbers_read(report: Report) -> Findings:
    """At most one finding per device on numbers of JAX that the host reads: it waits for each in no call of CUDA."""
    if world(report) != JAX:
        return
    work = operations(report, "call_start", "call_row", "size_bytes").drop_nulls("call_start").sort("call_start")
    spans = work.with_columns(start="call_start", end=pl.col("call_start").shift(-1).over("process_id"))
    to_host = pl.col("detail").cast(pl.String) == TO_HOST
    copies = spans.filter(to_host & (pl.col("size_bytes") <= _NUMBERS_BYTES)).drop_nulls("end")
    own = intervals.overlapping(copies, report.scope.sides)
    if own.height < say.fewest_in(report):
        return
    per, change = say.per_iteration(report), on_gpu.without(own)._replace(host=own.select("process_id", "start", "end"))
    told = words_of("blocking-read: JAX").of(
        values=per.plural(own.height, "value"), numbers=per.plural(own.height, "number")
    )
    yield from say.on_idle(report, _idle_in(report, own), told, lambda _: change)
