"""Launches that repeat: the same operations launched again and again, which one CUDA graph could launch instead.

A sequence repeats if whole stretches of a series (:mod:`kanalyze.analyses._series`) are the same, or if a stretch is
the same as itself, shifted by some period (:mod:`kanalyze.analyses._periods`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses._common import once_per_report
from kanalyze.analyses._graphs import graph_launches
from kanalyze.analyses._periods import periodic
from kanalyze.analyses._series import SERIES, launch_series
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A graph has to be made first: a sequence that is launched less often is none worth making.
FEWEST: Final = 5

#: A graph of fewer operations is not worth making either.
SHORTEST: Final = 3

#: A shorter period is taken several times, so that one graph has at least so many operations.
NODES: Final = 32

#: What spreads the places in a stretch over all 64 bits, and what parts those so that sums do not overflow.
_SPREAD: Final = 2862933555777941757
_HALF: Final = 1 << 31

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
)


def candidates(report: Report) -> pl.DataFrame:
    """The sequences in scope that could be CUDA graphs, those first that save most; :data:`CANDIDATES`."""
    return _found(report)[0]


def cut_launches(report: Report) -> pl.DataFrame:
    """The launches that repeat too, but with a call between them that no capture allows: device, launches, launch_ns.

    One row per device: what is in stretches that repeat and are too short for a graph.
    """
    return _found(report)[1]


@once_per_report
def _found(report: Report) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The answers of :func:`candidates` and :func:`cut_launches`; what they are made of is too large to be kept."""
    line = _with_units(report)
    return _candidates(report, line.drop_nulls("sequence")), _cut(line)


def _candidates(report: Report, line: pl.DataFrame) -> pl.DataFrame:
    costs = _graph_costs(report)
    units = line.group_by("unit", maintain_order=True).agg(
        pl.col("sequence", *SERIES).first(),
        pl.len().cast(pl.Int64).alias("operations"),
        (pl.col("kind") == "kernel").sum().cast(pl.Int64).alias("kernels"),
        pl.col("launch_ns", "queued_ns").sum(),
        start_ns=pl.col("call_start").first(),
        first=pl.col("name").first(),
        api_total_ns=pl.col("api_ns").sum(),
    )
    own = line.group_by("sequence").agg(own=pl.col("api_ns").median())
    units = units.join(own, on="sequence", maintain_order="left").join(
        costs, on="device", how="left", maintain_order="left"
    )
    units = units.with_columns(
        measured=pl.col("cost").is_not_null(), graph_launch_ns=pl.col("cost").fill_null(pl.col("own")).cast(pl.Int64)
    )
    saved = (pl.col("launch_ns") + pl.col("queued_ns") - pl.col("graph_launch_ns")).clip(lower_bound=0)
    sums = (
        units.with_columns(saved_ns=saved)
        .group_by("sequence")
        .agg(
            pl.col(*SERIES, "measured", "graph_launch_ns", "operations", "kernels", "start_ns", "first").first(),
            pl.col("api_total_ns", "launch_ns", "queued_ns", "saved_ns").sum(),
            repetitions=pl.len(),
        )
    )
    sums = sums.filter(pl.col("kernels") > 0).with_columns(pl.col("first").cast(pl.String))
    return CANDIDATES.select(sums.sort("saved_ns", "start_ns", "device", descending=[True, False, False]))


def _cut(line: pl.DataFrame) -> pl.DataFrame:
    short = line.filter(pl.col("sequence").is_null() & (pl.col("length") < SHORTEST) & (pl.col("alike") >= FEWEST))
    return short.group_by("device").agg(pl.len().cast(pl.Int64).alias("launches"), pl.col("launch_ns").sum())


def _with_units(report: Report) -> pl.DataFrame:
    """The launched operations in series, with the repetition (`unit`) of the sequence that each is part of, if any.

    Also: length of the stretch, and how many stretches of the series are alike.
    """
    line = launch_series(report)
    words = _words(line)
    whole = (pl.col("alike") >= FEWEST) & (pl.col("length") >= SHORTEST)
    words = words.with_columns(sequence=pl.when(whole).then("word"), unit=pl.when(whole).then("stretch"))
    line = line.with_columns(words.select(pl.all().exclude("stretch", "word").gather(line.get_column("stretch"))))
    rest = line.filter(pl.col("sequence").is_null()).select("place", "series", "stretch", "code")
    periods = periodic(rest, fewest=FEWEST, nodes=NODES)
    at, first = periods.get_column("place"), words.height
    sequence = line.get_column("sequence").scatter(at, periods.get_column("sequence") + first)
    return line.with_columns(sequence, line.get_column("unit").scatter(at, periods.get_column("unit") + first))


def _words(line: pl.DataFrame) -> pl.DataFrame:
    """The stretches, sorted: stretch, length, word (a number that the same words of a series share), alike."""
    place = (pl.col("place") - pl.col("place").first().over("stretch")).cast(pl.Int64)
    mixed = line.select("stretch", "series", code=(pl.col("code") + place * _SPREAD).hash())
    halves = [(pl.col("code") % _HALF).sum().alias("low"), (pl.col("code") // _HALF % _HALF).sum().alias("high")]
    words = mixed.group_by("stretch").agg(pl.col("series").first(), pl.len().alias("length"), *halves).sort("stretch")
    same = ["series", "length", "low", "high"]
    numbers = words.group_by(same, maintain_order=True).agg(alike=pl.len()).with_row_index("word")
    told = words.join(numbers, on=same, maintain_order="left")
    return told.select(pl.col("stretch", "word").cast(pl.Int64), "length", "alike")


def _graph_costs(report: Report) -> pl.DataFrame:
    """The median call that launched a graph on each device: device, cost."""
    launches = graph_launches(report).filter("charged")
    return launches.group_by("device").agg(cost=pl.col("call_ns").median())
