"""Detects warm-up steps: longer than the later ones, because of one-time work.

Of the steps of one process on one device, the first ones are warm-up as long as each exceeds the median of the steps
after it by a tenth, and at least half of the excess is one-time work: loading and contexts, allocation, profiler
overhead and slow launches (by the device's ledger), and compilation (reported by torch.compile). What of such work is
usual is the median of the steps after it; where these are more than 8, of up to 8 in the middle of the last half of all
steps. The 65th step and later ones are compared with the last half of all. At most the first half of them is warm-up.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.statistics import median_of
from kanalyze.report import Report
from kanalyze.units import time

#: Minimum excess over the later steps, as a share of these, and the minimum share of it that is one-time work.
_LONGER: Final = 0.1
_ONCE_SHARE: Final = 0.5

#: The ledger's buckets of one-time work, and their names in the evidence.
_ONCE: Final = {"loading": "loading", "allocation": "allocation", "profiler": "the profiler", "launch": "launches"}
_COMPILING: Final = "compiling"

#: Minimum share of the whole for a part of the evidence to be named.
_TOLD: Final = 0.1

#: Of more later steps, so many tell how much of such work is usual: to attribute the time of all takes far longer.
_COMPARED: Final = 8

#: Steps from this one on are compared with the last half of all, which takes one median for all of them.
_MANY: Final = 64


def warmed_up(report: Report, rows: pl.DataFrame) -> list[pl.Series]:
    """The columns `warm_up` and `evidence` (a sentence; null if no warm-up) for the steps in `rows`.

    `rows` are the steps of one process, sorted by device, then by start: device, start_ns, dur_ns, and a column per
    bucket of the ledger (null where there is no device, and for steps that are not :func:`looked_at`).
    """
    ends = (rows.get_column("start_ns") + rows.get_column("dur_ns")).alias("end_ns")
    compiling = intervals.overlap(rows.get_column("start_ns"), ends, compile_spans(report))
    known = rows.with_columns(compiling.alias(f"{_COMPILING}_ns"))
    evidence: list[str | None] = []
    for part in known.partition_by("device", maintain_order=True):
        found: list[str | None] = []
        for place, longer in enumerate(_longer(part)):
            told = _evidence(part.row(place, named=True), longer, part.slice(*_among_later(part, place)))
            if told is None:
                break
            found.append(told)
        evidence += [*found, *[None] * (part.height - len(found))]
    sentences = pl.Series("evidence", evidence, dtype=pl.String)
    return [sentences.is_not_null().alias("warm_up"), sentences]


@once_per_process
def compile_spans(report: Report) -> pl.DataFrame:
    """The intervals in which the program compiled, by torch.compile's annotations (torch/_dynamo, dynamo_timed)."""
    parts = [pl.DataFrame(schema=intervals.SPANS)]
    for kind in ("op", "range"):
        events = report.kind(kind)
        names = events.get_column("name").unique().cast(pl.String).drop_nulls()
        compiles = names.filter(names.str.contains(r" \(dynamo_timed\)$")).to_list()
        if compiles:
            own = events.filter(pl.col("name").is_in(compiles))
            parts.append(own.select(**intervals.OF_EVENTS))
    return intervals.union(pl.concat(parts))


def looked_at(steps: pl.DataFrame) -> list[tuple[int, int]]:
    """The steps of one device whose ledgers :func:`warmed_up` looks at: first place and number, of one run or two."""
    longer = len(_longer(steps))
    if not longer:
        return []
    if steps.height - 1 <= _COMPARED:
        return [(0, steps.height)]
    low, number = _among_later(steps, longer - 1)
    return [(0, longer), (low, number)] if low > longer else [(0, low + number)]


def _longer(steps: pl.DataFrame) -> list[float]:
    """By how much the first steps, as long as they are longer, exceed the median of those after each, in ns."""
    lengths, half, found = steps.get_column("dur_ns"), steps.height // 2, list[float]()
    of_last = median_of(steps.slice(half), "dur_ns")
    for place, length in enumerate(lengths.head(half)):
        usual = median_of(steps.slice(place + 1), "dur_ns") if place < _MANY else of_last
        if length - usual <= _LONGER * usual:
            break
        found.append(length - usual)
    return found


def _among_later(steps: pl.DataFrame, place: int) -> tuple[int, int]:
    """Those after a step that tell what is usual: first place and number."""
    later = steps.height - place - 1
    if later <= _COMPARED:
        return place + 1, later
    half = steps.height - steps.height // 2
    number = min(_COMPARED, half)
    return steps.height // 2 + (half - number) // 2, number


def _evidence(step: dict[str, Any], longer: float, later: pl.DataFrame) -> str | None:
    columns = {f"{name}_ns": word for name, word in _ONCE.items()} | {f"{_COMPILING}_ns": _COMPILING}
    usual = later.select(pl.col("host_ns", *columns).median()).row(0, named=True)
    more = {word: (step[name] or 0) - (usual[name] or 0) for name, word in columns.items()}
    if step["host_ns"] is not None:  # only compilation that the device waited for counts
        more[_COMPILING] = min(more[_COMPILING], step["host_ns"] - usual["host_ns"])
    once = {word: ns for word, ns in more.items() if ns > 0}
    if sum(once.values()) < _ONCE_SHARE * longer:
        return None
    largest = sorted(once.items(), key=lambda part: (-part[1], part[0]))
    told = [f"{word} {time(ns)}" for word, ns in largest if ns >= _TOLD * longer]
    return f"{time(longer)} longer than later steps, of which {', '.join(told)}"


# Outliers among the instances of a range, or the iterations of a program: those far from the median.

#: An instance is odd if it differs from the median by more than this factor times the median absolute deviation (3
#: standard deviations of a normal distribution), and by at least this share of the median.
_FAR: Final = 3 * 1.4826
_NOTABLE: Final = 0.1
#: Minimum number of instances for an outlier test.
_FEWEST: Final = 4


def far_from_others(values: pl.Expr, usual: pl.Expr, notable: float) -> pl.Expr:
    """Whether `values` are far from the median of the `usual` ones: by :data:`_FAR`, and `notable` of the median."""
    middle = values.filter(usual).median()
    away = (values - middle).abs()
    return (away > _FAR * away.filter(usual).median()) & (away > notable * middle) & (usual.sum() >= _FEWEST)


def judged(rows: pl.DataFrame, *, keys: Sequence[str] = ("device",)) -> pl.DataFrame:
    """Adds `odd` and `cause` to `rows` (dur_ns, warm_up, and a column per bucket), compared within `keys`."""
    told = with_changes(with_odd(rows, keys=keys), keys=keys)
    return told.with_columns(cause=pl.when("odd").then("most"))


def with_odd(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `odd`: whether a row (dur_ns, warm_up) takes another time than those of its `keys` that do not warm up."""
    usual = ~pl.col("warm_up")
    odd = far_from_others(pl.col("dur_ns"), usual, _NOTABLE) & usual
    return rows.with_columns(odd.over(keys).fill_null(value=False).alias("odd"))


def with_changes(rows: pl.DataFrame, *, keys: Sequence[str]) -> pl.DataFrame:
    """Adds `most`: the bucket that differs most from its median, the way that a row's length does."""
    length, usual = pl.col("dur_ns"), ~pl.col("warm_up")
    sign = pl.when(length > length.filter(usual).median()).then(1).otherwise(-1)
    buckets = [pl.col(f"{name}_ns") for name in BUCKETS]
    changes = [((bucket - bucket.filter(usual).median()) * sign).over(keys) for bucket in buckets]
    most = rows.select(pl.concat_list(changes).list.arg_max()).to_series()
    return rows.with_columns(pl.Series(BUCKETS).gather(most).alias("most"))
