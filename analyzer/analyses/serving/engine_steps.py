"""Each step of a serving engine on its GPU, the time before it and why, and sums by kind that close with the ledger.

A step is a range whose label is one of an engine's. On the GPU it is from the first operation that was launched in it
to the last one, less what an earlier step reaches into; between them are gaps, in which others' work may run: that of
a sampler outside of the labels, say. Before the first and after the last step is the rest of the device's window.
Definitions: docs/serving.md.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, Unpack

import polars as pl

from kanalyze import intervals, model
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, in_device_scope, operations
from kanalyze.analyses.host._call_kinds import graph_call
from kanalyze.analyses.host.engine_marks import CAPTURE, DECODE, KINDS, REPLAYED, engine_marks
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.ranges.captured import captured_as
from kanalyze.analyses.shared import analysis, statistics, threads
from kanalyze.columns import as_of, nearest_place, rate, rows_at
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

GRAPH, PARTLY, EAGER = "graph", "partly", "eager"

#: Norms that run a block for each row: PyTorch's layer_norm and rms_norm, those of vLLM, and of FlashInfer in SGLang.
_BLOCK_PER_ROW: Final = r"\bvectorized_layer_norm_kernel\b|\b(?:fused_add_)?rms_norm_kernel\b|RMSNormKernel\b"

#: Time of a device in a step, or in the gap before it, by bucket and culprit.
_PIECE: Final = {
    "device": pl.Int64, "step": pl.UInt32, "gap": pl.Boolean, "bucket": pl.String, "culprit": pl.String, "ns": pl.Int64,
}  # fmt: skip

#: Of idle time what was launched waits for is the GPU's own: between the kernels of a graph, say.
_OF_GPU: Final = (*BUSY_BUCKETS, "queued")

_STEP: Final = columns("""
    device int?: The GPU, as in `devices`: one row for each that the step launched work on; null for none.
    process_id int?: The process of the engine.
    index int: Its number among the steps of the process, from 1 on.
    engine text: Whose label it is: vLLM, SGLang, TensorRT-LLM, ATOM, xDiT, the program by --steps, or an engine without
        labels.
    kind text: prefill, decode, mixed (both), draft (of speculative decoding), diffusion (of
        pictures), idle (of no request), or other.
    label text?: The label; null where steps have none, and are learned from what they run.
    requests int?: Requests in it, as its label says; all that follow too.
    tokens int?: Tokens that it computes: a prompt's, and one for each request that generates where it says no more.
    padded int?: The batch of the graph that was replayed, by label, capture or the rows of its norms.
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
    tokens_per_s float?: Its tokens over its time and that of the gap before it, as far as these are recorded.
""")

TABLE: Final = Table(
    "engine_steps",
    "One step of a serving engine, by its label, on one GPU.",
    _STEP,
    purpose="steps of a serving engine, gaps and why",
    no_rows="no step of a serving engine is there, by label or by what runs",
    telling=("kind", "requests", "tokens", "mode", "dur_ns", "gap_ns", "gap_cause", "label"),
    groupings=("kind", "batch", "gap", "graph"),
)

_SUMS: Final = (
    *columns("""
        count int: Steps.
        mean_requests float?: Requests of a step, in the mean of those whose label says it.
        tokens int?: Tokens of all steps whose label says them.
        mean_kv_tokens float?: Tokens whose keys and values a step reads, in the mean.
        ns int: Time of the GPU: steps, and the gaps before them. All rows of a device sum to its window.
        share float?: Part of the window.
        per_step_ns float?: That time for a step, of those that the window does not cut, as far as it is recorded.
        per_token_ns float?: The same for a token, of those whose tokens are known.
        tokens_per_s float?: Those tokens over their time.
        dur_ns int: Time in steps.
        busy_ns int: Of that, the time in which the GPU ran anything.
        gap_ns int: Time in the gaps before them.
        gap_busy_ns int: Of that, the time in which the GPU ran other work.
        replayed int: Steps that replayed a graph.
    """),
    *(Column(f"{bucket}_ns", pl.Int64, f"The ledger's bucket {bucket} of the time.") for bucket in statistics.BUCKETS),
)
_KIND: Final = columns("""
    device int: The GPU, as in `devices`.
    kind text: The kind of step; outside for what is before the first and after the last step.
""")

_BUCKETS: Final = [f"{bucket}_ns" for bucket in statistics.BUCKETS]

#: Of a step, what its sums need.
_ABOUT: Final = ("size", "size_above", "requests", "tokens", "kv_tokens", "mode")

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

BY_GAP: Final = Table(
    TABLE.name,
    "What the GPU waited for, or ran, between steps: a bucket and who had it, before the steps of one kind.",
    columns("""
        device int: The GPU, as in `devices`.
        kind text: The kind of the step after the gap.
        bucket text: A bucket of the ledger.
        culprit text?: Who had it, as in `culprits`; of work the range or the kernel.
        ns int: Time; the rows of a GPU sum to the gaps between its steps.
        share float: Part of the time of all steps and gaps of the GPU.
        gaps int: In how many gaps.
    """),
    when="--by gap",
)
BY_GRAPH: Final = Table(
    TABLE.name,
    "The steps of one kind on a GPU that replayed graphs of one size, or none.",
    columns("""
        device int: The GPU, as in `devices`.
        kind text: The kind of step.
        mode text: graph, partly or eager, as of a step.
        padded int?: The size of the graph; null for steps without one, or where it is not known.
        count int: Steps.
        mean_requests float: Requests of a step, in the mean.
        least_requests int: Fewest.
        most_requests int: Most.
        dur_ns int: Time in these steps, as far as it is recorded.
        median_ns float: The median step, as far.
        per_request_ns float?: What a request more takes, by the medians at this size and at the one below.
        lost_ns int?: By that the time that padding took; null at the least size, of which nothing tells.
    """),
    when="--by graph",
    no_rows="no label says how many requests are in a step",
)

OUTSIDE: Final = "outside"


def engine_steps(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """The steps of serving engines that overlap the window, in full.

    Args:
        report: Where to look.
        by: ``kind`` sums them by kind, ``batch`` by kind and the power of two that holds the batch; both are of the
            window alone, and close with its ledger, as is ``gap``, which sums the gaps between them by what the GPU
            waited for. ``graph`` sums steps in full by the size of their graph.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, by device and start, or one of the tables beside it; empty without any step. Of a window between
        two steps the sums have what is outside of them alone.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, TABLE, by, *model.DEVICE_KINDS)
    steps = steps_in_scope(report)
    if by is None:
        return TABLE.select(steps)
    table, make = _BY[by]
    return table.select(make(report, steps)) if timed_steps(report.whole)["device"].count() else table.empty()


def sized(steps: pl.DataFrame) -> pl.DataFrame:
    """Adds size, the power of two that holds the batch of each step, and size_above, half of that."""
    batch = pl.when(pl.col("kind") == DECODE).then("requests").otherwise("tokens").clip(1)
    bits = 64 - (batch - 1).bitwise_leading_zeros().cast(pl.Int64)
    size = pl.lit(2, dtype=pl.Int64).pow(bits).cast(pl.Int64)
    return steps.with_columns(size=size).with_columns(size_above=pl.col("size") // 2)


def compared_steps(report: Report, device: int | None) -> pl.DataFrame:
    """What a comparison needs of all but the first step: kind, size, numbers of it, ns, busy_ns (both with the gap)."""
    steps = sized(steps_in_scope(report.narrow(device=device)).drop_nulls("gap_ns"))
    both = {"ns": pl.col("dur_ns") + pl.col("gap_ns"), "busy_ns": pl.col("busy_ns") + pl.col("gap_busy_ns")}
    return steps.select("kind", "size", "requests", "tokens", "kv_tokens", **both)


def steps_in_scope(report: Report) -> pl.DataFrame:
    """The :func:`timed_steps` that overlap the window on the devices in scope."""
    steps, sides = in_device_scope(report, timed_steps(report.whole)), report.scope.sides
    begun = pl.coalesce("gpu_start_ns", "start_ns")
    ended = begun + pl.when(pl.col("device").is_null()).then("host_ns").otherwise("dur_ns")
    return intervals.overlapping(steps.with_columns(_begun=begun), sides, "_begun", ended).drop("_begun")


def _gaps(report: Report, steps: pl.DataFrame) -> pl.DataFrame:
    """Sums of the gaps before steps in the window, by the kind of step, bucket and culprit."""
    pieces = step_pieces(report, steps).join(steps.select("step", "kind"), on="step")
    spent = pieces.group_by("device").agg(whole=pl.col("ns").sum())
    pieces = pieces.filter("gap")
    gaps = pl.col("step").n_unique().cast(pl.Int64)
    sums = pieces.group_by("device", "kind", "bucket", "culprit").agg(pl.col("ns").sum(), gaps=gaps)
    sums = sums.join(spent, on="device").with_columns(share=pl.col("ns") / pl.col("whole").clip(1))
    return sums.sort("device", "ns", "kind", "bucket", "culprit", descending=[False, True, False, False, False])


def _summed(report: Report, steps: pl.DataFrame, keys: Sequence[str] = ()) -> pl.DataFrame:
    """Sums of steps by device, kind and `keys`, and the rest: all that the window has, to the nanosecond."""
    rows = sized(steps.filter(pl.col("device").is_not_null()))
    spent = _ledgers(step_pieces(report, rows))
    about = rows.select("step", "device", "kind", *_ABOUT, full="dur_ns")
    rest = spent.filter(pl.col("step").is_null(), pl.col("ns") > 0).with_columns(kind=pl.lit(OUTSIDE))
    joined = pl.concat([about.join(spent.drop("device"), on="step", how="left"), rest], how="diagonal")
    joined = joined.with_columns(pl.col("ns", "dur_ns").fill_null(0))  # of no length, without a gap
    tokens, uncut = pl.col("tokens"), pl.col("dur_ns") == pl.col("full")
    shown = pl.col("ns") - pl.col("unknown_ns").fill_null(0)
    known = uncut & tokens.is_not_null()
    sums = joined.group_by("device", "kind", *keys).agg(
        pl.col("size_above").first(),
        pl.col("requests", "kv_tokens").mean().name.prefix("mean_"),
        pl.col("ns", "dur_ns", "gap_ns", "busy_ns", "gap_busy_ns", *_BUCKETS).sum(),
        count=pl.col("step").count().cast(pl.Int64),
        tokens=pl.when(tokens.count() > 0).then(tokens.sum()),
        per_step_ns=pl.when(uncut).then(shown).mean(),
        known=pl.when(known).then(shown).sum(),
        told=pl.when(known).then("tokens").sum(),
        replayed=(pl.col("mode") == GRAPH).sum().cast(pl.Int64),
    )
    sums = sums.with_columns(
        share=pl.col("ns") / pl.col("ns").sum().over("device"),
        per_token_ns=pl.when(pl.col("told") > 0).then(pl.col("known") / pl.col("told")),
        tokens_per_s=rate(pl.when(tokens.is_not_null()).then("told"), pl.col("known")),
    )
    return sums.sort("device", pl.col("kind").cast(pl.Enum((*KINDS, OUTSIDE))), *keys, nulls_last=True)


def _ledgers(pieces: pl.DataFrame) -> pl.DataFrame:
    """Sums of :data:`_PIECE` by device and step: buckets, ns, and parts of steps and gaps; unseen_ns is no gap's."""
    ns, gap, busy = pl.col("ns"), pl.col("gap"), pl.col("bucket").is_in(BUSY_BUCKETS)
    parts = {"dur_ns": ~gap, "gap_ns": gap, "busy_ns": busy & ~gap, "gap_busy_ns": busy & gap}
    parts["unseen_ns"] = (pl.col("bucket") == "unknown") & ~gap
    parts |= {f"{bucket}_ns": pl.col("bucket") == bucket for bucket in statistics.BUCKETS}
    return pieces.group_by("device", "step").agg(ns.sum(), **{name: ns.filter(of).sum() for name, of in parts.items()})


#: What the groupings give.
_BY: Final[dict[str, tuple[Table, Callable[[Report, pl.DataFrame], pl.DataFrame]]]] = {
    "kind": (BY_KIND, _summed),
    "batch": (BY_BATCH, partial(_summed, keys=("size",))),
    "gap": (BY_GAP, _gaps),
    "graph": (BY_GRAPH, lambda _, steps: graph_sizes(steps)),
}


def graph_sizes(steps: pl.DataFrame) -> pl.DataFrame:
    """Steps of one device and kind by mode and size of graph: how many, their requests and times, and lost_ns.

    What padding took of a step is the median time at its size less what it would take at its requests: on the line
    between the medians at that size and at the one below. Null for the least size, of which nothing tells. Times are
    those that are recorded of steps.
    """
    rows = steps.filter(pl.col("device").is_not_null() & pl.col("requests").is_not_null())
    rows = rows.with_columns(pl.col("dur_ns") - pl.col("unseen_ns").fill_null(0))
    size = pl.when(pl.col("mode") == GRAPH).then("padded").alias("padded")
    sums = rows.group_by("device", "kind", "mode", size).agg(
        count=pl.len().cast(pl.Int64),
        mean_requests=pl.col("requests").mean(),
        least_requests=pl.col("requests").min(),
        most_requests=pl.col("requests").max(),
        added=(pl.col("padded") - pl.col("requests")).sum(),
        dur_ns=pl.col("dur_ns").sum(),
        median_ns=pl.col("dur_ns").median(),
    )
    keys = ["device", "kind", "mode"]
    sums = sums.sort(*keys, "padded", descending=[False, False, True, False], nulls_last=True)
    longer, larger = (pl.col(name) - pl.col(name).shift(1).over(keys) for name in ("median_ns", "padded"))
    per, lost = longer.clip(0) / larger, (longer.clip(0) * pl.col("added") / larger).cast(pl.Int64)
    return sums.with_columns(per_request_ns=per, lost_ns=lost)


@analysis.once_per_process
def timed_steps(report: Report) -> pl.DataFrame:
    """The steps of all devices at any time, by device and start, with their row in `step`.

    Columns: those of the table engine_steps, and gpu_ns: of the time of the step and the gap before it, the GPU's own.
    """
    marks = engine_marks(report).with_columns(index=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("process_id"))
    steps = _with_gaps(_on_devices(report, marks.with_row_index("mark"))).with_row_index("step")
    pieces = step_pieces(report, steps) if steps.height else pl.DataFrame(schema=_PIECE)
    of_gpu = pl.sum_horizontal(f"{bucket}_ns" for bucket in _OF_GPU)
    sums = _ledgers(pieces).select("step", "busy_ns", "gap_busy_ns", "unknown_ns", "unseen_ns", gpu_ns=of_gpu)
    timed = steps.join(sums, on="step", how="left", maintain_order="left")
    gaps = pieces.filter("gap").with_columns(of_bucket=pl.col("ns").sum().over("step", "bucket"))
    down = [True, False, True, True]
    gaps = gaps.sort("of_bucket", "bucket", "ns", "culprit", descending=down, nulls_last=True)
    causes = gaps.unique("step", keep="first").select("step", gap_cause="bucket", gap_culprit="culprit")
    timed = timed.join(causes, on="step", how="left", maintain_order="left")
    spent = pl.col("gap_ns").fill_null(0) + pl.col("dur_ns") - pl.col("unknown_ns").fill_null(0)
    return timed.with_columns(
        pl.col("busy_ns", "gpu_ns").fill_null(0),
        gap_busy_ns=pl.when(pl.col("gap_ns").is_not_null()).then(pl.col("gap_busy_ns").fill_null(0)),
        tokens_per_s=rate(pl.col("tokens"), spent),
        host_ns=pl.col("end") - pl.col("start"),
        start_ns="start",
    )


def _on_devices(report: Report, marks: pl.DataFrame) -> pl.DataFrame:
    """The marks with the device, first and last time (low, high), mode and padded batch of what each launched there."""
    work = operations(report, "name", "call_name", "call_start", "thread_id", "graph_exec_id", "grid_x")
    work, spans = (rows.with_columns(pl.col(threads.THREAD).fill_null(-1)) for rows in (work, marks))
    launched = work.drop_nulls("call_start")
    place = as_of(launched.select(*threads.THREAD, at="call_start"), spans.select(*threads.THREAD, at="start"))
    inside = launched.hstack(rows_at(spans.select("mark", until="end"), place))
    inside = inside.filter(pl.col("call_start") < pl.col("until"))
    names = captured_as(report, inside.get_column("row"), "path").str.extract(CAPTURE).cast(pl.Int64)
    replayed = graph_call(report, inside.get_column("call_name"))
    by_row = pl.col("name").cast(pl.String).str.contains(_BLOCK_PER_ROW)
    ran = pl.col("end") - pl.col("start")
    timed = inside.with_columns(names.alias("of_capture"), ran=ran, inside=ran * replayed)
    sums = timed.group_by("mark", "device").agg(
        low=pl.col("start").min(),
        high=pl.col("end").max(),
        part=pl.col("inside").sum() / pl.col("ran").sum().clip(1),
        of_capture=pl.col("of_capture").max(),
        rows=pl.col("grid_x").filter(by_row).min().cast(pl.Int64),
        graph=pl.col("graph_exec_id").drop_nulls().last(),
    )
    mode = pl.when(pl.col("part") >= REPLAYED).then(pl.lit(GRAPH)).when(pl.col("part") > 0).then(pl.lit(PARTLY))
    sums = sums.with_columns(mode=mode.otherwise(pl.lit(EAGER)))
    return _padded(report, marks.join(sums, on="mark", how="left", maintain_order="left"))


def _padded(report: Report, steps: pl.DataFrame) -> pl.DataFrame:
    """The steps with padded, the batch of the graph that each replayed, as far as that is known.

    By label; by the mark around the capture; by the rows of its norms, where a request is a token, and steps without a
    graph have as many rows as tokens; or as the next captured size, where that is one size for all that replayed the
    graph, and for no other graph.
    """
    requests, keys = pl.col("requests"), ("process_id", "device", "kind")
    sizes = captured_sizes(report).alias("above")
    above = sizes.gather(sizes.search_sorted(steps.get_column("requests")).replace(len(sizes), None))
    replays = (pl.col("mode") == GRAPH) & (pl.col("kind") == DECODE)
    fits = pl.when(pl.col("mode") == EAGER).then(pl.col("rows") == pl.col("tokens"))
    counts = fits.all().over(keys[:2]) & fits.any().over(keys[:2])
    rows = pl.when(counts, pl.col("rows") >= requests, pl.col("tokens") == requests)
    one_size = pl.col("graph").is_not_null() & (pl.col("above").n_unique().over(*keys, "graph") == 1)
    one_graph = pl.col("graph").drop_nulls().n_unique().over(*keys, "above") == 1
    batch = pl.coalesce(rows.then("rows"), pl.when(one_size & one_graph).then("above"))
    return steps.with_columns(above).with_columns(
        padded=pl.coalesce("padded", "of_capture", pl.when(replays).then(batch))
    )


def captured_sizes(report: Report) -> pl.Series:
    """Sizes of graphs captured under a mark such as ``capture_64_decode``, rising."""
    marks = report.whole.kind("range").get_column("name").unique().cast(pl.String)
    return marks.str.extract(CAPTURE).cast(pl.Int64).drop_nulls().unique().sort()


def _with_gaps(steps: pl.DataFrame) -> pl.DataFrame:
    """Adds gpu_start_ns, dur_ns and gap_ns: on each device the steps are disjoint, each from where those before end."""
    line = steps.sort("device", "low", "start", nulls_last=True)
    before = pl.col("high").cum_max().shift(1).over("device")
    begun = pl.when(pl.col("low").is_not_null()).then(pl.max_horizontal("low", before))
    length, gap = pl.col("high") - pl.col("begun"), pl.col("begun") - before
    line = line.with_columns(begun=begun).with_columns(dur_ns=length.clip(0).fill_null(0), gap_ns=gap)
    return line.rename({"begun": "gpu_start_ns"}).sort("device", "gpu_start_ns", "start", "index", nulls_last=True)


def step_pieces(report: Report, steps: pl.DataFrame) -> pl.DataFrame:
    """What the GPU did in its window, and why it was idle, by step (step, device, gpu_start_ns, dur_ns, gap_ns).

    Gives :data:`_PIECE`: step and gap are null of what is in none of the steps, nor before one.
    """
    begun = pl.col("gpu_start_ns")
    parts = {False: (begun, begun + pl.col("dur_ns")), True: (begun - pl.col("gap_ns"), begun)}
    spans = pl.concat(
        steps.select("device", "step", start=start, end=end, gap=pl.lit(gap)) for gap, (start, end) in parts.items()
    )
    spans = spans.filter(pl.col("end") > pl.col("start")).sort("start").with_row_index("span")
    named = [pl.DataFrame(schema=_PIECE)]
    for (device,), pieces in ledger_pieces(report).partition_by("device", as_dict=True, maintain_order=True).items():
        of_device = pl.col("device") == device
        cut = threads.overlaid(pieces, spans.filter(of_device), "span")
        # of work the operation that began last before the end of a piece
        ran = device_operations(report.whole).filter(of_device).sort("start")
        cut = cut.with_columns(
            ran.get_column("name").gather(nearest_place(ran.get_column("start"), cut.get_column("end"), equal=False)),
            pl.col("bucket").cast(pl.String),
            *rows_at(spans.select("step", "gap"), cut.get_column("span")),
            ns=pl.col("end") - pl.col("start"),
        )
        culprit = pl.when(pl.col("bucket").is_in(BUSY_BUCKETS)).then("name").otherwise("culprit").cast(pl.String)
        named.append(cut.with_columns(culprit=culprit).select(list(_PIECE)))
    return pl.concat(named).group_by(list(_PIECE)[:-1]).agg(pl.col("ns").sum())
