"""Work of the CPU between two launches of a program of PyTorch: operators on tensors of the host, and their making."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import facts_of, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import literal
from kanalyze.analyses.findings.rules._operators import TO_DEVICE, TO_HOST, Told, on_time, operators, outermost, within
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
    r"|_has_compatible_shallow_copy_type|tensor_split|hsplit|vsplit|broadcast_tensors|to|_to_copy|contiguous|clone"
    r"|dropout)_?$"
)

#: Operators that make a tensor of nothing, and the one that PyTorch runs on what it made of Python's or NumPy's data.
_LIFTS: Final = "aten::lift_fresh"
_CREATES: Final = (
    r"^aten::(?:full|full_like|ones|ones_like|zeros|zeros_like|arange|linspace|logspace|eye|tril_indices|triu_indices|rand"
    r"|randn|randint|randperm|rand_like|randn_like|hann_window|hamming_window|tensor|scalar_tensor|new_full|new_zeros"
    r"|new_ones|normal|bernoulli|cartesian_prod)$"
)

#: Operators that change the type, the range or the layout of data.
_CONVERTS: Final = (
    r"^aten::(?:to|_to_copy|div|div_|mul|mul_|sub|sub_|add|add_|permute|contiguous|clone|float|half|copy_)$"
)

#: Types of a copy that makes data smaller: into 16 bits, of more.
_SHORTENS: Final = r"^\[\s*\"c10::(?:BFloat16|Half)\",\s*\"(?:float|double)\""

#: A launch of an operator takes the host so long, about, wherever its tensor is (ns).
_LAUNCH_NS: Final = 10_000

#: An operator on the CPU that no copy is seen beside takes so long at least (ns); launches that the host is late for.
_LONG_NS: Final = 100_000

#: What is copied back is up to so many times as large as what came: one-hot vectors of numbers of classes are.
_LARGER: Final = 32

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
    line = outermost(report).sort(*THREAD, "start")
    launching = (pl.col("launches") > 0) | pl.col("called") | pl.col("aside")
    line = line.with_columns(run=launching.cast(pl.UInt32).cum_sum().over(THREAD), own=~launching)
    line = line.with_columns(shortens=_shortens(report, line))
    name, own, launches = pl.col("name"), pl.col("own"), ~pl.col("own")
    computes = own & ~name.str.contains(_NO_WORK)
    converts = own & name.str.contains(_CONVERTS) & ~pl.col("shortens")
    works = computes | (own & name.str.contains(_CONVERTS))
    took = pl.when("works").then(pl.col("end") - pl.col("start"))
    line = line.with_columns(computes=computes, works=works)
    runs = line.group_by(*THREAD, "run", maintain_order=True).agg(
        first=pl.col("start").filter(own).min(),
        last=pl.col("end").filter(own).max(),
        before_start=pl.col("start").filter(launches).first(),
        before_end=pl.col("end").filter(launches).first(),
        to_host_bytes=pl.col("to_host_bytes").filter(launches).first().fill_null(0),
        operators=pl.col("computes").sum(),
        created=(own & name.str.contains(_CREATES)).any(),
        lifted=(own & (name == _LIFTS)).any(),
        lifted_first=(name.filter(own).first() == _LIFTS).fill_null(value=False),
        converts=converts.any(),
        top=name.sort_by(took, nulls_last=False).last(),
        top_ns=took.max(),
    )
    after = {"bytes": "to_device_bytes", "after_start": "start", "after_end": "end", "to_host_next": "to_host"}
    following = line.filter(launches).select(*THREAD, "run", "to_device", **after)
    runs = runs.join(following.with_columns(run=pl.col("run") - 1), on=[*THREAD, "run"], how="left", nulls_equal=True)
    # torch.tensor(…, device=…) copies before it lifts
    lifted = pl.col("lifted") | pl.col("lifted_first").shift(-1, fill_value=False).over(THREAD)
    return _of_kinds(runs.with_columns(lifted=lifted & (pl.col("bytes") < _DATA_BYTES)))


def _shortens(report: Report, line: pl.DataFrame) -> pl.Series:
    """Whether operators of `line` (row, stop) convert data into a shorter type: where types were recorded."""
    every = operators(report)
    shorter = (every.get_column("name") == "aten::copy_") & every.get_column("input_types").cast(
        pl.String
    ).str.contains(_SHORTENS).fill_null(value=False)
    copies = every.filter(shorter).select(copy="row").sort("copy")
    inside = line.select("row", "stop").with_row_index("at").sort("row")
    inside = inside.join_asof(copies, left_on="row", right_on="copy", strategy="forward").sort("at")
    return inside.select((pl.col("copy") < pl.col("stop")).fill_null(value=False)).to_series()


def _of_kinds(runs: pl.DataFrame) -> pl.DataFrame:
    """The runs of a kind, with what of their time, and of what is around them, is work of the CPU."""
    uploads, downloads = pl.col("to_device").fill_null(0) > 0, pl.col("to_host_bytes") > _SCALAR_BYTES
    back = uploads & (pl.col("bytes") <= _LARGER * pl.col("to_host_bytes"))
    by_operators = (pl.col("operators") > 0) & ((pl.col("top_ns") >= 2 * _LAUNCH_NS) | back)
    by_others = back & (pl.col("after_start") - pl.col("before_end") >= _LONG_NS)
    computing = downloads & (by_operators | by_others) & (pl.col("to_host_next").fill_null(0) == 0)
    kind = (
        pl.when(computing)
        .then(pl.lit("cpu-operators"))
        .when(uploads & (pl.col("created") | pl.col("lifted")))
        .then(pl.lit("cpu-tensors"))
        .when(uploads & pl.col("converts") & (pl.col("bytes") >= _DATA_BYTES))
        .then(pl.lit("large-upload"))
        .when((pl.col("top_ns") >= _LONG_NS) & (pl.col("operators") > 0) & ~pl.col("created") & ~uploads & ~downloads)
        .then(pl.lit("cpu-operators"))
    )
    told = runs.with_columns(kind=kind).drop_nulls("kind")
    of_python = (pl.col("kind") == "cpu-tensors") & ~pl.col("created")
    start = pl.when(computing).then("before_start").when(of_python).then("before_end").otherwise("first")
    end = pl.when(pl.when(computing).then(back).otherwise(uploads)).then("after_end").otherwise("last")
    top = pl.when(of_python | (pl.col("operators") == 0)).then(None).otherwise("top")
    spans = told.select(*THREAD, "kind", "operators", "top_ns", "bytes", top=top, start=start, end=end)
    return spans.drop_nulls(["start", "end"]).filter(pl.col("end") > pl.col("start"))


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
_ELSEWHERE: Final = "compute it on the GPU, too: no copy to the host, and back"
_REMEDY_ELSEWHERE: Final = (
    "Keep the data on the GPU, and let a kernel or a library (jax.random, CuPy, Thrust, CUB) do what the host does; "
    "copy only what is needed there."
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
_OF_PYTHON: Final = "Data of Python or NumPy become tensors and are copied, each time"
_KEPT: Final = "keep what recurs on the GPU: make it once, or data[rows] there"
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
    torch = in_pytorch(report)
    runs = _runs(report) if torch and outermost(report).height else _between_copies(report)
    runs = runs.filter(pl.col("kind") == told.rule)
    inside = within(report, runs)
    along = [inside.host.select(all_along(pl.col("start"), *sides)).item() for _, *sides in windows(report).iter_rows()]
    if runs.is_empty() or not (any(along) or per_iteration(report).iterations):
        return []
    top = runs.group_by("top").agg(pl.col("top_ns").sum()).sort("top_ns", "top").item(-1, "top")
    moved = int(runs.select(pl.col("bytes").median().fill_null(0)).item())
    copied = f", {size(moved)} copied to the GPU each time" if moved else ""
    told = told._replace(headline=f"{told.headline}: {literal(top)}") if top else told
    if not torch:
        told = told._replace(action=_ELSEWHERE, remedy=_REMEDY_ELSEWHERE)
    elif not top and told.rule == _MADE.rule:
        told = told._replace(headline=_OF_PYTHON, action=_KEPT)
    what = how.format(literal(top) if top else _UNNAMED[told.rule])

    def sentence(number: int, taken: str) -> str:
        return f"{what}, {per_iteration(report).plural(number, 'time')}{copied}: {taken}."

    return on_time(report, told, inside, sentence, partial(_spared, runs=runs, rule=told.rule))


#: What takes most time where no operator does.
_UNNAMED: Final = {
    _COMPUTED.rule: "what the host does between a copy to it and one back",
    _MADE.rule: "Python and NumPy",
    _CONVERTED.rule: "Python and NumPy",
}


def _spared(report: Report, runs: pl.DataFrame, rule: str) -> Mending:
    """The time of the runs is gone, but for launches of the operators that the device computes then.

    Data that were converted before are still copied, by a quarter: they are bytes that became four each.
    """
    every = within(report, runs)
    if rule == _MADE.rule:
        return every.mending
    kept = pl.min_horizontal(pl.col("start") + pl.col("operators").cast(pl.Int64) * _LAUNCH_NS, "end")
    left = within(report, runs.with_columns(start=kept)).mending
    if rule == _COMPUTED.rule:
        return left._replace(gone=every.work)
    facts = facts_of(report, every.work, "dur_ns", "detail").with_columns(every.work.alias("row"))
    copies = facts.filter(pl.col("detail").cast(pl.String) == TO_DEVICE)
    gone = facts.join(copies, on="row", how="anti").get_column("row")
    saved = (pl.col("dur_ns") * _SPARED_OF_COPIES).cast(pl.Int64)
    return left._replace(gone=gone, shorter=copies.select("row", saved_ns=saved))


#: Of a copy of float32 in place of bytes so much is spared.
_SPARED_OF_COPIES: Final = 0.75

RULES: Final = (cpu_operators, cpu_tensors, large_upload)
