"""Utilisation of each device over time, in equal chunks of its window, by bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, exclusive_operations, of_device
from kanalyze.analyses.device._windows import busy_spans, windows
from kanalyze.analyses.idle._low_utilisation import low_regions
from kanalyze.analyses.shared.requirements import require
from kanalyze.errors import UnknownNameError
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

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
    reads=(*DEVICE_KINDS, "api", "collective_detail"),
    may_read=("overhead", "processes"),
)

#: The table that ``as_nsys=True`` gives.
AS_NSYS: Final = Table(
    "utilisation",
    "One stretch of chunks with little work, for one process on one device.",
    (
        Column(
            "in_use_share",
            pl.Float64,
            "Sum of the operations' time by the stretch's length; above 1 where operations run side by side.",
        ),
        Column("dur_ns", pl.Int64, "Length of the stretch."),
        Column("start_ns", pl.Int64, "Start of the stretch."),
        Column("process_id", pl.Int64, "Process.", nullable=True),
        Column("device", pl.Int64, "What the process calls the GPU, as nsys prints it.", nullable=True),
        Column("context_id", pl.Int64, "CUDA context of the operation that ended last.", nullable=True),
        Column("gpu", pl.Int64, "The GPU, as in `devices`.", nullable=True),
    ),
    equals="nsys analyze gpu_time_util",
    when="--as-nsys",
)

CHUNKS: Final = 30
_MOST_CHUNKS: Final = 100_000

#: Default threshold of nsys: it shows regions in use for less than half of the time.
_THRESHOLD_SHARE: Final = 0.5


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

    Columns:
        device, t_ns, dur_ns, busy_share, kernel_share, communication_share, memcpy_share, memset_share, busy_ns,
        kernel_ns, communication_ns, memcpy_ns, memset_ns.
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
    edges = _edges(low, high, chunks)
    work = of_device(exclusive_operations(report).select("device", "rank", "start", "end"), device)
    ranks, found, below = (
        work.get_column("rank").unique().to_list(),
        {},
        pl.zeros(len(edges) - 1, dtype=pl.Int64, eager=True),
    )
    for rank, bucket in enumerate(BUSY_BUCKETS):
        # the time of a bucket is what it adds to the union of those that take precedence over it
        if rank in ranks:
            last = rank == ranks[-1]  # the union of all operations, which is cached
            spans = busy_spans(report)[device] if last else intervals.union(work.filter(pl.col("rank") <= rank))
            covered = intervals.covered_before(edges, spans).diff().slice(1)
            found[bucket], below = covered - below, covered
        else:
            found[bucket] = below * 0
    times = pl.DataFrame({f"{bucket}_ns": ns for bucket, ns in found.items()})
    length = edges.diff().slice(1)
    shares = [(pl.col(f"{bucket}_ns") / length).alias(f"{bucket}_share") for bucket in ("busy", *BUSY_BUCKETS)]
    made = times.with_columns(device=pl.lit(device), t_ns=edges.slice(0, len(length)), dur_ns=length, busy_ns=below)
    return made.with_columns(shares)


def _edges(low: int, high: int, chunks: int) -> pl.Series:
    """Edges of the chunks of ``[low, high)``, its end included; at most one chunk per nanosecond."""
    chunks = max(min(chunks, high - low), 0)
    whole, rest = divmod(high - low, max(chunks, 1))
    number = pl.int_range(chunks + 1, eager=True)
    return low + number * whole + number * rest // max(chunks, 1)
