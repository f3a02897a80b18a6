"""Programs of JAX: operations that run one by one, modules that are compiled again, and arrays copied to be updated."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import calls_within, decoded_as, merged, nothing_within
from kanalyze.analyses.findings.rules._telling import fewest_in, launch_before, per_iteration
from kanalyze.analyses.host._call_kinds import is_launch_name, names_that
from kanalyze.analyses.host._range_lines import named_ranges
from kanalyze.analyses.host._worlds import JAX, world
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.cached import once_per_process, once_per_report
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.named_ranges import of_module
from kanalyze.units import percent, size

if TYPE_CHECKING:
    from kanalyze.report import Report

#: What XLA calls its ranges about a module that runs, and about one that it compiles.
_RUNS: Final = "XlaModule"
_COMPILES: Final = "XlaCompile"

#: Maximum number of launches of a module that is one operation, such as a mean or a variance.
_FEW: Final = 3.0

#: So many different operations are more than what is left beside a compiled step.
_DIFFERENT: Final = 3

#: Longer times between two operations are more than their dispatch (ns).
_DISPATCH_NS: Final = 2_000_000


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


@once_per_report
def _one_by_one(report: Report) -> pl.DataFrame:
    """Operations that are modules of their own, each after another: rows of :func:`_modules` with since.

    From `since`, the end of the one before it on its thread, the host prepared it.
    """
    runs = intervals.overlapping(_modules(report).filter(pl.col("what") == _RUNS), report.scope.sides)
    work = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    launches = work.select(*THREAD, at="call_start").sort("at")
    numbered = runs.with_row_index("row")
    inside = nearest(launches, numbered, ("at", "start"), THREAD).filter(pl.col("at") < pl.col("end"))
    counts = inside.group_by("row").agg(launches=pl.len())
    known = numbered.join(counts, on="row", how="left", maintain_order="left")
    mean = pl.col("launches").fill_null(0).mean().over("module")
    small = known.with_columns(single=mean <= _FEW, since=pl.col("end").shift(1).over(THREAD))
    after = pl.col("single").shift(1, fill_value=False).over(THREAD)
    near = pl.col("start") - pl.col("since") <= _DISPATCH_NS
    return small.filter(pl.col("single") & after & near)


def not_jitted(report: Report) -> list[Finding]:
    """At most one finding per device on all operations that run one by one."""
    single = _one_by_one(report)
    if single.height < fewest_in(report) or single.get_column("module").n_unique() < _DIFFERENT:
        return []
    per, spans = per_iteration(report), single.select(*THREAD, start="since", end="end")
    often = single.group_by("module").len().sort("len", "module", descending=[True, False])
    named = ", ".join(literal(name) for name in often.get_column("module").head(_DIFFERENT))
    found = []
    for device, idle in _idle_in(report, spans).items():
        stake = intervals.length(idle)
        text = (
            f"{per.plural(single.height, 'operation')} of JAX run one by one, each as a module of its own (most {named}"
            f"): GPU {device} idles for {per.time(stake)} while the host dispatches them. Under jax.jit XLA makes one "
            "module of them, and fuses what is elementwise."
        )
        found.append(
            Finding(
                "not-jitted",
                device,
                stake,
                text,
                "Put the whole step into one function under jax.jit; loops as jax.lax.scan, conditions on values as "
                "jnp.where or jax.lax.cond.",
                "ranges",
                headline=f"{per.plural(single.height, 'operation')} run one by one, without jax.jit",
                action="step = jax.jit(step), around all of it",
                mending=partial(_jitted, device=device, spans=spans),
                claims=idle,
            )
        )
    return found


def _idle_in(report: Report, spans: pl.DataFrame) -> dict[int, pl.DataFrame]:
    """The idle time of each device in `spans`, where that is worth a finding, whatever thread launched what ends it."""
    least, held = least_worth_saying(report), intervals.union(spans.select("start", "end"))
    inside = {device: intervals.intersect(idle, held) for device, idle in idle_spans(report).items()}
    return {device: idle for device, idle in inside.items() if intervals.length(idle) >= max(least[device], 1)}


#: Numbers of the program, which are part of a compiled module.
_CONSTANT_BYTES: Final = 64


def _jitted(report: Report, device: int, spans: pl.DataFrame) -> Mending:
    """Between launches the host does nothing, kernels from one product to the next are as few as their reductions.

    What is left is launched as XLA does, in graphs.
    """
    fused = merged(_fused(report, device))
    calls = calls_within(report, spans)
    names = report.kind("api").get_column("name").gather(calls)
    others = calls.filter(~names.is_in(names_that(report, is_launch_name)))
    constants = operations(report, "size_bytes", "call_row").filter(
        (pl.col("kind") == "memcpy")
        & (pl.col("size_bytes") <= _CONSTANT_BYTES)
        & pl.col("call_row").is_in(calls.implode())
    )
    return fused._replace(
        gone=pl.concat([fused.gone, constants.get_column("row").cast(pl.UInt32)]),
        calls=others,
        host=spans.select("process_id", "start", "end"),
        graph=True,
    )


def _fused(report: Report, device: int) -> pl.DataFrame:
    """Kernels that XLA could fuse: rows for :func:`merged`, by the product that they follow."""
    work = exclusive_operations(report).filter((pl.col("kind") == "kernel") & (pl.col("device") == device))
    line = work.sort("start").select("row", "name", "start", "dur_ns")
    line = line.with_columns(
        product=decoded_as(line, lambda said: said.family in {"gemm", "conv", "attention", "sort", "fft"}),
        reduces=decoded_as(line, lambda said: said.family in {"reduce", "normalization", "softmax"}),
    )
    rest = line.with_columns(group=pl.col("product").cast(pl.UInt32).cum_sum()).filter(~pl.col("product"))
    sums = [pl.col("reduces").sum().alias("some"), pl.col("dur_ns").max().alias("most"), pl.len().alias("many")]
    kept = pl.min_horizontal(pl.col("some") + 1, "many").cast(pl.Int64)
    groups = rest.group_by("group").agg(sums).select("group", kept=kept, merged_ns=kept * pl.col("most"))
    return rest.join(groups, on="group").sort("start")


def recompilation(report: Report) -> list[Finding]:
    """At most one finding per device on modules that XLA compiles again and again."""
    again = _compiled_again(report)
    if again.height < max(fewest_in(report), _AGAIN):
        return []
    per, most = per_iteration(report), again.group_by("module").len().sort("len", "module").row(-1)[0]
    found, spans = [], again.select(*THREAD, start="since", end="until")
    for device, idle in _idle_in(report, spans).items():
        stake = intervals.length(idle)
        text = (
            f"XLA compiles modules that it has compiled before {per.plural(again.height, 'time')} (most "
            f"{literal(most)}): GPU {device} idles for {per.time(stake)} from the launch before to the one after. A "
            "function under jax.jit is traced and compiled anew for each new shape, type or static argument, and where "
            "it is made anew (a lambda or jax.jit(…) in the loop)."
        )
        found.append(
            Finding(
                "recompilation",
                device,
                stake,
                text,
                "Call one jitted function, made once, with arrays of few shapes: pad them, and give what changes as an "
                "array, not as a Python number under static_argnums.",
                "ranges",
                headline=f"XLA compiles {literal(most)} anew {per.plural(again.height, 'time')}",
                action="pad to a few shapes; jax.jit once, outside the loop",
                mending=partial(nothing_within, spans=spans.unique()),
                claims=idle,
            )
        )
    return found


#: Fewer compilations of a module are those of a few shapes.
_AGAIN: Final = 3


def _compiled_again(report: Report) -> pl.DataFrame:
    """Compilations in scope of modules that were compiled before: those of :func:`_modules`, with since and until.

    From the launch before to the launch after on its thread.
    """
    every = _modules(report).filter(pl.col("what") == _COMPILES)
    order = every.sort("start").with_columns(number=pl.int_range(pl.len()).over("process_id", "module"))
    again = intervals.overlapping(order.filter(pl.col("number") > 0), report.scope.sides)
    if again.is_empty():
        return again.with_columns(since="start", until="end")
    launches = operations(report, "call_start", "thread_id").drop_nulls("call_start")
    known = again.with_columns(launch_before(report, again.select("process_id", at="start")).alias("since"))
    sides = nearest(known, launches.select(*THREAD, until="call_start"), ("end", "until"), THREAD, "after")
    return sides.with_columns(pl.col("since").fill_null(pl.col("start")), pl.col("until").fill_null(pl.col("end")))


#: Smaller arrays are copied in no time, and a smaller part of the device's time is left out.
_LARGE_BYTES: Final = 1 << 20
_WORTH: Final = 0.03

#: A device that works so much of the time is spared all of theirs; a replay keeps the waits of streams around them.
_FULL: Final = 0.9

#: Kernels of XLA that copy an array.
_COPYING: Final = r"^(?:wrapped|loop|input)_copy(?:_fusion)?(?:_\d+)?$"


def no_donation(report: Report) -> list[Finding]:
    """One finding per device on which modules copy large arrays within its memory before they update them."""
    if world(report) != JAX:
        return []
    found, per, least = [], per_iteration(report), least_worth_saying(report)
    lengths = {device: end - start for device, start, end in windows(report).iter_rows()}
    work = exclusive_operations(report, "size_bytes")
    within = (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == "Device-to-Device")
    large = within & (pl.col("size_bytes") >= _LARGE_BYTES)
    copying = (pl.col("kind") == "kernel") & pl.col("name").cast(pl.String).str.contains(_COPYING)
    for (device,), own in work.partition_by("device", as_dict=True, maintain_order=True).items():
        copies = own.filter((large | copying).fill_null(value=False))
        stake, busy = total(copies, "exclusive_ns"), total(own, "exclusive_ns")
        if copies.height < fewest_in(report) or stake < max(_WORTH * busy, least[int(str(device))], 1):
            continue
        moved = total(copies, "size_bytes")
        bytes_moved = f", {size(moved)} in all" if moved else ""
        text = (
            f"{per.plural(copies.height, 'copy')} of whole arrays within the GPU's memory{bytes_moved}, "
            f"{per.time(stake)}, {percent(stake / max(busy, 1))} of its work: XLA copies an argument that it has to "
            "keep before it updates a part of it."
        )
        found.append(
            Finding(
                "no-donation",
                int(str(device)),
                stake,
                text,
                "Give the old array away where it is not used again: donate_argnums names the arguments whose memory "
                "the result may take.",
                "copies",
                headline=f"{per.plural(copies.height, 'copy')} of arrays that could be updated in place",
                action="jax.jit(step, donate_argnums=0); state = step(state, …)",
                mending=partial(_in_place, copies=copies) if busy < _FULL * lengths[int(str(device))] else None,
                claims=copies.select("start", "end"),
                shortens=True,
            )
        )
    return found


def _in_place(report: Report, copies: pl.DataFrame) -> Mending:
    del report
    return Mending(gone=copies.get_column("row"))


#: Larger copies to the host are of more than numbers.
_NUMBERS_BYTES: Final = 1 << 12


def numbers_read(report: Report) -> list[Finding]:
    """At most one finding per device on numbers of JAX that the host reads: it waits for each in no call of CUDA."""
    if world(report) != JAX:
        return []
    work = operations(report, "call_start", "call_row", "size_bytes").drop_nulls("call_start").sort("call_start")
    work = work.with_columns(until=pl.col("call_start").shift(-1).over("process_id"))
    to_host = (pl.col("kind") == "memcpy") & (pl.col("detail").cast(pl.String) == "Device-to-Host")
    copies = work.filter(to_host & (pl.col("size_bytes") <= _NUMBERS_BYTES)).drop_nulls("until")
    own = intervals.overlapping(copies.with_columns(start="call_start", end="until"), report.scope.sides)
    if own.height < fewest_in(report):
        return []
    found, per = [], per_iteration(report)
    for device, idle in _idle_in(report, own).items():
        stake = intervals.length(idle)
        text = (
            f"{per.plural(own.height, 'number')} or short arrays of JAX are read by the host, one by one: GPU {device} "
            f"idles for {per.time(stake)} from the copy of each until the next launch. What reads (float(x), x.item(), "
            "np.asarray(x), print, if) waits for all that was dispatched before."
        )
        found.append(
            Finding(
                "blocking-read",
                device,
                stake,
                text,
                "Keep them on the GPU, and read them together every N steps.",
                "copies",
                headline=f"{per.plural(own.height, 'value')} read by the host (float(x), .item())",
                action="keep arrays; jax.device_get(list) every N steps",
                mending=partial(_unread, own=own),
                claims=idle,
            )
        )
    return found


def _unread(report: Report, own: pl.DataFrame) -> Mending:
    del report
    return Mending(gone=own.get_column("row").cast(pl.UInt32), host=own.select("process_id", "start", "end"))


RULES: Final = (not_jitted, recompilation, no_donation, numbers_read)
