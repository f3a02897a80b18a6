"""Cold and warm: one-time costs with their evidence, and each kernel's first run against its steady state."""

from collections.abc import Sequence
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import (
    device_operations,
    in_window_scope,
    launching_rows,
    used_devices,
    with_facts,
)
from kanalyze.analyses.device._windows import busy_within
from kanalyze.analyses.host import _call_kinds
from kanalyze.analyses.launches._launch_costs import COLD_FACTOR, KERNEL, graph_launches, launch_costs, launched_kernels
from kanalyze.analyses.shared.analysis import once_per_report, part_of
from kanalyze.columns import nearest
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

#: One cost: process, kind, time, duration, and the duration of the same once warm.
COST: Final = {
    **dict.fromkeys(("process_id", "device"), pl.Int64),
    **dict.fromkeys(("category", "what"), pl.String),
    **dict.fromkeys(("start", "dur_ns"), pl.Int64),
    **dict.fromkeys(("warm_ns", "extra_ns"), pl.Float64),
    "launch_ns": pl.Int64,
    "evidence": pl.String,
}

#: The kinds of loading calls, by a part of the name; the first match counts, and without a match it is a module.
_LOADING: Final = {"jit": "cuLink|nvrtc|nvJitLink", "library": "Library", "context": "Ctx", "module": ""}

#: A first call that exceeds later ones by less than this may do so by chance.
_WORTH_A_ROW_NS: Final = 1_000


def costs(frame: pl.DataFrame, **columns: pl.Expr | str) -> pl.DataFrame:
    """`frame` with these columns as rows of :data:`COST`; missing columns are null."""
    rows = [pl.DataFrame(schema=COST), frame.with_columns(**columns).select(pl.col("^(" + "|".join(COST) + ")$"))]
    return pl.concat(rows, how="diagonal_relaxed").cast(pl.Schema(COST))


def context_costs(report: Report) -> pl.DataFrame:
    """Context creation, in recorded calls or outside of them."""
    calls, contexts = report.kind("api"), _call_kinds.context_calls(report)
    named = contexts.select("process_id", "name").unique()
    others = calls.join(named, on=["process_id", "name"], how="semi").join(contexts, on="event_id", how="anti")
    warm = others.group_by("process_id", "name").agg(warm_ns=pl.col("dur_ns").median(), calls=pl.len())
    others_say = pl.format("makes a context; other calls of this name: {}", "calls")
    usual = pl.when(pl.col("made_ns") == pl.col("end_ns")).then(pl.col("warm_ns")).fill_null(0)
    making = pl.col("made_ns") - pl.col("start_ns")
    inside = costs(
        contexts.join(warm, on=["process_id", "name"], how="left", nulls_equal=True),
        category=pl.lit("context"),
        what=_call_kinds.shown(pl.col("name")),
        start="start_ns",
        dur_ns=making,
        extra_ns=making - usual,
        evidence=pl.coalesce(others_say, pl.lit("makes a context")),
    )
    sides = [pl.col(side).fill_null(edge) for side, edge in (("before", "the start"), ("after", "the end"))]
    outside = _call_kinds.unrecorded_contexts(report).select(
        "process_id",
        category=pl.lit("context"),
        what=pl.format("between {} and {}", *sides),
        start="end",
        evidence=pl.lit("the profiler saw a context made outside of all calls that it records"),
    )
    return pl.concat([inside, costs(outside)])


def loading_costs(report: Report) -> pl.DataFrame:
    """Calls that load or compile, and look-ups that took much longer than others of their name."""
    calls = _of_bucket(report, "loading").join(_call_kinds.context_calls(report), on="event_id", how="anti")
    text = _call_kinds.cuda_names(calls.get_column("name"))
    lookup = text.str.contains("Get", literal=True)
    usual = pl.col("dur_ns").median().over("process_id", "name")
    long = (pl.col("dur_ns") > COLD_FACTOR * usual) & (pl.col("dur_ns") - usual >= _WORTH_A_ROW_NS)
    count = pl.len().over("process_id", "name")
    judged = calls.with_columns(
        _call_kinds.shown(pl.col("name")).alias("what"),
        category=pl.coalesce(pl.when(text.str.contains(part)).then(pl.lit(name)) for name, part in _LOADING.items()),
        start="start_ns",
        warm_ns=pl.when(lookup).then(usual),
        extra_ns=pl.col("dur_ns") - pl.when(lookup).then(usual).otherwise(0),
        evidence=pl.when(lookup)
        .then(pl.format("looks up what it has to load first; calls of this name in the process: {}", count))
        .otherwise(pl.lit("loads or compiles: a warm program does without")),
        kept=long | ~lookup,
    )
    return costs(judged.filter("kept"))


def graph_costs(report: Report) -> pl.DataFrame:
    """Captures, instantiations and uploads of CUDA graphs, and slow first launches of graphs."""
    steps = _call_kinds.graph_steps(report).filter(pl.col("step").is_in(["instantiate", "upload"]))
    spans = _call_kinds.captures(report).with_columns(step=pl.lit("capture"))
    kept = ("process_id", "name", "start", "end", "step")
    parts = pl.concat([steps.select(kept), spans.select(kept)]).with_columns(dur_ns=pl.col("end") - pl.col("start"))
    what = (
        pl.when(pl.col("step") == "capture").then(pl.lit("stream capture")).otherwise(_call_kinds.shown(pl.col("name")))
    )
    why = "part of making a graph that is launched as often as wanted"
    making = costs(parts, what=what, category=pl.lit("graph"), extra_ns="dur_ns", evidence=pl.lit(why))
    launches = graph_launches(report).filter("charged").sort("call_start", "launch")
    launches = launches.with_columns(start="call_start", dur_ns="call_ns")
    first = costs(
        _first_slow(launches, ("graph", "process_id"), "graph_exec_id", "device", "launch_ns"),
        category=pl.lit("first launch"),
        what=pl.format("graph {}", pl.col("graph_exec_id").cast(pl.String).fill_null("?")),
        evidence=pl.format("first launch of this CUDA graph; later ones: {}", "later"),
    )
    return pl.concat([making, first])


def _first_slow(calls: pl.DataFrame, keys: Sequence[str], *kept: str) -> pl.DataFrame:
    """The first of the sorted `calls` (start, dur_ns) with each of the `keys`, where later ones were much faster.

    Columns: `keys`, `kept`, start, dur_ns, warm_ns (the later ones' median), extra_ns and later (how many they are).
    """
    sums = calls.group_by(keys, maintain_order=True).agg(
        pl.col(*kept, "start", "dur_ns").first(), warm_ns=pl.col("dur_ns").slice(1).median(), later=pl.len() - 1
    )
    slow = sums.filter(pl.col("dur_ns") > COLD_FACTOR * pl.col("warm_ns"))
    return slow.with_columns(extra_ns=pl.col("dur_ns") - pl.col("warm_ns"))


def first_call_costs(report: Report) -> pl.DataFrame:
    """First calls of a process, by name, that took much longer than later ones.

    Excludes calls that launch, were captured, block, load or build graphs: their duration has other causes.
    """
    own = pl.concat([_of_bucket(report, bucket).with_columns(bucket=pl.lit(bucket)) for bucket in _FIRST])
    launching = report.kind("api").get_column("event_id").gather(launching_rows(report))
    contexts = _call_kinds.context_calls(report)
    left_out = pl.concat([launching, _call_kinds.graph_steps(report).get_column("event_id")])
    launch = _call_kinds.names_that(report, _call_kinds.is_launch_name)
    reasons = pl.col("event_id").is_in(left_out.implode()) | pl.col("name").is_in(launch)
    calls = own.filter(~reasons).join(contexts.select("event_id", "made_ns", "end_ns"), on="event_id", how="left")
    # a call that created a context counts only for the time after that
    calls = calls.with_columns(
        pl.coalesce("made_ns", "start_ns").alias("start"),
        pl.coalesce(pl.col("end_ns") - pl.col("made_ns"), "dur_ns").alias("dur_ns"),
    )
    slow = _first_slow(calls.sort("start", "event_id"), ("process_id", "name"), "bucket")
    return costs(
        slow.filter(pl.col("extra_ns") >= _WORTH_A_ROW_NS),
        category=pl.col("bucket").replace_strict(_FIRST, return_dtype=pl.String),
        what=_call_kinds.shown(pl.col("name")),
        evidence=pl.format("the process's first call of this name; later ones: {}", "later"),
    )


#: The buckets whose first calls are examined, and the kind of such a cost.
_FIRST: Final = {"allocation": "allocation", "api": "first call"}


def _of_bucket(report: Report, bucket: str) -> pl.DataFrame:
    """The calls of one bucket in the whole report."""
    columns = ("event_id", "process_id", "name", "start_ns", "dur_ns")
    return _call_kinds.calls_that(report, lambda name: _call_kinds.bucket_of(name) == bucket, *columns)


CATEGORIES: Final = (
    "context",
    "module",
    "library",
    "jit",
    "first launch",
    "first touch",
    "graph",
    "allocation",
    "first call",
    "first in recording",
)

#: The kinds of first events, and their names where the process began before the recording.
_FIRSTS: Final = ("first launch", "first touch", "allocation", "first call")
_EARLIER: Final = "; what the process did before the recording is not known"

TABLE: Final = Table(
    "cold",
    "One cost that is paid once. Costs may lie inside one another: they are not to be added.",
    (
        Column("process_id", pl.Int64, "Process; null where the report does not say.", nullable=True),
        Column("device", pl.Int64, "The GPU; null for a process that used several, or none.", nullable=True),
        Column("category", pl.Enum(CATEGORIES), "What kind of cost: " + ", ".join(CATEGORIES) + "."),
        *columns("""
            what text?: The call, kernel or graph.
            start_ns int: When it began.
            dur_ns int?: How long the call took on the host, or the kernel on the device (first touch); null where no
                call was recorded.
            warm_ns float?: How long the same takes later, median; null where it does not come again.
            extra_ns float?: What it took beyond that: all of it where a warm program does without; null where that is
                not known.
            launch_ns int?: What the device waited for it, if it is a launch; else null.
            idle_ns int?: Time during the call in which the device ran nothing; null likewise.
            evidence text: What shows it.
        """),
    ),
    purpose="costs paid once: contexts, modules, first call",
    telling=("what", "category", "extra_ns", "dur_ns", "warm_ns"),
    groupings=("kernel",),
)

#: The table that ``by="kernel"`` gives.
BY_KERNEL: Final = Table(
    "cold",
    "One kernel of one process on one device: its first run in the recording and its steady state.",
    columns("""
        process_id int?: Process; null where the report does not say.
        device int: The GPU, as in `devices`.
        kernel text?: Demangled name of the kernel.
        count int: Its runs.
        first_start_ns int?: Start of its first run in the recording; null out of scope.
        first_api_ns int?: Its first launching call; null likewise, or in a graph.
        warm_api_ns float?: Median of its later launching calls; null without any.
        extra_api_ns float?: The first call less that median.
        first_kernel_ns int?: Its first run; null where that is not in scope.
        warm_kernel_ns float?: Median of its later runs; null without any.
        extra_kernel_ns float?: The first run less that median.
        launch_ns int?: What the device waited for its first launch.
    """),
    when="--by kernel",
    telling=("extra_api_ns", "extra_kernel_ns", "first_api_ns", "count"),
)

#: What a run of a kernel and the migrations during it have in common.
_RUN: Final = ("process_id", "device")


def cold(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """One-time costs, the costliest first; or each kernel's first run compared with the later ones.

    Args:
        report: Where to look; costs that overlap its window count. First means first in the whole recording.
        by: ``kernel`` gives one row per kernel, the largest excess of the first launch and run over the usual first.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE` or :data:`BY_KERNEL`; empty if there were no one-time costs.

    Raises:
        CannotTellError: The report records no CUDA calls, or, by kernel, no kernels.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, "api" if by is None else "kernel")
    if by is None:
        return _by_cost(report)
    named = kernel_starts(report).with_columns(
        pl.col("name").cast(pl.String).alias("kernel"),
        first_start_ns="first_start",
        extra_api_ns=pl.col("first_api_ns") - pl.col("warm_api_ns"),
        extra_kernel_ns=pl.col("first_kernel_ns") - pl.col("warm_kernel_ns"),
    )
    extra = pl.col("extra_api_ns").fill_null(0) + pl.col("extra_kernel_ns").fill_null(0)
    return BY_KERNEL.select(named.sort(-extra, "device", "process_id", "kernel"))


def _by_cost(report: Report) -> pl.DataFrame:
    makers = (context_costs, loading_costs, first_touch_costs, graph_costs, first_call_costs)
    known = pl.concat(make(report) for make in makers)
    # first events are first in the recording where the process began before it
    warm = _call_kinds.begun_before(report).get_column("process_id")
    earlier = pl.col("process_id").is_in(warm.implode(), nulls_equal=True) & pl.col("category").is_in(_FIRSTS)
    evidence = pl.col("evidence").str.replace("the process's", "the recording's", literal=True) + _EARLIER
    known = known.with_columns(
        category=pl.when(earlier).then(pl.lit("first in recording")).otherwise("category"),
        evidence=pl.when(earlier).then(evidence).otherwise("evidence"),
    )
    rows = pl.concat([known, _first_launches(report)])
    # with the device, for processes that used only one
    single = used_devices(report.whole).select("process_id", only="device").filter(pl.len().over("process_id") == 1)
    both = rows.join(single, on="process_id", how="left", nulls_equal=True)
    placed = both.with_columns(pl.col("device").fill_null(pl.col("only")))
    if report.scope.device is not None:
        own = used_devices(report).select("process_id").unique()
        mine = pl.col("device").is_null() | (pl.col("device") == report.scope.device)
        placed = placed.filter(mine).join(own, on="process_id", how="semi", nulls_equal=True)
    placed = intervals.overlapping(placed, report.scope.sides, end=pl.col("start") + pl.col("dur_ns").fill_null(0))
    # idle during each cost, but for those on the device itself
    length = pl.when(pl.col("category") != "first touch").then(pl.col("dur_ns").clip(lower_bound=0)).alias("idle_ns")
    spans = placed.select("device", "start", end=pl.col("start") + pl.col("dur_ns").fill_null(0))
    most = pl.col("extra_ns").fill_null(pl.col("dur_ns")).fill_null(0)
    whole = placed.with_columns(placed.select(length).to_series() - busy_within(report, spans), start_ns="start")
    return TABLE.select(whole.sort(-most, "start_ns", "category", "what", nulls_last=True))


def _first_launches(report: Report) -> pl.DataFrame:
    """Cold first launches of kernels, as the rule `first-launch` defines them."""
    warm = kernel_starts(report).select(*KERNEL, "warm_api_ns", "later")
    sure = pl.format("the process's first launch of this kernel; later ones: {}", "later")
    unsure = pl.format(f"the recording's first launch of this kernel; later ones: {{}}{_EARLIER}", "later")
    return costs(
        launch_costs(report).slow.join(warm, on=KERNEL, how="left", nulls_equal=True),
        category=pl.when("sure").then(pl.lit("first launch")).otherwise(pl.lit("first in recording")),
        what=pl.col("name").cast(pl.String),
        start="call_start",
        dur_ns="api_ns",
        warm_ns="warm_api_ns",
        extra_ns=pl.col("api_ns") - pl.col("warm_api_ns"),
        evidence=pl.when("sure").then(sure).otherwise(unsure),
    )


def first_touch_costs(report: Report) -> pl.DataFrame:
    """Kernel runs during which blocks of unified memory migrated to the device for the first time."""
    copies = device_operations(report).filter(pl.col("detail").cast(pl.String) == "Unified Host-to-Device")
    moves = with_facts(report, copies, "address", "size_bytes", "migration_cause").drop_nulls("address")
    by_user = pl.col("migration_cause").cast(pl.String).str.starts_with("User").fill_null(value=False)
    moved = moves.filter(~by_user).select(*_RUN, "address", "size_bytes", at="start")
    runs = device_operations(report).filter(pl.col("kind") == "kernel")
    runs = runs.select("row", "name", *_RUN, "start", "end", "dur_ns").sort("start", "row")
    during = nearest(moved, runs, ("at", "start"), _RUN).filter(pl.col("at") < pl.col("end"))
    block = [*_RUN, pl.col("address") // (2 << 20)]  # the driver manages 2 MiB, of which a page fault migrates a part
    new = during.filter(pl.col("row") == pl.col("row").first().over(block, order_by="at"))
    sums = new.group_by("row").agg(moves=pl.len(), size=pl.col("size_bytes").sum())
    calm = runs.join(during, on="row", how="anti").group_by(*_RUN, "name").agg(warm_ns=pl.col("dur_ns").median())
    return costs(
        runs.join(sums, on="row").join(calm, on=[*_RUN, "name"], how="left", nulls_equal=True),
        category=pl.lit("first touch"),
        what=pl.col("name").cast(pl.String),
        extra_ns=pl.col("dur_ns") - pl.col("warm_ns"),
        evidence=pl.format("{} migrations of {} bytes to the GPU for the first time", "moves", "size"),
    )


@once_per_report
def kernel_starts(report: Report) -> pl.DataFrame:
    """The kernels in scope, one row per process, device and kernel.

    Columns: those of :data:`KERNEL`, count (runs), first_start (of the first run on the device), first_kernel_ns and
    warm_kernel_ns (the later runs' median), later (launches after the first that have a call of their own), call_start,
    first_api_ns, launch_ns (the device's wait for it) and warm_api_ns. First means first in the whole process: null
    where that one is not in scope.
    """
    work = device_operations(report).select("kind", "row", *KERNEL, "start", "dur_ns")
    runs = work.filter(pl.col("kind") == "kernel").sort("start", "row")
    runs = in_window_scope(report, runs.with_columns(first=pl.struct(KERNEL).is_first_distinct()))
    first, warm = pl.col("first"), ~pl.col("first")
    sums = runs.group_by(KERNEL).agg(
        pl.len().cast(pl.Int64).alias("count"),
        first_start=pl.col("start").filter(first).first(),
        first_kernel_ns=pl.col("dur_ns").filter(first).first(),
        warm_kernel_ns=pl.col("dur_ns").filter(warm).median(),
    )
    by_kernel = launched_kernels(report).group_by(KERNEL)
    launches = by_kernel.agg(
        pl.col("row", "launch_ns").filter(first).first(),
        later=warm.sum().cast(pl.Int64),
        first_api_ns=pl.col("api_ns").filter(first).first(),
        warm_api_ns=pl.col("api_ns").filter(warm).median(),
    )
    launches = with_facts(report, launches, "call_start").drop("row")
    return sums.join(launches, on=KERNEL, how="left", nulls_equal=True)
