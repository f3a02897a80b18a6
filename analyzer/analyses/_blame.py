"""Who is to blame for idle time: every idle instant of a device with its culprit by name, and the range around it.

The walk of :mod:`kanalyze.analyses._walk` once more, with names; its sums are the ledger's. Definitions:
definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses._common import once_per_process
from kanalyze.analyses._host import labels
from kanalyze.analyses._host_names import between_texts, framework_recorded, named
from kanalyze.analyses._lookup import gathered
from kanalyze.analyses._operations import operations
from kanalyze.analyses._overlay import overlaid
from kanalyze.analyses._queued import waited_for
from kanalyze.analyses._ranges import named_ranges, range_lines, thread_ranges_at
from kanalyze.analyses._walk import launch_times, queued_time
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses._common import ThreadKey
    from kanalyze.analyses._host import Thread
    from kanalyze.analyses._walk import Batch, Cut
    from kanalyze.report import Report

#: Buckets of an idle device, in the ledger's order.
IDLE: Final = ("profiler", "loading", "allocation", "launch", "queued", "sync", "api", "host", "unknown")

#: A part of idle time: the number of its gap, its bucket, the culprit's name, the range around it, and its length.
PARTS: Final[dict[str, DataType | DataTypeClass]] = {
    "gap": pl.UInt32,
    "bucket": pl.Enum(IDLE),
    "culprit": pl.Categorical,
    "range": pl.Categorical,
    "ns": pl.Int64,
}

_UNNAMED: Final = "a call without a name"


def cut_by_ranges(batch: Batch) -> list[Cut]:
    """The idle time of a batch, whose intervals are numbered by its column `gap`, cut by calls and by ranges."""
    return list(batch.cut("gap", finer=partial(_in_ranges, batch.walk.report)))


class Blamed(NamedTuple):
    """Idle time with who is to blame for it, both with the columns of :data:`PARTS`.

    Attributes:
        once: Where one culprit in one gap has one row.
        often: Where it may have several.
    """

    once: pl.DataFrame
    often: pl.DataFrame


def blamed(batch: Batch, cuts: Sequence[Cut] | None = None) -> Blamed:
    """All idle time of a batch with who is to blame for it; `cuts` are what :func:`cut_by_ranges` gives."""
    report, device = batch.walk.report, batch.walk.device
    once, often = [pl.DataFrame(schema=PARTS)], [pl.DataFrame(schema=PARTS)]
    for part in cut_by_ranges(batch) if cuts is None else cuts:
        nobody = part.unknown.with_columns(bucket=pl.lit("unknown"), culprit=None, range=None)
        often += [_parts(nobody), *_before_launches(report, part), *_from_launches(report, device, part)]
        once += _launches(report, device, part)
    return Blamed(pl.concat(once), pl.concat(often))


def _parts(frame: pl.DataFrame) -> pl.DataFrame:
    """`frame` with the columns of :data:`PARTS`; `ns` is the time from start to end where it has none."""
    columns = {name: pl.col(name) for name in PARTS}
    if "ns" not in frame.columns:
        columns["ns"] = pl.col("end") - pl.col("start")
    return frame.select(column.cast(PARTS[name]).alias(name) for name, column in columns.items())


def _before_launches(report: Report, part: Cut) -> list[pl.DataFrame]:
    """The time before the launch calls: the calls of the thread, and what it did between them."""
    if part.before.is_empty() or part.thread is None:
        return []
    cut = part.before
    calls, free = cut.filter(pl.col("label").is_not_null()), cut.filter(pl.col("label").is_null())
    named = _host(report, part.key, part.thread, free).with_columns(bucket=pl.lit("host"))
    return [_parts(_labelled(report, calls)), _parts(named)]


def host_culprits(report: Report, key: ThreadKey, thread: Thread, spans: pl.DataFrame) -> pl.DataFrame:
    """Stretches of a thread in no call, sorted, cut by who is to blame: columns start, end, culprit and range.

    `key` is the process id and thread id of `thread`.
    """
    named = _host(report, key, thread, _in_ranges(report, key, spans))
    return named.select("start", "end", "culprit", "range")


def _host(report: Report, key: ThreadKey, thread: Thread, pieces: pl.DataFrame) -> pl.DataFrame:
    """`pieces` of a thread in no call, cut by ranges, with `culprit`; cut further where a framework tells more."""
    if framework_recorded(report):
        return named(report, key, pieces)
    outside = pl.col("row").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    between = _between(report, thread, alone).alias("culprit")
    return pl.concat([inside.with_columns(pl.col("range").alias("culprit")), alone.with_columns(between)])


def _in_ranges(report: Report, key: ThreadKey, pieces: pl.DataFrame) -> pl.DataFrame:
    """`pieces` of a thread cut where its innermost range changes: with `row` (of the range) and `range`, its name."""
    line = range_lines(report).get(key)
    spans = pl.DataFrame(schema={"start": pl.Int64, "end": pl.Int64, "row": pl.UInt32}) if line is None else line
    cut = overlaid(pieces, spans, "row")
    return cut.with_columns(gathered(range_names(report), cut.get_column("row")).alias("range"))


def _launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """The time from launch calls on where nothing wins over it: launches, and waiting of what was submitted."""
    if part.launched.is_empty():
        return []
    around = _callers_range(report, part.key, part.launched)
    times = part.launched.select("gap", "row", *launch_times(), around, queued_ns=queued_time())
    launches = times.with_columns(ns=pl.col("call_ns") + pl.col("latency_ns")).filter(pl.col("ns") > 0)
    return [_launching(report, launches), _queued(report, device, times.rename({"queued_ns": "ns"}))]


def _launching(report: Report, launches: pl.DataFrame) -> pl.DataFrame:
    names = operations(report).get_column("name").gather(launches.get_column("row"))
    return _parts(launches.with_columns(pl.lit("launch").alias("bucket"), names.alias("culprit")))


def _queued(report: Report, device: int, times: pl.DataFrame) -> pl.DataFrame:
    queued = times.filter(pl.col("ns") > 0)
    waiting = waited_for(report, device, queued.get_column("row"))
    return _parts(queued.with_columns(pl.lit("queued").alias("bucket"), waiting.alias("culprit")))


def _from_launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """The time from the launch calls on that is cut: what wins over a launch, launches, and waiting."""
    if part.after.is_empty():
        return []
    cut = part.after.with_columns(_callers_range(report, part.key, part.after), ns=pl.col("end") - pl.col("start"))
    rest = cut.filter(pl.col("label").is_null())
    queued = pl.col("phase") == "queued"
    return [
        _parts(_labelled(report, cut.filter(pl.col("label").is_not_null()))),
        _launching(report, rest.filter(~queued)),
        _queued(report, device, rest.filter(queued)),
    ]


def _callers_range(report: Report, key: ThreadKey, calls: pl.DataFrame) -> pl.Series:
    """The innermost range in which each of a thread's calls (`call_start`) began, by name, as `range`; else null."""
    inside = thread_ranges_at(report, key, calls.get_column("call_start"))
    return gathered(range_names(report), inside).alias("range")


def _labelled(report: Report, parts: pl.DataFrame) -> pl.DataFrame:
    """`parts` in calls and overheads, with their `bucket` and `culprit`."""
    known = labels(report).select("bucket", culprit=pl.col("detail").cast(pl.Categorical))
    return parts.with_columns(known.select(pl.all().gather(parts.get_column("label"))))


def _between(report: Report, thread: Thread, spans: pl.DataFrame) -> pl.Series:
    """For stretches in no call: the calls at their sides, as a text."""
    sides = thread.sides(report, spans)
    details = labels(report).get_column("detail").fill_null(_UNNAMED)
    return between_texts(
        pl.DataFrame({"a": gathered(details, sides["before"]), "b": gathered(details, sides["after"])})
    )


@once_per_process
def range_names(report: Report) -> pl.Series:
    """The name of each row of :func:`named_ranges` as people read it, domain included; of steps one for all."""
    names = named_ranges(report).get_column("range").cast(pl.Categorical)
    codes = names.unique()
    shown = [
        ALL_STEPS if plain(name).startswith(STEP_PREFIX) else plain(name) or name for name in codes.cast(pl.String)
    ]
    texts = pl.Series(shown, dtype=pl.String).cast(pl.Categorical)
    table = pl.DataFrame({"range": codes, "text": texts})
    return names.to_frame().join(table, on="range", how="left", maintain_order="left").get_column("text")
