"""Quantities over time that a timeline shows: memory in use, utilisation, and bandwidth of copies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze.analyses.device._operations import device_operations, with_facts
from kanalyze.analyses.device._windows import windows
from kanalyze.analyses.idle.utilisation import utilisation
from kanalyze.analyses.memory._allocations import in_use
from kanalyze.errors import CannotTellError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kanalyze.report import Report

#: Bins of a device's window in which means are taken.
_BINS: Final = 2000

_NS_PER_S: Final = 1e9


class Counter(NamedTuple):
    """A quantity over time: t_ns and value.

    With `bin_ns` a value is the mean from its time to the next one, in bins of about that length; without, it stays as
    it is until the next point. The unit is `bytes`, `B/s` or `share`.
    """

    group: str
    label: str
    unit: str
    points: pl.DataFrame
    bin_ns: int = 0


def counters(report: Report, low: int, high: int) -> Iterator[Counter]:
    """The counters of a report from `low` to `high` (ns)."""
    yield from _utilisation(report)
    yield from _bandwidth(report)
    for device, process, label, points in in_use(report):
        inside = points.filter(pl.col("t_ns").is_between(low, high))
        if inside.height:
            where = f"process {process}" if device is None else f"GPU {device}"
            yield Counter(where, label, "bytes", inside)


def _utilisation(report: Report) -> Iterator[Counter]:
    """The busy share of each device, as the table `utilisation` has it."""
    try:
        rows = utilisation(report, _BINS)
    except CannotTellError:
        return
    for (device,), own in rows.group_by("device", maintain_order=True):
        points = own.select("t_ns", value="busy_share")
        end = int(own.item(-1, "t_ns") + own.item(-1, "dur_ns"))
        yield Counter(f"GPU {device}", "utilisation", "share", _closed(points, end), int(own.item(0, "dur_ns")))


def _bandwidth(report: Report) -> Iterator[Counter]:
    """Bytes that copies move per second on each device, by direction; those whose size is known."""
    copies = with_facts(
        report, device_operations(report).filter(pl.col("kind") == "memcpy"), "size_bytes", "direction"
    ).with_columns(pl.col("direction").cast(pl.String))
    for device, low, high in windows(report).select("device", "start", "end").iter_rows():
        inside = (pl.col("end") > low) & (pl.col("start") < high)
        own = copies.filter((pl.col("device") == device) & (pl.col("size_bytes") > 0) & inside)
        width = max(-(-(high - low) // _BINS), 1)
        for (direction,), part in own.group_by("direction", maintain_order=True):
            points = means(part.select("start", "end", "size_bytes"), low, high, width)
            yield Counter(f"GPU {device}", f"copied {direction or ''}".rstrip(), "B/s", _closed(points, high), width)


def _closed(points: pl.DataFrame, end: int) -> pl.DataFrame:
    """The points with a last one, from which on there is nothing."""
    return pl.concat([points, pl.DataFrame([[end], [0.0]], schema=points.schema)])


def means(moved: pl.DataFrame, low: int, high: int, width: int) -> pl.DataFrame:
    """Bytes per second in bins of `width` ns from `low` to `high`: t_ns and value; the last bin may be shorter.

    A copy moves its bytes evenly from its start to its end; copies side by side add up.

    Args:
        moved: start, end (ns) and size_bytes of each copy.
        low: Start of the first bin.
        high: End of the last one.
        width: Length of a bin.
    """
    end = pl.max_horizontal("end", pl.col("start") + 1)
    speed = pl.col("size_bytes") / (end - pl.col("start"))
    turns = pl.concat([moved.select(t="start", by=speed), moved.select(t=end, by=-speed)])
    ramps = turns.group_by("t").agg(pl.col("by").sum()).sort("t").with_columns(slope=pl.col("by").cum_sum())
    ramps = ramps.with_columns(done=(pl.col("slope") * pl.col("t").diff().shift(-1)).cum_sum().shift(1).fill_null(0.0))
    starts = pl.int_range(low, high, width, eager=True)
    done = (pl.col("done") + pl.col("slope") * (pl.col("t") - pl.col("from"))).fill_null(0.0)
    edges = pl.concat([starts, pl.Series([high])]).to_frame("t").set_sorted("t")
    found = edges.join_asof(ramps.with_columns(pl.col("t").alias("from")), on="t").with_columns(done=done)
    value = (pl.col("done").diff() / pl.col("t").diff()).shift(-1) * _NS_PER_S
    return found.select(t_ns="t", value=value.clip(0.0)).head(len(starts))
