"""Data that go to the host in the middle of the work: the shapes of boolean masks, and large tensors."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.findings.rules._operators import (
    SPAN,
    TO_DEVICE,
    TO_HOST,
    Told,
    on_time,
    operators,
    own_within,
    traced,
    within,
)
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration
from kanalyze.analyses.shared.statistics import total
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.lookup import nearest
from kanalyze.units import size

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.report import Report

#: The operator that finds where a mask is true, and kernels that it launches, the last of which need its answer.
_FINDS: Final = "aten::nonzero"
_FINDING: Final = r"NonZeroOp|nonzero|DeviceSelectSweep|DeviceCompactInit|write_indices"

#: The size of a count, which the host reads.
_COUNT_BYTES: Final = 8

#: What takes the place of a mask takes the host so long to launch, about (ns).
_LAUNCH_NS: Final = 10_000

#: Smaller copies are of numbers; of so many bytes in each iteration they are a model, or data.
_LEAST_BYTES: Final = 1 << 12
_MANY_BYTES: Final = 1 << 20

_MASKS: Final = Told(
    "boolean-masks",
    "A boolean mask or nonzero makes the host wait for a shape",
    "torch.where(mask, x, 0) in place of x[mask]; sort by expert and slice",
    (
        "Compute on all and choose by torch.where, or multiply by the mask; where rows go to experts or buckets, sort "
        "them once and take slices of known or padded sizes."
    ),
)
_IN_PYTORCH: Final = "compute it on the GPU (torch.histc, .norm()), or every N steps"
_DOWNLOADS: Final = Told(
    "downloads",
    "Large data are copied to the host again and again",
    "compute on the GPU what is reported, and copy that; or every N steps",
    (
        "Compute on the GPU what is logged (histograms, norms, means) and copy that, or do it every so many steps; "
        "copy what is whole into pinned memory, asynchronously, and use it a step later."
    ),
    "memory",
)


def boolean_masks(report: Report) -> list[Finding]:
    """At most one finding per device, on reads of how many elements of a mask are true."""
    if not in_pytorch(report):
        return []
    own = operators(report)
    spans = own.filter((pl.col("name") == _FINDS) & pl.col("called")).select(SPAN) if own.height else _kernels(report)

    def sentence(number: int, taken: str) -> str:
        many = per_iteration(report).plural(number, "time")
        return f"Indices of a mask's true elements are asked for {many}, for whose number the host waits: {taken}."

    return on_time(report, _MASKS, within(report, _until_next(report, spans)), sentence, partial(_unasked, spans=spans))


def _unasked(report: Report, spans: pl.DataFrame) -> Mending:
    """Nothing is asked for, but what takes its place is launched."""
    kept = pl.min_horizontal(pl.col("start") + _LAUNCH_NS, "end")
    left = within(report, spans.with_columns(start=kept)).mending
    asked = within(report, spans)
    return left._replace(gone=asked.work, calls=asked.calls)


def _until_next(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The spans, each until the next launch of its thread, but at most twice as long: the device waits for that."""
    launches = operations(traced(report) or report, "call_start", "thread_id").drop_nulls("call_start")
    following = launches.select(*THREAD, until="call_start").sort("until")
    line = nearest(spans, following, ("end", "until"), THREAD, "after")
    end = pl.min_horizontal("until", 2 * pl.col("end") - pl.col("start"))
    return line.select(*THREAD, "start", end=pl.coalesce(end, "end")).sort(*THREAD, "start")


def _launched(report: Report) -> pl.DataFrame:
    """The first operation of each launch call by thread and time: name, kind, way, bytes, call_start, call_end."""
    columns = ("call_row", "call_start", "call_end", "thread_id", "size_bytes")
    work = operations(report, *columns).drop_nulls(["call_row", "call_start", "thread_id"])
    line = work.sort(*THREAD, "call_start").unique("call_row", keep="first", maintain_order=True)
    text = pl.col("name").cast(pl.String)
    way, moved = pl.col("detail").cast(pl.String), pl.col("size_bytes").fill_null(0)
    return line.select(*THREAD, "row", "kind", "call_start", "call_end", name=text, way=way, bytes=moved)


def _kernels(report: Report) -> pl.DataFrame:
    """Runs of kernels that find true elements, with the read of their number among them."""
    line = _launched(report)
    finds = (pl.col("kind") == "kernel") & pl.col("name").str.contains(_FINDING).fill_null(value=False)
    reads = (pl.col("way") == TO_HOST) & (pl.col("bytes") <= _COUNT_BYTES)
    marked = line.with_columns(finds=finds, reads=reads.fill_null(value=False))
    following = pl.col("call_start").shift(-1).over(THREAD)
    marked = marked.with_columns(until=pl.when("reads").then(following).otherwise(None).fill_null(pl.col("call_end")))
    part = (pl.col("finds") | pl.col("reads")).alias("part")
    asked = pl.col("reads").cast(pl.UInt32).cum_sum().shift(1, fill_value=0)
    runs = marked.with_columns(part, run=part.rle_id().over(THREAD), asked=asked).filter("part")
    found = runs.group_by(*THREAD, "run", "asked", maintain_order=True).agg(
        pl.col("finds", "reads").any(), start=pl.col("call_start").first(), end=pl.col("until").last()
    )
    return found.filter(pl.col("finds") & pl.col("reads")).select(SPAN)


def downloads(report: Report) -> list[Finding]:
    """At most one finding per device, on copies of much data to the host in each iteration."""
    line, iterations = _launched(report), per_iteration(report).iterations or 1
    following = pl.col("way").shift(-1).over(THREAD)
    to_host = (pl.col("way") == TO_HOST) & (pl.col("bytes") >= _LEAST_BYTES)
    after, another = pl.col("call_start").shift(-1).over(THREAD), (following == TO_HOST).fill_null(value=False)
    end = pl.when(another).then(after).otherwise(pl.min_horizontal(after, pl.col("call_end") + _RETURN_NS))
    copies = line.with_columns(back=following == TO_DEVICE, end=pl.coalesce(end, "call_end")).filter(to_host)
    copies = copies.filter(~pl.col("back").fill_null(value=False))
    seen = copies.join(exclusive_operations(report).select("row"), on="row", how="semi")
    if (moved := total(seen, "bytes")) < _MANY_BYTES * iterations:
        return []
    spans = copies.select(*THREAD, "end", start="call_start")
    each = size(moved // iterations)

    many = per_iteration(report).plural(seen.height, "copy", "to the host")
    text = f"{many}, {each} {'in each' if iterations > 1 else 'in all'}"
    told = _DOWNLOADS._replace(action=_IN_PYTORCH) if in_pytorch(report) else _DOWNLOADS
    return on_time(report, told, own_within(report, spans), lambda _, taken: f"{text}: {taken}.")


#: A call that waits returns so long after a copy's, at most (ns).
_RETURN_NS: Final = 50_000

RULES: Final = (boolean_masks, downloads)
