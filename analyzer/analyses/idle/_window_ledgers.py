"""Ledgers of many windows in one pass, each equal to the table `ledger` of that window.

Windows may overlap. The bucket of an instant does not depend on the window, so attribution runs once over the time that
all windows span, and is then summed over each; it is kept for further windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import BUSY_BUCKETS, of_device, operations
from kanalyze.analyses.device._windows import activity, windows
from kanalyze.analyses.host._context_creation import BEGINS
from kanalyze.analyses.idle._idle_intervals import idle_devices
from kanalyze.analyses.idle._idle_parts import IDLE, reasons, split_idle
from kanalyze.analyses.shared.buckets import BUCKETS
from kanalyze.analyses.shared.cached import once_per_report
from kanalyze.columns.lookup import gathered
from kanalyze.window import Window

if TYPE_CHECKING:
    from polars.datatypes import DataType, DataTypeClass

    from kanalyze.analyses.idle._idle_intervals import IdleBatch, IdleDevice
    from kanalyze.report import Report

#: What idle time is told apart by: the bucket, and waits for work from before the recording, which are `unknown`.
_PARTS: Final = (*IDLE, BEGINS)
_PART: Final = pl.Enum(_PARTS)
_PIECES: Final[dict[str, DataType | DataTypeClass]] = {"part": _PART, "start": pl.Int64, "end": pl.Int64}


class _Attributed(NamedTuple):
    """The time of each device from `low` to `high`, attributed.

    Attributes:
        low: Start.
        high: End.
        busy: By device, for each of :data:`BUSY_BUCKETS` the span set of the operations in it or one before.
        idle: By device, disjoint intervals (start, end; sorted) by part of :data:`_PARTS`.
    """

    low: int
    high: int
    busy: dict[int, list[pl.DataFrame]]
    idle: dict[int, dict[str, pl.DataFrame]]

    def times(self, device: int, spans: pl.DataFrame) -> dict[str, pl.Series]:
        """The time of a device in each of `spans` (start, end), by busy bucket and part of idle time."""
        start, end = spans.get_column("start"), spans.get_column("end")
        before = until = pl.zeros(spans.height, dtype=pl.Int64, eager=True)
        sums, known = {}, None
        for bucket, covered in zip(BUSY_BUCKETS, self.busy[device], strict=True):
            until = until if covered is known else intervals.overlap(start, end, covered)
            sums[bucket], before, known = until - before, until, covered
        return sums | {part: intervals.overlap(start, end, own) for part, own in self.idle[device].items()}


def window_ledgers(report: Report, spans: pl.DataFrame) -> pl.DataFrame:
    """The ledger of each window in `spans` (start, end; longer than 0) on each device that has a ledger.

    Columns: window (row in `spans`), device, and ``<bucket>_ns`` per bucket of the ledger.

    Raises:
        AssertionError: The buckets of a window do not sum to its length.
    """
    columns = {"window": pl.UInt32, "device": pl.Int64, **{f"{bucket}_ns": pl.Int64 for bucket in BUCKETS}}
    if spans.is_empty():
        return pl.DataFrame(schema=columns)
    found = _attributed(report, *spans.select(pl.col("start").min(), pl.col("end").max()).row(0))
    parts = [pl.DataFrame(schema=columns)]
    for device in found.busy:
        sums = _of_device(found, device, spans).with_row_index("window")
        parts.append(sums.with_columns(device=pl.lit(device, dtype=pl.Int64)).select(*columns))
    return pl.concat(parts)


def unknown_times(report: Report) -> list[tuple[int, int]] | None:
    """For each device in scope, its idle time of unknown cause, and the waits for work from before the recording.

    None where nothing was attributed yet that holds their windows: the ledger takes no longer then.
    """
    spans = windows(report)
    low, high = spans.select(pl.col("start").min(), pl.col("end").max()).row(0)
    found = next(
        (one for one in attributed(report.whole) if low is not None and one.low <= low and high <= one.high), None
    )
    if found is None:
        return None
    start, end = (spans.get_column(side) for side in ("start", "end"))
    return [
        (
            int(intervals.overlap(start.slice(at, 1), end.slice(at, 1), found.idle[device]["unknown"]).item()),
            int(intervals.overlap(start.slice(at, 1), end.slice(at, 1), found.idle[device][BEGINS]).item()),
        )
        for at, device in enumerate(spans.get_column("device"))
    ]


@once_per_report
def attributed(report: Report) -> list[_Attributed]:
    """Attributions of a report: at most one, of the most time asked for."""
    del report
    return []


def _attributed(report: Report, low: int, high: int) -> _Attributed:
    """The time of each device in scope, attributed at least from `low` to `high`."""
    kept = attributed(report)
    if not kept or low < kept[0].low or kept[0].high < high:
        spans = [(low, high), *(one[:2] for one in kept), *activity(report).select("start", "end").iter_rows()]
        kept[:] = [_attribute(report, min(start for start, _ in spans), max(end for _, end in spans))]
    return kept[0]


def _attribute(report: Report, low: int, high: int) -> _Attributed:
    found = _Attributed(low, high, {}, {})
    for device in idle_devices(report.narrow(window=Window(low, high))):
        found.busy[device.device] = _busy(device)
        found.idle[device.device] = _idle(device)
    return found


def _of_device(found: _Attributed, device: int, spans: pl.DataFrame) -> pl.DataFrame:
    sums = found.times(device, spans)
    sums["unknown"] += sums.pop(BEGINS)
    wrong = sum(sums.values(), start=pl.zeros(spans.height, dtype=pl.Int64, eager=True)) != (
        spans.get_column("end") - spans.get_column("start")
    )
    if wrong.any():
        row = int(wrong.arg_true()[0])
        told = {bucket: times[row] for bucket, times in sums.items()}
        raise AssertionError(f"the ledger of device {device} in {spans.row(row)} sums to another time: {told}")
    return pl.DataFrame([sums[bucket].alias(f"{bucket}_ns") for bucket in BUCKETS])


def _busy(device: IdleDevice) -> list[pl.DataFrame]:
    """For each busy bucket the union of its operations and those of the buckets before, which take precedence."""
    work = of_device(operations(device.report).select("device", "start", "end", "bucket"), device.device)
    inside, found = intervals.clip(work, device.low, device.high), [pl.DataFrame(schema=intervals.SPANS)]
    for bucket in BUSY_BUCKETS:
        own = inside.filter(pl.col("bucket") == bucket)
        found.append(intervals.union(pl.concat([found[-1], own.select("start", "end")])) if own.height else found[-1])
    return found[1:]


def _idle(device: IdleDevice) -> dict[str, pl.DataFrame]:
    """Disjoint idle intervals by part of :data:`_PARTS`; what was not recorded is `unknown`."""
    edges = pl.DataFrame(
        [(device.low, device.begun), (device.ended, device.high)], schema=intervals.SPANS, orient="row"
    )
    unknown = edges.filter(pl.col("end") > pl.col("start")).select(
        pl.lit("unknown", _PART).alias("part"), "start", "end"
    )
    pieces = [pl.DataFrame(schema=_PIECES), unknown]
    for found in device.of_batches(_pieces, device.idle):
        pieces += found
    every = pl.concat(pieces, rechunk=True)
    known = every.get_column("part").unique().to_list()  # most reports have few
    none = pl.DataFrame(schema=intervals.SPANS)
    return {part: _sides(every.filter(pl.col("part") == part)) if part in known else none for part in _PARTS}


def _sides(pieces: pl.DataFrame) -> pl.DataFrame:
    return pieces.drop("part").sort("start")


def _pieces(batch: IdleBatch) -> list[pl.DataFrame]:
    known = reasons(batch.of.report)
    parts = known.table.select(
        part=pl.when(pl.int_range(pl.len()) == known.unseen).then(pl.lit(BEGINS)).otherwise("bucket")
    )
    told, pieces = parts.get_column("part").cast(_PART), []
    for split in split_idle(batch):
        rows = split.lanes.back(split.rows) if split.lanes else split.rows
        pieces.append(rows.select(gathered(told, rows.get_column("reason")).alias("part"), "start", "end"))
    return pieces
