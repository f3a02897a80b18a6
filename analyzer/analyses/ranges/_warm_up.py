"""Detects warm-up steps: longer than the later ones, because of one-time work.

Of the steps of one process on one device, the first ones are warm-up as long as each exceeds the median of the steps
after it by a tenth, and at least half of the excess is one-time work: loading and contexts, allocation, profiler
overhead and slow launches (by the device's ledger), and compilation (reported by torch.compile). At most the first half
of the steps is warm-up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.units import time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: Minimum excess over the later steps, as a share of these, and the minimum share of it that is one-time work.
_LONGER: Final = 0.1
_ONCE_SHARE: Final = 0.5

#: The ledger's buckets of one-time work, and their names in the evidence.
_ONCE: Final = {"loading": "loading", "allocation": "allocation", "profiler": "the profiler", "launch": "launches"}
_COMPILING: Final = "compiling"

#: The suffix of torch.compile's annotations while it compiles (torch/_dynamo/utils.py, dynamo_timed).
_COMPILES: Final = r" \(dynamo_timed\)$"

#: Minimum share of the whole for a part of the evidence to be named.
_TOLD: Final = 0.1


def warmed_up(report: Report, rows: pl.DataFrame) -> list[pl.Series]:
    """The columns `warm_up` and `evidence` (a sentence; null if no warm-up) for the steps in `rows`.

    `rows` are the steps of one process, sorted by device, then by start: device, start_ns, dur_ns, and a column per
    bucket of the ledger (null where there is no device).
    """
    ends = (rows.get_column("start_ns") + rows.get_column("dur_ns")).alias("end_ns")
    compiling = intervals.overlap(rows.get_column("start_ns"), ends, compile_spans(report))
    known = rows.with_columns(compiling.alias(f"{_COMPILING}_ns"))
    evidence: list[str | None] = []
    for part in known.partition_by("device", maintain_order=True):
        found = _evidence_of_first_steps(part)
        evidence += [*found, *[None] * (part.height - len(found))]
    told = pl.Series("evidence", evidence, dtype=pl.String)
    return [told.is_not_null().alias("warm_up"), told]


@once_per_process
def compile_spans(report: Report) -> pl.DataFrame:
    """The intervals in which the program compiled."""
    parts = [pl.DataFrame(schema=intervals.SPANS)]
    for kind in ("op", "range"):
        events = report.kind(kind)
        names = events.get_column("name").unique().cast(pl.String).drop_nulls()
        compiles = names.filter(names.str.contains(_COMPILES)).to_list()
        if compiles:
            own = events.filter(pl.col("name").is_in(compiles))
            parts.append(own.select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)))
    return intervals.union(pl.concat(parts))


def _evidence_of_first_steps(steps: pl.DataFrame) -> list[str]:
    """The evidence for each warm-up step of a device, from the first step on."""
    found: list[str] = []
    for place in range(steps.height // 2):
        evidence = _evidence(steps.row(place, named=True), steps.slice(place + 1))
        if evidence is None:
            break
        found.append(evidence)
    return found


def _evidence(step: dict[str, Any], later: pl.DataFrame) -> str | None:
    columns = {f"{name}_ns": word for name, word in _ONCE.items()} | {f"{_COMPILING}_ns": _COMPILING}
    usual = later.select(pl.col("dur_ns", "host_ns", *columns).median()).row(0, named=True)
    more = {word: (step[name] or 0) - (usual[name] or 0) for name, word in columns.items()}
    if step["host_ns"] is not None:  # only compilation that the device waited for counts
        more[_COMPILING] = min(more[_COMPILING], step["host_ns"] - usual["host_ns"])
    longer = step["dur_ns"] - usual["dur_ns"]
    once = {word: ns for word, ns in more.items() if ns > 0}
    if longer <= _LONGER * usual["dur_ns"] or sum(once.values()) < _ONCE_SHARE * longer:
        return None
    largest = sorted(once.items(), key=lambda part: (-part[1], part[0]))
    told = [f"{word} {time(ns)}" for word, ns in largest if ns >= _TOLD * longer]
    return f"{time(longer)} longer than later steps, of which {', '.join(told)}"
