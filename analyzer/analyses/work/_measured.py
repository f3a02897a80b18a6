"""What tools measured of the work of calls: ncu by its counters, nsys by GPU metrics over long kernels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import polars as pl
from polars._typing import PolarsDataType

from kanalyze.analyses.counters._sampled_means import grids, means
from kanalyze.analyses.counters.roofline import roofline
from kanalyze.analyses.operators._kernel_groups import grouped_kernels, kernel_groups, same_kernels, same_launches
from kanalyze.analyses.work._peaks import TYPES, per_cycle
from kanalyze.errors import KanalyzeError
from kanalyze.report import Report

#: How work is measured: counted by ncu of the same work, or of the same kernel and launch shape; sampled.
EXACT, ALIKE, SAMPLED = "exact", "alike", "sampled"

_CALL: Final = ("device", "call")
#: By call: FLOPs that ran, bytes, the type where ncu tells it, the clock where it was sampled; the surest way first.
_FIGURES: Final[dict[str, PolarsDataType]] = {
    **dict.fromkeys(("counted_flop", "dram_bytes", "clock_hz"), pl.Float64),
    "counted_type": pl.String,
    "measured": pl.Enum([EXACT, ALIKE, SAMPLED]),
}
_LAUNCHES: Final = pl.DataFrame(schema={"event_id": pl.Int64, **_FIGURES})

#: Launches that ncu counted are of one kind where their FLOPs, their bytes, and their times without it are as near.
_SAME_FLOP, _SAME_BYTES, _SAME_NS = 1.01, 1.1, 1.2
#: A sampled kernel has this many samples; a share that is told in whole percents is told from this one on.
_SAMPLES, _TOLD = 5, 0.05


def is_measured(report: Report) -> bool:
    """Whether ncu counted some of the program's kernels, or GPU metrics were sampled."""
    return report.whole.counted() is not None or bool(grids(report))


def with_measured(report: Report, calls: pl.DataFrame, kernels: pl.DataFrame | None) -> pl.DataFrame:
    """Adds :data:`_FIGURES` to calls, null where not all of a call's `kernels` were measured; None for no kernels."""
    if kernels is None:
        return calls.with_columns(pl.lit(None, dtype=dtype).alias(name) for name, dtype in _FIGURES.items())
    kinds = calls.select(*_CALL, pl.col("type").cast(pl.String), op="name", shapes="input_shapes")
    launched = kernels.join(kinds, on=_CALL, maintain_order="left")
    every = pl.concat([_LAUNCHES, *_counted(report, launched), *_sampled(report, launched)], how="diagonal_relaxed")
    figures = every.cast(_LAUNCHES.schema).unique("event_id", keep="first", maintain_order=True)

    def of_all(name: str, value: pl.Expr) -> pl.Expr:
        return pl.when(pl.col(name).count() == pl.len()).then(value)

    of_each = launched.join(figures, on="event_id", how="left", maintain_order="left").group_by(_CALL)
    known = of_each.agg(
        *(of_all(name, pl.col(name).sum()) for name in ("counted_flop", "dram_bytes")),
        pl.col("counted_type", "clock_hz").get(pl.col("dur_ns").arg_max()),
        of_all("measured", pl.col("measured").max()),
    ).filter(pl.any_horizontal(pl.col("counted_flop", "dram_bytes").is_not_null()))
    return calls.join(known, on=_CALL, how="left", maintain_order="left")


def _counted(report: Report, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What ncu counted of launches: of themselves by their numbers, or of others of the same kernel and launch shape.

    Others are as good where the operator's inputs have the same shapes. Where these are not known, the launches must
    take equally long without ncu.
    """
    base = report.whole
    if (ncu := base.counted()) is None:
        return
    try:
        counts = roofline(ncu)
        numbered, pairs, groups = same_launches(base, ncu), same_kernels(base, ncu), grouped_kernels(ncu)
    except KanalyzeError as error:
        base.go_without(ncu.meta.path.name, error)
        return
    kind = pl.col("precision").str.extract(r"^(?:tensor )?(\w+)(?:/\w+)?$")  # of sparse work the roof is another
    facts = counts.select(
        *("event_id", "dram_bytes"),
        counted_flop=pl.col("flop") + pl.col("tensor_int_op").fill_null(0),
        counted_type=pl.when(kind.is_in(TYPES)).then(kind),
    ).drop_nulls("dram_bytes")
    itself = numbered.drop_nulls("left").join(facts, left_on="right", right_on="event_id")
    yield itself.select("dram_bytes", "counted_flop", "counted_type", event_id="left", measured=pl.lit(EXACT))
    near = (pl.col("counted_flop").max() <= _SAME_FLOP * pl.col("counted_flop").min()).fill_null(value=True)
    near &= pl.col("dram_bytes").max() <= _SAME_BYTES * pl.col("dram_bytes").min()
    of_group = facts.join(groups.select("event_id", "group"), on="event_id").group_by("group")
    alike = of_group.agg(
        pl.col("counted_flop", "dram_bytes").mean(), pl.col("counted_type").first(), one=near, seen=pl.len()
    ).filter("one")
    sure = pairs.filter(pl.col("match").is_in(["exact", "shape"])).join(alike, left_on="right", right_on="group")
    times = kernel_groups(base).select("group", "count", steady=pl.col("high") <= _SAME_NS * pl.col("low"))
    own = grouped_kernels(base).select("event_id", left="group").join(launched, on="event_id")
    told = own.join(sure, on="left").join(times, left_on="left", right_on="group")
    known = pl.col("shapes").is_not_null().all() & (pl.struct("op", "shapes").n_unique() == 1)
    same = known.over("left") | (pl.col("seen") == pl.col("count"))
    how = pl.when(same).then(pl.lit(EXACT)).when("steady").then(pl.lit(ALIKE))
    others = told.select("event_id", "counted_flop", "dram_bytes", "counted_type", measured=how)
    yield others.drop_nulls("measured")


def _sampled(report: Report, launched: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """What GPU metrics tell of kernels that run alone and for several samples: the mean of those of a kind.

    FLOPs are those of tensor cores: the share of time in which they were active, by their rate at the recorded clock;
    older instructions than the GPU's own keep them active longer.
    """
    kinds = launched.with_columns(key=pl.struct("name", "op", "shapes").rank("dense").cast(pl.Int64))
    rates_of = per_cycle(report.devices)
    for device, grid in grids(report).items():
        long = pl.col("dur_ns") >= _SAMPLES * grid.period_ns
        own = kinds.filter(long & (pl.col("exclusive_ns") == pl.col("dur_ns")), device=device)
        rates = means(grid, own.select("key", "start", "end")).filter(pl.col("samples") >= _SAMPLES)
        timed = own.join(rates, on="key").join(rates_of, on=["device", "type"], how="left")
        bandwidth = report.devices.filter(device=device).get_column("memory_bandwidth_bytes_per_s").first()
        seconds, moved = pl.col("dur_ns") / 1e9, pl.col("dram_read_share") + pl.col("dram_write_share")
        active, rate = pl.col("tensor_active_share"), pl.col("flop_per_cycle") * pl.col("sm_clock_hz")
        yield timed.select(
            "event_id",
            counted_flop=pl.when(active >= _TOLD).then(active * rate * seconds),
            dram_bytes=pl.when(moved >= _TOLD).then(moved * seconds * pl.lit(bandwidth, dtype=pl.Float64)),
            clock_hz="sm_clock_hz",
            measured=pl.lit(SAMPLED),
        )
