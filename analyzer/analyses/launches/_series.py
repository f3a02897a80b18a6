"""Series of launches by one thread onto one stream, split at calls that a CUDA graph capture does not allow."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import (
    device_operations,
    exclusive_operations,
    facts_of,
    operations,
    with_facts,
)
from kanalyze.analyses.host._call_kinds import bucket_of, calls_that, names_that
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.analyses.shared.workers import in_threads
from kanalyze.analyses.streams._streams import streamed_operations, used_streams
from kanalyze.columns.grouping import grouped, mixed, of_parts, slices
from kanalyze.columns.lookup import count_up_to, positions
from kanalyze.columns.ordering import in_order

if TYPE_CHECKING:
    from kanalyze.report import Report


#: The columns of :func:`_implicit_order`.
_ORDER: Final = ("context", "type")

#: What tells a kernel on a device from others.
_KERNEL: Final = ("process_id", "device", "name")

#: More than the number of splits in any series.
_MORE_THAN_SPLITS: Final = 1 << 32

#: Calls, besides blocking ones, that a capture does not allow or a replay would not repeat.
_CUTS: Final = re.compile(r"(?:cuda|cu)(?:Event|Stream)Query|(?:cuda|cu)GraphLaunch|(?:cuda|cu)Stream(?:Begin|End)Cap")
_ASYNC: Final = "Async"

#: Stream types that synchronise implicitly within a context: while one is captured, the other must not be used.
_ORDERED: Final = ("null", "blocking")

#: Copies from or to such memory block the thread, even if their call is asynchronous.
_PAGEABLE: Final = "Pageable"


def launch_series(report: Report) -> pl.DataFrame:
    """The operations in scope that a capture allows and that were launched by a call of their own, by series.

    Columns: row (of :func:`operations`), series and stretch (numbers; a stretch lies between two splits), code (equal
    for the same operation with the same shape), first (whether it is a kernel's first launch) and apart (ns from
    the return of the previous launch in the stretch to the return of its own; 0 for the first one).
    """
    line, cuts = _launched(report)
    line = in_order(_passed(line, cuts), "series")
    stretch = pl.col("series").cast(pl.UInt64) * _MORE_THAN_SPLITS + pl.col("passed")
    line = line.with_columns(stretch=stretch.rle_id()).drop("passed")
    together = pl.col("stretch") == pl.col("stretch").shift(1)
    return line.with_columns(pl.when(together).then("apart").fill_null(0).clip(lower_bound=0).alias("apart"))


def _launched(report: Report) -> tuple[pl.DataFrame, dict[tuple[object, ...], pl.Series]]:
    """The operations in scope that a capture allows, by call, with codes; and the split times of :func:`_cut_times`.

    Columns: row, series, code, first, apart (from the thread's previous launch), call_start, and those of
    :data:`THREAD` and of :func:`_implicit_order`.
    """
    line = in_order(_coded(report), "call_start")  # in a window, of what it takes to tell of its launches
    cuts = _cut_times(report, line.filter("cut").select(*THREAD, start_ns="call_start"))
    line = _with_apart(report, line).drop("call_end")
    windowed = report.scope.window is not None
    first = pl.col("kernel").is_first_distinct() & pl.col("kernel").is_not_null()
    first = pl.col("row").is_in(_first_launches(report, line).implode()) if windowed else first
    line = line.with_columns(first=first).drop("kernel")  # before filtering, which would hold both in memory
    line = (line.filter(~pl.col("cut")) if line.get_column("cut").any() else line).drop("cut")
    if windowed:
        line = line.join(exclusive_operations(report).select("row"), on="row", how="semi", maintain_order="left")
    return line, cuts


def _first_launches(report: Report, line: pl.DataFrame) -> pl.Series:
    """The rows of the first launch in the recording of each kernel in `line` that a capture allows."""
    names = facts_of(report, line.drop_nulls("kernel").get_column("row"), *_KERNEL).unique()
    work = device_operations(report).select("row", *_KERNEL, "kind")
    work = work.filter(
        (pl.col("kind") == "kernel") & pl.col("name").is_in(names.get_column("name").implode(), nulls_equal=True)
    )
    barred = pl.col("call_name").is_in(names_that(report, _splits_series)).fill_null(value=False)
    allowed = with_facts(report, work, "call_start", "call_name").filter(pl.col("call_start").is_not_null() & ~barred)
    return grouped(allowed, _KERNEL, [pl.col("row").get(pl.col("call_start").arg_min())]).get_column("row")


def _implicit_order(report: Report) -> list[pl.Series]:
    """The context and stream type of each operation on the devices in scope, as `context` and `type`.

    Empty if no context used both its default stream and blocking ones, which synchronise implicitly.
    """
    known = used_streams(report).filter(pl.col("type").is_in(_ORDERED))
    if known.is_empty() or not known.select((pl.col("type").n_unique().over("group") > 1).any()).item():
        return []
    numbers = streamed_operations(report)
    kinds = used_streams(report).get_column("type")
    return [numbers.get_column("group").alias("context"), kinds.gather(numbers.get_column("number")).alias("type")]


def _with_apart(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """Launches by call start, with `apart`: ns between the returns of the thread's previous launch and this one."""
    if report.scope.device is None:
        return line.with_columns(apart=_apart(line))
    # the previous launch may have been on another device
    every = operations(report, "thread_id", "call_start", "call_end").drop_nulls("call_start")
    every = every.sort("call_start", maintain_order=True)
    known = every.select("row", apart=_apart(every))
    return line.join(known, on="row", how="left", maintain_order="left")


def _apart(line: pl.DataFrame) -> pl.Series:
    ends = line.select(*THREAD, "call_end")
    return of_parts(ends, THREAD, pl.Int64, lambda _, own: own.get_column("call_end").diff())


def _coded(report: Report) -> pl.DataFrame:
    """The operations on the devices in scope that have a launching call, in their order; in a window, those it takes.

    Columns: row, series, code and kernel (hashes; kernel is null except for kernels that a capture allows), cut (not
    allowed in a capture), call_start, call_end, and those of :data:`THREAD` and of :func:`_implicit_order`. Processed
    in slices, since the hashed columns take more memory than the hashes.
    """
    work = device_operations(report).select("row", "kind", "name", "device", "process_id")
    work = _near_window(report, work.with_columns(_implicit_order(report)))
    barred = names_that(report, _splits_series)
    line = pl.concat(in_threads(partial(_coded_slice, report, barred), list(slices(work))), rechunk=True)
    keys = line.get_column("series")
    known = keys.unique(maintain_order=True).to_frame().with_row_index("number").sort("series")
    numbers = known.get_column("number").gather(positions(known.get_column("series"), keys))
    return line.with_columns(numbers.alias("series"))


def _near_window(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Of operations those launched from the first launch of the window to its last, and on each thread the one before.

    `work` itself without a window: these are all.
    """
    if report.scope.window is None:
        return work
    own = exclusive_operations(report, "call_start")
    low, high = own.select(pl.col("call_start").min(), last=pl.col("call_start").max()).row(0)
    if low is None:
        return work.clear()
    calls = facts_of(report, work.get_column("row"), *THREAD, "call_start")
    begun = calls.get_column("call_start")
    before = calls.with_row_index("at").filter(begun < low)
    last = before.group_by(THREAD).agg(pl.col("call_start").max())
    before = before.join(last, on=[*THREAD, "call_start"], how="semi", nulls_equal=True)
    rows = pl.concat([before.get_column("at"), begun.is_between(low, high).arg_true()]).sort()
    return work[rows]


def _coded_slice(report: Report, barred: list[str], part: pl.DataFrame) -> pl.DataFrame:
    """:func:`_coded` for a slice of operations; `barred` are the names of calls that a capture does not allow."""
    part = with_facts(report, part, "thread_id", "call_start", "call_end", "call_name").drop_nulls("call_start")
    known = with_facts(report, part, "stream", "shape", "size_bytes", "source_memory", "target_memory")
    pageable = pl.any_horizontal(pl.col("source_memory", "target_memory") == _PAGEABLE)
    cut, ran = known.select(
        cut=pl.col("call_name").is_in(barred).fill_null(value=False) | pageable.fill_null(value=False),
        ran=pl.col("kind") == "kernel",
    )
    kernel = pl.when(ran & ~cut).then(mixed(("process_id", "device", "name")))
    numbers = known.with_columns(pl.col("kind", "name").to_physical()).select(
        series=mixed((*THREAD, "device", "stream")),
        code=mixed(("kind", "name", "shape", "size_bytes")).reinterpret(signed=True),
        kernel=kernel,
        cut=cut,
    )
    own = part.drop("kind", "name", "device", "call_name")
    return own.with_columns(numbers.get_columns())


def _passed(line: pl.DataFrame, cuts: dict[tuple[object, ...], pl.Series]) -> pl.DataFrame:
    """`line` with `passed`, the number of splits before each launch on its thread, without the columns used for it."""
    needed = [name for name in (*THREAD, "call_start", *_ORDER) if name in line.columns]

    def passed(key: tuple[object, ...], part: pl.DataFrame) -> pl.Series:
        starts = cuts.get(key, pl.Series(dtype=pl.Int64))
        return count_up_to(starts, part.get_column("call_start"), equal=False) + _implicit_cuts(part)

    found = of_parts(line.select(needed), THREAD, pl.UInt32, passed)
    return line.drop(needed).with_columns(found.alias("passed"))


def _implicit_cuts(part: pl.DataFrame) -> pl.Series:
    """Number of switches to a stream that synchronises implicitly, before each launch of a thread."""
    if "type" not in part.columns:
        return pl.zeros(part.height, dtype=pl.UInt32, eager=True)
    one, other = ((pl.col("type") == name).fill_null(value=False) for name in _ORDERED)
    before = [side.cum_sum().over("context") for side in (one, other)]
    return part.select(
        pl.when(one).then(before[1]).when(other).then(before[0]).otherwise(0).cast(pl.UInt32)
    ).to_series()


def _splits_series(name: str) -> bool:
    """Whether calls of this name split a series."""
    bucket = bucket_of(name)
    blocks = bucket == "sync" or (bucket == "allocation" and _ASYNC not in name)
    return blocks or _CUTS.match(name) is not None


def _cut_times(report: Report, barred: pl.DataFrame) -> dict[tuple[object, ...], pl.Series]:
    """The sorted split times of each thread, by process id and thread id; `barred` are splits caused by operations."""
    own = calls_that(report, _splits_series, *THREAD, "start_ns")
    parts = pl.concat([own, barred]).sort("start_ns").partition_by("process_id", "thread_id", as_dict=True)
    return {key: part.get_column("start_ns") for key, part in parts.items()}
