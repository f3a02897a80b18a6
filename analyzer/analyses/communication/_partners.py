"""Waiting and transfer of collectives whose ranks are all in one report, for the ledger of its devices.

Definition: docs/definitions.md, section 11, "Waiting". Ranks of one report share its clock.
"""

from __future__ import annotations

from typing import Final

import polars as pl

from kanalyze import intervals
from kanalyze.analyses.device._operations import operations
from kanalyze.analyses.shared.analysis import once_per_process
from kanalyze.report import Report

#: Of each collective whose ranks are all in the report: its row of :func:`operations`, when the last rank came, who
#: that was (null where several came at once), the row of that rank (of several the lowest), and whether the report says
#: how many ranks take part.
_ARRIVALS: Final = {
    "row": pl.UInt32,
    "arrival": pl.Int64,
    "last": pl.String,
    "late": pl.UInt32,
    "sized": pl.Boolean,
}

#: The details of communication.
WAITING: Final = "waiting for "
TRANSFER: Final = "transfer"

_TALKS: Final = pl.col("bucket") == "communication"


def exposed_pieces(line: pl.DataFrame, kernels: pl.DataFrame) -> pl.DataFrame:
    """The pieces of collectives of one device in which no kernel runs: the rows of `line`, cut.

    `line` has the part that no earlier collective covers as start and end, and exposed_ns, which the pieces sum to.
    """
    own = line.filter(pl.col("end") > pl.col("start"))
    if own.is_empty():
        return own
    low, high = own.select(pl.col("start").min(), pl.col("end").max()).row(0)
    pieces = intervals.cut(own, intervals.gaps(intervals.union(kernels), low, high))
    length = pl.col("end") - pl.col("start")
    sums = pieces.group_by("number").agg(pl.col("exposed_ns").first(), found_ns=length.sum())
    found, wanted = sums.select(pl.col("found_ns").sum()).item(), own.select(pl.col("exposed_ns").sum()).item()
    if found != wanted or sums.select((pl.col("found_ns") != pl.col("exposed_ns")).any()).item():
        raise AssertionError(f"exposed pieces of collectives sum to {found} ns in place of {wanted} ns: {sums}")
    return pieces


def has_partners(report: Report) -> bool:
    """Whether the report has several ranks with collectives in common."""
    return not last_arrivals(report).is_empty()


def told_communication(report: Report, work: pl.DataFrame) -> pl.DataFrame:
    """The exposed time of the collectives in `work` by detail: detail, ns.

    `work` has the operations of one device, clipped and with exclusive_ns. Details are ``waiting for`` the rank that
    came last, ``transfer`` where the report says that this was the last of all, and null for what it does not tell.
    """
    line = intervals.first_come(work.filter(_TALKS).sort("began", "event_id"))
    own = line.select("row", number="row", start="own_start", end="own_end", exposed_ns="exclusive_ns")
    pieces = exposed_pieces(own, work.filter(pl.col("bucket") == "kernel")).join(
        last_arrivals(report), on="row", how="left"
    )
    ns = pl.col("end") - pl.col("start")
    wait = (pl.min_horizontal("end", "arrival") - pl.col("start")).clip(lower_bound=0)
    told = pieces.select(
        waiting=pl.lit(WAITING) + pl.col("last").fill_null("others"),
        moving=pl.when("sized").then(pl.lit(TRANSFER)),
        wait_ns=pl.when(pl.col("arrival").is_not_null()).then(wait).otherwise(0),
        ns=ns,
    )
    parts = (
        told.select(detail="waiting", ns="wait_ns"),
        told.select(detail="moving", ns=pl.col("ns") - pl.col("wait_ns")),
    )
    return pl.concat(parts).group_by("detail").agg(pl.col("ns").sum()).filter(pl.col("ns") > 0)


@once_per_process
def last_arrivals(report: Report) -> pl.DataFrame:
    """When the last rank came to each collective, :data:`_ARRIVALS`; empty where the report has no two ranks."""
    work = operations(report).filter(_TALKS)
    members = work.select("device", "process_id").unique().sort("device", "process_id")
    if members.height <= 1:
        return pl.DataFrame(schema=_ARRIVALS)
    from kanalyze.analyses.communication._waits import arrivals  # noqa: PLC0415 - numpy, for several ranks only

    return arrivals(report, work, members).cast(_ARRIVALS)  # type: ignore[arg-type]
