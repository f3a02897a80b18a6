"""Host time chosen by operators, what of the report lies in it, and findings on that; copies of the program.

A rule on host time chooses operators, calls or functions, asks what lies :func:`within` their time, and gives a row of
words to :func:`on_time`. Intervals of the trace beside a report are placed between launches that both have.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device import _operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import on_gpu, rules, say
from kanalyze.analyses.idle import _attribution, code
from kanalyze.analyses.operators._host_names import ThreadPair, host_names, placed, surroundings
from kanalyze.analyses.operators._host_tree import NODE, operator_tree
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared import analysis, statistics
from kanalyze.analyses.shared.analysis import named_ranges
from kanalyze.analyses.shared.threads import THREAD, key_columns
from kanalyze.analyses.streams.concurrency import STREAM
from kanalyze.columns import beside, gathered, having, in_order, nearest, parts_by, positions, rate_of, rows_at, sure
from kanalyze.report import Report

SPAN: Final = (*THREAD, "start", "end")  # a span of a thread
IS_NODE: Final = pl.col("name").str.starts_with(NODE)  # whether operators are autograd's runs of a node
BEGINS_BACKWARD: Final = "aten::ones_like"  # makes the gradient of a loss, with which each backward pass begins
#: Operators that multiply by a matrix, which may be a layer's weights.
MULTIPLIES: Final = r"^aten::(?:linear|addmm|mm|matmul|bmm|baddbmm|einsum)$"
#: Operators that sort the entries of sparse tensors by index, and add those of one index together.
COALESCING: Final = ("aten::coalesce", "aten::_coalesce")
SPARED: Final = 0.75  # of a copy of float32 in place of bytes so much is spared
SCALAR_BYTES: Final = 16  # the size of the largest number that PyTorch reads as one


@analysis.once_per_process
def traced(report: Report) -> Report | None:
    """The report itself if it has operators, else the trace beside it if that names its host time, else None."""
    if report.kind("op").height:
        return report
    other = report.beside()
    return other if other is not None and host_names(report).threads and other.kind("op").height else None


@analysis.once_per_process
def operators(report: Report) -> pl.DataFrame:
    """Operators here or in the trace beside, in preorder: with row and parent, and called (if a call is in it)."""
    if (other := traced(report)) is None:
        return pl.DataFrame(schema=_SCHEMA)
    tree = operator_tree(other).rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    before = pl.concat([pl.Series([0]), tree.select((pl.col("kind") == "api").cast(pl.Int64).cum_sum()).to_series()])
    calls = before.gather(tree.get_column("stop")) - before.gather(tree.get_column("row"))
    every = tree.with_columns(called=calls > 0).filter(pl.col("kind") == "op")
    every = beside(every, other.table("op_detail"), *_NUMBERS, *_INPUTS)
    return every.with_columns(pl.col("name").cast(pl.String)).select(*_SCHEMA)


#: The operator to which autograd gives the gradient of a parameter, once it is complete: its first input.
ACCUMULATES: Final = "torch::autograd::AccumulateGrad"


def updated(report: Report) -> pl.DataFrame:
    """When an optimizer updated parameters, by the ranges of PyTorch in the :func:`traced` report: as `spans_named`."""
    trace = traced(report) or report
    return spans_named(r"^Optimizer\.step#", trace.kind("op"), trace.kind("range"))


@analysis.once_per_process
def forward(report: Report) -> pl.DataFrame:
    """The :func:`operators` that no node of autograd is around, by thread, in preorder."""
    within = pl.when(IS_NODE).then("stop").otherwise(0).cum_max().over(THREAD)
    return operators(report).sort(*THREAD, "row").filter(within <= pl.col("row"))


def runs_backward(report: Report) -> bool:
    """Whether autograd runs nodes among the :func:`operators`, as in a training."""
    return bool(operators(report).select(IS_NODE.any()).item())


def with_gradients(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The `spans` with the nodes of their :func:`gradients`: :data:`SPAN`."""
    return pl.concat([spans.select(SPAN), gradients(report, spans)])


def gradients(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The nodes of autograd of the :func:`operators` that begin in `spans` (of :data:`SPAN`): :data:`SPAN`."""
    forward_of = _before_nodes(report)
    own = forward_of.filter(on_gpu.is_inside(forward_of.select(*THREAD, at="start"), spans.select(SPAN)))
    nodes = operators(report).filter(IS_NODE)
    return nodes.join(own.select(_OF_NODE), on=_OF_NODE, how="semi", maintain_order="left").select(SPAN)


_OF_NODE: Final = ("process_id", "sequence_number")


@analysis.once_per_process
def _before_nodes(report: Report) -> pl.DataFrame:
    """The :func:`operators` whose numbers nodes of autograd have.

    Each thread counts for itself: those whose number operators of several threads have are left out.
    """
    every = operators(report).drop_nulls("sequence_number")
    numbered = every.filter(~IS_NODE & (pl.col("forward_thread_id").fill_null(0) <= 0))
    # what makes no node has the number of the next one
    last = numbered.filter(pl.col("row") == pl.col("row").max().over(*THREAD, "sequence_number"))
    return last.filter(pl.len().over(_OF_NODE) == 1)


def with_forward_line(report: Report, finding: rules.Finding) -> rules.Finding:
    """The finding, on kernels that nodes of autograd launch, with the line of what these are nodes of.

    That is the line of the nodes that launch half of its kernels' time, the longest ones.
    """
    if not finding.line or finding.claims is None or not runs_backward(report):
        return finding
    claims = finding.claims.select("start", "end").unique()
    work = _operations.exclusive_operations(report).join(claims, on=["start", "end"], how="semi")
    each, ns = on_gpu.with_operators(report, work), pl.col("exclusive_ns")
    sums = each.group_by("node_start").agg(ns.sum()).drop_nulls().sort(ns, "node_start", descending=[True, False])
    most = sums.filter(2 * (ns.cum_sum() - ns) < statistics.total(work, "exclusive_ns"))
    if 2 * statistics.total(most, "exclusive_ns") < max(statistics.total(work, "exclusive_ns"), 1):
        return finding
    nodes = operators(report).filter(IS_NODE, pl.col("start").is_in(most.get_column("node_start").implode()))
    line = site_of(report, _before_nodes(report).join(nodes, on=_OF_NODE, how="semi"))
    return finding._replace(line=line) if line else finding


def with_nodes(report: Report, operators: pl.DataFrame) -> pl.DataFrame:
    """Adds to some of the :func:`operators` whether they make a node of autograd: what is later has a later number."""
    numbers = forward(report).select(*THREAD, behind="row", later="sequence_number").drop_nulls("later")
    line = nearest(operators, numbers, ("stop", "behind"), THREAD, "after").drop("behind")
    made = (pl.col("later") > pl.col("sequence_number")).fill_null(value=False)
    return line.with_columns(makes_node=made).drop("later")


_INPUTS: Final = ("input_types", "input_shapes", "input_strides", "input_values")
_NUMBERS: Final = ("sequence_number", "forward_thread_id")
_SCHEMA: Final = {
    **dict.fromkeys(("row", "parent", "stop"), pl.Int64),
    "name": pl.String,
    **dict.fromkeys(("start", "end", *THREAD), pl.Int64),
    "called": pl.Boolean,
    **dict.fromkeys(_NUMBERS, pl.Int64),
    **dict.fromkeys(_INPUTS, pl.Categorical),
}


def sides(shapes: pl.Expr, which: int = 0) -> pl.Expr:
    """The shape of one of an operator's inputs, of texts such as ``[[9, 16], [9], []]``; null for none."""
    texts = shapes.cast(pl.String).str.extract_all(r"\[[\d, ]*\]")
    return texts.list.get(which, null_on_oob=True).str.extract_all(r"\d+").cast(pl.List(pl.Float64))


def inputs(shapes: str) -> list[list[int]]:
    """The shapes of the tensors among an operator's inputs, of lists of tensors too, of a text as :func:`sides`."""
    return [[*map(int, re.findall(r"\d+", one))] for one in re.findall(r"\[[\d, ]*\]", shapes)]


def side(which: int, at: int) -> pl.Expr:
    """One side of the shape of one of the inputs of operators (input_shapes); null for none."""
    return sides(pl.col("input_shapes"), which).list.get(at, null_on_oob=True)


def elements(which: int = 0) -> pl.Expr:
    """How many elements one of the inputs of operators (input_shapes) has."""
    return sides(pl.col("input_shapes"), which).list.eval(pl.element().product()).list.first()


def each_input(operators: pl.DataFrame) -> pl.DataFrame:
    """The tensors that operators take, also in lists: row, :data:`THREAD`, sides, and size (how many elements)."""
    texts = pl.col("input_shapes").cast(pl.String).str.extract_all(r"\[[\d, ]+\]")
    given = operators.select("row", *THREAD, text=texts).explode("text")
    given = given.select("row", *THREAD, sides=pl.col("text").str.extract_all(r"\d+").cast(pl.List(pl.Float64)))
    return given.with_columns(size=pl.col("sides").list.eval(pl.element().product()).list.first())


def extended(report: Report) -> pl.DataFrame:
    """The concatenations of which the first tensor is of one before, and is taken by nothing else: SPAN and size.

    That is told by numbers of elements: no other operator takes a tensor of so many until a concatenation makes one
    again.
    """
    joins = pl.col("name").str.contains("^aten::(?:cat|concat)$")
    every = operators(report).sort(*THREAD, "row")
    within = pl.when(joins).then("stop").otherwise(0).cum_max().shift(1, fill_value=0).over(THREAD)
    every = every.filter(within <= pl.col("row"))
    given = each_input(every.filter(pl.col("input_shapes").is_not_null()))
    of_joins = pl.col("row").is_in(every.filter(joins)["row"].implode())
    sums = given.filter(of_joins).group_by("row", *THREAD).agg(first=pl.col("size").first(), size=pl.col("size").sum())
    keys = ["row", *THREAD, "size"]
    takes = [given.filter(~of_joins).select(keys, made=False), sums.select(keys, made=True)]
    alone = pl.col("made") & pl.col("made").shift(-1, fill_value=True).over(*THREAD, "size")
    events = pl.concat(takes).sort("row").with_columns(made=alone)
    first = nearest(sums.select("row", *THREAD, size="first"), events, ("row", "row"), keys[1:], "strictly before")
    return every.join(first.filter("made").select("row", "size"), on="row").select(*SPAN, "size")


def names_most(report: Report) -> bool:
    """Whether operators launch the kernels, but for a twentieth of their time: others may take any tensor."""
    work = on_gpu.with_operators(report, _operations.exclusive_operations(report).filter(kind="kernel"))
    unnamed = work.filter(pl.col("inner").is_null())
    return statistics.total(unnamed, "exclusive_ns") <= 0.05 * statistics.total(work, "exclusive_ns")


class Within(NamedTuple):
    """What of a report lies in some time of its operators."""

    host: pl.DataFrame  # that time in the report's window: process_id, thread_id, start, end
    spans: pl.DataFrame  # all of that time, as the host runs ahead of the window's operations
    mending: Mending  # the change of leaving it out, with the calls in the window, and the operations launched by it


def within(report: Report, spans: pl.DataFrame) -> Within:
    """What of the report lies in `spans` (:data:`SPAN`; disjoint) of the :func:`traced` report, in its window."""
    known = traced(report) in (report.whole, None)
    return own_within(report, spans if known else _placed(report, spans.select(SPAN)))


def works_within(report: Report, spans: pl.DataFrame) -> Iterator[on_gpu.Work]:
    """The kernels that are launched :func:`within` some spans, by device; nothing of a device without any."""
    if spans.height:
        launched = pl.col("row").is_in(within(report, spans).mending.gone.implode())
        yield from on_gpu.works(report, _operations.exclusive_operations(report).filter(launched, kind="kernel"))


def own_within(report: Report, spans: pl.DataFrame) -> Within:
    """The same of spans of the report itself."""
    spans = spans.select(SPAN)
    host = intervals.overlapping(spans, report.scope.sides)
    launched = on_gpu.nothing_within(report, spans).gone
    own = _operations.exclusive_operations(report).get_column("row")
    gone = launched.filter(launched.is_in(own.implode()))
    return Within(host, spans, on_gpu.nothing_within(report, host)._replace(gone=gone))


def site_of(report: Report, spans: pl.DataFrame) -> str:
    """The site, or the lines if recorded, of most of some `spans` (as of :func:`within`); empty if of no half."""
    return say.main_site(report, within(report, spans).host.select(*THREAD, at="start"))


def by_span(report: Report, inside: Within, *facts: str) -> pl.DataFrame:
    """The operations that leaving some time out takes away, with `facts` and the span (its place) of their launch."""
    work = _operations.exclusive_operations(report, *facts, "call_start", "thread_id")
    work = work.filter(pl.col("row").is_in(inside.mending.gone.implode())).drop_nulls("call_start")
    begun = inside.host.with_row_index("span").select(*THREAD, "span", since="start")
    return nearest(work, begun, ("call_start", "since"), THREAD).drop_nulls("span")


def _placed(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The `spans` of the trace beside the report as time of the report, joined by thread.

    In proportion, what lies between two launches that follow each other in both, and launches whose partners begin in a
    span. Of a trace of few steps the time that it names, and launches of which most in the same surroundings do so.
    """
    aligned, threads = host_names(report), parts_by(spans, THREAD)
    span_sets = [placed(report, spans) if aligned.recurring else spans.clear()]
    for pair in aligned.threads:
        if (thread_spans := threads.get(pair.right)) is None:
            continue
        place = on_gpu.span_of(pair.others.select(at="start"), thread_spans.select("start", "end"))
        if aligned.recurring:
            there = pl.DataFrame([surroundings(pair.others), place.is_not_null().alias("inside")]).drop_nulls("around")
            most = there.group_by("around").agg(pl.col("inside").mean() > 1 / 2).filter("inside").get_column("around")
            parts = [pair.calls.filter(sure(surroundings(pair.calls).is_in(most.implode())))]
        else:
            parts = [_between_launches(pair, thread_spans), _with_next(pair, place)]
        span_sets += [part.with_columns(**key_columns(pair.left)).select(SPAN) for part in parts]
    return intervals.union_by(pl.concat(span_sets), THREAD)


def _between_launches(pair: ThreadPair, spans: pl.DataFrame) -> pl.DataFrame:
    """Parts of `spans` of the trace between two launches that follow each other in both: start, end here."""
    follow = (pl.col(name).shift(-1) == pl.col(name) + 1 for name in ("left", "right"))
    left, right = pair.pairs.filter(pl.all_horizontal(*follow)).select("left", "right")
    here, there = (
        [calls.get_column("end").gather(at), calls.get_column("start").gather(at + 1)]
        for calls, at in ((pair.calls, left), (pair.others, right))
    )
    times = pl.DataFrame({"here": here[0], "until": here[1], "start": there[0], "end": there[1], "there": there[0]})
    times = times.filter((pl.col("end") > pl.col("start")) & (pl.col("until") > pl.col("here")))
    scale = (pl.col("until") - pl.col("here")) / (pl.col("end") - pl.col("start"))
    inside = intervals.cut(times.with_columns(scale=scale), intervals.union(spans))
    return inside.select(((pl.col("start", "end") - pl.col("there")) * pl.col("scale")).cast(pl.Int64) + pl.col("here"))


def _with_next(pair: ThreadPair, place: pl.Series) -> pl.DataFrame:
    """Launch calls whose partners have a `place` in a span, each up to the end of the next one in the same span."""
    rows = pair.pairs.with_columns(place.gather(pair.pairs.get_column("right")).alias("place"))
    follows = pl.col("place").shift(-1) == pl.col("place")
    rows = rows.with_columns(last=pl.when(follows).then(pl.col("left").shift(-1)).otherwise("left")).drop_nulls("place")
    starts, ends = pair.calls.get_column("start"), pair.calls.get_column("end")
    return pl.DataFrame([starts.gather(rows.get_column("left")), ends.gather(rows.get_column("last"))])


_LAUNCHED: Final = ("launches", "to_host", "to_device", "to_host_bytes", "to_device_bytes", "joined")


@analysis.once_per_process
def outermost(report: Report) -> pl.DataFrame:
    """The :func:`operators` of PyTorch that are in no other one of these, with what they launch.

    That is the numbers of operations (launches), of copies (to_host, to_device) with their bytes and of tensors that
    are joined, and whether they are `aside`, another cause's: in a loader, an optimizer or a compiler.
    """
    every = operators(report).filter(pl.col("name").str.starts_with("aten::"))
    top = every.filter(pl.col("row") >= pl.col("stop").cum_max().shift(1, fill_value=0))
    other = traced(report)
    if other is None or top.is_empty():
        return top.with_columns(pl.lit(0).alias(name) for name in _LAUNCHED).with_columns(aside=pl.lit(value=False))
    work = _operations.operations(other, "call_start", "thread_id", "size_bytes", "grid_y").drop_nulls("call_start")
    place = on_gpu.span_of(work.select(*THREAD, at="call_start"), top.select(SPAN))
    host, device = (pl.col("detail") == way for way in (TO_HOST, TO_DEVICE))
    launched = work.with_columns(gathered(top.get_column("row"), place).alias("within")).drop_nulls("within")
    # kernels of concatenations, of which each column of blocks copies a tensor
    launched = launched.with_columns(joins=having(launched.get_column("name"), "CatArrayBatchedCopy"))
    bytes_of = pl.col("size_bytes").cast(pl.Int64)
    sums = launched.group_by(row="within").agg(
        launches=pl.len(),
        to_host=host.sum(),
        to_device=device.sum(),
        to_host_bytes=bytes_of.filter(host).sum(),
        to_device_bytes=bytes_of.filter(device).sum(),
        joined=pl.col("grid_y").filter("joins").sum(),
    )
    top = top.join(sums, on="row", how="left").with_columns(pl.col(_LAUNCHED).fill_null(0).cast(pl.Int64)).sort("row")
    tables = (other.kind(kind) for kind in ("range", "op"))
    around = spans_named(r"DataLoader|^Optimizer\.|[Cc]ompile|[Dd]ynamo|[Ii]nductor", *tables)
    return top.with_columns(aside=on_gpu.is_inside(top.select(*THREAD, at="start"), around))


def with_code(report: Report) -> pl.DataFrame:
    """The :func:`outermost` operators by thread and time, each with Python before it, no longer than it takes."""
    start, end = pl.col("start"), pl.col("end")
    code = pl.min_horizontal((start - end.shift(1)).over(THREAD).fill_null(0), end - start)
    return outermost(report).sort(*THREAD, "start").with_columns(start=start - code)


@analysis.once_per_process
def working(report: Report) -> pl.DataFrame:
    """Those of the :func:`outermost` operators that launch something, by thread and time."""
    return outermost(report).filter(pl.col("launches") > 0).sort(*THREAD, "start")


@analysis.once_per_process
def working_forward(report: Report) -> pl.DataFrame:
    """The :func:`working` operators but those that autograd runs."""
    return working(report).filter(pl.col("row").is_in(forward(report).get_column("row").implode()))


def wants_planes(report: Report) -> bool:
    """Whether a normalization of instances or groups, which makes images NCHW, follows a usual part of convolutions."""
    names = outermost(report).get_column("name")
    planes = int(names.str.contains(r"^aten::(?:instance|group)_norm$").sum())  # whose kernels take NCHW alone
    layers = int(names.str.contains(r"^aten::conv(?:_transpose)?\dd$").sum())
    return planes > int((names == "aten::batch_norm").sum()) and planes >= 0.25 * layers


def spans_named(pattern: str, *tables: pl.DataFrame) -> pl.DataFrame:
    """The events of some tables whose names have a pattern: :data:`SPAN` and name."""
    own = (events.filter(having(events.get_column("name"), pattern)) for events in tables)
    return pl.concat(events.select(*THREAD, **intervals.OF_EVENTS, name="name") for events in own)


#: What torch.compile calls the rest of a function that it could not compile beyond a line.
_RESUMES: Final = r"torch_dynamo_resume_in_(.+)_at_(\d+)"


@analysis.once_per_process
def resumed_lines(report: Report) -> pl.DataFrame:
    """Lines of functions that go on after a break of their graph: :data:`SPAN`, file, function, whole, at.

    They are of the function of the name `whole`, whose graph breaks at the line `at`.
    """
    lines, function = analysis.source_lines(report), pl.col("function").cast(pl.String)
    lines = lines.filter(having(lines.get_column("function"), _RESUMES)).with_columns(**intervals.OF_EVENTS)
    whole, at = function.str.replace(_RESUMES, "$1"), function.str.extract(_RESUMES, 2).cast(pl.Int64)
    return lines.select(*SPAN, "file", function, whole=whole, at=at).sort(*THREAD, "start")


@analysis.once_per_process
def launched(report: Report) -> pl.DataFrame:
    """The first operation of each launch call by thread and time.

    Columns: process_id, thread_id, row, kind, name, way (of a copy), bytes (0 if unknown), call_start, call_end.
    """
    calls = _operations.launch_calls(report, "thread_id", "call_start").with_columns(
        positions(_operations.launch_rows(report), _operations.launching_rows(report)).alias("row")
    )
    parts = parts_by(calls.drop_nulls("thread_id"), THREAD).values()
    rows = pl.concat([calls.clear(), *(in_order(part, "call_start") for part in parts)]).get_column("row")
    facts = (*THREAD, "row", "kind", "name", "detail", "size_bytes", "call_start", "call_end")
    line = _operations.facts_of(report, rows, *facts)
    return line.with_columns(pl.col("size_bytes").fill_null(0)).rename({"detail": "way", "size_bytes": "bytes"})


def with_next(line: pl.DataFrame, chosen: pl.Expr) -> pl.DataFrame:
    """The `chosen` rows of :func:`launched`, with the columns of the next row of the thread as next_row, …; or null."""
    at = line.select(chosen.fill_null(value=False).arg_true()).to_series()
    after = rows_at(line, (at + 1).set(at + 1 == line.height, None)).rename(lambda name: f"next_{name}")
    same = pl.all_horizontal(pl.col(key).eq_missing(pl.col(f"next_{key}")) for key in THREAD)
    return pl.concat([line[at], after], how="horizontal").with_columns(pl.when(same).then(pl.col("^next_.*$")))


def kernels_named(line: pl.DataFrame, pattern: str) -> pl.Series:
    """Whether each of some operations (kind, name) is a kernel whose name has a pattern; each name is read once."""
    return sure(line.get_column("kind") == "kernel") & having(line.get_column("name"), pattern)


def on_time(
    report: Report,
    name: str,
    inside: Within,
    mending: Mending | Callable[[Report], Mending | None] | None = None,
    /,
    **others: Any,  # noqa: ANN401 - as `told`
) -> rules.Findings:
    """At most one finding per device on some time of the host, and what lies in it; by default, all of it is gone.

    In a window of iterations there are as many spans of it as half of these at least, or they fill half of the window.
    At stake is the time in which the device idles in them, or works for them, with which the sentence goes on. Among
    the figures are `times`, how many spans there are, and `launches`, of the operations in them.
    """
    number = inside.host.height
    figures = {"times": number, "launches": len(inside.mending.gone), **others}
    work = _operations.exclusive_operations(report).filter(pl.col("row").is_in(inside.mending.gone.implode()))
    idle = _attribution.idle_within(report, inside.host)
    for device, low, high in windows(report).iter_rows():
        held = intervals.length(intervals.clip(inside.host, low, high))
        # the part of a window that work of the host fills, of which it need not be much in each iteration
        if number < max(say.fewest_in(report), 1) and held < 0.5 * (high - low):
            continue
        # what is queued waits for other work of the device, wherever the host is
        claims = (idle[device].filter(pl.col("bucket") != "queued"), work.filter(device=device))
        one = say.told(report, name, device, claims, mending=mending or inside.mending, **figures)
        idles = f"GPU {device} idles, or works for it, for {say.per_iteration(report).time(one.at_stake_ns)}."
        yield one._replace(text=f"{one.text}: {idles}")


#: Kernels of a pass whose result is the next one's input, those of them that draw it, and those of a training, which a
#: larger batch changes.
CHOOSES: Final = r"(?i)argmax|ArgMax|multinomial|topk|radixSort|gatherTopK|distribution_"
DRAWS: Final = r"multinomial|distribution_"
UPDATES: Final = r"multi_tensor_apply|[Aa]dam|[Ss]gd|SGD|LAMB|[Bb]ackward|dgrad|wgrad|bprop|_bwd"


def filling(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Adds to operations whether each is a kernel of a `layer` with weights, and what `part` of the GPU it fills."""
    limits = report.devices.select("sm_count", "max_warps_per_sm", "threads_per_warp").drop_nulls()
    processors, warps, threads = limits.row(0) if limits.height else (1, 1, 1)
    # families of kernels of which an SM runs a block or two at a time; others fill it with threads
    layer = on_gpu.decoded_as(work, on_gpu.FAMILY.is_in(("gemm", "conv", "attention"))).alias("layer")
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z") / processors
    resident = blocks * pl.col("block_x") * pl.col("block_y") * pl.col("block_z") / (warps * threads)
    part = pl.when(layer).then(blocks).otherwise(resident).clip(upper_bound=1.0).fill_null(1.0)
    return work.with_columns(layer, part=part)


def at_once(work: pl.DataFrame, *keys: str) -> Mending:
    """Operations of the same `keys`, as of :func:`filling`, are one, which takes no less than the longest of them."""
    took_ns, filled_ns = pl.col("dur_ns"), (pl.col("dur_ns") * pl.col("part")).sum().over(keys).cast(pl.Int64)
    as_one_ns = pl.max_horizontal(took_ns.max().over(keys), filled_ns)
    return on_gpu.merged(work.with_columns(group=pl.struct(keys).hash(), kept=pl.lit(1), merged_ns=as_one_ns))


# Copies in scope, and which of them and of other calls a library of collectives makes itself, not the program.

PAGEABLE: Final = "Pageable"
PINNED: Final = "Pinned"

#: What nsys and torch call the direction of a copy.
TO_HOST: Final = "Device-to-Host"
TO_DEVICE: Final = "Host-to-Device"

LARGE_BYTES: Final = 1 << 20  # smaller copies do not show the bandwidth of large ones

#: What belongs to a copy besides the columns of `exclusive_operations`.
_OF_COPIES: Final = (
    *("call_row", "call_name", "call_start", "call_end", "thread_id", "context_id", "stream", "size_bytes"),
    *("source_memory", "target_memory", "graph_node_id"),
)

#: Ranges and operators of such a library; by NCCL's own ranges, by PyTorch's.
_OWN: Final = r"^:?(?:[NR]CCL:|nccl[A-Z]|nccl:\w|c10d::|record_param_comms)"


@analysis.once_per_report
def device_copies(report: Report) -> pl.DataFrame:
    """The copies in scope: columns of `exclusive_operations`, and :data:`_OF_COPIES`; null what is not recorded."""
    return _operations.with_facts(
        report, _operations.exclusive_operations(report).filter(pl.col("kind") == "memcpy"), *_OF_COPIES
    )


def bandwidth(copies: pl.DataFrame) -> float:
    """The bytes per second of some copies (size_bytes, dur_ns)."""
    return rate_of(statistics.total(copies, "size_bytes"), statistics.total(copies, "dur_ns"))


#: What copies of pinned memory reach at least, by compute capability (bytes per second): over 16 lanes of PCIe's fifth
#: generation 49 to 55 GB/s, measured on H200; over those of the fourth half of that.
_PINNED_RATES: Final = {"8.0": 20e9, "8.9": 20e9, "9.0": 45e9, "10.0": 45e9}


def pinned_rate(report: Report, device: int | None) -> float:
    """What copies of pinned memory to or from a GPU of its kind reach at least (bytes/s); 0 where that is not known."""
    own = report.devices.filter(pl.col("device") == device).get_column("compute_capability")
    return _PINNED_RATES.get(own.item(0) or "", 0.0) if len(own) else 0.0


def without_set_up(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Copies of the program itself, of `copies` with row, process_id, thread_id, call_start and size_bytes.

    A set-up copy is called within a range or operator of the library, or on a thread that calls nothing else and has
    none. In processes without such ranges it is small, in a stream without kernels, and before the process' first
    collective or with one of another name as the next kernel that its thread launches.
    """
    work = _operations.operations(report).filter(pl.col("kind") == "kernel")
    collective, own = _operations.communicating(work, report), library_ranges(report)
    if copies.is_empty() or (collective is None and own.is_empty()):
        return copies
    calls = copies.select("row", *THREAD, "call_start", "size_bytes").with_row_index("place").sort("call_start")
    within = calls.with_columns(
        own=on_gpu.is_inside(calls.select(*THREAD, at="call_start"), own),
        any=on_gpu.is_inside(calls.select("process_id", at="call_start"), own),
    )
    named = pl.struct(THREAD).is_in(own.select(pl.struct(THREAD)).to_series().unique().implode())
    theirs = pl.col("own") | (pl.col("any").all().over(THREAD) & ~named)
    has_ranges = pl.col("process_id").is_in(own.get_column("process_id").unique().implode())
    early = _before_first(report, work, collective, calls) if collective is not None else pl.lit(value=False)
    return copies[within.filter(~pl.when(has_ranges).then(theirs).otherwise(early)).get_column("place").sort()]


#: A line that waits for the GPU, a stream or an event, and does nothing else.
ONLY_WAITS: Final = (
    r"(?i)^\s*(?:[\w.]+\.)?(?:cuda|device|\w*stream\w*|\w*event\w*)(?:\(\w*\))?\.synchronize\([^()]*\)\s*;?\s*(?:#.*)?$"
)


def stretches_of(report: Report, places: pl.Series) -> pl.DataFrame:
    """When threads that launch were in some places of the program: :data:`THREAD`, start, end."""
    lines = code.placed_with_text(report, places.unique().to_frame("place")).select(code.PLACE)
    rows = analysis.source_lines(report).join(lines, on=lines.columns, how="semi", nulls_equal=True)
    rows = rows.join(launched(report).select(THREAD).unique(), on=[*THREAD], how="semi")
    return rows.select(*THREAD, **intervals.OF_EVENTS)


def library_ranges(report: Report) -> pl.DataFrame:
    """Ranges and operators of the library: :data:`THREAD`, start, end."""
    ranges = named_ranges(report)
    ranges = ranges.filter(having(ranges.get_column("range"), _OWN))
    return pl.concat(part.select(SPAN) for part in (spans_named(_OWN, report.kind("op")), ranges))


def _before_first(report: Report, kernels: pl.DataFrame, collective: pl.Expr, copies: pl.DataFrame) -> pl.Series:
    """Whether each copy is as small and as early as those of a set-up, in a stream without kernels."""
    of, kernels = ["process_id", "name"], _operations.with_facts(report, kernels, *STREAM, "thread_id", "call_start")
    line = kernels.select("name", *THREAD, told=collective, at="call_start").drop_nulls("at")
    line = line.with_columns(first=pl.col("told") & (pl.col("at") == pl.col("at").min().over(of)))
    begun = line.filter("first").group_by("process_id").agg(begun=pl.col("at").min())
    then = nearest(copies, line.select(*THREAD, "at", "first"), ("call_start", "at"), THREAD, "after")
    then = then.join(begun, on="process_id", how="left", maintain_order="left")
    place, computing = _operations.with_facts(report, copies, *STREAM).select(STREAM), kernels.select(STREAM).unique()
    apart = place.with_row_index("n").join(computing, on=STREAM, how="anti", nulls_equal=True).get_column("n")
    alone = pl.int_range(pl.len()).is_in(apart.implode())
    soon = pl.col("first") | (pl.col("call_start") < pl.col("begun"))
    return then.select((alone & (pl.col("size_bytes") <= 1 << 16) & soon).fill_null(value=False)).to_series()
