"""Steps of serving engines on their GPUs, and what the GPU did in the gap before each."""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, device_operations, operations
from kanalyze.analyses.device._windows import busy_within
from kanalyze.analyses.host.engine_marks import CAPTURE, DECODE, LAUNCHES_GRAPH, REPLAYED, engine_marks
from kanalyze.analyses.idle._attribution import ledger_pieces
from kanalyze.analyses.iterations._marks import of_process
from kanalyze.analyses.ranges.captured import captured_as
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.analyses.shared.threads import THREAD
from kanalyze.columns import nearest_place, rate
from kanalyze.report import Report

GRAPH, PARTLY, EAGER = "graph", "partly", "eager"

#: A piece of the gap before a step: the step's row, bucket and culprit.
_PIECE: Final = {"step": pl.UInt32, "bucket": pl.String, "culprit": pl.String, "ns": pl.Int64}


@once_per_process
def timed_steps(report: Report) -> pl.DataFrame:
    """The steps of all devices at any time, by device and start, with their row in `step`.

    Columns: those of the table engine_steps.
    """
    marks = engine_marks(report).with_columns(index=pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over("process_id"))
    found = _with_gaps(_on_devices(report, marks.with_row_index("mark"))).with_row_index("step")
    sides = found.select("device", start="gpu_start_ns", end=pl.col("gpu_start_ns") + pl.col("dur_ns"))
    found = found.with_columns(busy_within(report, sides).fill_null(0))
    spent = pl.col("gap_ns").fill_null(0) + pl.col("dur_ns")
    told = found.with_columns(tokens_per_s=rate(pl.col("tokens"), spent), host_ns=pl.col("end") - pl.col("start"))
    told = told.join(_causes(gap_pieces(report, found)), on="step", how="left", maintain_order="left")
    none = pl.when(pl.col("gap_ns").is_not_null()).then(0)
    return told.with_columns(pl.coalesce("gap_busy_ns", none), start_ns="start")


def _on_devices(report: Report, marks: pl.DataFrame) -> pl.DataFrame:
    """The marks with the device, first and last time (low, high), mode and padded batch of what each launched there."""
    work = operations(report, "call_name", "call_start", "thread_id", "graph_exec_id")
    parts = [pl.DataFrame(schema={"mark": pl.UInt32, "row": pl.UInt32})]
    for (process, thread), own in marks.partition_by(THREAD, as_dict=True, maintain_order=True).items():
        on_thread = pl.col("thread_id").eq_missing(pl.lit(thread, pl.Int64))
        launched = work.filter(of_process(process), on_thread).drop_nulls("call_start")
        place = nearest_place(own.get_column("start"), launched.get_column("call_start"))
        ends = own.get_column("end").gather(place)
        launched = launched.with_columns(own.get_column("mark").gather(place))
        parts.append(launched.filter(launched.get_column("call_start") < ends).select("mark", "row"))
    inside = pl.concat(parts).join(work, on="row", how="left", maintain_order="left")
    names = captured_as(report, inside.get_column("row"), "path").str.extract(CAPTURE).cast(pl.Int64)
    replayed = pl.col("call_name").cast(pl.String).str.contains(LAUNCHES_GRAPH).fill_null(value=False)
    ran = pl.col("end") - pl.col("start")
    told = inside.with_columns(names.alias("of_capture"), ran=ran, inside=ran * replayed)
    sums = told.group_by("mark", "device").agg(
        low=pl.col("start").min(),
        high=pl.col("end").max(),
        part=pl.col("inside").sum() / pl.col("ran").sum().clip(1),
        of_capture=pl.col("of_capture").max(),
        graph=pl.col("graph_exec_id").drop_nulls().last(),
    )
    mode = pl.when(pl.col("part") >= REPLAYED).then(pl.lit(GRAPH)).when(pl.col("part") > 0).then(pl.lit(PARTLY))
    sums = sums.with_columns(mode=mode.otherwise(pl.lit(EAGER)))
    found = marks.join(sums, on="mark", how="left", maintain_order="left")
    replays = (pl.col("mode") == GRAPH) & (pl.col("kind") == DECODE) & pl.col("graph").is_not_null()
    largest = pl.col("requests").max().over("process_id", "graph", "kind")
    return found.with_columns(padded=pl.coalesce("padded", "of_capture", pl.when(replays).then(largest)))


def _with_gaps(steps: pl.DataFrame) -> pl.DataFrame:
    """Adds gpu_start_ns, dur_ns and gap_ns: on each device the steps are disjoint, each from where those before end."""
    line = steps.sort("device", "low", "start", nulls_last=True)
    before = pl.col("high").cum_max().shift(1).over("device")
    begun = pl.when(pl.col("low").is_not_null()).then(pl.max_horizontal("low", before))
    length, gap = pl.col("high") - pl.col("begun"), pl.col("begun") - before
    line = line.with_columns(begun=begun).with_columns(dur_ns=length.clip(0).fill_null(0), gap_ns=gap)
    return line.rename({"begun": "gpu_start_ns"}).sort("device", "gpu_start_ns", "start", "index", nulls_last=True)


def gap_pieces(report: Report, steps: pl.DataFrame) -> pl.DataFrame:
    """What the GPU did in the gaps before steps (step, device, gpu_start_ns, gap_ns), and why it was idle: _PIECE."""
    gaps = steps.select("step", "device", start=pl.col("gpu_start_ns") - pl.col("gap_ns"), end="gpu_start_ns")
    gaps = gaps.filter(pl.col("end") > pl.col("start"))
    named, pieces = [pl.DataFrame(schema=_PIECE)], ledger_pieces(report.whole) if gaps.height else pl.DataFrame()
    for (device,), own in gaps.partition_by("device", as_dict=True, maintain_order=True).items():
        of_device = pl.col("device") == device
        cut = intervals.cut(pieces.filter(of_device).drop("device"), own.select("start", "end"))
        # of work the operation that began last before the end of a piece
        ran = device_operations(report.whole).filter(of_device).sort("start")
        place = nearest_place(ran.get_column("start"), cut.get_column("end"), equal=False)
        at = nearest_place(own.get_column("start"), cut.get_column("start"))
        cut = cut.with_columns(ran.get_column("name").gather(place), own.get_column("step").gather(at))
        works = pl.col("bucket").cast(pl.String).is_in(BUSY_BUCKETS)
        culprit = pl.when(works).then("name").otherwise("culprit").cast(pl.String).alias("culprit")
        named.append(cut.select("step", pl.col("bucket").cast(pl.String), culprit, ns=pl.col("end") - pl.col("start")))
    return pl.concat(named).group_by("step", "bucket", "culprit").agg(pl.col("ns").sum())


def _causes(pieces: pl.DataFrame) -> pl.DataFrame:
    """Of the gap before each step: step, gap_busy_ns, gap_cause and gap_culprit."""
    works = pl.col("bucket").is_in(BUSY_BUCKETS)
    sums = pieces.with_columns(of_bucket=pl.col("ns").sum().over("step", "bucket"), busy=pl.col("ns") * works)
    down = [True, False, True, True]
    first = sums.sort("of_bucket", "bucket", "ns", "culprit", descending=down, nulls_last=True)
    cause = pl.col("bucket").first().alias("gap_cause"), pl.col("culprit").first().alias("gap_culprit")
    return first.group_by("step", maintain_order=True).agg(pl.col("busy").sum().alias("gap_busy_ns"), *cause)
