"""Compiled programs: kernels compiled or tuned again and again; of JAX operations one by one, copies, and reads."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import FAMILY, calls_within, decoded_as, merged, nothing_within, without
from kanalyze.analyses.findings.rules._telling import (
    COMPILED,
    TRITON,
    all_along,
    fewest_in,
    idle_worth_saying,
    launch_before,
    main_site,
    per_iteration,
    place_of,
    written_with,
)
from kanalyze.analyses.host._call_kinds import CUPY, JAX, NUMBA, PYTHON, calls_that, is_launch_name, names_that, world
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.iterations._launch_periods import timed_runs
from kanalyze.analyses.launches._launch_costs import least_worth_saying
from kanalyze.analyses.shared.analysis import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import first_seen, in_order, nearest
from kanalyze.decoder.decode import decode
from kanalyze.report import Report
from kanalyze.tools import CUDA
from kanalyze.units import percent, size
from kanalyze.window import of_module

if TYPE_CHECKING:
    from kanalyze.analyses.replay._changes import Mending

#: Calls that load a kernel's code, and those of Triton and torch.compile in a program of PyTorch, whose libraries are
#: loaded as such.
_LOADS: Final = re.compile(r"cu(?:Module|Library)Load|cudaLibraryLoad")
_MODULES: Final = re.compile(r"cuModuleLoad(?:Data)?(?:Ex)?(?:_v\d+)?$")

_FEWEST: Final = 3  # a kernel that is loaded fewer times, or a module that is compiled, has a few shapes
_COMPILING: Final = (None, "cupy")  # libraries of array operations, which compile kernels at run time, too

#: Action and remedy by what the kernels are written with.
_HOW: Final = {
    TRITON: (
        "an ordinary argument in place of tl.constexpr; do_not_specialize",
        "Give what changes as an ordinary argument; @triton.jit(do_not_specialize=[…]) for integers; few sizes.",
    ),
    COMPILED: (
        "torch.compile(…, dynamic=True), or torch._dynamo.mark_dynamic(x, 0)",
        "Let sizes be dynamic, or pad them to a few; numbers that change as tensors, not as Python's.",
    ),
    CUDA: (
        "compile once: what changes as an argument, not in the source",
        "Make the kernel once, outside the loop, and give it what changes as an argument, not in its source.",
    ),
}


def _on_idle(  # noqa: PLR0913 - the words of a finding
    report: Report,
    idle: dict[int, pl.DataFrame],
    text: str,
    remedy: str,
    words: tuple[str, str, str, str],
    mending: Callable[[int, Report], Mending],
    *names: str,
) -> list[Finding]:
    """A finding per device with the `idle` time at stake, which is told in place of ``IDLES`` in the text.

    `words` are rule, table, headline and action.
    """
    found, (rule, table, headline, action) = [], words
    for device, spans in idle.items():
        stake = intervals.length(claims := intervals.union(spans))
        told = text.replace("IDLES", f"GPU {device} idles for {per_iteration(report).time(stake)}")
        one = Finding(rule, device, stake, told, remedy, table, names, headline, action, claims=claims)
        found.append(one._replace(mending=partial(mending, device)))
    return found


def recompiled_kernels(report: Report) -> list[Finding]:
    """At most one finding per device on all kernels that are loaded again."""
    again = intervals.overlapping(_loaded_again(report), report.scope.sides)
    if again.height < max(fewest_in(report), _FEWEST):
        return []
    low, high = windows(report).select(pl.col("start").min(), pl.col("end").max()).row(0)
    if not per_iteration(report).iterations and not again.select(all_along(pl.col("loaded"), low, high)).item():
        return []  # not in iterations, nor all along the time in which devices work
    most = str(again.group_by("name").len().sort("len", "name").item(-1, "name"))
    action, remedy = _HOW.get(written_with(report, most), _HOW[CUDA])
    times, spans = per_iteration(report).plural(again.height, "time"), again.select(*THREAD, "start", "end")
    text = (
        f"{{0}} and others like it are compiled and loaded {times} more, though they have run before: IDLES from the "
        "launch before to the one after. A compiler makes a kernel anew for each new value of a constant, type or kind "
        "of size."
    )
    words = ("recompilation", "api", f"Compiled anew {times}: {{0}}", action)
    idle, site = idle_worth_saying(report, spans), main_site(report, again.select(*THREAD, at="loaded"))
    found = _on_idle(report, idle, text, remedy, words, lambda _, of: nothing_within(of, spans.unique()), most)
    return [one._replace(where=site) for one in found]


@once_per_process
def _loaded_again(report: Report) -> pl.DataFrame:
    """Loads of a kernel after its first: process_id, thread_id, start, end (of the launches around), loaded, name."""
    schema = {**dict.fromkeys((*THREAD, "start", "end", "loaded"), pl.Int64), "name": pl.String}
    libraries = world(report) in (CUPY, NUMBA, PYTHON)
    loads = calls_that(report, (_LOADS if libraries else _MODULES).match, *THREAD, loaded="start_ns").drop_nulls()
    if loads.height < _FEWEST:
        return pl.DataFrame(schema=schema)
    work = operations(report, "call_start", "call_end", "thread_id")
    work = work.select(*THREAD, "kind", "name", "call_start", "call_end").filter(pl.col("kind") == "kernel")
    launches = in_order(work.drop("kind").drop_nulls(["call_start", "thread_id"]), "call_start")
    launches = launches.filter(first_seen(launches.get_column("call_start")))
    texts = launches.get_column("name").unique().drop_nulls()
    own = texts.filter(pl.Series([_is_compiled_here(report, str(name)) for name in texts], dtype=pl.Boolean))
    made = launches.filter(pl.col("name").is_in(own.implode())).select(*THREAD, "name", begun="call_start")
    line = nearest(loads, made, ("loaded", "begun"), THREAD, "after").drop_nulls("begun")
    line = nearest(line, launches.select(*THREAD, end="call_start"), ("loaded", "end"), THREAD, "after")
    one = line.unique([*THREAD, "end"], keep="first", maintain_order=True)
    more = one.filter(pl.int_range(pl.len()).over("process_id", "name") > 0)
    again = nearest(more, launches.select(*THREAD, start="call_end"), ("loaded", "start"), THREAD).drop_nulls("start")
    again = again.with_columns(pl.col("name").cast(pl.String)).select(*schema)
    return again.filter(pl.len().over("process_id", "name") >= _FEWEST)


def _is_compiled_here(report: Report, name: str) -> bool:
    """Whether a kernel comes of a compiler that the program runs, as its world and its name tell."""
    compiled = written_with(report, name) in (TRITON, COMPILED)
    return compiled or (world(report) in (CUPY, NUMBA, PYTHON) and decode(name).library in _COMPILING)


_PASSES: Final = 4  # fewest iterations, and
_OFTEN: Final = 0.5  # least share of them with timed runs, for an autotuner that begins anew
_KEYS: Final = (
    "@triton.autotune(…, key=[…]) of few values: sizes in buckets",
    "Give the key few values: sizes rounded up to a few, or none (key=[]); cache_results=True keeps them on disk.",
)


def tuned_again(report: Report) -> list[Finding]:
    """At most one finding per device, in a window of iterations in most of which kernels are timed."""
    window = report.scope.window
    if window is None or not window.count or window.count < _PASSES or None in (window.start_ns, window.end_ns):
        return []
    runs = intervals.overlapping(timed_runs(report), report.scope.sides)
    length = max(int(window.end_ns or 0) - int(window.start_ns or 0), 1)

    def part(at: str) -> pl.Expr:
        return (pl.col(at) - window.start_ns) * window.count // length

    many = runs.select(part("start").clip(0, window.count - 1).n_unique()).item() if runs.height else 0
    if many < _OFTEN * window.count:
        return []
    work = exclusive_operations(report, "call_start").drop_nulls("call_start").filter(pl.col("kind") == "kernel")
    fills = work.filter(pl.col("call_start").is_in(runs.get_column("start").implode())).get_column("name").unique()
    own = work.with_columns(fill=pl.col("name").is_in(fills.implode()), part=part("call_start"))
    at = pl.col("call_start")
    first, last = (side.over("device", "part") for side in (at.filter("fill").min(), at.filter("fill").max()))
    return [_tuned(report, one, many) for one in own.filter((at >= first) & (at <= last)).partition_by("device")]


def _tuned(report: Report, own: pl.DataFrame, many: int) -> Finding:
    device, per = int(own.item(0, "device")), per_iteration(report)
    sums = own.filter(~pl.col("fill")).group_by(name=pl.col("name").cast(pl.String)).agg(pl.col("exclusive_ns").sum())
    name = str(sums.sort("exclusive_ns", "name").item(-1, "name")) if sums.height else ""
    action, remedy = _HOW[COMPILED] if written_with(report, name) == COMPILED else _KEYS
    claims = intervals.union(own.group_by("part").agg(pl.col("start").min(), pl.col("end").max()))
    stake = intervals.length(claims)
    text = (
        f"In {many:,} of {per.all} kernels are timed, each run after a fill of the cache, as an autotuner does that "
        f"begins anew: {per.plural(own.height, 'launch')}, most of {{0}}, {per.time(stake)} of GPU {device}. "
        "What was chosen is kept for each shape, type and constant."
    )
    # what is timed is not launched, and the host does nothing for it
    host = own.group_by("process_id", "part").agg(start=pl.col("call_start").min(), end=pl.col("call_start").max())
    one = Finding("recompilation", device, stake, text, remedy, "kernels", (name,), action=action, claims=claims)
    return one._replace(
        headline=f"Autotuned again in {many:,} of {per.all}: {{0}}",
        where=place_of(report, pl.col("row").is_in(own.get_column("row").implode())),
        mending=lambda _: without(own)._replace(host=host),
    )


# Programs of JAX.

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
    """The idle time of each device in `spans`, where that is worth a finding, whatever thread launched what ends it."""
    least, held = least_worth_saying(report), intervals.union(spans.select("start", "end"))
    inside = {device: intervals.intersect(idle, held) for device, idle in idle_spans(report).items()}
    return {device: idle for device, idle in inside.items() if intervals.length(idle) >= max(least[device], 1)}


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


def not_jitted(report: Report) -> list[Finding]:
    """At most one finding per device on all operations that run one by one."""
    single = _one_by_one(report)
    if single.height < fewest_in(report) or single.get_column("module").n_unique() < _DIFFERENT:
        return []
    many = per_iteration(report).plural(single.height, "operation")
    spans = single.select(*THREAD, start="since", end="end")
    often = single.group_by("module").len().sort("len", "module", descending=[True, False])
    named = ", ".join(literal(name) for name in often.get_column("module").head(_DIFFERENT))
    text = (
        f"{many} of JAX run one by one, each as a module of its own (most {named}): IDLES while the host dispatches "
        "them. Under jax.jit XLA makes one module of them, and fuses what is elementwise."
    )
    remedy = (
        "Put the whole step into one function under jax.jit; loops as jax.lax.scan, conditions on values as jnp.where "
        "or jax.lax.cond."
    )
    headline, action = f"{many} run one by one, without jax.jit", "step = jax.jit(step), around all of it"
    words = ("not-jitted", "ranges", headline, action)
    return _on_idle(report, _idle_in(report, spans), text, remedy, words, partial(_jitted, spans))


_CONSTANT_BYTES: Final = 64  # numbers of the program, which are part of a compiled module


def _jitted(spans: pl.DataFrame, device: int, report: Report) -> Mending:
    """Host time is gone, kernels from product to product are as few as their reductions, what is left is in graphs."""
    fused, calls = merged(_fused(report, device)), calls_within(report, spans)
    names = report.kind("api").get_column("name").gather(calls)
    constants = operations(report, "size_bytes", "call_row").filter(
        (pl.col("kind") == "memcpy")
        & (pl.col("size_bytes") <= _CONSTANT_BYTES)
        & pl.col("call_row").is_in(calls.implode())
    )
    return fused._replace(
        gone=pl.concat([fused.gone, without(constants).gone]),
        calls=calls.filter(~names.is_in(names_that(report, is_launch_name))),
        host=spans.select("process_id", "start", "end"),
        graph=True,
    )


def _fused(report: Report, device: int) -> pl.DataFrame:
    """Kernels that XLA could fuse: rows for :func:`merged`, by the product that they follow."""
    work = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    line = work.sort("start").select("row", "name", "start", "dur_ns")
    products = decoded_as(line, FAMILY.is_in(["gemm", "conv", "attention", "sort", "fft"]))
    reduces = decoded_as(line, FAMILY.is_in(["reduce", "normalization", "softmax"]))
    rest = line.with_columns(group=products.cast(pl.UInt32).cum_sum(), reduces=reduces).filter(~products)
    kept = pl.min_horizontal(pl.col("reduces").sum() + 1, pl.len()).cast(pl.Int64).over("group")
    rest = rest.with_columns(kept=kept, merged_ns=kept * pl.col("dur_ns").max().over("group"))
    return rest.select("row", "dur_ns", "group", "kept", "merged_ns")


def recompilation(report: Report) -> list[Finding]:
    """At most one finding per device on modules that XLA compiles again and again."""
    again = _compiled_again(report)
    if again.height < max(fewest_in(report), _FEWEST):
        return []
    most = literal(again.group_by("module").len().sort("len", "module").item(-1, "module"))
    times, spans = per_iteration(report).plural(again.height, "time"), again.select(*THREAD, start="since", end="until")
    text = (
        f"XLA compiles modules that it has compiled before {times} (most {most}): IDLES from the launch before to the "
        "one after. A function under jax.jit is traced and compiled anew for each new shape, type or static argument, "
        "and where it is made anew (a lambda or jax.jit(…) in the loop)."
    )
    remedy = (
        "Call one jitted function, made once, with arrays of few shapes: pad them, and give what changes as an array, "
        "not as a Python number under static_argnums."
    )
    headline, action = f"XLA compiles {most} anew {times}", "pad to a few shapes; jax.jit once, outside the loop"
    words, idle = ("recompilation", "ranges", headline, action), _idle_in(report, spans)
    return _on_idle(report, idle, text, remedy, words, lambda _, of: nothing_within(of, spans.unique()))


def _compiled_again(report: Report) -> pl.DataFrame:
    """Compilations of modules compiled before, in scope: since and until the launches around on their thread."""
    every = _modules(report).filter(pl.col("what") == _COMPILES)
    order = every.sort("start").with_columns(number=pl.int_range(pl.len()).over("process_id", "module"))
    again = intervals.overlapping(order.filter(pl.col("number") > 0), report.scope.sides)
    if again.is_empty():
        return again
    launches = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    since = pl.coalesce(launch_before(report, again.select("process_id", at="start")), "start")
    known = again.with_columns(since=since)
    sides = nearest(known, launches.select(*THREAD, until="call_start"), ("end", "until"), THREAD, "after")
    return sides.with_columns(pl.col("until").fill_null(pl.col("end")))


_LARGE_BYTES: Final = 1 << 20  # smaller arrays are copied in no time
_WORTH: Final = 0.03  # a smaller part of the device's time is left out
_FULL: Final = 0.9  # a device that works so much of the time is spared all of theirs; a replay keeps waits of streams
_COPYING: Final = r"^(?:wrapped|loop|input)_copy(?:_fusion)?(?:_\d+)?$"  # kernels of XLA that copy an array


def no_donation(report: Report) -> list[Finding]:
    """One finding per device on which modules copy large arrays within its memory before they update them."""
    if world(report) != JAX:
        return []
    found, per, least = [], per_iteration(report), least_worth_saying(report)
    within = (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == "Device-to-Device")
    large = within & (pl.col("size_bytes") >= _LARGE_BYTES)
    copying = (pl.col("kind") == "kernel") & pl.col("name").cast(pl.String).str.contains(_COPYING)
    work = exclusive_operations(report, "size_bytes").with_columns(copies=(large | copying).fill_null(value=False))
    for device, start, end in windows(report).iter_rows():
        own = work.filter(pl.col("device") == device)
        copies = own.filter("copies")
        stake, busy, moved = total(copies, "exclusive_ns"), total(own, "exclusive_ns"), total(copies, "size_bytes")
        if copies.height < fewest_in(report) or stake < max(_WORTH * busy, least[device], 1):
            continue
        many = per.plural(copies.height, "copy")
        text = (
            f"{many} of whole arrays within the GPU's memory{f', {size(moved)} in all' if moved else ''}, "
            f"{per.time(stake)}, {percent(stake / max(busy, 1))} of its work: XLA copies an argument that it has to "
            "keep before it updates a part of it."
        )
        remedy = (
            "Give the old array away where it is not used again: donate_argnums names the arguments whose memory the "
            "result may take."
        )
        one = Finding("no-donation", device, stake, text, remedy, "copies", shortens=True)
        one = one._replace(
            headline=f"{many} of arrays that could be updated in place",
            action="jax.jit(step, donate_argnums=0); state = step(state, …)",
            mending=partial(_gone, rows=copies) if busy < _FULL * (end - start) else None,
            claims=copies.select("start", "end"),
        )
        found.append(one)
    return found


def _gone(_: Report, rows: pl.DataFrame) -> Mending:
    return without(rows)


_NUMBERS_BYTES: Final = 1 << 12  # larger copies to the host are of more than numbers


def numbers_read(report: Report) -> list[Finding]:
    """At most one finding per device on numbers of JAX that the host reads: it waits for each in no call of CUDA."""
    if world(report) != JAX:
        return []
    work = operations(report, "call_start", "call_row", "size_bytes").drop_nulls("call_start").sort("call_start")
    spans = work.with_columns(start="call_start", end=pl.col("call_start").shift(-1).over("process_id"))
    to_host = (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == "Device-to-Host")
    copies = spans.filter(to_host & (pl.col("size_bytes") <= _NUMBERS_BYTES)).drop_nulls("end")
    own = intervals.overlapping(copies, report.scope.sides)
    if own.height < fewest_in(report):
        return []
    per, change = per_iteration(report), without(own)._replace(host=own.select("process_id", "start", "end"))
    text = (
        f"{per.plural(own.height, 'number')} or short arrays of JAX are read by the host, one by one: IDLES from the "
        "copy of each until the next launch. What reads (float(x), x.item(), np.asarray(x), print, if) waits for all "
        "that was dispatched before."
    )
    remedy = "Keep them on the GPU, and read them together every N steps."
    headline = f"{per.plural(own.height, 'value')} read by the host (float(x), .item())"
    words = ("blocking-read", "copies", headline, "keep arrays; jax.device_get(list) every N steps")
    return _on_idle(report, _idle_in(report, own), text, remedy, words, lambda *_: change)


RULES: Final = (recompiled_kernels, tuned_again, not_jitted, recompilation, no_donation, numbers_read)
