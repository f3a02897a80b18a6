"""Work of the CPU between two launches of a program of PyTorch: operators on tensors of the host, and their making."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.findings.rules._operators import TO_DEVICE, TO_HOST, Told, on_time, outermost, within
from kanalyze.analyses.findings.rules._telling import all_along, in_pytorch, per_iteration
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.units import size

if TYPE_CHECKING:
    from kanalyze.analyses.findings.rules import Finding
    from kanalyze.analyses.replay._mending import Mending
    from kanalyze.report import Report

#: Operators that launch nothing on any device: they change how a tensor is seen, or get memory.
_NO_WORK: Final = (
    r"^aten::(?:_?unsafe_)?(?:view|view_as|reshape|reshape_as|t|transpose|permute|movedim|unbind|select|slice|narrow|split"
    r"|chunk|expand|expand_as|as_strided|detach|detach_|alias|squeeze|unsqueeze|flatten|unflatten|empty|empty_like"
    r"|empty_strided|new_empty|resize_|set_|lift_fresh|result_type|is_same_size|size|stride|numpy_T|T|mT|_reshape_alias"
    r"|diagonal|unfold|swapaxes|real|view_as_real|view_as_complex|requires_grad_|_local_scalar_dense|item|split_with_sizes"
    r"|_has_compatible_shallow_copy_type|tensor_split|hsplit|vsplit|broadcast_tensors|meshgrid|to|_to_copy|contiguous|clone|linear|matmul|dropout)_?$"
)

#: Operators that make a tensor of nothing.
_CREATES: Final = (
    r"^aten::(?:full|full_like|ones|ones_like|zeros|zeros_like|arange|linspace|logspace|eye|tril_indices|triu_indices|rand"
    r"|randn|randint|randperm|rand_like|randn_like|hann_window|hamming_window|tensor|scalar_tensor|new_full|new_zeros"
    r"|new_ones|lift_fresh|normal|bernoulli|cartesian_prod)$"
)

#: Operators that change the type, the range or the layout of data.
_CONVERTS: Final = (
    r"^aten::(?:to|_to_copy|div|div_|mul|mul_|sub|sub_|add|add_|permute|contiguous|clone|float|half|copy_)$"
)

#: A launch of an operator takes the host so long, about, wherever its tensor is (ns).
_LAUNCH_NS: Final = 10_000

#: An operator on the CPU that no copy is seen beside takes so long at least (ns); launches that the host is late for.
_LONG_NS: Final = 100_000

#: A tensor of so many bytes or more is data.
_DATA_BYTES: Final = 1 << 20

#: So much data may come from the host that is no batch.
_FEW_BYTES: Final = 1 << 16

#: The size of the largest number that PyTorch reads as one.
_SCALAR_BYTES: Final = 16


@once_per_process
def _runs(report: Report) -> pl.DataFrame:
    """Runs of operators that launch nothing between two that do, with work of the CPU in them.

    Columns: process_id, thread_id, start, end (with the copies from and to the device beside them), kind (the rule's
    name), operators (number of those that compute), top (the one that takes most),
    top_ns, bytes (copied to the device).
    """
    line = outermost(report).filter(~pl.col("aside")).sort(*THREAD, "start")
    launching = (pl.col("launches") > 0) | pl.col("called")
    line = line.with_columns(run=launching.cast(pl.UInt32).cum_sum().over(THREAD), launching=launching)
    computes = ~pl.col("launching") & ~pl.col("name").str.contains(_NO_WORK)
    creates, converts = pl.col("name").str.contains(_CREATES), pl.col("name").str.contains(_CONVERTS)
    took = pl.col("end") - pl.col("start")
    own = ~pl.col("launching")
    line = line.with_columns(took=took, computes=computes, creates=creates & own, works=own & (computes | converts))
    most = pl.when("works").then("took")
    runs = line.group_by(*THREAD, "run", maintain_order=True).agg(
        first=pl.col("start").filter(own).min(),
        last=pl.col("end").filter(own).max(),
        before_start=pl.col("start").filter("launching").first(),
        to_host_bytes=pl.col("to_host_bytes").filter("launching").first().fill_null(0),
        operators=pl.col("computes").sum(),
        created=pl.col("creates").any(),
        converts=(pl.col("works") & ~pl.col("creates")).any(),
        top=pl.col("name").sort_by(most, nulls_last=False).last(),
        top_ns=most.max(),
    )
    following = line.filter("launching").select(*THREAD, "run", "to_device", bytes="to_device_bytes", after_end="end")
    runs = runs.join(following.with_columns(run=pl.col("run") - 1), on=[*THREAD, "run"], how="left", nulls_equal=True)
    uploads, downloads = pl.col("to_device").fill_null(0) > 0, pl.col("to_host_bytes") > _SCALAR_BYTES
    long = pl.col("top_ns") >= _LONG_NS
    kind = (
        pl.when(downloads & (pl.col("operators") > 0) & ((pl.col("top_ns") >= 2 * _LAUNCH_NS) | uploads))
        .then(pl.lit("cpu-operators"))
        .when(uploads & pl.col("created"))
        .then(pl.lit("cpu-tensors"))
        .when(uploads & pl.col("converts") & (pl.col("bytes") >= _DATA_BYTES))
        .then(pl.lit("large-upload"))
        .when(long & (pl.col("operators") > 0) & ~pl.col("created"))
        .then(pl.lit("cpu-operators"))
    )
    told = runs.with_columns(kind=kind).drop_nulls(["kind", "first"])
    start = pl.when(downloads & (pl.col("kind") == "cpu-operators")).then("before_start").otherwise("first")
    end = pl.when(uploads).then("after_end").otherwise("last")
    return told.select(*THREAD, "kind", "operators", "top", "top_ns", "bytes", start=start, end=end)


@once_per_process
def _between_copies(report: Report) -> pl.DataFrame:
    """In a report without operators: host time from a copy to the host to the next launch, a copy to the device.

    Columns as in :func:`_runs`. The copy to the device is of no more data, which tells it from the next batch.
    """
    columns = ("call_row", "call_start", "call_end", "thread_id", "size_bytes")
    work = operations(report, *columns).drop_nulls(["call_row", "call_start", "thread_id"])
    line = work.sort(*THREAD, "call_start").unique("call_row", keep="first", maintain_order=True)
    way, moved = pl.col("detail").cast(pl.String), pl.col("size_bytes").fill_null(0)
    following = {name: pl.col(name).shift(-1).over(THREAD) for name in ("call_start", "call_end")}
    pairs = line.select(
        *THREAD,
        kind=pl.lit("cpu-operators"),
        operators=pl.lit(1, pl.UInt32),
        top=pl.lit(None, pl.String),
        top_ns=following["call_start"] - pl.col("call_end"),
        bytes=moved.shift(-1).over(THREAD),
        start="call_start",
        end=following["call_end"],
        told=(way == TO_HOST) & (way.shift(-1).over(THREAD) == TO_DEVICE) & (moved > _SCALAR_BYTES),
        least=pl.max_horizontal(moved, pl.lit(_FEW_BYTES)),
    )
    known = pairs.filter(pl.col("told") & (pl.col("bytes") <= pl.col("least")) & (pl.col("top_ns") >= _LONG_NS))
    return known.drop("told", "least")


_COMPUTED: Final = Told(
    "cpu-operators",
    "The CPU computes in the middle of the GPU's work",
    "compute it on the GPU: no .cpu(), .numpy() or CPU tensors before it",
    (
        "Keep the tensors on the GPU: sampling, softmax, sorting and metrics run there, too; copy what is left of "
        "them, and only where the host needs it."
    ),
    "culprits",
)
_MADE: Final = Told(
    "cpu-tensors",
    "A tensor is made on the CPU and copied, again and again",
    "torch.full(…, device=x.device), or make it once: register_buffer",
    (
        "Make it once, before the loop (register_buffer in a module), or where it is needed: device=x.device, "
        "dtype=x.dtype; attention takes is_causal=True in place of a mask."
    ),
    "culprits",
)
_CONVERTED: Final = Told(
    "large-upload",
    "Data are converted on the CPU before they are copied",
    "x.to(device, non_blocking=True).float() / 255: copy first, then convert",
    (
        "Copy the data as they are stored (uint8, int16), and convert and normalize them on the GPU: fewer bytes are "
        "copied, and the CPU does nothing."
    ),
    "culprits",
)


def cpu_operators(report: Report) -> list[Finding]:
    """At most one finding per device, on operators that the CPU computes between launches."""
    how = "The CPU computes on tensors of the host between launches, most in {}"
    return _told(report, _COMPUTED, how)


def cpu_tensors(report: Report) -> list[Finding]:
    """At most one finding per device, on tensors that are made on the CPU and copied to it again and again."""
    return _told(report, _MADE, "A tensor is made on the CPU (most time in {}) and copied to the GPU")


def large_upload(report: Report) -> list[Finding]:
    """At most one finding per device, on data that the CPU converts before they are copied to it."""
    return _told(
        report, _CONVERTED, "Data are converted on the CPU (most time in {}) before they are copied to the GPU"
    )


def _told(report: Report, told: Told, how: str) -> list[Finding]:
    if not in_pytorch(report):
        return []
    runs = _runs(report) if outermost(report).height else _between_copies(report)
    runs = runs.filter(pl.col("kind") == told.rule)
    inside = within(report, runs)
    if runs.is_empty() or not any(
        inside.host.select(all_along(pl.col("start"), low, high)).item() for _, low, high in windows(report).iter_rows()
    ):
        return []
    top = runs.group_by("top").agg(pl.col("top_ns").sum()).sort("top_ns", "top").item(-1, "top")
    moved = int(runs.select(pl.col("bytes").median().fill_null(0)).item())
    copied = f", {size(moved)} copied to the GPU each time" if moved else ""
    told = told._replace(headline=f"{told.headline}: {literal(top)}") if top else told
    what = how.format(literal(top) if top else "what the host does between a copy to it and one back")

    def sentence(number: int, taken: str) -> str:
        return f"{what}, {per_iteration(report).plural(number, 'time')}{copied}: {taken}."

    return on_time(report, told, inside, sentence, partial(_spared, runs=runs, stay=told.rule == _COMPUTED.rule))


def _spared(report: Report, runs: pl.DataFrame, *, stay: bool) -> Mending:
    """The time of the runs is gone, but for launches of the operators that the device computes then."""
    kept = pl.col("operators").cast(pl.Int64) * _LAUNCH_NS if stay else pl.lit(0)
    left = runs.with_columns(start=pl.min_horizontal(pl.col("start") + kept, "end"))
    return within(report, left).mending._replace(gone=within(report, runs).work)


RULES: Final = (cpu_operators, cpu_tensors, large_upload)
