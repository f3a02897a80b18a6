"""Models that are run for a few samples at a time, with kernels that leave most of the GPU empty."""

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import on_gpu, on_host, rules, say
from kanalyze.analyses.host._call_kinds import PYTORCH
from kanalyze.analyses.idle._attribution import host_time, idle_within
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.shared import statistics
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest
from kanalyze.report import Report

#: Of a model so many layers run once, or about; those of a tenth of their time may be those of a last batch.
_LAYERS: Final = 6
_ALIKE: Final = 1.2

_PASSES: Final = 8  # fewest of a model in a loop
_FULL: Final = 0.9  # layers that fill so large a part of the GPU gain nothing by a larger batch
_LARGER: Final = 16  # how many times as large a batch is told of

_MOST: Final = 0.6


@rules.Rule.of(PYTORCH)
def small_batches(report: Report) -> rules.Findings:
    """At most one finding per device, in a window of iterations of a program of PyTorch."""
    if not (iterations := say.per_iteration(report).iterations):
        return
    work = exclusive_operations(report, *SHAPE, "call_start", "thread_id").filter(pl.col("kind") == "kernel")
    for device, low, high in windows(report).iter_rows():
        line = work.filter(device=device).drop_nulls("call_start").sort("call_start")
        line = on_host.filling(report, line.with_columns(token=pl.struct("name", *SHAPE).hash()))
        ran, host = statistics.total(line, "exclusive_ns"), bucket_sums(report).filter(device=device, bucket="host")
        # most idle time in the host's own code is in short stretches, between launches
        hurries = 2 * host_time(report)[device].short_ns >= statistics.total(host, "ns")
        counts = line.group_by("token").agg(pl.len(), pl.col("layer", "name").first(), ns=pl.col("exclusive_ns").sum())
        layers = counts.filter("layer").sort("len", "token")
        # most time of kernels is in those of fewer blocks than there are SMs, and layers leave room, too
        empty = statistics.total(line.filter(pl.col("part") < 1), "exclusive_ns") >= 0.5 * ran
        if 2 * ran > high - low or layers.is_empty() or not hurries:
            continue
        names = counts.get_column("name").cast(pl.String)
        updates = names.filter(names.str.contains(on_host.UPDATES))
        # kernels may be of updates; those of transposed convolutions are no proof
        certain = on_host.traced(report) is None or on_host.runs_backward(report)
        trains = updates.len() > 0 if certain else not updates.str.contains("dgrad|bprop").all()
        anchor, fewest = layers.select("token", "len").row(0)
        several = _are_samples(report, fewest, line.height, trains=trains)
        if not (empty or several):
            continue
        # of few layers, they may be steps of time
        deep = statistics.total(layers, "len") >= _PASSES * fewest
        several = several or (deep and not trains and _of_parts(report, fewest, line.height))
        # in training, what runs as often may refine one result again and again
        if not several and not trains and (usual := _of_most_layers(layers)) is not None:
            several = _several(report, usual[1]) and _takes_samples(report, usual[1] / line.height)
            anchor, fewest = usual if several else (anchor, fewest)
        each = (2 * fewest + iterations) // (2 * iterations)
        # each word is the next one's input; in training what is drawn is noise
        choices = statistics.total(counts.filter(names.str.contains(on_host.CHOOSES)), "len")
        drawn = names.str.contains(on_host.DRAWS).any()
        if (
            not trains
            and 2 * choices >= fewest
            and (not several or drawn or _takes_choices(report, fewest / line.height))
        ):
            continue
        # what the host launches for a few samples it launches for many
        if fewest < _PASSES or (not several and _filled(line.filter("layer")) >= _FULL):
            continue
        if not several and (each != 1 or line.get_column("thread_id").n_unique() > 1 or updates.len()):
            continue
        if on_host.traced(report) is None and statistics.total(layers, "len") < _PASSES * iterations:
            continue  # of few layers, the passes may be those of a loop inside of a model
        number = (line.get_column("token") == anchor).cast(pl.Int64).cum_sum() - 1
        passes = line.with_columns(number.set(number < 0, None).alias("passed")).drop_nulls("passed")
        # between two updates there are no more
        larger = min(_LARGER, each) if trains else _LARGER
        yield _few_samples(report, device, passes, larger)._replace(general=not several)


def _are_samples(report: Report, passes: int, launches: int, *, trains: bool) -> bool:
    """Whether a layer that runs in so many `passes`, several an iteration, is given samples of a batch in each."""
    return _several(report, passes) and (
        _takes_samples(report, passes / launches)
        or _splits(report, passes, launches, joins=not trains)
        or (trains and _accumulates(report))
    )


def _several(report: Report, passes: int) -> bool:
    """Whether an iteration has several of so many passes."""
    return 2 * passes >= (_PASSES - 1) * (say.per_iteration(report).iterations or 1)


def _of_most_layers(layers: pl.DataFrame) -> tuple[int, int] | None:
    """Token and number of the layer that runs least often but for rare ones, as of a last batch with fewer samples.

    None where few others run as often, or those of a last batch are far fewer: then what runs more often may be a layer
    of a model.
    """
    common = layers.filter(pl.col("ns").cum_sum() > 0.1 * pl.col("ns").sum())
    alike = common.filter(pl.col("len") <= _ALIKE * pl.col("len").min())
    last = 2 * (layers.height - common.height) >= common.height
    return alike.select("token", "len").row(0) if last and alike.height >= _LAYERS else None


def _takes_samples(report: Report, passes: float) -> bool:
    """Whether the trace takes a part of a tensor right before a layer, as often by launch as there are `passes`."""
    line, name = on_host.outermost(report), pl.col("name")
    takes = name.str.contains("^aten::(?:slice|narrow|select|index|index_select)$")
    # what does no more than bring a sample into another order may stand between
    orders = name.str.contains("^aten::(?:stack|contiguous|clone|pad|constant_pad_nd)$")
    first = name.shift(-1).str.contains(r"^aten::(?:embedding|linear|conv\w*|_convolution|to)$")
    launches = statistics.total(line, "launches")
    times = line.filter(takes | ((pl.col("launches") > 0) & ~orders)).select((takes & first).sum()).item()
    return launches > 0 and bool(times >= _MOST * passes * launches)


def _of_parts(report: Report, passes: int, launches: int) -> bool:
    """Whether parts were taken for all of so many passes, each of which begins with a batch of one after a result.

    That is one of fewer numbers than the batch, which is thus none of what the pass before made.
    """
    line, name, launching = on_host.outermost(report), pl.col("name"), pl.col("launches") > 0
    if line.get_column("name").str.contains(r"^aten::(?:\w+_cell|lstm|gru|rnn_\w+)$").any():
        return False
    takes = line.group_by(launching.cum_sum()).agg(times=name.str.contains("^aten::(?:slice|narrow|select)$").sum())
    ends = name.str.contains(r"^aten::(?:(?:log_)?softmax|sigmoid|topk|argmax|max|sort|argsort)$").shift(1)
    one = (on_host.side(0, 0) == 1) & (on_host.elements() > on_host.elements().shift(1))
    begins = line.filter(launching).select((ends & one & name.str.contains(r"^aten::(?:linear|conv\w*)$")).sum()).item()
    times = min(begins, statistics.total(takes.filter(pl.col("times") >= _PASSES), "times"))
    least = _MOST * passes / launches * statistics.total(line, "launches")
    return _several(report, passes) and bool(times >= max(least, 1))


def _takes_choices(report: Report, passes: float) -> bool:
    """Whether operators are given integers, as what is chosen is, in half as many launches as `passes` have or more."""
    # which conversions of a result are given, too, and numbers of the program that tensors are multiplied by
    others = pl.col("name").str.contains("^aten::(?:to|_to_copy|copy_|add|sub|mul|div)_?$")
    line = on_host.working(report).filter(~others)
    types = line.get_column("input_types").cast(pl.String)
    given = types.str.contains(r'"(?:long|int|bool)').fill_null(value=True).sum()
    return 2 * given >= passes * statistics.total(line, "launches")


def _splits(report: Report, passes: int, launches: int, *, joins: bool) -> bool:
    """If the trace splits a tensor once for several of so many passes, and `joins` results, or each has backward."""
    line = on_host.outermost(report)
    counts, traced = line.get_column("name").value_counts(name="count"), statistics.total(line, "launches") / launches
    fewest = max(_MOST * traced * (say.per_iteration(report).iterations or 1), 1)
    once = counts.filter(pl.col("count").is_between(fewest, traced * passes / (_MOST * _PASSES // 2)))
    if not joins:
        many = int(counts.filter(pl.col("name") == on_host.BEGINS_BACKWARD).get_column("count").sum())
        once = once.filter(pl.col("count") * (_PASSES // 2) <= many)
    names = once.get_column("name")
    splits = names.str.contains(r"^aten::(?:split\w*|chunk|unbind|tensor_split|unsafe_split\w*)$").any()
    return splits and (not joins or names.str.contains("^aten::(?:cat|stack|hstack|vstack)$").any())


def _accumulates(report: Report) -> bool:
    """Whether the trace adds most gradients to earlier ones, and runs backward several times for each update."""
    every = on_host.operators(report)
    around = every.select("name", parent="row").filter(name=on_host.ACCUMULATES)
    adds = every.filter(name="aten::add_").join(around, on="parent", how="semi").height
    # after which a thread of autograd goes on, and this one waits
    line, nodes = on_host.forward(report), every.filter(on_host.IS_NODE).select("process_id", node="start")
    begun = nearest(line.filter(name=on_host.BEGINS_BACKWARD), nodes, ("end", "node"), ["process_id"], "after")
    begun = nearest(begun, line.select(*THREAD, following="start"), ("end", "following"), THREAD, "after")
    begun = begun.filter((pl.col("node") < pl.col("following")).fill_null(pl.col("node").is_not_null()))
    return adds >= _MOST * max(around.height, 1) and begun.height >= _PASSES // 2 * on_host.updated(report).height > 0


def _few_samples(report: Report, device: int, line: pl.DataFrame, larger: int) -> rules.Finding:
    """The finding on launches of passes, `passed` their number, of which so many could be one."""
    begun = line.group_by("passed", *THREAD, maintain_order=True).agg(start=pl.col("call_start").min())
    spans = begun.with_columns(end=pl.col("start").shift(-1)).drop_nulls("end").filter(pl.col("end") > pl.col("start"))
    idle = idle_within(report, on_host.own_within(report, spans).host)[device]
    # so many passes are launched as one, whose kernels take as long as all of them would that filled the GPU
    place = pl.int_range(pl.len()).over("passed", "token")
    batch = pl.struct("token", place.alias("place"), pl.col("passed") // larger).hash()
    spared = spans.filter(pl.col("passed") % larger != 0)
    calls, host = on_gpu.calls_within(report, spared), spared.select("process_id", "start", "end")
    change = on_host.at_once(line.with_columns(batch=batch), "batch")._replace(host=host, calls=calls)
    figures = {"times": line.get_column("passed").n_unique(), "part": _filled(line), "larger": larger}
    return say.told(report, "small-batches", device, (idle, line), intervals.length(idle), mending=change, **figures)


def _filled(line: pl.DataFrame) -> float:
    """The part of the GPU that kernels fill with blocks, by their time."""
    filled = line.select((pl.col("part") * pl.col("exclusive_ns")).sum()).item()
    return float(filled) / max(statistics.total(line, "exclusive_ns"), 1)
