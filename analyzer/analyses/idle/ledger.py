"""The ledger, every nanosecond of a device's window in exactly one bucket; and idle gaps, exposed work, utilisation."""

from typing import Final, Unpack

import polars as pl

from kanalyze import errors, intervals, model
from kanalyze.analyses.communication._recorded import has_partners, told_communication
from kanalyze.analyses.device._operations import BUSY_BUCKETS, exclusive_operations, facts_of, of_device, operations
from kanalyze.analyses.device._windows import busy_by_bucket, share_of_window, windows
from kanalyze.analyses.host import _range_lines, _thread_timeline
from kanalyze.analyses.host.calls import cuda_ordinal
from kanalyze.analyses.idle._attribution import bucket_of, gaps_of, idle_pieces, idle_sums
from kanalyze.analyses.idle._idle_parts import IDLE, range_names, require_names
from kanalyze.analyses.operators._host_names import ALIGNED, with_shares
from kanalyze.analyses.shared import analysis, statistics, threads
from kanalyze.columns import gathered, rows_at
from kanalyze.report import Report, Where
from kanalyze.schema import Column, Table, columns

TABLE = Table(
    "ledger",
    "One bucket of a device's time, by detail; the rows of a device sum to its window exactly.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(statistics.BUCKETS), "Where the time went: " + ", ".join(statistics.BUCKETS) + "."),
        *columns("""
            detail text?: kernel: graph for whole-graph rows; communication: waiting for whom, or transfer, where its
                ranks are in the report; memcpy: the direction; loading: context or the call; launch: call or latency;
                profiler: its own word; allocation, sync, api: the call; unknown: recording begins, or null.
            ns int: Time.
            share float: Part of the device's window.
        """),
    ),
    purpose="where each GPU's time went, to the nanosecond",
)

_BUCKET: Final = pl.Enum(statistics.BUCKETS)
_TALKS: Final = pl.col("bucket") == "communication"

_TEXT: Final = pl.col("bucket").cast(pl.String)
_NS: Final = pl.col("end") - pl.col("start")
_ROW: Final = (_TEXT.cast(_BUCKET), pl.col("detail").cast(pl.String), pl.col("ns"))


@analysis.analysis
def ledger(report: Report) -> pl.DataFrame:
    """Time of each device by bucket and detail.

    Returns:
        :data:`TABLE`: one row per device, bucket and detail with any time; sorted by device, bucket (in the order of
        :data:`BUCKETS`) and time. A device without operations has no rows.

    Raises:
        CannotTellError: The report records no device operations at all.
    """
    rows = bucket_sums(report)
    if rows.filter(_TALKS).is_empty() or not has_partners(report):
        return rows
    parts = [rows.filter(~_TALKS)]
    for device in windows(report).get_column("device"):
        # by whom it waited for and what it transferred
        sums = told_communication(report, of_device(exclusive_operations(report), device))
        number, bucket = pl.lit(device, dtype=pl.Int64), pl.lit("communication", dtype=_BUCKET)
        named = sums.with_columns(device=number, bucket=bucket).with_columns(share_of_window(report))
        parts.append(TABLE.select(named))
    return _sorted(pl.concat(parts))


@analysis.once_per_report
def bucket_sums(report: Report) -> pl.DataFrame:
    """The ledger without details of communication, for what is computed from its buckets: :data:`TABLE`.

    Raises:
        CannotTellError: The report records no device operations at all.
    """
    analysis.require(report, TABLE, *model.DEVICE_KINDS)
    work = exclusive_operations(report).group_by("device", "bucket", "detail").agg(ns=pl.col("exclusive_ns").sum())
    rows = pl.concat(part.select("device", *_ROW) for part in (work, idle_sums(report)))
    lengths = windows(report).select("device", window=pl.col("end") - pl.col("start"))
    sums = rows.group_by("device").agg(pl.col("ns").sum(), least=pl.col("ns").min())
    sums = lengths.join(sums, on="device", how="left").fill_null(0)
    wrong = sums.filter((pl.col("ns") != pl.col("window")) | (pl.col("least") < 0))
    for device, window, total_ns, _ in wrong.iter_rows():
        raise AssertionError(f"the ledger of device {device} sums to {total_ns} ns, its window is {window} ns: {rows}")
    return _sorted(TABLE.select(rows.filter(pl.col("ns") > 0).with_columns(share_of_window(report))))


@analysis.once_per_report
def hides_host(report: Report) -> bool:
    """Whether devices wait a tenth of the time for launches that are not recorded, and nothing tells of the host."""
    sums = bucket_sums(report)
    unknown_ns = statistics.total(sums.filter(pl.col("detail").is_null(), bucket="unknown"), "ns")
    return unknown_ns >= max(0.1 * statistics.total(sums, "ns"), 1)


def _sorted(rows: pl.DataFrame) -> pl.DataFrame:
    return rows.sort("device", "bucket", "ns", "detail", descending=[False, False, True, False])


# Idle gaps of each device, with their reason and the operation that ended them.

_ENDED: Final = (
    Column("reason", pl.Enum(IDLE), "The bucket that took most of it; of equal ones the first."),
    Column("culprit", pl.Categorical, "Who took most of that bucket, by name, as in `culprits`.", nullable=True),
)

GAPS: Final = Table(
    "gaps",
    "One time in which a device was idle; over all of them the columns of buckets sum to the ledger.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("start_ns", pl.Int64, "When the device became idle, or the window's start."),
        Column("dur_ns", pl.Int64, "How long it was idle, inside the window."),
        *(Column(f"{bucket}_ns", pl.Int64, f"Of that, the ledger's bucket {bucket}.") for bucket in IDLE),
        *_ENDED,
        Column("ended_by", pl.Categorical, "Operation that ended it; null after the last one.", nullable=True),
        Column("kind", pl.Enum(model.DEVICE_KINDS), "Kind of that operation.", nullable=True),
        Column("stream", pl.Int64, "Its CUDA stream.", nullable=True),
        Column("api", pl.Categorical, "The call that launched it.", nullable=True),
        Column("range", pl.Categorical, "Innermost range that made that call, as in `culprits`.", nullable=True),
        Column("process_id", pl.Int64, "Process of that operation.", nullable=True),
        Column("thread_id", pl.Int64, "Host thread of that call.", nullable=True),
        ALIGNED,
    ),
    purpose="each idle interval: why, and what ended it",
    telling=("start_ns", "dur_ns", "reason"),
    groupings=("culprit",),
    options=("threshold_ns",),
)

#: The table that ``by="culprit"`` gives.
GAPS_BY_CULPRIT: Final = Table(
    "gaps",
    "All gaps with one reason and culprit; a gap counts whole for the largest of its culprits.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        *_ENDED,
        Column("count", pl.Int64, "How many gaps."),
        Column("total_ns", pl.Int64, "Their sum."),
        Column("share", pl.Float64, "Part of the device's window."),
        Column("avg_ns", pl.Float64, "Mean length."),
        Column("max_ns", pl.Int64, "The longest."),
        ALIGNED,
    ),
    options=GAPS.options,
    when="--by culprit",
)


def gaps(report: Report, by: str | None = None, threshold_ns: int = 1000, **where: Unpack[Where]) -> pl.DataFrame:
    """Idle gaps of each device longer than a threshold.

    Args:
        report: The report. Gaps are found in the whole of it, and clipped to the window after that.
        by: ``culprit`` sums the gaps by reason and culprit.
        threshold_ns: Gaps of this length and shorter are left out, measured inside the window.
        where: A window, device or process to look at alone.

    Returns:
        :data:`GAPS`, by device and time, or :data:`GAPS_BY_CULPRIT`, by device, the costliest first.

    Raises:
        CannotTellError: The report records no device operations at all.
        UnknownNameError: There is no such grouping.
    """
    report = analysis.part_of(report, where, GAPS, by, *model.DEVICE_KINDS)
    require_names(report)
    parts = [_gaps_of_device(report, device, pieces, threshold_ns) for device, pieces in idle_pieces(report).items()]
    if not parts:
        return (GAPS if by is None else GAPS_BY_CULPRIT).empty()
    return (_with_ends if by is None else _by_culprit)(report, pl.concat(parts))


def _gaps_of_device(report: Report, device: int, pieces: pl.DataFrame, threshold_ns: int) -> pl.DataFrame:
    """The gaps of a device longer than a threshold: device, row, start_ns, dur_ns, buckets, reason and culprit.

    What was not recorded is a gap on each side of the window. The reason is the bucket with most time, the culprit the
    one with most time in that bucket; ties go to the first.
    """
    gap, bucket = gaps_of(report, pieces).rle_id(), bucket_of(report, pieces)
    ns = (pieces.get_column("end") - pieces.get_column("start")).alias("ns")
    rows = pieces.select("start", "row", "culprit", gap, bucket, ns)
    rows = rows.filter(pl.col("ns").sum().over("gap") > threshold_ns).with_columns(pl.col("gap").rle_id())
    sums = {f"{name}_ns": pl.col("ns").filter(pl.col("bucket") == name).sum() for name in IDLE}
    by_gap = rows.group_by("gap", maintain_order=True)
    gap_rows = by_gap.agg(pl.col("row").first(), start_ns=pl.col("start").first(), dur_ns=pl.col("ns").sum(), **sums)
    most = pl.max_horizontal(*sums)
    firsts = (pl.when(pl.col(f"{name}_ns") == most).then(pl.lit(name, dtype=pl.Enum(IDLE))) for name in IDLE)
    gap_rows = gap_rows.with_columns(device=pl.lit(device, dtype=pl.Int64), reason=pl.coalesce(*firsts))
    mains = rows.filter(rows.get_column("bucket") == gap_rows.get_column("reason")[rows.get_column("gap")])
    culprits = mains.group_by("gap", "culprit").agg(pl.col("ns").sum())
    order = culprits.sort("gap", "ns", "culprit", descending=[False, True, False])
    return gap_rows.with_columns(order.filter(pl.col("gap").is_first_distinct()).get_column("culprit"))


def _with_ends(report: Report, gap_rows: pl.DataFrame) -> pl.DataFrame:
    """The gaps of a device with the operation that ended each: :data:`GAPS`."""
    rows = gap_rows.get_column("row")
    ended = facts_of(report, rows, "name", "kind", *threads.THREAD, "stream", "call_start", "call_name")
    around = _range_lines.ranges_at(report, ended.select(*threads.THREAD, at="call_start"))
    around = around.set(ended.get_column("thread_id").is_null(), None)
    return GAPS.select(
        with_shares(report, gap_rows, "reason").with_columns(
            ended.get_column("name").alias("ended_by"),
            *ended.select("kind", *threads.THREAD, "stream"),
            _thread_timeline.shown_calls(report, ended.get_column("call_name")).alias("api"),
            gathered(range_names(report), around).alias("range"),
        )
    )


def _by_culprit(report: Report, gap_rows: pl.DataFrame) -> pl.DataFrame:
    length = pl.col("dur_ns")
    times = {"total_ns": length.sum(), "avg_ns": length.mean(), "max_ns": length.max(), "ns": length.sum()}
    sums = gap_rows.group_by("device", "reason", "culprit").agg(count=pl.len(), **times)
    order = sums.with_columns(share_of_window(report))
    order = order.sort("device", "total_ns", "reason", "culprit", descending=[False, True, False, False])
    return GAPS_BY_CULPRIT.select(with_shares(report, order, "reason"))


# Total and exposed time of each kind of device work.

CATEGORIES: Final = (*BUSY_BUCKETS, "launch")

EXPOSURE: Final = Table(
    "exposure",
    "One kind of work of a device: how long it took in all, and how much of that the device did nothing more useful.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("category", pl.Enum(CATEGORIES), "kernel, communication, memcpy, memset; launch: the launching calls."),
        *columns("""
            detail text?: Direction of the copies; null for all of the category together.
            total_ns int: Sum of the durations inside the window.
            union_ns int: Time in which at least one was running.
            exposed_ns int: The part that nothing hid, as in the ledger.
            hidden_share float?: Part of the union that ran behind more useful work; null where there is none. Of
                launches, the part of the calls in which the device did not wait for them; the latency after a call is
                in no call.
        """),
    ),
    purpose="how much of each kind of work was not hidden",
)


@analysis.analysis
def exposure(report: Report) -> pl.DataFrame:
    """Total, union and exposed time by device and category, inside the windows.

    Returns:
        :data:`EXPOSURE`: categories that occur, in the order of :data:`CATEGORIES`; copies also by direction.

    Raises:
        CannotTellError: The report records no device operations.
    """
    analysis.require(report, EXPOSURE, *model.DEVICE_KINDS)
    category, keys = pl.Enum(CATEGORIES), ["device", "category", "copies", "detail"]
    columns_of = ("device", "detail", "start", "end", "exclusive_ns")
    work = exclusive_operations(report).select(*columns_of, category=_TEXT.cast(category), copies=pl.lit(value=False))
    copies = work.filter(pl.col("category") == "memcpy").with_columns(copies=pl.lit(value=True))
    called = operations(report, "call_row").select("device", "call_row").drop_nulls().unique()
    calls = called.hstack(rows_at(report.kind("api").select(**intervals.OF_EVENTS), called.get_column("call_row")))
    sides = windows(report).select("device", low="start", high="end")
    inside = calls.join(sides, on="device").with_columns(pl.col("start", "end").clip("low", "high"))
    calls = inside.filter(pl.col("end") > pl.col("start")).select("device", "start", "end")
    calls = calls.with_columns(category=pl.lit("launch", dtype=category), copies=pl.lit(value=False))
    parts = pl.concat([work.with_columns(detail=pl.lit(None, work.schema["detail"])), copies, calls], how="diagonal")
    unions = intervals.union_by(parts, keys).group_by(keys).agg(union_ns=_NS.sum())
    sums = parts.group_by(keys).agg(total_ns=_NS.sum(), own_ns=pl.col("exclusive_ns").sum())
    rows = sums.join(unions, on=keys, how="left", nulls_equal=True).with_columns(pl.col("union_ns").fill_null(0))
    # of launches the ledger's bucket; the time inside the calls lies within their union, the latency after them not
    waits = bucket_sums(report).filter(pl.col("bucket") == "launch")
    in_calls = pl.col("ns").filter(pl.col("detail") == "call")
    waits = waits.group_by("device").agg(waited_ns=pl.col("ns").sum(), call_ns=in_calls.sum())
    launch = pl.when(pl.col("category") == "launch")
    rows = rows.join(waits, on="device", how="left").with_columns(
        exposed_ns=launch.then(pl.col("waited_ns").fill_null(0)).otherwise("own_ns"),
        own_ns=launch.then(pl.col("call_ns").fill_null(0)).otherwise("own_ns"),
    )
    hidden = pl.when(pl.col("union_ns") > 0).then(1 - pl.col("own_ns") / pl.col("union_ns"))
    return EXPOSURE.select(rows.with_columns(hidden_share=hidden).sort(*keys[:3], -pl.col("total_ns"), "detail"))


# Utilisation of each device over time, in equal chunks of its window, by bucket.

UTILISATION: Final = Table(
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

_MOST_CHUNKS: Final = 100_000

#: Names of profiler overheads that count as work.
_OVERHEADS: Final = ("CUDA profiling data flush overhead", "CUDA profiling stop overhead", "CUDA profiling overhead")
_KINDS: Final = ("kernel", "memcpy", "memset")
_KEYS: Final = ("process_id", "gpu")
_REGIONS: Final = {"in_use_share": pl.Float64, "dur_ns": pl.Int64, "start_ns": pl.Int64}


def utilisation(
    report: Report,
    chunks: int = 30,
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
        :data:`UTILISATION`, sorted by device and time, or :data:`AS_NSYS`, the least used first.

    Raises:
        CannotTellError: The report records no device operations.
        UnknownNameError: The number of chunks is out of range.
    """
    report = analysis.part_of(report, where, UTILISATION, None, *model.DEVICE_KINDS)
    if not 1 <= chunks <= _MOST_CHUNKS:
        raise errors.UnknownNameError.of("number of chunks", chunks, [f"1 to {_MOST_CHUNKS}"])
    if as_nsys:
        # by default as nsys does: regions in use for less than half of the time
        return AS_NSYS.select(low_regions(report, chunks, 0.5 if threshold_share is None else threshold_share))
    parts = [_in_chunks(report, device, low, high, chunks) for device, low, high in windows(report).iter_rows()]
    rows = pl.concat([UTILISATION.empty(), *map(UTILISATION.select, parts)])
    return rows if threshold_share is None else rows.filter(pl.col("busy_share") < threshold_share)


def _in_chunks(report: Report, device: int, low: int, high: int, chunks: int) -> pl.DataFrame:
    # at most one chunk per nanosecond
    chunks = max(min(chunks, high - low), 0)
    whole, rest = divmod(high - low, max(chunks, 1))
    number = pl.int_range(chunks + 1, eager=True)
    edges = low + number * whole + number * rest // max(chunks, 1)
    start, end = edges.slice(0, chunks), edges.slice(1)
    times = busy_by_bucket(report, device, start, end)
    rows = times.with_columns(t_ns=start, dur_ns=end - start, busy_ns=pl.sum_horizontal(times.columns))
    shares = {f"{of}_share": pl.col(f"{of}_ns") / pl.col("dur_ns") for of in ("busy", *BUSY_BUCKETS)}
    return rows.with_columns(device=pl.lit(device), **shares)


def low_regions(report: Report, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Merges adjacent chunks below the threshold into regions, sorted by utilisation, then by length.

    Columns: in_use_share, dur_ns, start_ns, process_id, device (the process's ordinal), context_id, gpu.
    """
    sides = intervals.OF_EVENTS
    work = pl.concat(report.seen(kind).select("process_id", "context_id", gpu="device", **sides) for kind in _KINDS)
    work = work.filter(pl.col("start") > 0)
    costing = pl.col("name").cast(pl.String).is_in(_OVERHEADS)
    overhead = report.kind("overhead").filter(costing).select("process_id", **sides)
    parts = [pl.DataFrame(schema={**_REGIONS, **dict.fromkeys((*_KEYS, "context_id"), pl.Int64)})]
    for (process, gpu), part in work.partition_by(_KEYS, as_dict=True, maintain_order=True).items():
        last = part.get_column("context_id").item(part.get_column("end").arg_max() or 0)
        costs = overhead.filter(pl.col("process_id").eq_missing(process))
        regions = _low_regions_of(part.select("start", "end"), costs.select("start", "end"), chunks, threshold_share)
        keys = {"process_id": process, "gpu": gpu, "context_id": last}
        parts.append(regions.with_columns(pl.lit(value, dtype=pl.Int64).alias(name) for name, value in keys.items()))
    # nsys sorts by the printed value, a percentage with one decimal
    shown = (pl.col("in_use_share") * 1000 + 0.5).floor()
    return pl.concat(parts).with_columns(cuda_ordinal(report).alias("device")).sort(shown, "dur_ns", "start_ns")


def _low_regions_of(work: pl.DataFrame, overhead: pl.DataFrame, chunks: int, threshold_share: float) -> pl.DataFrame:
    """Low regions of one process on one device: in_use_share, dur_ns, start_ns."""
    low, high = work.select(low=pl.col("start").min(), high=pl.col("end").max()).row(0)
    # nsys rounds the chunk length up, so there can be fewer chunks, and the last one can be shorter
    size = -(-(high - low) // chunks)
    if size <= 0:
        return pl.DataFrame(schema=_REGIONS)
    begins = pl.int_range(low, high, size, eager=True)
    spans = pl.DataFrame({"start": begins, "end": (begins + size).clip(upper_bound=high)})
    inside = overhead.filter((pl.col("start") > low) & (pl.col("end") < high))
    # `cut` asks for a span set; chunks touch, which is safe here, since no part has length 0
    pieces = intervals.cut(pl.concat([work, inside]).filter(_NS > 0), spans)
    sums = pieces.group_by(((pl.col("start") - low) // size).alias("number")).agg(used=_NS.sum())
    chunk = spans.with_columns(dur=_NS, number=pl.int_range(pl.len())).join(sums, on="number", how="left")
    chunk = chunk.sort("number").with_columns(pl.col("used").fill_null(0))
    small = chunk.filter(pl.col("used") / pl.col("dur") * 100 < threshold_share * 100)
    runs = small.group_by(pl.col("number") - pl.int_range(pl.len()), maintain_order=True)
    return runs.agg(
        in_use_share=pl.col("used").sum() / pl.col("dur").sum(),
        dur_ns=pl.col("end").max() - pl.col("start").min(),
        start_ns=pl.col("start").min(),
    ).select(*_REGIONS)
