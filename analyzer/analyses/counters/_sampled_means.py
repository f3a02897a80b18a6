"""Means of a GPU's sampled counters over intervals.

A sample is an average over the time from it to the next one. It tells of a kernel only where nearly all of that time is
the kernel's: at the edges it mixes what ran before and after. Definitions: docs/definitions.md, section 8.
"""

from typing import Final, NamedTuple

import polars as pl

from kanalyze import columns, intervals
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.report import Report

#: The counters by column: nsys' names in all versions, and torch.profiler's. Of NVLink some GPUs have four a direction,
#: which are summed.
COUNTERS: Final = {
    "sms_active_share": r"^SMs? Active$",
    "sm_issue_share": r"^SM (?:Issue|Instructions? Issued?)",
    "tensor_active_share": r"Tensor (?:Pipe )?Active",
    "warps_share": r"^(?:Compute|CS) Warps in Flight$",
    "dram_read_share": r"^(?:DRAM Read (?:Bandwidth|Throughput)|HBM Read)$",
    "dram_write_share": r"^(?:DRAM Write (?:Bandwidth|Throughput)|HBM Write)$",
    "pcie_read_share": r"^PCIe (?:RX|Read) Throughput$",
    "pcie_write_share": r"^PCIe (?:TX|Write) Throughput$",
    "nvlink_read_share": r"^NVLink (?:RX|Read) (?:Bandwidth|Throughput|Re(?:quests|sponses) (?:User|Protocol) Data)$",
    "nvlink_write_share": r"^NVLink (?:TX|Write) (?:Bandwidth|Throughput|Re(?:quests|sponses) (?:User|Protocol) Data)$",
    "sm_clock_hz": r"^(?:GPC Clock Frequency|SM Clock)$",
}

#: Their unit: a percentage, or what is told in Hz whatever its name says.
_CLOCK: Final = "sm_clock_hz"

#: A sample tells of an interval that has this part of its time.
_PURE: Final = 0.9


class Grid(NamedTuple):
    """The sampled counters of one device, as cells of time in each of which all of them are constant."""

    cells: pl.DataFrame  # start, end (sorted, disjoint) and a column for each of :data:`COUNTERS` that the device has
    period_ns: int  # the usual time between two samples


@once_per_process
def grids(report: Report) -> dict[int, Grid]:
    """The sampled counters of each device that has any."""
    metrics = report.table("gpu_metrics")
    text, percent = pl.col("metric").cast(pl.String), pl.col("unit").cast(pl.String).str.contains("%")
    # none for others, and for other units of the same counter
    column = pl.coalesce(
        pl.when(text.str.contains(metric) & (percent.fill_null(value=True) | pl.lit(name == _CLOCK))).then(pl.lit(name))
        for name, metric in COUNTERS.items()
    )
    names = metrics.select("metric", "unit").unique().with_columns(column=column).drop_nulls("column")
    samples = metrics.join(names, on=["metric", "unit"], nulls_equal=True)
    return {int(device): _grid(own) for (device,), own in samples.partition_by("device", as_dict=True).items()}


def _grid(runs: pl.DataFrame) -> Grid:
    """The cells of one device: cut wherever a counter changes, or is not recorded."""
    runs = runs.with_columns(**intervals.OF_EVENTS)
    edges = pl.concat([runs.get_column("start"), runs.get_column("end")]).unique().sort()
    cells = pl.DataFrame({"start": edges.slice(0, len(edges) - 1), "end": edges.slice(1)})
    for (name,), parts in runs.partition_by("column", as_dict=True).items():
        own = [_values(cells, part) for part in parts.partition_by("metric")]
        scale = 1 if name == _CLOCK else 100
        cells = cells.with_columns((sum(own[1:], own[0]) / scale).alias(str(name)))
    values = [name for name in COUNTERS if name in cells.columns]
    recorded = cells.filter(pl.any_horizontal(pl.col(values).is_not_null()))
    one = runs.select((pl.col("dur_ns") / pl.col("samples")).median()).item()
    return Grid(recorded, max(int(one), 1))


def _values(cells: pl.DataFrame, runs: pl.DataFrame) -> pl.Series:
    """The value of one counter in each cell; null where it is not recorded."""
    line = runs.sort("start").unique("start", keep="first", maintain_order=True)
    at = columns.nearest_place(line.get_column("start"), cells.get_column("start"))
    inside = cells.get_column("end") <= columns.gathered(line.get_column("end"), at)
    return columns.gathered(line.get_column("value"), at).set(~columns.sure(inside), None)


def means(grid: Grid, spans: pl.DataFrame) -> pl.DataFrame:
    """Time-weighted means of the counters of a device over `spans` (key, start, end), of which overlaps count once.

    By key, with total_ns (of its intervals), sampled_ns and samples (what of that samples tell), and a column for each
    of :data:`COUNTERS`, null where none tells.
    """
    whole, ns = intervals.union_by(spans, ["key"]), pl.col("ns")
    total = whole.group_by("key", maintain_order=True).agg(total_ns=(pl.col("end") - pl.col("start")).sum())
    inside = _told(grid, whole)
    weighted = [
        ((pl.col(name) * ns).sum() / ns.filter(pl.col(name).is_not_null()).sum()).alias(name)
        if name in inside.columns
        else pl.lit(None, dtype=pl.Float64).alias(name)
        for name in COUNTERS
    ]
    by_key = inside.group_by("key", maintain_order=True)
    sums = by_key.agg(ns.sum().alias("sampled_ns"), pl.col("samples").sum(), *weighted)
    joined = total.join(sums, on="key", how="left", maintain_order="left")
    counts = pl.col("total_ns", "sampled_ns", "samples").cast(pl.Int64).fill_null(0)
    return joined.select("key", counts, *COUNTERS)


def cells_within(grid: Grid, spans: pl.DataFrame) -> pl.DataFrame:
    """The cells that lie in disjoint `spans` (start, end) but for their edges: start, ns, samples and the values."""
    cells = _told(grid, spans.with_columns(key=pl.lit(0)))
    return cells.with_columns(start=grid.cells.get_column("start").gather(cells.get_column("cell"))).drop("key", "cell")


def _told(grid: Grid, spans: pl.DataFrame) -> pl.DataFrame:
    """The cells that tell of a key: key, cell, ns (of the key in the cell), samples, and its values."""
    cells = grid.cells
    pieces = intervals.cut(spans.select("key", "start", "end"), cells)
    cell = columns.nearest_place(cells.get_column("start"), pieces.get_column("start")).alias("cell")
    lengths = pieces.select("key", cell, ns=pl.col("end") - pl.col("start"))
    sums = lengths.group_by("key", "cell", maintain_order=True).agg(pl.col("ns").sum())
    values = cells[sums.get_column("cell")]
    sums = sums.with_columns(length=values.get_column("end") - values.get_column("start"))
    sums = pl.concat([sums, values.drop("start", "end")], how="horizontal")
    several = pl.col("length") > 1.5 * grid.period_ns
    pure = (pl.col("ns") >= _PURE * pl.col("length")) | (several & (pl.col("ns") >= _PURE * grid.period_ns))
    count = ((2 * pl.col("ns") + grid.period_ns) // (2 * grid.period_ns)).clip(lower_bound=1)
    return sums.filter(pure).with_columns(samples=count)
