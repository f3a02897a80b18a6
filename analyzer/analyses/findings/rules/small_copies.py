"""Many small copies one after the other, where one copy of all of it would do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze import exact, intervals
from kanalyze.analyses.device._windows import idle_spans
from kanalyze.analyses.findings.rules import Finding, literal
from kanalyze.analyses.host._call_kinds import shown
from kanalyze.analyses.host._context_creation import context_calls
from kanalyze.analyses.host._range_lines import named_ranges, ranges_at
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._steady_window import worth_saying
from kanalyze.analyses.memory._small_copies import (
    ALIKE,
    LARGE_BYTES,
    large_copies,
    most_small_copies_take,
    small_copies,
)
from kanalyze.analyses.shared.statistics import total
from kanalyze.named_ranges import ALL_STEPS, STEP_PREFIX, plain, without_ids
from kanalyze.units import plural, rate, size, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The buckets in which a device waits for the calls that copy.
_WAITS: Final = ("launch", "queued", "sync", "api")

#: The range of a step of a profiler, as `named_ranges` names it.
_STEP: Final = rf"^:?{STEP_PREFIX}\d+$"


def find(report: Report) -> list[Finding]:
    """One finding per device and direction of such copies."""
    if not worth_saying(report, most_small_copies_take(report)):
        return []
    copies, found = small_copies(report), []
    for (device, direction), part in copies.partition_by("device", "detail", as_dict=True).items():
        finding = _finding(report, int(str(device)), str(direction), part)
        found += [finding] if finding else []
    return found


def _finding(report: Report, device: int, direction: str, copies: pl.DataFrame) -> Finding | None:
    """The finding on the runs of one direction on one device; each run could be one copy."""
    waited = intervals.overlap(copies.get_column("call_start"), copies.get_column("call_end"), _free(report, device))
    large = _like(report, copies)
    speed = total(large, "size_bytes") / total(large, "dur_ns") if large.height else None  # bytes per ns
    runs = (
        copies.with_columns(waited.alias("waited_ns"))
        .group_by("run")
        .agg(pl.len().alias("count"), pl.col("exclusive_ns", "waited_ns", "size_bytes", "dur_ns").sum())
    )
    # what one copy costs in place of them: at the bandwidth of large ones, but no less than one of these
    alone = pl.col("dur_ns") / pl.col("count")
    joined = pl.max_horizontal(alone, pl.col("size_bytes") / speed) if speed else alone
    moving = (pl.col("exclusive_ns") - joined).clip(lower_bound=0).sum().cast(pl.Int64)
    calling = (pl.col("waited_ns") - pl.col("waited_ns") / pl.col("count")).sum().cast(pl.Int64)
    moved_ns, called_ns = runs.select(moving=moving, calling=calling).row(0)
    called_ns = min(called_ns, _held(report, device))
    if moved_ns + called_ns <= 0:
        return None
    count, bytes_moved, time_ns = copies.height, total(copies, "size_bytes"), total(copies, "dur_ns")
    against = f", {size(LARGE_BYTES)} and more at {rate(exact.rate_of(speed, 1))}" if speed else ""
    several = f" in {plural(runs.height, 'run')}" if runs.height > 1 else ""
    text = (
        f"{plural(count, 'copy')} {literal(direction)} of {size(bytes_moved / count)} on average, one after the other"
        f"{several}, at {rate(exact.rate_of(bytes_moved, time_ns))}{against}{_caller(report, copies)}. They cost "
        f"{time(moved_ns)} of copying and {time(called_ns)} in which the device waited for their calls, more than one "
        f"copy {'per run' if several else 'of all'} would."
    )
    remedy = "Put the pieces side by side in one buffer and copy that once (or cudaMemcpyBatchAsync, cudaMemcpy2D)."
    return Finding("small-copies", device, moved_ns + called_ns, text, remedy, "copies")


def _free(report: Report, device: int) -> pl.DataFrame:
    """The idle time of a device but for the profiler's work, and where a context was made."""
    idle = idle_spans(report)[device]
    end = pl.col("start_ns") + pl.col("dur_ns")
    other = [
        report.kind("overhead").select(start="start_ns", end=end),
        context_calls(report).select(start="start_ns", end="made_ns"),
    ]
    return intervals.subtract(idle, intervals.union(pl.concat(other)))


def _like(report: Report, copies: pl.DataFrame) -> pl.DataFrame:
    """Large copies between the same kinds of memory, or at least in the same direction."""
    large, alike = large_copies(report), copies.select(ALIKE).unique()
    same = large.join(alike, on=ALIKE, how="semi", nulls_equal=True)
    return same if same.height else large.join(alike, on=ALIKE[:2], how="semi")


def _held(report: Report, device: int) -> int:
    """What the ledger has in the buckets in which a device waits for such calls."""
    rows = ledger(report).filter((pl.col("device") == device) & pl.col("bucket").cast(pl.String).is_in(_WAITS))
    return total(rows, "ns")


def _caller(report: Report, copies: pl.DataFrame) -> str:
    """The call that most of the copies are from, and the range that most of them were called in."""
    call = copies.group_by(call=shown(pl.col("call_name"))).len().sort("len", "call", descending=[True, False])
    text = f", by {literal(str(call.item(0, 'call')))}"
    if "range" not in report.kinds:
        return text
    inside = ranges_at(report, copies.select("process_id", "thread_id", at="call_start"))
    rows = inside.drop_nulls()
    names = named_ranges(report).select(without_ids(pl.col("range"))).to_series().gather(rows)
    names = names.str.replace(_STEP, ALL_STEPS)
    if names.is_empty():
        return text
    common = names.alias("range").to_frame().group_by("range").len().sort("len", "range", descending=[True, False])
    every = common.item(0, "len") == copies.height
    return f"{text}{'' if every else ', most often'} in the range {literal(plain(common.item(0, 'range')))}"
