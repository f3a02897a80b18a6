"""Attributes the idle time of a device to culprits by name, each with its innermost enclosing range.

The attribution of :mod:`kanalyze.analyses.idle._bucket_sums` with names added; its sums equal the ledger's.
Definitions: definitions.md, section 5, rules 5 to 13.
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
from kanalyze.analyses.shared.thread_lanes import lanes_of
from kanalyze.analyses.streams._waited_for import ended_last, event_waits, shared_streams, waited_for
from kanalyze.columns.lookup import gathered, taken
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

#: Schema of a part of idle time: number of its gap, bucket, culprit by name, innermost enclosing range, length.
PARTS: Final[dict[str, DataType | DataTypeClass]] = {
    "gap": pl.UInt32,
    "bucket": pl.Enum(IDLE),
    "culprit": pl.Categorical,
    "range": pl.Categorical,
    "ns": pl.Int64,
}

_UNNAMED: Final = "a call without a name"


def cut_by_ranges(batch: Batch) -> Cuts:
    """Splits the idle intervals of a batch, numbered by its column `gap`, by call and by range."""
    return batch.cut("gap", ranges=range_lines(batch.walk.report))


def walks_for_blame(report: Report) -> Iterator[Walk]:
    """The :func:`walks` of a report, with all that :func:`blamed` looks up prefetched."""
    return walks(report, reading=[range_lines, range_names], preparing=[ended_last, event_waits, shared_streams])


class Blamed(NamedTuple):
    """Idle time by culprit, as two frames with the columns of :data:`PARTS`.

    Attributes:
        once: At most one row per gap and culprit.
        often: Possibly several rows per gap and culprit.
    """

    once: pl.DataFrame
    often: pl.DataFrame


def blamed(batch: Batch, cuts: Cuts) -> Blamed:
    """The idle time of a batch by gap and culprit; `cuts` is the result of :func:`cut_by_ranges`."""
    report, device = batch.walk.report, batch.walk.device
    unknown, known = cuts
    once, often = [pl.DataFrame(schema=PARTS)], [pl.DataFrame(schema=PARTS)]
    if unknown.height:
        often.append(_parts(unknown, "unknown"))
    for part in known:
        often += [*_before_launches(report, part), *_split_launches(report, device, part)]
        once += _uncut_launches(report, device, part)
    return Blamed(pl.concat(once), pl.concat(often))


def _parts(
    frame: pl.DataFrame,
    bucket: str | pl.Series,
    culprit: pl.Series | None = None,
    around: pl.Series | None = None,
) -> pl.DataFrame:
    """Builds rows of :data:`PARTS` from `frame`, which has gap, and either ns, or start and end."""
    ns = pl.col("ns") if "ns" in frame.columns else pl.col("end") - pl.col("start")
    told = {"bucket": bucket, "culprit": culprit, "range": around}
    columns = (
        (value if isinstance(value, pl.Series) else pl.lit(value, dtype=PARTS[name])).alias(name)
        for name, value in told.items()
    )
    return frame.select("gap", *columns, ns.alias("ns"))


def _before_launches(report: Report, part: Cut) -> list[pl.DataFrame]:
    """Idle time before launch calls by culprit: inside other calls, and in no call."""
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
    """Splits intervals of a thread in no CUDA call by culprit: start, end, culprit and range.

    `key` is the process id and thread id of `thread`; `spans` are sorted.
    """
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    (lanes,) = lanes_of([key], low, high)
    threads = Stretch(report, [thread], lanes, low, high)
    line = lanes.line(range_lines(report))
    cut = overlaid(spans.select("start", "end"), line.rename({"row": "range"}), "range")
    named = pl.concat(_named_host(threads, cut))
    return named.select("start", "end", "culprit", _range_names(report, named))


def _named_host(threads: Stretch, pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """Adds `culprit` to host intervals outside CUDA calls; splits them further by operator and Python function."""
    if framework_recorded(threads.report):
        return [named(threads.report, key, own) for key, own in threads.lanes.of_each(pieces)]
    outside = pieces.get_column("range").is_null()
    alone, inside = pieces.filter(outside), pieces.filter(~outside)
    return [
        inside.with_columns(_range_names(threads.report, inside).alias("culprit")),
        alone.with_columns(_between_calls(threads, alone).alias("culprit")),
    ]


def _range_names(report: Report, pieces: pl.DataFrame) -> pl.Series:
    """Looks up the range name of each of `pieces` by its column `range`."""
    return gathered(range_names(report), pieces.get_column("range")).alias("range")


def _uncut_launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """Idle time from launch calls on where nothing takes precedence: launch, queued and unknown."""
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
    """Idle time in which an operation waited for work launched before the recording began."""
    culprit = pl.Series([BEGINS], dtype=PARTS["culprit"]).new_from_index(0, waits.height)
    return _parts(waits, "unknown", culprit, waits.get_column("range"))


def _queued(report: Report, device: int, queued: pl.DataFrame) -> pl.DataFrame:
    waiting = waited_for(report, device, queued.get_column("row"))
    return _parts(queued, "queued", waiting, queued.get_column("range"))


def _split_launches(report: Report, device: int, part: Cut) -> list[pl.DataFrame]:
    """Idle time from launch calls on that is split: what takes precedence over a launch, launch, queued, unknown."""
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
    """Bucket and culprit of `parts` by their label, a call or an overhead."""
    known, at = _label_culprits(report), parts.get_column("label")
    return gathered(known.get_column("bucket"), at), gathered(known.get_column("culprit"), at)


@once_per_process
def _label_culprits(report: Report) -> pl.DataFrame:
    """Bucket and culprit of each row of :func:`labels`, in the types of :data:`PARTS`."""
    return labels(report).select(
        pl.col("bucket").cast(PARTS["bucket"]), pl.col("detail").cast(PARTS["culprit"]).alias("culprit")
    )


def _between_calls(threads: Stretch, spans: pl.DataFrame) -> pl.Series:
    """Names intervals in no call by the calls before and after them."""
    sides = threads.sides(spans)
    details = labels(threads.report).get_column("detail").fill_null(_UNNAMED)
    return between_texts(
        pl.DataFrame({"a": gathered(details, sides["before"]), "b": gathered(details, sides["after"])})
    )


@once_per_process
def range_names(report: Report) -> pl.Series:
    """Display name of each row of :func:`named_ranges`, with its domain; one name for all profiler steps.

    The ids that emit_nvtx appends are removed: they make the name of every range unique.
    """
    names = named_ranges(report).get_column("range").cast(pl.Categorical)
    codes = names.unique()
    alone = pl.DataFrame({"name": codes.cast(pl.String)}).select(without_ids(pl.col("name"))).to_series()
    shown = [ALL_STEPS if plain(name).startswith(STEP_PREFIX) else plain(name) or name for name in alone]
    texts = pl.Series(shown, dtype=pl.String).cast(pl.Categorical)
    table = pl.DataFrame({"range": codes, "text": texts})
    return names.to_frame().join(table, on="range", how="left", maintain_order="left").get_column("text")
