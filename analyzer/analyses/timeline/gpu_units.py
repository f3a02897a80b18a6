"""Activity of the units of each GPU, by operation, bucket, range, iteration or idle gap."""

from typing import Final, Unpack

import polars as pl

from kanalyze import errors, intervals, model, schema
from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.device import _operations, _windows
from kanalyze.analyses.idle import _attribution, _idle_parts, ledger
from kanalyze.analyses.iterations.iterations import iterations
from kanalyze.analyses.ranges.ranges import projection
from kanalyze.analyses.shared.analysis import part_of
from kanalyze.columns import gathered
from kanalyze.report import Report, Where

#: Shares of the bandwidth from which on bytes are told.
_TOLD: Final = 0.05

_OF = "nsys' {}, the mean over the samples that tell; null where the GPU has none."

_MEANS: Final = schema.columns(f"""
    total_ns int: Time in which any of it was.
    samples int: Samples of which at least nine tenths are in that time.
    sampled_ns int: What of total_ns they tell of; 0 where it is too short to be told.
    sms_active_share float?: {_OF.format("SMs Active")}
    sm_issue_share float?: {_OF.format("SM Issue")}
    tensor_active_share float?: {_OF.format("Tensor Active")}
    warps_share float?: {_OF.format("Compute Warps in Flight")}
    dram_read_share float?: {_OF.format("DRAM Read Bandwidth")}
    dram_write_share float?: {_OF.format("DRAM Write Bandwidth")}
    pcie_read_share float?: {_OF.format("PCIe RX Throughput")}
    pcie_write_share float?: {_OF.format("PCIe TX Throughput")}
    nvlink_read_share float?: {_OF.format("NVLink RX Bandwidth, or the sum of RX data")}
    nvlink_write_share float?: {_OF.format("NVLink TX Bandwidth, or the sum of TX data")}
    sm_clock_hz float?: {_OF.format("GPC Clock Frequency")}
    dram_read_bytes int?: Bytes read from the device's memory in total_ns, at that share of its bandwidth; null below 5
        % of it, as nsys writes whole percents.
    dram_write_bytes int?: The same of bytes written.
""")

_DEVICE: Final = schema.Column("device", pl.Int64, "The GPU, as in `devices`.")

TABLE: Final = schema.Table(
    "gpu_units",
    "One kernel or kind of copy, all its launches: what the units of the GPU did meanwhile.",
    (_DEVICE, schema.Column("name", pl.String, "Its name.", nullable=True), *_MEANS),
    purpose="what the GPU's units did, by sampled counters",
    telling=("total_ns", "samples", "sms_active_share", "tensor_active_share", "dram_read_share", "dram_write_share"),
    groupings=("bucket", "range", "iteration", "gap"),
)


def _grouped(by: str, doc: str, *keys: schema.Column) -> schema.Table:
    all_columns, when = (_DEVICE, *keys, *_MEANS), f"--by {by}"
    telling = (*(key.name for key in keys), *TABLE.telling)
    return schema.Table("gpu_units", doc, all_columns, when=when, telling=telling)


#: The tables that the groupings give.
BY_BUCKET: Final = _grouped(
    "bucket",
    "A bucket of the ledger: what the units of the GPU did meanwhile.",
    schema.Column("bucket", pl.String, "The bucket."),
)
BY_RANGE: Final = _grouped(
    "range",
    "An NVTX range, all its instances: what the GPU's units did from the first to the last of what each launched.",
    schema.Column("range", pl.String, "Its name.", nullable=True),
)
BY_ITERATION: Final = _grouped(
    "iteration",
    "One iteration: what the units of the GPU did in it.",
    schema.Column("window", pl.String, "What gives it alone as a window."),
)
BY_GAP: Final = _grouped(
    "gap",
    "An idle gap that is longer than two samples: what the units of the GPU did in it.",
    schema.Column("start_ns", pl.Int64, "When the device became idle."),
    schema.Column("reason", pl.String, "The bucket that took most of it."),
    schema.Column("culprit", pl.String, "Who took most of that.", nullable=True),
)

_SPANS: Final = ("device", "start", "end")


def gpu_units(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Means of the sampled counters of each GPU, by operation.

    Args:
        report: The report.
        by: ``bucket`` of the ledger, ``range``, ``iteration`` or idle ``gap`` instead of the operation.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, or the form of the grouping, by device and time, the longest first.

    Raises:
        CannotTellError: The report has no sampled counters of GPUs, or no device operations.
        UnknownNameError: There is no such grouping.
    """
    report = part_of(report, where, TABLE, by, *model.DEVICE_KINDS)
    form = {None: TABLE, "bucket": BY_BUCKET, "range": BY_RANGE, "iteration": BY_ITERATION, "gap": BY_GAP}[by]
    sampled = grids(report)
    if not sampled:
        raise errors.CannotTellError.without(TABLE.name, report.meta.path, ["gpu_metrics"], report.meta.tool)
    keys = [column.name for column in form.columns[1:] if column not in _MEANS]
    spans = _spans(report, by)
    parts = (
        _of_device(report, form, keys, int(device), own)
        for (device,), own in spans.partition_by("device", as_dict=True).items()
        if device in sampled
    )
    descending = [False, True, *(False for _ in keys)]
    return pl.concat([form.empty(), *parts]).sort("device", "total_ns", *keys, descending=descending)


def _of_device(report: Report, form: schema.Table, keys: list[str], device: int, spans: pl.DataFrame) -> pl.DataFrame:
    """The rows of one device; `spans` has the columns `keys`, start and end, not clipped."""
    groups = spans.select(keys).unique(maintain_order=True).with_row_index("key")
    low, high = _windows.windows(report).filter(device=device).select("start", "end").row(0)
    numbered = spans.join(groups, on=keys, nulls_equal=True, maintain_order="left")
    clipped = numbered.with_columns(pl.col("start", "end").clip(low, high)).filter(pl.col("end") > pl.col("start"))
    sums = means(grids(report)[device], clipped.select("key", "start", "end"))
    rows = sums.join(groups, on="key", maintain_order="left").with_columns(device=pl.lit(device, dtype=pl.Int64))
    bandwidth = dict(report.devices.select("device", "memory_bandwidth_bytes_per_s").iter_rows()).get(device)
    at_most = pl.lit(bandwidth, dtype=pl.Float64) * pl.col("total_ns") / 1e9
    moved = {}
    for way in ("read", "write"):  # null where half a percent is more than a tenth of the share
        share = pl.col(f"dram_{way}_share")
        moved[f"dram_{way}_bytes"] = pl.when(share >= _TOLD).then(share * at_most).cast(pl.Int64, strict=False)
    return form.select(rows.with_columns(**moved))


def _spans(report: Report, by: str | None) -> pl.DataFrame:
    """Spans that the means are taken over: device, start, end and the keys of the form."""
    if by == "bucket":
        return _attribution.ledger_pieces(report).select(*_SPANS, pl.col("bucket").cast(pl.String))
    if by == "range":  # the projections of ranges onto each device
        names = _idle_parts.range_names(report)
        projected = [pl.DataFrame(schema={**dict.fromkeys(_SPANS, pl.Int64), "range": pl.String})]
        for (device,), work in _operations.device_operations(report).partition_by("device", as_dict=True).items():
            part = projection(report, work)
            end, name = (pl.col("projected_start_ns") + pl.col("projected_ns"), gathered(names, part.get_column("row")))
            spans = part.select(start="projected_start_ns", end=end, range=name.cast(pl.String))
            projected.append(spans.select(pl.lit(device, dtype=pl.Int64).alias("device"), "start", "end", "range"))
        return pl.concat(projected)
    if by == "iteration":
        return iterations(report).drop_nulls("device").select("device", "window", **intervals.OF_EVENTS)
    if by == "gap":
        shortest = min(grid.period_ns for grid in grids(report).values())  # those of two samples and more
        rows = ledger.gaps(report, threshold_ns=2 * shortest)
        return rows.select("device", "start_ns", pl.col("reason", "culprit").cast(pl.String), **intervals.OF_EVENTS)
    return _operations.exclusive_operations(report).select(*_SPANS, pl.col("name").cast(pl.String))
