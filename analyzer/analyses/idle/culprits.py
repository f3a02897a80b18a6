"""Idle time of the ledger by culprit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import polars as pl

from kanalyze.analyses.device._windows import share_of_window, windows
from kanalyze.analyses.host._thread_names import framework_recorded
from kanalyze.analyses.host._thread_states import NEEDED, STATES
from kanalyze.analyses.idle._attribution import named_sums
from kanalyze.analyses.idle._idle_parts import IDLE
from kanalyze.analyses.idle._waiting_host import EVIDENCE, by_function, by_state, by_traced_function
from kanalyze.analyses.naming._host_names import ALIGNED, with_shares
from kanalyze.analyses.shared.cached import analysis, once_per_process
from kanalyze.analyses.shared.requirements import check_grouping, require
from kanalyze.errors import CannotTellError
from kanalyze.model import DEVICE_KINDS
from kanalyze.schema import Column, Table

if TYPE_CHECKING:
    from typing import Unpack

    from kanalyze.report import Report, Where

TABLE: Final = Table(
    "culprits",
    "One reason for which a device was idle, by name; the rows of a bucket sum to the ledger's.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column("bucket", pl.Enum(IDLE), "The ledger's bucket: " + ", ".join(IDLE) + "."),
        Column(
            "culprit",
            pl.String,
            "host: the innermost operator, annotation or Python function of a trace, else the innermost range, else "
            "what the trace of its capture has between the same launches, or the calls around; launch: the operation "
            "that was launched; queued: what the operation waited for; profiler: its own word; else the call. Null: no "
            "name.",
            nullable=True,
        ),
        Column(
            "range",
            pl.String,
            "Innermost range that the thread was in, from a launch call on the one that the call began in; "
            "ProfilerStep* for every step of torch's profiler.",
            nullable=True,
        ),
        Column("ns", pl.Int64, "Time."),
        Column("share", pl.Float64, "Part of the device's window."),
        Column("gaps", pl.Int64, "In how many gaps."),
        Column("longest_ns", pl.Int64, "The most in one gap."),
        ALIGNED,
    ),
    purpose="who had the idle time: call, event and range",
    telling=("bucket", "ns", "share", "range", "gaps"),
    groupings=("state", "function"),
)

#: Read part by part, since there may be a hundred million.
_LARGE: Final = "cpu_samples"

_STATE: Final = (
    Column(
        "state",
        pl.Enum(STATES),
        "What the thread was doing that the device waited for: running; in a system call, on a processor or unknown "
        "where; runnable, as other threads had its processor; blocked in a system call; off processor in no traced "
        "call; unknown where the scheduler was not recorded.",
    ),
    Column(
        "waits_on",
        pl.String,
        "What the system call waits for, by its name and stack: lock, condition, sleep, DataLoader worker…",
        nullable=True,
    ),
    Column("call", pl.String, "The system call.", nullable=True),
)

_PARTS: Final = (
    Column("ns", pl.Int64, "Time."),
    Column("share", pl.Float64, "Part of the device's window."),
    Column("host_share", pl.Float64, "Part of the device's bucket `host`."),
)

#: The table that ``by="state"`` gives.
BY_STATE: Final = Table(
    "culprits",
    "What a host thread was doing while a device waited for it; the rows of a device sum to its bucket `host`.",
    (Column("device", pl.Int64, "The GPU, as in `devices`."), *_STATE, *_PARTS),
    telling=("state", "waits_on", "call", "ns", "host_share"),
    when="--by state",
)

#: The table that ``by="function"`` gives.
BY_FUNCTION: Final = Table(
    "culprits",
    "A function of a host thread while a device waited for it; the rows of a device sum to its bucket `host`.",
    (
        Column("device", pl.Int64, "The GPU, as in `devices`."),
        Column(
            "function",
            pl.String,
            "Innermost function of the program's own, else the innermost with a name; null where no sample tells.",
            nullable=True,
        ),
        Column("module", pl.String, "Its program, library or Python file.", nullable=True),
        *_STATE,
        Column("chain", pl.String, "The program's own functions to it, of most of the time.", nullable=True),
        Column("evidence", pl.Enum(EVIDENCE), "What tells the function, of most of the time."),
        Column("samples", pl.Int64, "How many samples tell it."),
        *_PARTS,
    ),
    telling=("function", "state", "waits_on", "ns", "host_share", "chain"),
    when="--by function",
)


def culprits(report: Report, by: str | None = None, **where: Unpack[Where]) -> pl.DataFrame:
    """Idle time of each device by bucket, culprit and range.

    Args:
        report: The report.
        by: ``state`` splits the bucket `host` by what the thread was doing, ``function`` by its function as well.
        where: A window, device or process to look at alone.

    Returns:
        :data:`TABLE`, sorted by device, bucket (in the ledger's order) and time, the longest first; or
        :data:`BY_STATE`, or :data:`BY_FUNCTION`, by device and time, the longest first.

    Raises:
        CannotTellError: The report records no device operations at all; or, with `by`, neither samples nor the
            scheduler nor system calls.
        UnknownNameError: There is no such grouping.

    Columns:
        device, bucket, culprit, range, ns, share, gaps, longest_ns, aligned_share.
    """
    check_grouping(TABLE, by)
    return _by_culprit(report, **where) if by is None else _of_threads(report.narrow(**where), by)


def _of_threads(report: Report, by: str) -> pl.DataFrame:
    """The bucket `host` by what its threads did: :data:`BY_STATE` or :data:`BY_FUNCTION`."""
    require(report, f"culprits by {by}", *DEVICE_KINDS)
    form = BY_STATE if by == "state" else BY_FUNCTION
    if by == "function" and framework_recorded(report):
        return _shared(report, form, by_traced_function(report))
    if "osrt" not in report.kinds and not any(report.table(name).height for name in NEEDED) and not _sampled(report):
        raise CannotTellError.without(f"culprits by {by}", report.meta.path, ["osrt", "samples"], report.meta.tool)
    return _shared(report, form, by_state(report) if by == "state" else by_function(report))


def own_samples(report: Report) -> bool:
    """Whether there are samples of the host, of native code or Python."""
    return bool(report.table("python_samples").height) or _sampled(report)


@once_per_process
def _sampled(report: Report) -> bool:
    """Whether there are CPU samples."""
    return bool(report.mapped(_LARGE, lambda part: part.select(pl.len())).to_series().sum())


def _shared(report: Report, form: Table, sums: pl.DataFrame) -> pl.DataFrame:
    """Adds shares to host time by state or function, and puts it in order."""
    lengths = windows(report).select("device", window=pl.col("end") - pl.col("start"))
    shares = sums.join(lengths, on="device", how="left").with_columns(
        share=pl.col("ns") / pl.col("window").clip(lower_bound=1),
        host_share=pl.col("ns") / pl.col("ns").sum().over("device").clip(lower_bound=1),
    )
    others = [name for name in ("function", "module", "state", "waits_on", "call") if name in form.schema]
    return form.select(shares.sort("device", "ns", *others, descending=[False, True, *(False for _ in others)]))


@analysis
def _by_culprit(report: Report) -> pl.DataFrame:
    """Idle time of each device by bucket, culprit and range: :data:`TABLE`."""
    require(report, TABLE, *DEVICE_KINDS)
    named = with_shares(report, named_sums(report).with_columns(share_of_window(report)), "bucket")
    return TABLE.select(named).sort(
        "device", "bucket", "ns", "culprit", "range", descending=[False, False, True, False, False]
    )
