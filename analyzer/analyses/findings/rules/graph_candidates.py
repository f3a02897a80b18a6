"""Repeated sequences of launches that one CUDA graph could replace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._operations import device_operations
from kanalyze.analyses.findings.rules import Finding
from kanalyze.analyses.idle.ledger import ledger
from kanalyze.analyses.launches._graph_candidates import candidates, cut_launches
from kanalyze.analyses.shared.statistics import total
from kanalyze.model import STREAMS
from kanalyze.units import count, plural, time

if TYPE_CHECKING:
    from kanalyze.report import Report

#: The ledger's buckets that a graph reduces.
_BUCKETS: Final = ("launch", "queued")

#: Fewer launches than these do not pay for the capture and instantiation of a graph.
_FEWEST_LAUNCHES: Final = 100

#: Devices that waited for less than this share of their window are skipped: no finding could be large enough.
_WORTH_LOOKING: Final = 0.001


def find(report: Report) -> list[Finding]:
    """One finding per device that waited for such launches."""
    if device_operations(report).height < _FEWEST_LAUNCHES:
        return []
    buckets = ledger(report).filter(pl.col("bucket").is_in(_BUCKETS)).group_by("device")
    held = buckets.agg(pl.col("ns", "share").sum()).filter(pl.col("share") >= _WORTH_LOOKING).sort("device")
    found = []
    for device, most, _ in held.iter_rows():
        launches = pl.col("operations") * pl.col("repetitions")
        own = candidates(report).filter((pl.col("device") == device) & (launches >= _FEWEST_LAUNCHES))
        own = own.filter(pl.col("saved_ns") > 0).with_columns(launches=launches)
        if own.height:
            found.append(_finding(report, device, own, most))
    return found


def _finding(report: Report, device: int, own: pl.DataFrame, most: int) -> Finding:
    top, stake = own.row(0, named=True), min(total(own, "saved_ns"), most)
    waited = total(own, "launch_ns") + total(own, "queued_ns")
    known = "the median of those in this report" if top["measured"] else "the median of these calls, for want of one"
    which = f"{plural(own.height, 'sequence')} of launches repeat{'' if own.height > 1 else 's'}"
    text = (
        f"{which}: {plural(total(own, 'launches'), 'launch')} for which GPU {device} waited {time(waited)}, most for "
        f"{plural(top['operations'], 'operation')} launched {count(top['repetitions'])} times, beginning with {{0}}. "
        f"As CUDA graphs they would save at most {time(stake)} of that, if launching one takes "
        f"{time(top['graph_launch_ns'])} ({known}), and the program's own time between them besides."
        f"{_not_capturable(report, device)}"
    )
    own_stream = " (on a stream of its own: the default stream cannot be captured)" if _on_default(report, own) else ""
    remedy = (
        f"Capture the sequence once as a CUDA graph{own_stream} and replay it; arguments that change go through memory."
    )
    return Finding("graph-candidate", device, stake, text, remedy, "graphs --by candidate", (str(top["first"]),))


def _on_default(report: Report, own: pl.DataFrame) -> bool:
    """Whether any of the sequences is on the default stream."""
    default = report.table(STREAMS.name).filter(pl.col("type") == "null")
    return not own.join(default, on=["process_id", "stream"], how="semi", nulls_equal=True).is_empty()


def _not_capturable(report: Report, device: int) -> str:
    """The sentence on repeated launches that cannot be captured as they are."""
    cut = cut_launches(report).filter(pl.col("device") == device)
    if not (launches := total(cut, "launches")):
        return ""
    return f" Not counted: {plural(launches, 'launch')} that repeat with a call between them that no capture allows."
