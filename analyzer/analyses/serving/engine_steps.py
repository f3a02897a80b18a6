"""Each step of a serving engine on its GPU, the time before it and why, and sums by kind that close with the ledger.

A step is a range whose label is one of an engine's. On the GPU it is from the first operation that was launched in it
to the last one, less what an earlier step reaches into; between them are gaps, in which others' work may run: that of
a sampler outside of the labels, say. Before the first and after the last step is the rest of the device's window.
Definitions: docs/serving.md.
"""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, operations
from kanalyze.analyses.device._windows import busy_within, windows
from kanalyze.analyses.idle._attribution import ledger_pieces, window_ledgers
from kanalyze.analyses.iterations._marks import of_process
from kanalyze.analyses.ranges.captured import captured_as
from kanalyze.analyses.ranges.engine_marks import CAPTURE, DECODE, KINDS, engine_marks
from kanalyze.analyses.shared.analysis import check_grouping, once_per_process, require
from kanalyze.analyses.shared.statistics import BUCKETS
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest_place, rate
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

GRAPH, PARTLY, EAGER = "graph", "partly", "eager"

#: Calls that launch a graph; how much of a step's GPU time in graphs makes it one that was replayed.
_LAUNCHES_GRAPH: Final = "GraphLaunch"
_REPLAYED: Final = 0.5

_STEP: Final = columns("""
    device int?: The GPU, as in `devices`: one row for each that the step launched work on; null for none.
    process_id int?: The process of the engine.
    index int: Its number among the steps of the process, from 1 on.
    engine text: Whose label it is: vLLM, SGLang, TensorRT-LLM, ATOM, xDiT, or --steps.
    kind text: prefill, decode, mixed (both), draft (of speculative decoding), diffusion (of
        pictures), idle (of no request), or other.
    label text: The label.
    requests int?: Requests in it, as its label says; all that follow too.
    tokens int?: Tokens that it computes: a prompt's, and one for each request that generates where it says no more.
    padded int?: The batch of the graph that was replayed, by label or capture, else the largest that replayed it.
    kv_tokens int?: Tokens whose keys and values its attention reads, summed over the requests.
    context_requests int?: Requests of which it computes the prompt, or a part of that.
    context_tokens int?: Tokens of prompts.
    mode text?: graph (half of its GPU time or more is in CUDA graphs), partly, or eager; null without work on a GPU.
    start_ns int: Start of the range on the host.
    host_ns int: Its length there.
    gpu_start_ns int?: When the GPU began it: its first operation, or the end of an earlier step.
    dur_ns int: From then to the end of its last operation; 0 without any.
    busy_ns int: Of that, the time in which the GPU ran anything.
    gap_ns int?: Time of the GPU before it, from the end of the step before; null for the first of the GPU.
    gap_busy_ns int?: Of that, the time in which the GPU ran other work, as samplers' outside of the label.
    gap_cause text?: The bucket of the ledger with most of that time.
    gap_culprit text?: Who took most of that bucket, as in `culprits`; of work the range or the kernel.
    tokens_per_s float?: Its tokens over its time and that of the gap before it.
""")

TABLE: Final = Table(
    "engine_steps",
    "One step of a serving engine, by its label, on one GPU.",
    _STEP,
    purpose="steps of a serving engine: kind, batch, time, gap before and why",
    no_rows="no range has the label of a serving engine's step",
    telling=("kind", "requests", "tokens", "mode", "dur_ns", "gap_ns", "gap_cause", "label"),
    groupings=("kind", "batch"),
)

_SUMS: Final = (
    *columns("""
        count int: Steps.
        requests float?: Requests of a step, in the mean of those whose label says it.
        tokens int?: Tokens of all steps whose label says them.
        kv_tokens float?: Tokens whose keys and values a step reads, in the mean.
        ns int: Time of the GPU: steps, and the gaps before them. All rows of a device sum to its window.
        share float?: Part of the window.
        per_step_ns float?: That time for a step.
        per_token_ns float?: The same for a token, of the steps whose tokens are known.
        tokens_per_s float?: Those tokens over their time.
        dur_ns int: Time in steps.
        busy_ns int: Of that, the time in which the GPU ran anything.
        gap_ns int: Time in the gaps before them.
        gap_busy_ns int: Of that, the time in which the GPU ran other work.
        replayed int: Steps that replayed a graph.
    """),
    *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket} of the time.") for bucket in BUCKETS),
)
_KIND: Final = columns("""
    device int: The GPU, as in `devices`.
    kind text: The kind of step; outside for what is before the first and after the last step.
""")

_BUCKETS: Final = [f"{bucket}_ns" for bucket in BUCKETS]

#: The tables that ``by="kind"`` and ``by="batch"`` give.
BY_KIND: Final = Table(
    TABLE.name, "All steps of one kind on a GPU; the rows of a device sum to its ledger.", (*_KIND, *_SUMS),
    when="--by kind",
)  # fmt: skip
BY_BATCH: Final = Table(
    TABLE.name,
    "The steps of one kind and size on a GPU; the rows of a device sum to its ledger.",
    (
        *_KIND,
        *columns("""
            size_above int?: Decode steps have more requests than this, others more tokens; null where none is known.
            size int?: At most so many: a power of two.
        """),
        *_SUMS,
    ),
    when="--by batch",
)

OUTSIDE: Final = "outside"
_ALL_KINDS: Final = pl.Enum((*KINDS, OUTSIDE))


def engine_steps(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The steps of serving engines that overlap the window, in full.

    Args:
        report: Where to look.
        by: ``kind`` sums them by kind, ``batch`` by kind and the power of two that holds the batch; both are of the
            window alone, and close with its ledger.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, by device and start; :data:`BY_KIND` or :data:`BY_BATCH`; empty without any step.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = report.narrow(**where)
    check_grouping(TABLE, by)
    require(report, TABLE, *DEVICE_KINDS)
    steps = _in_scope(report)
    if by is None:
        return TABLE.select(steps)
    table, keys = (BY_KIND, ["kind"]) if by == "kind" else (BY_BATCH, ["kind", "size"])
    return table.select(_summed(report, steps, keys)) if steps.height else table.empty()


def sized(steps: pl.DataFrame) -> pl.DataFrame:
    """Adds size, the power of two that holds the batch of each step, and size_above, half of that."""
    batch = pl.when(pl.col("kind") == DECODE).then("requests").otherwise("tokens").clip(1)
    bits = 64 - (batch - 1).bitwise_leading_zeros().cast(pl.Int64)
    size = pl.lit(2, dtype=pl.Int64).pow(bits).cast(pl.Int64)
    return steps.with_columns(size=size).with_columns(size_above=pl.col("size") // 2)


def _in_scope(report: Report) -> pl.DataFrame:
    """The steps that overlap the window on the devices in scope."""
    steps, (low, high) = timed_steps(report), report.scope.sides
    if report.scope.device is not None:
        steps = steps.filter(pl.col("device") == report.scope.device)
    begun = pl.coalesce("gpu_start_ns", "start_ns")
    ended = begun + pl.when(pl.col("device").is_null()).then("host_ns").otherwise("dur_ns")
    return intervals.overlapping(steps.with_columns(_begun=begun), (low, high), "_begun", ended).drop("_begun")


@once_per_process
def timed_steps(report: Report) -> pl.DataFrame:
    """The steps of all devices at any time: :data:`TABLE`, by device and start."""
    marks = engine_marks(report).with_columns(index=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("process_id"))
    if marks.is_empty():
        return TABLE.empty()
    marks = marks.with_row_index("step")
    found = _with_gaps(_on_devices(report, marks))
    busy = busy_within(
        report, found.select("device", start="gpu_start_ns", end=pl.col("gpu_start_ns") + pl.col("dur_ns"))
    )
    found = found.with_columns(busy.fill_null(0))
    found = found.with_columns(_causes(report, found))
    spent = pl.col("gap_ns").fill_null(0) + pl.col("dur_ns")
    told = found.with_columns(
        tokens_per_s=rate(pl.col("tokens"), spent), start_ns="start", host_ns=pl.col("end") - pl.col("start")
    )
    return TABLE.select(told.sort("device", "gpu_start_ns", "start_ns", "index", nulls_last=True))


def _on_devices(report: Report, marks: pl.DataFrame) -> pl.DataFrame:
    """The marks with the device, first and last time (low, high), mode and padded batch of what each launched there."""
    work = operations(report, "call_name", "call_start", "thread_id", "graph_exec_id")
    parts = [pl.DataFrame(schema={"step": pl.UInt32, "row": pl.UInt32})]
    for (process, thread), own in marks.partition_by(THREAD, as_dict=True, maintain_order=True).items():
        launched = work.filter(of_process(process), pl.col("thread_id").eq_missing(pl.lit(thread, pl.Int64)))
        launched = launched.drop_nulls("call_start")
        place = nearest_place(own.get_column("start"), launched.get_column("call_start"))
        inside = launched.with_columns(
            step=own.get_column("step").gather(place), until=own.get_column("end").gather(place)
        )
        parts.append(inside.filter(pl.col("call_start") < pl.col("until")).select("step", "row"))
    pairs = pl.concat(parts)
    inside = pairs.join(work, on="row", how="left", maintain_order="left")
    names = captured_as(report, inside.get_column("row"), "path").str.extract(CAPTURE).cast(pl.Int64)
    replayed = pl.col("call_name").cast(pl.String).str.contains(_LAUNCHES_GRAPH).fill_null(value=False)
    ran = pl.col("end") - pl.col("start")
    told = inside.with_columns(names.alias("of_capture"), ran=ran, inside=ran * replayed)
    sums = told.group_by("step", "device").agg(
        low=pl.col("start").min(),
        high=pl.col("end").max(),
        part=pl.col("inside").sum() / pl.col("ran").sum().clip(1),
        of_capture=pl.col("of_capture").max(),
        graph=pl.col("graph_exec_id").drop_nulls().last(),
    )
    mode = pl.when(pl.col("part") >= _REPLAYED).then(pl.lit(GRAPH)).when(pl.col("part") > 0).then(pl.lit(PARTLY))
    found = marks.join(
        sums.with_columns(mode=mode.otherwise(pl.lit(EAGER))), on="step", how="left", maintain_order="left"
    )
    largest = pl.when(pl.col("mode") == GRAPH).then(pl.col("requests").max().over("process_id", "graph", "kind"))
    largest = pl.when(pl.col("graph").is_not_null() & (pl.col("kind") == DECODE)).then(largest)
    return found.with_columns(padded=pl.coalesce("padded", "of_capture", largest))


def _with_gaps(steps: pl.DataFrame) -> pl.DataFrame:
    """Adds gpu_start_ns, dur_ns and gap_ns: on each device the steps are disjoint, each from where those before end."""
    line = steps.sort("device", "low", "start", nulls_last=True)
    before = pl.col("high").cum_max().shift(1).over("device")
    begun = pl.max_horizontal("low", before)
    line = line.with_columns(gpu_start_ns=pl.when(pl.col("low").is_not_null()).then(begun), before=before)
    return line.with_columns(
        dur_ns=(pl.col("high") - pl.col("gpu_start_ns")).clip(0).fill_null(0),
        gap_ns=pl.col("gpu_start_ns") - pl.col("before"),
    )


def _causes(report: Report, steps: pl.DataFrame) -> pl.DataFrame:
    """Of the gap before each step: gap_busy_ns, gap_cause and gap_culprit; null without a gap."""
    gaps = steps.select("device", start=pl.col("gpu_start_ns") - pl.col("gap_ns"), end="gpu_start_ns").with_row_index(
        "gap"
    )
    gaps = gaps.filter(pl.col("end") > pl.col("start"))
    named, pieces = [pl.DataFrame(schema=_PIECE)], ledger_pieces(report.whole)
    busy = pl.col("bucket").cast(pl.String).is_in(BUSY_BUCKETS)
    for (device,), own in gaps.partition_by("device", as_dict=True).items():
        spans, work = own.select("start", "end"), device_operations(report.whole).filter(pl.col("device") == device)
        cut = intervals.cut(
            pieces.filter(pl.col("device") == device).select("start", "end", "bucket", "culprit"), spans
        )
        # of the work in gaps the operation that began last before the end of a piece
        ran = intervals.overlapping(work, (spans.item(0, "start"), spans.item(-1, "end"))).sort("start")
        place = nearest_place(ran.get_column("start"), cut.get_column("end"), equal=False)
        cut = cut.with_columns(ran.get_column("name").gather(place))
        at = own.get_column("gap").gather(nearest_place(own.get_column("start"), cut.get_column("start")))
        culprit = pl.when(busy).then("name").otherwise("culprit").cast(pl.String).alias("culprit")
        named.append(cut.select(at, pl.col("bucket").cast(pl.String), culprit, ns=pl.col("end") - pl.col("start")))
    sums = pl.concat(named).group_by("gap", "bucket", "culprit").agg(pl.col("ns").sum())
    sums = sums.with_columns(of_bucket=pl.col("ns").sum().over("gap", "bucket"), busy=pl.col("ns") * busy)
    first = sums.sort("of_bucket", "bucket", "ns", "culprit", descending=[True, False, True, False], nulls_last=True)
    told = first.group_by("gap").agg(
        gap_busy_ns=pl.col("busy").sum(), gap_cause=pl.col("bucket").first(), gap_culprit=pl.col("culprit").first()
    )
    rows = steps.select("gap_ns").with_row_index("gap").join(told, on="gap", how="left", maintain_order="left")
    none = pl.when(pl.col("gap_ns").is_not_null()).then(0)
    return rows.select(pl.coalesce("gap_busy_ns", none), "gap_cause", "gap_culprit")


_PIECE: Final = {"gap": pl.UInt32, "bucket": pl.String, "culprit": pl.String, "ns": pl.Int64}


def _summed(report: Report, steps: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Sums of steps by device and `keys`, and what lies outside of them: all that the window has, to the nanosecond."""
    rows = sized(steps.filter(pl.col("device").is_not_null())).with_row_index("step")
    spent = _ledgers(report, rows)
    about = rows.select("step", "device", "kind", "size", "size_above", "requests", "tokens", "kv_tokens", "mode")
    rest = spent.filter(pl.col("step").is_null(), pl.col("ns") > 0).with_columns(kind=pl.lit(OUTSIDE))
    joined = pl.concat([about.join(spent.drop("device"), on="step", how="left"), rest], how="diagonal")
    tokens = pl.col("tokens")
    sums = joined.group_by("device", *keys).agg(
        pl.col("size_above").first(),
        pl.col("requests", "kv_tokens").mean(),
        pl.col("ns", "dur_ns", "gap_ns", "busy_ns", "gap_busy_ns", *_BUCKETS).sum(),
        count=pl.col("step").count().cast(pl.Int64),
        tokens=pl.when(tokens.count() > 0).then(tokens.sum()),
        known=pl.when(tokens.is_not_null()).then("ns").sum(),
        replayed=(pl.col("mode") == GRAPH).sum().cast(pl.Int64),
    )
    sums = sums.with_columns(
        share=pl.col("ns") / pl.col("ns").sum().over("device"),
        per_step_ns=pl.when(pl.col("count") > 0).then(pl.col("ns") / pl.col("count")),
        per_token_ns=pl.when(tokens > 0).then(pl.col("known") / tokens),
        tokens_per_s=rate(tokens, pl.col("known")),
    )
    return sums.sort("device", pl.col("kind").cast(_ALL_KINDS), *keys[1:], nulls_last=True)


def _ledgers(report: Report, rows: pl.DataFrame) -> pl.DataFrame:
    """Of each of the steps (with their number, step) device, buckets and ns, dur_ns, gap_ns, busy_ns and gap_busy_ns.

    Clipped to the window of the device; the rest of that has no number.
    """
    begun, ended = pl.col("gpu_start_ns"), pl.col("gpu_start_ns") + pl.col("dur_ns")
    before = begun - pl.col("gap_ns").fill_null(0)
    edges = windows(report).rename({"start": "first", "end": "last"})
    steps = rows.select("step", "device", start=begun, end=ended, gap=pl.lit(value=False))
    gaps = rows.select("step", "device", start=before, end=begun, gap=pl.lit(value=True))
    spans = pl.concat([steps, gaps]).join(edges, on="device")
    spans = spans.with_columns(start=pl.max_horizontal("start", "first"), end=pl.min_horizontal("end", "last"))
    whole = edges.select("device", start="first", end="last")
    spans = pl.concat([spans.drop("first", "last"), whole], how="diagonal").filter(pl.col("end") > pl.col("start"))
    every = window_ledgers(report, spans.select("start", "end")).rename({"device": "of"})
    found = spans.with_row_index("window").join(every, on="window").filter(pl.col("of") == pl.col("device"))
    parts = pl.when(pl.col("step").is_null()).then(pl.lit(1)).otherwise(-1)  # the whole less all steps
    rest = found.group_by("device").agg((pl.col(name) * parts).sum() for name in _BUCKETS)
    of_steps = found.drop_nulls("step").select("step", "device", "gap", *_BUCKETS)
    told = pl.concat([of_steps, rest], how="diagonal")
    busy = pl.sum_horizontal(f"{bucket}_ns" for bucket in BUSY_BUCKETS)
    every_ns, gap = pl.sum_horizontal(_BUCKETS), pl.col("gap")
    told = told.with_columns(
        ns=every_ns, dur_ns=every_ns * ~gap, gap_ns=every_ns * gap, busy_ns=busy * ~gap, gap_busy_ns=busy * gap
    )
    sums = [pl.col(*_BUCKETS, "ns", "dur_ns", "gap_ns", "busy_ns", "gap_busy_ns").sum()]
    return told.group_by("device", "step").agg(sums)
