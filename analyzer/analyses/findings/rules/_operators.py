"""Operators of a report or of the trace beside it, and what of the report lies in some of their time.

A page of a capture is of the report of nsys, whose trace has the operators: an interval of the trace is placed between
the launches that both have, and the launches in it are those that are aligned with the trace's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations, launch_rows, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.findings.rules._kernels import calls_within, decoded_as
from kanalyze.analyses.findings.rules._telling import fewest_in, per_iteration
from kanalyze.analyses.idle._attribution import idle_within
from kanalyze.analyses.launches._steady_window import least_worth_saying
from kanalyze.analyses.naming._host_names import host_names, placed, surroundings
from kanalyze.analyses.operators._events import operator_tree
from kanalyze.analyses.replay._mending import NO_ROWS, Mending
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.thread_lanes import THREAD
from kanalyze.columns.grouping import parts_by
from kanalyze.columns.lookup import nearest, sure

if TYPE_CHECKING:
    from collections.abc import Callable

    from kanalyze.analyses.naming._host_names import ThreadPair
    from kanalyze.report import Report

#: A span of a thread.
SPAN: Final = (*THREAD, "start", "end")

_OWN: Final = pl.col("kind") == "op"


@once_per_process
def traced(report: Report) -> Report | None:
    """The report itself if it has operators, else the trace beside it if that names its host time, else None."""
    if report.kind("op").height:
        return report
    other = report.beside()
    return other if other is not None and host_names(report).threads and other.kind("op").height else None


@once_per_process
def operators(report: Report) -> pl.DataFrame:
    """Operators of the report or of the trace beside it, in preorder; empty without any.

    Columns: row (its place among all host events), parent (likewise), stop, name (text), start, end, self_ns,
    process_id, thread_id, called (whether a CUDA call is in it), sequence_number and input_types.
    """
    if (other := traced(report)) is None:
        return pl.DataFrame(schema=_SCHEMA)
    tree = operator_tree(other).rows.with_row_index("row").with_columns(pl.col("row").cast(pl.Int64))
    before = pl.concat([pl.Series([0]), tree.select((pl.col("kind") == "api").cast(pl.Int64).cum_sum()).to_series()])
    within = before.gather(tree.get_column("stop")) - before.gather(tree.get_column("row"))
    numbers = other.table("op_detail").select("event_id", "sequence_number", "input_types")
    found = tree.with_columns(called=within > 0).filter(_OWN).join(numbers, on="event_id", how="left")
    return found.with_columns(pl.col("name").cast(pl.String)).select(*_SCHEMA).sort("row")


_SCHEMA: Final = {
    **dict.fromkeys(("row", "parent", "stop"), pl.Int64),
    "name": pl.String,
    **dict.fromkeys(("start", "end", "self_ns", *THREAD), pl.Int64),
    "called": pl.Boolean,
    "sequence_number": pl.Int64,
    "input_types": pl.Categorical,
}


class Told(NamedTuple):
    """Words of a finding on what the host does: its rule, and others as in :class:`Finding`."""

    rule: str
    headline: str
    action: str
    remedy: str
    table: str = "tree"


class Within(NamedTuple):
    """What of a report lies in some time of its operators.

    Attributes:
        host: That time in the report: process_id, thread_id, start, end.
        calls: Rows (of the api events) of the calls in it.
        work: Rows of the operations that these launch.
    """

    host: pl.DataFrame
    calls: pl.Series = NO_ROWS
    work: pl.Series = NO_ROWS

    @property
    def mending(self) -> Mending:
        """The change of leaving all of it out."""
        return Mending(gone=self.work, calls=self.calls, host=self.host.select("process_id", "start", "end"))


def within(report: Report, spans: pl.DataFrame) -> Within:
    """What of the report lies in `spans` (of :data:`SPAN`) of the :func:`traced` report that overlap its window.

    Spans of a thread do not overlap each other.
    """
    spans = spans.select(SPAN)
    if traced(report) in (report.whole, None):
        return own_within(report, spans)
    return own_within(report, joined(pl.concat([_placed(report, spans), _launches(report, spans)])))


def own_within(report: Report, spans: pl.DataFrame) -> Within:
    """The same of spans of the report itself."""
    host = intervals.overlapping(spans.select(SPAN), report.scope.sides)
    calls = calls_within(report, host)
    made = launch_rows(report).is_in(calls.implode()).fill_null(value=False).arg_true().cast(pl.UInt32)
    return Within(host, calls, made)


def joined(pieces: pl.DataFrame) -> pl.DataFrame:
    """The union of `pieces` by thread."""
    parts = [
        intervals.union(part).with_columns(
            pl.lit(value, dtype=pl.Int64).alias(name) for name, value in zip(THREAD, key, strict=True)
        )
        for key, part in parts_by(pieces, THREAD).items()
    ]
    return pl.concat([pieces.clear(), *(part.select(SPAN) for part in parts)])


def _placed(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Parts of `spans` of the trace between two launches that follow each other there and in the report, placed here.

    A time between two launches of a trace of a few of the steps is placed in every step, if the trace names it.
    """
    known, found = host_names(report), [spans.clear()]
    if known.recurring:
        return placed(report, spans)
    threads = parts_by(spans, THREAD)
    for pair in known.threads:
        if (own := threads.get(pair.right)) is None:
            continue
        left, right = pair.pairs.get_column("left"), pair.pairs.get_column("right")
        apart = (left.shift(-1) == left + 1) & (right.shift(-1) == right + 1)
        left, right = left.filter(sure(apart)), right.filter(sure(apart))
        times = pl.DataFrame(
            {
                "here": pair.calls.get_column("end").gather(left),
                "until": pair.calls.get_column("start").gather(left + 1),
                "start": pair.others.get_column("end").gather(right),
                "end": pair.others.get_column("start").gather(right + 1),
                "there": pair.others.get_column("end").gather(right),
            }
        ).filter((pl.col("end") > pl.col("start")) & (pl.col("until") > pl.col("here")))
        scale = (pl.col("until") - pl.col("here")) / (pl.col("end") - pl.col("start"))
        cut = intervals.cut(times.with_columns(scale=scale), intervals.union(own))
        sides = {
            side: pl.col("here") + ((pl.col(side) - pl.col("there")) * pl.col("scale")).cast(pl.Int64)
            for side in ("start", "end")
        }
        keys = {name: pl.lit(value, dtype=pl.Int64) for name, value in zip(THREAD, pair.left, strict=True)}
        found.append(cut.select(**keys, **sides))
    return pl.concat(found)


def _launches(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """Launches of the report whose partners in the trace begin in `spans`, up to the next one in the same span.

    Where the trace is of a few of the steps, those that most launches in the same surroundings there are the partners.
    Columns: :data:`SPAN`.
    """
    known, found = host_names(report), [spans.select(SPAN).clear()]
    threads = parts_by(spans, THREAD)
    for pair in known.threads:
        if (own := threads.get(pair.right)) is None:
            continue
        line = own.sort("start")
        at = pair.others.get_column("start")
        place = line.get_column("start").search_sorted(at, side="right").cast(pl.Int64)
        ends = pl.concat([pl.Series([intervals.BEFORE_ALL]), line.get_column("end")]).gather(place)
        place = place.set(~sure(at < ends), None)
        if known.recurring:
            there = pl.DataFrame([surroundings(pair.others), place.is_not_null().alias("inside")]).drop_nulls("around")
            most = there.group_by("around").agg(pl.col("inside").mean() > 1 / 2).filter("inside").get_column("around")
            made = pair.calls.filter(sure(surroundings(pair.calls).is_in(most.implode()))).select("start", "end")
        else:
            made = _with_next(pair, place)
        keys = {name: pl.lit(value, dtype=pl.Int64) for name, value in zip(THREAD, pair.left, strict=True)}
        found.append(made.select(**keys, start="start", end="end"))
    return pl.concat(found)


def _with_next(pair: ThreadPair, place: pl.Series) -> pl.DataFrame:
    """Launch calls whose partners have a `place` in a span, each up to the end of the next one in the same span."""
    rows = pair.pairs.with_columns(place.gather(pair.pairs.get_column("right")).alias("place"))
    follows = (pl.col("left").shift(-1) == pl.col("left") + 1) & (pl.col("place").shift(-1) == pl.col("place"))
    ends = pair.calls.get_column("end")
    rows = rows.with_columns(
        start=pair.calls.get_column("start").gather(rows.get_column("left")),
        end=ends.gather(rows.get_column("left")),
        next=ends.gather((rows.get_column("left") + 1).clip(upper_bound=len(ends) - 1)),
    )
    return (
        rows.drop_nulls("place").with_columns(end=pl.when(follows).then("next").otherwise("end")).select("start", "end")
    )


def idle_in(report: Report, device: int, found: Within) -> pl.DataFrame:
    """The time in which a device idles while the host is in some of its time: start, end."""
    return idle_within(report, found.host)[device].select("start", "end")


def claimed(report: Report, device: int, found: Within) -> pl.DataFrame:
    """The time of a device that some work of the host takes: idle while the host is in it, busy with what it launches.

    Columns: start, end.
    """
    idle = idle_in(report, device, found)
    work = exclusive_operations(report).filter((pl.col("device") == device) & pl.col("row").is_in(found.work.implode()))
    return intervals.union(pl.concat([idle, work.select("start", "end")]))


#: Copies by what nsys and torch call their direction.
TO_HOST: Final = "Device-to-Host"
TO_DEVICE: Final = "Host-to-Device"

#: Operators of PyTorch itself.
_OF_TORCH: Final = "aten::"

#: What is around operators that are another cause's, or another program's: loaders, optimizers, compilers.
_AROUND: Final = r"DataLoader|^Optimizer\.|[Cc]ompile|[Dd]ynamo|[Ii]nductor"


@once_per_process
def outermost(report: Report) -> pl.DataFrame:
    """The :func:`operators` of PyTorch that are in no other one of these, with what they launch.

    Further columns: launches (number of operations), to_host and to_device (number of copies), to_host_bytes,
    to_device_bytes, and aside (whether a loader, an optimizer or a compiler is around it).
    """
    every = operators(report).filter(pl.col("name").str.starts_with(_OF_TORCH))
    top = every.filter(pl.col("row") >= pl.col("stop").cum_max().shift(1, fill_value=0))
    other = traced(report)
    if other is None or top.is_empty():
        return top.with_columns(pl.lit(0).alias(name) for name in _LAUNCHED).with_columns(aside=pl.lit(value=False))
    work = operations(other, "call_start", "thread_id", "size_bytes").drop_nulls("call_start")
    host, device = (pl.col("detail").cast(pl.String) == way for way in (TO_HOST, TO_DEVICE))
    size = pl.col("size_bytes").fill_null(0)
    work = work.select(
        *THREAD,
        "call_start",
        launches=pl.lit(1),
        to_host=host.fill_null(value=False).cast(pl.Int32),
        to_device=device.fill_null(value=False).cast(pl.Int32),
        to_host_bytes=pl.when(host).then(size).otherwise(0),
        to_device_bytes=pl.when(device).then(size).otherwise(0),
    )
    inside = nearest(work, top.select(*THREAD, "row", since="start", until="end"), ("call_start", "since"), THREAD)
    sums = inside.filter(pl.col("call_start") < pl.col("until")).group_by("row").agg(pl.col(_LAUNCHED).sum())
    told = top.join(sums, on="row", how="left").with_columns(pl.col(_LAUNCHED).fill_null(0)).sort("row")
    return told.with_columns(aside=_inside(other, told, _AROUND))


_LAUNCHED: Final = ("launches", "to_host", "to_device", "to_host_bytes", "to_device_bytes")


def _inside(other: Report, rows: pl.DataFrame, pattern: str) -> pl.Series:
    """Whether each of `rows` begins in a range, or in an operator, whose name has this pattern."""
    events = [other.kind(kind) for kind in ("range", "op")]
    named = [
        one.filter(pl.col("name").cast(pl.String).str.contains(pattern)).select(*THREAD, "start_ns", "dur_ns")
        for one in events
    ]
    spans = pl.concat(named).select(*THREAD, start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns"))
    around = nearest(
        rows.select(*THREAD, "start"), joined(spans).rename({"start": "since"}), ("start", "since"), THREAD
    )
    keyed = around.select(*THREAD, "start", inside=(pl.col("start") < pl.col("end")).fill_null(value=False)).unique(
        [*THREAD, "start"]
    )
    return (
        rows.join(keyed, on=[*THREAD, "start"], how="left", maintain_order="left")
        .get_column("inside")
        .fill_null(value=False)
    )


#: The part of a window that work of the host fills, of which it need not be much in each iteration.
_FILLS: Final = 0.5


def on_time(
    report: Report,
    told: Told,
    inside: Within,
    sentence: Callable[[int, str], str],
    mending: Callable[[Report], Mending | None] | None = None,
) -> list[Finding]:
    """At most one finding per device on some time of the host, and what lies in it.

    In a window of iterations there are as many spans of it as half of these at least, or they fill half of the window.
    At stake is the time in which the device idles in them, or works for them; `sentence` has their number and that
    time. By default, all of it is gone.
    """
    least, found, number = least_worth_saying(report), list[Finding](), inside.host.height
    for device, low, high in windows(report).iter_rows():
        held = intervals.length(intervals.clip(inside.host, low, high))
        if number < max(fewest_in(report), 1) and held < _FILLS * (high - low):
            continue
        claims = claimed(report, device, inside)
        if (stake := intervals.length(claims)) < max(least[device], 1):
            continue
        text = sentence(number, f"GPU {device} idles, or works for it, for {per_iteration(report).time(stake)}")
        one = Finding(told.rule, device, stake, text, told.remedy, told.table, claims=claims)
        change = mending or (lambda _: inside.mending)
        found.append(one._replace(headline=told.headline, action=told.action, mending=change))
    return found


#: Families of kernels of which an SM runs a block or two at a time; others fill it with threads.
_LARGE_BLOCKS: Final = ("gemm", "conv", "attention")


def filling(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """Adds to operations (name and :data:`SHAPE`) `layer`, whether a kernel is one of layers with weights, and `part`.

    That is the part of the GPU that its blocks fill, 1 where it is unknown.
    """
    known = report.devices.select("sm_count", "max_warps_per_sm", "threads_per_warp").drop_nulls()
    processors, warps, threads = known.row(0) if known.height else (1, 1, 1)
    layer = decoded_as(work, lambda said: said.family in _LARGE_BLOCKS).alias("layer")
    blocks = pl.col("grid_x").cast(pl.Int64) * pl.col("grid_y") * pl.col("grid_z") / processors
    resident = blocks * pl.col("block_x") * pl.col("block_y") * pl.col("block_z") / (warps * threads)
    part = pl.when(layer).then(blocks).otherwise(resident).clip(upper_bound=1.0).fill_null(1.0)
    return work.with_columns(layer, part=part)
