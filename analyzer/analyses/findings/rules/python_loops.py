"""Loops of Python over the parts of a tensor: cells of recurrent networks, and the same operators slice by slice."""

from __future__ import annotations

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
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest

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

#: Cells of recurrent networks: operators, and kernels.
_CELLS: Final = r"^aten::(?:lstm_cell|gru_cell|rnn_tanh_cell|rnn_relu_cell)$"
_CELL_KERNELS: Final = r"(?:lstm|gru)_cell_(?:forward|backward)"

#: What no nn.LSTM has between two cells.
_DEPENDS: Final = r"^aten::(?:softmax|_softmax|bmm|baddbmm|argmax|multinomial|topk|item|scaled_dot_product_attention)$"

#: Operators that take a part of a tensor, that take it apart, that put parts together, and that write into a part.
_TAKES: Final = r"^aten::(?:select|slice|narrow)$"
_APART: Final = r"^aten::(?:unbind|split|chunk|split_with_sizes|tensor_split|unsafe_split|unsafe_chunk)$"
_TOGETHER: Final = r"^aten::(?:stack|cat|concat|hstack|vstack|dstack)$"
_WRITES: Final = r"^aten::(?:copy_|index_put_|fill_)$"

#: Operators that layers have weights for: a loop without any is none over layers.
_WEIGHTS: Final = (
    r"^aten::(?:linear|addmm|mm|matmul|bmm|einsum|conv\w*|_convolution|layer_norm|batch_norm|embedding|\w+_cell|lstm"
    r"|gru)$"
)

#: So many operators before a loop are looked at.
_NEAR: Final = 4

#: Operators of gates, which recurrent networks have, with products of matrices.
_GATES: Final = ("sigmoid", "tanh")
_DENSE: Final = r"^aten::(?:linear|addmm|mm|matmul)$"

#: Operators that find a mask's true elements.
_MASKS: Final = r"^aten::(?:index|index_put_|_index_put_impl_|nonzero|masked_select|argwhere)$"

#: Operators that an update by second moments has.
_ROOTS: Final = r"^aten::(?:sqrt|sqrt_|rsqrt|rsqrt_)$"

#: Operators that read a number.
_READS: Final = r"^aten::(?:item|is_nonzero|_local_scalar_dense|equal|allclose)$"

#: So many passes that change a tensor each in place are over parameters or the like, but for those that copy or fill.
_MANY: Final = 16
_IN_PLACE: Final = r"^aten::(?:copy|add|mul|sub|div|lerp|addcmul|addcdiv|clamp|clamp_min|clamp_max)_$"
_PLAIN: Final = (
    r"^aten::(?:to|copy_|fill_|zero_|zeros|zeros_like|empty|empty_like|clone|contiguous|detach|view|reshape|select|slice"
    r"|item|stack|cat|dropout|t|transpose|unsqueeze|squeeze)$"
)


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
        "torch.vmap of the function; what goes from pass to pass can be compiled, or scanned."
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
    line = line.filter(~pl.col("aside")).sort(*THREAD, "start").with_row_index("at")
    every = operators(report)
    nodes = intervals.union(every.filter(pl.col("name").str.starts_with(_NODE)).select("start", "end"))
    backward = intervals.overlap(line.get_column("start"), line.get_column("end"), nodes) > 0
    layers = pl.col("name").str.contains(_WEIGHTS).any()
    cells, stretches = _cell_loops(line), _periods(line.with_columns(backward.alias("backward"), layers=layers))
    return _with_backward(every, pl.concat([cells, stretches.drop_nulls("rule").select(cells.columns)]))


_LOOP: Final = ("rule", "passes", "operators", "row", "stop", *SPAN)


def _cell_loops(line: pl.DataFrame) -> pl.DataFrame:
    """Cells of which each follows the one before, with no attention, sampling or putting together in between."""
    depends = (pl.col("name").str.contains(_DEPENDS) | pl.col("name").str.contains(_TOGETHER)).cast(pl.Int64).cum_sum()
    cells = line.with_columns(depends=depends).filter(pl.col("name").str.contains(_CELLS))
    key = (*THREAD, "name", "depends")
    found = (
        cells.with_columns(_runs(key))
        .group_by("run", maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in (*THREAD, "row", "start")),
            pl.col("end", "stop").last(),
            passes=pl.len().cast(pl.Int64),
            operators=pl.col("name").first(),
        )
    )
    return found.filter(pl.col("passes") >= _PASSES).select(pl.lit(_RECURRENT.rule).alias("rule"), *_LOOP[1:])


def _runs(key: tuple[str, ...]) -> pl.Expr:
    """The number of the run that each row is in: of the same `key`, no further from the row before than usual."""
    another = pl.any_horizontal(pl.col(one).ne_missing(pl.col(one).shift(1)) for one in key)
    apart = pl.col("at").cast(pl.Int64) - pl.col("at").shift(1).cast(pl.Int64)
    far = apart > pl.min_horizontal(_FAR * apart.median() + _NEAR, _LONGEST)
    return (another | far).fill_null(value=True).cum_sum().alias("run")


def _periods(line: pl.DataFrame) -> pl.DataFrame:
    """Stretches in which operators of the same names follow each other again and again, of the shortest period each.

    Those that work on one part after the other have a rule: results are put together right after, or are written into
    parts; or no operator has weights, as those of a layer have, and parts are taken, or tensors are changed in place.
    Gates and products of matrices for parts that are taken are a recurrent network.
    """
    words = line.select(*THREAD, word=pl.col("name").hash())
    found: list[dict[str, object]] = []
    taken = pl.repeat(False, line.height, dtype=pl.Boolean, eager=True)  # noqa: FBT003 - polars has no name for it
    for period in range(1, _LONGEST + 1):
        same = words.select(
            pl.all_horizontal(pl.col(name).eq_missing(pl.col(name).shift(-period)) for name in words.columns)
        )
        runs = same.to_series().rle().struct.unnest().with_columns(begin=pl.col("len").cum_sum() - pl.col("len"))
        for length, _, begin in runs.filter(pl.col("value") & (pl.col("len") >= (_PASSES - 1) * period)).iter_rows():
            stop = min(begin + length + period, line.height)
            if not taken.slice(begin, stop - begin).any():
                taken = taken.scatter(pl.arange(begin, stop, eager=True), True)  # noqa: FBT003 - as above
                found.append(_stretch(line, begin, stop, period))
    schema = dict.fromkeys(("rule", "operators"), pl.String) | dict.fromkeys(("passes", "row", "stop", *SPAN), pl.Int64)
    return pl.DataFrame(found, schema=schema, orient="row")


def _stretch(line: pl.DataFrame, begin: int, stop: int, period: int) -> dict[str, object]:
    own, one = line.slice(begin, stop - begin), line.slice(begin, period).get_column("name")
    passes = (stop - begin) // period
    near = line.slice(max(begin - _NEAR, 0), min(begin, _NEAR))
    before = near.filter(pl.col("stop") - pl.col("row") > passes).get_column("name")
    after = line.slice(stop, 1).get_column("name")
    told = total(own, "launches") >= passes and not own.get_column("backward").any()
    read = total(own, "to_host") >= passes
    return {
        "rule": (_read(one) if read else _kind(one, before, after, passes if line.item(begin, "layers") else 0))
        if told
        else None,
        "passes": passes,
        "operators": " → ".join(one.str.strip_prefix("aten::").head(_NAMED)) + (" → …" if period > _NAMED else ""),
        "row": own.item(0, "row"),
        "stop": own.item(-1, "stop"),
        **{name: own.item(0, name) for name in THREAD},
        "start": own.item(0, "start"),
        "end": own.item(-1, "end"),
    }


def _read(one: pl.Series) -> str | None:
    """The rule on a stretch without weights whose passes copy something to the host: a number, or that of a mask's."""
    if one.str.contains(_WEIGHTS).any():
        return None
    return _MASKED.rule if one.str.contains(_MASKS).any() else _READ.rule if one.str.contains(_READS).any() else None


def _kind(one: pl.Series, before: pl.Series, after: pl.Series, passes: int) -> str | None:
    """The rule on a stretch, by operators: of a pass, those before it that make a part for each, the next one.

    `passes` is 0 in a program without layers, whose parameters no loop is over.
    """
    takes, weights = one.str.contains(_TAKES).any(), one.str.contains(_WEIGHTS).any()
    apart = takes or before.str.contains(_APART).any()
    if one.str.contains(_CELLS).any():
        return None  # which the cells tell
    if (
        apart
        and all(one.str.contains(rf"^aten::{gate}_?$").any() for gate in _GATES)
        and one.str.contains(_DENSE).any()
    ):
        return _RECURRENT.rule
    if not weights and passes >= _PASSES and one.str.contains(_IN_PLACE).any() and one.str.contains(_ROOTS).any():
        return _OPTIMIZER.rule
    written = takes and one.str.contains(_WRITES).any() and not one.str.contains(_BLOCKS).any()
    together = after.str.contains(_TOGETHER).any() or written
    tensors = passes >= _MANY and one.str.contains(_IN_PLACE).any()
    own = not weights and (apart or tensors) and not one.str.contains(_PLAIN).all()
    return _SLICES.rule if together or own else None


#: Operators of whole layers, which write into parts of caches; and so many operators of a pass are named.
_BLOCKS: Final = r"^aten::(?:layer_norm|rms_norm|native_layer_norm|scaled_dot_product_attention)$"
_NAMED: Final = 4


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


#: What autograd's engine calls the run of a node.
_NODE: Final = "autograd::engine::evaluate_function"


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
