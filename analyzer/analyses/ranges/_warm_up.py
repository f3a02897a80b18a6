"""Steps that only warm up: longer than all that follow, through what is done once.

Of the steps of one process on one device the first ones warm up, each as long as it is longer by a tenth than the
median of the steps after it, and at least half of what it takes more is done once: loading and contexts, allocation,
the profiler's own work and slow launches (by the ledger of the device), and compiling (torch.compile says so itself).
No more than the first half of the steps does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.units import time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: A step warms up if it is longer by this part of the later ones, and so much of that is done once.
_LONGER: Final = 0.1
_ONCE_SHARE: Final = 0.5

#: The ledger's buckets of what is done once, and what the evidence calls them.
_ONCE: Final = {"loading": "loading", "allocation": "allocation", "profiler": "the profiler", "launch": "launches"}
_COMPILING: Final = "compiling"

#: What torch.compile calls what it does when it compiles (torch/_dynamo/utils.py, dynamo_timed).
_COMPILES: Final = r" \(dynamo_timed\)$"

#: A part of the evidence is told from this part of the whole on.
_TOLD: Final = 0.1


def warmed_up(report: Report, rows: pl.DataFrame) -> list[pl.Series]:
    """Which of the steps in `rows` warm up, as columns `warm_up` and `evidence` (in a sentence; null for the others).

    `rows` are the steps of one process, sorted by device, then by start: device, start_ns, dur_ns, and a column per
    bucket of the ledger (null where there is no device).
    """
    ends = (rows.get_column("start_ns") + rows.get_column("dur_ns")).alias("end_ns")
    compiling = intervals.overlap(rows.get_column("start_ns"), ends, compile_spans(report))
    known = rows.with_columns(compiling.alias(f"{_COMPILING}_ns"))
    evidence: list[str | None] = []
    for part in known.partition_by("device", maintain_order=True):
        found = _first_ones(part)
        evidence += [*found, *[None] * (part.height - len(found))]
    told = pl.Series("evidence", evidence, dtype=pl.String)
    return [told.is_not_null().alias("warm_up"), told]


@once_per_process
def compile_spans(report: Report) -> pl.DataFrame:
    """The span set in which the program compiled."""
    parts = [pl.DataFrame(schema=intervals.SPANS)]
    for kind in ("op", "range"):
        events = report.kind(kind)
        names = events.get_column("name").unique().cast(pl.String).drop_nulls()
        compiles = names.filter(names.str.contains(_COMPILES)).to_list()
        if compiles:
            own = events.filter(pl.col("name").is_in(compiles))
            parts.append(own.select(start="start_ns", end=pl.col("start_ns") + pl.col("dur_ns").fill_null(0)))
    return intervals.union(pl.concat(parts))


def _first_ones(steps: pl.DataFrame) -> list[str]:
    """The evidence for each of the first steps of a device that warm up."""
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
    if step["host_ns"] is not None:  # only what the device waited for counts
        more[_COMPILING] = min(more[_COMPILING], step["host_ns"] - usual["host_ns"])
    longer = step["dur_ns"] - usual["dur_ns"]
    once = {word: ns for word, ns in more.items() if ns > 0}
    if longer <= _LONGER * usual["dur_ns"] or sum(once.values()) < _ONCE_SHARE * longer:
        return None
    largest = sorted(once.items(), key=lambda part: (-part[1], part[0]))
    told = [f"{word} {time(ns)}" for word, ns in largest if ns >= _TOLD * longer]
    return f"{time(longer)} longer than later steps, of which {', '.join(told)}"
