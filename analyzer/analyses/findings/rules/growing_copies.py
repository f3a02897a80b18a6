"""Tensors that are copied to grow by a piece, and tensors that are repeated in memory."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import kernel_sums, launching_operators
from kanalyze.analyses.findings.rules._telling import in_pytorch, per_iteration, place_of
from kanalyze.analyses.replay._mending import Mending
from kanalyze.analyses.shared.statistics import total
from kanalyze.units import percent

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules._kernels import DeviceKernels
    from kanalyze.decoder.fields import KernelName
    from kanalyze.report import Report

#: Less of the kernel time is left out.
_WORTH: Final = 0.08

#: Concatenations grow where the later ones of the window take longer: so many, with such a correlation of time and
#: place, and the last quarter so much longer than the first one.
_FEWEST: Final = 16
_CORRELATED: Final = 0.3
_GROWS: Final = 1.005

#: The same within iterations: from eighth to eighth, none far longer than the one before, but for the first: layers
#: that join images of other sizes are.
_EIGHTHS: Final = 8
_GROWS_WITHIN: Final = 1.3
_JUMPS: Final = 2.0

#: What users write that repeats a tensor in memory, by the operators.
_REPEATS: Final = {"aten::repeat": ".repeat()", "aten::repeat_interleave": "repeat_interleave", "aten::tile": "tile"}

_ONCE: Final = (
    "Make the tensor once, as large as it gets, and write each piece into it: cache[:, :, at] = key, with a view "
    "of what is filled for attention (transformers: StaticCache); or collect pieces in a list, and join them once."
)
_IN_PLACE: Final = "cache[:, :, at:at + 1] = new, in a tensor made once"

#: Direction of a copy within a device.
_WITHIN: Final = "Device-to-Device"

#: What is left of a copy: one of the new piece alone (ns).
_LEFT_NS: Final = 2000


def growing_concatenations(report: Report) -> list[Finding]:
    """At most two findings per device: concatenations that grow, and repeated tensors."""
    found = []
    for device in kernel_sums(report) if in_pytorch(report) else ():
        joined = device.chosen(lambda said: said.library == "aten" and said.operation == "cat")
        work = exclusive_operations(report).filter(joined.operations(device.device)).sort("start")
        if joined.share >= _WORTH and _grow(work.get_column("dur_ns"), per_iteration(report).iterations or 1):
            found.append(_growing(report, device, work))
        if device.chosen(_is_copy).share >= _WORTH:
            copies = exclusive_operations(report).filter(device.chosen(_is_copy).operations(device.device))
            copies = copies.join(launching_operators(report), on="row").filter(pl.col("outer").is_in(_REPEATS.keys()))
            if total(copies, "exclusive_ns") >= _WORTH * device.kernel_ns:
                found.append(_repeated(report, device, copies))
    return found


def growing_copies(report: Report) -> list[Finding]:
    """One finding per device on copies within it of what was there, each followed by one of the piece that is new."""
    work = exclusive_operations(report, "size_bytes", "stream").filter(pl.col("detail") == _WITHIN).sort("start")
    size, beside = pl.col("size_bytes"), ["device", "stream"]
    grows = (size.shift(-2) == size + size.shift(-1)).over(beside) & (size > size.shift(-1)).over(beside)
    after = grows.shift(2).over(beside)
    told = work.with_columns(grows=(grows | (after & (size > size.shift(-1).over(beside)))).fill_null(value=False))
    found = []
    for (device,), own in told.filter("grows").partition_by("device", as_dict=True, maintain_order=True).items():
        busy = exclusive_operations(report).filter(pl.col("device") == device)
        ns, whole = total(own, "exclusive_ns"), total(busy, "exclusive_ns")
        if own.height < _FEWEST or ns < _WORTH * whole:
            continue
        per, share = per_iteration(report), percent(ns / max(whole, 1))
        text = (
            f"{per.plural(own.height, 'copy')} within GPU {device} take {per.time(ns)}, {share} of its work: each is "
            "as large as the one before and the piece that came after it, so that all of a growing array is copied "
            "for each piece."
        )
        one = Finding("growing-copies", int(str(device)), ns, text, _ONCE, "copies", claims=own.select("start", "end"))
        rows = own.get_column("row")
        found.append(
            one._replace(
                headline=f"A growing array is copied whole for each piece: {share}",
                action=_IN_PLACE
                if in_pytorch(report)
                else "write each piece into an array made once, as large as it gets",
                where=place_of(report, pl.col("row").is_in(rows.implode())),
                mending=partial(_gone, rows=rows),
                shortens=True,
            )
        )
    return found


def _gone(_: Report, rows: pl.Series) -> Mending:
    return Mending(gone=rows)


def _is_copy(said: KernelName) -> bool:
    return said.library == "aten" and (said.operation == "copy" or said.family == "index")


def _grow(took: pl.Series, iterations: int) -> bool:
    """Whether durations grow along the window, or along each of so many iterations of equally many."""
    each = len(took) // iterations
    whole = took.head(each * iterations).to_frame("ns").with_row_index("at")
    within = whole.group_by(pl.col("at") % max(each, 1)).agg(pl.col("ns").mean()).sort("at").get_column("ns")
    quarter = len(took) // 4
    along, longer = whole.select(
        pl.corr("at", "ns"), longer=pl.col("ns").tail(quarter).mean() >= _GROWS * pl.col("ns").head(quarter).mean()
    ).row(0)
    grows = bool(longer and along is not None and along >= _CORRELATED)
    return bool(len(took) >= _FEWEST and (grows or _rises(within)))


def _rises(took: pl.Series) -> bool:
    """Whether durations grow steadily from eighth to eighth."""
    if len(took) < _FEWEST:
        return False
    parts = took.to_frame("ns").with_columns(part=pl.int_range(pl.len()) * _EIGHTHS // pl.len())
    means = parts.group_by("part").agg(pl.col("ns").mean()).sort("part").get_column("ns").to_list()
    steps = [after / before for before, after in pairwise(means)]
    return bool(min(steps) > 1 and means[-1] >= _GROWS_WITHIN * means[0] and max(steps[1:]) <= _JUMPS)


def _growing(report: Report, device: DeviceKernels, work: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(work, "exclusive_ns")
    share = percent(ns / max(device.kernel_ns, 1))
    text = (
        f"{told.plural(work.height, 'concatenation')} (most {{0}}) take {told.time(ns)}, {share} of kernel time, and "
        "longer and longer: the tensor that grows is copied whole for each piece."
    )
    return _finding(
        report,
        device,
        work,
        text,
        _ONCE,
    )._replace(headline=f"torch.cat copies a growing tensor for each piece: {share}", action=_IN_PLACE)


def _repeated(report: Report, device: DeviceKernels, work: pl.DataFrame) -> Finding:
    told, ns = per_iteration(report), total(work, "exclusive_ns")
    share = percent(ns / max(device.kernel_ns, 1))
    top = work.group_by("outer").agg(pl.col("exclusive_ns").sum()).sort("exclusive_ns", "outer").item(-1, "outer")
    text = (
        f"{told.plural(work.height, 'kernel')} (most {{0}}) repeat tensors in memory ({_REPEATS[top]}): "
        f"{told.time(ns)}, {share} of kernel time. Operators broadcast what is expanded without a copy."
    )
    return _finding(
        report,
        device,
        work,
        text,
        "Use .expand() or a dimension of 1, which operators broadcast; of keys and values of grouped queries, "
        "scaled_dot_product_attention(…, enable_gqa=True).",
    )._replace(
        headline=f"Tensors are repeated in memory ({_REPEATS[top]}): {share}",
        action=".expand() or broadcasting; enable_gqa=True in attention",
    )


def _finding(report: Report, device: DeviceKernels, work: pl.DataFrame, text: str, remedy: str) -> Finding:
    saved = (pl.col("dur_ns") - _LEFT_NS).clip(lower_bound=0)
    return Finding(
        "growing-copies",
        device.device,
        total(work, "exclusive_ns"),
        text,
        remedy,
        "kernels --by operation",
        (str(work.sort("exclusive_ns").item(-1, "name")),),
        where=place_of(report, pl.col("row").is_in(work.get_column("row").implode())),
        mending=lambda _: Mending(shorter=work.select("row", saved_ns=saved)),
        shortens=True,
        claims=work.select("start", "end"),
    )


RULES: Final = (growing_concatenations, growing_copies)
