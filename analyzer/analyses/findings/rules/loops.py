"""Loops of Python over cells, slices, values or parameters, and recurrent layers in loops over what they made."""

import operator
from bisect import bisect_left
from functools import partial
from itertools import pairwise
from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings import on_gpu, on_host, rules, say
from kanalyze.analyses.host._call_kinds import PYTORCH
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.replay._changes import Mending
from kanalyze.analyses.shared import analysis
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import gathered, mixed, nearest, rows_at
from kanalyze.report import Report

_RECURRENT: Final = "rnn-cells"
_SENT: Final = "small-copies: tensors"
_INDEXING: Final = "loop-indexing: one level"
_SIZES: Final = "repeated-work: sizes"

#: Fewest passes of a loop, and the most operators of one.
_PASSES: Final = 8
_LONGEST: Final = 40

#: The most operators of a pass without weights, for a part of a tensor: as of a loss that is written out.
_WRITTEN_OUT: Final = 80

#: The most operators of a pass that does no more than indexing, and the most kinds of such passes, which have branches.
_SHORT: Final = 6
_KINDS: Final = 4

#: The most launches of a pass that does no more than compute the value that it reads.
_BRIEF: Final = 16

#: So many operators before a loop are looked at, and so many of a pass are named.
_NEAR: Final = 4
_NAMED: Final = 4

_MANY: Final = 16  # so many passes that change a tensor each, or have tensors of various shapes, are over parameters
_CELL_KERNELS: Final = r"(?:lstm|gru)_cell_(?:forward|backward)"  # kernels of cells of recurrent networks

#: Operators (aten::) by what they are to a loop: `cells` of recurrent networks, whole ones, what no nn.LSTM has in it;
#: those that take a part of a tensor, or `elements`, take it `apart`, put parts `together`, and write into a part; with
#: weights, as layers have; gates and dense layers of a recurrent network; lookups of embeddings, and what no more than
#: hands on indices and rows, or adds these up; decompositions, which ask whether they could; reads of numbers, some of
#: them `conditions`, and `masks`, of which the number of elements is read; those that change a tensor in place, roots
#: of second moments, `norms`, `plain` ones, which compute nothing, and those of whole layers (`blocks`), which write
#: into caches.
_MARKS: Final = {
    "cells": r"(?:lstm|gru|rnn_tanh|rnn_relu)_cell",
    "recurrent": r"lstm|gru|rnn_tanh|rnn_relu",
    "depends": r"_?softmax|bmm|baddbmm|argmax|multinomial|topk|item|scaled_dot_product_attention",
    "takes": r"select|slice|narrow",
    "elements": r"select",
    "apart": r"unbind|split|chunk|split_with_sizes|tensor_split|unsafe_split|unsafe_chunk",
    "together": r"stack|cat|concat|hstack|vstack|dstack",
    "writes": r"copy_|index_put_|fill_",
    "weights": (
        r"linear|addmm|mm|matmul|bmm|einsum|conv\w*|_convolution|layer_norm|batch_norm|embedding|\w+_cell|lstm|gru"
        r"|_transformer_encoder_layer_fwd"
    ),
    "dense": r"linear|addmm|mm|matmul",
    "looks_up": r"embedding|embedding_bag",
    "passes_on": (
        r"select|slice|narrow|to|long|contiguous|view|reshape|flatten|squeeze|unsqueeze|add_?|mul_?|cat|stack|dropout"
    ),
    "sigmoid": r"sigmoid_?",
    "tanh": r"tanh_?",
    "decomposes": (
        r"(?:linalg_)?(?:cholesky|qr|svd|svdvals|eigh?|eigvalsh?|inv|pinv|matrix_rank|lu|lu_factor|solve|slogdet|det|lstsq)"
        r"(?:_ex)?|inverse|cholesky_inverse|logdet"
    ),
    "reads": r"item|is_nonzero|_local_scalar_dense|equal|allclose",
    "conditions": "is_nonzero",
    "puts": r"index_put_|_index_put_impl_|scatter_|index_fill_|index_copy_",
    "masks": r"index|index_put_|_index_put_impl_|nonzero|masked_select|argwhere",
    "maxima": "maximum",
    "minima": "minimum",
    "in_place": r"(?:copy|add|mul|sub|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max)_",
    "roots": r"r?sqrt_?",
    "norms": r"norm|linalg_norm|linalg_vector_norm",
    "plain": (
        r"to|copy_|fill_|zero_|zeros|zeros_like|empty|empty_like|clone|contiguous|detach|view|reshape|select|slice|item"
        r"|stack|cat|dropout|t|transpose|unsqueeze|squeeze"
    ),
    "blocks": r"layer_norm|rms_norm|native_layer_norm|scaled_dot_product_attention|_transformer_encoder_layer_fwd",
}


@rules.Rule
def python_loops(report: Report) -> rules.Findings:
    """At most one finding per device on each kind of loop of Python."""
    iterations = say.per_iteration(report).iterations or 0
    whole_ns = windows(report).select((pl.col("end") - pl.col("start")).max()).item() or 0
    # a loop of half as many passes as there are iterations, half as long as these, or more, is that over the iterations
    pass_ns = (pl.col("end") - pl.col("start")) / pl.col("passes")
    over_iterations = (2 * iterations * pass_ns >= whole_ns) & (2 * pl.col("passes") >= iterations)
    within = _loops(report).filter(~over_iterations if iterations else pl.lit(value=True))
    for loops in within.partition_by("rule", maintain_order=True):
        top = loops.sort("passes", "start", descending=[True, False]).row(0, named=True)
        inside, rule, passes = on_host.within(report, loops), top["rule"], top["passes"]
        moves_model = rule == _SENT and not iterations
        # indexing that launches what no operator of the trace does
        if moves_model or (rule == _INDEXING and 2 * len(inside.mending.gone) >= passes):
            continue
        idle, mending = idle_within(report, inside.host), partial(_at_once, loops=loops)
        figures = {"passes": passes, "operators": top["operators"]}
        if rule == _SIZES:  # of which backward takes most time
            figures["where"] = on_host.site_of(report, loops.unique("row", keep="first", maintain_order=True))
        for one in on_host.on_time(report, rule, inside, mending, **figures):
            # for so large a part of a loop the device idles in it, or it is no matter of launching
            yield one if one and intervals.length(idle[one.device]) >= 0.25 * one.at_stake_ns else None


def _at_once(report: Report, loops: pl.DataFrame) -> Mending:
    """Each loop is launched as one pass, whose kernels take as long as those of all passes.

    Where passes do not need each other's results, as long as these would that filled the GPU, and no less than one.
    Of recurrent cells products and gates stay: a whole layer takes no slices, and adds no gradients of such.
    """
    inside = on_host.within(report, loops)
    line = on_host.filling(report, on_host.by_span(report, inside, *SHAPE))
    if loops.item(0, "rule") == _RECURRENT:
        line = on_gpu.with_decoded(line, layer=on_gpu.FAMILY.is_in(["gemm", "rnn"]))
    passes, took = float(loops.select(pl.col("passes").median()).item()), pl.col("dur_ns")
    kept = pl.max_horizontal((pl.len().over("span") / passes).cast(pl.Int64), pl.lit(1))
    whole, filled = took.sum().over("span"), (took * pl.col("part")).sum().over("span")
    cells = took.filter("layer").sum().over("span")
    each = cells if loops.item(0, "rule") == _RECURRENT else pl.max_horizontal(filled, whole / passes).cast(pl.Int64)
    groups = line.sort("span", "call_start").select("row", "dur_ns", group="span", kept=kept, merged_ns=each)
    return on_gpu.merged(groups)._replace(calls=inside.mending.calls, host=inside.mending.host)


_LOOP: Final = ("rule", "passes", "operators", "row", "stop", *on_host.SPAN)


@analysis.once_per_process
def _loops(report: Report) -> pl.DataFrame:
    """Loops of the operators' threads (rule, passes, operators of a pass, SPAN), and what backward runs for them."""
    line = on_host.outermost(report)
    if line.is_empty():  # runs of cells by the names of their kernels, in a report without operators
        own = on_host.launched(report).with_row_index("at")
        cells = own.filter(on_host.kernels_named(own, _CELL_KERNELS))
        kernel, nothing = pl.col("name").cast(pl.String).str.extract(f"({_CELL_KERNELS})"), pl.lit(None, pl.Int64)
        cells = cells.with_columns(kernel.alias("operators"), start="call_start", end="call_end")
        return _cell_loops(cells.with_columns(row=nothing, stop=nothing))
    every = on_host.operators(report)
    nodes = intervals.union(every.filter(on_host.IS_NODE).select("start", "end"))
    line = line.with_columns(backward=intervals.covered(line, nodes) > 0).filter(~pl.col("aside"))
    line = line.sort(*THREAD, "start")
    text = pl.col("name").str.strip_prefix("aten::")
    marks = [text.str.contains(f"^(?:{pattern})$").alias(key) for key, pattern in _MARKS.items()]
    line = line.join(line.select("name").unique().with_columns(marks), on="name", maintain_order="left")
    # an index of numbers is no mask, and what comes from the host goes into a buffer, into no part of what is taken
    line = line.with_columns(pl.col("masks") & (pl.col("to_host") > 0), pl.col("writes") & (pl.col("to_device") == 0))
    # whole networks that are given a sequence of one step are run step by step
    values = pl.col("input_values").cast(pl.String)  # of which the last says whether batches come first
    steps = pl.when(values.str.ends_with('"True"]')).then(on_host.side(0, 1)).otherwise(on_host.side(0, 0))
    one_step = ((steps == 1) | ~values.str.contains(r'"(?:True|False)"\]$')).fill_null(value=True)
    line = line.with_columns(pl.col("recurrent") & one_step).with_row_index("at")
    # a number that attention, sampling and putting together in between change
    depends = (pl.col("depends") | pl.col("together")).cast(pl.Int64).cum_sum()
    cells = line.with_columns(depends, operators="name").filter("cells")
    loops = pl.concat([_cell_loops(cells, "depends"), _stretches(line)])
    # loops are none of Python where torch.compile has a kernel in each pass, and no pass calls compiled code
    trace, passes, inside = on_host.traced(report) or report, loops.get_column("passes"), list[pl.Series]()
    # what compiled code leaves in a trace: its kernels, which it launches as operators, and where the program calls it
    for pattern in (r"^triton_\w+_fused_", "^Torch-Compiled Region"):
        begun = on_host.spans_named(pattern, trace.kind("op")).select(*THREAD, at="start")
        times = on_gpu.span_of(begun, loops.select(on_host.SPAN)).alias("at").drop_nulls().value_counts(name="times")
        places = loops.select(at=pl.int_range(pl.len(), dtype=pl.UInt32))
        inside.append(places.join(times, on="at", how="left", maintain_order="left").get_column("times").fill_null(0))
    python, calls = inside[0] < passes, inside[1] >= passes
    # what is called may be a part of what was to be compiled as a whole
    parts = on_host.resumed_lines(report).height > 0
    return _with_backward(every, loops.filter(python & ~calls if parts else python | calls))


def _cell_loops(cells: pl.DataFrame, *keys: str) -> pl.DataFrame:
    """Runs of the same `cells` (at, operators), no further apart than usual, and with the same `keys`."""
    apart = pl.col("at").cast(pl.Int64) - pl.col("at").shift(1).cast(pl.Int64)
    # two passes are so many times as far apart as usual where one loop ends and another begins
    far = apart > pl.min_horizontal(2 * apart.median() + _NEAR, _LONGEST)
    another = (say.changes([*THREAD, "operators", *keys]) | far).fill_null(value=True)
    loops = cells.group_by(another.cum_sum().alias("run"), maintain_order=True).agg(
        pl.col(*THREAD, "row", "start", "operators").first(),
        pl.col("end", "stop").last(),
        passes=pl.len().cast(pl.Int64),
        rule=pl.lit(_RECURRENT),
    )
    return loops.filter(pl.col("passes") >= _PASSES).select(_LOOP)


def _reading(line: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Stretches in which results that are taken apart are read one after the other, whatever each pass does with them.

    As :func:`_repeated`; between two reads are no layers and no more operators than a pass has.
    """
    layers, takes = (pl.col("weights") | pl.col("backward")).cum_sum(), pl.col("takes").cast(pl.Int64).cum_sum()
    launches = pl.col("launches").cum_sum()
    reads = line.with_columns(at=pl.col("at").cast(pl.Int64), layers_before=layers, takes=takes, launches=launches)
    reads = reads.filter((pl.col("to_host") > 0) & ~pl.col("decomposes"))
    another = say.changes([*THREAD, "layers_before"]) | (pl.col("at").diff() > _LONGEST)
    sums = pl.col("at", "takes", "launches")
    alike = reads.group_by(run=another.fill_null(value=True).cum_sum(), maintain_order=True)
    runs = alike.agg(sums.first(), sums.last().name.suffix("_last"), many=pl.len())
    passes, length = pl.col("many").cast(pl.Int64) - 1, pl.col("at_last") - pl.col("at")
    runs = runs.filter(
        passes >= _PASSES - 1,
        pl.col("takes_last") - pl.col("takes") >= passes,
        pl.col("launches_last") - pl.col("launches") <= _BRIEF * passes,
    )
    return runs.select(pl.col("at", "at_last") + 1, period=(length - 1) // passes + 1).rows()


def _branching(line: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Stretches from where a tensor is taken apart to where parts are put together, whatever each pass does with them.

    As :func:`_repeated`; each pass ends with the same operator, and none has layers, or is read.
    """
    wall = pl.any_horizontal("weights", "backward", "apart", "together") | (pl.col("to_host") > 0)
    since, parted = (pl.when(wall).then(of).shift(1).forward_fill().over(THREAD) for of in ("at", "apart"))
    last = pl.col("name").shift(1).over(THREAD)
    marked = line.with_columns(pl.col("at").cast(pl.Int64), since=since, parted=parted, last=last)
    took = marked.group_by("since").agg(pl.col("at").filter("takes").min().alias("first"), taken=pl.col("takes").sum())
    passes = marked.group_by("since", last="name").agg(passes=pl.len().cast(pl.Int64))
    ends = marked.filter("together").join(passes, on=["since", "last"]).join(took, on="since")
    ends = ends.filter(pl.col("passes") >= _PASSES, pl.col("parted") | (pl.col("taken") >= pl.col("passes")))
    begin = pl.when("parted").then(pl.col("since") + 1).otherwise("first")
    ends = ends.with_columns(begin=begin, period=(pl.col("at") - begin - 1) // pl.col("passes") + 1)
    return ends.filter(pl.col("period") <= _LONGEST).select("begin", "at", "period").rows()


def _indexing(line: pl.DataFrame) -> list[tuple[int, int, int]]:
    """Stretches, as :func:`_repeated`, of short passes of few kinds that each begin with taking an element."""
    begins = say.changes(THREAD) | (pl.col("elements") & ~pl.col("elements").shift(1)).fill_null(value=True)
    passes = line.group_by(begins.cum_sum().alias("pass"), *THREAD, maintain_order=True).agg(
        pl.col("at", "elements").first(), stop=pl.col("at").last() + 1, many=pl.len(), kind=pl.col("name").str.join()
    )
    short = passes.with_columns(short=pl.col("elements") & (pl.col("many") <= _SHORT))
    runs = short.group_by(run=say.changes((*THREAD, "short")).cum_sum(), maintain_order=True).agg(
        pl.col("short", "at").first(), pl.col("stop").last(), passes=pl.len(), kinds=pl.col("kind").n_unique()
    )
    runs = runs.filter("short", pl.col("passes") >= _PASSES, pl.col("kinds") <= _KINDS)
    return runs.select("at", "stop", period=(pl.col("stop") - pl.col("at") - 1) // pl.col("passes") + 1).rows()


def _repeated(line: pl.DataFrame) -> pl.DataFrame:
    """Stretches in which operators of the same names follow each other: begin, stop (places), period, the shortest."""
    numbers = line.select(mixed([*THREAD, "name"])).to_series()
    stretches, taken = list[tuple[int, int, int]](), list[tuple[int, int]]()
    for period in range(1, _WRITTEN_OUT + 1):
        ends = numbers.ne_missing(numbers.shift(-period)).arg_true().cast(pl.Int64)
        begins = ends.shift(1, fill_value=-1) + 1
        long = ends - begins >= (1 if period > _LONGEST else _PASSES - 1) * period
        if not long.any():
            continue
        runs = pl.DataFrame({"begin": begins.filter(long), "stop": ends.filter(long) + period})
        runs = _with_others_between(line, runs) if period > _LONGEST else runs
        for begin, end in runs.filter(pl.col("stop") - pl.col("begin") >= _PASSES * period).iter_rows():
            stop = min(end, line.height)
            at = bisect_left(taken, (begin, begin))
            if (at and taken[at - 1][1] > begin) or (at < len(taken) and taken[at][0] < stop):
                continue
            taken.insert(at, (begin, stop))
            stretches.append((begin, stop, period))
    for begin, stop, period in (*_reading(line), *_branching(line), *_indexing(line)):
        within = [one for one in stretches if one[0] < stop and one[1] > begin]
        # passes that are the same in so large a part of a loop are told as these
        if sum(one[1] - one[0] for one in within if one[2] <= _LONGEST) < 0.5 * (stop - begin):
            stretches = [*(one for one in stretches if one not in within), (begin, stop, period)]
    return pl.DataFrame(stretches, schema=dict.fromkeys(("begin", "stop", "period"), pl.Int64), orient="row")


def _with_others_between(line: pl.DataFrame, runs: pl.DataFrame) -> pl.DataFrame:
    """The `runs` (begin, stop) as one where no more than a few operators differ between, none of layers or joins."""
    walls = line.select(pl.any_horizontal("weights", "backward", "together").cast(pl.Int64).cum_sum()).to_series()
    begin, stop = runs["begin"], runs["stop"].shift(1, fill_value=0)
    another = (begin - stop > _NEAR) | ((begin > stop) & (walls.gather(begin) > walls.gather((stop - 1).clip(0))))
    groups = runs.group_by(another.alias("run").cum_sum(), maintain_order=True)
    return groups.agg(pl.col("begin").min(), pl.col("stop").max()).drop("run")


def _without_pauses(line: pl.DataFrame, stretches: pl.DataFrame) -> pl.DataFrame:
    """The parts of each stretch without pauses, which are gaps far longer than a pass: begin, stop, period, passes."""
    turns = stretches.with_row_index("stretch").with_columns(at=pl.int_ranges("begin", "stop")).explode("at")
    turns = turns.hstack(line.select("start", gap=pl.col("start") - pl.col("end").shift(1))[turns.get_column("at")])
    place = pl.col("at") - pl.col("begin")
    usual = pl.col("start").filter(place % pl.col("period") == 0).diff().median().over("stretch")
    # a gap of so many usual passes is none of the loop's
    pauses = ((pl.col("gap") > 10 * usual) & (place > 0)).fill_null(value=False)
    parted = turns.group_by("stretch", "period", part=pauses.cum_sum().over("stretch"))
    parts = parted.agg(begin=pl.col("at").min(), stop=pl.col("at").max() + 1)
    passes = (pl.col("stop") - pl.col("begin")) // pl.col("period")
    long = parts.with_columns(passes=passes).filter(pl.col("passes") >= _PASSES)
    return long.select("begin", "stop", "period", "passes").sort("begin")


def _stretches(line: pl.DataFrame) -> pl.DataFrame:
    """The stretches that have a rule, in which something is done to one part after the other: :data:`_LOOP`."""
    stretches = _without_pauses(line, _repeated(line))
    begin, stop, period, passes = stretches.get_columns()
    # what decomposes a matrix asks whether it could
    to_host = pl.when("decomposes").then(0).otherwise("to_host").alias("to_host")
    shapes = pl.col("input_shapes").to_physical().fill_null(0).alias("shapes")
    wide = pl.when("looks_up").then(on_host.side(0, 1)).fill_null(0)
    counts = (pl.col(*_MARKS, "backward", "launches", "to_device", "to_device_bytes"), to_host, shapes)
    numbers = {"names": pl.col("name").hash() // 2**32, "amounts": on_host.elements().fill_null(0)}
    sums = line.select(*counts, **numbers, wide=wide, square=wide**2).select(pl.all().cast(pl.Int64).cum_sum())
    before = pl.concat([sums.clear(1).fill_null(0), sums])
    in_one, in_all = before[begin + period] - before[begin], before[stop] - before[begin]
    # of the first operator of the first passes: those of a batch's parts, or of what goes on and on, are alike
    shape = line.get_column("input_shapes")
    passed = [shape.gather((begin + turn * period).clip(upper_bound=line.height - 1)) for turn in range(_NEAR)]
    parts = line.select(pl.when("apart").then(pl.col("stop") - pl.col("row")).otherwise(0)).to_series()
    near = [gathered(parts, (begin - by).set(begin < by, None)).alias(f"{by}") for by in range(1, _NEAR + 1)]
    after = rows_at(line.select("together", "joined"), stop.set(stop >= line.height, None).cast(pl.UInt32))
    # passes of which so many are put together after them are independent
    few = (after["joined"] > 0) & (after["joined"] < (2 / 3) * passes)
    facts = in_one.select(pl.col(name) > 0 for name in _MARKS).with_columns(
        passes,
        (after["together"] & ~few).fill_null(value=False).alias("put_together"),
        *((in_one.get_column(mark) == period).alias(f"only_{mark}") for mark in ("plain", "elements")),
        (in_all.get_column("to_device") == in_all.get_column("launches")).alias("sends"),
        (in_all.get_column("to_device_bytes") < passes * on_host.LARGE_BYTES).alias("small"),
        (in_all.get_column("to_host") >= passes).alias("asks"),
        (in_all.get_column("to_device") >= passes).alias("sends_each"),
        (in_all.get_column("launches") >= passes).alias("launching"),
        (in_all.get_column("launches") <= _BRIEF * passes).alias("brief"),
        (in_all.get_column("backward") > 0).alias("backward"),
        (period <= _SHORT).alias("short"),
        (period > _LONGEST).alias("long"),
        *_differences(before.select("shapes", "names", "amounts"), begin, period),
        tables=in_all.select(  # of one width: then alone their squares add up to as much as that of the mean
            (pl.col("wide") > 0)
            & (pl.col("square") * pl.col("looks_up") == pl.col("wide") ** 2)
            & (pl.col("looks_up") + pl.col("passes_on") == stop - begin)
        ).to_series(),
        various=pl.any_horizontal(one != passed[0] for one in passed).fill_null(value=False),
        parts=pl.DataFrame(near).max_horizontal().fill_null(0),
        layers=pl.lit(bool(line.get_column("weights").any())),
        trains=pl.lit(bool(line.get_column("backward").any())),
    )
    loops = stretches.with_columns(facts.select(rule=_rule()).to_series()).drop_nulls("rule")
    words = line.get_column("name").str.strip_prefix("aten::")
    names = [
        " → ".join([*words.slice(at, min(size, _NAMED)), *["…"] * (size > _NAMED)])
        for at, size in loops.select("begin", "period").iter_rows()
    ]
    first, last = (line[loops.get_column("begin")], line[loops.get_column("stop") - 1])
    loops = loops.select("rule", "passes").with_columns(pl.Series("operators", names, dtype=pl.String))
    return loops.hstack(first.select("row", *THREAD, "start")).hstack(last.select("stop", "end")).select(_LOOP)


def _differences(before: pl.DataFrame, begin: pl.Series, period: pl.Series) -> list[pl.Expr]:
    """Whether the first passes of stretches have inputs of other shapes (uneven), and where operators are alike.

    Of the latter sizes rise and fall. `before` has sums of shapes, names and amounts, of all operators before each.
    """
    last = before.height - 1
    held = [before[(begin + turn * period).clip(upper_bound=last)] for turn in range(_MANY + 1)]
    sizes, kinds, amounts = ([later[of] - one[of] for one, later in pairwise(held)] for of in before.columns)
    others = [one != sizes[0] for one in sizes]
    same = [other & (kind == kinds[0]) for other, kind in zip(others, kinds, strict=True)]
    rises, falls = (
        pl.any_horizontal(differs(later, one) for one, later in pairwise(amounts))
        for differs in (operator.gt, operator.lt)
    )
    return [pl.any_horizontal(others).alias("uneven"), (pl.any_horizontal(same) & rises & falls).alias("alike")]


def _rule() -> pl.Expr:
    """The rule of a stretch, by what its passes have, whether there was a part for each before, and what follows it."""
    apart = pl.col("takes") | (pl.col("parts") > pl.col("passes"))
    tensors = pl.col("layers") & (pl.col("passes") >= _MANY)
    # in training, tensors of various shapes that are changed in place, or of which a norm is taken, are parameters
    changed = (pl.col("in_place") & ~pl.col("together")) | (pl.col("norms") & pl.col("put_together"))
    parameters = tensors & changed & pl.col("uneven") & pl.col("trains") & ~apart & ~pl.col("only_plain")
    written = pl.col("takes") & pl.col("writes") & ~pl.col("blocks")
    # of a tensor that was taken apart for the loop, of which no pass joins its result to those before
    rows = (pl.col("parts") > pl.col("passes")) & ~pl.any_horizontal("blocks", "together")
    slices = rows | (~pl.col("weights") & (apart | (tensors & (pl.col("in_place") | pl.col("various")))))
    layers = pl.all_horizontal("weights", "blocks") & ~pl.col("takes")  # of which each needs the one before
    slices = (pl.col("put_together") & ~layers) | written | (slices & ~pl.col("only_plain"))
    indexing = pl.all_horizontal("elements", "short")
    # parts of various sizes that do not just grow: no state goes on from one to the next
    samples = pl.all_horizontal("takes", "alike") & ~pl.col("weights") & (pl.col("passes") >= _MANY)
    written_out = pl.all_horizontal("takes", "put_together") & ~pl.any_horizontal("asks", "weights")
    return (
        pl.when(pl.col("only_elements") & pl.col("put_together") & ~pl.col("backward"))
        .then(pl.lit("loop-indexing"))
        .when(~pl.any_horizontal("launching", "backward", "weights", "only_elements") & indexing)
        .then(pl.lit(_INDEXING))
        .when(~pl.col("launching") | pl.col("backward") | (pl.col("asks") & pl.col("weights")))
        .then(None)
        .when(pl.col("long") & ~written_out)
        .then(None)
        .when(pl.all_horizontal("tables", "short") & ~pl.col("asks"))
        .then(pl.lit("repeated-work: tables"))
        .when(pl.col("asks"))
        .then(
            pl.when(pl.all_horizontal("masks", "maxima", "minima"))  # corners of what two boxes share
            .then(pl.lit("boolean-masks: boxes"))
            .when("masks")
            .then(pl.lit("boolean-masks: loop"))
            .when(pl.all_horizontal("takes", "puts", "sends_each") & ~pl.col("conditions"))
            .then(pl.lit("row-loops"))
            .when(pl.any_horizontal("reads", "takes") & pl.col("brief"))
            .then(
                pl.when(pl.col("conditions") & ~indexing)
                .then(pl.lit("blocking-read: conditions"))
                .otherwise(pl.lit("blocking-read: values"))
            )
        )
        .when(pl.col("cells") | (pl.col("recurrent") & pl.col("depends")))
        .then(None)
        .when("sends")
        .then(pl.when("small").then(pl.lit(_SENT)))
        .when(apart & pl.all_horizontal("sigmoid", "tanh", "dense"))
        .then(pl.lit(_RECURRENT))
        .when(~pl.col("weights") & (pl.all_horizontal("layers", "in_place", "roots") | parameters))
        .then(pl.lit("unfused-optimizer: parameters"))
        .when(slices & samples & pl.col("put_together"))
        .then(pl.lit(_SIZES))
        .when(slices)
        .then(pl.when("recurrent").then(pl.lit(_RECURRENT)).otherwise(pl.lit("repeated-work")))
    )


def _with_backward(every: pl.DataFrame, loops: pl.DataFrame) -> pl.DataFrame:
    """The loops, and for each the time of the nodes of autograd that its operators are the forward ones of.

    Loops that read values are left out where there are any.
    """
    numbered = every.select("row", "sequence_number").drop_nulls()
    forward = nearest(loops, numbered.rename({"row": "first", "sequence_number": "low"}), ("row", "first"), (), "after")
    last = numbered.rename({"row": "last", "sequence_number": "high"})
    forward = nearest(forward, last, ("stop", "last"), (), "strictly before").filter(pl.col("first") < pl.col("stop"))
    # operators that record nothing for backward have the number of the next one that does
    forward = forward.filter(pl.col("high") - pl.col("low") >= pl.col("passes") - 1).drop(on_host.SPAN)
    nodes = every.filter(on_host.IS_NODE).drop_nulls("sequence_number")
    inside = nearest(nodes.select(*on_host.SPAN, "sequence_number"), forward, ("sequence_number", "low"))
    inside = inside.filter(pl.col("sequence_number") <= pl.col("high"))
    spans = inside.group_by(*THREAD, *_LOOP[:5]).agg(pl.col("start").min(), pl.col("end").max())
    # where backward goes through them, passes do more than compute what is read
    trained = spans.filter(pl.col("rule").str.starts_with("blocking-read")).select("rule", "operators")
    return pl.concat([loops, spans.select(_LOOP)]).join(trained, on=trained.columns, how="anti", maintain_order="left")


# Recurrent layers that go through a sequence again whenever it has become longer.

#: The most that is new of a sequence, the calls between which it may stay as long (as of several layers), and the
#: launches of a call for what is new.
_NEW: Final = 1 / 16
_LAYERS: Final = 4
_LAUNCHES: Final = 20


@rules.Rule.of(PYTORCH)
def recurrent_history(report: Report) -> rules.Findings:
    """At most one finding per device on calls of recurrent layers with what the call before had, and a little more."""
    line = on_host.outermost(report).filter(pl.col("name").str.contains(r"^aten::(?:gru|lstm|rnn_\w+)$"))
    if line.is_empty() or on_host.runs_backward(report):
        return
    # which of the first two sides is time, a layer's option says
    sides, alike = ("first", "second"), (*THREAD, "name", "width")
    named = {name: on_host.side(0, at).cast(pl.Int64) for at, name in enumerate((*sides, "width"))}
    calls = line.sort(*THREAD, "start").with_columns(**named)
    more = [pl.col(side).diff().over(alike) for side in sides]
    longer = [pl.when(one > 0, other == 0) for one, other in (more, more[::-1])]
    grown = {"more": more, "length": [pl.col(side) for side in sides]}
    calls = calls.with_columns(
        pl.coalesce(when.then(one) for when, one in zip(longer, each, strict=True)).alias(name)
        for name, each in grown.items()
    )
    same = pl.all_horizontal(one == 0 for one in more)
    # of several layers each is given what the first was
    calls = calls.with_columns(
        pl.when(same).then(pl.col(name).forward_fill(limit=_LAYERS).over(alike)).otherwise(name).alias(name)
        for name in grown
    )
    steadily = pl.any_horizontal(pl.col("more") == pl.col("more").shift(by).over(alike) for by in (1, -1))
    again = calls.filter(pl.col("more") <= _NEW * pl.col("length"), steadily)
    took = (pl.col("end") - pl.col("start")) * pl.col("more") / pl.col("length")
    left = pl.max_horizontal(took.cast(pl.Int64), _LAUNCHES * say.LAUNCH_NS)
    spans = again.with_columns(pl.col("start") + left).filter(pl.col("start") < pl.col("end"))
    if spans.height >= _PASSES:
        longest = again.get_column("length").max()
        yield from on_host.on_time(report, "no-kv-cache: recurrent", on_host.within(report, spans), longest=longest)
