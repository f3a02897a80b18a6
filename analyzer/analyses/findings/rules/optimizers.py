"""Optimizers that run kernel by kernel where one would do, and gradients that are filled with zeros."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, with_facts
from kanalyze.analyses.device._windows import idle_spans, windows
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.findings.rules._kernels import decoded_as, kernel_sums, merged, stream_lines, without
from kanalyze.analyses.findings.rules._launched_by import launching_operators
from kanalyze.analyses.findings.rules._telling import idle_in, in_pytorch, launch_before, per_iteration, place_of
from kanalyze.analyses.fusion.fusion import is_elementwise
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.decoder.decode import decode
from kanalyze.units import plural

if TYPE_CHECKING:
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: The ranges that torch's optimizers record: Optimizer.step#AdamW.step, Optimizer.zero_grad#AdamW.zero_grad.
_RANGE: Final = r"^Optimizer\.(step|zero_grad)#(\w+)\."

#: Classes of torch.optim that take fused=True.
_FUSED: Final = ("Adam", "AdamW", "SGD", "Adagrad")

#: Operations of single tensors that optimizers of Adam's kind use for each tensor, also when written by hand.
_UPDATES: Final = ("addcmul", "addcdiv", "lerp", "sqrt")

#: So many updates of weights in a row are an optimizer's: one for each tensor.
_FEWEST_UPDATES: Final = 4

#: A step of this many operators or more could be one.
_BOTH: Final = 2

#: Operations of lists of tensors that do not update weights: norms are for clipping.
_NO_UPDATES: Final = ("norm", "copy", "zero", "non_finite_check_and_unscale")


def unfused_optimizer(report: Report) -> list[Finding]:
    """One finding per device and optimizer that updates weights by an operation at a time."""
    found = []
    for steps in [*_in_ranges(report, "step"), *_by_launches(report)]:
        # updates of each element on its own, as an optimizer's operators do
        updates = decoded_as(steps.kernels, lambda said: is_elementwise(said) and said.operation not in _NO_UPDATES)
        rows = steps.kernels.filter(updates) if steps.optimizer else steps.kernels
        if not rows.is_empty() and not decoded_as(steps.kernels, _is_fused).any():
            found += _unfused(report, steps._replace(kernels=rows))
    return found


class _Steps(NamedTuple):
    """Launches of one optimizer's steps on one device.

    Attributes:
        device: The GPU.
        optimizer: The class of the optimizer; empty where only the launches tell that it is one.
        kernels: The operations: row, kind, name, exclusive_ns, step (a number).
        spans: When the host was in each step: start, end, sorted.
    """

    device: int
    optimizer: str
    kernels: pl.DataFrame
    spans: pl.DataFrame


def _is_fused(said: KernelName) -> bool:
    return said.family == "optimizer" and (said.library != "aten" or "Fused" in (said.functor or ""))


def _unfused(report: Report, steps: _Steps) -> list[Finding]:
    told, number = per_iteration(report), steps.kernels.get_column("step").n_unique()
    sums = steps.kernels.group_by("name").agg(pl.len().alias("launches"), pl.col("exclusive_ns").sum())
    # one operator is as many launches as it takes for all tensors; a step of one operator is fused as it is
    fewest = sums.get_column("launches").sort().item(0)
    lists = decoded_as(steps.kernels, lambda said: said.family == "optimizer").any()
    known = steps.optimizer in {*_FUSED, ""}
    if steps.kernels.height < _BOTH * fewest or (lists and not known):
        return []
    ran = total(steps.kernels, "exclusive_ns")
    # what the shortest of the operators takes to read and write its tensors, a fused kernel takes in any case
    kernels = ran - sums.get_column("exclusive_ns").sort().item(0)
    host = total(steps.spans.select(ns=pl.col("end") - pl.col("start")), "ns")
    waited = _waits(report, steps)
    way = "on lists of tensors (foreach)" if lists else "tensor by tensor"
    who = literal(steps.optimizer) or "An optimizer of Adam's kind"
    each = f"{plural(_each(steps.kernels), 'kernel')} in each of {plural(number, 'step')}"
    text = (
        f"{who} works {way}, operation by operation: {each}, {told.time(ran)}; the host was in it for "
        f"{told.time(host)}. One pass over the tensors saves at most {told.time(kernels)} of kernels, and "
        f"{told.time(waited)} of the GPU's idle time."
    )
    how = "fused=True" if known else "foreach=True"
    call = f"{literal(steps.optimizer[:40])}(…, {how})"
    action = call if steps.optimizer else f"{how} in Adam or AdamW"
    given = f"{how}: {call}" if steps.optimizer else f"{how}, which Adam and AdamW have"
    remedy = f"Give the optimizer {given}. torch.compile of its step fuses any."
    found = Finding(
        "unfused-optimizer",
        steps.device,
        kernels + waited,
        text,
        remedy,
        "ops --by phase" if "op" in report.kinds else "kernels --by family",
        headline=f"{literal(steps.optimizer[:20]) or 'The optimizer'} runs {each.partition(' in ')[0]} a step",
        action=action,
        where=place_of(report, pl.col("row").is_in(steps.kernels.get_column("row").implode())),
        at_most=True,
        mending=lambda _: _fused(steps),
        claims=_times(report, steps),
    )
    return [found]


#: How many lists a step reads and writes in one pass, by class: weights and moments both ways, and the gradients.
_PASSES: Final = {"Adam": 7, "AdamW": 7, "": 7, "Adagrad": 5, "SGD": 5}


#: How many tensors one launch of a fused optimizer updates, about.
_AT_ONCE: Final = 24


def _fused(steps: _Steps) -> Mending | None:
    """Each step in one pass, in as many launches as one operator of it on lists, at the rate of its shortest operator.

    That reads and writes a list, or all tensors one by one. None for classes that cannot be fused.
    """
    if steps.optimizer not in _PASSES:
        return None
    sums = steps.kernels.group_by("step", "name").agg(pl.len().alias("launches"), pl.col("exclusive_ns").sum())
    shortest = pl.col("exclusive_ns").min() * _PASSES[steps.optimizer] // _BOTH
    lists = decoded_as(steps.kernels, lambda said: said.family == "optimizer").any()
    together = 1 if lists else _AT_ONCE
    each = sums.group_by("step").agg(
        kept=(pl.col("launches").min() - 1) // together + 1, pass_ns=shortest, ran_ns=pl.col("exclusive_ns").sum()
    )
    groups = each.select("step", "kept", merged_ns=pl.min_horizontal("pass_ns", "ran_ns"))
    work = steps.kernels.select("row", "step", dur_ns="exclusive_ns")
    return merged(work.join(groups, on="step", maintain_order="left").rename({"step": "group"}))


def _each(kernels: pl.DataFrame) -> int:
    """The median number of operations of a step: a window may cut the first and the last one."""
    counts = kernels.group_by("step").len().get_column("len").sort()
    return int(counts.item(len(counts) // 2))


def _times(report: Report, steps: _Steps) -> pl.DataFrame:
    """When the kernels of the steps ran, and the idle time in them and between their kernels: start, end."""
    work = exclusive_operations(report).join(steps.kernels.select("row", "step"), on="row")
    each = work.group_by("step").agg(pl.col("start").min(), pl.col("end").max()).drop("step")
    idle = idle_in(report, steps.device, each, steps.spans)
    return pl.concat([work.select("start", "end"), idle])


def _waits(report: Report, steps: _Steps) -> int:
    """Idle time of the device that a shorter host time of each step can save, in ns.

    Of each step it is no more than the host was in it, and no more than the device idles from then until the next one.
    """
    idle = idle_spans(report)[steps.device]
    _, low, high = windows(report).row(by_predicate=pl.col("device") == steps.device)
    start, end = (steps.spans.get_column(name).clip(low, high) for name in ("start", "end"))
    after = intervals.overlap(start, start.shift(-1, fill_value=high), idle)
    return int(pl.select(pl.min_horizontal(end - start, after).sum()).item() or 0)


# Steps by the ranges that torch's optimizers record, in traces of torch.profiler and under emit_nvtx.


def _in_ranges(report: Report, method: str) -> list[_Steps]:
    """Launches of each optimizer in its ranges, by device and class."""
    ranges = _ranges(report, method)
    if ranges.is_empty() or "api" not in report.kinds:
        return []
    work = exclusive_operations(report, "thread_id", "call_start")
    work = work.select("row", "kind", "name", "exclusive_ns", "device", *THREAD, at="call_start")
    inside = nearest(work.drop_nulls("at"), ranges, ("at", "start"), THREAD).filter(pl.col("at") < pl.col("end"))
    return _by_optimizer(inside, inside.select("device", "optimizer", "start", "end").unique())


def _by_optimizer(rows: pl.DataFrame, spans: pl.DataFrame) -> list[_Steps]:
    """Operations (device, optimizer, step) with the `spans` of their steps, by device and class."""
    found, columns = [], ("row", "kind", "name", "exclusive_ns", "step")
    for (device, optimizer), own in sorted(rows.partition_by("device", "optimizer", as_dict=True).items()):
        here = spans.filter((pl.col("device") == device) & (pl.col("optimizer") == optimizer))
        here = here.select("start", "end").sort("start", "end")
        found.append(_Steps(int(device), str(optimizer), own.select(columns), here))
    return found


def _ranges(report: Report, method: str) -> pl.DataFrame:
    """The ranges of one method of torch's optimizers, by start: step, start, end, process_id, thread_id, optimizer."""
    schema = {"step": pl.UInt32, "start": pl.Int64, "end": pl.Int64, **dict.fromkeys(THREAD, pl.Int64)}
    if "range" not in report.kinds:
        return pl.DataFrame(schema={**schema, "optimizer": pl.String})
    events = report.kind("range")
    names = events.get_column("name").unique().drop_nulls()
    texts = {name: re.match(_RANGE, name) for name in names.cast(pl.String)}
    known = {name: found[2] for name, found in texts.items() if found and found[1] == method}
    own = events.filter(pl.col("name").cast(pl.String).is_in(list(known))) if known else events.clear()
    start, end = pl.col("start_ns"), pl.col("start_ns") + pl.col("dur_ns").fill_null(0)
    optimizer = pl.col("name").cast(pl.String).replace_strict(known, default=None, return_dtype=pl.String)
    rows = own.select(start.alias("start"), end.alias("end"), *THREAD, optimizer.alias("optimizer"))
    return rows.drop_nulls().sort("start").with_row_index("step")


# Steps by their launches, where there are no such ranges: runs of elementwise kernels on a stream with updates of
# lists of tensors, or of many tensors one by one.


def _by_launches(report: Report) -> list[_Steps]:
    """Launches like those of Adam's steps, by device; none where a fused optimizer runs, or has ranges."""
    devices = [one for one in kernel_sums(report) if _may_be_unfused(one.rows)]
    if not devices or _ranges(report, "step").height:
        return []
    found = _update_runs(stream_lines(report, [one.device for one in devices]))
    return _steps(report, found)


def _numbered(lines: pl.DataFrame, alike: pl.Series) -> pl.DataFrame:
    """The operations of `lines` that are `alike`; `step` numbers those that follow each other on a stream."""
    known = lines.with_columns(alike=alike)
    return known.with_columns(step=pl.struct("device", "process_id", "stream", "alike").rle_id()).filter("alike")


def _may_be_unfused(rows: pl.DataFrame) -> bool:
    said = [decode(name) for name in rows.get_column("name")]
    return any(map(_marks, said)) and not any(map(_is_fused, said))


def _marks(said: KernelName) -> bool:
    """True for the update that ends a step of Adam's kind: w += a · m / √v of lists or of one tensor, or its root."""
    pointwise = said.family == "optimizer" and (said.functor or "").startswith("PointwiseOp")
    single = said.family == "elementwise" and said.operation in {"addcdiv", "sqrt"}
    return said.library == "aten" and (pointwise or single)


def _belongs(said: KernelName) -> bool:
    """Whether only optimizers, or what works on their tensors, run it."""
    single = said.family == "elementwise" and said.operation in _UPDATES
    return said.library == "aten" and (single or (said.family == "optimizer" and said.operation not in _NO_UPDATES))


def _update_runs(lines: pl.DataFrame) -> pl.DataFrame:
    """The kernels of each run from the first of an optimizer to its last: the columns of `lines`, and step.

    What works on lists of tensors and what works on single ones are optimizers each, or are none: the other way to work
    before and after one is another's, as where a program keeps a mean of the weights.
    """
    known = _numbered(lines, decoded_as(lines, is_elementwise))
    known = known.with_columns(marks=decoded_as(known, _marks))
    known = known.filter(pl.col("step").is_in(known.filter("marks").get_column("step").unique().implode()))
    known = known.with_columns(
        decoded_as(known, lambda said: said.family == "optimizer").alias("lists"), own=decoded_as(known, _belongs)
    )
    lists, marks = pl.col("lists"), pl.col("marks")
    of_lists = lists & (lists & marks).any().over("step")
    singly = ~lists & ((~lists & marks).sum().over("step") >= _FEWEST_UPDATES)
    begins, ends = pl.col("own") & (of_lists | singly), (pl.col("own") & of_lists) | (marks & singly)
    known = known.with_columns(begins=begins, ends=ends).with_columns(place=pl.int_range(pl.len()))
    first, last = (pl.when(one).then("place") for one in ("begins", "ends"))
    return known.filter(pl.col("place").is_between(first.min().over("step"), last.max().over("step")))


def _steps(report: Report, rows: pl.DataFrame) -> list[_Steps]:
    """The runs as steps by device, each from the end of the launch before its first one to that of its last."""
    known = with_facts(report, rows, "call_start", "call_end").drop_nulls("call_start")
    spans = known.group_by("device", "process_id", "step").agg(
        at=pl.col("call_start").min(), end=pl.col("call_end").max()
    )
    start = pl.min_horizontal(pl.coalesce(launch_before(report, spans), "at"), "at")
    unknown = pl.lit("").alias("optimizer")
    return _by_optimizer(rows.with_columns(unknown), spans.select("device", unknown, start.alias("start"), "end"))


# Gradients that are filled with zeros.

#: So many fills in a row are one for each tensor.
_FEWEST_FILLS: Final = 16

#: Tensors of a model have so many sizes; what fills one and the same tensor is no zero_grad.
_FEWEST_SIZES: Final = 3

#: Rows of fills of one length that occur so often recur.
_RECURRING: Final = 2


def zero_grad_fills(report: Report) -> list[Finding]:
    """One finding per device and optimizer whose gradients are filled with zeros."""
    found = []
    for steps in _in_ranges(report, "zero_grad") or _by_fills(report):
        kernels = steps.kernels.filter(_fills(steps.kernels))
        if kernels.height:
            found.append(_zeroed(report, steps._replace(kernels=kernels)))
    return found


def _fills(work: pl.DataFrame) -> pl.Series:
    """Whether each operation fills memory: a kernel that does, or a memset."""
    return decoded_as(work, _is_fill) | (work.get_column("kind").cast(pl.String) == "memset")


def _is_fill(said: KernelName) -> bool:
    return said.library == "aten" and (said.operation == "fill" or _is_list_fill(said))


def _is_list_fill(said: KernelName) -> bool:
    return said.family == "optimizer" and said.operation == "zero"


def _by_fills(report: Report) -> list[_Steps]:
    """Fills of lists of tensors, and of many tensors in a row, again and again, where no ranges tell whose they are."""
    devices = []
    for one in kernel_sums(report):
        lists, fills = one.chosen(_is_list_fill).launches, one.chosen(_is_fill).launches
        devices += [one.device] if lists or fills >= _RECURRING * _FEWEST_FILLS else []
    if not devices or not in_pytorch(report):
        return []
    lines = stream_lines(report, devices)
    known = _numbered(lines, _fills(lines))
    many = known.group_by("device", "step").agg(pl.len().alias("many"))
    known = known.with_columns(lists=decoded_as(known, _is_list_fill)).join(many, on=["device", "step"])
    known = known.filter(pl.col("lists") | (pl.col("many") >= _FEWEST_FILLS))
    if known.is_empty():
        return []
    known = with_facts(report, known, "grid_x", "size_bytes")
    sizes = pl.coalesce("grid_x", "size_bytes").n_unique().over("step")
    alike = pl.col("step").n_unique().over("device", "many")
    row = (pl.col("many") >= _FEWEST_FILLS) & (alike >= _RECURRING) & (sizes >= _FEWEST_SIZES)
    return _steps(report, known.filter(row | pl.col("lists")))


#: The node of autograd that keeps a gradient, or adds it to the one that is there.
_KEEPS: Final = "torch::autograd::AccumulateGrad"


def _sums(report: Report, steps: _Steps) -> pl.DataFrame:
    """What adds gradients to the zeros, by the operators: in the first backward pass after each row of fills."""
    known = stream_lines(report, [steps.device]).join(launching_operators(report), on="row", maintain_order="left")
    fills = pl.col("row").is_in(steps.kernels.get_column("row").implode())
    # what has no operator is of the pass that it is in
    backward = pl.when(pl.col("inner").is_not_null()).then(pl.col("node").is_not_null()).forward_fill()
    known = known.with_columns(period=(fills & ~fills.shift(1, fill_value=False)).cum_sum(), backward=backward)
    known = known.with_columns(turn=pl.struct("period", "backward").rle_id()).filter("backward")
    first = (pl.col("turn") == pl.col("turn").min().over("period")) & (pl.col("period") > 0)
    return known.filter(first & (pl.col("node") == _KEEPS) & (pl.col("inner") == "aten::add_"))


def _zeroed(report: Report, steps: _Steps) -> Finding:
    told, number = per_iteration(report), steps.kernels.get_column("step").n_unique()
    ran, waited = total(steps.kernels, "exclusive_ns"), _waits(report, steps)
    sums = _sums(report, steps)
    added, by = total(sums, "exclusive_ns"), "more kernels"
    if sums.height:
        by = f"{plural(sums.height, 'kernel')} ({told.time(added)})"
    fills = plural(_each(steps.kernels), "fill")
    who = f"{literal(steps.optimizer)}.zero_grad" if steps.optimizer else "What looks like zero_grad"
    text = (
        f"{who} fills gradients with zeros: {fills} in each of {plural(number, 'step')}, {told.time(ran)} of the GPU, "
        f"which idled for up to {told.time(waited)} meanwhile. Backward then adds to the zeros, by {by}, where it "
        f"could keep what it computes."
    )
    return Finding(
        "zero-grad-fills",
        steps.device,
        ran + added + waited,
        text,
        "Let gradients be None instead: optimizer.zero_grad(set_to_none=True), which is the default since PyTorch 2.0.",
        "kernels --by operation",
        headline=f"zero_grad fills memory: {fills} a step",
        action="optimizer.zero_grad(set_to_none=True)",
        where=place_of(report, pl.col("row").is_in(steps.kernels.get_column("row").implode())),
        mending=lambda _: without(pl.concat([steps.kernels.select("row"), sums.select("row")])),
        claims=pl.concat([_times(report, steps), sums.select("start", "end")]),
    )


RULES: Final = (unfused_optimizer, zero_grad_fills)
