"""A model that is run for a few samples at a time, with kernels that leave most of the GPU empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import SHAPE, exclusive_operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import calls_within, merged
from kanalyze.analyses.findings.rules._operators import filling, idle_in, outermost, own_within, traced
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.idle._attribution import host_time
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.report import Report

#: The GPU idles for so large a part, and so large a part of the time of its kernels is in those that leave SMs empty.
_IDLE: Final = 0.5
_EMPTY: Final = 0.5

#: Layers that fill so large a part of the GPU gain nothing by a larger batch.
_FULL: Final = 0.9

#: Fewest passes, and how many times as large a batch is told of.
_PASSES: Final = 8
_LARGER: Final = 16

#: Kernels of a pass whose result is the next one's input, and those of a training, which a larger batch changes.
_CHOOSES: Final = r"(?i)argmax|ArgMax|multinomial|topk|radixSort|gatherTopK|distribution_"
_UPDATES: Final = r"multi_tensor_apply|[Aa]dam|[Ss]gd|SGD|LAMB|[Bb]ackward|dgrad|wgrad|bprop|_bwd"

#: Operators by which samples are taken from a batch, and the first layers of models, which they are given to.
_TAKES: Final = r"^aten::(?:slice|narrow|select|index|index_select)$"
_FIRST: Final = r"^aten::(?:embedding|linear|conv\w*|_convolution|to)$"
_MOST: Final = 0.6

#: Operators that split a tensor into samples at once, and that join what is computed of them.
_SPLITS: Final = r"^aten::(?:split\w*|chunk|unbind|tensor_split|unsafe_split\w*)$"
_JOINS: Final = r"^aten::(?:cat|stack|hstack|vstack)$"


def small_batches(report: Report) -> list[Finding]:
    """At most one finding per device, in a window of iterations of a program of PyTorch."""
    iterations, found, least = per_iteration(report).iterations, list[Finding](), least_worth_saying(report)
    if not iterations or not in_pytorch(report):
        return found
    for device, low, high in windows(report).iter_rows():
        line = _launches(report, device)
        busy = total(line, "exclusive_ns") / max(high - low, 1)
        counts = line.group_by("token").agg(pl.len(), pl.col("layer").first(), pl.col("name").first())
        layers = counts.filter("layer")
        if busy > 1 - _IDLE or layers.is_empty() or not _leave_empty(line) or not _hurries(report, device):
            continue
        fewest: int = min(layers.get_column("len").to_list())
        each = (2 * fewest + iterations) // (2 * iterations)
        names = counts.get_column("name")
        several = each >= _PASSES // 2 and (_takes_samples(report, fewest / line.height) or _splits(report, fewest))
        if fewest < _PASSES or names.str.contains(_CHOOSES).any():
            continue
        if not several and (each != 1 or line.get_column("thread_id").n_unique() > 1 or _trains(names)):
            continue
        if traced(report) is None and total(layers, "len") < _PASSES * iterations:
            continue  # of few layers, the passes may be those of a loop inside of a model
        anchor = layers.sort("len", "token").item(0, "token")
        one = _finding(report, device, line.with_columns(_passes(line, anchor)).drop_nulls("passed"))
        if one.at_stake_ns >= max(least[device], 1):
            found.append(one._replace(general=not several))
    return found


def _launches(report: Report, device: int) -> pl.DataFrame:
    """The kernels in scope by launch: row, name, token, layer, part (of the GPU that it fills)."""
    work = exclusive_operations(report, *SHAPE, "call_start", "thread_id")
    work = filling(report, work.filter((pl.col("device") == device) & (pl.col("kind") == "kernel")))
    token = pl.struct("name", *SHAPE).hash()
    line = work.with_columns(token=token, name=pl.col("name").cast(pl.String))
    return line.drop_nulls("call_start").sort("call_start")


def _trains(names: pl.Series) -> bool:
    """Whether kernels of backward or of an optimizer are among these."""
    return bool(names.str.contains(_UPDATES).any())


def _leave_empty(line: pl.DataFrame) -> bool:
    """Whether most time of the kernels is in those of fewer blocks than there are SMs, and layers leave room, too."""
    empty = total(line.filter(pl.col("part") < 1), "exclusive_ns")
    return empty >= _EMPTY * total(line, "exclusive_ns") and _filled(line.filter("layer")) < _FULL


def _hurries(report: Report, device: int) -> bool:
    """Whether most idle time in the host's own code is in short stretches, between launches."""
    host = bucket_sums(report).filter((pl.col("device") == device) & (pl.col("bucket") == "host"))
    return 2 * host_time(report)[device].short[0] >= total(host, "ns")


def _takes_samples(report: Report, passes: float) -> bool:
    """Whether the trace takes a part of a tensor right before a layer, as often by launch as there are `passes`."""
    line = outermost(report)
    launches, working = (
        total(line, "launches"),
        line.filter((pl.col("launches") > 0) | pl.col("name").str.contains(_TAKES)),
    )
    taken = working.select((pl.col("name").str.contains(_TAKES) & pl.col("name").shift(-1).str.contains(_FIRST)).sum())
    return launches > 0 and bool(taken.item() >= _MOST * passes * launches)


def _splits(report: Report, passes: int) -> bool:
    """Whether the trace splits a tensor, and joins results, once for several of so many passes."""
    names = outermost(report).get_column("name")
    counts = [int(names.str.contains(pattern).sum()) for pattern in (_SPLITS, _JOINS)]
    least = per_iteration(report).iterations or 1
    return all(least <= count <= passes // (_PASSES // 2) for count in counts)


def _passes(line: pl.DataFrame, anchor: int) -> pl.Expr:
    """The number of the pass that each launch is in: from one launch of the `anchor` to the next."""
    number = (line.get_column("token") == anchor).cast(pl.Int64).cum_sum() - 1
    return pl.lit(number.set(number < 0, None)).alias("passed")


def _finding(report: Report, device: int, line: pl.DataFrame) -> Finding:
    per, number = per_iteration(report), int(line.get_column("passed").n_unique())
    begun = line.group_by("passed", *THREAD, maintain_order=True).agg(start=pl.col("call_start").min())
    spans = begun.with_columns(end=pl.col("start").shift(-1)).drop_nulls("end").filter(pl.col("end") > pl.col("start"))
    idle = idle_in(report, device, own_within(report, spans))
    part = _filled(line)
    text = (
        f"The model is run {per.plural(number, 'time')}, for few samples each time: its kernels fill {percent(part)} "
        f"of the GPU, which idles for {per.time(intervals.length(idle))} while the next ones are launched. A batch "
        f"{_LARGER} times as large is launched once for {_LARGER} of these."
    )
    one = Finding("small-batches", device, intervals.length(idle), text, _REMEDY, "kernels")
    claims = intervals.union(pl.concat([idle, line.select("start", "end")]))
    return one._replace(
        headline=f"The model is run for few samples at a time: {percent(part)} of the GPU",
        action="give the model all samples at once: model(x), not model(x[i:i + 2])",
        claims=claims,
        mending=lambda report: _larger(report, line, spans),
    )


_REMEDY: Final = (
    "Give the model more samples at a time: larger batches in a loop over slices of data, requests put together in a "
    "server; where memory or the method needs small ones, replay them as a CUDA graph."
)


def _filled(line: pl.DataFrame) -> float:
    """The part of the GPU that kernels fill with blocks, by their time."""
    filled = line.select((pl.col("part") * pl.col("exclusive_ns")).sum()).item()
    return float(filled) / max(total(line, "exclusive_ns"), 1)


def _larger(report: Report, line: pl.DataFrame, spans: pl.DataFrame) -> Mending:
    """So many passes are launched as one, whose kernels take as long as all of them would that filled the GPU."""
    batch = pl.col("passed") // _LARGER
    place = pl.int_range(pl.len()).over("passed", "token")
    one = pl.col("dur_ns")
    groups = line.with_columns(place=place).with_columns(group=pl.struct("token", "place", batch).hash())
    whole = pl.max_horizontal(one.max().over("group"), (one * pl.col("part")).sum().over("group").cast(pl.Int64))
    groups = groups.with_columns(kept=pl.lit(1, pl.Int64), merged_ns=whole)
    change = merged(groups.select("row", "dur_ns", "group", "kept", "merged_ns"))
    spared = spans.filter(pl.col("passed") % _LARGER != 0)
    host = spared.select("process_id", "start", "end")
    return change._replace(host=host, calls=calls_within(report, spared))


RULES: Final = (small_batches,)
