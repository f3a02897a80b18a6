"""Operations launched while the program compiled or autotuned, whose number differs from run to run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import exclusive_operations
from kanalyze.analyses.joining._kernel_groups import GROUP_KEYS, kernels_in
from kanalyze.analyses.ranges._warm_up import compile_spans
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.errors import CannotTellError
from kanalyze.model import COMPILED_KERNELS

if TYPE_CHECKING:
    from kanalyze.report import Report


def tuned(report: Report) -> list[str]:
    """Names of the kernels that Triton compiled in several variants, as its autotuner does; empty if not recorded."""
    try:
        compiled = report.table(COMPILED_KERNELS.name)
    except CannotTellError:
        return []
    several = compiled.filter(pl.col("source") == "triton").filter(pl.col("hash").n_unique().over("name") > 1)
    return several.get_column("name").unique().sort().to_list()


@once_per_report
def compiled_meanwhile(report: Report) -> pl.DataFrame:
    """Every operation in scope: columns event_id, kind, name, stream, start, size_bytes and compiling.

    `compiling`: it was launched while torch.compile compiled, or benchmarked what it had compiled.
    """
    work = exclusive_operations(report, "call_start", "stream", "size_bytes")
    calls = work.get_column("call_start")
    inside = intervals.overlap(calls.fill_null(0), calls.fill_null(0) + 1, compile_spans(report)) > 0
    compiling = (inside & calls.is_not_null()).alias("compiling")
    return work.select("event_id", "kind", pl.col("name").cast(pl.String), "stream", "start", "size_bytes", compiling)


def tried(report: Report, names: list[str]) -> pl.DataFrame:
    """:func:`compiled_meanwhile` with `trial`: a launch of a kernel in `names`, or the operation right before one.

    Triton's autotuner flushes the cache before each trial.
    """
    work = compiled_meanwhile(report).sort("start", "event_id")
    own = pl.col("name").is_in(names).fill_null(value=False)
    return work.with_columns(trial=own | own.shift(-1).over("stream").fill_null(value=False))


def trials_of_kernels(report: Report, names: list[str]) -> pl.DataFrame:
    """Counts of trial launches by kernel group: :data:`GROUP_KEYS`, compiling, trial."""
    own = tried(report, names).filter(pl.col("kind") == "kernel").select("event_id", "compiling", "trial")
    kernels = kernels_in(report).join(own, on="event_id")
    return kernels.group_by(GROUP_KEYS).agg(pl.col("compiling", "trial").sum().cast(pl.Float64))


def trials_of_copies(report: Report, names: list[str]) -> pl.DataFrame:
    """Counts and bytes of trial copies and memsets: columns name, compiling, trial, compiling_bytes, trial_bytes."""
    own = tried(report, names).filter(pl.col("kind").is_in(["memcpy", "memset"]))
    count = pl.col("compiling", "trial").sum().cast(pl.Float64)
    size = (pl.col("compiling", "trial").cast(pl.Float64) * pl.col("size_bytes")).sum().name.suffix("_bytes")
    return own.group_by("name").agg(count, size)
