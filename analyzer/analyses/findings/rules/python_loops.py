"""Loops of Python over the parts of a tensor: cells of recurrent networks, and the same operators slice by slice."""

from __future__ import annotations

from bisect import bisect_left
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations, operations
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.findings.rules._kernels import merged
from kanalyze.analyses.findings.rules._operators import (
    SPAN,
    Told,
    filling,
    idle_in,
    on_time,
    operators,
    outermost,
    within,
)
from kanalyze.analyses.findings.rules._telling import per_iteration
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import gathered, nearest

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.report import Report

#: Fewest passes of a loop, and the most operators of one.
_PASSES: Final = 8
_LONGEST: Final = 40

#: For so large a part of a loop the device idles in it, or it is no matter of launching.
_IDLE: Final = 0.25

#: Two passes are so many times as far apart as usual where one loop ends and another begins.
_FAR: Final = 2

#: So many operators before a loop are looked at, and so many of a pass are named.
_NEAR: Final = 4
_NAMED: Final = 4

#: So many passes that change a tensor each in place are over parameters or the like.
_MANY: Final = 16

#: Kernels of cells of recurrent networks.
_CELL_KERNELS: Final = r"(?:lstm|gru)_cell_(?:forward|backward)"

#: What autograd's engine calls the run of a node.
_NODE: Final = "autograd::engine::evaluate_function"

#: Operators (aten::) by what they are to a loop: `cells` of recurrent networks, and what no nn.LSTM has between them;
#: those that take a part of a tensor, take it `apart`, put parts `together`, and write into a part; with weights, as
#: layers have; gates and dense layers of a recurrent network; reads of numbers, and `masks`, of which the number of
#: elements is read; those that change a tensor in place, roots of second moments, `plain` ones, which compute nothing,
#: and those of whole layers (`blocks`), which write into parts of caches.
_MARKS: Final = {
    "cells": r"(?:lstm|gru|rnn_tanh|rnn_relu)_cell",
    "depends": r"_?softmax|bmm|baddbmm|argmax|multinomial|topk|item|scaled_dot_product_attention",
    "takes": r"select|slice|narrow",
    "apart": r"unbind|split|chunk|split_with_sizes|tensor_split|unsafe_split|unsafe_chunk",
    "together": r"stack|cat|concat|hstack|vstack|dstack",
    "writes": r"copy_|index_put_|fill_",
    "weights": (
        r"linear|addmm|mm|matmul|bmm|einsum|conv\w*|_convolution|layer_norm|batch_norm|embedding|\w+_cell|lstm|gru"
    ),
    "dense": r"linear|addmm|mm|matmul",
    "sigmoid": r"sigmoid_?",
    "tanh": r"tanh_?",
    "reads": r"item|is_nonzero|_local_scalar_dense|equal|allclose",
    "masks": r"index|index_put_|_index_put_impl_|nonzero|masked_select|argwhere",
    "in_place": r"(?:copy|add|mul|sub|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max)_",
    "roots": r"r?sqrt_?",
    "plain": (
        r"to|copy_|fill_|zero_|zeros|zeros_like|empty|empty_like|clone|contiguous|detach|view|reshape|select|slice|item"
        r"|stack|cat|dropout|t|transpose|unsqueeze|squeeze"
    ),
    "blocks": r"layer_norm|rms_norm|native_layer_norm|scaled_dot_product_attention",
}

_RECURRENT: Final = Told(
    "rnn-cells",
    "A recurrent cell is run step by step in a Python loop",
    "nn.LSTM(…)(x) in place of a loop over nn.LSTMCell (nn.GRU, nn.RNN alike)",
    (
        "Give the whole sequence to nn.LSTM, nn.GRU or nn.RNN, which run it as a few kernels of cuDNN; where each step "
        "needs more, compile the loop."
    ),
)
_SLICES: Final = Told(
    "repeated-work",
    "The same operators run slice by slice in a Python loop",
    "work on the whole tensor at once: a batch dimension, bmm, torch.vmap",
    (
        "Let the loop's index be a dimension of the tensors: torch.bmm, einsum, broadcasting, grouped convolutions, or "
        "torch.vmap of the function; torch._foreach_ functions take lists of parameters of any shapes; "
        "what goes from pass to pass can be compiled, or scanned."
    ),
)

_READ: Final = Told(
    "blocking-read",
    "A value is read by the host in each pass of a Python loop",
    "stack the values on the GPU, and read them once: torch.stack(v).tolist()",
    (
        "Let the loop's values stay on the GPU (a list, then torch.stack; torch._foreach_norm, a comparison with all "
        "classes at once), and read them together after it, or every so many steps."
    ),
)

_OPTIMIZER: Final = Told(
    "unfused-optimizer",
    "An optimizer is written out and run parameter by parameter",
    "torch.optim.AdamW(…, fused=True), or torch._foreach_ functions",
    (
        "Take PyTorch's optimizer with fused=True, which updates all parameters in a few kernels; what it does not "
        "have can be written with torch._foreach_ functions on lists of tensors, or compiled."
    ),
)

_MASKED: Final = Told(
    "boolean-masks",
    "A boolean mask is taken in each pass of a Python loop",
    "membership = (labels == arange(n)[:, None]).float(); membership @ x",
    (
        "Work on all masks at once: a comparison with all classes is a matrix, whose product with the data sums each "
        "class; or sort once, and take slices (torch.segment_reduce, index_add_)."
    ),
)


def rnn_cells(report: Report) -> list[Finding]:
    """At most one finding per device, on cells of recurrent networks that are run one by one."""
    return _told(report, _RECURRENT, "A recurrent network is run cell by cell")


def repeated_work(report: Report) -> list[Finding]:
    """At most one finding per device, on the same operators run slice by slice."""
    return _told(report, _SLICES, "The same operators run for one part of a tensor after the other")


def reads_in_loops(report: Report) -> list[Finding]:
    """At most one finding per device, on values that the host reads one by one: of parameters, classes or samples."""
    return _told(report, _READ, "A value is read by the host in each pass of a loop")


def masks_in_loops(report: Report) -> list[Finding]:
    """At most one finding per device, on boolean masks that are taken one by one, of classes or groups."""
    return _told(report, _MASKED, "A boolean mask is taken in each pass of a loop")


def optimizers_by_hand(report: Report) -> list[Finding]:
    """At most one finding per device, on optimizers with second moments that are none of PyTorch's."""
    return _told(report, _OPTIMIZER, "An optimizer runs parameter by parameter")


def _told(report: Report, told: Told, what: str) -> list[Finding]:
    loops = _loops(report).filter(pl.col("rule") == told.rule)
    if loops.is_empty():
        return []
    top, inside = loops.sort("passes", "start", descending=[True, False]).row(0, named=True), within(report, loops)
    launches = per_iteration(report).plural(len(inside.work), "launch")
    if told.rule == _READ.rule:
        told = told._replace(headline=f"{top['passes']:,} values are read one by one in a Python loop")
    text = f"{what}, {top['passes']:,} times in a row, in {launches} ({literal(top['operators'])}): "
    found = on_time(
        report, told, inside, lambda _, taken: f"{text}{taken}.", partial(_at_once, loops=loops, rule=told.rule)
    )
    idle = {one.device: intervals.length(idle_in(report, one.device, inside)) for one in found}
    return [one for one in found if idle[one.device] >= _IDLE * one.at_stake_ns]


def _at_once(report: Report, loops: pl.DataFrame, rule: str) -> Mending:
    """Each loop is launched as one pass, whose kernels take as long as those of all passes.

    Where passes do not need each other's results, as long as these would if they filled the GPU, and no less than one.
    """
    inside = within(report, loops)
    work = exclusive_operations(report, *SHAPE, "call_start", "thread_id")
    work = work.filter(pl.col("row").is_in(inside.work.implode())).drop_nulls("call_start")
    begun = inside.host.with_row_index("loop").select(*THREAD, "loop", since="start")
    line = nearest(filling(report, work), begun, ("call_start", "since"), THREAD).drop_nulls("loop")
    passes, took = float(loops.select(pl.col("passes").median()).item()), pl.col("dur_ns")
    kept = pl.max_horizontal((pl.len().over("loop") / passes).cast(pl.Int64), pl.lit(1))
    whole, filled = took.sum().over("loop"), (took * pl.col("part")).sum().over("loop")
    each = whole if rule == _RECURRENT.rule else pl.max_horizontal(filled, whole / passes).cast(pl.Int64)
    groups = line.sort("loop", "call_start").select("row", "dur_ns", group="loop", kept=kept, merged_ns=each)
    return inside.mending._replace(**{name: getattr(merged(groups), name) for name in ("shorter", "gone")})


@once_per_process
def _loops(report: Report) -> pl.DataFrame:
    """Loops of the operators' threads, and what backward runs for them: rule, passes, operators (of a pass), SPAN."""
    line = outermost(report)
    if line.is_empty():
        return _by_kernels(report)
    every = operators(report)
    nodes = intervals.union(every.filter(pl.col("name").str.starts_with(_NODE)).select("start", "end"))
    backward = intervals.overlap(line.get_column("start"), line.get_column("end"), nodes) > 0
    line = _marked(line.with_columns(backward.alias("backward")).filter(~pl.col("aside")).sort(*THREAD, "start"))
    return _with_backward(every, pl.concat([_cell_loops(line), _stretches(line)]))


_LOOP: Final = ("rule", "passes", "operators", "row", "stop", *SPAN)


def _marked(line: pl.DataFrame) -> pl.DataFrame:
    """Adds :data:`_MARKS` and the place of each operator, `at`."""
    names = line.get_column("name").unique()
    text = pl.col("name").str.strip_prefix("aten::")
    marks = pl.DataFrame([names]).with_columns(
        text.str.contains(f"^(?:{one})$").alias(key) for key, one in _MARKS.items()
    )
    return line.join(marks, on="name", how="left", maintain_order="left").with_row_index("at")


def _cell_loops(line: pl.DataFrame) -> pl.DataFrame:
    """Cells of which each follows the one before, with no attention, sampling or putting together in between."""
    depends = (pl.col("depends") | pl.col("together")).cast(pl.Int64).cum_sum()
    cells = line.with_columns(depends).filter("cells").with_columns(_runs((*THREAD, "name", "depends")))
    found = cells.group_by("run", maintain_order=True).agg(
        *(pl.col(name).first() for name in (*THREAD, "row", "start")),
        pl.col("end", "stop").last(),
        passes=pl.len().cast(pl.Int64),
        operators=pl.col("name").first(),
    )
    return found.filter(pl.col("passes") >= _PASSES).select(pl.lit(_RECURRENT.rule).alias("rule"), *_LOOP[1:])


def _runs(key: tuple[str, ...]) -> pl.Expr:
    """The number of the run that each row is in: of the same `key`, no further from the row before than usual."""
    another = pl.any_horizontal(pl.col(one).ne_missing(pl.col(one).shift(1)) for one in key)
    apart = pl.col("at").cast(pl.Int64) - pl.col("at").shift(1).cast(pl.Int64)
    far = apart > pl.min_horizontal(_FAR * apart.median() + _NEAR, _LONGEST)
    return (another | far).fill_null(value=True).cum_sum().alias("run")


def _repeated(line: pl.DataFrame) -> pl.DataFrame:
    """Stretches in which operators of the same names follow each other: begin, stop (places), period, the shortest."""
    words = line.select(*THREAD, word=pl.col("name").hash())
    taken: list[tuple[int, int]] = []
    found = []
    for period in range(1, _LONGEST + 1):
        alike = (pl.col(name).eq_missing(pl.col(name).shift(-period)) for name in words.columns)
        runs = words.select(pl.all_horizontal(alike).rle()).to_series().struct.unnest()
        runs = runs.with_columns(begin=pl.col("len").cum_sum() - pl.col("len"))
        for length, _, begin in runs.filter(pl.col("value") & (pl.col("len") >= (_PASSES - 1) * period)).iter_rows():
            stop = min(begin + length + period, line.height)
            at = bisect_left(taken, (begin, begin))
            if (at and taken[at - 1][1] > begin) or (at < len(taken) and taken[at][0] < stop):
                continue
            taken.insert(at, (begin, stop))
            found.append((begin, stop, period))
    return pl.DataFrame(found, schema=dict.fromkeys(("begin", "stop", "period"), pl.Int64), orient="row")


def _stretches(line: pl.DataFrame) -> pl.DataFrame:
    """The stretches that have a rule, in which something is done to one part after the other: :data:`_LOOP`."""
    known = _repeated(line).with_columns(passes=(pl.col("stop") - pl.col("begin")) // pl.col("period"))
    begin, stop, one = (
        known.select(side).to_series() for side in ("begin", "stop", pl.col("begin") + pl.col("period"))
    )
    sums = line.select(pl.col(*_MARKS, "backward", "launches", "to_host").cast(pl.Int64).cum_sum())
    before = pl.concat([pl.DataFrame({name: [0] for name in sums.columns}), sums])
    in_one, in_all = before[one] - before[begin], before[stop] - before[begin]
    parts = line.select(pl.when("apart").then(pl.col("stop") - pl.col("row")).otherwise(0)).to_series()
    near = [gathered(parts, (begin - by).set(begin < by, None)).alias(f"{by} before") for by in range(1, _NEAR + 1)]
    after = gathered(line.get_column("together"), stop.set(stop >= line.height, None)).fill_null(value=False)
    facts = in_one.select(pl.col(name) > 0 for name in _MARKS).with_columns(
        known.get_column("passes"),
        pl.DataFrame(near).max_horizontal().fill_null(0).alias("parts"),
        (in_one.get_column("plain") == known.get_column("period")).alias("only_plain"),
        after.alias("put_together"),
        (in_all.get_column("to_host") >= known.get_column("passes")).alias("asks"),
        (in_all.get_column("launches") >= known.get_column("passes")).alias("launching"),
        (in_all.get_column("backward") > 0).alias("backward"),
        layers=pl.lit(bool(line.get_column("weights").any())),
    )
    found = known.with_columns(facts.select(rule=_rule()).to_series()).drop_nulls("rule")
    first, last = found.get_column("begin"), found.get_column("stop") - 1
    shown = found.get_column("period").clip(upper_bound=_NAMED)
    words = line.get_column("name").str.strip_prefix("aten::")
    names = [" → ".join(words.slice(at, many)) for at, many in zip(first, shown, strict=True)]
    more = pl.when(pl.col("period") > _NAMED).then(pl.lit(" → …")).otherwise(pl.lit(""))
    return found.with_columns(
        pl.Series("operators", names, dtype=pl.String) + found.select(more).to_series(),
        *(line.get_column(name).gather(first).alias(name) for name in ("row", *THREAD, "start")),
        *(line.get_column(name).gather(last).alias(name) for name in ("stop", "end")),
    ).select(_LOOP)


def _rule() -> pl.Expr:
    """The rule of a stretch, by what its passes have, whether there was a part for each before, and what follows it."""
    apart = pl.col("takes") | (pl.col("parts") > pl.col("passes"))
    tensors = pl.col("layers") & (pl.col("passes") >= _MANY) & pl.col("in_place")
    written = pl.col("takes") & pl.col("writes") & ~pl.col("blocks")
    slices = pl.col("put_together") | written | (~pl.col("weights") & (apart | tensors) & ~pl.col("only_plain"))
    gates = pl.all_horizontal("sigmoid", "tanh", "dense")
    return (
        pl.when(~pl.col("launching") | pl.col("backward"))
        .then(None)
        .when(pl.col("asks") & pl.col("weights"))
        .then(None)
        .when(pl.col("asks"))
        .then(pl.when("masks").then(pl.lit(_MASKED.rule)).when("reads").then(pl.lit(_READ.rule)))
        .when("cells")
        .then(None)
        .when(apart & gates)
        .then(pl.lit(_RECURRENT.rule))
        .when(~pl.col("weights") & pl.col("layers") & pl.col("in_place") & pl.col("roots"))
        .then(pl.lit(_OPTIMIZER.rule))
        .when(slices)
        .then(pl.lit(_SLICES.rule))
    )


def _with_backward(every: pl.DataFrame, loops: pl.DataFrame) -> pl.DataFrame:
    """The loops, and for each the time of the nodes of autograd that its operators are the forward ones of."""
    numbered = every.select("row", "sequence_number").drop_nulls().sort("row")
    at, number = numbered.get_column("row"), numbered.get_column("sequence_number")
    first = at.search_sorted(loops.get_column("row"), side="left")
    last = at.search_sorted(loops.get_column("stop"), side="left")
    sides = pl.DataFrame([first.alias("first"), last.alias("last")])
    with_numbers = loops.hstack(sides).filter(pl.col("last") > pl.col("first"))
    low = number.gather(with_numbers.get_column("first")).alias("low")
    high = number.gather(with_numbers.get_column("last") - 1).alias("high")
    forward = with_numbers.select("rule", "passes", "operators", "row", "stop").with_columns(low, high)
    # operators that record nothing for backward have the number of the next one that does
    forward = forward.filter(pl.col("high") - pl.col("low") >= pl.col("passes") - 1).sort("low")
    nodes = every.filter(pl.col("name").str.starts_with(_NODE)).drop_nulls("sequence_number").sort("sequence_number")
    inside = nodes.select(*SPAN, "sequence_number").join_asof(
        forward, left_on="sequence_number", right_on="low", check_sortedness=False
    )
    inside = inside.filter(pl.col("sequence_number") <= pl.col("high"))
    spans = inside.group_by(*THREAD, "row", "rule", "passes", "operators", "stop").agg(
        pl.col("start").min(), pl.col("end").max()
    )
    return pl.concat([loops.select(_LOOP), spans.select(_LOOP)])


def _by_kernels(report: Report) -> pl.DataFrame:
    """Runs of cells by the names of their kernels, in a report without operators."""
    work = operations(report, "call_row", "call_start", "call_end", "thread_id").drop_nulls(["call_row", "thread_id"])
    line = work.sort(*THREAD, "call_start").with_columns(name=pl.col("name").cast(pl.String)).with_row_index("at")
    cells = line.filter(
        (pl.col("kind") == "kernel") & pl.col("name").str.contains(_CELL_KERNELS).fill_null(value=False)
    )
    cells = cells.with_columns(operators=pl.col("name").str.extract(f"({_CELL_KERNELS})"))
    found = (
        cells.with_columns(_runs((*THREAD, "operators")))
        .group_by("run", maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in (*THREAD, "operators")),
            start=pl.col("call_start").first(),
            end=pl.col("call_end").last(),
            passes=pl.len().cast(pl.Int64),
        )
    )
    nothing = pl.lit(None, pl.Int64)
    told = found.filter(pl.col("passes") >= _PASSES).with_columns(
        rule=pl.lit(_RECURRENT.rule), row=nothing, stop=nothing
    )
    return told.select(_LOOP)


RULES: Final = (rnn_cells, repeated_work, reads_in_loops, masks_in_loops, optimizers_by_hand)
