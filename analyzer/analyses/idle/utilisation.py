"""Utilisation of each device over time, in equal chunks of its window, by bucket."""

from __future__ import annotations

from typing import Final, Unpack

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS
from kanalyze.analyses.device._windows import busy_layers, windows
from kanalyze.analyses.host.launches import cuda_ordinal
from kanalyze.analyses.shared.analysis import require
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

TABLE: Final = Table(
    "utilisation",
    "One of the equal chunks that a device's window is cut into.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("t_ns", pl.Int64, "Start of the chunk."),
        Column("dur_ns", pl.Int64, "Length of the chunk; lengths differ by 1 ns at most and sum to the window."),
        Column("busy_share", pl.Float64, "Part of the chunk in which anything ran; never above 1."),
        Column("kernel_share", pl.Float64, "Part in which a kernel ran, or a whole graph."),
        Column("communication_share", pl.Float64, "Part in which communication kernels ran, and no other kernel."),
        Column("memcpy_share", pl.Float64, "Part in which copies ran, and no kernel."),
        Column("memset_share", pl.Float64, "Part in which memsets ran alone."),
        Column("busy_ns", pl.Int64, "Time in which anything ran: the sum of the four below."),
        Column("kernel_ns", pl.Int64, "Over all chunks the ledger's bucket of that name, as the next three."),
        Column("communication_ns", pl.Int64, "As above."),
        Column("memcpy_ns", pl.Int64, "As above."),
        Column("memset_ns", pl.Int64, "As above."),
    ),
    purpose="how busy each GPU was, slice by slice",
    options=("chunks", "as_nsys", "threshold_share"),
)

#: The table that ``as_nsys=True`` gives.
AS_NSYS: Final = Table(
    "utilisation",
    "One stretch of chunks with little work, for one process on one device.",
    columns("""
        in_use_share float: Sum of the operations' time by the stretch's length; above 1 where operations run side by
            side.
        dur_ns int: Length of the stretch.
        start_ns int: Start of the stretch.
        process_id int?: Process.
        device int?: What the process calls the GPU, as nsys prints it.
        context_id int?: CUDA context of the operation that ended last.
        gpu int?: The GPU, as in `devices`.
    """),
    equals="nsys analyze gpu_time_util",
    when="--as-nsys",
)

CHUNKS: Final = 30
_MOST_CHUNKS: Final = 100_000

#: Default threshold of nsys: it shows regions in use for less than half of the time.
_THRESHOLD_SHARE: Final = 0.5

#: Names of profiler overheads that count as work.
_OVERHEADS: Final = ("CUDA profiling data flush overhead", "CUDA profiling stop overhead", "CUDA profiling overhead")
_KINDS: Final = ("kernel", "memcpy", "memset")
_KEYS: Final = ("process_id", "gpu")
_REGIONS: Final = {"in_use_share": pl.Float64, "dur_ns": pl.Int64, "start_ns": pl.Int64}


def utilisation(
    report: Report,
    chunks: int = CHUNKS,
    *,
    as_nsys: bool = False,
    threshold_share: float | None = None,
    **where: Unpack[Where],
) -> pl.DataFrame:
    """Utilisation of each device in scope over time.

    Args:
        report: The report.
        chunks: Number of equal chunks; a window with fewer nanoseconds has one chunk per nanosecond.
        as_nsys: Gives the table of nsys instead: regions below the threshold by process and device, concurrent
            operations summed.
        threshold_share: Only chunks or regions busy for less than this; default: all chunks, 0.5 with `as_nsys`.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, sorted by device and time, or :data:`AS_NSYS`, the least used first.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: The number of chunks is out of range.
    """
    report = report.narrow(**where)
    require(report, TABLE, *DEVICE_KINDS)
    if not 1 <= chunks <= _MOST_CHUNKS:
        raise UnknownNameError.of("number of chunks", chunks, [f"1 to {_MOST_CHUNKS}"])
    if as_nsys:
        return AS_NSYS.select(
            low_regions(report, chunks, _THRESHOLD_SHARE if threshold_share is None else threshold_share)
        )
    parts = [_of_device(report, device, low, high, chunks) for device, low, high in windows(report).iter_rows()]
    found = pl.concat([TABLE.empty(), *map(TABLE.select, parts)])
    return found if threshold_share is None else found.filter(pl.col("busy_share") < threshold_share)


def _of_device(report: Report, device: int, low: int, high: int, chunks: int) -> pl.DataFrame:
    # at most one chunk per nanosecond
    chunks = max(min(chunks, high - low), 0)
    whole, rest = divmod(high - low, max(chunks, 1))
    number = pl.int_range(chunks + 1, eager=True)
    edges = low + number * whole + number * rest // max(chunks, 1)
    found, below = {}, pl.zeros(len(edges) - 1, dtype=pl.Int64, eager=True)
    for bucket, spans in zip(BUSY_BUCKETS, busy_layers(report)[device], strict=True):
        # the time of a bucket is what it adds to the union of those that take precedence over it
        covered = intervals.covered_before(edges, spans).diff().slice(1)
        found[bucket], below = covered - below, covered
    times = pl.DataFrame({f"{bucket}_ns": ns for bucket, ns in found.items()})
    length = edges.diff().slice(1)
    shares = [(pl.col(f"{bucket}_ns") / length).alias(f"{bucket}_share") for bucket in ("busy", *BUSY_BUCKETS)]
    made = times.with_columns(device=pl.lit(device), t_ns=edges.slice(0, len(length)), dur_ns=length, busy_ns=below)
    return made.with_columns(shares)


def low_regions(report: Report, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Merges adjacent chunks below the threshold into regions, sorted by utilisation, then by length.

    Columns: in_use_share, dur_ns, start_ns, process_id, device (the process's ordinal), context_id, gpu.
    """
    sides = {"start": pl.col("start_ns"), "end": pl.col("start_ns") + pl.col("dur_ns")}
    work = pl.concat(report.seen(kind).select("process_id", "context_id", gpu="device", **sides) for kind in _KINDS)
    work = work.filter(pl.col("start") > 0)
    names = [name for name in report.kind("overhead").get_column("name").unique().cast(pl.String) if name in _OVERHEADS]
    overhead = report.kind("overhead").filter(pl.col("name").is_in(names)).select("process_id", **sides)
    parts = [pl.DataFrame(schema={**_REGIONS, **dict.fromkeys((*_KEYS, "context_id"), pl.Int64)})]
    for (process, gpu), part in work.partition_by(_KEYS, as_dict=True, maintain_order=True).items():
        last = part.get_column("context_id").item(part.get_column("end").arg_max() or 0)
        own = overhead.filter(pl.col("process_id").eq_missing(process))
        found = _of_process(part.select("start", "end"), own.select("start", "end"), chunks, threshold_share)
        keys = {"process_id": process, "gpu": gpu, "context_id": last}
        parts.append(found.with_columns(pl.lit(value, dtype=pl.Int64).alias(name) for name, value in keys.items()))
    together = pl.concat(parts)
    # nsys sorts by the printed value, a percentage with one decimal
    shown = (pl.col("in_use_share") * 1000 + 0.5).floor()
    return together.with_columns(cuda_ordinal(report).alias("device")).sort(shown, "dur_ns", "start_ns")


def _of_process(work: pl.DataFrame, overhead: pl.DataFrame, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Low regions of one process on one device: in_use_share, dur_ns, start_ns."""
    low, high = work.select(low=pl.col("start").min(), high=pl.col("end").max()).row(0)
    # nsys rounds the chunk length up, so there can be fewer chunks, and the last one can be shorter
    size = -(-(high - low) // chunks)
    if size <= 0:
        return pl.DataFrame(schema=_REGIONS)
    begins = pl.int_range(low, high, size, eager=True)
    spans = pl.DataFrame({"start": begins, "end": (begins + size).clip(upper_bound=high)})
    inside = overhead.filter((pl.col("start") > low) & (pl.col("end") < high))
    used = _sum_by_chunk(pl.concat([work, inside]), spans, low, size)
    chunk = spans.with_columns(used=used, dur=pl.col("end") - pl.col("start")).with_row_index("number")
    small = chunk.filter(pl.col("used") / pl.col("dur") * 100 < threshold_share * 100)
    runs = small.group_by(pl.col("number") - pl.int_range(pl.len()), maintain_order=True)
    return runs.agg(
        in_use_share=pl.col("used").sum() / pl.col("dur").sum(),
        dur_ns=pl.col("end").max() - pl.col("start").min(),
        start_ns=pl.col("start").min(),
    ).select(*_REGIONS)


def _sum_by_chunk(work: pl.DataFrame, spans: pl.DataFrame, low: int, size: int) -> pl.Series:
    """Sums the time of `work` (ns) within each chunk of `size` ns from `low` on."""
    first, last = (pl.col("start") - low) // size, (pl.col("end") - 1 - low) // size
    placed = work.filter(pl.col("end") > pl.col("start")).with_columns(number=first, within=first == last)
    whole = placed.filter("within").select("number", ns=pl.col("end") - pl.col("start"))
    # `cut` asks for a span set; chunks touch, which is safe here, since no part has length 0
    cut = intervals.cut(placed.filter(~pl.col("within")).select("start", "end"), spans)
    pieces = cut.select(number=first, ns=pl.col("end") - pl.col("start"))
    sums = pl.concat([whole, pieces]).group_by("number").agg(pl.col("ns").sum())
    numbers = pl.int_range(spans.height, eager=True).alias("number").to_frame()
    return numbers.join(sums, on="number", how="left", maintain_order="left").get_column("ns").fill_null(0)
