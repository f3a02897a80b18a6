"""Repeated sequences of launches, which one CUDA graph could replace.

A sequence repeats if whole stretches of a series (:mod:`kanalyze.analyses.launches._series`) are equal, or if a stretch
is periodic (:mod:`kanalyze.analyses.launches._series`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import operations, with_facts
from kanalyze.analyses.idle._attribution import launch_waits, queued_waits, waited_ns
from kanalyze.analyses.launches._graph_launches import graph_launches, has_graphs
from kanalyze.analyses.launches._series import launch_series, periodic
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.analyses.shared.workers import in_threads
from kanalyze.columns.grouping import slices
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Minimum number of repetitions: building a graph for fewer does not pay.
FEWEST: Final = 5

#: Minimum number of operations: a smaller graph does not pay either.
SHORTEST: Final = 3

#: Minimum number of operations in a graph of a periodic sequence: shorter periods are unrolled.
NODES: Final = 32

#: Of more operations the tables on the way to candidates take too much memory to be kept.
_KEPT: Final = 1 << 16

#: Multiplier that spreads places over 64 bits, and the divisor that splits hashes so that sums do not overflow.
_SPREAD: Final = 2862933555777941757
_HALF: Final = 1 << 31

#: The waits of operations: for their launches, and for queued work before them.
_Waits = tuple[pl.DataFrame, pl.DataFrame]

#: The waits that are summed per repetition.
_WAITS: Final = ("launch_ns", "queued_ns")
_SUMS: Final = ("operations", "kernels", "api_total_ns", *_WAITS)

CANDIDATES: Final = Table(
    "graphs",
    "One sequence of launches that repeats on one stream, and that one CUDA graph could launch.",
    (
        Column("process_id", pl.Int64, "Process that launched it; null where the report does not say.", nullable=True),
        Column("thread_id", pl.Int64, "Thread that launched it.", nullable=True),
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("stream", pl.Int64, "CUDA stream.", nullable=True),
        Column("operations", pl.Int64, "Kernels, copies and memsets of one repetition."),
        Column("kernels", pl.Int64, "Kernels of one repetition."),
        Column("repetitions", pl.Int64, "How often it was launched."),
        Column("start_ns", pl.Int64, "Start of its first launching call."),
        Column("first", pl.String, "Name of the operation that it begins with.", nullable=True),
        Column("api_total_ns", pl.Int64, "Time in its launching calls."),
        Column(
            "launch_ns",
            pl.Int64,
            "What the device waited for these launches, the first one of each kernel left out: part of the ledger's "
            "launch bucket.",
        ),
        Column(
            "queued_ns",
            pl.Int64,
            "What it waited for launches that had returned, but came too late to follow at once: of each wait, at most "
            "the time since the launch before it returned; part of the ledger's queued bucket.",
        ),
        Column(
            "graph_launch_ns",
            pl.Int64,
            "What launching a graph is taken to cost: the median call in this report on this device, or, without "
            "one, the median of these launching calls.",
        ),
        Column("measured", pl.Boolean, "Whether that is from graph launches in this report."),
        Column(
            "saved_ns", pl.Int64, "At most what a graph saves: of each repetition, both waits less graph_launch_ns."
        ),
    ),
    when="--by candidate",
    telling=("operations", "repetitions", "launch_ns", "saved_ns", "first"),
)


def candidates(report: Report) -> pl.DataFrame:
    """The sequences in scope that could be CUDA graphs, the largest saving first; :data:`CANDIDATES`."""
    return _candidates_and_cuts(report)[0]


@once_per_report
def repetitions(report: Report) -> pl.DataFrame:
    """The operations in scope that belong to a sequence that repeats: row, sequence, unit (its repetition)."""
    _, _, units = _series_of_launches(report)
    return units.drop_nulls("unit").select("row", "sequence", "unit")


def pieces(report: Report) -> int:
    """How many stretches of launches a capture would have to be made of: those between calls that none allows."""
    return _series_of_launches(report)[1].height


def graph_costs(report: Report) -> dict[int, float]:
    """The median duration of the calls that launched a CUDA graph on each device, in ns."""
    return dict(_graph_costs(report).iter_rows())


def cut_launches(report: Report) -> pl.DataFrame:
    """Repeated launches split into too short stretches by calls that no capture allows: device, launches, launch_ns.

    One row per device: the launches in repeated stretches shorter than :data:`SHORTEST`.
    """
    return _candidates_and_cuts(report)[1]


@once_per_report
def _candidates_and_cuts(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The results of :func:`candidates` and :func:`cut_launches`."""
    line, words, units = _series_of_launches(report)
    short = (pl.col("length") < SHORTEST) & (pl.col("alike") >= FEWEST)
    cut = line.filter(words.select(short).to_series().gather(line.get_column("stretch")))
    waits = launch_waits(report), queued_waits(report)
    return _candidates(report, waits, units), _cut(report, waits, cut)


def _series_of_launches(report: Report) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    """The operations by series, their stretches, and the operations with the repetition of each; kept if they are few.

    A page needs them twice, once for the candidates and once to replay graphs: 0.03 of 1.1 s at 0.6 MB.
    """
    return _kept_series(report) if operations(report).height <= _KEPT else _found_series(report)


def _found_series(report: Report) -> tuple[pl.DataFrame, pl.DataFrame, pl.DataFrame]:
    line = launch_series(report)
    words = _words(line)
    return line, words, _with_units(line, words)


_kept_series: Final = once_per_report(_found_series)


def _candidates(report: Report, waits: _Waits, line: pl.DataFrame) -> pl.DataFrame:
    units, own = _units(report, waits, line)
    units = units.join(own, on="sequence", maintain_order="left").join(
        _graph_costs(report), on="device", how="left", maintain_order="left"
    )
    units = units.with_columns(
        measured=pl.col("cost").is_not_null(), graph_launch_ns=pl.col("cost").fill_null(pl.col("own")).cast(pl.Int64)
    )
    saved = (pl.col("launch_ns") + pl.col("queued_ns") - pl.col("graph_launch_ns")).clip(lower_bound=0)
    sums = (
        units.with_columns(saved_ns=saved)
        .group_by("sequence", maintain_order=True)
        .agg(
            pl.col("row", "device", "measured", "graph_launch_ns", "operations", "kernels", "start_ns").first(),
            pl.col("api_total_ns", "launch_ns", "queued_ns", "saved_ns").sum(),
            repetitions=pl.len(),
        )
    )
    sums = _launched_by(report, sums.filter(pl.col("kernels") > 0))
    return CANDIDATES.select(sums.sort("saved_ns", "start_ns", "device", descending=[True, False, False]))


def _launched_by(report: Report, sums: pl.DataFrame) -> pl.DataFrame:
    """`sums` with columns of the first operation: process_id, thread_id, stream, and its name as first."""
    told = with_facts(report, sums, "process_id", "thread_id", "stream", "name")
    return told.with_columns(first=pl.col("name").cast(pl.String))


def _units(report: Report, waits: _Waits, line: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The repetitions, and the median launching call of each sequence (columns sequence, own).

    Columns of a repetition: unit, sequence, row (of its first operation), device, operations, kernels, start_ns,
    api_total_ns, launch_ns and queued_ns. Operations are processed in slices, since there may be many.
    """
    parts = (part.drop_nulls("sequence") for part in slices(line))
    sums, calls = zip(*in_threads(partial(_of_slice, report, waits), list(parts)), strict=True)
    firsts = [pl.col("sequence", "row", "start_ns").first()]
    units = pl.concat(sums).group_by("unit", maintain_order=True).agg(*firsts, pl.col(*_SUMS).sum())
    return with_facts(report, units, "device"), pl.concat(calls).group_by("sequence").agg(
        own=pl.col("call_ns").median()
    )


def _of_slice(report: Report, waits: _Waits, part: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The sums of :func:`_units` over a slice of operations, and their launching calls (columns sequence, call_ns)."""
    known = with_facts(report, part.with_columns(_waits(waits, part)), "kind", "call_start", "call_ns")
    sums = known.group_by("unit", maintain_order=True).agg(
        pl.col("sequence", "row").first(),
        pl.len().cast(pl.Int64).alias("operations"),
        (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.col(*_WAITS).sum(),
        start_ns=pl.col("call_start").first(),
        api_total_ns=pl.col("call_ns").sum(),
    )
    return sums, known.select("sequence", "call_ns")


def _waits(waits: _Waits, part: pl.DataFrame) -> list[pl.Series]:
    """The device's waits for these launches: launch_ns and queued_ns, both 0 for a kernel's first launch.

    An operation that was launched in time waits for something other than its launch.
    """
    found = [waited_ns(of, part.get_column("row")) for of in waits]
    late = pl.min_horizontal("queued_ns", "apart").alias("queued_ns")
    known = part.select("first", "apart").with_columns(found).select("first", "launch_ns", late)
    return known.select(pl.when("first").then(0).otherwise(pl.col(name)).alias(name) for name in _WAITS).get_columns()


def _cut(report: Report, waits: _Waits, line: pl.DataFrame) -> pl.DataFrame:
    known = with_facts(report, line.with_columns(_waits(waits, line)), "device")
    return known.group_by("device").agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("launch_ns").sum())


def _with_units(line: pl.DataFrame, words: pl.DataFrame) -> pl.DataFrame:
    """The operations with the repetition (`unit`) and sequence that each belongs to; null for none."""
    whole = (pl.col("alike") >= FEWEST) & (pl.col("length") >= SHORTEST)
    told = words.select(
        sequence=pl.when(whole).then("word"), unit=pl.when(whole).then(pl.int_range(pl.len()).cast(pl.UInt32))
    )
    stretch = line.get_column("stretch")
    sequence, unit = (told.get_column(name).gather(stretch) for name in ("sequence", "unit"))
    free = sequence.is_null()
    if free.any():
        rest = line.select("series", "stretch", "code").with_row_index("place").filter(free)
        periods = periodic(rest, fewest=FEWEST, nodes=NODES)
        at, first = periods.get_column("place"), words.height
        sequence = sequence.scatter(at, (periods.get_column("sequence") + first).cast(pl.UInt32))
        unit = unit.scatter(at, (periods.get_column("unit") + first).cast(pl.UInt32))
    return line.select("row", "first", "apart", sequence.alias("sequence"), unit.alias("unit"))


def _words(line: pl.DataFrame) -> pl.DataFrame:
    """The stretches: length, word (equal for equal stretches of a series) and alike (number of equal ones)."""
    runs = line.get_column("stretch").rle().struct.unnest()
    length = runs.get_column("len")
    begin, end = length.cum_sum() - length, length.cum_sum() - 1
    place = pl.int_range(pl.len()) - begin.cast(pl.Int64).gather(line.get_column("stretch"))
    code = line.select((pl.col("code") + place * _SPREAD).hash().alias("code")).to_series()
    reached = {"low": (code % _HALF).cum_sum(), "high": (code // _HALF % _HALF).cum_sum()}
    ends = {name: sums.gather(end) for name, sums in reached.items()}
    sums = {name: found - found.shift(1, fill_value=0) for name, found in ends.items()}
    words = pl.DataFrame({"series": line.get_column("series").gather(begin), "length": length, **sums})
    same = ["series", "length", "low", "high"]
    numbers = words.group_by(same, maintain_order=True).agg(alike=pl.len()).with_row_index("word")
    return words.join(numbers, on=same, maintain_order="left").select("length", "word", "alike")


def _graph_costs(report: Report) -> pl.DataFrame:
    """The median duration of graph launch calls by device: device, cost."""
    if not has_graphs(report):
        return pl.DataFrame(schema={"device": pl.Int64, "cost": pl.Float64})
    launches = graph_launches(report).filter("charged")
    return launches.group_by("device").agg(cost=pl.col("call_ns").median())
