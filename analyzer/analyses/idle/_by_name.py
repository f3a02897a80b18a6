"""Who is to blame for idle time: every idle instant of a device with its culprit by name, and the range around it.

The walk of :mod:`kanalyze.analyses.idle._by_bucket` once more, with names; its sums are the ledger's. Definitions:
definitions.md, section 5, rules 5 to 13.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.host._range_lines import named_ranges, range_lines
from kanalyze.analyses.host._recording_start import BEGINS
from kanalyze.analyses.host._thread_names import between_texts, framework_recorded, named
from kanalyze.analyses.host._thread_timeline import Stretch, labels
from kanalyze.analyses.idle._attribution import late_time, launch_times, walks
from kanalyze.analyses.shared.cached import once_per_process
from kanalyze.analyses.shared.cut import overlaid
from kanalyze.analyses.shared.lookup import gathered
from kanalyze.analyses.shared.thread_lanes import lanes_of
from kanalyze.analyses.streams._waited_for import ended_last, event_waits, shared_streams, waited_for
from kanalyze.frames import taken
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.host._thread_timeline import Thread
    from kanalyze.analyses.idle._attribution import Batch, Cut, Cuts, Walk
    from kanalyze.analyses.shared.thread_lanes import ThreadKey
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


def cut_by_ranges(batch: Batch) -> Cuts:
    """The idle time of a batch, whose intervals are numbered by its column `gap`, cut by calls and by ranges."""
    return batch.cut("gap", ranges=range_lines(batch.walk.report))


def walks_for_blame(report: Report) -> Iterator[Walk]:
    """What :func:`walks` gives, with all that :func:`blamed` asks for besides."""
    return walks(report, reading=[range_lines, range_names], preparing=[ended_last, event_waits, shared_streams])


class Blamed(NamedTuple):
    """Idle time with who is to blame for it, both with the columns of :data:`PARTS`.

    Attributes:
        once: Where one culprit in one gap has one row.
        often: Where it may have several.
    """

    once: pl.DataFrame
    often: pl.DataFrame


def blamed(batch: Batch, cuts: Cuts) -> Blamed:
    """All idle time of a batch with who is to blame for it; `cuts` are what :func:`cut_by_ranges` gives."""
    report, device = batch.walk.report, batch.walk.device
    unknown, known = cuts
    once, often = [pl.DataFrame(schema=PARTS)], [pl.DataFrame(schema=PARTS)]
    if unknown.height:
        often.append(_parts(unknown, "unknown"))
    for part in known:
        often += [*_before_launches(report, part), *_from_launches(report, device, part)]
        once += _launches(report, device, part)
    return Blamed(pl.concat(once), pl.concat(often))


def _parts(
    frame: pl.DataFrame,
    bucket: str | pl.Series,
    culprit: pl.Series | None = None,
    around: pl.Series | None = None,
) -> pl.DataFrame:
    """Rows of :data:`PARTS` for those of `frame`: gap, and ns, or else start and end."""
    ns = pl.col("ns") if "ns" in frame.columns else pl.col("end") - pl.col("start")
    told = {"bucket": bucket, "culprit": culprit, "range": around}
    columns = (
        (value if isinstance(value, pl.Series) else pl.lit(value, dtype=PARTS[name])).alias(name)
        for name, value in told.items()
    )
    return frame.select("gap", *columns, ns.alias("ns"))


def _before_launches(report: Report, part: Cut) -> list[pl.DataFrame]:
    """The time before the launch calls: the calls of the threads, and what these did between them."""
    if part.before.is_empty():
        return []
    free = part.before.get_column("label").is_null()
    called = part.before.filter(~free)
    bucket, culprit = _labelled(report, called)
    return [
        _parts(called, bucket, culprit, _range_names(report, called)),
        *(
            _parts(host, "host", host.get_column("culprit"), _range_names(report, host))
            for host in _named_host(part.threads, part.before.filter(free))
        ),
    ]


def host_culprits(report: Report, key: ThreadKey, thread: Thread, spans: pl.DataFrame) -> pl.DataFrame:
    """Stretches of a thread in no call, sorted, cut by who is to blame: columns start, end, culprit and range.

    `key` is the process id and thread id of `thread`.
    """
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    (lanes,) = lanes_of([key], low, high)
    threads = Stretch(report, [thread], lanes, low, high)
    line = lanes.line(range_lines(report))
    cut = overlaid(spans.select("start", "end"), line.rename({"row": "range"}), "range")
    named = pl.concat(_named_host(threads, cut))
    return named.select("start", "end", "culprit", _range_names(report, named))


def _named_host(threads: Stretch, pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """`pieces` of threads in no call, cut by ranges, with `culprit`; cut further where a framework tells more."""
    if framework_recorded(threads.report):
        return [named(threads.report, key, own) for key, own in threads.lanes.of_each(pieces)]
    outside = pieces.get_column("range").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    return [
        inside.with_columns(_range_names(threads.report, inside).alias("culprit")),
        alone.with_columns(_between(threads, alone).alias("culprit")),
    ]


def _range_names(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """The names of the ranges that `pieces` are in, or their launch calls began in."""
    return gathered(range_names(report), pieces.get_column("range")).alias("range")


def _launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """The time from launch calls on where nothing wins over it: launches, and waiting of what was submitted."""
    if part.launched.is_empty():
        return []
    around = _range_names(report, part.launched)
    late = {f"{phase}_ns": late_time(phase) for phase in ("queued", "unseen")}
    times = part.launched.select("gap", "row", *launch_times(), around, **late)
    launches = times.with_columns(ns=pl.col("call_ns") + pl.col("latency_ns")).filter(pl.col("ns") > 0)
    queued = times.select("gap", "row", "range", ns="queued_ns").filter(pl.col("ns") > 0)
    unseen = times.select("gap", "range", ns="unseen_ns").filter(pl.col("ns") > 0)
    return [_launching(report, launches), _queued(report, device, queued), _unseen(unseen)]


def _launching(report: Report, launches: pl.DataFrame) -> pl.DataFrame:
    names = taken(operations(report), "name", launches.get_column("row"))
    return _parts(launches, "launch", names, launches.get_column("range"))


def _unseen(waits: pl.DataFrame) -> pl.DataFrame:
    """The time in which something waited for what was launched before the recording began."""
    culprit = pl.Series([BEGINS], dtype=PARTS["culprit"]).new_from_index(0, waits.height)
    return _parts(waits, "unknown", culprit, waits.get_column("range"))


def _queued(report: Report, device: int, queued: pl.DataFrame) -> pl.DataFrame:
    waiting = waited_for(report, device, queued.get_column("row"))
    return _parts(queued, "queued", waiting, queued.get_column("range"))


def _from_launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """The time from the launch calls on that is cut: what wins over a launch, launches, and waiting."""
    if part.after.is_empty():
        return []
    cut = part.after.with_columns(_range_names(report, part.after), ns=pl.col("end") - pl.col("start"))
    rest, above = cut.filter(pl.col("label").is_null()), cut.filter(pl.col("label").is_not_null())
    queued, unseen = (pl.col("phase") == phase for phase in ("queued", "unseen"))
    bucket, culprit = _labelled(report, above)
    return [
        _parts(above, bucket, culprit, above.get_column("range")),
        _launching(report, rest.filter(~queued & ~unseen)),
        _queued(report, device, rest.filter(queued)),
        _unseen(rest.filter(unseen)),
    ]


def _labelled(report: Report, parts: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Bucket and culprit of `parts` in calls and overheads."""
    known, at = _told(report), parts.get_column("label")
    return gathered(known.get_column("bucket"), at), gathered(known.get_column("culprit"), at)


@once_per_process
def _told(report: Report) -> pl.DataFrame:
    """The columns bucket and culprit of :data:`PARTS`, for each row of :func:`labels`."""
    return labels(report).select(
        pl.col("bucket").cast(PARTS["bucket"]), pl.col("detail").cast(PARTS["culprit"]).alias("culprit")
    )


def _between(threads: Stretch, spans: pl.DataFrame) -> pl.Series:
    """For stretches in no call: the calls at their sides, as a text."""
    sides = threads.sides(spans)
    details = labels(threads.report).get_column("detail").fill_null(_UNNAMED)
    return between_texts(
        pl.DataFrame({"a": gathered(details, sides["before"]), "b": gathered(details, sides["after"])})
    )


@once_per_process
def range_names(report: Report) -> pl.Series:
    """The name of each row of :func:`named_ranges` as people read it, domain included; of steps one for all.

    Without the ids of emit_nvtx, which make every range another one.
    """
    names = named_ranges(report).get_column("range").cast(pl.Categorical)
    codes = names.unique()
    alone = pl.DataFrame({"name": codes.cast(pl.String)}).select(without_ids(pl.col("name"))).to_series()
    shown = [ALL_STEPS if plain(name).startswith(STEP_PREFIX) else plain(name) or name for name in alone]
    texts = pl.Series(shown, dtype=pl.String).cast(pl.Categorical)
    table = pl.DataFrame({"range": codes, "text": texts})
    return names.to_frame().join(table, on="range", how="left", maintain_order="left").get_column("text")
