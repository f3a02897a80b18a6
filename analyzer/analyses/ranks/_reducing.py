"""Reduction of a report: what the analysis of a job needs of its ranks.

A rank is a process on a GPU; one that communicates on several GPUs is a rank on each. Times of a reduction are Unix
times by the clock of its host, so that reports of one host need no correction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals, outlets
from kanalyze.analyses.communication._partners import exposed_pieces
from kanalyze.analyses.communication._recorded import collectives_of, collectives_on_cpu
from kanalyze.analyses.device._operations import exclusive_operations, operations
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.findings.rules.host_computes import getting_batches
from kanalyze.analyses.idle._attribution import idle_within, window_ledgers
from kanalyze.analyses.idle.ledger import bucket_sums
from kanalyze.analyses.iterations._marks import launched_work
from kanalyze.analyses.iterations._steady import SteadyPart, known_steady_part
from kanalyze.analyses.iterations.iterations import done_before
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.model import DEVICE_KINDS
from kanalyze.reduction.tables import (
    BEFORE,
    COLLECTIVES,
    IN_LOADER,
    KERNELS,
    LEDGERS,
    PIECES,
    RANKS,
    STEPS,
    Reduction,
)

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Names of kernels that are kept of a rank.
_KERNELS: Final = 64

#: A step that has the number of the framework's profiler.
_NUMBERED: Final = r"^step:(\d+)$"


class _Member(NamedTuple):
    """A rank of a report."""

    number: int  # its row in the ranks of the reduction
    report: Report  # the report, narrowed to its process and GPU
    device: int  # the GPU
    origin_ns: int  # Unix time of the report's time 0


def reduced(report: Report) -> Reduction:
    """The reduction of all ranks of a report; empty where it records no work on a GPU, and no collectives of gloo."""
    if not {*DEVICE_KINDS}.intersection(report.kinds) or operations(report).is_empty():
        return _without_gpu(report)
    used = operations(report).group_by("process_id", "device").agg(
        talks=(pl.col("bucket") == "communication").any(), ns=pl.col("dur_ns").sum()
    )  # fmt: skip
    main = pl.col("ns") == pl.col("ns").max().over("process_id")
    mine = pl.col("talks") | (main & ~pl.col("talks").any().over("process_id"))
    found = used.filter(mine).sort("device", "process_id")
    if not found.get_column("talks").any():  # one process may only have helped
        found = found.filter(pl.col("ns") == pl.col("ns").max().over("device"))
    origin = report.meta.origin_unix_ns or 0
    members = [
        _Member(number, report.narrow(process=process, device=device), device, origin)
        for number, (process, device) in enumerate(found.select("process_id", "device").iter_rows())
    ]
    parts = [dict(_of_member(one).tables()) for one in members]
    return Reduction(**{name: pl.concat([part[name] for part in parts]) for name in parts[0]})


def _without_gpu(report: Report) -> Reduction:
    """The reduction of a report of collectives on the CPU, such as those of gloo; empty without any."""
    origin = report.meta.origin_unix_ns or 0
    told = collectives_on_cpu(report).sort("start_ns")
    if told.is_empty():
        return Reduction()
    end = told.get_column("start_ns") + told.get_column("dur_ns")
    span = told.item(0, "start_ns"), int(end.max())  # type: ignore[arg-type]
    zero = pl.lit(0, dtype=pl.Int64)
    steps = STEPS.select(
        report.steps().select(
            "step",
            member=zero,
            index=pl.int_range(pl.len()).cast(pl.Int64),
            numbered=pl.lit(value=True),
            name=pl.lit("step"),
            kind=pl.lit("steady"),
            start_ns="start",
            end_ns="end",
        )
    )
    none = [pl.lit(None).alias(name) for name in COLLECTIVES.schema if name not in told.columns]
    line = told.with_columns(*none).with_columns(zero.alias("member"), pl.int_range(pl.len()).alias("number"))
    line = intervals.first_come(line.with_columns(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns")))
    line = line.with_columns(exposed_ns=pl.col("own_end") - pl.col("own_start"), size=pl.lit(report.meta.world_size))
    own = line.select("member", "number", start="own_start", end="own_end").filter(pl.col("end") > pl.col("start"))
    pieces = _cut_at(own.cast({"number": pl.Int64}), steps)
    shifted = pl.col("start_ns", "end_ns") + origin
    return Reduction(
        ranks=_rank(report, span, process_id=told.item(0, "process_id")),
        collectives=COLLECTIVES.select(line.with_columns(pl.col("start_ns") + origin)),
        pieces=PIECES.select(pieces.with_columns(shifted)),
        steps=steps.with_columns(shifted),
        ledgers=_ledgers_without_gpu(steps, pieces),
    )


def _ledgers_without_gpu(steps: pl.DataFrame, pieces: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each step of a rank without a GPU: communication, and the rest as the host's."""
    inside = pieces.drop_nulls("step").group_by("member", index="step")
    moved = inside.agg(communication=(pl.col("end_ns") - pl.col("start_ns")).sum())
    told = steps.join(moved, on=["member", "index"], how="left").with_columns(pl.col("communication").fill_null(0))
    told = told.with_columns(host=pl.col("end_ns") - pl.col("start_ns") - pl.col("communication"))
    long = told.unpivot(["communication", "host"], index=["member", "index"], variable_name="bucket", value_name="ns")
    return LEDGERS.select(long.filter(pl.col("ns") > 0).sort("member", "index", "bucket"))


def _of_member(one: _Member) -> Reduction:
    """The reduction of one rank."""
    steady = known_steady_part(one.report)
    steps = _steps(one, steady)
    found = _collectives(one)
    return Reduction(
        ranks=_rank_on_gpu(one),
        collectives=COLLECTIVES.select(found.with_columns(pl.col("start_ns") + one.origin_ns)),
        pieces=_pieces(one, found, steps),
        before=_before(one, found),
        steps=STEPS.select(steps.with_columns(pl.col("start_ns", "end_ns") + one.origin_ns)),
        ledgers=_ledgers(one, steps),
        kernels=_kernels(one, steady),
    )


def _rank(report: Report, span: tuple[int, int], **told: object) -> pl.DataFrame:
    """The row of :data:`RANKS` of a rank whose window is `span`, in the report's time."""
    meta, origin = report.meta, report.meta.origin_unix_ns or 0
    row = {
        **dict.fromkeys(RANKS.schema),
        "rank": meta.rank,
        "world_size": meta.world_size,
        "report": outlets.name(meta.path),
        "tool": meta.tool,
        "origin_ns": origin,
        "start_ns": span[0] + origin,
        "end_ns": span[1] + origin,
        "communication_ns": 0,
        "on_cpu": 0,
        **told,
    }
    return pl.DataFrame([row], schema=RANKS.schema, orient="row")


def _rank_on_gpu(one: _Member) -> pl.DataFrame:
    report = one.report
    window = windows(report).filter(pl.col("device") == one.device).select("start", "end")
    low, high = window.row(0) if window.height else (0, 0)
    sums = bucket_sums(report).filter((pl.col("device") == one.device) & (pl.col("bucket") == "communication"))
    gpu = report.devices.filter(pl.col("device") == one.device).get_column("name")
    return _rank(
        report,
        (low, high),
        process_id=report.scope.process,
        device=one.device,
        gpu=gpu.item(0) if len(gpu) else None,
        communication_ns=int(sums.get_column("ns").sum()),
        on_cpu=collectives_on_cpu(report).filter(pl.col("process_id").eq_missing(report.scope.process)).height,
    )


def _collectives(one: _Member) -> pl.DataFrame:
    """The collectives of a rank in the report's time: :data:`COLLECTIVES`, with own_start."""
    work = exclusive_operations(one.report).filter(pl.col("bucket") == "communication")
    line = intervals.first_come(work.sort("began", "event_id"))
    told = collectives_of(one.report, line)
    return line.with_columns(told.drop("event_id")).select(
        pl.lit(one.number, dtype=pl.Int64).alias("member"),
        pl.int_range(pl.len()).cast(pl.Int64).alias("number"),
        *(name for name in COLLECTIVES.schema if name in told.columns),
        "device",
        pl.col("start").alias("start_ns"),
        (pl.col("end") - pl.col("start")).alias("dur_ns"),
        pl.col("exclusive_ns").alias("exposed_ns"),
        "own_start",
        "own_end",
    )


def _pieces(one: _Member, found: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The exposed pieces of each collective, cut where steps begin and end: their times sum to `exposed_ns`."""
    work = operations(one.report).filter((pl.col("device") == one.device) & (pl.col("bucket") == "kernel"))
    own = found.select("member", "number", "exposed_ns", start="own_start", end="own_end")
    pieces = exposed_pieces(own, work)
    if pieces.is_empty():
        return PIECES.empty()
    return PIECES.select(_cut_at(pieces, steps).with_columns(pl.col("start_ns", "end_ns") + one.origin_ns))


def _cut_at(pieces: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The pieces cut where steps begin or end, with the step that each lies in."""
    spans = steps.select(start="start_ns", end="end_ns", step="index").sort("start")
    told = overlaid(pieces.sort("start"), spans, "step")
    return told.select("member", "number", "step", start_ns="start", end_ns="end").sort("number", "start_ns")


def _before(one: _Member, found: pl.DataFrame) -> pl.DataFrame:
    """The ledger from the end of the group's previous collective on the rank to the start of each."""
    group = ["group", "size", "ranks", "stream"]
    since = (pl.col("start_ns") + pl.col("dur_ns")).shift(1).over(group)
    spans = found.select("member", "number", start=since, end="start_ns").filter(pl.col("end") > pl.col("start"))
    if spans.is_empty():
        return BEFORE.empty()
    return BEFORE.select(_with_loaders(one, spans, _in_spans(one, spans, ["member", "number"])))


def _with_loaders(one: _Member, spans: pl.DataFrame, found: pl.DataFrame) -> pl.DataFrame:
    """The ledgers of spans, with what the host was in DataLoader of the bucket host in rows of its own."""
    told = found.with_columns(detail=pl.lit(None, dtype=pl.String))
    batches = getting_batches(one.report)
    if batches.is_empty():
        return told
    idle = idle_within(one.report, batches)
    if one.device not in idle:
        return told
    waits = intervals.union(idle[one.device].filter(pl.col("bucket") == "host").select("start", "end"))
    keys = ["member", "number"]
    inside = spans.select(
        *keys, inside=intervals.overlap(spans.get_column("start"), spans.get_column("end"), waits)
    ).filter(pl.col("inside") > 0)
    own = inside.select(*keys, bucket=pl.lit("host"), ns="inside", detail=pl.lit(IN_LOADER))
    rest = told.join(inside.with_columns(bucket=pl.lit("host")), on=[*keys, "bucket"], how="left")
    rest = rest.with_columns(ns=pl.col("ns") - pl.col("inside").fill_null(0)).drop("inside").filter(pl.col("ns") > 0)
    return pl.concat([rest, own.select(rest.columns)]).sort(keys, maintain_order=True)


def _in_spans(one: _Member, spans: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """The ledger of the rank in each of `spans` (start, end), a row per bucket with any time: `keys`, bucket, ns."""
    sums = window_ledgers(one.report, spans.select("start", "end")).filter(pl.col("device") == one.device)
    wide = spans.select(keys).with_row_index("window").join(sums, on="window", how="inner", maintain_order="left")
    columns = [f"{bucket}_ns" for bucket in BUCKETS]
    long = wide.unpivot(columns, index=keys, variable_name="bucket", value_name="ns").filter(pl.col("ns") > 0)
    return long.with_columns(pl.col("bucket").str.strip_suffix("_ns")).sort(keys, maintain_order=True)


def _steps(one: _Member, steady: SteadyPart | None) -> pl.DataFrame:
    """The steps of a rank in the report's time, by when the GPU did their work: :data:`STEPS`."""
    if steady is None:
        return STEPS.empty()
    rows = steady.rows.filter(pl.col("name") == steady.each).sort("start_ns")
    work = launched_work(one.report)
    ends = rows.get_column("start_ns") + rows.get_column("dur_ns")
    number = pl.col("window").str.extract(_NUMBERED).cast(pl.Int64)
    told = rows.select(
        pl.lit(one.number, dtype=pl.Int64).alias("member"),
        pl.coalesce(number, "index").alias("step"),
        number.is_not_null().alias("numbered"),
        "name",
        "kind",
        done_before(work, rows.get_column("start_ns")).alias("start_ns"),
        done_before(work, ends).alias("end_ns"),
    )
    told = told.filter(pl.col("end_ns") > pl.col("start_ns"))
    return STEPS.select(told.with_columns(index=pl.int_range(pl.len(), dtype=pl.Int64)))


def _ledgers(one: _Member, steps: pl.DataFrame) -> pl.DataFrame:
    if steps.is_empty():
        return LEDGERS.empty()
    spans = steps.rename({"start_ns": "start", "end_ns": "end"})
    return LEDGERS.select(_in_spans(one, spans, ["member", "index"]))


def _kernels(one: _Member, steady: SteadyPart | None) -> pl.DataFrame:
    """The kernels that took longest, by name, and all others as one, in the steady part, or in all of the recording."""
    report = one.report if steady is None else one.report.narrow(window=steady.window)
    work = exclusive_operations(report).filter(pl.col("kind").cast(pl.String).is_in(["kernel", "graph"]))
    sums = work.group_by("name").agg(count=pl.len(), ns=(pl.col("end") - pl.col("start")).sum())
    best = sums.with_columns(pl.col("name").cast(pl.String)).sort("ns", "name", descending=[True, False])
    others = best.slice(_KERNELS).select(pl.lit(None, dtype=pl.String).alias("name"), pl.col("count", "ns").sum())
    kept = pl.concat([best.head(_KERNELS), others.filter(pl.col("count") > 0)])
    each = pl.lit(None, dtype=pl.Float64) if steady is None else pl.col("count") / steady.number
    return KERNELS.select(kept.with_columns(each.alias("per_step"), member=pl.lit(one.number, dtype=pl.Int64)))
