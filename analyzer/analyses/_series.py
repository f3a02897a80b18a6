"""Series of launches: what one thread launched onto one stream, cut where it made a call that no capture allows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._calls import bucket_of
from kanalyze.analyses._launch import calls_of
from kanalyze.analyses._lookup import beside, gathered, positions
from kanalyze.analyses._operations import device_operations, exclusive_operations, operations
from kanalyze.analyses._shapes import SHAPE
from kanalyze.analyses._streams import stream_numbers, used_streams
from kanalyze.analyses._walk import by_thread, launch_waits, queued_waits
from kanalyze.frames import constant
from kanalyze.model import DEVICE_KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kanalyze.report import Report

#: What one series is.
SERIES: Final = ("process_id", "thread_id", "device", "stream")

#: Calls that a capture does not allow, or that a replay would not repeat, beside those that block.
_CUTS: Final = re.compile(r"(?:cuda|cu)(?:Event|Stream)Query|(?:cuda|cu)GraphLaunch|(?:cuda|cu)Stream(?:Begin|End)Cap")
_ASYNC: Final = "Async"

#: Streams of one context that wait for each other by themselves. While one is captured, the other must not be used.
_ORDERED: Final = ("null", "blocking")

#: Multiplying by it spreads numbers over all 64 bits (Knuth's MMIX generator).
_MULTIPLIER: Final = 6364136223846793005

#: Copies from or to such memory block the thread, also where their calls are asynchronous.
_PAGEABLE: Final = "Pageable"


def launch_series(report: Report) -> pl.DataFrame:
    """The operations in scope that had a launch of their own and that a capture allows, series after series.

    Columns: place (here), series and stretch (numbers; a stretch is what lies between two cuts), code (the same for
    the same operation in the same shape), kind, name, call_start, api_ns, launch_ns and queued_ns (what the device
    waited for this launch: its part of the ledger's bucket `launch`, and of `queued` as far as the launch came too
    late; 0 for a kernel's first launch), and those of :data:`SERIES`.
    """
    line, cuts = _launched(report)
    line = _passed(line, cuts)
    if not all(constant(line.get_column(name)) for name in SERIES):
        line = pl.concat([line.clear(), *line.partition_by(SERIES)])
    numbers = {"series": _mixed(SERIES).rle_id(), "stretch": _mixed((*SERIES, "passed")).rle_id()}
    line = _waited(report, line.with_row_index("place").with_columns(**numbers))
    return line.drop("row", "passed", "first", "call_end", "apart", "context", "type", strict=False)


def _mixed(columns: Sequence[str]) -> pl.Expr:
    """One number for the values of some integer columns; that of two different rows is the same only by bad luck."""
    mixed = pl.lit(0, dtype=pl.Int64)
    for name in columns:
        mixed = mixed * _MULTIPLIER + pl.col(name).cast(pl.Int64).fill_null(-1)
    return mixed


def _launched(report: Report) -> tuple[pl.DataFrame, dict[tuple[object, ...], pl.Series]]:
    """The operations in scope that a capture allows, by call, with codes; and the cuts of :func:`_cut_times`."""
    work = device_operations(report).select("row", "event_id", "kind", "name", "device", "process_id")
    work = work.with_columns(_implicit_order(report))
    calls = calls_of(report, work.get_column("row")).select("thread_id", "call_start", "call_end", "call_name")
    work = work.with_columns(calls.get_columns()).drop_nulls("call_start")
    coded, cut = _coded(report, work)
    cuts = _cut_times(report, coded.filter(cut).select("process_id", "thread_id", start_ns="call_start"))
    line = coded.with_columns(cut.alias("cut"))
    if not line.get_column("call_start").is_sorted():
        line = line.sort("call_start", maintain_order=True)
    line = _with_apart(report, line)
    line = (line.filter(~pl.col("cut")) if cut.any() else line).drop("cut")
    line = line.with_columns(
        first=pl.col("kernel").is_first_distinct() & (pl.col("kind") == "kernel"),
        api_ns=pl.col("call_end") - pl.col("call_start"),
    ).drop("kernel")
    if report.scope.window is not None:
        line = line.join(exclusive_operations(report).select("row"), on="row", how="semi", maintain_order="left")
    return line, cuts


def _implicit_order(report: Report) -> list[pl.Series]:
    """The context and the stream's type of each operation on the devices in scope, as `context` and `type`.

    Nothing where no context used both its default stream and blocking ones, which wait for each other.
    """
    known = used_streams(report).filter(pl.col("type").is_in(_ORDERED))
    if known.is_empty() or not known.select((pl.col("type").n_unique().over("group") > 1).any()).item():
        return []
    numbers = stream_numbers(report)
    kinds = used_streams(report).get_column("type")
    return [numbers.get_column("group").alias("context"), kinds.gather(numbers.get_column("number")).alias("type")]


def _with_apart(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """Launches by the start of their calls, with the time since the thread's launch before returned, as `apart`."""
    if report.scope.device is None:
        return line.with_columns(apart=_apart(line))
    # the launch before may have been onto another device
    work = operations(report).select("row", "process_id")
    calls = calls_of(report, work.get_column("row")).select("thread_id", "call_start", "call_end")
    every = work.with_columns(calls.get_columns()).drop_nulls("call_start").sort("call_start", maintain_order=True)
    known = every.select("row", apart=_apart(every))
    return line.join(known, on="row", how="left", maintain_order="left")


def _apart(line: pl.DataFrame) -> pl.Expr:
    earlier, thread = pl.col("call_end").shift(1), SERIES[:2]
    if not all(constant(line.get_column(name)) for name in thread):
        earlier = earlier.over(thread)
    return pl.col("call_end") - earlier


def _coded(report: Report, work: pl.DataFrame) -> tuple[pl.DataFrame, pl.Series]:
    """`work` with stream, code and kernel (one number per kernel); and whether no capture allows the operation."""
    streams = pl.concat([report.kind(kind).select("event_id", "stream") for kind in DEVICE_KINDS])
    known = beside(work, streams, "stream")
    shapes = beside(work.select("event_id"), report.kernel_config, *SHAPE)
    copies = beside(work.select("event_id"), report.copy_detail, "size_bytes", "source_memory", "target_memory")
    names = work.get_column("call_name").unique()
    by_name = work.get_column("call_name").is_in(names.filter(_cuts(names)).to_list()).fill_null(value=False)
    memory = pl.any_horizontal(pl.col("source_memory", "target_memory") == _PAGEABLE).fill_null(value=False)
    barred = by_name | copies.select(memory).to_series()
    keys = known.select("process_id", "device", pl.col("kind", "name").to_physical())
    keys = keys.with_columns(*shapes.select(SHAPE), copies.get_column("size_bytes"))
    what = ("kind", "name", *SHAPE, "size_bytes")
    codes = keys.select(code=_mixed(what), kernel=_mixed(("process_id", "device", "kind", "name")))
    return known.drop("event_id", "call_name").with_columns(codes.get_columns()), barred


def _passed(line: pl.DataFrame, cuts: dict[tuple[object, ...], pl.Series]) -> pl.DataFrame:
    """`line` with how many cuts its thread has `passed`; in the order of the threads."""
    numbered = [line.clear().with_columns(passed=pl.lit(0, dtype=pl.UInt32))]
    for key, part in by_thread(line).items():
        starts = cuts.get(key, pl.Series(dtype=pl.Int64))
        passed = starts.search_sorted(part.get_column("call_start"), side="left").cast(pl.UInt32)
        numbered.append(part.with_columns(passed.alias("passed") + _implicit_cuts(part)))
    return pl.concat(numbered)


def _implicit_cuts(part: pl.DataFrame) -> pl.Series:
    """How often, before each launch of a thread, it used the streams that wait for the launch's own by themselves."""
    if "type" not in part.columns:
        return pl.zeros(part.height, dtype=pl.UInt32, eager=True)
    one, other = ((pl.col("type") == name).fill_null(value=False) for name in _ORDERED)
    before = [side.cum_sum().over("context") for side in (one, other)]
    return part.select(
        pl.when(one).then(before[1]).when(other).then(before[0]).otherwise(0).cast(pl.UInt32)
    ).to_series()


def _cuts(names: pl.Series) -> pl.Series:
    """Whether calls of these names cut a series."""
    return pl.Series([text is not None and _is_cut(text) for text in names.cast(pl.String)], dtype=pl.Boolean)


def _is_cut(name: str) -> bool:
    bucket = bucket_of(name)
    blocks = bucket == "sync" or (bucket == "allocation" and _ASYNC not in name)
    return blocks or _CUTS.match(name) is not None


def _cut_times(report: Report, barred: pl.DataFrame) -> dict[tuple[object, ...], pl.Series]:
    """When each thread cut its series, sorted, by process id and thread id; `barred` are cuts told by the operation."""
    calls = report.kind("api").select("process_id", "thread_id", "name", "start_ns")
    names = calls.get_column("name").unique()
    own = calls.filter(pl.col("name").is_in(names.filter(_cuts(names)).implode())).drop("name")
    parts = pl.concat([own, barred]).sort("start_ns").partition_by("process_id", "thread_id", as_dict=True)
    return {key: part.get_column("start_ns") for key, part in parts.items()}


def _waited(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    """`line` with launch_ns and queued_ns."""
    found = line
    for name, waits in (("launch_ns", launch_waits(report)), ("queued_ns", queued_waits(report))):
        at = positions(waits.get_column("row"), line.get_column("row"))
        found = found.with_columns(gathered(waits.get_column(name), at).fill_null(0).alias(name))
    # an operation that was launched in time is waiting for something else than its launch
    apart = pl.when(pl.col("stretch") == pl.col("stretch").shift(1)).then("apart").fill_null(0).clip(lower_bound=0)
    late = found.with_columns(queued_ns=pl.min_horizontal("queued_ns", apart))
    return late.with_columns(pl.when("first").then(0).otherwise(pl.col("launch_ns", "queued_ns")).name.keep())
